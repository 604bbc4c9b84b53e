"""What a hostile MCP server may answer: no poll stops the adapter, raises another error, or shows a secret."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp_workflows_mcp import McpAdapter
from starlette.responses import Response, StreamingResponse

from adapters.mcp.tests.programs import seen_when, started
from adapters.mcp.tests.scripted_server import MODERN, TASKS, Error, ScriptedServer, structured, text, tool
from adapters.mcp.tests.support import DEFINITION, http
from mcp_workflows.adapter import Execution, Ref, Status
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from mcp_workflows.testing import MemoryNotes

pytestmark = pytest.mark.anyio

SECRET = "s3cret-bearer-of-ours"
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The server, and an adapter that is connected to it."""

    server: ScriptedServer
    adapter: McpAdapter
    notes: MemoryNotes

    async def started(self, key: str = "key-1") -> Ref:
        """Start, and return the reference."""
        return await started(self.adapter, "echo", key=key)

    async def describe(self, reply: Any) -> Execution:
        """Start, and poll once what is told so."""
        ref = await self.started()
        self.server.replies["get_job"] = reply
        return await self.adapter.describe(ref)


@asynccontextmanager
async def scene(server: ScriptedServer | None = None, **settings: Any) -> AsyncGenerator[Scene]:
    there = server or ScriptedServer()
    there.replies.setdefault("start_job", structured({"id": "job-1", "state": "busy"}))
    there.replies.setdefault("get_job", structured({"id": "job-1", "state": "busy"}))
    defaults: Mapping[str, Any] = {"starts": "once", "auth": {"bearer": SECRET}, "timeout": "8s"}
    async with there.served() as url:
        adapter = http(url, **{**defaults, "start": {**DEFINITION["start"], "same": None}, **settings})
        notes = MemoryNotes()
        adapter.remember(notes)
        async with adapter:
            yield Scene(server=there, adapter=adapter, notes=notes)


# --- ids


DESCRIBE = {**DEFINITION["describe"], "id": "{{reply.id}}"}


async def test_a_look_about_another_execution_is_not_believed() -> None:
    async with scene(describe=DESCRIBE) as found:
        with pytest.raises(EngineUnavailable, match=r"was asked about job-1, and told of another one$"):
            await found.describe(structured({"id": "job-2", "state": "done", "result": "of somebody else"}))


NO_HANDLES: list[Any] = [None, True, [], ["a"], {}, {"a": None}, "", 1.5, {"a": {"b": []}}]  # Any: JSON of any shape


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_start_whose_id_is_none_is_neither_a_handle_nor_a_refusal(revision: str) -> None:
    async with scene(ScriptedServer(revision=revision)) as found:
        for handle in NO_HANDLES:
            found.server.replies["start_job"] = structured({"id": handle})
            with pytest.raises(EngineUnavailable, match="it may have been started") as raised:
                await found.started()
            assert raised.value.sent
            assert not raised.value.silent
        found.server.replies["start_job"] = structured({"id": "x" * 10 * MIB})
        with pytest.raises(EngineUnavailable, match="too long"):
            await found.started()


async def test_an_id_with_line_breaks_goes_back_as_it_came_and_stays_on_its_line_in_errors() -> None:
    async with scene(describe=DESCRIBE) as found:
        found.server.replies["start_job"] = structured({"id": "a\nERROR: b\x1b[2J"})
        ref = await found.started()
        with pytest.raises(EngineUnavailable) as raised:
            await found.adapter.describe(ref)
        assert found.server.calls("get_job")[0].params["arguments"]["job_id"] == "a\nERROR: b\x1b[2J"
        assert "\n" not in str(raised.value)
        assert "\x1b" not in str(raised.value)


# --- shapes


async def test_a_text_that_is_no_json_leaves_the_status_open() -> None:
    async with scene() as found:
        with pytest.raises(EngineUnavailable, match="a text that is no JSON"):
            await found.describe(text("Your job is going very well!"))


@pytest.mark.parametrize("depth", [150, 100_000])
async def test_json_that_is_nested_deeply_stops_no_look(depth: int) -> None:
    async with scene() as found:
        ref = await found.started()
        deep = '{"state": "done", "result": ' + "[" * depth + "]" * depth + "}"
        found.server.replies["get_job"] = text(deep)
        with pytest.raises(EngineUnavailable):
            await found.adapter.describe(ref)
        found.server.replies["start_job"] = text('{"id": ' + '{"a":' * depth + "1" + "}" * depth + "}")
        with pytest.raises(EngineUnavailable):
            await found.started("key-2")
        found.server.replies["get_job"] = structured({"state": "busy"})
        assert (await found.adapter.describe(ref)).status is Status.RUNNING


async def test_structured_content_that_does_not_fit_the_output_schema_of_its_own_tool_is_read_all_the_same() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id", "more"]}
    tools = [tool("start_job", outputSchema=schema), tool("get_job", outputSchema=schema)]
    async with scene(ScriptedServer(tools=tools)) as found:
        seen = await found.describe(structured({"id": "job-1", "state": "done", "result": 1}))
        assert (seen.status, seen.output) == (Status.SUCCEEDED, 1)
        assert len(found.server.calls("start_job")) == 1


async def test_a_regular_expression_in_an_output_schema_stops_nothing() -> None:
    endless = {"type": "object", "properties": {"id": {"type": "string", "pattern": "^(a+)+$"}}}
    async with scene(ScriptedServer(tools=[tool("start_job", outputSchema=endless), tool("get_job")])) as found:
        found.server.replies["start_job"] = structured({"id": "a" * 40 + "!"})
        began = time.monotonic()
        await found.started()
        assert time.monotonic() - began < 3


async def test_an_output_schema_that_is_none_stops_nothing() -> None:
    for schema in ({"minProperties": "x"}, {"$ref": "http://127.0.0.1:1/x"}, {"$ref": "#"}, {"pattern": "("}):
        wrong = tool("start_job", outputSchema={"type": "object", **schema})
        async with scene(ScriptedServer(tools=[wrong])) as found:
            await found.started()


@pytest.mark.parametrize(
    ("named", "ok", "said"),
    [
        ({"id": {}, "state": {}}, True, "is a tool"),
        ({"id": {}}, None, "describe.status"),
        ({}, None, "start.handle and describe"),
    ],
)
async def test_check_says_which_fields_no_output_schema_names(named: Any, ok: bool | None, said: str) -> None:
    schema = {"type": "object", "properties": named}
    tools = [tool("start_job", outputSchema=schema), tool("get_job", outputSchema=schema)]
    async with scene(ScriptedServer(tools=tools)) as found:
        finding = await found.adapter.tooling.check("start_job", {})
    assert finding.ok is ok
    assert said in finding.text


async def test_a_result_that_is_none_is_no_answer() -> None:
    async with scene() as found:
        ref = await found.started()
        none: list[Any] = [{}, {"content": "text"}, {"content": None}, {"task": {}}, {"structuredContent": 1}]
        for reply in none:
            found.server.replies |= {"get_job": reply, "start_job": reply}
            for action in (found.adapter.describe(ref), found.started("key-2")):
                with pytest.raises(EngineUnavailable):
                    await action
        found.server.replies["get_job"] = structured({"state": "busy"})
        assert (await found.adapter.describe(ref)).status is Status.RUNNING


# --- sizes


async def test_a_reply_of_ten_megabytes_is_read_or_refused_and_others_go_on() -> None:
    async with scene() as found:
        seen = await found.describe(structured({"state": "done", "result": "x" * 10 * MIB}))
        assert len(seen.output) == 10 * MIB
        with pytest.raises(EngineUnavailable, match="more than"):
            await found.describe(text("x" * 10 * MIB))


async def test_a_reply_without_end_is_cut_off() -> None:
    sent = 0

    async def endless() -> AsyncGenerator[bytes]:
        nonlocal sent
        yield b'{"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "'
        while True:
            sent += MIB
            yield b"x" * MIB
            await anyio.lowlevel.checkpoint()

    async with scene() as found:
        ref = await found.started()
        found.server.replies["get_job"] = lambda _: StreamingResponse(endless(), media_type="application/json")
        with pytest.raises(EngineUnavailable, match="no answer"):
            await found.adapter.describe(ref)
        assert sent < 100 * MIB
        found.server.replies["get_job"] = structured({"state": "busy"})
        assert (await found.adapter.describe(ref)).status is Status.RUNNING


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_an_error_of_a_megabyte_is_one_short_line(revision: str) -> None:
    for reply in (text("no luck\n" + "x" * MIB, is_error=True), Error(code=-32050, message="no luck " + "y\n" * MIB)):
        async with scene(ScriptedServer(revision=revision)) as found:
            ref = await found.started()
            found.server.replies |= {"get_job": reply, "start_job": reply}
            for action in (found.adapter.describe(ref), found.started("key-2")):
                with pytest.raises(EngineError, match="no luck") as raised:
                    await action
                assert len(str(raised.value)) < 700


async def test_a_list_of_thousands_of_tools_is_read_and_no_text_has_them_all() -> None:
    tools = [*ScriptedServer().tools, *(tool(f"tool-{n:05}") for n in range(5_000))]
    async with scene(ScriptedServer(tools=tools), start={"tool": "nobody", "handle": "{{reply.id}}"}) as found:
        with pytest.raises(EngineRefused, match="and 4984 more") as raised:
            await found.started()
        assert len(str(raised.value)) < 700


async def test_a_list_of_tools_without_end_is_read_to_a_bound() -> None:
    pages = 0

    def page(_: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal pages
        pages += 1
        return {"tools": [tool("start_job"), tool("get_job"), tool(f"tool-{pages}")], "nextCursor": str(pages)}

    async with scene() as found:
        found.server.replies["tools/list"] = page
        await found.started()
        assert pages <= 100


# --- texts


TRACE = f"""Traceback (most recent call last):
  File "/srv/app/jobs.py", line 12, in get
    raise RuntimeError("Authorization: Bearer {SECRET}")
RuntimeError: Bearer {SECRET}"""


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
@pytest.mark.parametrize(
    "reply",
    [
        text(TRACE, is_error=True),
        text(f"denied for {SECRET}", is_error=True),
        text("x" * 290 + SECRET, is_error=True),
        Error(code=-32603, message=f"denied for {SECRET}"),
        Error(code=-32602, message=f"denied for {SECRET}"),
        Error(code=-32000, message="y" * 290 + SECRET),
        Error(code=-32050, message=f"denied for {SECRET}"),
    ],
)
async def test_no_error_has_our_token_or_a_stack_trace(
    reply: Any, revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="mcp_workflows_mcp")
    async with scene(ScriptedServer(revision=revision)) as found:
        ref = await found.started()
        found.server.replies |= {"get_job": reply, "start_job": reply, "stop_job": reply}
        for action in (found.adapter.describe(ref), found.started("key-2"), found.adapter.cancel(ref)):
            with pytest.raises(EngineError) as raised:
                await action
            assert SECRET[:8] not in str(raised.value)
            assert "jobs.py" not in str(raised.value)
        assert SECRET not in caplog.text


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
async def test_no_error_of_a_handshake_has_our_token(method: str) -> None:
    async with scene() as found:
        found.server.replies[method] = Error(code=-32603, message=f"denied for {SECRET}")
        with pytest.raises(EngineError) as raised:
            await found.started()
        assert SECRET not in str(raised.value)
        assert SECRET not in (await found.adapter.tooling.check_engine()).text


async def test_control_characters_in_names_of_tools_reach_no_log_and_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scene() as found:
        await found.started()
        found.server.tools.append(tool("evil\nERROR root: all is lost\x1b[31m", description="\x00\u202e"))
        found.server.tools[:] = [each for each in found.server.tools if each["name"] != "start_job"]
        await found.adapter.tooling.exposed()
        with pytest.raises(EngineRefused) as raised:
            await found.started("key-2")
        for said in (str(raised.value), *(record.getMessage() for record in caplog.records)):
            assert "\n" not in said
            assert "\x1b" not in said


# --- lists that change


async def test_a_tool_that_vanishes_and_comes_back_is_told_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    async with scene(expose=["start_job"]) as found:
        ref = await found.started()
        there = list(found.server.tools)
        assert [each.name for each in await found.adapter.tooling.exposed()] == ["start_job"]
        found.server.tools = [each for each in there if each["name"] != "start_job"]
        assert await found.adapter.tooling.exposed() == []
        for _ in range(3):
            with pytest.raises(EngineRefused, match="no tool 'start_job'"):
                await found.started("key-2")
        assert (await found.adapter.describe(ref)).status is Status.RUNNING
        found.server.tools = there
        await found.started("key-3")
        assert [each.name for each in await found.adapter.tooling.exposed()] == ["start_job"]
        told = [record.getMessage() for record in caplog.records if "have changed" in record.getMessage()]
        assert told == [
            "the tools of an MCP server have changed: gone: start_job",
            "the tools of an MCP server have changed: new: start_job",
        ]


async def test_another_input_of_a_tool_is_told_once_and_found_by_check(caplog: pytest.LogCaptureFixture) -> None:
    async with scene() as found:
        await found.started()
        changed: Mapping[str, Any] = {
            "type": "object",
            "properties": {"uuid": {}},
            "required": ["uuid"],
            "additionalProperties": False,
        }
        found.server.tools = [
            {**each, "inputSchema": changed} if each["name"] == "get_job" else each for each in found.server.tools
        ]
        for _ in range(2):
            finding = await found.adapter.tooling.check_engine()
            assert (finding.ok, finding.text) == (False, "describe: the tool get_job needs uuid")
        told = [record.getMessage() for record in caplog.records if "have changed" in record.getMessage()]
        assert told == ["the tools of an MCP server have changed: with another input: get_job"]


# --- tasks of the server's own


def asking(message: str) -> Mapping[str, Any]:
    form: Mapping[str, Any] = {"type": "object", "properties": {}}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": form}}


def modern_tasks() -> ScriptedServer:
    server = ScriptedServer(revision=MODERN, capabilities={"tools": {}, "extensions": {TASKS: {}}})
    server.replies["start_job"] = {"resultType": "task", "taskId": "t-1", "status": "working"}
    return server


async def test_the_poll_interval_of_a_task_is_kept_and_not_for_ever() -> None:
    async with scene(modern_tasks()) as found:
        ref = await found.started()
        found.server.replies["tasks/get"] = {"taskId": "t-1", "status": "working", "pollIntervalMs": 60_000}
        for _ in range(5):
            assert (await found.adapter.describe(ref)).status is Status.RUNNING
        assert len([each for each in found.server.asked if each.method == "tasks/get"]) == 1
        other = Ref(workflow="echo", handle=ref.handle.replace("t-1", "t-2"))
        found.server.replies["tasks/get"] = {"taskId": "t-2", "status": "working", "pollIntervalMs": -5}
        for _ in range(2):
            await found.adapter.describe(other)
        assert len([each for each in found.server.asked if each.method == "tasks/get"]) == 3


NO_STATES: list[Any] = [  # Any: JSON of any shape
    {"taskId": "t-1", "status": "on fire"},
    {"taskId": 7, "status": "working"},
    {"status": "working"},
    {"taskId": "t-1", "status": "completed", "result": 7},
    {"taskId": "t-1", "status": "input_required", "inputRequests": [1]},
    {"taskId": "t-2", "status": "completed", "result": text("of another task")},
]
CONTENTS_OF_ERRORS: list[Any] = [None, 7, [None, 7, "x"], [{"type": "text"}], []]
FAILED: list[tuple[Mapping[str, Any], str]] = [
    ({"status": "failed", "error": {"code": -32603, "message": "no luck"}}, "no luck"),
    ({"status": "failed"}, "the server does not say why"),
    *(
        ({"status": "completed", "result": {"isError": True, "content": content}}, "without a text|x")
        for content in CONTENTS_OF_ERRORS
    ),
]


async def test_a_state_of_a_task_that_is_none_is_no_answer() -> None:
    async with scene(modern_tasks()) as found:
        ref = await found.started()
        for state in NO_STATES:
            found.server.replies["tasks/get"] = state
            with pytest.raises(EngineUnavailable):
                await found.adapter.describe(ref)


async def test_a_failed_task_has_a_text_whatever_is_in_its_result() -> None:
    async with scene(modern_tasks()) as found:
        ref = await found.started()
        for state, said in FAILED:
            found.server.replies["tasks/get"] = {"taskId": "t-1", **state}
            seen = await found.adapter.describe(ref)
            assert seen.failure is not None
            assert seen.status is Status.FAILED
            assert re.search(said, seen.failure.text)


async def test_a_task_with_questions_without_end_shows_some() -> None:
    async with scene(modern_tasks()) as found:
        ref = await found.started()
        question = asking("?")
        asked = {str(n): question for n in range(1000)}
        found.server.replies["tasks/get"] = {"taskId": "t-1", "status": "input_required", "inputRequests": asked}
        assert 0 < len((await found.adapter.describe(ref)).requests) <= 20


async def test_statuses_without_end_fill_no_store() -> None:
    async with scene() as found:
        ref = await found.started()
        for n in range(300):
            found.server.replies["get_job"] = structured({"state": f"state-{n}"})
            assert (await found.adapter.describe(ref)).is_unmapped
        assert len(await found.notes.under("")) < 120


# --- other oddities over HTTP


@pytest.mark.parametrize(
    "reply",
    [
        Response("<html>", media_type="text/html"),
        Response(status_code=202),
        Response(status_code=204),
        Response("not json", media_type="application/json"),
        Response(json.dumps({"jsonrpc": "1.0"}), media_type="application/json"),
        Response("data: x\n\n", media_type="text/event-stream"),
        Response(status_code=302, headers={"location": "https://evil.example.com/mcp"}),
        Response(status_code=500),
        Response(status_code=503),
        Response("gone", status_code=404),
    ],
)
async def test_what_is_no_answer_in_mcp_loses_one_look(reply: Response) -> None:
    async with scene() as found:
        ref = await found.started()
        found.server.replies["get_job"] = reply
        with pytest.raises(EngineUnavailable):
            await found.adapter.describe(ref)
        found.server.replies["get_job"] = structured({"state": "busy"})
        assert (await seen_when(found.adapter, ref, lambda _: True)).status is Status.RUNNING


@pytest.mark.parametrize(
    "refusal",
    [
        Response("no such session", status_code=400),
        Response(json.dumps({"jsonrpc": "2.0", "error": {"code": -32000, "message": "x"}}), status_code=400),
        Error(code=-32000, message="Bad Request: No valid session ID provided"),
        Error(code=-32001, message="Session not found"),
    ],
)
async def test_a_server_that_was_restarted_and_knows_no_session_is_connected_to_again(refusal: Any) -> None:
    server = ScriptedServer()
    async with scene(server) as found:
        ref = await found.started()
        known = sum(each.method == "initialize" for each in server.asked)

        def only_new_sessions(_: Mapping[str, Any]) -> Any:
            count = sum(each.method == "initialize" for each in server.asked)
            return structured({"state": "busy"}) if count > known else refusal

        server.replies["get_job"] = only_new_sessions
        assert (await seen_when(found.adapter, ref, lambda _: True)).status is Status.RUNNING


async def test_a_server_that_speaks_no_revision_is_said_to_be_none() -> None:
    server = ScriptedServer()
    server.replies["initialize"] = {"protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": {}}
    async with scene(server) as found:
        with pytest.raises(EngineUnavailable, match=r"protocol|no MCP server") as raised:
            await found.started()
        assert not raised.value.sent


# --- lists of tools


MALFORMED: list[Any] = [  # Any: JSON of any shape
    {"name": 1, "inputSchema": {"type": "object"}},
    {"name": "no-schema"},
    {"name": "a-list", "inputSchema": []},
    {"name": "annotated", "inputSchema": {"type": "object"}, "annotations": "none"},
    {"inputSchema": {"type": "object"}},
    "a text",
    None,
    7,
]


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_malformed_tool_hides_no_other(revision: str, caplog: pytest.LogCaptureFixture) -> None:
    server = ScriptedServer(revision=revision, tools=[tool("start_job"), *MALFORMED, tool("get_job")])
    async with scene(server, expose=["start_job"]) as found:
        assert [each.name for each in await found.adapter.tooling.exposed()] == ["start_job"]
        assert (await found.adapter.tooling.check_engine()).text.startswith("cancel: the server has no tool")
    assert "is malformed and omitted" in caplog.text


# --- results


PICTURE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
CONTENTS = [
    {"type": "text", "text": "done"},
    PICTURE,
    {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    {"type": "resource", "resource": {"uri": "demo://report/1", "text": "rows", "mimeType": "text/plain"}},
    {"type": "resource_link", "uri": "https://example.com/report.pdf", "name": "report"},
]


@pytest.mark.parametrize("output", ["{{reply}}", "{{more.result}}"])
@pytest.mark.parametrize("structure", [{}, {"structuredContent": {"rows": 3}}])
async def test_a_result_has_all_the_content_of_the_reply(output: str, structure: Any) -> None:
    more = {"result": {"tool": "result", "when": "{{status == 'succeeded'}}"}}
    asks_more = {"more": more} if "more" in output else {}
    status = {"status": "{{reply.state || 'done'}}"}
    server = ScriptedServer(tools=[tool(name) for name in ("start_job", "get_job", "result")])
    server.replies["result"] = {"content": CONTENTS, **structure}
    async with scene(server, describe={**DEFINITION["describe"], **status, **asks_more, "output": output}) as found:
        reply = structured({"id": "job-1", "state": "done"}) if asks_more else server.replies["result"]
        seen = await found.describe(reply)
    assert seen.status is Status.SUCCEEDED
    assert seen.output["content"] == CONTENTS
    assert seen.output.get("structuredContent") == structure.get("structuredContent")


@pytest.mark.parametrize("reply", [text("try again later", is_error=True), Error(code=-32603, message="no")])
async def test_a_result_that_cannot_be_read_is_asked_for_again_and_ends_as_failed(
    reply: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"result": {"tool": "stop_job", "when": "{{status == 'succeeded'}}"}}
    async with scene(describe={**DEFINITION["describe"], "more": more, "output": "{{more.result.rows}}"}) as found:
        found.server.replies["stop_job"] = reply
        ref = await found.started()
        found.server.replies["get_job"] = structured({"id": "job-1", "state": "done"})
        seen = await found.adapter.describe(ref)
        assert seen.status is Status.RUNNING
        assert str(seen.message).startswith("it has succeeded, but its result cannot be read: ")
        monkeypatch.setattr("mcp_workflows.kit.kept_definitions.READ_FOR", timedelta())
        seen = await found.adapter.describe(ref)
        assert (seen.status, seen.failure and seen.failure.kind) == (Status.FAILED, "ResultUnavailable")


async def test_a_completed_task_whose_result_cannot_be_read_keeps_its_state_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = {"taskId": "t-1", "status": "completed", "createdAt": "2026-01-01T00:00:00Z", "ttl": None}
    task |= {"lastUpdatedAt": "2026-01-01T00:00:00Z"}
    server = ScriptedServer(tools=[tool("start_job", execution={"taskSupport": "required"})])
    server.capabilities = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}
    server.replies = {"start_job": {"task": task}, "tasks/get": task, "tasks/result": {"content": [7]}}
    async with scene(server) as found:
        ref = await found.started()
        seen = await found.adapter.describe(ref)
        assert (seen.status, "its result cannot be read" in str(seen.message)) == (Status.RUNNING, True)
        monkeypatch.setattr("mcp_workflows.kit.kept_definitions.READ_FOR", timedelta())
        assert (await found.adapter.describe(ref)).status is Status.FAILED
