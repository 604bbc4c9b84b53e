"""Arguments and answers as hosts send them, and results that do not match their schema; in every revision."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp.server.lowlevel import Server

from mcp_workflows import TaskSupport, Tool
from mcp_workflows.tasks.results import MISMATCH
from mcp_workflows.tools.questions import Question
from mcp_workflows.tools.tool import UNCHECKED
from tests.support.in_memory import MODERN, Line, entered, line

pytestmark = pytest.mark.anyio

VERSIONS = [MODERN, "2025-11-25", "2025-06-18"]
ELICITS: Mapping[str, Any] = {"elicitation": {"form": {}}}
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "note": {"type": "string"},
        "gift": {"type": ["boolean", "null"]},
    },
    "required": ["items"],
    "additionalProperties": False,
}
SIZES = {"type": "object", "properties": {"sizes": {"type": "array", "items": {"type": "string", "enum": ["s", "m"]}}}}
NUMBER: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
SENT = {"items": '[{"sku": "a"}]', "note": None, "gift": None, "toolCallId": "call_1", "sessionId": "s"}
MEANT = {"items": [{"sku": "a"}], "gift": None}


def echo(name: str, **more: Any) -> Tool:
    return Tool(name=name, engine="memory", workflow="echo", **more)


TOOLS = [
    echo("order", input=ORDER),
    echo("sized", questions={"sizes": Question.model_validate({"message": "Which?", "schema": SIZES})}),
    Tool(name="ask", engine="memory", workflow="ask", wait=timedelta(seconds=20)),
    echo("count", output=NUMBER),
    echo("count_plainly", output=NUMBER, tasks=TaskSupport.FORBIDDEN),
    echo("count_at_once", output=NUMBER, adaptive=timedelta(seconds=20)),
    echo("map", output={"type": "object", "additionalProperties": {"type": "integer"}}, tasks=TaskSupport.FORBIDDEN),
]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server[Any]]:
    async with entered(TOOLS, store=f"sqlite:///{tmp_path}/tasks.db", engine=str(tmp_path)) as (found, _):
        yield found


@pytest.fixture(params=VERSIONS)
async def client(request: pytest.FixtureRequest, server: Server[Any]) -> AsyncGenerator[Line]:
    async with line(server, request.param, ELICITS) as found:
        yield found


# --- arguments


async def test_a_workflow_gets_arguments_in_the_form_of_its_schema(client: Line) -> None:
    result = await client.tool("order", SENT)
    assert (result["isError"], result["structuredContent"]) == (False, MEANT)


@pytest.mark.parametrize("version", VERSIONS)
async def test_task_tools_take_arguments_in_the_same_forms(server: Server[Any], version: str) -> None:
    async with line(server, version) as client:
        await continue_a_task(client)


async def continue_a_task(client: Line) -> None:
    asked = (await client.tool("ask"))["structuredContent"]
    assert asked["status"] == "input_required"
    task_id, host = asked["taskId"], {"toolCallId": "call_2", "chatInput": "hi"}
    waited = await client.tool("task_wait", {"taskId": task_id, "seconds": None, **host})
    assert waited["structuredContent"]["status"] == "input_required"
    assert not (await client.tool("task_wait", {"taskId": task_id, "seconds": "0"}))["isError"]
    assert not (await client.tool("my_tasks", {"cursor": None, **host})).get("isError")
    wrong = await client.tool("task_answer", {"taskId": task_id, "content": "yes"})
    assert wrong["isError"]
    content = json.dumps({"answer": "yes"})
    answered = await client.tool("task_answer", {"taskId": task_id, "key": None, "action": None, "content": content})
    assert not answered["isError"], answered


async def test_an_answer_to_a_question_is_taken_in_the_same_forms(server: Server[Any]) -> None:
    async with line(server, "2025-11-25", ELICITS) as client:
        client.answer = {"action": "accept", "content": {"sizes": '["s", "m"]'}}
        assert (await client.tool("sized"))["structuredContent"] == {"sizes": ["s", "m"]}
    for content in ({"sizes": '["m"]'}, json.dumps({"sizes": ["m"]}), {"sizes": ["m"]}):
        async with line(server, MODERN, ELICITS) as client:
            state = (await client.tool("sized"))["requestState"]
            responses = {"sizes": {"action": "accept", "content": content}}
            answered = await client.call("sized", inputResponses=responses, requestState=state)
            assert answered["result"]["structuredContent"] == {"sizes": ["m"]}


# --- results


@pytest.mark.parametrize("name", ["count", "count_plainly", "count_at_once", "map"])
async def test_a_result_that_does_not_match_its_schema_is_delivered_and_marked(client: Line, name: str) -> None:
    result = await client.tool(name, {"n": "x"})
    assert result["isError"] is False
    assert "has completed" in result["content"][0]["text"]
    assert result["content"][-1]["text"] == '{"n":"x"}'
    assert result["_meta"][MISMATCH] == 'n: it is not of type "integer"'
    assert json.loads(result["structuredContent"][UNCHECKED]) == {"n": "x"}
