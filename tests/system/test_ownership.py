"""Whose task it is: everybody who may come with an id, times every way to use one, in both versions of the protocol.

And whose question it is: on the page and over MCP alike.

The tokens are those of real OpenID providers: see `tests.support.oidc`. The table is what is expected, all of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from mcp_workflows.task import START_KEY
from tests.support import ownership
from tests.support.approval_pages import MANAGERS, Browser, Office, office, told_provider
from tests.support.oidc import PAGES, Providers
from tests.support.ownership import Deed, Town, everybody, lister, of_card, plain, request, table, task_tool, town, word
from tests.support.served import Peer
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.anyio

ANSWER: Final = {"question": {"action": "accept", "content": {"answer": "yes"}}}

TABLE: Final = """
deed                | version    | owner   | again   | person    | client    | issuer    | robot     | nobody | revoked | expired | elapsed
tasks/get           | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/update        | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/cancel        | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/result        | 2026-07-28 | no such | no such | no such   | no such   | no such   | no such   | 401    | 401     | 401     | 401
tasks/list          | 2026-07-28 | no such | no such | no such   | no such   | no such   | no such   | 401    | 401     | 401     | 401
subscriptions/listen| 2026-07-28 | yes     | yes     | none      | none      | none      | none      | 401    | 401     | 401     | 401
resources/read      | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tools/call again    | 2026-07-28 | yes     | yes     | refused   | refused   | refused   | refused   | 401    | 401     | 401     | 401
task_status         | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_wait           | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_answer         | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_cancel         | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_action         | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
my_tasks            | 2026-07-28 | yes     | yes     | none      | none      | none      | none      | 401    | 401     | 401     | 401
open_questions      | 2026-07-28 | none    | none    | none      | none      | none      | none      | 401    | 401     | 401     | 401
view: task_status   | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
view: task_answer   | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
view: task_cancel   | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
view: task_action   | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_find           | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/get           | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/update        | 2025-11-25 | no such | no such | no such   | no such   | no such   | no such   | 401    | 401     | 401     | 401
tasks/cancel        | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/result        | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
tasks/list          | 2025-11-25 | yes     | yes     | none      | none      | none      | none      | 401    | 401     | 401     | 401
subscriptions/listen| 2025-11-25 | no such | no such | no such   | no such   | no such   | no such   | 401    | 401     | 401     | 401
resources/read      | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_status         | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_wait           | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_answer         | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_cancel         | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_action         | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
my_tasks            | 2025-11-25 | yes     | yes     | none      | none      | none      | none      | 401    | 401     | 401     | 401
open_questions      | 2025-11-25 | none    | none    | none      | none      | none      | none      | 401    | 401     | 401     | 401
view: task_status   | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
view: task_answer   | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
view: task_cancel   | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
view: task_action   | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
task_find           | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll         | 2026-07-28 | cursor  | cursor  | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll again   | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll of tool | 2026-07-28 | cursor  | cursor  | cursor    | cursor    | cursor    | cursor    | 401    | 401     | 401     | 401
events/poll question| 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll progress| 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/stream       | 2026-07-28 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/subscribe    | 2026-07-28 | -32015  | -32015  | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/unsubscribe  | 2026-07-28 | -32011  | -32011  | -32011    | -32011    | -32011    | -32011    | 401    | 401     | 401     | 401
events/poll         | 2025-11-25 | cursor  | cursor  | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll again   | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll of tool | 2025-11-25 | cursor  | cursor  | cursor    | cursor    | cursor    | cursor    | 401    | 401     | 401     | 401
events/poll question| 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/poll progress| 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/stream       | 2025-11-25 | yes     | yes     | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/subscribe    | 2025-11-25 | -32015  | -32015  | not found | not found | not found | not found | 401    | 401     | 401     | 401
events/unsubscribe  | 2025-11-25 | -32011  | -32011  | -32011    | -32011    | -32011    | -32011    | 401    | 401     | 401     | 401
"""  # noqa: E501  # a line a row
"""again: the same user and client with another token, in a session of its own; person: another user at that client;
client: the user at another client; issuer: the user at that client, by another issuer; robot: the client for itself."""

DEEDS: Final[Mapping[str, tuple[str, Deed]]] = {  # with a task of this tool; `call`: with the state of a call
    "tasks/get": ("echo", request("tasks/get")),
    "tasks/update": ("ask", request("tasks/update", inputResponses=ANSWER)),
    "tasks/cancel": ("ask", request("tasks/cancel")),
    "tasks/result": ("echo", request("tasks/result")),
    "tasks/list": ("echo", ownership.lists),
    "subscriptions/listen": ("ask", ownership.listens),
    "resources/read": ("echo", ownership.reads),
    "tools/call again": ("call", ownership.retries),
    "task_status": ("echo", task_tool("task_status")),
    "task_wait": ("echo", task_tool("task_wait", seconds=1)),
    "task_answer": ("ask", task_tool("task_answer", content={"answer": "yes"})),
    "task_cancel": ("ask", task_tool("task_cancel")),
    "task_action": ("ask", task_tool("task_action", action="poke", content={"note": ownership.MARK})),
    "my_tasks": ("echo", lister("my_tasks")),
    "open_questions": ("approve", lister("open_questions")),
    "view: task_status": ("echo", of_card("task_status")),
    "view: task_answer": ("ask", of_card("task_answer", content={"answer": "yes"})),
    "view: task_cancel": ("ask", of_card("task_cancel")),
    "view: task_action": ("ask", of_card("task_action", action="poke", content={"note": ownership.MARK})),
    "task_find": ("echo", ownership.finds),
    "events/poll": ("echo", ownership.event("task.ended")),
    "events/poll again": ("echo", ownership.event("task.ended", again=True)),
    "events/poll of tool": ("echo", ownership.event("task.ended", again=True, tool="echo")),
    "events/poll question": ("ask", ownership.event("task.input_required", again=True)),
    "events/poll progress": ("ask", ownership.event("task.progress", again=True)),
    "events/stream": ("echo", ownership.streams),
    "events/subscribe": ("echo", ownership.subscribes),
    "events/unsubscribe": ("echo", ownership.unsubscribes),
}
CHANGING: Final = frozenset({"tasks/update", "tasks/cancel", "task_answer", "task_cancel", "tools/call again"}) | {
    "view: task_answer",
    "view: task_cancel",
}
OF_CLIENTS: Final = frozenset({"tools/call again"})  # what goes on in one client, whoever the task belongs to
COLUMNS, ROWS = table(TABLE)


@pytest.fixture(scope="module", params=["subject", pytest.param("client", marks=pytest.mark.slow)])
async def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, providers: Providers
) -> AsyncGenerator[Town]:
    """The sidecar with everybody at it, by `server.auth.owner`."""
    async with town(tmp_path_factory.mktemp("town"), providers, request.param) as found, everybody(found):
        yield found


def wanted_of(expected: Mapping[str, str], deed: str, owner: str) -> Mapping[str, str]:
    """By subject, the person's other client is the owner too."""
    if owner == "client" or deed in OF_CLIENTS:
        return expected
    return {**expected, "client": expected["owner"]}


@pytest.mark.parametrize(("deed", "era", "expected"), ROWS, ids=[f"{deed}-{era}" for deed, era, _ in ROWS])
async def test_a_task_is_its_owners_alone(place: Town, deed: str, era: str, expected: Mapping[str, str]) -> None:
    wanted = wanted_of(expected, deed, place.owns)
    tool, do = DEEDS[deed]
    seen: dict[str, str] = {}
    shared = await place.round() if tool == "call" else await place.task(tool)
    for name in sorted(COLUMNS, key=lambda name: wanted[name] == "yes"):  # strangers first: nothing may come of it
        mine = shared
        if deed in CHANGING and wanted[name] == "yes":
            mine = await place.round() if tool == "call" else await place.task(tool)
        reply = await do(place.callers[name], era, mine)
        seen[name] = word(reply, mine)
        if seen[name] in {"not found", "none"} and tool != "call":
            unknown = await do(place.callers[name], era, "f" * len(mine))
            assert plain(unknown) == plain(reply), "the same text as for a task that is not there"
    assert {name: seen[name] for name in COLUMNS} == dict(wanted)
    if tool == "ask":
        assert (await place.owner.modern.get(shared))["status"] == "input_required", "nobody has changed it"


# --- the page of a question, and the same over MCP

PAGE_TABLE: Final = """
question            | owner is   | owner   | alice   | bob     | carol   | dora    | eve
of the owner        | subject    | answers | answers | none    | none    | none    | none
allow.answer        | subject    | answers | answers | answers | answers | none    | none
not_owner           | subject    | reads   | reads   | answers | answers | none    | none
before the start    | subject    | reads   | reads   | answers | answers | none    | none
midway              | subject    | reads   | reads   | answers | answers | none    | none
not yet escalated   | subject    | reads   | reads   | answers | answers | none    | none
escalated           | subject    | reads   | reads   | answers | answers | answers | none
requester may       | subject    | answers | answers | answers | answers | none    | none
of the owner        | client     | answers | none    | none    | none    | none    | none
allow.answer        | client     | answers | answers | answers | answers | none    | none
not_owner           | client     | reads   | none    | answers | answers | none    | none
before the start    | client     | reads   | none    | answers | answers | none    | none
midway              | client     | reads   | none    | answers | answers | none    | none
not yet escalated   | client     | reads   | none    | answers | answers | none    | none
escalated           | client     | reads   | none    | answers | answers | answers | none
requester may       | client     | answers | answers | answers | answers | none    | none
of the owner        | authorizer | answers | answers | none    | none    | none    | none
allow.answer        | authorizer | answers | answers | answers | none    | none    | none
not_owner           | authorizer | reads   | reads   | answers | none    | none    | none
before the start    | authorizer | reads   | reads   | answers | none    | none    | none
midway              | authorizer | reads   | reads   | answers | none    | none    | none
not yet escalated   | authorizer | reads   | reads   | answers | none    | none    | none
escalated           | authorizer | reads   | reads   | answers | none    | answers | none
requester may       | authorizer | answers | answers | answers | none    | none    | none
"""
"""owner: alice at the client that started it, over MCP alone; alice: at the client of the pages, like all others.
alice, bob and carol are release managers, dora is a director. `authorizer`: by subject, and code of the operator's
refuses carol."""

_GATE: Final[Mapping[str, Any]] = {
    "message": "Release?",
    "when": {"after_seconds": 0},
    "send": "yes",
    "decline": "no",
}
_MANAGERS: Final[Mapping[str, Any]] = {"claims": {"groups": MANAGERS}}
_RULES: Final[Mapping[str, Any]] = {"call": {}, "see": {}, "cancel": {}}


def _midway(**approval: Any) -> Mapping[str, Any]:
    terms = {"approvers": _MANAGERS, **approval}
    return {"workflow": "gated", "questions": {"release": {**_GATE, "approval": terms}}}


def _escalating(after: str) -> Mapping[str, Any]:
    return _midway(after={"in": after, "then": {"escalate": {"claims": {"groups": "directors"}}}})


_GATED: Final[Mapping[str, Any]] = {"workflow": "gated", "questions": {"release": _GATE}}
QUESTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "of the owner": _GATED,
    "allow.answer": {**_GATED, "allow": {**_RULES, "answer": {**_MANAGERS, "any_owner": True}}},
    "not_owner": {**_GATED, "allow": {**_RULES, "answer": {**_MANAGERS, "not_owner": True}}},
    "before the start": {
        "workflow": "echo",
        "approval": {"before_start": True, "message": "Start?", "approvers": _MANAGERS},
    },
    "midway": _midway(),
    "not yet escalated": _escalating("1d"),
    "escalated": _escalating("1ms"),
    "requester may": _midway(requester_may_approve=True),
}
GROUPS: Final[Mapping[str, list[str]]] = {
    "alice": [MANAGERS],
    "bob": [MANAGERS],
    "carol": [MANAGERS],
    "dora": ["directors"],
    "eve": [],
}
YES: Final[Mapping[str, Any]] = {"action": "accept", "content": {}}
PEOPLE, PAGE_ROWS = table(PAGE_TABLE)


def _tool(question: str) -> str:
    return question.replace(" ", "_")


@pytest.mark.parametrize("owner", ["subject", "client", "authorizer"])
async def test_the_page_and_mcp_give_everybody_the_same_answer(tmp_path: Path, owner: str) -> None:
    settings: Mapping[str, Any] = {
        "tools": {_tool(name): tool for name, tool in QUESTIONS.items()},
        "auth": {"owner": "client" if owner == "client" else "subject"},
        "authorizer": "tests.support.approval_pages:refuses_carol" if owner == "authorizer" else None,
    }
    async with told_provider() as provider, office(tmp_path, provider, **settings) as place:
        pages = {name: place.browser() for name in GROUPS}
        for name, page in pages.items():
            await page.log_in(name, groups=GROUPS[name])
        peers = {name: place.peer(name, client_id=PAGES, groups=groups) for name, groups in GROUPS.items()}
        peers["owner"] = place.peer("alice", groups=[MANAGERS])
        for question, of_whom, expected in PAGE_ROWS:
            if of_whom == owner:
                await _compare(place, question, pages, peers, expected)


async def _compare(
    place: Office, question: str, pages: Mapping[str, Browser], peers: Mapping[str, Peer], expected: Mapping[str, str]
) -> None:
    task, key = await _asked(place, question, peers)
    link = place.link(task, key)
    assert {name: await _over_mcp(peers[name], task, key) for name in PEOPLE} == expected, f"{question} over MCP"
    seen = {name: await _on_page(page, link) for name, page in pages.items()}
    assert {"owner": expected["owner"], **seen} == expected, f"{question} on the page"
    for name in [name for name in pages if expected[name] != "answers"]:
        await pages[name].post(link, {"action": "accept"})
        await peers[name].answer(task, **{key: YES})
    assert await _over_mcp(peers["bob" if expected["bob"] == "answers" else "owner"], task, key) == "answers"
    for name in [name for name in pages if expected[name] == "answers"]:
        await pages[name].post(link, {"action": "accept"})
        assert (await peers["owner"].until(task))["status"] == "completed", f"{question}: {name} on the page"
        task, key = await _asked(place, question, peers)
        assert (await peers[name].answer(task, **{key: YES})).status == 200
        assert (await peers["owner"].until(task))["status"] == "completed", f"{question}: {name} over MCP"
        task, key = await _asked(place, question, peers)
        link = place.link(task, key)


async def _asked(place: Office, question: str, peers: Mapping[str, Peer]) -> tuple[str, str]:
    """A new task of the owner's that asks, and the key of its question."""
    task = str((await peers["owner"].call(_tool(question))).result["taskId"])
    key = START_KEY if question == "before the start" else "release.1"
    who = peers["dora" if question == "escalated" else "owner" if question == "of the owner" else "bob"]
    with anyio.fail_after(TIMEOUT):
        while await _over_mcp(who, task, key) != "answers":
            await anyio.sleep(0.02)
    return task, key


async def _over_mcp(peer: Peer, task: str, key: str) -> str:
    reply = await peer.send("tasks/get", {"taskId": task})
    if "error" in reply.body:
        assert reply.error["message"] == "Task not found"
        return "none"
    return "answers" if key in reply.result.get("inputRequests", {}) else "reads"


async def _on_page(browser: Browser, link: str) -> str:
    shown, listed = await browser.get(link), await browser.get("/approvals")
    found = "none" if shown.status == 404 else "answers" if shown.buttons else "reads"
    assert (link in listed.response.text) is (found == "answers"), "the list has what can be answered"
    return found
