"""The receiver on a real port: what a client of 2026-07-28 hears, request by request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_workflows import Question, TaskSupport, Tool
from tests.support.served import EXTENSION, TASKS, Peer, memory_tools, peer, site

pytestmark = pytest.mark.anyio

ACCEPTED: Mapping[str, Any] = {"action": "accept", "content": {"answer": "yes"}}
NO_TASKS: Mapping[str, Any] = {"elicitation": {}}


def _tools() -> list[Tool]:
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return [
        *memory_tools(),
        Tool(name="typed", engine="memory", workflow="echo", input=schema),
        Tool(name="required", engine="memory", workflow="echo", tasks=TaskSupport.REQUIRED),
        Tool(name="forbidden", engine="memory", workflow="echo", tasks=TaskSupport.FORBIDDEN),
        Tool(name="small", engine="memory", workflow="echo", max_result=100),
        Tool(name="ask_and_wait", engine="memory", workflow="ask", tasks=TaskSupport.WAIT),
        Tool(
            name="asks",
            engine="memory",
            workflow="echo",
            input=schema,
            questions={
                "reason": Question(message="Why {{n}}?", schema={"type": "string"}),
                "extra": Question(
                    message="More?",
                    schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
                    when_missing=True,
                ),
            },
        ),
    ]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[Peer]:
    """A client with everything, of a server with all these tools."""
    async with site(store=f"sqlite:///{tmp_path}/tasks.db", tools=_tools()) as served, peer(served.url) as found:
        yield found


async def _created(client: Peer, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
    result = (await client.call(tool, arguments)).result
    assert result["resultType"] == "task"
    return result["taskId"]


async def test_discover_advertises_the_extension(client: Peer) -> None:
    found = (await client.send("server/discover")).result
    assert found["capabilities"]["extensions"] == {
        EXTENSION: {},
        "io.modelcontextprotocol/events": {"listChanged": False},
    }
    assert found["capabilities"]["events"] == {"listChanged": False}


async def test_a_created_task_is_found_at_once(client: Peer) -> None:
    for _ in range(20):
        task_id = await _created(client, "forever")
        assert (await client.get(task_id))["status"] == "working"


async def test_a_request_that_does_not_declare_the_extension_gets_no_task_even_if_an_earlier_one_did(
    client: Peer,
) -> None:
    await _created(client, "echo", {"a": 1})
    plain = (await client.call("echo", {"a": 1}, capabilities=NO_TASKS)).result
    assert (plain["resultType"], plain["structuredContent"]) == ("complete", {"a": 1})


async def test_a_required_tool_tells_a_client_without_tasks_what_it_lacks(client: Peer) -> None:
    reply = await client.call("required", {}, capabilities=NO_TASKS)
    assert (reply.status, reply.code) == (400, -32021)
    assert reply.error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_task_requests_of_a_client_that_did_not_declare_are_refused(client: Peer, method: str) -> None:
    task_id = await _created(client, "forever")
    params: dict[str, Any] = {"taskId": task_id, "inputResponses": {}}
    assert (await client.send(method, params, capabilities=NO_TASKS)).code == -32021
    listen = {"notifications": {"taskIds": [task_id]}}
    assert (await client.send("subscriptions/listen", listen, capabilities=NO_TASKS)).code == -32021


async def test_the_inlined_result_is_what_the_plain_call_returns(client: Peer) -> None:
    for tool in ("echo", "fail"):
        plain = dict((await client.call(tool, {"a": 1}, capabilities=NO_TASKS)).result)
        del plain["_meta"]
        done = await client.until(await _created(client, tool, {"a": 1}))
        assert (done["status"], done["result"]) == ("completed", plain)


async def test_a_protocol_error_of_the_workflow_is_failed_with_that_error(client: Peer) -> None:
    done = await client.until(await _created(client, "protocol_error"))
    assert done["status"] == "failed"
    assert done["error"] == {"code": -32602, "message": "no such order", "data": {"order": "o-1"}}
    assert done["statusMessage"] == "no such order"
    assert "result" not in done
    plain = await client.call("protocol_error", capabilities=NO_TASKS)
    assert plain.error == done["error"]


async def test_questions_are_answered_one_by_one_or_all_at_once(client: Peer) -> None:
    task_id = await _created(client, "ask_two")
    asked = await client.until(task_id, "input_required")
    assert set(asked["inputRequests"]) == {"first", "second"}
    acknowledged = (await client.answer(task_id, first=ACCEPTED)).result
    assert set(acknowledged) == {"resultType", "_meta"}
    asked = await client.get(task_id)
    assert (asked["status"], set(asked["inputRequests"])) == ("input_required", {"second"})
    await client.answer(task_id, second=ACCEPTED)
    assert (await client.until(task_id))["status"] == "completed"

    at_once = await _created(client, "ask_two")
    await client.until(at_once, "input_required")
    await client.answer(at_once, first=ACCEPTED, second=ACCEPTED)
    assert (await client.until(at_once))["status"] == "completed"


async def test_unknown_and_answered_keys_are_ignored(client: Peer) -> None:
    task_id = await _created(client, "ask_two")
    await client.until(task_id, "input_required")
    await client.answer(task_id, first=ACCEPTED, nonsense={"anything": 1})
    changed = {"action": "accept", "content": {"answer": "no"}}
    await client.answer(task_id, first=changed)
    await client.answer(task_id, second=ACCEPTED)
    done = await client.until(task_id)
    assert done["result"]["structuredContent"]["first"] == {"answer": "yes"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "accept", "content": {}},
        {"action": "accept", "content": {"answer": 7}},
        {"action": "accept"},
        {"action": "maybe"},
        {"content": {"answer": "yes"}},
        "yes",
    ],
)
async def test_an_answer_that_does_not_fit_is_named_and_nothing_of_the_update_is_applied(
    client: Peer, wrong: object
) -> None:
    task_id = await _created(client, "ask_two")
    await client.until(task_id, "input_required")
    reply = await client.answer(task_id, first=ACCEPTED, second=wrong)
    assert reply.code == -32602
    assert "second" in reply.error["message"]
    assert set((await client.get(task_id))["inputRequests"]) == {"first", "second"}


async def test_answers_and_cancellations_of_an_ended_task_are_acknowledged_and_change_nothing(client: Peer) -> None:
    task_id = await _created(client, "echo")
    done = await client.until(task_id)
    assert (await client.answer(task_id, first=ACCEPTED)).result["resultType"] == "complete"
    assert (await client.send("tasks/cancel", {"taskId": task_id})).result["resultType"] == "complete"
    assert await client.get(task_id) == done


async def test_cancel_is_acknowledged_and_shows_in_the_status(client: Peer) -> None:
    task_id = await _created(client, "forever")
    for _ in range(2):
        assert set((await client.send("tasks/cancel", {"taskId": task_id})).result) == {"resultType", "_meta"}
    done = await client.until(task_id)
    assert done["status"] == "cancelled"
    assert not {"result", "error", "inputRequests"} & set(done)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_unknown_expired_and_malformed_ids_are_invalid_params(tmp_path: Path, method: str) -> None:
    tools = [Tool.model_validate({"name": "brief", "engine": "memory", "workflow": "forever", "ttl": "200ms"})]
    async with site(store=f"sqlite:///{tmp_path}/tasks.db", tools=tools) as served, peer(served.url) as client:
        made = (await client.call("brief")).result  # a look might come too late already
        assert made["ttlMs"] == 200
        task_id = made["taskId"]
        with anyio.fail_after(60):
            while "result" in (reply := await client.send(method, {"taskId": task_id, "inputResponses": {}})).body:
                await anyio.sleep(0.05)
        assert (reply.code, "xpired" in reply.error["message"]) == (-32602, True)
        for bad in ("0" * 40, "-rf", "../../etc", "x" * 5000, "tâche", "'; drop table tasks; --"):
            reply = await client.send(method, {"taskId": bad, "inputResponses": {}})
            assert (reply.code, reply.error["message"]) == (-32602, "Task not found")
        nothings: tuple[Any, ...] = (None, 7, "", [], {})
        for malformed in nothings:
            assert (await client.send(method, {"taskId": malformed, "inputResponses": {}})).code == -32602


async def test_the_removed_methods_are_not_found(client: Peer) -> None:
    task_id = await _created(client, "echo")
    for method in ("tasks/result", "tasks/list"):
        reply = await client.send(method, {"taskId": task_id})
        assert (reply.status, reply.code) == (404, -32601)


async def test_task_ids_are_unguessable_and_fit_headers_and_command_lines(client: Peer) -> None:
    ids = {await _created(client, "forever") for _ in range(20)}
    assert len(ids) == 20
    for task_id in ids:
        assert len(bytes.fromhex(task_id)) * 8 >= 128


async def test_a_name_header_that_is_not_the_task_id_is_refused(client: Peer) -> None:
    task_id = await _created(client, "forever")
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        params: dict[str, Any] = {"taskId": task_id, "inputResponses": {}}
        reply = await client.send(method, params, headers={"mcp-name": "other"})
        assert (reply.status, reply.code) == (400, -32020)
        missing = await client.send(method, params, headers={"mcp-name": None})
        assert missing.result["resultType"] == "complete"


async def test_headers_repeat_arguments_and_tell_nobody_that_a_hidden_tool_exists(tmp_path: Path) -> None:
    form = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    rules = {"call": {"principals": [{"subject": "boss"}]}, "see": {}}
    tools = [
        Tool.model_validate({"name": name, "engine": "memory", "workflow": "echo", "input": form, **more})
        for name, more in (("routed", {}), ("hidden", {"allow": rules}))
    ]
    store, right = f"sqlite:///{tmp_path}/tasks.db", {"mcp-param-region": "west"}
    async with site(tools=tools, store=store) as served, peer(served.url) as client:
        for headers, status in ((right, 200), ({"mcp-param-region": "east"}, 400), ({}, 400)):
            reply = await client.call("routed", {"region": "west"}, headers=headers)
            assert (reply.status, reply.body.get("error", {"code": -32020})["code"]) == (status, -32020)
        unknown = await client.call("nothing", {"region": "west"})
        for headers in (right, {"mcp-param-region": "east"}, {}):
            reply = await client.call("hidden", {"region": "west"}, headers=headers)
            assert (reply.status, reply.code) == (unknown.status, unknown.code)
            assert reply.error["message"] == unknown.error["message"].replace("nothing", "hidden")


async def test_another_principal_finds_nothing(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    tools = [*memory_tools(), Tool(name="small", engine="memory", workflow="echo", max_result=10)]
    async with (
        site(store=store, tools=tools, authenticated=True) as served,
        peer(served.url, token="alice") as alice,
        peer(served.url, token="bob") as bob,
    ):
        task_id = await _created(alice, "ask")
        await alice.until(task_id, "input_required")
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            params = {"taskId": task_id, "inputResponses": {"question": ACCEPTED}}
            reply = await bob.send(method, params)
            assert (reply.code, reply.error["message"]) == (-32602, "Task not found")
        assert await _agreed(bob, [task_id]) == []
        assert await _agreed(alice, [task_id]) == [task_id]
        large = (await alice.until(await _created(alice, "small", {"a": "x" * 20})))["result"]
        uri = large["content"][1]["uri"]
        assert (await bob.send("resources/read", {"uri": uri})).code == -32602
        assert (await alice.send("resources/read", {"uri": uri})).result["contents"]
        key = {"mcp-workflows/idempotencyKey": "k" * 32}
        mine, theirs = [(await who.call("forever", {}, meta=key)).result["taskId"] for who in (alice, bob)]
        assert mine != theirs


async def _agreed(client: Peer, task_ids: list[str]) -> list[str]:
    async with client.stream("subscriptions/listen", {"notifications": {"taskIds": task_ids}}) as (_, frames):
        acknowledged = await anext(frames)
    return acknowledged["params"]["notifications"]["taskIds"]


async def test_a_listener_hears_each_change_as_tasks_get_would_tell_it(client: Peer) -> None:
    task_id = await _created(client, "ask_in_turn")
    params = {"notifications": {"taskIds": [task_id, "0" * 40], "toolsListChanged": True}}
    told: list[Mapping[str, Any]] = []
    async with client.stream("subscriptions/listen", params) as (status, frames):
        assert status == 200
        acknowledged = await anext(frames)
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["notifications"] == {"taskIds": [task_id], "toolsListChanged": True}
        with anyio.fail_after(60):
            async for frame in frames:
                assert frame["method"] == "notifications/tasks"
                told.append(frame["params"])
                if frame["params"]["status"] == "completed":
                    break
                for key in frame["params"].get("inputRequests", ()):
                    await client.answer(task_id, **{key: ACCEPTED})
    keys = [key for params in told for key in params.get("inputRequests", ())]
    assert keys == ["first", "second"]
    assert all("io.modelcontextprotocol/subscriptionId" in params["_meta"] for params in told)
    assert _bare(told[-1]) == _bare(await client.get(task_id))


def _bare(task: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in task.items() if key not in {"_meta", "resultType"}}


async def test_a_large_result_is_a_link_to_the_whole(client: Peer) -> None:
    whole = {"text": "x" * 200}
    done = await client.until(await _created(client, "small", whole))
    link = done["result"]["content"][1]
    assert (link["type"], link["uri"]) == ("resource_link", f"mcp-workflows://tasks/{done['taskId']}/result")
    assert "structuredContent" not in done["result"]
    contents = (await client.send("resources/read", {"uri": link["uri"]})).result["contents"]
    assert '"structuredContent":{"text":"xxxx' in contents[0]["text"]
    unknown = await client.send("resources/read", {"uri": "mcp-workflows://tasks/nothing/result"})
    assert unknown.code == -32602


# --- questions before the start


async def test_questions_come_before_the_task(client: Peer) -> None:
    asked = (await client.call("asks", {"n": 1})).result
    assert asked["resultType"] == "input_required"
    assert "taskId" not in asked
    request = asked["inputRequests"]["reason"]
    assert request["method"] == "elicitation/create"
    assert request["params"]["message"] == "Why 1?"
    assert request["params"]["requestedSchema"]["required"] == ["reason"]
    params = {"requestState": asked["requestState"], "inputResponses": {"reason": _accept(reason="so")}}
    created = (await client.call("asks", {"n": 1}, params=params)).result
    assert created["resultType"] == "task"
    assert not {"requestState", "inputRequests"} & set(created)
    done = await client.until(created["taskId"])
    assert done["result"]["structuredContent"] == {"n": 1, "reason": "so"}


def _accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


async def test_repeating_the_last_round_starts_once(client: Peer) -> None:
    asked = (await client.call("asks", {"n": 1})).result
    params = {"requestState": asked["requestState"], "inputResponses": {"reason": _accept(reason="so")}}
    created = [(await client.call("asks", {"n": 1}, params=params)).result["taskId"] for _ in range(3)]
    assert len(set(created)) == 1
    other = {**params, "inputResponses": {"reason": _accept(reason="else")}}
    assert (await client.call("asks", {"n": 1}, params=other)).code == -32602


async def test_a_state_that_is_not_ours_is_refused(client: Peer) -> None:
    asked = (await client.call("asks", {"n": 1})).result
    answers = {"reason": _accept(reason="so")}
    for state in ("nonsense", asked["requestState"][:-2] + "AA", '{"task_id":"x"}', 7):
        params = {"requestState": state, "inputResponses": answers}
        assert (await client.call("asks", {"n": 1}, params=params)).code == -32602
    moved = {"requestState": asked["requestState"], "inputResponses": answers}
    assert (await client.call("asks", {"n": 2}, params=moved)).code == -32602
    assert (await client.call("echo", {"n": 1}, params=moved)).code == -32602


async def test_a_client_that_cannot_elicit_hears_what_is_missing(client: Peer) -> None:
    reply = await client.call("asks", {"n": 1}, capabilities={"extensions": TASKS["extensions"]})
    assert reply.code == -32021
    assert reply.error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}
    assert "reason" in reply.error["message"]


# --- bad input


async def test_a_state_survives_a_restart_and_another_replica(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with site(store=store, tools=_tools()) as served, peer(served.url) as client:
        asked = (await client.call("asks", {"n": 1})).result
    params = {"requestState": asked["requestState"], "inputResponses": {"reason": _accept(reason="so")}}
    async with site(store=store, tools=_tools()) as served, peer(served.url) as client:
        assert (await client.call("asks", {"n": 1}, params=params)).result["resultType"] == "task"


@pytest.mark.parametrize(("arguments", "complaint"), [({}, "'n' is a required"), ({"n": "x"}, 'n: "x" is not of type')])
async def test_wrong_arguments_are_told_to_the_model_and_start_nothing(
    client: Peer, arguments: dict[str, Any], complaint: str
) -> None:
    result = (await client.call("typed", arguments)).result
    assert (result["resultType"], result["isError"]) == ("complete", True)
    assert complaint in result["content"][0]["text"]
