"""The adapter in a whole sidecar: what callers may do, whose token goes where, and a sidecar before another one."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from adapters.mcp.tests.programs import SPLIT
from adapters.mcp.tests.scripted_server import MODERN, ScriptedServer, structured
from mcp_workflows.access.authn.verifier import make_token, sha256_of
from mcp_workflows.sidecar.app import build, http_app
from mcp_workflows.sidecar.config.load import load_config
from tests.support.configured import written
from tests.support.served import Peer, peer, serving

pytestmark = pytest.mark.anyio

CALLERS: Final = {"alice": make_token(), "bob": make_token()}
AUTH: Final[Mapping[str, Any]] = {
    "auth": {"tokens": [{"name": name, "sha256": sha256_of(token)} for name, token in CALLERS.items()]},
}
YES: Final[Mapping[str, Any]] = {"action": "accept", "content": {"answer": "yes"}}
INPUT: Final[Mapping[str, Any]] = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOL: Final[Mapping[str, Any]] = {
    "workflow": "echo",
    "input": INPUT,
    "args": [{"text": "{{text}}"}],
    "tasks": "required",
}


@asynccontextmanager
async def sidecar_of(
    folder: Path,
    settings: Mapping[str, Any],
    tools: Mapping[str, Mapping[str, Any]],
    server: Mapping[str, Any] | None = None,
) -> AsyncGenerator[str]:
    """A sidecar in this process, and its URL."""
    await anyio.Path(folder).mkdir(exist_ok=True)
    loaded = load_config(written(folder, "jobs", {"adapter": "mcp", **settings}, tools, server), {})
    async with serving(http_app(build(loaded), loaded, "127.0.0.1", 0)) as url:
        yield url


def jobs(revision: str) -> ScriptedServer:
    """Return a server whose jobs are its caller's, and told apart by the id alone."""
    server = ScriptedServer(revision=revision)
    count = iter(range(1, 1000))
    server.replies["start_job"] = lambda _: structured({"id": f"job-{next(count)}"})
    server.replies["get_job"] = lambda params: structured(
        {"id": params["arguments"]["job_id"], "state": "busy", "questions": ["q1"]}
    )
    server.replies["answer_job"] = structured({})
    server.replies["stop_job"] = structured({})
    return server


SPLIT_TOOLS: Final[Mapping[str, Any]] = {
    **SPLIT,
    "starts": "keyed",
    "start": {**SPLIT["start"], "args": {"key": "{{key}}", "arguments": "{{arguments}}"}},
    "describe": {**SPLIT["describe"], "id": "{{reply.id}}"},
    "asks": {
        "question": {
            "each": "{{reply.questions}}",
            "key": "{{item}}",
            "message": "What?",
            "form": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
            "send": {"tool": "answer_job", "args": {"job_id": "{{handle}}", "answer": "{{answer.answer}}"}},
        }
    },
    "cancel": {"tool": "stop_job", "args": {"job_id": "{{handle}}"}},
}


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_no_token_of_a_caller_goes_to_a_server(tmp_path: Path, revision: str) -> None:
    server = jobs(revision)
    async with server.served() as upstream:
        settings = {**SPLIT_TOOLS, "url": upstream, "auth": {"bearer": "of-the-sidecar"}}
        async with (
            sidecar_of(tmp_path / "a", settings, {"it": TOOL}, AUTH) as url,
            peer(url, token=CALLERS["alice"]) as alice,
        ):
            task_id = (await alice.call("it", {"text": "hi"})).result["taskId"]
            seen = await alice.until(task_id, "input_required")
            await alice.answer(task_id, **dict.fromkeys(seen["inputRequests"], YES))
            await alice.send("tasks/cancel", {"taskId": task_id})
            async with peer(url, token=CALLERS["bob"]) as bob:
                assert (await bob.send("tasks/get", {"taskId": task_id})).code == -32602
    names = {each.params.get("name") for each in server.asked}
    assert {"start_job", "get_job", "answer_job", "stop_job"} <= names
    for each in server.asked:
        everything = json.dumps([each.params, dict(each.headers)])
        assert not any(token in everything for token in CALLERS.values())
        assert each.headers["authorization"] == "Bearer of-the-sidecar"


async def test_a_call_of_a_person_is_not_the_start_of_another_though_the_server_says_so(tmp_path: Path) -> None:
    """A server that answers two people with one id: each has a task of their own, and sees no more than that."""
    server = jobs(MODERN)
    server.replies["start_job"] = structured({"id": "job-1"})
    async with (
        server.served() as upstream,
        sidecar_of(tmp_path / "a", {**SPLIT_TOOLS, "url": upstream}, {"it": TOOL}, AUTH) as url,
    ):
        ids: list[str] = []
        for token in CALLERS.values():
            async with peer(url, token=token) as client:
                ids.append((await client.call("it", {"text": "hi"})).result["taskId"])
        assert len(set(ids)) == 2
        async with peer(url, token=CALLERS["bob"]) as bob:
            assert (await bob.send("tasks/get", {"taskId": ids[0]})).code == -32602
            assert (await bob.send("tasks/cancel", {"taskId": ids[0]})).code == -32602
            assert (await bob.answer(ids[0], q=YES)).code == -32602
    keys = [each.params["arguments"]["key"] for each in server.calls("start_job")]
    assert len(set(keys)) == 2
    assert server.calls("stop_job") == []


# --- a sidecar before another one


@asynccontextmanager
async def two_sidecars(
    folder: Path,
    server: ScriptedServer,
    outer: Mapping[str, Any] | None = None,
    describe: Mapping[str, Any] | None = None,
) -> AsyncGenerator[Peer]:
    """A client of a sidecar whose upstream is another sidecar, which adds this to its poll."""
    how = {**SPLIT_TOOLS, "describe": {**SPLIT_TOOLS["describe"], **(describe or {})}}
    async with (
        server.served() as upstream,
        sidecar_of(folder / "inner", {**how, "url": upstream}, {"inner": TOOL}) as inner,
        sidecar_of(folder / "outer", {"url": inner, **(outer or {})}, {"outer": {**TOOL, "workflow": "inner"}}) as url,
        peer(url) as client,
    ):
        yield client


async def test_tasks_of_another_sidecar_are_passed_through_with_their_questions(tmp_path: Path) -> None:
    server = jobs(MODERN)
    async with two_sidecars(tmp_path, server) as client:
        task_id = (await client.call("outer", {"text": "hi"})).result["taskId"]
        [(key, question)] = (await client.until(task_id, "input_required"))["inputRequests"].items()
        assert question["params"]["message"] == "What?"

        def take(_: Mapping[str, Any]) -> Mapping[str, Any]:
            server.replies["get_job"] = structured({"id": "job-1", "state": "done"})
            return structured({})

        server.replies["answer_job"] = take
        await client.answer(task_id, **{key: YES})
        ended = await client.until(task_id)
        assert (ended["status"], ended["result"]["isError"]) == ("completed", False)
        assert server.calls("answer_job")[-1].params["arguments"]["answer"] == "yes"


async def test_one_key_starts_one_task_in_both_sidecars(tmp_path: Path) -> None:
    server = jobs(MODERN)
    async with two_sidecars(tmp_path, server, {"starts": "keyed"}) as client:
        meta = {"mcp-workflows/idempotencyKey": "order-1-" * 4}
        ids = {(await client.call("outer", {"text": "hi"}, meta=meta)).result["taskId"] for _ in range(3)}
        assert len(ids) == 1
        await client.until(ids.pop(), "input_required")
    assert len(server.calls("start_job")) == 1
