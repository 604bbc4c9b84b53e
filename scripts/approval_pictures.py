"""Take the pictures of the pages for approvals, on a phone: of the sample as `make up` serves it.

Part of `make pictures`. Other fonts and versions give other pixels, so nothing checks that these are up to date.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

from scripts.terminal_pictures import PICTURES
from tests.support.child_processes import free_port
from tests.support.environments import LAUNCH, chromium
from tests.support.stack import Plan, Stack
from tests.system.test_approval_pages import Served, link_of, log_in, phone


def main() -> None:
    """Take the pictures."""
    path = chromium()
    if path is None:
        raise SystemExit("there is no Chromium: run scripts/install-browser")
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as name, sync_playwright() as playwright:
        plan = Plan(engine="temporal", sample="approvals", port=free_port(), state=Path(name))
        with Stack(plan) as stack:
            served = Served(url=stack.url.removesuffix("/mcp"), state=plan.state, messages=stack.messages)
            asking = [served.ask("deploy", "version=1.4"), served.ask("rollout", "version=1.5")]
            browser = playwright.chromium.launch(executable_path=path, args=list(LAUNCH))
            for theme in ("light", "dark"):
                page = phone(browser, theme)
                page.goto(f"{served.url}/approvals")
                log_in(page, "bob")
                links = [link_of(page, "«1.4»"), link_of(page, "«1.5»")]
                suffix = "" if theme == "light" else "-dark"
                page.screenshot(path=PICTURES / f"approvals{suffix}.png")
                page.goto(links[1])
                page.screenshot(path=PICTURES / f"approval{suffix}.png")
            browser.close()
            for each in asking:
                each.terminate()
    print("taken: approvals.png, approval.png, and both dark, in docs/pictures")


if __name__ == "__main__":
    main()
