"""A program that speaks MCP of 2025-11-25 over stdio without the SDK: it asks, hangs, floods and ends as a test wants.

`python -m adapters.mcp.tests.scripted_program FOLDER [FLAG...]`; its state and what it is told to do are files there.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Queue
from typing import Any, Final

FOLDER: Final = Path(sys.argv[1])
FLAGS: Final = frozenset(sys.argv[2:])
FORM: Final = {"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]}

_writing = threading.Lock()
_numbers = itertools.count(1)
_waiting: dict[str, Queue[Mapping[str, Any]]] = {}


class RefusedError(Exception):
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, "data": data}


def send(message: Mapping[str, Any]) -> None:
    with _writing:
        if "noise" in FLAGS:
            sys.stdout.write('loading model... 50%\n\n\x1b[31m{broken json\n[1, 2]\n"text"\nnull\n')
        sys.stdout.write(f"{json.dumps({'jsonrpc': '2.0', **message})}\n")
        sys.stdout.flush()


def note(line: str) -> None:
    """Write to the journal, which tests read."""
    with (FOLDER / "journal").open("a") as journal:
        journal.write(f"{line}\n")


def until_there(name: str) -> None:
    while not (FOLDER / name).exists():
        time.sleep(0.02)


def ask(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Send `elicitation/create`, and return the result."""
    number = f"q{next(_numbers)}"
    waiting = _waiting[number] = Queue[Mapping[str, Any]]()
    send({"id": number, "method": "elicitation/create", "params": params})
    return waiting.get()


def result(value: Any) -> Mapping[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}


def start_job(key: str, **_: Any) -> Any:
    """Start a job, once for each key, unless keys are not looked at."""
    jobs = FOLDER / "jobs"
    jobs.mkdir(exist_ok=True)
    found = jobs / (key if "forgetful" not in FLAGS else f"{key}-{time.monotonic_ns()}")
    is_new = not found.exists()
    found.touch()
    if is_new:
        note(f"started {key}")
    if "slow-reply" in FLAGS:
        until_there("reply.go")
    return {"id": found.name}


def get_job(job_id: str, **_: Any) -> Any:
    if "frozen-looks" in FLAGS:
        until_there("describe.go")
    if not (FOLDER / "jobs" / job_id).exists():
        raise RefusedError(-32602, f"404: there is no job {job_id}")
    return {"id": job_id, "state": "done" if (FOLDER / f"{job_id}.done").exists() else "busy", "pid": os.getpid()}


def list_jobs(**_: Any) -> Any:
    return {"jobs": [{"id": path.name, "key": path.name.rpartition("-")[0]} for path in (FOLDER / "jobs").glob("*")]}


def approve(name: str, **_: Any) -> Any:
    """Ask before anything is done; a `late` one when it is told to."""
    if name.startswith("late"):
        until_there(f"{name}.go")
    note(f"asks {name}")
    given = ask({"message": f"Approve {name}?", "requestedSchema": FORM})
    note(f"answer {name} {given.get('action')} {json.dumps(given.get('content'))}")
    return {"name": name, **given}


def page(name: str, **_: Any) -> Any:
    given = ask(
        {"mode": "url", "message": f"Log in for {name}", "url": f"https://example.com/{name}", "elicitationId": name}
    )
    return {"name": name, **given}


def visit(name: str, **_: Any) -> Any:
    """Be done only after a page was visited, which a file says."""
    note(f"called {name}")
    if not (FOLDER / f"{name}.visited").exists():
        where = {
            "mode": "url",
            "message": f"Log in for {name}",
            "url": f"https://example.com/{name}",
            "elicitationId": name,
        }
        raise RefusedError(-32042, "log in first", {"elicitations": [where]})
    note(f"started {name}")
    return {"name": name}


def flood(count: int, **_: Any) -> Any:
    """Ask without end."""
    for _number in range(count):
        threading.Thread(target=ask, args=({"message": "?" * 100, "requestedSchema": FORM},), daemon=True).start()
    until_there("flood.go")
    return {"asked": count}


def never(**_: Any) -> Any:
    note("never")
    until_there("never.go")
    return {}


def endless(**_: Any) -> Any:
    """Write a line without an end, and hear whether anybody still reads."""
    with _writing:
        while True:
            sys.stdout.write("x" * 2**20)


TOOLS: Final[Mapping[str, Callable[..., Any]]] = {
    each.__name__: each for each in (start_job, get_job, list_jobs, approve, page, visit, flood, never, endless)
}


def served(method: str, params: Mapping[str, Any]) -> Any:
    match method:
        case "initialize":
            if "slow-start" in FLAGS:
                until_there("initialize.go")
            version = "1999-01-01" if "neither" in FLAGS else "2025-11-25"
            about = {"name": "scripted", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {"listChanged": True}}, "serverInfo": about}
        case "tools/list":
            note("tools/list")
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
        case "tools/call":
            return result(TOOLS[params["name"]](**params.get("arguments", {})))
        case "ping":
            return {}
        case _:
            raise RefusedError(-32601, "Method not found")


def handle(message: Mapping[str, Any]) -> None:
    try:
        found = served(message["method"], message.get("params") or {})
    except RefusedError as refused:
        send({"id": message["id"], "error": refused.error})
    except (KeyError, TypeError, OSError):
        trace = traceback.format_exc()
        send({"id": message["id"], "result": {"content": [{"type": "text", "text": trace}], "isError": True}})
    else:
        send({"id": message["id"], "result": found})


def noise() -> None:
    """Flood standard error, and the client with notifications, while this lives."""
    if "stderr" in FLAGS:
        sys.stderr.write("x" * 2_000_000)  # one line without an end
        for number in range(20_000):
            sys.stderr.write(f"line {number} of a log that nobody reads\n")
        note("stderr is written")
    while "changes" in FLAGS:
        send({"method": "notifications/tools/list_changed"})
        time.sleep(0.01)


def main() -> None:
    """Serve until standard input ends."""
    note(f"pid {os.getpid()}")
    if "exit" in FLAGS:
        sys.stderr.write(f"fatal: {os.environ.get('TOKEN')} is no good\n")
        sys.exit(3)
    if "slow-boot" in FLAGS:
        until_there("boot.go")
    threading.Thread(target=noise, daemon=True).start()
    for line in sys.stdin:
        message = json.loads(line)
        if "method" in message and "id" in message:
            threading.Thread(target=handle, args=(message,), daemon=True).start()
        elif "id" in message and message["id"] in _waiting:
            _waiting.pop(message["id"]).put(message.get("result") or {"action": "error", **message["error"]})
        else:
            note(f"told {message.get('method')}")
    if "stays" in FLAGS:
        note("stays")
        until_there("end.go")


if __name__ == "__main__":
    main()
