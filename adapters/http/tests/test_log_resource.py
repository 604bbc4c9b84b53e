"""The log of a running build is a resource of its task, for those who may read the task."""

from __future__ import annotations

import hashlib
from pathlib import Path

import anyio
import pytest

from adapters.http.tests.buildbot_engine import Buildbot
from adapters.http.tests.real import adapter_of
from tests.support.served import Reply, peer
from tests.support.sidecars import sidecar

pytestmark = pytest.mark.process

CONFIG = """
server:
  auth: {{tokens: [{{name: dana, subject: dana, sha256: {dana}}}, {{name: mori, subject: mori, sha256: {mori}}}]}}
store: sqlite:///{folder}/tasks.db
engines: {{jobs: {{adapter: http, preset: buildbot, url: "{url}"}}}}
tools:
  forever: {{engine: jobs, workflow: forever, input: {{type: object}}}}
"""


def token(name: str) -> str:
    return f"mcpw_{name * 8}"


def digest(name: str) -> str:
    return hashlib.sha256(token(name).encode()).hexdigest()


async def test_builders_are_discovered_and_a_running_build_shows_its_log_to_its_owner_alone(tmp_path: Path) -> None:
    with Buildbot(tmp_path) as engine:
        async with adapter_of(preset="buildbot", url=engine.url) as adapter:
            found = {each.workflow: each.input for each in await adapter.tooling.discover()}
        assert found.keys() == {"echo", "decline", "forever"}
        properties = {"text": {"type": "string", "description": "text"}}
        assert found["echo"] == {"type": "object", "properties": properties}
        file = tmp_path / "workflows.yaml"
        written = CONFIG.format(folder=tmp_path, url=engine.url, dana=digest("dana"), mori=digest("mori"))
        file.write_text(written)
        with sidecar(file) as served:
            async with (
                peer(served.url, token=token("dana")) as owner,
                peer(served.url, token=token("mori")) as other,
            ):
                task_id = (await owner.call("forever")).result["taskId"]
                uri = (await owner.get(task_id))["_meta"]["mcp-workflows/log"]
                log = ""
                with anyio.fail_after(60):
                    while "it waits" not in log:
                        reply = await owner.send("resources/read", {"uri": uri})
                        log = "" if "error" in reply.body else reply.result["contents"][0]["text"]
                        await anyio.sleep(0.1)
                assert "password=***" in log
                assert "hunter22" not in log
                refused = await other.send("resources/read", {"uri": uri})
                unknown = await other.send("resources/read", {"uri": uri.replace(task_id, "nobodys")})
                assert message(refused) == message(unknown) != ""
                shown = (await owner.call("task_status", {"taskId": task_id}, capabilities={})).result
                links = [block for block in shown["content"] if block["type"] == "resource_link"]
                assert [(link["uri"], link["mimeType"]) for link in links] == [(uri, "text/plain")]
                await owner.send("tasks/cancel", {"taskId": task_id})


def message(reply: Reply) -> str:
    return str(reply.error["message"])
