"""Approval by somebody else in a real browser of a phone's size: the addresses are those that `make up` prints."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.support.child_processes import free_port
from tests.support.commands import COMMAND
from tests.support.environments import LAUNCH, chromium
from tests.support.oidc import PASSWORD
from tests.support.stack import Plan, Stack
from tests.system.test_run_card import AXE, WITHIN

pytestmark = [
    pytest.mark.usefixtures("processes"),
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium: scripts/install-browser installs Debian's"),
]
THEMES: Final = ("light", "dark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The sample, as `make up SAMPLE=approvals` serves it."""

    url: str  # of the pages
    state: Path
    messages: Path

    def notified(self, text: str, *, is_link: bool = True) -> str:
        """Wait for a message that begins so; return the address of the link in it."""
        deadline = time.monotonic() + WITHIN / 1000
        while True:
            lines = self.messages.read_text().splitlines()
            if found := next((line for line in reversed(lines) if line.startswith(text)), None):
                return found.removeprefix(f"{text}<").removesuffix("|Open the question>") if is_link else found
            assert time.monotonic() < deadline, lines
            time.sleep(0.05)

    def ask(self, *words: str) -> subprocess.Popen[str]:
        """Alice asks in her terminal, and waits for the result."""
        token = str(self.state / "alice.token")
        command = [COMMAND, "call", *words, "--url", f"{self.url}/mcp", "--token-file", token]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """The sample on a free port."""
    plan = Plan(engine="temporal", sample="approvals", port=free_port(), state=tmp_path_factory.mktemp("up"))
    with Stack(plan) as stack:
        yield Served(url=stack.url.removesuffix("/mcp"), state=plan.state, messages=stack.messages)


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    """Debian's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(LAUNCH))
        yield browser
        browser.close()


def phone(browser: Browser, theme: Any = "light", *, script: bool = True) -> Page:
    """A new phone that nobody has logged in on; `theme` is light or dark."""
    context = browser.new_context(
        viewport={"width": 390, "height": 844},
        device_scale_factor=2,
        has_touch=True,
        is_mobile=True,
        color_scheme=theme,
        java_script_enabled=script,
    )
    context.set_default_timeout(WITHIN)
    return context.new_page()


def log_in(page: Page, person: str) -> None:
    """Type at the identity provider what it asks for."""
    page.get_by_role("textbox").first.fill(person)
    page.get_by_role("button", name="Continue").click()
    page.locator("input[type=password]").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def violations(page: Page) -> list[str]:
    """What axe finds to be wrong with the page."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document)")
    assert len(found["passes"]) > 5
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found["violations"]]


def link_of(page: Page, words: str) -> str:
    """The address of the open question with these words, which may have opened a moment ago."""
    link, deadline = page.get_by_role("link").filter(has_text=words), time.monotonic() + WITHIN / 1000
    while not link.count():
        assert time.monotonic() < deadline, page.content()
        page.reload()
    return str(link.get_attribute("href"))


def tab_to(target: Locator) -> None:
    """Press Tab until this has the focus, as somebody without a pointer does."""
    for _ in range(20):
        if target.evaluate("each => each === document.activeElement"):
            return
        target.page.keyboard.press("Tab")
    raise AssertionError("it cannot be reached by keyboard")


def said(asking: subprocess.Popen[str]) -> str:
    """All that Alice's terminal shows, once the task has ended."""
    output, _ = asking.communicate(timeout=WITHIN / 1000)
    return output


def test_a_release_is_approved_on_a_phone_before_anything_is_started(served: Served, browser: Browser) -> None:
    asking = served.ask("deploy", "version=1.4")
    link = served.notified("deploy waits for release-managers: asked by alice in mcp-workflows. ")
    inbox = phone(browser)
    inbox.goto(f"{served.url}/approvals")
    log_in(inbox, "bob")
    assert link_of(inbox, "Deploy «1.4»") == link

    page = phone(browser, script=False)  # another phone, on which nobody is logged in, and no page has a script
    page.goto(link)
    log_in(page, "carol")
    expect(page).to_have_url(link)
    expect(page.get_by_role("heading", level=1)).to_have_text("Deploy to production")
    expect(page.get_by_text("Asked by alice in «mcp-workflows»")).to_be_visible()
    expect(page.get_by_role("definition")).to_have_text(["1.4"])
    page.get_by_label("Reason (optional)").fill("tested on Thursday")
    page.get_by_role("button", name="Approve").tap()
    expect(page.get_by_role("status")).to_contain_text("It was approved by carol at")
    expect(page.get_by_role("status")).to_contain_text("tested on Thursday")

    inbox.goto(link)
    expect(inbox.get_by_role("status")).to_contain_text("It was approved by carol at")
    expect(inbox.get_by_role("button", name="Approve")).to_have_count(0)
    output = said(asking)
    assert asking.returncode == 0, output
    assert "waits for release-managers" in output
    served.notified("deploy has completed: asked by alice in mcp-workflows.", is_link=False)
    assert "registry.example.com/shop:1.4 on 30 of 30 machines" in output


def test_a_rollout_is_declined_midway_by_keyboard_alone(served: Served, browser: Browser) -> None:
    asking = served.ask("rollout", "version=1.5")
    page = phone(browser)
    page.goto(served.notified("rollout waits for release-managers: asked by alice in mcp-workflows. "))
    log_in(page, "bob")
    expect(page.get_by_text("«1.5» runs on a few machines")).to_be_visible()
    expect(page.get_by_role("term")).to_have_text(["version"])
    expect(page.get_by_role("definition")).to_have_text(["1.5"])
    reason, decline = page.get_by_label("Reason (optional)"), page.get_by_role("button", name="Decline")
    tab_to(reason)
    page.keyboard.type("errors on 2 machines")
    tab_to(decline)
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("It was declined by bob at")
    expect(page.get_by_role("status")).to_contain_text("errors on 2 machines")
    output = said(asking)
    assert asking.returncode == 0, output
    assert "registry.example.com/shop:1.5 was rolled back" in output


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_nothing_wrong_with_any_page(served: Served, browser: Browser, theme: str) -> None:
    asking = served.ask("deploy", f"version=2.0-{theme}")
    page = phone(browser, theme)
    page.goto(f"{served.url}/approvals")
    log_in(page, "bob")
    link = link_of(page, f"«2.0-{theme}»")
    assert violations(page) == []
    page.goto(link)
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    sizes = page.get_by_role("button").evaluate_all("all => all.map(each => each.getBoundingClientRect().height)")
    assert min(sizes) >= 44
    page.get_by_role("button", name="Decline").click()
    expect(page.get_by_role("status")).to_contain_text("It was declined by bob")
    assert violations(page) == []
    page.goto(f"{served.url}/approvals/nothing")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such question for you.")
    assert violations(page) == []
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("You are logged out here.")
    assert violations(page) == []
    said(asking)
    assert asking.returncode == 1, "it was declined"
