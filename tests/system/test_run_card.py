"""The run card in Chromium: the official AppBridge as its host, a sidecar with workflows of DBOS behind it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import copy
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Frame, FrameLocator, Locator, Page, Route, expect, sync_playwright

from tests.clients.card_host import card_host
from tests.support.dev_server import DevServer
from tests.support.environments import LAUNCH, chromium
from tests.support.sidecars import sidecar

pytestmark = [
    pytest.mark.usefixtures("processes"),
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium: scripts/install-browser installs Debian's"),
]

ROOT: Final = Path(__file__).parents[2]
FLOWS: Final = ROOT / "tests" / "support" / "card_flows.py"  # not imported: DBOS has one registry in a process
AXE: Final = ROOT / "node_modules" / "axe-core" / "axe.min.js"
WITHIN: Final = 60_000  # ms
TOOLS: Final = (
    "fulfil_order",
    "ask_everything",
    "ask_two",
    "ask_yes_or_no",
    "ask_ok",
    "visit",
    "rephrase",
    "ask_nonsense",
    "be_hostile",
    "fail",
    "fail_late",
    "forever",
    "answer_at_once",
)
UI_URLS: Final = {"https": "https://engine.example", "http": "http://engine.example"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A host with a card in it."""

    page: Page

    @property
    def card(self) -> FrameLocator:
        """The card, to look for what is in it."""
        return self.page.frame_locator("iframe").frame_locator("iframe")

    @property
    def frame(self) -> Frame:
        """The card, to run scripts in it."""
        return self.page.main_frame.child_frames[0].child_frames[0]

    def host(self, expression: str) -> Any:  # any JSON value
        """The value of an expression over `host` (tests/clients/card/host.ts)."""
        return self.page.evaluate(f"host.{expression}")

    def shown_again(self, call: str) -> None:
        """Unload the card and let the host show it for this call (`ToolInput, ToolResult`)."""
        self.host("unload()")
        self.host(f"show({call})")

    def button(self, name: str) -> Locator:
        """A button of the card."""
        return self.card.get_by_role("button", name=name)

    def shows_status(self, status: str) -> None:
        """Wait until the card shows this status."""
        expect(self.card.get_by_role("status")).to_have_text(status)

    def shows_alert(self, text: str | re.Pattern[str]) -> None:
        """Wait until the card complains like that."""
        expect(self.card.get_by_role("alert").filter(has_text=text)).to_be_visible()

    def polls(self, more: int = 2) -> None:
        """Wait until the card has looked so many times more."""
        wanted = self.host("calls.length") + more
        self.page.wait_for_function(f"host.calls.length >= {wanted}")

    def until(self, condition: str) -> None:
        """Wait until this is true in the card; its policy forbids `wait_for_function`."""
        deadline = time.monotonic() + WITHIN / 1000
        while not self.frame.evaluate(condition):
            assert time.monotonic() < deadline, condition
            time.sleep(0.02)

    def violations(self) -> list[str]:
        """What axe finds to be wrong with the card."""
        self.frame.evaluate(AXE.read_text())
        found = self.frame.evaluate("axe.run(document)")
        assert len(found["passes"]) > 10
        return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found["violations"]]


Open = Callable[..., Stage]


@pytest.fixture(scope="module")
def served(dev_server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The origin of the host; behind it a sidecar."""
    folder = tmp_path_factory.mktemp("card")
    copy(FLOWS, folder / "app.py")
    tools: dict[str, Any] = {each: {"engine": "app", "workflow": each, "input": f"app:{each}"} for each in TOOLS}
    approval = {"call": {}, "see": {}, "answer": {"not_owner": True}, "cancel": {}}
    for_people = {"engine": "app", "workflow": "ask_ok", "model_may_answer": False}
    tools["ask_people"] = {**for_people, "input": "app:ask_ok"}
    tools["wait_for_approval"] = {"engine": "app", "workflow": "ask_yes_or_no", "allow": approval}
    focus = {"type": "object", "properties": {"on": {"type": "string", "title": "On what"}}, "required": ["on"]}
    actions = {
        "pause": {"event": "pause", "title": "Pause it", "description": "It goes on later."},
        "focus": {"event": "focus", "input": focus},
    }
    tools["take_messages"] = {"engine": "memory", "workflow": "forever", "actions": actions}
    temporal = {"adapter": "temporal", "address": dev_server.address, "task_queue": "without-workers"}
    tools.update({f"run_at_{name}": {"engine": name, "workflow": "Run"} for name in UI_URLS})
    config = {
        "server": {"name": "card", "single_user": True},
        "store": "sqlite:///tasks.db",
        "engines": {
            "app": {"adapter": "dbos", "module": "app"},
            "memory": {"adapter": "memory"},
            **{name: {**temporal, "ui_url": url} for name, url in UI_URLS.items()},
        },
        "tools": tools,
    }
    path = folder / "workflows.yaml"
    path.write_text(json.dumps(config))
    with sidecar(path) as running, card_host(running.url, folder / "host.log") as origin:
        yield origin


@pytest.fixture(scope="module")
def browser(processes: None) -> Generator[Browser]:
    """Chromium."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=list(LAUNCH))
        yield running
        running.close()


@pytest.fixture
def opened(served: str, browser: Browser) -> Generator[Open]:
    """Calls a tool in a host of its own; nothing may go wrong in the browser meanwhile, and nothing leave it."""
    context = browser.new_context(viewport={"width": 760, "height": 900})
    wrong: list[str] = []
    expect.set_options(timeout=WITHIN)

    def call(tool: str, arguments: Mapping[str, Any] | None = None, *, width: int = 760, **query: str) -> Stage:
        page = context.new_page()
        page.set_default_timeout(WITHIN)
        page.set_viewport_size({"width": width, "height": 900})
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda request: wrong.append(request.url) if not _is_here(request.url, served) else None)
        page.goto(f"{served}/?{urlencode({'tool': tool, 'args': json.dumps(arguments or {}), **query})}")
        page.wait_for_function("globalThis.host?.isUp")
        return Stage(page=page)

    yield call
    context.close()
    assert wrong == []


def _is_here(url: str, served: str) -> bool:
    return url.startswith((served, served.replace("localhost", "127.0.0.1"), "data:", "about:"))


@pytest.mark.parametrize(("era", "theme", "width"), [("legacy", "light", 760), ("modern", "dark", 360)])
def test_a_question_is_answered_and_nothing_is_wrong_for_axe(opened: Open, era: str, theme: str, width: int) -> None:
    stage = opened("fulfil_order", {"order_id": "A-17"}, era=era, theme=theme, width=width)
    card = stage.card
    stage.shows_status("needs your answer")
    assert stage.host("revision") == {"legacy": "2025-11-25", "modern": "2026-07-28"}[era]
    expect(card.get_by_text("waiting for a person")).to_be_visible()
    expect(card.get_by_text("3 of 4")).to_be_visible()
    expect(card.get_by_role("listitem")).to_have_text(["✓ reserve_stock", "✓ charge_card"])
    assert stage.violations() == []
    stage.button("Send answer").click()
    stage.shows_alert("Ship it?: ")
    card.get_by_role("radio", name="Yes").check()
    card.get_by_role("radio", name="Our van").check()
    card.get_by_label("Boxes").fill("10")
    stage.button("Send answer").click()
    stage.shows_alert("Boxes: ")
    assert stage.violations() == []
    card.get_by_label("Boxes").fill("3")
    stage.polls()  # leave alone what was typed
    expect(card.get_by_label("Boxes")).to_have_value("3")
    expect(card.get_by_role("radio", name="Our van")).to_be_checked()
    assert stage.frame.evaluate("document.documentElement.scrollWidth <= innerWidth")
    stage.button("Send answer").click()
    stage.shows_status("completed")
    expect(card.get_by_role("definition")).to_have_text(["A-17", "accept", "true", "van", "3"])
    expect(card.get_by_role("button")).to_have_count(0)
    stage.page.wait_for_function("host.told.length == 1")
    assert "completed. Call task_status for its result." in stage.host("told[0]")
    assert set(stage.host("calls")) == {"task_status", "task_answer"}
    assert stage.violations() == []


def test_everything_can_be_done_with_the_keyboard_alone(opened: Open) -> None:
    stage = opened("fulfil_order", {"order_id": "keys"})
    stage.shows_status("needs your answer")
    keyboard = stage.page.keyboard

    def tab_to(name: str) -> None:
        for _ in range(20):
            keyboard.press("Tab")
            focused = "document.activeElement.labels?.[0]?.textContent ?? document.activeElement.textContent"
            if name in stage.frame.evaluate(focused):
                return
        raise AssertionError(f"no way to {name} with the keyboard")

    stage.polls()
    tab_to("Yes")
    keyboard.press("Space")
    stage.until("document.activeElement.checked")
    tab_to("Post")
    keyboard.press("Space")
    tab_to("Boxes")
    keyboard.press("ControlOrMeta+A")
    keyboard.type("4")
    tab_to("Cancel run")
    keyboard.press("Enter")
    stage.until("document.activeElement.textContent == 'No, go on'")
    keyboard.press("Enter")
    stage.until("document.activeElement.textContent == 'Cancel run…'")
    keyboard.press("Shift+Tab")
    keyboard.press("Shift+Tab")
    stage.until("document.activeElement.textContent == 'Send answer'")
    keyboard.press("Enter")
    stage.shows_status("completed")
    expect(stage.card.get_by_role("definition")).to_have_text(["keys", "accept", "true", "post", "4"])
    stage.until("document.activeElement.id == 'title'")  # not lost with the form


def test_every_widget_gives_the_value_that_its_schema_wants(opened: Open) -> None:
    stage = opened("ask_everything")
    card = stage.card
    stage.shows_status("needs your answer")
    assert stage.violations() == []
    send = stage.button("Send answer")
    field = card.get_by_label("plain")
    send.click()
    stage.shows_alert("plain: ")
    field.fill("a")
    send.click()
    stage.shows_alert(re.compile("plain: .*2 characters"))
    field.fill("abcdef")
    expect(field).to_have_value("abcde")
    card.get_by_label("Note").fill("two\nlines")
    card.get_by_label("Site").fill("no address")
    send.click()
    stage.shows_alert("Site: ")
    card.get_by_label("Site").fill("https://example.com/")
    card.get_by_label("Day").fill("2026-01-31")
    card.get_by_label("At", exact=False).first.fill("2026-01-31T12:30")
    card.get_by_role("radio", name="Medium").check()
    card.get_by_role("radio", name="city 11").check()
    send.click()
    stage.shows_alert("Gifts: choose 1 to 2")
    for gift in ("TEA", "CUP", "HAT"):
        card.get_by_role("checkbox", name=gift).check()
    card.get_by_label("Price").fill("1.25")
    send.click()
    stage.shows_alert("Gifts: choose 1 to 2")
    card.get_by_role("checkbox", name="CUP").uncheck()
    expect(card.get_by_role("group", name="Sure?").get_by_role("radio", name="No", exact=True)).to_be_checked()
    card.get_by_label("Rest").fill("[{]")
    card.get_by_label("Code").fill("nope")
    send.click()
    stage.shows_alert("Rest: this is not JSON")
    card.get_by_label("Rest").fill('[{"a": 1}]')
    send.click()
    stage.shows_alert(re.compile("[Cc]ode.*nope|nope"))  # by the server: patterns are its own to check
    expect(card.get_by_label("Note")).to_have_value("two\nlines")
    card.get_by_label("Code").fill("ABC")
    card.get_by_label("Code").press("Enter")
    stage.shows_status("completed")
    answer = json.loads(card.get_by_role("region", name="Result").inner_text())["answer"]
    at = answer.pop("at")
    assert at.startswith("2026-01-3")
    assert at.endswith("Z")
    assert answer == {
        "plain": "abcde",
        "note": "two\nlines",
        "site": "https://example.com/",
        "day": "2026-01-31",
        "size": "m",
        "city": "city 11",
        "gifts": ["tea", "hat"],
        "price": 1.25,
        "sure": False,
        "rest": [{"a": 1}],
        "code": "ABC",
    }


def test_an_answer_to_one_question_leaves_the_other_form_alone(opened: Open) -> None:
    stage = opened("ask_two")
    first, second = (stage.card.get_by_role("group", name=name) for name in ("First?", "Second?"))
    second.get_by_label("Why").fill("because")
    first.get_by_role("button", name="Decline").click()
    expect(first).to_have_count(0)
    stage.polls()
    expect(second.get_by_label("Why")).to_have_value("because")
    second.get_by_role("button", name="Send answer").click()
    stage.shows_status("completed")
    expect(stage.card.get_by_role("region", name="Result")).to_contain_text("because")


def test_a_page_to_visit_is_opened_by_the_host(opened: Open) -> None:
    stage = opened("visit", {"url": "https://example.com/sign?a=1"})
    expect(stage.card.get_by_text("https://example.com/sign?a=1")).to_be_visible()
    stage.button("Open page ↗").click()
    stage.page.wait_for_function("host.links.length == 1")
    assert stage.host("links") == ["https://example.com/sign?a=1"]
    stage.button("I have done it").click()
    stage.shows_status("completed")


@pytest.mark.parametrize("url", ["https://ex\u0430mple.com/a", "javascript:alert(1)"])  # a Cyrillic letter
def test_a_question_that_sends_people_to_no_safe_address_is_not_shown(opened: Open, url: str) -> None:
    stage = opened("visit", {"url": url})
    expect(stage.card.get_by_text("it asks a question that cannot be shown").first).to_be_visible()
    stage.shows_status("working")
    expect(stage.button("Open page ↗")).to_have_count(0)
    expect(stage.card.locator("a")).to_have_count(0)
    assert url not in stage.card.locator("main").inner_text()


def test_the_page_of_the_engine_is_opened_by_the_host_if_it_has_tls(opened: Open) -> None:
    stage = opened("run_at_https")
    stage.button("Open in engine ↗").click()
    stage.page.wait_for_function("host.links.length == 1")
    (link,) = stage.host("links")
    assert re.fullmatch(rf"{UI_URLS['https']}/namespaces/default/workflows/[^/]+/[^/]+/history", link)
    expect(stage.card.locator("a")).to_have_count(0)
    assert stage.violations() == []
    without = opened("run_at_http")
    without.polls()
    assert without.host("result.structuredContent.url ?? null") is None
    expect(without.button("Open in engine ↗")).to_be_hidden()


def test_a_question_that_only_people_answer_has_no_form_and_a_link_to_its_page_if_there_is_one(opened: Open) -> None:
    stage = opened("ask_people")
    expect(stage.card.get_by_text("It is answered in a dialog of another client, or by the operator.")).to_be_visible()
    expect(stage.card.get_by_role("textbox")).to_have_count(0)
    for name in ("Approve", "Decline", "Open page ↗"):
        expect(stage.button(name)).to_have_count(0)
    assert stage.violations() == []
    address = "https://mcp.example.com/approvals/abc"

    def with_page(route: Route) -> None:
        """Answer as a server with pages does."""
        found = route.fetch()
        body = re.sub(r'"canAnswer":\s*false', f'"canAnswer":false,"url":"{address}"', found.text())
        route.fulfill(response=found, body=body)

    stage.page.route("**/mcp", with_page)
    stage.button("Open page ↗").click()
    stage.page.wait_for_function("host.links.length == 1")
    assert stage.host("links") == [address]
    expect(stage.card.get_by_text("It is answered on its page.")).to_be_visible()
    expect(stage.card.get_by_text(address)).to_be_visible()
    for name in ("Approve", "Decline", "I have done it"):
        expect(stage.button(name)).to_have_count(0)
    assert stage.violations() == []


def test_a_task_that_waits_for_somebody_else_says_so_and_asks_nothing(opened: Open) -> None:
    stage = opened("wait_for_approval")
    expect(stage.card.get_by_text("Waits for somebody else's answer.")).to_be_visible()
    stage.shows_status("working")
    expect(stage.button("Approve")).to_have_count(0)
    assert stage.violations() == []
    stage.button("Cancel run…").click()
    stage.button("Yes, stop it").click()
    stage.shows_status("cancelled")
    expect(stage.card.get_by_text("Waits for")).to_have_count(0)


def test_a_card_in_a_host_with_tasks_finds_its_run_and_answers_it(opened: Open) -> None:
    stage = opened("fulfil_order", {"order_id": "tasks"}, era="modern", tasks="1")
    stage.shows_status("needs your answer")
    assert "task_find" in stage.host("calls")
    assert stage.host("result") is None  # the host has no more than a task
    stage.card.get_by_role("radio", name="Yes").check()
    stage.card.get_by_role("radio", name="Post").check()
    stage.button("Send answer").click()
    stage.shows_status("completed")
    expect(stage.card.get_by_role("definition").first).to_have_text("tasks")
    stage.page.wait_for_function("host.result")  # the host gives the card the result, which changes nothing
    stage.shows_status("completed")
    assert not stage.host("result.isError")


def test_a_cancellation_is_confirmed_in_place(opened: Open) -> None:
    stage = opened("forever")
    stage.shows_status("working")
    expect(stage.card.get_by_text("3 done")).to_be_visible()
    stage.button("Cancel run…").click()
    stage.button("No, go on").click()
    stage.button("Cancel run…").click()
    assert stage.violations() == []
    stage.button("Yes, stop it").click()
    stage.shows_status("cancelled")
    stage.page.wait_for_function("host.told.length == 1")
    expect(stage.card.get_by_role("button")).to_have_count(0)
    assert stage.violations() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_actions_are_buttons_and_forms_that_stay_open_and_work_by_keyboard(opened: Open, theme: str) -> None:
    card = opened("take_messages", theme=theme, width=360)
    card.button("Pause it").click()
    expect(card.card.get_by_text('"event":"pause"')).to_be_visible()
    summary = card.card.get_by_text("focus", exact=True)
    summary.focus()
    card.page.keyboard.press("Enter")
    card.button("Send").click()
    expect(card.card.get_by_label("On what")).to_be_focused()
    card.card.get_by_label("On what").fill("the tests")
    card.polls()
    assert card.violations() == []
    card.page.keyboard.press("Tab")
    card.page.keyboard.press("Enter")
    expect(card.card.get_by_text('"on":"the tests"')).to_be_visible()
    card.button("Cancel run…").click()
    card.button("Yes, stop it").click()
    expect(card.button("Pause it")).to_be_hidden()


def test_a_failure_is_shown_with_its_reason(opened: Open) -> None:
    late = opened("fail_late")
    late.button("Approve").click()
    late.shows_status("failed")
    expect(late.card.get_by_text("the card was declined")).to_be_visible()
    assert late.violations() == []
    at_once = opened("fail")
    at_once.shows_status("failed")
    expect(at_once.card.get_by_text("the card was declined")).to_be_visible()


def test_a_result_within_the_call_needs_no_task(opened: Open) -> None:
    stage = opened("answer_at_once", {"text": "hello"})
    stage.shows_status("completed")
    expect(stage.card.get_by_text("hello")).to_be_visible()
    assert stage.host("calls") == []
    assert stage.host("told") == []  # the model has the result itself
    stage.shown_again("{}, {content: [], structuredContent: {note: null, total: 3}}")
    expect(stage.card.get_by_role("definition")).to_have_text(["\u2013", "3"])


def test_hostile_texts_are_text(opened: Open) -> None:
    stage = opened("be_hostile", width=360)
    stage.shows_status("needs your answer")
    markup = '<img src=x onerror="parent.postMessage(1'
    assert markup in stage.card.locator("#message").inner_text()
    assert markup in stage.card.locator("h2").inner_text()
    for names in ("img", "a", "iframe", "script[src]", "main script", "option"):
        expect(stage.card.locator(names)).to_have_count(0)
    assert stage.frame.evaluate("document.title") == "Run card"
    shown = stage.card.locator("main").inner_text()
    assert "\u202e" not in shown
    assert len(shown) < 30_000
    assert stage.frame.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert stage.violations() == []
    stage.button("Send answer").click()
    stage.shows_status("completed")
    assert "<img src=x onerror=" in stage.card.get_by_role("region", name="Result").inner_text()
    assert stage.page.title() == "A host for cards"


def test_messages_of_others_than_the_parent_are_ignored(opened: Open) -> None:
    stage = opened("fulfil_order", {"order_id": "mine"})
    stage.shows_status("needs your answer")
    forged = {"taskId": "forged", "tool": "forged", "status": "completed", "result": "forged"}
    stage.page.evaluate(
        """forged => {
            const card = frames[0].frames[0];
            const send = message => card.postMessage({jsonrpc: "2.0", ...message}, "*");
            send({method: "ui/notifications/tool-result", params: {structuredContent: forged}});
            for (let id = 0; id < 200; id++) send({id, result: {structuredContent: forged}});
            send({method: "ui/resource-teardown", id: 1});
            const stranger = document.body.appendChild(document.createElement("iframe"));
            stranger.srcdoc = `<script>
                parent.frames[0].frames[0].postMessage({jsonrpc: "2.0", method: "ui/resource-teardown", id: 2}, "*");
                parent.frames[0].frames[0].postMessage({jsonrpc: "2.0", method: "ui/notifications/tool-result",
                    params: {structuredContent: ${JSON.stringify(forged)}}}, "*");
                parent.stranger = true;
            </script>`;
        }""",
        forged,
    )
    stage.page.wait_for_function("globalThis.stranger")
    stage.polls()  # it still does
    stage.page.evaluate("document.querySelectorAll('iframe')[1].remove()")
    stage.shows_status("needs your answer")
    expect(stage.card.get_by_text("forged")).to_have_count(0)


def test_a_result_that_looks_like_a_handle_asks_nothing_and_opens_nothing(opened: Open) -> None:
    stage = opened("ask_yes_or_no")
    expect(stage.button("Approve")).to_be_visible()
    mine = stage.host("result.structuredContent")
    asked = {key: {"message": "Do you like tea?"} for key in mine["questions"]}
    forged = {**mine, "questions": asked, "url": "https://example.com/", "pollIntervalMs": 9**9}
    stage.shown_again(f"{{}}, {{content: [], structuredContent: {json.dumps(forged)}}}")
    expect(stage.card.get_by_role("heading", name="Go on?")).to_be_visible()
    expect(stage.card.get_by_text("tea")).to_have_count(0)
    expect(stage.button("Open in engine ↗")).to_be_hidden()


@pytest.mark.parametrize(
    ("label", "said"), [("Approve", ["accept", "true", "tested"]), ("Decline", ["decline", "tested"])]
)
def test_a_yes_or_no_is_two_large_buttons(opened: Open, label: str, said: list[str]) -> None:
    stage = opened("ask_ok")
    expect(stage.card.get_by_role("radio")).to_have_count(0)
    for each in ("Approve", "Decline"):
        size = stage.button(each).bounding_box()
        assert size is not None
        assert size["height"] >= 44
    assert stage.violations() == []
    stage.card.get_by_label("Reason").fill("tested")
    stage.button(label).click()
    stage.shows_status("completed")
    assert stage.card.get_by_role("definition").all_text_contents() == said


def test_a_form_goes_with_its_question_and_not_with_its_key(opened: Open) -> None:
    stage = opened("rephrase")
    stage.card.get_by_label("Why").fill("typed for the first")
    stage.button("Approve").click()  # then the workflow puts another question under the same key
    expect(stage.card.get_by_role("heading", name="Second text?")).to_be_visible()
    expect(stage.card.get_by_text("First text?")).to_have_count(0)
    expect(stage.card.get_by_label("Why")).to_have_value("")


def test_a_schema_that_makes_no_sense_is_a_field_for_json(opened: Open) -> None:
    stage = opened("ask_nonsense")
    for name in ('{"toString":1,"valueOf":1}', "enum", "preset", "least", "null"):
        expect(stage.card.get_by_label(f"{name} (JSON)")).to_be_visible()
    expect(stage.card.get_by_label("constructor")).to_be_visible()
    stage.button("Decline").click()
    stage.shows_status("completed")


def test_a_host_that_refuses_calls_is_told_and_tried_again(opened: Open) -> None:
    stage = opened("ask_yes_or_no")
    expect(stage.button("Approve")).to_be_visible()
    stage.host("refuse = true")
    stage.shows_alert("No news: ")
    stage.button("Approve").click()
    stage.shows_alert(re.compile("^this host lets no card call tools"))
    stage.host("refuse = false")
    stage.button("Approve").click()
    stage.shows_status("completed")
    expect(stage.card.get_by_role("definition")).to_have_text(["true"])


def test_a_card_that_lost_contact_goes_on_by_itself_and_by_its_button(opened: Open) -> None:
    stage = opened("forever", refuse="1")
    stage.shows_alert("No news: ")
    expect(stage.button("Try again")).to_be_visible()
    stage.host("refuse = false")
    stage.button("Try again").click()
    expect(stage.button("Try again")).to_be_hidden()
    expect(stage.card.get_by_role("alert")).to_have_count(0)
    stage.polls()


def test_a_card_without_the_reply_finds_its_run_by_the_arguments(opened: Open) -> None:
    stage = opened("fulfil_order", {"order_id": "lost"}, reply="never")
    stage.shows_status("needs your answer")
    expect(stage.card.get_by_role("heading", name="Ship order lost?")).to_be_visible()
    assert "task_find" in stage.host("calls")


def test_a_card_without_a_run_says_why(opened: Open) -> None:
    stage = opened("answer_at_once", {"text": "hi"})
    stage.shows_status("completed")
    stage.shown_again('{text: "never called with this"}, {content: []}')
    stage.shows_status("not found")
    expect(stage.card.get_by_text("The host shows this card without its run")).to_be_visible()
    expect(stage.button("Try again")).to_be_visible()
    assert stage.violations() == []
    stage.shown_again('{text: "never called with this"}, {then: (_, no) => no(new Error("stopped by the user"))}')
    stage.shows_status("call cancelled")
    expect(stage.button("Try again")).to_be_visible()  # it has looked for a run, and found none
    stage.shows_status("call cancelled")
    stage.shows_alert("The call was cancelled. stopped by the user")
    stage.shown_again('{}, {content: [{type: "text", text: "no more orders today"}], isError: true}')
    stage.shows_status("failed")
    stage.shows_alert("no more orders today")
    gone = json.dumps({"taskId": "gone", "tool": "answer_at_once", "status": "working"})
    stage.shown_again(f"{{}}, {{content: [], structuredContent: {gone}}}")
    stage.shows_status("not found")
    stage.shows_alert("Give the taskId exactly")


def test_a_frame_that_was_unloaded_stops_and_comes_up_again_as_it_is_now(opened: Open) -> None:
    stage = opened("fulfil_order", {"order_id": "reloaded"})
    stage.shows_status("needs your answer")
    stage.shown_again('{order_id: "reloaded"}, {then: (_, no) => no(new Error("it took too long"))}')
    stage.shows_status("needs your answer")
    expect(stage.card.get_by_role("alert")).to_have_count(0)
    stage.shown_again('{order_id: "reloaded"}, host.result')  # what the host had kept
    stage.shows_status("needs your answer")
    stage.card.get_by_role("radio", name="No").check()
    stage.card.get_by_role("radio", name="Post").check()
    stage.button("Send answer").click()
    stage.shows_status("completed")
    stage.shown_again('{order_id: "reloaded"}, host.result')
    stage.shows_status("completed")


def test_the_host_dresses_the_card(opened: Open) -> None:
    stage = opened("forever")
    stage.shows_status("working")
    color = "getComputedStyle(document.body).backgroundColor"
    assert stage.frame.evaluate(color) == "rgb(255, 255, 255)"
    stage.host('dress({theme: "dark"})')
    stage.until(f"{color} == 'rgb(28, 28, 26)'")
    stage.host('dress({styles: {variables: {"--color-background-primary": "rgb(1, 2, 3)", "color": "red"}}})')
    stage.until(f"{color} == 'rgb(1, 2, 3)'")
    assert stage.frame.evaluate("document.documentElement.style.color") == ""


QUICK: Final = """() => {
    const later = setTimeout;
    globalThis.waits = [];
    globalThis.setTimeout = (next, ms) => {
        if (ms >= 60000) return later(next, ms);  // how long it waits for a reply
        waits.push(ms);
        return later(next, 20);
    };
}"""
FRAMES: Final = "async () => { for (let at = 0; at < 30; at++) await new Promise(requestAnimationFrame); }"


def test_a_card_polls_less_and_less_and_not_at_all_when_hidden_or_ended(opened: Open) -> None:
    stage = opened("forever")
    stage.shows_status("working")
    stage.frame.evaluate(QUICK)  # each wait is noted, and over at once
    stage.until("waits.filter(ms => ms == 15000).length > 2")
    waits = stage.frame.evaluate("waits.splice(0)")
    assert all(500 <= ms <= 15000 for ms in waits)
    assert len(set(waits)) > 3
    stage.frame.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    stage.until("waits.slice(-3).join() == '5000,5000,5000'")
    calls = stage.host("calls.length")
    stage.frame.evaluate(FRAMES)
    assert stage.host("calls.length") == calls
    stage.frame.evaluate("Object.defineProperty(document, 'hidden', {value: false})")
    stage.polls()
    stage.button("Cancel run…").click()
    stage.button("Yes, stop it").click()
    stage.shows_status("cancelled")
    stage.page.wait_for_function("host.told.length == 1")
    calls = stage.host("calls.length")
    stage.frame.evaluate(FRAMES)
    assert stage.host("calls.length") == calls


def test_a_card_stops_when_it_is_torn_down(opened: Open) -> None:
    stage = opened("forever")
    stage.shows_status("working")
    stage.frame.evaluate(QUICK)
    stage.polls()
    stage.page.evaluate("host.teardown()")
    calls = stage.host("calls.length")
    stage.frame.evaluate(FRAMES)
    assert stage.host("calls.length") == calls
