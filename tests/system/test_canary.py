"""Secrets that are marked, through a whole life of tasks in a sidecar as the user runs it: they turn up nowhere else.

Everything is on that could tell: the log at debug, an audit file, metrics; and the store is encrypted.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import anyio
import pytest
from cryptography.fernet import Fernet

from mcp_workflows.access.authn.verifier import sha256_of
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND, run
from tests.support.here import elder
from tests.support.served import Peer, Reply, peer
from tests.support.sidecars import sidecar
from tests.support.tokens import by_hand

pytestmark = pytest.mark.anyio

BIRD: Final = "canary"  # in all of them
TOKEN: Final = f"{BIRD}-token-31f6d0b2a87c4e55"
BOBS: Final = "bobs-own-token-8c1f6a0d2e"
WRONG: Final = f"{BIRD}-wrong-token-90aa"
ARGUMENT: Final = f"{BIRD}-argument-5e1d"  # echoed: a result as well
ANSWER: Final = f"{BIRD}-answer-77b3"
KEY: Final = f"{BIRD}-idempotency-key-0000000000000000"
SECRET: Final = f"{BIRD}-introspection-secret"
STORE_KEY: Final = Fernet.generate_key().decode()
YES: Final = {"action": "accept", "content": {"answer": ANSWER}}


def config_of(folder: Path) -> Path:
    """With tasks that succeed, ask and fail, an engine that is down, and limits that are soon reached."""
    people = [{"name": "alice", "sha256": sha256_of(TOKEN)}, {"name": "bob", "sha256": sha256_of(BOBS)}]
    asked = {
        "issuer": "https://login.example",
        "endpoint": f"http://127.0.0.1:{free_port()}/introspect",
        "client_id": "workflows",
        "client_secret": SECRET,
        "prefix": "opaque-",
    }
    text = {"type": "object", "properties": {"note": {"type": "string", "maxLength": 100}}, "required": ["note"]}
    tools: dict[str, Any] = {
        name: {"engine": "here", "workflow": name, "input": text} for name in ("echo", "ask", "fail", "protocol_error")
    }
    tools |= {
        "down": {"engine": "down", "workflow": "echo"},
        "unknown": {"engine": "here", "workflow": "no-such"},
        "large": {"engine": "here", "workflow": "echo", "max_result": 50},
        "wait": {"engine": "here", "workflow": "ask", "wait": "200ms"},
        "forever": {"engine": "here", "workflow": "forever", "limits": {"tasks_per_principal": 1}},
    }
    whole = {
        "server": {"auth": {"tokens": people, "introspection": [asked]}},
        "store": {"url": "sqlite:///tasks.db", "encryption": {"keys": [STORE_KEY]}},
        "audit": {"to": "audit.jsonl"},
        "limits": {"max_arguments": 5000},
        "engines": {"here": {"adapter": "memory"}, "down": {"adapter": "memory", "name": "down", "unreachable": True}},
        "tools": tools,
    }
    path = folder / "workflows.yaml"
    path.write_text(json.dumps(whole))
    path.chmod(0o600)
    return path


async def life(alice: Peer) -> list[str]:
    """Whatever can become of a call; the ids of the tasks."""
    note, key = {"note": ARGUMENT}, {"mcp-workflows/idempotencyKey": KEY}
    made = [await alice.call("echo", note, meta=key) for _ in range(2)]
    made += [await alice.call(name, note) for name in ("ask", "ask", "fail", "protocol_error", "large", "forever")]
    ids = list(dict.fromkeys(str(reply.result["taskId"]) for reply in made))
    echo, ask, other, *ended = ids
    await alice.until(ask, "input_required")
    await alice.answer(ask, question={"action": "accept", "content": {"answer": 7, "note": ANSWER}})
    await alice.answer(ask, question=YES)
    for task in (echo, ask, *ended[:3]):
        await alice.until(task)
    await alice.send("resources/read", {"uri": f"mcp-workflows://tasks/{ended[2]}/result"})
    await alice.send("tasks/cancel", {"taskId": other})
    return ids


async def refusals(alice: Peer) -> None:
    """What is refused to her, of all that is marked."""
    await alice.call("echo", {"note": [ARGUMENT]})
    await alice.call("echo", {"note": ARGUMENT * 10})
    await alice.call("echo", {"note": ARGUMENT * 1000})
    await alice.call("echo", {"note": "other"}, meta={"mcp-workflows/idempotencyKey": KEY})
    await alice.call("echo", {"note": ARGUMENT}, meta={"mcp-workflows/idempotencyKey": KEY * 100})
    for tool in ("down", "unknown", "forever", ARGUMENT):
        await alice.call(tool, {"note": ARGUMENT})
    await alice.send("tasks/get", {"taskId": ARGUMENT})
    await alice.send("resources/read", {"uri": f"mcp-workflows://tasks/{ARGUMENT}/result"})
    body = f'{{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {{"name": "echo", "x": "{ARGUMENT}"'
    await alice.http.post(alice.url, content=body, headers={"authorization": f"Bearer {TOKEN}"})


async def task_tools(url: str) -> None:
    """The same without tasks, and on the wire of 2025-11-25."""
    async with peer(url, token=TOKEN, capabilities={}) as client:
        handed = (await client.call("wait", {"note": ARGUMENT})).result["structuredContent"]["taskId"]
        await client.call("task_answer", {"taskId": handed, "content": {"answer": ANSWER}})
        await client.call("task_wait", {"taskId": handed, "seconds": 5})
        await client.call("my_tasks")
    async with elder(url, authorization=f"Bearer {TOKEN}") as old:
        params = {"name": "ask", "arguments": {"note": ARGUMENT}, "task": {}}
        made = (await old.send("tools/call", params))["result"]["task"]["taskId"]
        await old.send("tasks/get", {"taskId": made})
        await old.send("tasks/cancel", {"taskId": made})
        await old.send("tasks/list")
        echoed = (await old.send("tools/call", {**params, "name": "echo"}))["result"]["task"]["taskId"]
        assert ARGUMENT in json.dumps(await old.send("tasks/result", {"taskId": echoed}))


async def strangers(url: str, ids: list[str]) -> Iterator[str]:
    """What bob, and nobody, hears about alice's tasks."""
    said: list[str] = []
    forged = by_hand({"alg": "RS256", "kid": WRONG}, {"iss": "https://nobody.example", "sub": WRONG, "aud": WRONG})
    async with peer(url, token=BOBS) as bob:
        replies: list[Reply] = []
        for task in ids:
            replies += [await bob.send(method, {"taskId": task}) for method in ("tasks/get", "tasks/cancel")]
            replies += [await bob.answer(task, question={"action": "decline"})]
            replies += [await bob.send("resources/read", {"uri": f"mcp-workflows://tasks/{task}/result"})]
        said += [json.dumps([reply.body for reply in replies])]
    for token in (WRONG, f"opaque-{WRONG}", forged, f"{TOKEN}x"):
        async with peer(url, token=token) as nobody:
            said.append(json.dumps((await nobody.send("tasks/get", {"taskId": ids[0]})).body))
    return iter(said)


def everything(folder: Path, ops: int) -> Mapping[str, bytes]:
    """Where nothing of it may be."""
    with urlopen(f"http://127.0.0.1:{ops}/metrics", timeout=60) as response:
        metrics = response.read()
    return {**files_in(folder), "metrics": metrics}


def files_in(folder: Path) -> Mapping[str, bytes]:
    """All files but the configuration."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "workflows.yaml"}


def leaks(found: Mapping[str, bytes]) -> list[str]:
    """Each line with a canary in it, and where."""
    return [
        f"{name}: {line[:300].decode('utf-8', 'replace')}"
        for name, content in found.items()
        for line in content.splitlines()
        if BIRD.encode() in line or STORE_KEY.encode() in line
    ]


async def test_no_secret_turns_up_where_it_does_not_belong(tmp_path: Path) -> None:
    config, ops = config_of(tmp_path), free_port()
    with sidecar(config, "--log-level", "debug", "--ops", f"127.0.0.1:{ops}") as process:
        async with peer(process.url, token=TOKEN) as alice:
            ids = await life(alice)
            await refusals(alice)
        await task_tools(process.url)
        heard = await strangers(process.url, ids)
        found = await anyio.to_thread.run_sync(everything, tmp_path, ops)
        process.process.send_signal(signal.SIGINT)
        process.process.wait(60)
    found = {**found, "what others hear": "\n".join(heard).encode()}
    assert {"workflows.log", "audit.jsonl", "tasks.db", "tasks.db-wal", "metrics"} <= found.keys()
    events = {json.loads(line)["event"] for line in found["audit.jsonl"].splitlines()}
    assert {"create", "status", "answer", "retrieve", "cancel", "deny", "limit"} <= events, events
    assert b"WARNING mcp_workflows" in found["workflows.log"], "the log is on"
    assert leaks(found) == []
    told = found["workflows.log"] + found["audit.jsonl"] + found["metrics"]
    assert [task for task in ids if task.encode() in told] == [], "an id may be all that protects a task"
    assert leaks(await anyio.to_thread.run_sync(files_in, tmp_path)) == []


def test_a_configuration_that_is_wrong_does_not_show_its_secrets(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    whole = json.loads(config.read_text())
    whole["server"]["auth"]["introspection"][0]["client_secret"] = [SECRET]
    whole["server"]["auth"]["introspection"][0]["endpoint"] = f"http://user:{SECRET}@far.example/x"
    whole["store"]["encryption"]["keys"] = [f"{BIRD}-no-key"]
    config.write_text(json.dumps(whole))
    ran = run([COMMAND, "check", str(config)])
    assert ran.returncode != 0
    assert leaks({"check": (ran.stdout + ran.stderr).encode()}) == []


def test_a_canary_that_got_out_would_be_seen() -> None:
    found = {"a log": f"first\nsecond: {ARGUMENT}\nthird".encode(), "a store": STORE_KEY.encode(), "metrics": b"1"}
    assert leaks(found) == [f"a log: second: {ARGUMENT}", f"a store: {STORE_KEY}"]
