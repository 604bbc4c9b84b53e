"""Task tools: how a client without tasks goes on with what a call handed it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.lowlevel import Server

from mcp_workflows import TaskSupport, Tool, attach
from mcp_workflows.adapter import Execution, InputRequest, Ref, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.errors import ConfigError
from mcp_workflows.receiver.task_tools.definitions import TASK_TOOL_NAMES
from mcp_workflows.tasks.service import PAGE
from mcp_workflows.tools import hosts
from tests.support.in_memory import MODERN, Line, entered, line
from tests.support.served import peer, site

pytestmark = pytest.mark.anyio

DECLARED: Mapping[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
ELICITS: Mapping[str, Any] = {"elicitation": {"form": {}}}
YES: Mapping[str, Any] = {"answer": "yes"}
NAMES = ("echo", "sleep", "forever", "stubborn", "ask", "ask_two", "fail", "protocol_error")
ON_AND_ON = frozenset({"sleep", "forever", "stubborn"})  # the first look at all others ends the wait, however late


def handing(*names: str, wait: float = 0.05) -> list[Tool]:
    """Tools that hand over almost at once."""
    bounds = {name: timedelta(seconds=wait if name in ON_AND_ON else 20) for name in names or NAMES}
    return [Tool(name=name, engine="memory", workflow=name, wait=bound) for name, bound in bounds.items()]


@asynccontextmanager
async def server_of(folder: Path, *tools: Tool, **more: Any) -> AsyncGenerator[Server[Any]]:
    """A server with these tools."""
    store = f"sqlite:///{folder}/tasks.db"
    async with entered(tools or handing(), store=store, engine=str(folder), **more) as (server, _):
        yield server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server[Any]]:
    """A server whose tools hand over almost at once."""
    async with server_of(tmp_path) as found:
        yield found


@pytest.fixture
async def client(server: Server[Any]) -> AsyncGenerator[Line]:
    """A client of 2026-07-28 that knows no tasks and cannot ask a person."""
    async with line(server) as found:
        yield found


async def created(server: Server[Any], tool: str, arguments: Mapping[str, Any]) -> str:
    """The id of a task, however soon it ends: a client that declares tasks has made it."""
    async with line(server, capabilities=DECLARED) as other:
        task_id: str = (await other.call(tool, arguments))["result"]["taskId"]
    return task_id


async def handed(client: Line, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
    """The id of the task that a call was answered with."""
    task_id: str = (await client.tool(tool, arguments))["structuredContent"]["taskId"]
    return task_id


def told(result: Mapping[str, Any]) -> str:
    """The text of a result."""
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")


class Shouting(MemoryAdapter):
    """An engine whose workflows say more than can be seen."""

    async def describe(self, ref: Ref) -> Execution:
        form = {"type": "object", "properties": {"ok": {"type": "boolean", "title": "Yes\u202e\x1b[2J"}}}
        params = {"message": "Go?\n\u200b\x1b[2J\u202eno", "requestedSchema": form}
        request = InputRequest(method="elicitation/create", params=params)
        return Execution(status=Status.INPUT_REQUIRED, message="wor\u200bking\x1b]0;x\x07", requests={"go": request})


CLIENTS: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
    (MODERN, DECLARED, {}),
    (MODERN, {}, {}),
    ("2025-11-25", {}, {"task": {"ttl": 60_000}}),
    ("2025-11-25", {}, {}),
]


@pytest.mark.parametrize(("version", "capabilities", "params"), CLIENTS)
async def test_what_a_workflow_says_reaches_a_person_without_what_cannot_be_seen(
    tmp_path: Path, version: str, capabilities: Mapping[str, Any], params: Mapping[str, Any]
) -> None:
    server: Server[Any] = Server("test", version="1")
    engines = {"memory": Shouting(MemorySettings(name=str(tmp_path)))}
    async with (
        attach(server, tools=handing("ask"), engines=engines, store=f"sqlite:///{tmp_path}/tasks.db"),
        line(server, version, capabilities) as client,
    ):
        called = (await client.call("ask", **params))["result"]
        task_id = called.get("taskId") or called.get("task", {}).get("taskId")
        said: Mapping[str, Any] = called
        with anyio.fail_after(60):
            while task_id and "Go?" not in str(said):
                said = (await client.send("tasks/get", {"taskId": task_id}))["result"]
    text = json.dumps(said, ensure_ascii=False)
    assert "Go?\\n[2Jno" in text
    assert not [letter for letter in text if not letter.isprintable()]
    assert "\\u00" not in text


# --- what a handle says


class Beginning(MemoryAdapter):
    """An engine whose workflows have done nothing yet, however slow the machine is."""

    async def describe(self, ref: Ref) -> Execution:
        seen = await super().describe(ref)
        return replace(seen, progress=seen.progress and replace(seen.progress, value=0))


async def handle_of_a_sleep(folder: Path) -> Mapping[str, Any]:
    """The handle of a task that works; there is time for a look."""
    server: Server[Any] = Server("test", version="1")
    engines = {"memory": Beginning(MemorySettings(name=str(folder)))}
    async with (
        attach(server, tools=handing("sleep", wait=1), engines=engines, store=f"sqlite:///{folder}/tasks.db"),
        line(server) as client,
    ):
        return await client.tool("sleep", {"seconds": 60})


async def test_a_handle_says_what_to_do_next_with_a_task_that_works(tmp_path: Path) -> None:
    result = await handle_of_a_sleep(tmp_path)
    found = result["structuredContent"]
    assert (found["tool"], found["status"], found["message"]) == ("sleep", "working", "sleeping")
    assert found["progress"] == {"value": 0, "total": 60}
    follow_up = f'call task_wait with {{"taskId": "{found["taskId"]}"}} for its result; do not call sleep again'
    assert found["next"] == follow_up, "hosts may show the model nothing but the structure"
    assert follow_up in told(result)
    assert result["isError"] is False
    assert len(told(result)) < 300


HEARS: Mapping[str, Any] = {"events": {}}
HEARS_BY_EXTENSION: Mapping[str, Any] = {"extensions": {"io.modelcontextprotocol/events": {}}}


@pytest.mark.parametrize("version", [MODERN, "2025-11-25", "2025-03-26"])
@pytest.mark.parametrize(
    ("capabilities", "host", "is_told"),
    [(HEARS, "raw", True), (HEARS_BY_EXTENSION, "raw", True), ({}, "openai-mcp", True), ({}, "raw", False)],
)
async def test_a_client_that_subscribes_to_events_is_told_how_to_hear_of_the_end(
    server: Server[Any], version: str, capabilities: Mapping[str, Any], host: str, is_told: bool
) -> None:
    async with line(server, version, capabilities, host=host) as client:
        for tool in ("forever", "ask"):
            result = await client.tool(tool)
            found = result["structuredContent"]
            advice = f'task.ended with {{"taskId": "{found["taskId"]}"}} tells you when it has ended.'
            assert (advice in told(result), advice in found["next"]) == (is_told, is_told)
        later = await client.tool("task_status", {"taskId": found["taskId"]})
        assert (advice in told(later)) is is_told
        await client.tool("task_answer", {"taskId": found["taskId"], "content": YES})
        ended = await client.tool("task_wait", {"taskId": found["taskId"]})
        assert "task.ended" not in told(ended), "there is nothing more to wait for"


async def test_a_task_of_2025_11_25_tells_a_client_that_subscribes_how_to_hear_of_its_end(server: Server[Any]) -> None:
    async with line(server, "2025-11-25", HEARS) as hears, line(server, "2025-11-25") as other:
        for client in (hears, other):
            created = (await client.call("forever", task={}))["result"]
            said = created["_meta"]["io.modelcontextprotocol/model-immediate-response"]
            advice = f'task.ended with {{"taskId": "{created["task"]["taskId"]}"}} tells you when it has ended.'
            assert (advice in said) is (client is hears)


# --- task_wait, task_status


async def test_waiting_returns_the_status_when_its_time_is_over(client: Line) -> None:
    task_id = await handed(client, "forever")
    with anyio.fail_after(60):
        result = await client.tool("task_wait", {"taskId": task_id, "seconds": 0.1})
    assert result["structuredContent"]["status"] == "working"


async def test_waiting_tells_of_progress_on_its_own_token(client: Line) -> None:
    task_id = await handed(client, "sleep", {"seconds": 60})
    params = {"name": "task_wait", "arguments": {"taskId": task_id}}
    async with anyio.create_task_group() as group:
        group.start_soon(partial(client.send, "tools/call", params, meta={"progressToken": "p"}))
        with anyio.fail_after(60):
            while len(client.notifications) < 2:
                await anyio.sleep(0.05)
        await client.tool("task_cancel", {"taskId": task_id})
    values = [found.params["progress"] for found in client.notifications if found.params]
    assert all(found.params and found.params["progressToken"] == "p" for found in client.notifications)
    assert len(values) >= 2
    assert values == sorted(set(values))


@pytest.mark.parametrize(
    ("tool", "arguments", "text", "found"),
    [
        (
            "fail",
            {},
            "has failed:\nthe card was declined",
            {
                "message": "the card was declined",
                "error": {"message": "the card was declined", "type": "CardError"},
            },
        ),
        (
            "protocol_error",
            {},
            "has failed with error -32602: no such order",
            {"error": {"code": -32602, "message": "no such order", "data": {"order": "o-1"}}},
        ),
        (
            "echo",
            {"content": [{"type": "text", "text": "sold out"}], "isError": True},
            "has failed:\nsold out",
            {"message": "sold out"},
        ),
    ],
)
async def test_a_task_that_failed_is_a_result_with_is_error(
    server: Server[Any], client: Line, tool: str, arguments: Mapping[str, Any], text: str, found: Mapping[str, Any]
) -> None:
    task_id = await created(server, tool, arguments)
    result = await client.tool("task_wait", {"taskId": task_id})
    assert (result["isError"], result["structuredContent"]["status"]) == (True, "failed")
    assert text in told(result)
    assert result["structuredContent"].items() >= found.items()


# --- task_answer


async def test_several_questions_are_answered_by_their_keys(client: Line) -> None:
    task_id = await handed(client, "ask_two")
    which = await client.tool("task_answer", {"taskId": task_id, "content": YES})
    assert which["isError"] is True
    assert "No answer was sent: several questions are open, so give the key of one: first, second." in told(which)
    ready = {"taskId": task_id, "key": "first", "content": {"answer": "..."}}
    assert f"once per question, with its key, such as {json.dumps(ready)}" in which["structuredContent"]["next"]
    left = await client.tool("task_answer", {"taskId": task_id, "key": "second", "content": YES})
    assert list(left["structuredContent"]["questions"]) == ["first"]
    done = await client.tool("task_answer", {"taskId": task_id, "key": "first", "action": "decline"})
    assert done["structuredContent"]["result"] == {"second": YES, "first": {"action": "decline"}}


async def test_an_answer_without_a_key_never_answers_a_later_question(tmp_path: Path) -> None:
    async with server_of(tmp_path, *handing("ask_in_turn")) as server, line(server) as client:
        task_id = await handed(client, "ask_in_turn")
        answer = {"taskId": task_id, "content": YES}
        assert list((await client.tool("task_answer", answer))["structuredContent"]["questions"]) == ["second"]
        repeated = await client.tool("task_answer", answer)  # as a host does that got no reply in time
        assert repeated["isError"] is True
        assert "this task has asked another question before, so give the key: second" in told(repeated)
        done = await client.tool("task_answer", {**answer, "key": "second"})
        assert done["structuredContent"]["result"] == {"first": YES, "second": YES}


class Formless(MemoryAdapter):
    """An engine that asks for a yes or a no, without a form."""

    async def describe(self, ref: Ref) -> Execution:
        seen = await super().describe(ref)
        params: Mapping[str, Any] = {"message": "Ship it?", "requestedSchema": {"type": "object", "properties": {}}}
        asked = {key: InputRequest(method="elicitation/create", params=params) for key in seen.requests}
        return replace(seen, requests=asked)


async def test_a_question_without_a_form_is_accepted_if_the_user_agrees(tmp_path: Path) -> None:
    server: Server[Any] = Server("test", version="1")
    engines = {"memory": Formless(MemorySettings(name=str(tmp_path)))}
    async with (
        attach(server, tools=handing("ask"), engines=engines, store=f"sqlite:///{tmp_path}/tasks.db"),
        line(server) as client,
    ):
        found = (await client.tool("ask"))["structuredContent"]
        ready: Mapping[str, Any] = {"taskId": found["taskId"], "key": "question", "content": {}}
        assert f"task_answer with {json.dumps(ready)} if the user agrees; if the user refuses" in found["next"]


class Elaborate(MemoryAdapter):
    """An engine with long keys, and forms of several fields."""

    async def describe(self, ref: Ref) -> Execution:
        seen = await super().describe(ref)
        form = {
            "type": "object",
            "properties": {
                "formal": {"type": "boolean"},
                "tone": {"type": "string", "enum": ["warm", "cool"]},
                "mail": {"type": "string", "format": "email"},
                "copies": {"type": "integer", "minimum": 2},
                "note": {"type": "string"},
            },
            "required": ["formal", "tone", "mail", "copies"],
        }
        params = {"message": "How?", "requestedSchema": form}
        requests = {LONG: InputRequest(method="elicitation/create", params=params)} if seen.requests else {}
        return replace(seen, requests=requests)

    async def answer(self, ref: Ref, responses: Mapping[str, Any]) -> None:
        await super().answer(ref, {"question": responses[LONG]})


LONG = "b7e23ec2-9e2c-4f8e-9d2e-0123456789ab"


@pytest.mark.parametrize("which", ["short", "long", "none"])
async def test_the_example_in_the_text_can_be_sent_as_it_is(tmp_path: Path, which: str) -> None:
    server: Server[Any] = Server("test", version="1")
    engines = {"memory": Elaborate(MemorySettings(name=str(tmp_path)))}
    async with (
        attach(server, tools=handing("ask"), engines=engines, store=f"sqlite:///{tmp_path}/tasks.db"),
        line(server) as client,
    ):
        asked = await client.tool("ask")
        found = re.search(r"call task_answer with (\{.*\}), with the user's answer", told(asked))
        assert found, told(asked)
        ready = json.loads(found[1])
        content = {"formal": True, "tone": "warm", "mail": "name@example.com", "copies": 2}
        assert (ready["content"], len(ready["key"])) == (content, 10)
        assert list(asked["structuredContent"]["questions"]) == [ready["key"]]
        assert LONG not in json.dumps(asked)
        key = {"short": {"key": ready["key"]}, "long": {"key": LONG}, "none": {}}[which]
        done = await client.tool("task_answer", {"taskId": ready["taskId"], "content": ready["content"], **key})
        assert done["structuredContent"]["result"] == content


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"content": {"answer": 1}}, "task_answer: content does not match the question: answer: 1 is not of type"),
        ({}, "task_answer: content must be an object when the action is accept; nothing was applied"),
        ({"key": "other", "content": YES}, "no open question has the key «other»; open: question."),
        ({"content": "yes"}, 'Wrong arguments for task_answer: content: "yes" is not of type "object"'),
        ({"action": "agree"}, 'Wrong arguments for task_answer: action: "agree" is not one of'),
    ],
)
async def test_an_answer_that_does_not_fit_changes_nothing(
    client: Line, arguments: Mapping[str, Any], text: str
) -> None:
    task_id = await handed(client, "ask")
    result = await client.tool("task_answer", {"taskId": task_id, **arguments})
    assert result["isError"] is True
    assert text in told(result)
    assert "inputResponses" not in told(result)
    assert (await client.tool("task_status", {"taskId": task_id}))["structuredContent"]["status"] == "input_required"


async def test_cancelling_says_what_came_of_it(client: Line) -> None:
    task_id = await handed(client, "forever")
    result = await client.tool("task_cancel", {"taskId": task_id})
    assert told(result).startswith("The workflow was asked to cancel.")
    assert "was cancelled on request. There is no result." in told(result), "and not: was cancelled: cancelled ..."
    assert result["structuredContent"]["status"] == "cancelled"
    again = await client.tool("task_cancel", {"taskId": task_id})
    assert told(again).startswith("There was nothing to cancel.")
    assert again["isError"] is False


# --- task_cancel


async def test_what_2025_11_25_was_told_is_cancelled_stays_so_to_its_task_tools(server: Server[Any]) -> None:
    async with line(server, "2025-11-25") as old, line(server) as new:
        created = await old.call("stubborn", {"seconds": 60}, task={})
        task_id = created["result"]["task"]["taskId"]
        await old.send("tasks/cancel", {"taskId": task_id})
        for client, status in ((old, "cancelled"), (new, "working")):
            result = await client.tool("task_status", {"taskId": task_id})
            assert result["structuredContent"]["status"] == status


# --- my_tasks


async def test_my_tasks_are_paged_newest_first(client: Line) -> None:
    oldest = await handed(client, "forever")
    for n in range(PAGE - 1):
        await client.tool("echo", {"n": n})
    newest = await handed(client, "ask")
    result = await client.tool("my_tasks")
    first = result["structuredContent"]
    assert [task["status"] for task in first["tasks"]] == ["input_required", *["completed"] * (PAGE - 1)]
    assert (first["tasks"][0]["taskId"], first["tasks"][0]["tool"]) == (newest, "ask")
    assert f"{newest} ask ({first['tasks'][0]['createdAt']}): input_required: waiting for an answer" in told(result)
    last = (await client.tool("my_tasks", {"cursor": first["nextCursor"]}))["structuredContent"]
    assert [task["taskId"] for task in last["tasks"]] == [oldest]
    assert "nextCursor" not in last
    wrong = await client.tool("my_tasks", {"cursor": "x"})
    assert (wrong["isError"], "unknown cursor" in told(wrong)) == (True, True)


async def test_tasks_of_others_look_like_none(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with (
        site(store=store, tools=handing("forever"), authenticated=True) as served,
        peer(served.url, capabilities={}, token="ann") as ann,
        peer(served.url, capabilities={}, token="bob") as bob,
    ):
        task_id = (await ann.call("forever")).result["structuredContent"]["taskId"]
        for tool in ("task_status", "task_wait", "task_answer", "task_cancel"):
            arguments = {"taskId": task_id, **({"content": YES} if tool == "task_answer" else {})}
            foreign = (await bob.call(tool, arguments)).result
            unknown = (await bob.call(tool, {**arguments, "taskId": "0" * 40})).result
            assert foreign == unknown
            assert foreign["isError"] is True
            assert "Task not found. Give the taskId exactly as the tool returned it; my_tasks" in told(foreign)
        assert (await bob.call("my_tasks")).result["structuredContent"]["tasks"] == []
        mine = (await ann.call("my_tasks")).result["structuredContent"]["tasks"]
        assert [(task["taskId"], task["status"]) for task in mine] == [(task_id, "working")]


async def test_tasks_are_listed_for_nobody_who_is_not_known(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with (
        site(store=store, tools=handing("forever"), my_tasks=True) as served,
        peer(served.url, capabilities={}) as nobody,
    ):
        for declares in (DECLARED, ELICITS):
            tools = (await nobody.send("tools/list", capabilities=declares)).result["tools"]
            assert "my_tasks" not in {tool["name"] for tool in tools}
        result = (await nobody.call("my_tasks")).result
        assert result["isError"] is True
        unknown = (await nobody.call("task_status", {"taskId": "0" * 40})).result
        assert "my_tasks" not in told(unknown)


# --- the tools themselves


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("task_status", {}, "'taskId' is a required property"),
        ("task_status", {"taskId": 1}, 'taskId: 1 is not of type "string"'),
        ("task_status", {"taskId": ""}, 'taskId: "" is shorter than 1 character'),
        ("task_status", {"taskId": "x", "more": 1}, "additional properties are not allowed, such as 'more'"),
        ("task_wait", {"taskId": "x", "seconds": -1}, "seconds: -1 is less than the minimum of 0"),
        ("task_cancel", {"taskId": None}, 'taskId: null is not of type "string"'),
        ("my_tasks", {"cursor": 1}, 'cursor: 1 is not of type "string"'),
    ],
)
async def test_wrong_arguments_are_named(client: Line, tool: str, arguments: Mapping[str, Any], text: str) -> None:
    result = await client.tool(tool, arguments)
    assert result["isError"] is True
    assert told(result).startswith(f"Wrong arguments for {tool}: ")
    assert text in told(result)


async def test_a_task_tool_makes_no_task_itself(server: Server[Any]) -> None:
    async with line(server, "2025-11-25") as client:
        assert (await client.call("task_status", {"taskId": "x"}, task={}))["error"]["code"] == -32601


# --- their names


@pytest.mark.parametrize("name", sorted(TASK_TOOL_NAMES))
def test_a_tool_with_a_task_tools_name_is_refused_where_they_are_offered(name: str) -> None:
    engines = {"memory": MemoryAdapter(MemorySettings())}
    tools = [Tool(name=name, engine="memory", workflow="echo", tasks=TaskSupport.WAIT)]
    attach(Server("fine"), tools=tools, engines=engines)
    for wrong, my_tasks in ((tools, True), ([*tools, *handing("echo")], False)):
        with pytest.raises(ConfigError, match=f"tool '{name}': this name is reserved for a task tool"):
            attach(Server("wrong"), tools=wrong, engines=engines, my_tasks=my_tasks)


# --- the patience of hosts


HASTY, PATIENT = "hasty", "patient"


@pytest.fixture
def limits_of_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that gives up at once, and one that waits."""
    monkeypatch.setattr(hosts, "CALL_LIMITS", {HASTY: 0.1, PATIENT: 60})


@pytest.mark.usefixtures("limits_of_hosts")
@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_a_call_and_task_wait_take_no_longer_than_the_host_allows(tmp_path: Path, version: str) -> None:
    napping = Tool(name="sleep", engine="memory", workflow="sleep")
    endless = Tool(name="forever", engine="memory", workflow="forever")
    async with server_of(tmp_path, napping, endless) as server:
        async with line(server, version, host=HASTY) as client:
            task_id = await handed(client, "forever")
            waited = await client.tool("task_wait", {"taskId": task_id, "seconds": 3600})
            assert waited["structuredContent"]["status"] == "working"
        async with line(server, version, host=PATIENT) as client:
            assert "taskId" not in (await client.tool("sleep", {"seconds": 1}))["structuredContent"]
            handed_to_hasty = await created(server, "sleep", {"seconds": 1})
            waited = await client.tool("task_wait", {"taskId": handed_to_hasty})
            assert waited["structuredContent"]["status"] == "completed"
