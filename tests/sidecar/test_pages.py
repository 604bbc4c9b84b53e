"""The pages on which people approve and answer: what they show, what they take, and what they refuse."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import anyio
import pytest

from mcp_workflows.adapter import Execution, ExecutionStep, Gate, InputRequest, Status, memory
from mcp_workflows.adapter.memory import WORKFLOWS, MemoryExecution
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.tasks import service
from mcp_workflows.units import utc_now
from tests.support.approval_pages import (
    MANAGERS,
    TOOLS,
    Browser,
    Office,
    Shown,
    ToldProvider,
    office,
    told_provider,
)
from tests.support.oidc import PAGES, Providers
from tests.support.oidc import providers as providers

pytestmark = pytest.mark.anyio

HOSTILE: Final = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
SHOWN_TAGS: Final = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "body",
        "header",
        "nav",
        "a",
        "form",
        "span",
        "button",
        "main",
        "h1",
        "h2",
    ),
    *("p", "strong", "small", "label", "input", "textarea", "fieldset", "legend", "ul", "li", "ol", "dl", "dt", "dd"),
}
APPROVAL: Final = {"approvers": {"claims": {"groups": MANAGERS}}}
NONE: Final = "There is no such question for you."
HOME: Final = "https://x.example"


def gate(schema: Mapping[str, Any] | None = None, **more: Any) -> Mapping[str, Any]:
    """A tool whose workflow asks midway."""
    form = {} if schema is None else {"schema": schema}
    asked = {"message": "Release?", "when": {"after_seconds": 0}, "send": "{{answer}}", "decline": "declined"}
    return {"workflow": "gated", "questions": {"release": {**asked, **form, **more}}}


def with_steps(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Workflows with gates have taken these steps."""
    gated = memory._gated  # pyright: ignore[reportPrivateUsage]  # it has no steps of its own

    def stepped(execution: MemoryExecution, gates: Mapping[str, Gate]) -> Execution:
        steps = tuple(ExecutionStep(name=name, status=Status.SUCCEEDED) for name in names)
        return replace(gated(execution, gates), steps=steps)

    monkeypatch.setattr(memory, "_gated", stepped)


@pytest.fixture
async def provider() -> AsyncGenerator[ToldProvider]:
    """An identity provider."""
    async with told_provider() as found:
        yield found


@pytest.fixture
async def place(tmp_path: Path, provider: ToldProvider) -> AsyncGenerator[Office]:
    """A server with a tool that somebody must approve."""
    async with office(tmp_path, provider) as found:
        yield found


async def is_waiting(place: Office, task_id: str) -> bool:
    """Whether nobody has decided."""
    found = await place.peer().get(task_id)
    return found["status"] == "working" and "waits for" in found["statusMessage"]


async def outcome(place: Office, task_id: str) -> Mapping[str, Any]:
    """The result of a task that has ended."""
    return (await place.peer().until(task_id))["result"]


# --- what an approver sees and does


async def test_an_approver_reads_the_question_and_approves_it(place: Office) -> None:
    task = await place.requested(version="1.4", note=["hot", "fix"])
    bob = await place.manager()
    shown = await bob.get(place.link(task))
    for text in (
        "Deploy to production",
        "Asked by alice in «raw»",
        "Deploy «1.4» to production?",
        'note [ "hot", "fix" ]',
    ):
        assert text in shown.text
    assert shown.buttons == ["accept", "decline"]
    shown = await bob.press(shown, "accept", reason="tested")
    assert "It was approved by bob at " in shown.text
    assert "UTC: tested." in shown.text
    assert shown.buttons == []
    assert (await outcome(place, task))["structuredContent"] == {"version": "1.4", "note": ["hot", "fix"]}
    [answer] = [record for record in place.audit if record.event == "answer"]
    assert (answer.subject, answer.client) == ("bob", PAGES)
    assert str(answer.reason).startswith(".approval: accept; arguments ")
    assert str(answer.reason).endswith("why: tested")


async def test_a_person_of_a_real_provider_approves_by_the_groups_that_it_names(
    tmp_path: Path, providers: Providers
) -> None:
    real = providers.first
    async with office(tmp_path, ToldProvider(issuer=real.issuer), web={"scopes": ["profile", "groups"]}) as place:
        real.add_pages(place.home)
        alice = place.peer()
        alice.token = (await real.log_in("alice")).access
        task = str((await alice.call("deploy", {"version": "1.4"})).result["taskId"])
        seen: dict[str, tuple[Browser, Shown]] = {}
        for user in ("bob", "dora"):
            browser = place.browser()
            begun = await browser.get(place.link(task))
            with real.logged_in(user):
                back = await place.http.get(begun.location)
            seen[user] = browser, await browser.get(back.headers["location"])
        bob, shown = seen["bob"]
        assert shown.buttons == ["accept", "decline"]
        assert seen["dora"][1].status == 404, "who is in another group"
        assert "It was approved by bob at " in (await bob.press(shown, "accept")).text
        assert (await alice.until(task))["status"] == "completed"


async def test_a_refusal_ends_the_task_with_who_and_why(place: Office) -> None:
    task = await place.requested()
    bob = await place.manager()
    shown = await bob.press(await bob.get(place.link(task)), "decline", reason="not on Friday")
    assert "It was declined by bob at " in shown.text
    said = await outcome(place, task)
    assert said["isError"]
    assert said["content"][0]["text"].startswith("declined by bob at ")
    assert said["content"][0]["text"].endswith("UTC: not on Friday")


async def test_a_required_reason_is_asked_for_until_it_says_something(tmp_path: Path, provider: ToldProvider) -> None:
    tool = {**TOOLS["deploy"], "approval": {**TOOLS["deploy"]["approval"], "reason": "required"}}
    async with office(tmp_path, provider, tools={"deploy": tool}) as place:
        task = await place.requested()
        bob = await place.manager()
        shown = await bob.get(place.link(task))
        for blank in ("", "   ", "\r\n\t", "\u3000"):
            again = await bob.press(shown, "accept", reason=blank)
            assert again.status == 400
            assert "Not accepted: " in again.text
            assert again.buttons == ["accept", "decline"]
            assert await is_waiting(place, task)
        assert "UTC: tested." in (await bob.press(shown, "accept", reason="tested")).text
        declined = await place.requested()
        without = await bob.press(await bob.get(place.link(declined)), "decline")
        assert "It was declined by bob" in without.text, "only who approves must say why"


async def test_the_inbox_has_the_oldest_first_and_only_what_is_mine_to_answer(
    tmp_path: Path, provider: ToldProvider
) -> None:
    director = {
        **TOOLS["deploy"],
        "approval": {**TOOLS["deploy"]["approval"], "approvers": {"claims": {"groups": "x"}}},
    }
    tools = {**TOOLS, "secret": {**director, "title": "Secret"}, "own": {**gate(), "title": "My own"}}
    async with office(tmp_path, provider, tools=tools) as place:
        tasks = [await place.requested(version=str(number)) for number in range(3)]
        await place.requested("secret")
        await place.requested("own")
        await place.peer("bob").until(await place.requested("own", sub="bob"), "input_required")
        bob = await place.manager()
        shown = await bob.get("/approvals")
        assert shown.links[1:4] == [f"{place.home}{place.link(task)}" for task in tasks]
        assert len(shown.links) == 5
        assert shown.text.index("My own") > shown.text.index("Deploy «2»")
        assert "Secret" not in shown.text
        eve = place.browser()
        assert "Nothing waits for you." in (await eve.log_in("eve")).text
        await bob.press(await bob.get(place.link(tasks[0])), "accept")
        assert place.link(tasks[0]) not in (await bob.get("/approvals")).response.text


async def test_the_inbox_reads_on_until_it_has_what_is_mine(place: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PAGE_OF_ASKING", 2)
    for _ in range(3):
        await place.requested(sub="bob")  # who cannot approve these
    await place.requested()
    shown = await (await place.manager()).get("/approvals")
    assert "alice in" in shown.text
    assert "There may be more" not in shown.text
    monkeypatch.setattr(service, "MOST_PAGES", 1)
    shown = await (await place.manager()).get("/approvals")
    assert "There may be more questions" in shown.text


async def test_a_second_approver_reads_who_approved_and_when_and_cannot_decide_again(place: Office) -> None:
    task = await place.requested()
    bob, carol = await place.manager(), await place.manager("carol")
    before = await carol.get(place.link(task))
    await bob.press(await bob.get(place.link(task)), "accept", reason="tested")
    late = await carol.press(before, "decline", reason="no!")
    assert "It was approved by bob at " in late.text
    assert late.buttons == []
    assert "no!" not in (await carol.get(place.link(task))).text
    assert not (await outcome(place, task))["isError"]


async def test_of_many_decisions_at_once_one_counts_and_all_read_it(place: Office) -> None:
    task = await place.requested()
    people = [await place.manager(f"person{number}") for number in range(6)]
    pages = [await each.get(place.link(task)) for each in people]

    async def decide(number: int) -> None:
        await people[number].press(pages[number], "accept" if number % 2 else "decline")

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(decide, number)
    said = {(await each.get(place.link(task))).text.partition("It was ")[2] for each in people}
    assert len(said) == 1
    assert len([record for record in place.audit if record.event == "answer"]) == 1
    assert said.pop().startswith("declined" if (await outcome(place, task))["isError"] else "approved")


async def test_who_requested_it_cannot_approve_it_and_reads_whom_it_waits_for(place: Office) -> None:
    task = await place.requested()
    alice = await place.manager("alice")
    shown = await alice.get(place.link(task))
    assert shown.status == 200
    assert f"It waits for {MANAGERS}." in shown.text
    assert shown.buttons == []
    answered = await alice.post(place.link(task), {"action": "accept"})
    assert answered.status == 303
    assert await is_waiting(place, task)
    assert (await alice.get("/approvals")).links == ["/approvals"]


async def test_a_good_link_a_forged_one_and_one_of_another_server_look_alike_to_others(
    tmp_path: Path, provider: ToldProvider
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    async with office(tmp_path / "one", provider) as place, office(tmp_path / "other", provider) as other:
        good, foreign = place.link(await place.requested()), other.link(await other.requested())
        eve = place.browser()
        await eve.log_in("eve")
        forged = [f"{good[:-1]}{'A' if good[-1] != 'A' else 'B'}", f"{good}AAAA", good[:40], "/approvals/x"]
        odd = ["/approvals/" + quote(text) for text in ("%", "\u00e9", "a" * 5000, "\x00", "'\"<b>", "=", "..a")]
        sent = {"action": "accept"}
        for link in (good, foreign, *forged, *odd):
            for shown in (await eve.get(link), await eve.post(link, sent)):
                assert shown.status == 404
                assert shown.text == f"{NONE} Open questions eve Log out {NONE}"
        bob = await place.manager()
        assert (await bob.get(foreign)).status == 404
        assert [record.event for record in place.audit if record.event == "answer"] == []


async def test_a_question_that_is_over_cannot_be_answered(tmp_path: Path, provider: ToldProvider) -> None:
    async with office(tmp_path, provider, tools={**TOOLS, "own": gate()}) as place:
        alice, bob = place.browser(), await place.manager()
        await alice.log_in("alice")
        cancelled, withdrawn, expired = (
            await place.requested(),
            await place.requested("own"),
            await place.requested("own"),
        )
        links = [place.link(cancelled), place.link(withdrawn, "release.1"), place.link(expired, "release.1")]
        opened = [await bob.get(links[0]), await alice.get(links[1]), await alice.get(links[2])]
        assert [each.status for each in opened] == [200, 200, 200]
        await place.peer().send("tasks/cancel", {"taskId": cancelled})
        await place.peer().answer(withdrawn, **{"release.1": {"action": "accept", "content": {}}})
        closed = await bob.press(opened[0], "accept")
        assert (closed.status, closed.buttons) == (200, [])
        assert "It is no longer open." in closed.text
        assert "1.4" not in closed.text  # its arguments were for those who decide
        carol = place.browser()
        assert (await carol.log_in("carol", links[0])).status == 404
        after = await alice.press(opened[1], "decline")
        assert (after.status, after.buttons) == (200, [])
        assert "It is no longer open." in after.text
        place.executions.clock = lambda: utc_now() + timedelta(days=3651)
        assert (await alice.get(links[2])).status == 404
        assert (await alice.press(opened[2], "accept")).status == 404
        place.executions.clock = utc_now
        assert (await place.peer().get(expired))["status"] == "input_required"
        assert (await place.peer().get(cancelled))["status"] == "cancelled"


async def test_a_gate_midway_is_approved_with_its_arguments_and_the_steps_so_far(
    tmp_path: Path, provider: ToldProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_steps(monkeypatch, "BuildImage")
    gated = gate(send={"by": "{{principal.subject}}", "why": "{{answer.reason}}"}, approval=APPROVAL)
    tool: Mapping[str, Any] = {**gated, "input": {"type": "object", "properties": {"order": {}}}}
    async with office(tmp_path, provider, tools={"ship": tool}) as place:
        task = await place.requested("ship", order={"id": "A1", "lines": [1, 2]})
        bob = await place.manager()
        shown = await bob.get(place.link(task, "release.1"))
        assert "Release?" in shown.text
        assert "So far BuildImage: succeeded" in shown.text
        assert 'Arguments order { "id": "A1", "lines": [ 1, 2 ] }' in shown.text
        shown = await bob.press(shown, "accept", reason="paid")
        assert "It was approved by bob at " in shown.text
        assert (await outcome(place, task))["structuredContent"] == {"release": {"by": "bob", "why": "paid"}}


# --- forms

FIELDS: Final[Sequence[tuple[str, Mapping[str, Any], str | list[str], Any]]] = [
    ("text", {"type": "string"}, " as typed ", " as typed "),
    ("lines", {"type": "string", "maxLength": 500}, "one\r\ntwo", "one\ntwo"),
    ("email", {"type": "string", "format": "email"}, "a@b.org", "a@b.org"),
    ("uri", {"type": "string", "format": "uri"}, "https://x.org/?a=1&b=2", "https://x.org/?a=1&b=2"),
    ("date", {"type": "string", "format": "date"}, "2026-11-28", "2026-11-28"),
    ("at", {"type": "string", "format": "date-time"}, "2026-11-28T10:00:00Z", "2026-11-28T10:00:00Z"),
    ("number", {"type": "number"}, "-1.5e1", -15.0),
    ("fraction", {"type": "number"}, ".5", 0.5),
    ("count", {"type": "integer", "minimum": 1}, "05", 5),
    ("sure", {"type": "boolean"}, "false", False),
    ("size", {"type": "string", "enum": ["s", "m"]}, "m", "m"),
    ("named", {"type": "string", "enum": ["s", "m"], "enumNames": ["Small", "Medium"]}, "s", "s"),
    ("titled", {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "1"}]}, "1", "1"),
    ("many", {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}}, ["a", "c"], ["a", "c"]),
    ("more", {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}, {"const": "b"}]}}, ["b"], ["b"]),
    ("none", {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}, [], []),
]


async def test_every_kind_of_field_is_sent_as_the_json_that_its_schema_means(
    tmp_path: Path, provider: ToldProvider
) -> None:
    properties = {name: rules for name, rules, _, _ in FIELDS}
    form = {"type": "object", "properties": properties, "required": [name for name, _, _, _ in FIELDS]}
    async with office(tmp_path, provider, tools={"own": gate(form)}) as place:
        task = await place.requested("own")
        alice = place.browser()
        shown = await alice.log_in("alice", place.link(task, "release.1"))
        for label in ("Small", "Medium", "Yes", "No", "Send answer", "Decline"):
            assert label in shown.text
        await alice.press(shown, "accept", **{name: typed for name, _, typed, _ in FIELDS})
        expected = {name: value for name, _, _, value in FIELDS}
        assert (await outcome(place, task))["structuredContent"] == {"release": expected}


async def test_defaults_are_filled_in_and_an_optional_field_that_is_emptied_is_left_out(
    tmp_path: Path, provider: ToldProvider
) -> None:
    defaults = {"text": "x", "number": 1.5, "count": 3, "sure": True, "size": "s", "many": ["a", "b"]}
    properties = {name: rules | {"default": defaults[name]} for name, rules, _, _ in FIELDS if name in defaults}
    async with office(tmp_path, provider, tools={"own": gate({"type": "object", "properties": properties})}) as place:
        as_they_are, emptied = await place.requested("own"), await place.requested("own")
        alice = place.browser()
        shown = await alice.log_in("alice", place.link(as_they_are, "release.1"))
        await alice.press(shown, "accept")
        assert (await outcome(place, as_they_are))["structuredContent"] == {"release": defaults}
        shown = await alice.get(place.link(emptied, "release.1"))
        await alice.press(shown, "accept", text="", many=[], number="2")
        taken = {name: value for name, value in defaults.items() if name not in {"text", "many"}} | {"number": 2}
        assert (await outcome(place, emptied))["structuredContent"] == {"release": taken}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("number", "many"),
        ("number", "NaN"),
        ("number", "1e999"),
        ("count", "1.5"),
        ("count", "0"),
        ("count", "true"),
        ("email", "nobody"),
        ("sure", "perhaps"),
        ("size", "xl"),
        ("titled", "Small"),
        ("many", ["a", "z"]),
    ],
)
async def test_a_wrong_value_is_refused_and_what_was_typed_is_kept(
    tmp_path: Path, provider: ToldProvider, name: str, wrong: str | Sequence[str]
) -> None:
    rules = next(rules for known, rules, _, _ in FIELDS if known == name)
    boxes = {"type": "array", "items": {"enum": ["p", "q"]}, "default": ["p"]}
    form = {"type": "object", "properties": {name: rules, "note": {"type": "string"}, "boxes": boxes}}
    async with office(tmp_path, provider, tools={"own": gate(form)}) as place:
        task = await place.requested("own")
        alice = place.browser()
        shown = await alice.log_in("alice", place.link(task, "release.1"))
        typed: Mapping[str, str | Sequence[str]] = {name: wrong, "note": HOSTILE, "boxes": []}
        again = await alice.press(shown, "accept", **typed)
        assert again.status == 400
        assert "Not accepted: " in again.text
        assert again.fields["answer.note"] == [HOSTILE]
        assert "answer.boxes" not in again.fields, "the default does not come back"
        if isinstance(wrong, str) and name in {"number", "count", "email"}:
            assert again.fields[f"answer.{name}"] == [wrong]
        assert (await place.peer().get(task))["status"] == "input_required"
        right = next(typed for known, _, typed, _ in FIELDS if known == name)
        assert (await alice.press(again, "accept", **{name: right})).status == 200
        assert (await outcome(place, task))["structuredContent"]["release"]["note"] == HOSTILE


@pytest.mark.parametrize(("button", "expected"), [("accept", True), ("decline", "declined")])
async def test_a_lone_yes_or_no_is_two_buttons(
    tmp_path: Path, provider: ToldProvider, button: str, expected: Any
) -> None:
    yes = {"type": "object", "properties": {"ok": {"type": "boolean", "title": "OK?"}}, "required": ["ok"]}
    async with office(tmp_path, provider, tools={"own": gate(yes, send="{{answer.ok}}")}) as place:
        task = await place.requested("own")
        alice = place.browser()
        shown = await alice.log_in("alice", place.link(task, "release.1"))
        assert "Approve Decline" in shown.text
        assert dict(shown.fields) == {}
        await alice.press(shown, button)
        assert (await outcome(place, task))["structuredContent"] == {"release": expected}


async def test_a_form_without_one_of_the_buttons_decides_nothing(place: Office) -> None:
    task = await place.requested()
    bob = await place.manager()
    for data in ({}, {"action": "approve"}, {"action": ["accept", "decline"]}, {"action": ""}):
        assert (await bob.post(place.link(task), {"answer.reason": "x", **data})).status == 400
    assert await is_waiting(place, task)


ODD_FORMS: Final[Sequence[Any]] = [
    None,
    [],
    {"properties": []},
    {"properties": {"x": True, "y": None, "z": {"type": ["string", "null"]}}, "required": 5},
    {"properties": {"x": {"oneOf": ["a", None, {"title": "no const"}]}, "y": {"enum": 7}, "z": {"items": []}}},
    {"properties": {"x": {"type": "array", "items": True}, "reason": 1, "": {"type": "boolean"}}, "required": [[]]},
    {"properties": {"x": {"type": "string", "minLength": "x", "maxLength": [], "default": {"a": 1}}}},
    {"properties": {HOSTILE: {"type": HOSTILE, "title": {}, "description": [HOSTILE], "enum": [HOSTILE, None, 1]}}},
]


@pytest.mark.parametrize("form", ODD_FORMS)
async def test_whatever_a_workflow_asks_in_the_place_of_a_form_is_shown_and_breaks_nothing(
    tmp_path: Path, provider: ToldProvider, monkeypatch: pytest.MonkeyPatch, form: Any
) -> None:
    params = {"message": ["no", "text"], "requestedSchema": form}
    asked_by(monkeypatch, InputRequest(method="elicitation/create", params=params))
    async with office(tmp_path, provider, tools={"own": {"workflow": "odd"}}) as place:
        task = await place.requested("own")
        await place.peer().until(task, "input_required")
        alice = place.browser()
        shown = await alice.log_in("alice", place.link(task, "question"))
        assert shown.status == 200
        assert (await alice.get("/approvals")).status == 200
        for action in ("accept", "decline", "x"):
            assert (await alice.press(shown, action)).status in {200, 400}
        tags_are_ours(shown)


async def test_what_only_a_client_can_answer_has_no_buttons(
    tmp_path: Path, provider: ToldProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_by(monkeypatch, InputRequest(method="sampling/createMessage", params={"messages": []}))
    async with office(tmp_path, provider, tools={"own": {"workflow": "odd"}}) as place:
        task = await place.requested("own")
        await place.peer().until(task, "input_required")
        alice = place.browser()
        shown = await alice.log_in("alice", place.link(task, "question"))
        assert shown.buttons == []
        assert "Answer this in the host that asks." in shown.text
        assert (await alice.post(place.link(task, "question"), {"action": "accept"})).status == 303
        assert (await place.peer().get(task))["status"] == "input_required"


async def test_a_question_of_a_page_elsewhere_has_a_link_and_the_button_that_ends_it(
    tmp_path: Path, provider: ToldProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "https://pay.example/a?b=1&c=2"
    params = {"mode": "url", "message": "Pay first", "url": url, "elicitationId": "1"}
    asked_by(monkeypatch, InputRequest(method="elicitation/create", params=params))
    async with office(tmp_path, provider, tools={"own": {"workflow": "odd"}}) as place:
        task = await place.requested("own")
        await place.peer().until(task, "input_required")
        alice = place.browser()
        shown = await alice.log_in("alice", place.link(task, "question"))
        assert shown.links == ["/approvals", url]
        assert "Open pay.example I have done it" in shown.text
        await alice.press(shown, "accept")
        assert (await outcome(place, task))["structuredContent"] == {"action": "accept"}


def asked_by(monkeypatch: pytest.MonkeyPatch, request: InputRequest) -> None:
    """The workflow `odd` asks this."""

    def odd(execution: MemoryExecution) -> Execution:
        if answered := execution.answers.get("question"):
            return Execution(status=Status.SUCCEEDED, output=answered)
        return Execution(status=Status.INPUT_REQUIRED, requests={"question": request})

    monkeypatch.setitem(WORKFLOWS, "odd", odd)  # pyright: ignore[reportArgumentType]  # a dictionary


def tags_are_ours(shown: Shown) -> None:
    """Nothing that somebody wrote became markup."""
    for tag, attributes in shown.html.tags:
        assert tag in SHOWN_TAGS, shown.response.text
        assert not [name for name in attributes if name.startswith("on") or name in {"style", "src"}]


# --- attacks


async def test_what_others_wrote_is_text_and_never_markup(
    tmp_path: Path, provider: ToldProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_steps(monkeypatch, HOSTILE)
    form = {"type": "object", "properties": {"x": {"type": "string", "title": HOSTILE, "description": HOSTILE}}}
    gated = gate(form, message=f"{HOSTILE} {{{{a}}}}", approval={**APPROVAL, "requester_may_approve": True})
    tool = {**gated, "title": HOSTILE, "input": {"type": "object"}}
    async with office(tmp_path, provider, tools={"ship": tool}) as place:
        meta = {"io.modelcontextprotocol/clientInfo": {"name": HOSTILE, "version": "1"}}
        reply = await place.peer(HOSTILE).call("ship", {"a": HOSTILE, HOSTILE: [HOSTILE]}, meta=meta)
        task = str(reply.result["taskId"])
        await place.peer(HOSTILE).until(task, "working", "input_required")
        bob = place.browser()
        pages = [await bob.log_in("bob", place.link(task, "release.1"), groups=[MANAGERS], name=HOSTILE)]
        assert pages[0].status == 200, pages[0].text
        pages.append(await bob.get("/approvals"))
        pages.append(await bob.press(pages[0], "accept", x="", reason=HOSTILE))
        pages.append(await bob.get(f"/login?to={quote(HOSTILE)}&again={quote(HOSTILE)}"))
        failed = await place.browser().send("GET", f"/login/callback?state={quote(HOSTILE)}&error={quote(HOSTILE)}")
        for shown in (*pages[:3], failed):
            tags_are_ours(shown)
        assert pages[0].text.count(HOSTILE) >= 8
        assert HOSTILE in pages[1].text
        assert f"UTC: {HOSTILE}" in pages[2].text


async def test_no_argument_hides_a_part_of_itself(tmp_path: Path, provider: ToldProvider) -> None:
    tool = {**gate(approval=APPROVAL, send="{{answer.reason}}"), "input": {"type": "object"}}
    async with office(tmp_path, provider, tools={"ship": tool}) as place:
        arguments = {"turned": "a\u202egpj.exe", "a\u200bb": "x", "empty": "\u3164", "plain": "é\n→"}
        task = await place.requested("ship", **arguments)
        await place.peer().until(task, "working")
        shown = await (await place.manager()).get(place.link(task, "release.1"))
        for text in ('"a\\u202egpj.exe"', '"a\\u200bb"', '"\\u3164"', "é →"):
            assert text in shown.text
        assert "\u202e" not in shown.response.text


FROM_ELSEWHERE: Final[Sequence[Mapping[str, str | None]]] = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
    {"sec-fetch-site": ""},
    {"sec-fetch-site": "cross-site", "origin": HOME},
    {"sec-fetch-site": None},
    {"sec-fetch-site": None, "origin": "null"},
    {"sec-fetch-site": None, "origin": ""},
    {"sec-fetch-site": None, "origin": "https://evil.example"},
    {"sec-fetch-site": None, "origin": f"{HOME}.evil.example"},
    {"sec-fetch-site": None, "origin": "http://x.example"},
    {"sec-fetch-site": None, "origin": f"{HOME}:444"},
]


async def test_a_form_of_another_site_changes_nothing(tmp_path: Path, provider: ToldProvider) -> None:
    async with office(tmp_path, provider, home=HOME) as place:
        task = await place.requested()
        bob = await place.manager()
        for headers in FROM_ELSEWHERE:
            for path in (place.link(task), "/logout"):
                shown = await bob.post(path, {"action": "accept"}, headers=headers)
                assert shown.status == 403, headers
                is_ours = shown.response.text != "Invalid Origin header"
                assert is_ours is ("content-security-policy" in shown.response.headers)
        assert await is_waiting(place, task)
        assert (await bob.get(place.link(task))).status == 200, "nobody was logged out"
        old_browser = {"sec-fetch-site": None, "origin": HOME}
        assert (await bob.post(place.link(task), {"action": "accept"}, headers=old_browser)).status == 303
        assert not (await outcome(place, task))["isError"]


async def test_nothing_changes_without_a_post(place: Office) -> None:
    task = await place.requested()
    bob = await place.manager()
    link = place.link(task)
    for path in (link, "/approvals", "/logout", "/login", "/pages.css"):
        for verb in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            shown = await bob.send(verb, f"{path}?action=accept&answer.reason=x", body=b"action=accept")
            assert shown.status in {200, 303, 405}
    assert await is_waiting(place, task)
    assert (await bob.get(link)).buttons == ["accept", "decline"], "scanners of mail consume nothing"
    assert [record.event for record in place.audit if record.event in {"answer", "cancel"}] == []


async def test_another_host_is_not_served(place: Office) -> None:
    task = await place.requested()
    bob = await place.manager()
    for host in ("evil.example", "evil.example:80", f"{place.at.removeprefix('http://')}.evil.example"):
        for verb, path in (("GET", "/login"), ("GET", place.link(task)), ("POST", place.link(task))):
            shown = await bob.send(verb, path, body=b"action=accept", headers={"host": host})
            assert shown.status == 421
            assert "location" not in shown.response.headers
    assert await is_waiting(place, task)


async def test_every_answer_has_the_headers_that_keep_browsers_in_bounds(place: Office) -> None:
    task = await place.requested()
    bob, nobody = await place.manager(), place.browser()
    link = place.link(task)
    answers = [
        await bob.get("/approvals"),
        await bob.get(link),
        await bob.get("/approvals/none"),
        await bob.post(link, {}),
        await bob.post(link, {"x": "y" * 70_000}),
        await nobody.send("GET", link),
        await nobody.send("GET", "/login"),
        await nobody.send("GET", "/login/callback"),
        await nobody.post("/logout", {}),
        await nobody.post(link, {}, headers={"sec-fetch-site": "cross-site"}),
    ]
    place.provider.is_down = True
    answers.append(await place.browser().send("GET", "/login/callback?state=x"))
    for shown in answers:
        headers = shown.response.headers
        assert headers["content-security-policy"] == (
            "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert "strict-transport-security" not in headers, "there is no TLS here"
        assert "server" not in headers or "Traceback" not in shown.response.text
    style = await nobody.get("/pages.css")
    assert style.response.headers["content-type"].startswith("text/css")
    assert style.response.headers["x-content-type-options"] == "nosniff"


BODIES: Final[Mapping[str, bytes]] = {
    "a megabyte": b"action=accept&answer.reason=" + b"x" * 2**20,
    "many fields": b"action=accept&" + b"a=1&" * 10_000,
    "no UTF-8": b"action=accept&answer.reason=\xff\xfe",
    "escaped, and no UTF-8": b"action=accept&answer.reason=%ff%fe",
    "half a character": b"action=accept&answer.reason=%ed%a0%80",
    "nothing": b"",
    "JSON": b'{"action": "accept"}',
}


async def test_a_body_that_no_form_sends_is_refused(place: Office) -> None:
    task = await place.requested()
    bob, nobody = await place.manager(), place.browser()
    for name, body in BODIES.items():
        shown = await bob.send("POST", place.link(task), body=body)
        assert (shown.status, bool(shown.text)) == (400, True), name
        assert (await nobody.send("POST", place.link(task), body=body)).status == 401, "the session is over"
    assert await is_waiting(place, task)


async def test_an_engine_that_is_away_is_told_in_words_and_the_question_stays(
    tmp_path: Path, provider: ToldProvider
) -> None:
    async with office(tmp_path, provider, tools={"own": gate()}) as place:
        task = await place.requested("own")
        alice = place.browser()
        shown = await alice.log_in("alice", place.link(task, "release.1"))
        engine = memory.MemoryAdapter(memory.MemorySettings(name=str(tmp_path)))
        engine.faults.unavailable = frozenset({"answer"})
        again = await alice.press(shown, "accept")
        assert again.status == 400
        assert "Not accepted: " in again.text
        assert "does not answer" in again.text
        engine.faults.unavailable = frozenset()
        await alice.press(again, "accept")
        assert not (await outcome(place, task))["isError"]


# --- addresses and settings


async def test_behind_a_proxy_that_strips_a_path_all_addresses_are_the_public_ones(
    tmp_path: Path, provider: ToldProvider
) -> None:
    async with office(tmp_path, provider, home=f"{HOME}/wf") as place:
        task = await place.requested()
        bob = place.browser()
        begun = await bob.get(place.link(task))
        assert f"redirect_uri={quote(f'{HOME}/wf/login/callback', safe='')}" in begun.location
        shown = await bob.get(
            await bob.callback(begun, lambda nonce: provider.id_token("bob", nonce, groups=[MANAGERS]))
        )
        assert shown.url == f"{HOME}/wf{place.link(task)}"
        assert shown.response.headers["strict-transport-security"] == "max-age=31536000"
        assert shown.links == ["/wf/approvals"]
        assert shown.html.forms == ["/wf/logout", f"/wf{place.link(task)}"]
        assert (await bob.get("/approvals")).links == ["/wf/approvals", f"{HOME}/wf{place.link(task)}"]
        assert [each["href"] for tag, each in shown.html.tags if tag == "link"] == ["/wf/pages.css"]
        shown = await bob.press(shown, "accept")
        assert shown.url == f"{HOME}/wf{place.link(task)}"
        assert "It was approved by bob" in shown.text
        over = await bob.post("/logout", {})
        assert over.links == ["/wf/login?to=/approvals"]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::"])
async def test_without_tls_the_pages_are_served_on_this_machine_alone(
    tmp_path: Path, provider: ToldProvider, host: str
) -> None:
    with pytest.raises(ConfigError, match=r"server\.web: its pages need https"):
        async with office(tmp_path, provider, host=host):
            pass


WEB: Final = "  web: {issuer: https://other.example, client_id: pages}"


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ("", "auth.issuers has none"),
        ("  auth: {issuers: [{issuer: https://login.example}]}", "auth.issuers has https://login.example"),
        ("  auth: {tokens: [{name: a, subject: a, sha256: '" + "0" * 64 + "'}]}", "auth.issuers has none"),
    ],
)
def test_pages_for_people_whom_the_server_does_not_know_are_an_error_with_its_place(
    tmp_path: Path, auth: str, said: str
) -> None:
    path = tmp_path / "workflows.yaml"
    tools = "engines: {m: {adapter: memory}}\ntools: {echo: {engine: m, workflow: echo}}\n"
    path.write_text(f"server:\n{auth}\n{WEB}\n{tools}")
    with pytest.raises(ConfigError, match=r"workflows\.yaml:\d+.*web\.issuer must be one of auth\.issuers") as caught:
        load_config(path, {})
    assert said in str(caught.value)


async def test_without_the_packages_for_pages_the_error_says_what_to_install(
    tmp_path: Path, provider: ToldProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "mcp_workflows.sidecar.web.pages", raising=False)
    with pytest.raises(ConfigError, match=r"\(jinja2\): pip install 'mcp-workflows\[web\]'"):
        async with office(tmp_path, provider):
            pass
