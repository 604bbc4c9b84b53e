"""Take the pictures of the run card, in Chromium: of a sidecar with a workflow of DBOS, in two hosts.

Part of `make pictures`. Other fonts and versions give other pixels, so nothing checks that these are up to date.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlencode

from playwright.sync_api import Browser, FrameLocator, Page, expect, sync_playwright

from scripts.terminal_pictures import PICTURES, running_sidecar
from tests.clients.card_host import card_host
from tests.support.child_processes import Child, Command, free_port, stop_all
from tests.support.environments import INSPECTOR, LAUNCH, MATPLOTLIB, NODE, ROOT, chromium, npm_packages, python_of

_FLOWS: Final = ROOT / "tests" / "support" / "card_flows.py"
_CALL: Final = {"tool": "fulfil_order", "args": '{"order_id": "A-17"}'}
_MAKE_GIF: Final = """
import sys
from PIL import Image
*frames, target = sys.argv[1:]
images = (Image.open(each.split("@")[0]) for each in frames)
first, *rest = (each.convert("P", palette=Image.Palette.ADAPTIVE, colors=64) for each in images)
first.save(target, save_all=True, append_images=rest, duration=[int(each.split("@")[1]) for each in frames], loop=0)
"""


def main() -> None:
    """Take all pictures of the run card."""
    path = chromium()
    if path is None:
        raise SystemExit("there is no Chromium: run scripts/install-browser")
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as name, _sidecar(Path(name)) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(LAUNCH))
        with card_host(url, Path(name) / "host.log") as origin:
            for theme, picture in (("light", "card.png"), ("dark", "card-dark.png")):
                _take_still(browser, origin, theme, PICTURES / picture)
            _take_gif(browser, origin, Path(name))
        with _inspector(Path(name)) as (address, token):
            _take_in_inspector(browser, address, token, url)
        browser.close()
    print("taken: card.png, card-dark.png, card.gif, card-inspector.png in docs/pictures")


@contextmanager
def _sidecar(folder: Path) -> Generator[str]:
    """Serve the workflow; yield the URL of its MCP endpoint."""
    copy(_FLOWS, folder / "app.py")
    tool = {"engine": "app", "workflow": "fulfil_order", "input": "app:fulfil_order", "title": "Fulfil order"}
    config = {
        "server": {"name": "shop", "single_user": True},
        "store": "sqlite:///tasks.db",
        "engines": {"app": {"adapter": "dbos", "module": "app"}},
        "tools": {"fulfil_order": tool},
    }
    (folder / "workflows.yaml").write_text(json.dumps(config))
    with running_sidecar(folder, CARD_FLOWS_PAUSE="3") as url:
        yield url


@contextmanager
def _inspector(folder: Path) -> Generator[tuple[str, str]]:
    """Run MCP Inspector with a temporary home; yield its address and its token."""
    program = npm_packages("inspector", INSPECTOR) / "@modelcontextprotocol" / "inspector"
    port, log = free_port(), folder / "inspector.log"
    argv = (str(NODE), str(program / "clients" / "launcher" / "build" / "index.js"), "--web")
    env = {"HOME": str(folder), "CLIENT_PORT": str(port), "MCP_SANDBOX_PORT": str(free_port()),
           "MCP_AUTO_OPEN_ENABLED": "false", "MCP_INSPECTOR_SECRET_STORE": "memory"}  # fmt: skip
    child = Child(Command(name="inspector", argv=argv, cwd=folder, env=env), log)
    try:
        while (token := re.search(r"Auth token: (\w+)", log.read_text())) is None:
            child.check()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", token[1]
    finally:
        stop_all([child])


def _take_in_inspector(browser: Browser, address: str, token: str, url: str) -> None:
    """Take the card in MCP Inspector, and answer its question there."""
    arguments = base64.urlsafe_b64encode(_CALL["args"].encode()).decode().rstrip("=")
    link = {"MCP_INSPECTOR_API_TOKEN": token, "autoConnect": token, "serverUrl": url, "transport": "http"}
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}/?{urlencode({**link, 'openApp': _CALL['tool'], 'appArgs': arguments})}")
    page.get_by_role("button", name="Open App").click(timeout=60_000)
    card = page.frame_locator("iframe").frame_locator("iframe")
    _fill_form(card)
    _wait_for_paint(page)
    page.screenshot(path=PICTURES / "card-inspector.png")
    card.get_by_role("button", name="Send answer").click()
    expect(card.get_by_role("status")).to_have_text("completed", timeout=30_000)
    page.close()


@contextmanager
def _host_page(browser: Browser, origin: str, theme: str) -> Generator[tuple[Page, FrameLocator]]:
    """Call the tool in the host of `tests.clients.card_host`; yield the page and the card in it."""
    context = browser.new_context(viewport={"width": 720, "height": 640}, device_scale_factor=2)
    page = context.new_page()
    page.goto(f"{origin}/?{urlencode({**_CALL, 'theme': theme})}")
    yield page, page.frame_locator("iframe").frame_locator("iframe")
    context.close()


def _take_still(browser: Browser, origin: str, theme: str, target: Path) -> None:
    """Take the card with a question and a form that is filled in."""
    with _host_page(browser, origin, theme) as (page, card):
        _fill_form(card)
        height = page.evaluate("document.documentElement.offsetHeight + 16")
        page.set_viewport_size({"width": 720, "height": height})
        _wait_for_paint(page)
        page.screenshot(path=target)


def _wait_for_paint(page: Page) -> None:
    """Wait until the browser has painted all frames: those of other origins come later than the page."""
    for frame in page.frames:
        frame.evaluate("async () => { for (let at = 0; at < 5; at++) await new Promise(requestAnimationFrame); }")


def _fill_form(card: FrameLocator) -> None:
    expect(card.get_by_role("status")).to_have_text("needs your answer", timeout=30_000)
    card.get_by_role("radio", name="Yes").check()
    card.get_by_role("radio", name="Our van").check()
    card.get_by_label("Tell whom").fill("ada@example.com")


def _take_gif(browser: Browser, origin: str, folder: Path) -> None:
    """Take a run from its start to its result, as a GIF with a frame for each change."""
    frames: list[str] = []
    with _host_page(browser, origin, "light") as (page, card):

        def take(ms: int) -> None:
            shot = folder / f"{len(frames)}.png"
            _wait_for_paint(page)
            page.screenshot(path=shot, scale="css")
            frames.append(f"{shot}@{ms}")

        for text in ("reserving stock", "charging the card"):
            expect(card.locator("#message")).to_have_text(text, timeout=30_000)
            take(1200)
        expect(card.get_by_role("status")).to_have_text("needs your answer", timeout=30_000)
        take(1800)
        card.get_by_role("radio", name="Yes").check()
        take(700)
        card.get_by_role("radio", name="Our van").check()
        take(700)
        card.get_by_label("Tell whom").fill("ada@example.com")
        take(900)
        card.get_by_role("button", name="Send answer").focus()
        take(700)
        card.get_by_role("button", name="Send answer").click()
        expect(card.get_by_role("status")).to_have_text("completed", timeout=30_000)
        take(3000)
    subprocess.run(
        [str(python_of("pictures", MATPLOTLIB)), "-c", _MAKE_GIF, *frames, str(PICTURES / "card.gif")], check=True
    )


if __name__ == "__main__":
    main()
