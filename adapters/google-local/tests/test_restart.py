"""The local engine with --db after kill -9: executions go on where they were."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.cloud.workflows.executions_v1 import Execution

from tests.support.google_engine import GoogleEngine
from tests.support.google_local_engine import local_engine
from tests.support.google_local_flows import ASK, HELLO, RESTART
from tests.support.google_local_listener import Listener, listening

State = Execution.State
TOKEN = {"Authorization": "Bearer anything"}


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as listener:
        yield listener


def paths(listener: Listener) -> list[str]:
    return [request["path"] for request in listener.requests]


def test_nothing_that_was_done_is_done_again(own_google_engine: GoogleEngine, listener: Listener) -> None:
    engine = own_google_engine
    workflow = engine.deploy("restart", RESTART, labels={"team": "shop"})
    done = engine.ended(engine.execute(engine.deploy("hello", HELLO), [1]))
    keys = httpx2.get(f"{engine.url}/oauth2/v3/certs", trust_env=False).json()
    began = time.time()
    asleep = engine.execute(workflow, {"url": listener.url, "path": "/again", "seconds": 2.5})
    in_flight = engine.execute(workflow, {"url": listener.url, "path": "/slow", "seconds": 0})
    listener.wait(3)  # both said /once, and one is at /slow
    engine.at(asleep, "nap")
    engine.kill()
    listener.go.set()
    engine.start()
    assert engine.seen(done.name) == done
    assert httpx2.get(f"{engine.url}/oauth2/v3/certs", trust_env=False).json() == keys
    assert dict(engine.seen(asleep).labels) == {"team": "shop"}
    results = [answered(engine, listener, name, path) for name, path in ((in_flight, "/slow"), (asleep, "/again"))]
    assert time.time() - began < 2.5 + 10  # it did not sleep anew, which a slow machine could hide
    assert sorted(paths(listener)) == ["/again", "/once", "/once", "/slow", "/slow"]
    for result, path in zip(results, ("/slow", "/again"), strict=True):
        said = [json.loads(request["body"]) for request in listener.requests if request["path"] == path]
        assert {one["id"] for one in said} == {result["id"]}
        assert len({one["url"] for one in said}) == 1
        assert result["began"] >= began - 1
        assert result["body"] == {"ok": path}
    assert engine.end(signal.SIGTERM) == 0


def answered(engine: GoogleEngine, listener: Listener, name: str, path: str) -> Any:
    """The result of an execution, after its callback was answered at the URL that it has told."""
    engine.at(name, "wait")
    url = next(json.loads(request["body"])["url"] for request in listener.requests if request["path"] == path)
    assert httpx2.post(url, json={"ok": path}, headers=TOKEN, trust_env=False).status_code == 200
    return json.loads(engine.ended(name).result)


async def test_the_queue_and_its_order_are_kept(tmp_path: Path) -> None:
    database = tmp_path / "google.db"
    async with local_engine(database=database, most=1) as engine:
        workflow = await engine.deploy("ask", ASK)
        names = [await engine.execute(workflow, {"method": "POST", "timeout": 60}) for _ in range(3)]
    async with local_engine(database=database, most=1) as engine:
        assert await engine.states(*names) == [State.ACTIVE, State.QUEUED, State.QUEUED]
        await engine.executions.cancel_execution(name=names[0], timeout=60)
        assert await engine.states(*names) == [State.CANCELLED, State.ACTIVE, State.QUEUED]
