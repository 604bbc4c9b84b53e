"""A server that speaks the Executions and Workflows APIs on the official messages, and does wrong as it is told.

gRPC without TLS and HTTP/1.1 at one address, like the local engine; in threads, as two event loops of grpc.aio in one
process disturb each other. It runs no workflows: executions are ACTIVE until a test says otherwise.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false, reportUnknownLambdaType=false
# pyright: reportAttributeAccessIssue=false
# Reason: grpc has no types.

from __future__ import annotations

import json
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import grpc
from google.cloud import workflows_v1 as wf
from google.cloud.workflows import executions_v1 as ev
from google.protobuf.any_pb2 import Any as Packed
from google.rpc import error_details_pb2, status_pb2

from tests.support.child_processes import free_port

PREFACE: Final = b"PRI * HTTP/2"
SERVICES: Final = {
    "google.cloud.workflows.executions.v1.Executions": {
        "CreateExecution": (ev.CreateExecutionRequest, ev.Execution),
        "GetExecution": (ev.GetExecutionRequest, ev.Execution),
        "ListExecutions": (ev.ListExecutionsRequest, ev.ListExecutionsResponse),
        "CancelExecution": (ev.CancelExecutionRequest, ev.Execution),
    },
    "google.cloud.workflows.v1.Workflows": {
        "GetWorkflow": (wf.GetWorkflowRequest, wf.Workflow),
        "ListWorkflows": (wf.ListWorkflowsRequest, wf.ListWorkflowsResponse),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to one call instead of, or after, what was asked for."""

    code: str | None = None  # of gRPC, by name
    text: str = "told to"
    reason: str = ""  # of an ErrorInfo
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    work: bool = False  # it is done first: only the reply is lost
    cut: bool = False  # the connection is closed
    hang: bool = False  # no reply, until the caller gives up
    delay: float = 0  # seconds before anything else


LOST: Final = Fault(code="UNAVAILABLE", text="Socket closed", work=True)
CUT: Final = Fault(work=True, cut=True)
HANG: Final = Fault(hang=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer over HTTP."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: bool = False  # the connection is closed instead
    hang: bool = False  # no answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A call that came, in gRPC or HTTP."""

    what: str  # `CreateExecution`, `POST /v1/...`
    request: Any
    headers: Mapping[str, str]


class Injecting:
    """The server; all of it may be read and changed while it runs."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.executions: dict[str, ev.Execution] = {}
        self.workflows: dict[str, wf.Workflow] = {}
        self.unlisted: set[str] = set()  # executions that lists do not show yet
        self.lag = False  # whether new executions are such
        self.now = False  # whether they have the time of this machine; otherwise the stub's clock stands still
        self.project: str | None = None  # what names in answers carry, if not what was asked for
        self.asked: list[Asked] = []
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)  # by method, for the next calls
        self.replies: dict[str, deque[Reply]] = defaultdict(deque)  # by `GET /path`; the last one stays
        self.over = threading.Event()
        self.cut: Callable[[], None] = lambda: None

    def tell(self, what: str, *faults: Fault) -> None:
        """What happens to the next calls of this method."""
        self.faults[what].extend(faults)

    def reply(self, what: str, *replies: Reply) -> None:
        """What is answered to `GET /v1/...` from now on."""
        self.replies[what] = deque(replies)

    def count(self, what: str) -> int:
        """How many calls came."""
        return sum(each.what == what for each in self.asked)

    def clear(self) -> None:
        """Forget everything."""
        for each in (self.executions, self.workflows, self.unlisted, self.asked, self.faults, self.replies):
            each.clear()
        self.lag, self.now, self.project = False, False, None

    def settle(self) -> None:
        """Lists show all."""
        self.unlisted.clear()

    def create_execution(self, request: ev.CreateExecutionRequest) -> ev.Execution:
        number = len(self.executions) + 1
        parent = request.parent
        if self.project:
            parent = "/".join(["projects", self.project, *parent.split("/")[2:]])
        made = ev.Execution(
            name=f"{parent}/executions/e-{number}",
            state=ev.Execution.State.ACTIVE,
            argument=request.execution.argument,
            labels=dict(request.execution.labels),
            start_time={"seconds": int(time.time()) if self.now else 1_700_000_000 + number},
        )
        self.executions[made.name] = made
        if self.lag:
            self.unlisted.add(made.name)
        return made

    def get_execution(self, request: ev.GetExecutionRequest) -> ev.Execution | None:
        return _viewed(self.executions.get(request.name), request.view or ev.ExecutionView.FULL)

    def list_executions(self, request: ev.ListExecutionsRequest) -> ev.ListExecutionsResponse:
        rows = [each for name, each in self.executions.items() if name not in self.unlisted]
        rows = [each for each in reversed(rows) if each.name.split("/")[5] == request.parent.split("/")[5]]
        first = int(request.page_token or 0)
        page = rows[first : first + request.page_size]
        more = str(first + len(page)) if first + len(page) < len(rows) else ""
        view = request.view or ev.ExecutionView.BASIC
        return ev.ListExecutionsResponse(executions=[_viewed(each, view) for each in page], next_page_token=more)

    def cancel_execution(self, request: ev.CancelExecutionRequest) -> ev.Execution | None:
        found = self.executions.get(request.name)
        if found is not None:
            found.state = ev.Execution.State.CANCELLED
        return found

    def get_workflow(self, request: wf.GetWorkflowRequest) -> wf.Workflow | None:
        return self.workflows.get(request.name)

    def list_workflows(self, request: wf.ListWorkflowsRequest) -> wf.ListWorkflowsResponse:
        return wf.ListWorkflowsResponse(workflows=list(self.workflows.values()))


def _viewed(row: ev.Execution | None, view: Any) -> ev.Execution | None:
    if row is None or view == ev.ExecutionView.FULL:
        return row
    return ev.Execution(name=row.name, state=row.state, start_time=row.start_time, end_time=row.end_time)


def _details(fault: Fault) -> bytes:
    info = Packed()
    info.Pack(error_details_pb2.ErrorInfo(reason=fault.reason, domain="googleapis.com", metadata=dict(fault.metadata)))
    code = getattr(grpc.StatusCode, fault.code or "UNKNOWN").value[0]
    return bytes(status_pb2.Status(code=code, message=fault.text, details=[info]).SerializeToString())


def _snake(method: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in method).lstrip("_")


def _handler(server: Injecting, method: str) -> Callable[[Any, Any], Any]:
    """Any: as grpc calls it."""

    def handle(request: Any, context: Any) -> Any:
        server.asked.append(Asked(what=method, request=request, headers=dict(context.invocation_metadata())))
        faults = server.faults[method]
        fault = faults.popleft() if faults else Fault()
        server.over.wait(fault.delay) if fault.delay else None
        if fault.hang:
            gone = threading.Event()
            context.add_callback(gone.set)
            gone.wait()
            context.abort(grpc.StatusCode.CANCELLED, "nobody waits any more")  # and nothing is done, later on
        reply = getattr(server, _snake(method))(request) if fault.work or fault.code is None else None
        if fault.cut:
            server.cut()
        if fault.code is not None:
            if fault.reason:
                context.set_trailing_metadata((("grpc-status-details-bin", _details(fault)),))
            context.abort(getattr(grpc.StatusCode, fault.code), fault.text)
        if reply is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "Requested entity was not found.")
        return reply

    return handle


def _grpc(server: Injecting, stack: ExitStack) -> int:
    port = free_port()
    pool = stack.enter_context(ThreadPoolExecutor(32))
    served = grpc.server(pool, options=[("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)])
    for service, methods in SERVICES.items():
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(
                _handler(server, method), request_deserializer=asked.deserialize, response_serializer=given.serialize
            )
            for method, (asked, given) in methods.items()
        }
        served.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    served.add_insecure_port(f"127.0.0.1:{port}")
    served.start()
    stack.callback(lambda: served.stop(None).wait())
    return port


class _Handler(BaseHTTPRequestHandler):
    injecting: Injecting
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        what = f"{self.command} {path}"
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.injecting.asked.append(Asked(what=what, request=(self.path, body), headers=headers))
        told = self.injecting.replies[what]
        reply = (told.popleft() if len(told) > 1 else told[0]) if told else Reply(status=404, body={})
        if reply.hang:
            self.injecting.over.wait()
        if reply.cut or reply.hang:
            self.close_connection = True
            return
        text = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in ({"Content-Type": "application/json"} | dict(reply.headers)).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815  # as the standard library names them

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as the standard library names it
        """Quiet."""


def _http(server: Injecting, stack: ExitStack) -> int:
    served = ThreadingHTTPServer(("127.0.0.1", free_port()), type("Handler", (_Handler,), {"injecting": server}))
    served.daemon_threads = True
    threading.Thread(target=served.serve_forever, daemon=True).start()
    stack.callback(served.server_close)
    stack.callback(served.shutdown)
    return int(served.server_address[1])


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _front(server: Injecting, grpc_port: int, http_port: int, stack: ExitStack) -> None:
    """One address for both: who begins as HTTP/2 gets gRPC."""
    host, _, port = server.address.partition(":")
    listening = stack.enter_context(closing(socket.create_server((host, int(port)))))
    here: list[socket.socket] = []

    def serve(client: socket.socket) -> None:
        start = b""
        with suppress(OSError), client:
            while len(start) < len(PREFACE) and PREFACE.startswith(start):
                if not (more := client.recv(65536)):
                    return
                start += more
            upstream = socket.create_connection(("127.0.0.1", grpc_port if start.startswith(PREFACE) else http_port))
            upstream.sendall(start)
            with upstream:
                back = threading.Thread(target=_pump, args=(upstream, client), daemon=True)
                back.start()
                _pump(client, upstream)
                back.join()

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                here.append(client)
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    def cut() -> None:
        gone, here[:] = here[:], []  # not those who come back while we are at it
        for each in gone:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    server.cut = cut
    threading.Thread(target=accept, daemon=True).start()
    stack.callback(cut)
    stack.callback(lambda: listening.shutdown(socket.SHUT_RDWR))


@contextmanager
def injecting() -> Generator[Injecting]:
    """A server, until the end."""
    server = Injecting()
    with ExitStack() as stack:
        _front(server, _grpc(server, stack), _http(server, stack), stack)
        stack.callback(server.over.set)
        yield server
