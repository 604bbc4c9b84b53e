"""Two MCP servers on stdio in front of the same stub: ours, and `awslabs.stepfunctions-tool-mcp-server`.

Both get the same plain `tools/call`s of 2025-11-25, from the same client; each runs on core 0.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from scripts.bench_rounds import on_core_0
from scripts.bench_stepfunctions_account import BRIEF, FAILING, REGION
from scripts.bench_stepfunctions_control import CREDENTIALS, Control, Report
from scripts.bench_stepfunctions_sidecar import sidecar
from scripts.bench_wire import BadReplyError
from tests.support.environments import AWSLABS, python_of

CALLS: Final = 15  # at once
SECONDS: Final = 3.0  # that an execution takes
LATENCY: Final = 0.02  # seconds to AWS and back
PATIENCE: Final = 60.0  # seconds
PING_EVERY: Final = 0.02  # seconds
RETRY_AFTER: Final = 1.0  # seconds until a client thinks that its call is lost
_KEY = "mcp-workflows/idempotencyKey"
_VERSION = "2025-11-25"


@dataclass(slots=True)
class _Sent:
    """A request, and when its answer came."""

    at: float
    answer: Mapping[str, Any] | None = None
    answered: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)


class Peer:
    """A server on stdio and its client; any number of requests at once. Use it with `with`."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self._ids = count(1)
        self._sent: dict[int, _Sent] = {}
        self._writing = threading.Lock()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env=dict(env)
            )
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def __enter__(self) -> Self:
        client = {"name": "bench", "version": "0"}
        self.ask("initialize", {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": client})
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def send(self, method: str, params: Mapping[str, Any]) -> _Sent:
        """A request; its answer comes later."""
        number = next(self._ids)
        self._sent[number] = sent = _Sent(time.monotonic())
        self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return sent

    def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """A request and its result."""
        return result(self.send(method, params))

    def _write(self, message: Mapping[str, Any]) -> None:
        pipe: IO[bytes] | None = self._process.stdin
        if pipe is None:
            raise BadReplyError("the server cannot be written to")
        with self._writing:
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()

    def _read(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            now, message = time.monotonic(), json.loads(line)
            sent = self._sent.get(message.get("id")) if "method" not in message else None
            if sent is not None:
                sent.answer, sent.answered = message, now
                sent.done.set()


def result(sent: _Sent) -> Mapping[str, Any]:
    """What came back, once it is there."""
    if not sent.done.wait(PATIENCE) or sent.answer is None:
        raise BadReplyError(f"no answer within {PATIENCE:g} s")
    if "result" not in sent.answer:
        raise BadReplyError(str(sent.answer.get("error")))
    found: Mapping[str, Any] = sent.answer["result"]
    return found


Arguments = Callable[[float], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One of the two: how its tools are called."""

    name: str
    peer: Peer
    arguments: Arguments

    def call(self, tool: str, key: str | None = None) -> _Sent:
        """A `tools/call`; with a key if it may be sent again."""
        meta: Mapping[str, Any] = {"_meta": {_KEY: key.ljust(32, "-")}} if key else {}
        return self.peer.send("tools/call", {"name": tool, "arguments": self.arguments(SECONDS), **meta})


@contextmanager
def ours(folder: Path, control: Control) -> Generator[Kind]:
    """The sidecar, as shipped."""
    argv = sidecar(folder, "stdio", endpoint=control.url)
    with Peer(argv, folder / "ours.log", _environment(control)) as peer:
        yield Kind(name="ours", peer=peer, arguments=lambda seconds: {"seconds": seconds})


@contextmanager
def theirs(folder: Path, control: Control) -> Generator[Kind]:
    """AWS Labs' server, in an environment of its own."""
    program = str(python_of("awslabs", AWSLABS).parent / "awslabs.stepfunctions-tool-mcp-server")
    named = {"STATE_MACHINE_LIST": f"{BRIEF},{FAILING}", "AWS_REGION": REGION}
    with Peer(on_core_0(program), folder / "theirs.log", {**_environment(control), **named}) as peer:
        yield Kind(name="theirs", peer=peer, arguments=lambda seconds: {"parameters": {"seconds": seconds}})


def _environment(control: Control) -> Mapping[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "AWS_ENDPOINT_URL": control.url, **CREDENTIALS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """15 calls at once."""

    pings: Sequence[float]  # seconds until each was answered
    report: Report
    seconds: float


def together(kind: Kind, control: Control) -> Round:
    """15 calls at once, and pings all the while: who blocks its event loop answers them late."""
    control.tell(forget=True)
    began = time.monotonic()
    calls = [kind.call(BRIEF) for _ in range(CALLS)]
    pings: list[_Sent] = []
    while not all(call.done.is_set() for call in calls):
        pings.append(kind.peer.send("ping", {}))
        time.sleep(PING_EVERY)
        if time.monotonic() > began + PATIENCE:
            raise BadReplyError(f"{kind.name}: calls of {SECONDS:g} s are not answered within {PATIENCE:g} s")
    seconds = time.monotonic() - began
    for each in (*calls, *pings):
        result(each)
    return Round(pings=[ping.answered - ping.at for ping in pings], report=control.report(), seconds=seconds)


def started_twice_by_clients(kind: Kind, control: Control) -> int:
    """Executions beyond one per call, if each call is sent again because no answer has come for a second."""
    control.tell(forget=True)
    first = [kind.call(BRIEF, f"again-{number}") for number in range(CALLS)]
    time.sleep(RETRY_AFTER)
    again = [kind.call(BRIEF, f"again-{number}") for number in range(CALLS)]
    for call in (*first, *again):
        call.done.wait(PATIENCE)
    return control.report().started - CALLS


def started_twice_by_servers(kind: Kind, control: Control) -> int:
    """Executions beyond one per call, if AWS's reply to the first StartExecution of each gets lost."""
    control.tell(forget=True, lose=CALLS)
    for call in [kind.call(BRIEF, f"lost-{number}") for number in range(CALLS)]:
        call.done.wait(PATIENCE)
    control.tell(lose=0)
    return control.report().started - CALLS


def failures_told_as_successes(kind: Kind) -> int:
    """Of 15 executions that fail, those whose result does not say that it is an error."""
    found = [result(call) for call in [kind.call(FAILING) for _ in range(CALLS)]]
    return sum(not each.get("isError", False) for each in found)
