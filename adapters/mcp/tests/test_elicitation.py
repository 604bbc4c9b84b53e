"""Questions that servers ask themselves: each is shown to and answered by the person whose call it belongs to."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp_workflows_mcp import McpAdapter, McpSettings, open_calls
from pydantic import BaseModel
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.mcp.tests.programs import Program, asks, entered, has_ended, order, seen_when, started, until
from adapters.mcp.tests.scripted_server import MODERN, Error, ScriptedServer, structured, text, tool
from adapters.mcp.tests.support import DEFINITION, http
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import EngineRefused
from mcp_workflows.testing import MemoryNotes
from tests.support.served import serving

pytestmark = [pytest.mark.anyio, pytest.mark.process]

YES: Final = {"action": "accept", "content": {"approved": True}}
CALL: Final[Mapping[str, Any]] = {"starts": "once"}  # calls that end by themselves: no poll


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(folder=tmp_path)


async def approving(adapter: McpAdapter, name: str) -> Ref:
    return await started(adapter, "approve", {"name": name}, key=name)


# --- over stdio, in 2025-11-25


@pytest.mark.parametrize(
    ("response", "answered"), [(YES, 'accept {"approved": true}'), ({"action": "decline"}, "decline null")]
)
async def test_a_question_in_a_call_is_a_question_of_its_task(program: Program, response: Any, answered: str) -> None:
    async with program.adapter(notes=MemoryNotes(), **CALL) as adapter:
        ref = await approving(adapter, "one")
        seen = await adapter.describe(ref)
        [(key, request)] = seen.requests.items()
        assert (seen.status, request.params["message"]) == (Status.INPUT_REQUIRED, "Approve one?")
        await adapter.answer(ref, {"another": YES})  # ignored
        for wrong in ({"action": "maybe"}, {}, None, "yes", {"action": "accept", "content": {"approved": {"a": 1}}}):
            await adapter.answer(ref, {key: wrong})
            assert list((await adapter.describe(ref)).requests) == [key]
        await adapter.answer(ref, {key: response})
        seen = await seen_when(adapter, ref, has_ended)
        assert (seen.status, seen.requests) == (Status.SUCCEEDED, {})
        assert program.journal[-1] == f"answer one {answered}"
        await adapter.answer(ref, {key: YES})  # a late one is ignored


async def test_two_calls_at_once_are_asked_one_after_the_other_and_nobody_is_asked_for_another(
    program: Program,
) -> None:
    """The revision does not say whose question it is: it is shown only when one call alone can have asked it."""
    async with program.adapter(**CALL) as adapter:
        alice = await started(adapter, "approve", {"name": "late-alice"}, key="a")
        bob = await started(adapter, "approve", {"name": "late-bob"}, key="b")
        program.touch("late-bob.go")  # its question belongs to either call
        await until(lambda: program.count("asks") == 1)
        for ref in (alice, bob):
            assert (await adapter.describe(ref)).status is Status.RUNNING
        await adapter.cancel(alice)
        assert (await seen_when(adapter, alice, has_ended)).status is Status.CANCELLED
        # alice's call is given up, not ended: the program may still ask for it
        with pytest.raises(TimeoutError):
            await seen_when(adapter, bob, asks, within=0.5)


async def test_a_question_waits_until_other_calls_have_ended(program: Program) -> None:
    async with program.adapter(**CALL) as adapter:
        other = await started(adapter, "never", key="n")
        bob = await approving(adapter, "bob")
        await until(lambda: program.count("asks") == 1)
        for ref in (other, bob):
            assert (await adapter.describe(ref)).status is Status.RUNNING
        program.touch("never.go")
        seen = await seen_when(adapter, bob, asks)
        [(key, request)] = seen.requests.items()
        assert request.params["message"] == "Approve bob?"
        assert (await adapter.describe(other)).status is Status.SUCCEEDED
        await adapter.answer(bob, {key: YES})
        assert (await seen_when(adapter, bob, has_ended)).status is Status.SUCCEEDED


async def test_a_question_that_two_calls_may_have_asked_gets_no_answer_in_the_end(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_calls, "_CANDIDATES_SECONDS", 0.3)
    async with program.adapter(**CALL) as adapter:
        alice = await started(adapter, "approve", {"name": "late-alice"}, key="a")
        bob = await started(adapter, "approve", {"name": "late-bob"}, key="b")
        program.touch("late-bob.go")
        seen = await seen_when(adapter, bob, has_ended)
        assert program.journal[-1] == "answer late-bob cancel null"
        assert seen.status is Status.SUCCEEDED  # the tool has decided what that means
        program.touch("late-alice.go")  # now there is one call alone
        assert (await seen_when(adapter, alice, asks)).status is Status.INPUT_REQUIRED


async def test_a_question_of_a_call_that_was_given_up_is_shown_to_nobody(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_calls, "_CANDIDATES_SECONDS", 0.3)
    async with program.adapter(**CALL) as adapter:
        alice = await started(adapter, "approve", {"name": "late-alice"}, key="a")
        await adapter.cancel(alice)
        await seen_when(adapter, alice, has_ended)
        bob = await started(adapter, "never", key="b")
        program.touch("late-alice.go")
        await until(lambda: program.count("answer") == 1)
        assert program.journal[-1] == "answer late-alice cancel null"
        assert (await adapter.describe(bob)).status is Status.RUNNING


async def test_the_cancel_of_one_caller_does_not_hide_the_questions_of_others(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that was told of the cancellation should not ask any more: MCP 2025-11-25, cancellation."""
    monkeypatch.setattr(open_calls, "_CANCELLED_SECONDS", 0.3)
    async with program.adapter(**CALL) as adapter:
        alice = await started(adapter, "never", key="a")
        await adapter.cancel(alice)
        assert (await seen_when(adapter, alice, has_ended)).status is Status.CANCELLED
        bob = await approving(adapter, "bob")
        seen = await seen_when(adapter, bob, asks)
        await adapter.answer(bob, dict.fromkeys(seen.requests, YES))
        assert (await seen_when(adapter, bob, has_ended)).status is Status.SUCCEEDED


async def test_a_page_to_visit_is_a_question_with_its_url(program: Program) -> None:
    async with program.adapter(**CALL) as adapter:
        ref = await started(adapter, "page", {"name": "mail"})
        [(key, request)] = (await adapter.describe(ref)).requests.items()
        assert (request.params["mode"], request.params["url"]) == ("url", "https://example.com/mail")
        await adapter.answer(ref, {key: {"action": "accept"}})
        assert (await seen_when(adapter, ref, has_ended)).output["structuredContent"]["action"] == "accept"


async def test_a_call_that_needs_a_page_to_be_visited_first_is_made_again(program: Program) -> None:
    """JSON-RPC error -32042: nothing was started by the call that was answered so."""
    async with program.adapter(**CALL) as adapter:
        ref = await started(adapter, "visit", {"name": "drive"})
        seen = await seen_when(adapter, ref, asks)
        [(key, request)] = seen.requests.items()
        assert (request.params["mode"], request.params["url"]) == ("url", "https://example.com/drive")
        await adapter.answer(ref, {key: {"action": "accept"}})  # though the page was not visited yet
        seen = await seen_when(adapter, ref, lambda seen: asks(seen) and key not in seen.requests)
        program.touch("drive.visited")
        await adapter.answer(ref, {each: {"action": "accept"} for each in seen.requests})
        assert (await seen_when(adapter, ref, has_ended)).status is Status.SUCCEEDED
        assert (program.count("called drive"), program.count("started drive")) == (3, 1)


async def test_a_page_that_nobody_visits_ends_the_task_and_nothing_was_started(program: Program) -> None:
    async with program.adapter(**CALL) as adapter:
        ref = await started(adapter, "visit", {"name": "drive"})
        [key] = (await seen_when(adapter, ref, asks)).requests
        await adapter.answer(ref, {key: {"action": "decline"}})
        seen = await seen_when(adapter, ref, has_ended)
        assert seen.failure is not None
        assert (seen.status, seen.failure.kind) == (Status.FAILED, None)
        assert program.count("started") == 0


async def test_a_server_that_asks_without_end_is_asked_to_stop(program: Program) -> None:
    async with program.adapter(**CALL) as adapter:
        ref = await started(adapter, "flood", {"count": 300})
        await until(lambda: program.count("tools/list") == 1)
        seen = await seen_when(adapter, ref, lambda seen: len(seen.requests) >= 20)
        await anyio.sleep(0.3)
        seen = await adapter.describe(ref)
        assert len(seen.requests) == 20


# --- restarts and replicas


async def test_a_restart_while_a_question_is_open_ends_the_task_as_unknown(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_calls, "_LOST_AFTER", 0.2)
    notes = MemoryNotes()
    async with program.adapter(notes=notes, **CALL) as adapter:
        ref = await approving(adapter, "one")
        assert asks(await adapter.describe(ref))
    before = {place: value for place, value in (await notes.under("")).items() if place.startswith("call/")}
    assert before
    await anyio.sleep(0.3)  # as long as no process notes that the call is open
    async with program.adapter(notes=notes, **CALL) as fresh:
        seen = await seen_when(fresh, ref, has_ended)
        assert seen.failure is not None
        assert (seen.status, seen.failure.kind) == (Status.FAILED, "OutcomeUnknown")
        assert program.count("asks") == 1


async def test_a_program_that_is_killed_while_it_asks_ends_the_task_as_unknown(program: Program) -> None:
    async with program.adapter(notes=MemoryNotes(), **CALL) as adapter:
        ref = await approving(adapter, "one")
        assert asks(await adapter.describe(ref))
        program.signal(signal.SIGKILL)
        seen = await seen_when(adapter, ref, has_ended)
        assert seen.failure is not None
        assert (seen.status, seen.failure.kind, seen.requests) == (Status.FAILED, "OutcomeUnknown", {})
        again = await approving(adapter, "two")
        assert asks(await adapter.describe(again))


async def test_another_replica_shows_the_question_and_passes_the_answer_on(program: Program) -> None:
    notes = MemoryNotes()
    one, two = (program.adapter(notes=notes, **CALL) for _ in range(2))
    async with entered(one, two):
        ref = await approving(one, "one")
        [(key, request)] = (await seen_when(two, ref, asks)).requests.items()
        assert request.params["message"] == "Approve one?"
        kept = len(await notes.under(""))
        await two.answer(ref, {f"made-up-{n}": YES for n in range(100)})
        await two.answer(ref, {"cancel": YES, "../x": YES, "": YES})
        assert len(await notes.under("")) == kept  # nothing is written for questions that there are not
        await two.answer(ref, {key: YES})
        assert (await seen_when(two, ref, has_ended)).status is Status.SUCCEEDED
        assert program.journal[-1] == 'answer one accept {"approved": true}'
        assert len(program.pids) == 1  # the other replica needs no program of its own for that


async def test_another_replica_passes_a_cancellation_on(program: Program) -> None:
    notes = MemoryNotes()
    one, two = (program.adapter(notes=notes, **CALL) for _ in range(2))
    async with entered(one, two):
        ref = await approving(one, "one")
        assert asks(await seen_when(two, ref, asks))
        await two.cancel(ref)
        assert (await seen_when(two, ref, has_ended)).status is Status.CANCELLED
        assert (await one.describe(ref)).status is Status.CANCELLED
        await two.cancel(ref)  # a no-op


async def test_a_store_that_is_away_for_a_while_loses_no_question(program: Program) -> None:
    notes = MemoryNotes()
    one, two = (program.adapter(notes=notes, **CALL) for _ in range(2))
    async with entered(one, two):
        ref = await approving(one, "one")
        await seen_when(two, ref, asks)
        notes.available = False
        [key] = (await one.describe(ref)).requests
        await one.answer(ref, {key: YES})
        assert (await seen_when(one, ref, has_ended)).status is Status.SUCCEEDED
        notes.available = True
        assert (await seen_when(two, ref, has_ended)).status is Status.SUCCEEDED


# --- over HTTP, in 2025-11-25


class Approval(BaseModel):
    """The form."""

    approved: bool


def legacy_only(app: ASGIApp) -> ASGIApp:
    """Return the application without the revision of 2026-07-28."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"mcp-method") == b"server/discover":
            error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "Method not found"}}
            await JSONResponse(error, status_code=404)(scope, receive, send)
            return
        await app(scope, receive, send)

    return served


@asynccontextmanager
async def asking_over_http() -> AsyncGenerator[McpAdapter]:
    server = MCPServer("asking")

    @server.tool()
    async def approve(name: str, ctx: Context) -> str:
        given = await ctx.elicit(message=f"Approve {name}?", schema=Approval)
        return f"{name}: {given.action}"

    async with serving(legacy_only(server.streamable_http_app())) as url:  # pyright: ignore[reportArgumentType]
        adapter = McpAdapter(McpSettings.model_validate({"url": url, "starts": "once", "timeout": "2s"}))
        adapter.remember(MemoryNotes())
        async with adapter:
            yield adapter


async def test_questions_of_two_calls_at_once_over_http_are_told_apart() -> None:
    async with asking_over_http() as adapter:
        refs = {name: await approving(adapter, name) for name in ("alice", "bob", "carol")}
        for name, ref in refs.items():
            [request] = (await adapter.describe(ref)).requests.values()
            assert request.params["message"] == f"Approve {name}?"
        answers = {"alice": YES, "bob": {"action": "decline"}, "carol": {"action": "cancel"}}
        for name, ref in refs.items():
            [key] = (await adapter.describe(ref)).requests
            for other in refs.values():
                await adapter.answer(other, {key: answers[name]} if other is ref else {key: YES})
        for name, ref in refs.items():
            seen = await seen_when(adapter, ref, has_ended)
            assert f"{name}: {answers[name]['action']}" in str(seen.output)


# --- in 2026-07-28


def question(message: str) -> Mapping[str, Any]:
    form: Mapping[str, Any] = {
        "type": "object",
        "properties": {"approved": {"type": "boolean"}},
        "required": ["approved"],
    }
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": form}}


def rounds(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ask twice, and remember in the state of the request whom."""
    name, state = params["arguments"]["name"], params.get("requestState")
    given: Mapping[str, Any] = params.get("inputResponses") or {}
    if state is None:
        asked = {"first": question(f"{name}, first?"), "also": question(f"{name}, also?")}
        return {"resultType": "input_required", "inputRequests": asked, "requestState": f"{name}-1"}
    if state == f"{name}-1" and given.keys() == {"first", "also"}:
        return {
            "resultType": "input_required",
            "inputRequests": {"second": question(f"{name}, second?")},
            "requestState": f"{name}-2",
        }
    if state == f"{name}-2" and given.keys() == {"second"}:
        return text(f"{name}: {given['second']['action']}")
    return text(f"a wrong answer: {state} {given}", is_error=True)


async def test_rounds_of_questions_go_on_where_they_were() -> None:
    server = ScriptedServer(revision=MODERN, tools=[tool("approve")], replies={"approve": rounds})
    async with server.served() as url:
        adapter = McpAdapter(McpSettings.model_validate({"url": url, "starts": "once", "timeout": "2s"}))
        adapter.remember(MemoryNotes())
        async with adapter:
            refs = {name: await approving(adapter, name) for name in ("alice", "bob")}
            for _ in range(3):
                for name, ref in refs.items():
                    [(key, request)] = (await seen_when(adapter, ref, asks)).requests.items()
                    assert request.params["message"].startswith(f"{name}, ")
                    await adapter.answer(ref, {key: YES})
                    await seen_when(adapter, ref, lambda seen, key=key: key not in seen.requests)
            for name, ref in refs.items():
                assert f"{name}: accept" in str((await seen_when(adapter, ref, has_ended)).output)


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_refusal_that_names_no_page_is_an_error_and_not_a_question(revision: str) -> None:
    refusal = Error(code=-32042, message="log in first", data={"elicitations": [{"mode": "url"}]})
    server = ScriptedServer(revision=revision, tools=[tool("approve")], replies={"approve": refusal})
    async with server.served() as url:
        adapter = McpAdapter(McpSettings.model_validate({"url": url, "starts": "once", "timeout": "2s"}))
        async with adapter:
            with pytest.raises(EngineRefused, match="log in first"):
                await adapter.start(order("approve", {"name": "x"}))


@pytest.mark.parametrize(
    ("where", "mode", "on_page", "url"),
    [
        ("chat", "form", False, None),
        ("page", "form", True, None),
        ("engine", "url", False, "https://jobs.example.com/1"),
        ({"engine": "{{reply.page}}/ask"}, "url", False, "https://jobs.example.com/1/ask"),
    ],
)
async def test_a_question_of_the_tools_is_answered_where_its_definition_says(
    where: object, mode: str, on_page: bool, url: str | None
) -> None:
    server, reply = (
        ScriptedServer(),
        {"id": "1", "state": "busy", "questions": ["q1"], "page": "https://jobs.example.com/1"},
    )
    server.replies |= {"start_job": structured({"id": "1"}), "get_job": structured(reply)}
    how = {
        "starts": "once",
        "start": {**DEFINITION["start"], "same": None},
        "describe": {**DEFINITION["describe"], "url": "{{reply.page}}"},
        "asks": {"question": {**DEFINITION["asks"]["question"], "answer_in": where}},
    }
    async with server.served() as address, http(address, **how) as adapter:
        [question] = (await adapter.describe(await started(adapter))).requests.values()
    assert (question.params["mode"], question.on_page, question.params.get("url")) == (mode, on_page, url)
