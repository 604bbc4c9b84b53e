"""A workflows.yaml of one engine, clients of the sidecar that it makes, and what those do most: for every adapter."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx2
import pytest

from mcp_workflows.sidecar.app import build, http_app
from mcp_workflows.sidecar.config.load import load_config
from tests.support.commands import COMMAND, run
from tests.support.served import Peer, peer, serving
from tests.support.sidecars import dying_sidecar, sidecar

KEY: Final = {"mcp-workflows/idempotencyKey": "order-1-" * 4}
YES: Final = {"action": "accept", "content": {"answer": "yes"}}


def written(
    folder: Path,
    engine: str,
    settings: Mapping[str, Any],
    tools: Mapping[str, Mapping[str, Any]],
    server: Mapping[str, Any] | None = None,
) -> Path:
    """The workflows.yaml of these tools of one engine of this name, with a store beside it."""
    config = {
        "server": {"name": "tests", **(server or {})},
        "store": "sqlite:///tasks.db",
        "engines": {engine: settings},
        "tools": {name: {"engine": engine, **tool} for name, tool in tools.items()},
    }
    path = folder / "workflows.yaml"
    path.write_text(json.dumps(config, indent=2))  # JSON is YAML
    return path


@asynccontextmanager
async def client_of(config: Path, *, port: int = 0) -> AsyncGenerator[Peer]:
    """A client of a sidecar in this process, at this port or a free one."""
    loaded = load_config(config, {})
    async with serving(http_app(build(loaded), loaded, "127.0.0.1", port), port=port) as url, peer(url) as client:
        yield client


async def called(client: Peer, **more: Any) -> str:
    """The id of a new task of the tool `it`."""
    return str((await client.call("it", {"order_id": "A1"}, **more)).result["taskId"])


async def asked(client: Peer, task_id: str) -> tuple[str, Mapping[str, Any]]:
    """The one question that is open."""
    [(key, question)] = (await client.until(task_id, "input_required"))["inputRequests"].items()
    return key, question


async def operating(folder: Path, *words: str) -> str:
    """What `mcp-workflows tasks WORDS` prints, a process beside the sidecar."""
    command = [COMMAND, "tasks", *words, "-c", str(folder / "workflows.yaml")]
    done = await anyio.to_thread.run_sync(partial(run, command))
    assert done.returncode == 0, done.stderr
    return done.stdout


async def killed_while_creating(config: Path, step: str, **more: Any) -> None:
    """A sidecar was called for `it`, and dies at this step of the creation."""
    with dying_sidecar(config, step) as dying:
        async with peer(dying.url) as client:
            with pytest.raises(httpx2.TransportError):
                await called(client, **more)
        assert dying.process.wait(60) == -9


async def one_task_that_completes(config: Path) -> None:
    """Whoever calls `it` again with the key, at a new sidecar, has the same task, and that completes."""
    with sidecar(config) as fresh:
        async with peer(fresh.url) as client:
            ids = {await called(client, meta=KEY) for _ in range(3)}
            assert len(ids) == 1
            assert (await client.until(ids.pop()))["status"] == "completed"
