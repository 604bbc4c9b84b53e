"""A small real HTTP server that speaks AWS JSON 1.0 and answers as it is told, also wrongly; it counts what it gets.

For tests, and for benchmarks that need an AWS which answers quickly.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

from botocore.awsrequest import AWSResponse

from tests.support.child_processes import free_port
from tests.support.stepfunctions_engine import ACCOUNT, REGION


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to answer to one request."""

    status: int = 200
    body: Any = field(default_factory=dict[str, Any])  # Any: JSON, or text as it is
    delay: float = 0.0  # seconds before it
    hang: bool = False  # no answer at all, until the server stops
    lost: bool = False  # the request is accepted, and the connection closed without a word
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Answers: TypeAlias = Answer | Callable[[Mapping[str, Any]], Answer]  # Any: the request, JSON

HANG = Answer(hang=True)
LOST = Answer(lost=True)


def error(code: str, message: str = "", *, status: int = 400) -> Answer:
    """AWS's way to say no."""
    return Answer(status=status, body={"__type": code, "message": message})


def sts_error(code: str, message: str = "", *, status: int = 403) -> Answer:
    """The same, as STS says it."""
    xml = "<ErrorResponse><Error><Type>Sender</Type><Code>{}</Code><Message>{}</Message></Error></ErrorResponse>"
    return Answer(status=status, body=xml.format(code, message))


def session(key: str, expires: str = "2100-01-01T00:00:00Z") -> Answer:
    """A session of a role, as STS gives it."""
    keys = f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
    body = f"<Credentials>{keys}<Expiration>{expires}</Expiration></Credentials>"
    return Answer(body=f"<AssumeRoleResponse><AssumeRoleResult>{body}</AssumeRoleResult></AssumeRoleResponse>")


class Injecting:
    """The server; operations are named as AWS does, `DescribeExecution`. What is not told is answered `{}`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.requests: list[tuple[str, Mapping[str, Any]]] = []  # Any: JSON; the latest last
        self.keep_requests = True
        self.authorized = ""  # the header of the latest request: who asks
        self._told: dict[str, list[Answers]] = {}
        self._changing = threading.Lock()
        self.stopping = threading.Event()
        self.port = free_port()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def tell(self, operation: str, *answers: Answers) -> None:
        """Answer one after the other from now on, the last one for ever."""
        with self._changing:
            self._told[operation] = list(answers)

    def answer(self, operation: str, request: Mapping[str, Any]) -> Answer:
        """What to answer now; counts."""
        with self._changing:
            self.counts[operation] += 1
            if self.keep_requests:
                self.requests.append((operation, request))
            told = self._told.get(operation) or [Answer()]
            answer = told.pop(0) if len(told) > 1 else told[0]
        return answer if isinstance(answer, Answer) else answer(request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as AWS does
    injecting: Injecting  # of the subclass that is made for one server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        operation, request = _read(self.headers.get("x-amz-target"), raw)
        self.injecting.authorized = self.headers.get("authorization", "")
        answer = self.injecting.answer(operation, request)
        self.injecting.stopping.wait(answer.delay) if answer.delay else None
        if answer.hang:
            self.injecting.stopping.wait()
        if answer.hang or answer.lost:
            self.close_connection = True
            return
        text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        self._write(answer, text.encode())

    def _write(self, answer: Answer, body: bytes) -> None:
        self.send_response(answer.status)
        kind = "text/xml" if body.startswith(b"<") else "application/x-amz-json-1.0"
        for name, value in {"content-type": kind, "content-length": str(len(body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who does not wait for the answer is no error."""


def _read(target: str | None, raw: bytes) -> tuple[str, Mapping[str, Any]]:
    """The operation and its parameters: of the JSON protocol, or of the query protocol of STS."""
    if target:
        return target.rpartition(".")[2], json.loads(raw or b"{}")
    form = {name: values[0] for name, values in parse_qs(raw.decode()).items()}
    return form.get("Action", ""), form


@contextmanager
def injecting() -> Generator[Injecting]:
    """A server of its own, until the end of the block."""
    state = Injecting()
    handler = type("Handler", (_Handler,), {"injecting": state})
    with _Server(("127.0.0.1", state.port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            state.stopping.set()
            server.shutdown()
            thread.join()


def wait_for(state: Injecting, operation: str, count: int = 1, seconds: float = 30.0) -> None:
    """Until so many requests of an operation have come."""
    deadline = time.monotonic() + seconds
    while state.counts[operation] < count:
        assert time.monotonic() < deadline, f"{state.counts[operation]} of {count} {operation}"
        threading.Event().wait(0.005)


def rows(operation_rows: Sequence[Mapping[str, Any]], key: str) -> Answer:
    """One page of a list."""
    return Answer(body={key: list(operation_rows)})


# --- AWS refuses, through all of botocore


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """As urllib3 gives it to botocore."""

    content: bytes

    def stream(self) -> Iterator[bytes]:
        yield self.content


@contextmanager
def refusing(client: Any, operation: str, code: str, *, unless: str | None = None) -> Generator[None]:
    """Let AWS answer so meanwhile, unless this is in the request; Any: botocore has no types."""

    def answer(request: Any, **_: Any) -> AWSResponse | None:
        if unless is not None and unless.encode() in (request.body or b""):
            return None
        content = json.dumps({"__type": code, "message": "no"}).encode()
        return AWSResponse(request.url, 400, {"content-type": "application/x-amz-json-1.0"}, Body(content=content))

    events, name = client.meta.events, f"before-send.*.{operation}"
    events.register(name, answer)
    try:
        yield
    finally:
        events.unregister(name, answer)


# --- a whole AWS: one state machine with one execution


MACHINE: Final = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:orders"
EXECUTION: Final = f"arn:aws:states:{REGION}:{ACCOUNT}:execution:orders:o-1"


def execution(status: str = "RUNNING", **more: Any) -> Answer:
    """What DescribeExecution answers."""
    found = {"executionArn": EXECUTION, "stateMachineArn": MACHINE, "startDate": 1.0, "status": status}
    return Answer(body={**found, **more})


def question(token: str, name: str = "taskToken") -> Answer:
    """What GetExecutionHistory answers while a state asks: the newest event first; `name` is that of the token."""
    detail = {name: token, "mcpInput": {"message": "Ship it?"}}
    scheduled = {
        "resourceType": "events",
        "resource": "putEvents.waitForTaskToken",
        "region": REGION,
        "parameters": json.dumps({"Entries": [{"Detail": detail}]}),
    }
    begun = {"id": 1, "previousEventId": 0, "type": "ExecutionStarted"}
    entered = {"id": 2, "previousEventId": 1, "type": "TaskStateEntered", "stateEnteredEventDetails": {"name": "Ask"}}
    asked = {"id": 3, "previousEventId": 2, "type": "TaskScheduled", "taskScheduledEventDetails": scheduled}
    return Answer(body={"events": [{**event, "timestamp": 1.0} for event in (asked, entered, begun)]})


def play(server: Injecting, kind: str = "STANDARD") -> None:
    """From now on there is a machine of this type, and what it starts runs for ever."""
    server.tell("ListStateMachines", Answer(body={"stateMachines": []}))
    server.tell("DescribeStateMachine", Answer(body={"stateMachineArn": MACHINE, "name": "orders", "type": kind}))
    server.tell("StartExecution", Answer(body={"executionArn": EXECUTION, "startDate": 1.0}))
    server.tell("DescribeExecution", execution())
    server.tell("GetExecutionHistory", Answer(body={"events": []}))
    server.tell("StopExecution", Answer(body={"stopDate": 1.0}))
