"""Goals (o) and (q) of `make bench ENGINE=google`: what workflows ask, and how fast they are let in."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from scripts.bench_goals import Line, beside, exactly, milliseconds, seconds
from scripts.bench_google_place import ENGINE, Issuer, Sidecar, issuer, sidecar, stub
from scripts.bench_google_stub import WORKFLOW
from scripts.bench_place import Place
from scripts.bench_rounds import cpu_seconds, spread
from scripts.bench_wire import BadReplyError, Wire
from tests.support.child_processes import Command
from tests.support.local_engines import GoogleLocal

ASKING: Final = 100  # executions that ask, one after the other
EVERY: Final = 0.1  # seconds between two of them
WAITING: Final = 20  # executions that come to a gate
COMES: Final = (3.0, 20.0)  # seconds after its start in which one does
PATIENCE: Final = 30.0  # seconds
CALLERS: Final = 16  # workflows that call at once
CALLING: Final = 5.0  # seconds
_ASKS: Final = "input_required"
ASKERS: Final = 1000  # executions; each may have 100 open questions
_FORM: Final[Mapping[str, Any]] = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
_PARKED: Final = {"order": {"workflow": WORKFLOW.rpartition("/")[2]}}
_GATED: Final = """
main:
  params: [args]
  steps:
    - packing: {call: sys.sleep, args: {seconds: "${args.seconds}"}}
    - opening: {call: events.create_callback_endpoint, args: {http_callback_method: POST}, result: callback}
    - waiting: {call: events.await_callback, args: {callback: "${callback}", timeout: 600}}
"""
_GATE: Final[Mapping[str, Any]] = {
    "when": {"step": "waiting"},
    "ask": {"message": "Ship it?", "schema": _FORM},
    "send": {"body": {"ok": "{{answer.ok}}"}},
    "decline": {"body": {"ok": False}},
}


class Caller:
    """A workflow as its server sees it: one connection, with a token."""

    def __init__(self, port: int, path: str, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._path = f"/engines/{ENGINE}/{path}"
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}

    def post(self, body: Mapping[str, Any]) -> None:
        """One call."""
        self._connection.request("POST", self._path, json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise BadReplyError(f"{self._path}: {answer.status} {said[:200]!r}")


def question(address: str, execution: str) -> Mapping[str, Any]:
    """What `mcp_elicit` posts for an execution, by its resource name; a new question each time."""
    _, project, _, location, _, workflow, _, name = execution.split("/")
    return {
        "project": project,
        "location": location,
        "workflow": workflow,
        "execution": name,
        "callback_url": f"http://{address}/v1/{execution}/callbacks/{uuid.uuid4()}",
        "message": "Ship it?",
        "requested_schema": _FORM,
        "timeout": 3600,
    }


class Heard:
    """When a client hears that each of these tasks asks; it listens from the start, in a thread of its own."""

    def __init__(self, port: int, ids: Sequence[str]) -> None:
        self.times: dict[str, float] = {}  # seconds since 1970
        self._ids = ids
        self._wire = Wire(port)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until all were told, or nobody will be."""
        self._thread.join(PATIENCE)
        self._wire.close()

    def _listen(self) -> None:
        for frame in self._wire.listen(list(self._ids)):
            seen: Mapping[str, Any] = frame.get("params", {})
            if seen.get("status") == _ASKS:
                self.times.setdefault(seen["taskId"], time.time())
            if len(self.times) == len(self._ids):
                return


def asked(place: Place) -> Iterator[Line]:
    """(o) From a question to the client that listens."""
    where = {1: "it came", 2: "it did not come, one of two on one store"}
    with issuer() as signing:
        for replicas, words in where.items():
            lags = _told_elsewhere(place, signing, replicas)
            what = f"question to client, told by the replica to which {words}, p50 / p99 / max"
            yield beside("o", what, milliseconds(spread(lags)) if replicas == 1 else seconds(spread(lags)))
            yield exactly("o", f"of {ASKING} questions, not told", ASKING - len(lags))
    lags = _told_of_gates(place)
    yield beside("o", f"the same of {WAITING} gates, on the local engine", seconds(spread(lags)))
    yield exactly("o", f"of {WAITING} gates, not told", WAITING - len(lags))


def _told_elsewhere(place: Place, signing: Issuer, replicas: int) -> Sequence[float]:
    """Seconds from each question, posted to the first replica, to the client of the last one."""
    with stub(place) as control, place.fast_folder() as folder, ExitStack() as stack:
        more: Mapping[str, Any] = {"keys_url": signing.url, "replicas": replicas}
        running = [
            stack.enter_context(sidecar(place, folder / "tasks.db", control.address, _PARKED, **more))
            for _ in range(replicas)
        ]
        wire, ids = Wire(running[-1].port), list[str]()
        for _ in range(ASKING):
            ids.append(wire.call("order", {})["taskId"])
        names = dict(zip(ids, control.tell(), strict=True))
        heard = Heard(running[-1].port, ids)
        began = _post(Caller(running[0].port, "input", signing.token()), control.address, names)
        heard.wait()
    return [at - began[task] for task, at in heard.times.items()]


def _post(caller: Caller, address: str, names: Mapping[str, str]) -> Mapping[str, float]:
    """When each asked."""
    began: dict[str, float] = {}
    for task, name in names.items():
        time.sleep(random.uniform(EVERY / 2, EVERY * 1.5))  # so that nothing falls into step with it
        began[task] = time.time()
        caller.post(question(address, name))
    return began


def _told_of_gates(place: Place) -> Sequence[float]:
    """Seconds from when an execution came to its gate: its start, and what it slept."""
    engine, file = GoogleLocal(place.folder), place.folder / "gated.yaml"
    file.write_text(_GATED)
    argv = [*engine.command().argv, "--deploy", str(file)]
    command = Command(name="google engine of gates", argv=argv, cwd=place.folder, env=engine.environment())
    tools = {"gated": {"workflow": "gated", "input": {"type": "object"}, "gates": {"ship": _GATE}}}
    with (
        place.running(command, engine.answers),
        place.fast_folder() as folder,
        sidecar(place, folder / "tasks.db", engine.address, tools) as running,
    ):
        wire, due = Wire(running.port), dict[str, float]()
        for _ in range(WAITING):
            sleeps = random.uniform(*COMES)  # as above
            began = time.time()
            due[wire.call("gated", {"seconds": sleeps})["taskId"]] = (began + time.time()) / 2 + sleeps
        heard = Heard(running.port, list(due))
        heard.wait()
    return [at - due[task] for task, at in heard.times.items()]


def let_in(place: Place) -> Iterator[Line]:
    """(q) Questions per second that a sidecar takes: token, checks, a look whether it runs, one durable note each."""
    with issuer() as signing, stub(place) as control, place.fast_folder() as folder:
        store = folder / "tasks.db"
        names = control.tell(seed=ASKERS)

        def new() -> Mapping[str, Any]:
            return question(control.address, random.choice(names))

        with sidecar(place, store, control.address, _PARKED, keys_url=signing.url) as running:
            Caller(running.port, "input", signing.token()).post(new())  # fetches the keys
            before = cpu_seconds(running.pid)
            took = _together(running, signing, new)
            cpu = (cpu_seconds(running.pid) - before) / len(took)
    yield beside("q", f"questions/s, {CALLERS} workflows at once, each with a token", f"{len(took) / CALLING:.0f}")
    yield beside("q", "of one, p50 / p99 / max; its CPU", f"{milliseconds(spread(took))}; {cpu * 1e3:.2f} ms")


def _together(running: Sidecar, signing: Issuer, body: Callable[[], Mapping[str, Any]]) -> Sequence[float]:
    """Seconds that each call took."""
    took: list[float] = []
    until = time.monotonic() + CALLING

    def call(caller: Caller) -> None:
        while (began := time.monotonic()) < until:
            caller.post(body())
            took.append(time.monotonic() - began)

    callers = [Caller(running.port, "input", signing.token()) for _ in range(CALLERS)]
    threads = [threading.Thread(target=call, args=(caller,)) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took
