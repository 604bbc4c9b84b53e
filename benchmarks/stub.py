"""A stub of AWS, Google Cloud or GitHub that counts its calls: `python -m benchmarks.stub ENGINE PORT CONTROL_PORT`.

It runs on core 1 and computes nothing: executions run until `POST /` on CONTROL_PORT says that they end or ask, and
`GET /` there returns the calls. Replies are those of the engine's API reference, after the time that the engine takes.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Reason: grpc and protobuf's classes have no types.

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

import grpc
import grpc.aio
import uvloop
from google.cloud.workflows.executions_v1 import types

from benchmarks.control import ACCOUNT, ARN, MACHINE, STEP, WORKFLOW_NAME
from benchmarks.rounds import pin
from tests.support.environments import ROOT

Reply: TypeAlias = tuple[int, Mapping[str, str], Any]
"""HTTP status, headers and JSON; Any: a JSON value."""
Answer: TypeAlias = Callable[[str, str, Mapping[str, str], bytes], Awaitable[Reply]]
"""A reply from the method, the target, the headers and the body of a request."""

_QUEUE_POLL: Final = 0.02  # seconds between two reads of the queue while a client waits for messages
_AN_HOUR: Final = 5000  # GitHub's calls
_WAITING, _SUCCEEDED = "WAITING", "SUCCEEDED"
_SERVICE: Final = "google.cloud.workflows.executions.v1.Executions"


@dataclass(slots=True, kw_only=True)
class Execution:
    """One execution; its name is the engine's id."""

    name: str
    number: int  # in the order of the starts
    input: str = "{}"
    status: str = "RUNNING"
    started: float = field(default_factory=time.time)
    ended: float | None = None
    read: float = field(default_factory=time.monotonic)  # when a reply last contained it


class Stub(ABC):
    """The executions of an engine, and its calls by API and time."""

    latency: float = 0.02  # seconds
    name: str = "{number}"  # of a seeded execution

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []  # API, and monotonic seconds
        self.executions: dict[str, Execution] = {}
        self._ending: list[asyncio.Task[None]] = []

    @abstractmethod
    async def serve(self, port: int) -> None:
        """Serve the engine's API until the process ends."""

    async def control(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Do as the orders say, and return the names of all executions; without orders, return the report."""
        if method == "GET":
            now = time.monotonic()
            ages = [now - each.read for each in self.executions.values() if each.ended is None]
            ends = {each.name: each.ended for each in self.executions.values() if each.ended is not None}
            return 200, {}, {"calls": self.calls, "ages": ages, "ends": ends}
        orders = json.loads(body)
        self.latency = orders.get("latency", self.latency)
        for _ in range(orders.get("seed", 0)):
            self.add(self.name.format(number=len(self.executions) + 1))
        if every := orders.get("every"):  # seconds between two ends
            self._ending.append(asyncio.create_task(self._end(orders["end"], every)))
        else:
            await self._end(orders.get("end", ()), 0.0)
        for name in orders.get("ask", ()):
            self.change(self.executions[name], _WAITING)
        if orders.get("forget"):
            self.calls.clear()
        return 200, {}, list(self.executions)

    async def _end(self, names: Sequence[str], every: float) -> None:
        began = time.monotonic()
        for number, name in enumerate(names):
            if (pause := began + number * every - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            self.change(self.executions[name], _SUCCEEDED)

    def add(self, name: str, argument: str = "{}") -> Execution:
        """Start an execution."""
        made = self.executions[name] = Execution(name=name, number=len(self.executions) + 1, input=argument)
        return made

    def change(self, execution: Execution, status: str) -> None:
        """Let an execution end or ask."""
        execution.status = status
        execution.ended = time.time() if status == _SUCCEEDED else None

    async def count(self, api: str) -> None:
        """Count a call, and wait as long as the engine takes."""
        self.calls.append((api, time.monotonic()))
        await asyncio.sleep(self.latency)

    def newest(self, before: str | None, size: int, wanted: Callable[[Execution], bool]) -> Sequence[Execution]:
        """Return a page of executions, the newest first; the next page starts before the number of its last one."""
        end = int(before) if before else len(self.executions) + 1
        matching = (each for each in reversed(self.executions.values()) if each.number < end and wanted(each))
        page = list(islice(matching, size))
        for each in page:
            each.read = time.monotonic()
        return page


class Aws(Stub):
    """Step Functions and SQS in AWS JSON 1.0: https://docs.aws.amazon.com/step-functions/latest/apireference."""

    name = f"{ARN}:execution:{MACHINE}:order-{{number}}"

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[str] = deque()  # of EventBridge's events
        self.replies: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "DescribeStateMachine": self._describe_state_machine,
            "StartExecution": self._start_execution,
            "DescribeExecution": self._describe_execution,
            "GetExecutionHistory": self._get_execution_history,
            "ListExecutions": self._list_executions,
            "ReceiveMessage": self._receive_message,
            "DeleteMessageBatch": lambda _: {"Successful": [], "Failed": []},
        }

    async def serve(self, port: int) -> None:
        """Serve AWS JSON over HTTP."""
        await serve_http(port, self.answer)

    async def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answer the API that the header names."""
        api, given = headers["x-amz-target"].rpartition(".")[2], json.loads(body or b"{}")
        await self.count(api)
        until = time.monotonic() + given.get("WaitTimeSeconds", 0)
        while api == "ReceiveMessage" and not self._queue and time.monotonic() < until:  # noqa: ASYNC110  # a long poll
            await asyncio.sleep(_QUEUE_POLL)
        try:
            return 200, {}, self.replies[api](given)
        except KeyError as unknown:
            return 400, {}, {"__type": "ExecutionDoesNotExist", "message": f"Execution Does Not Exist: {unknown}"}

    def change(self, execution: Execution, status: str) -> None:
        """Let an execution end or ask, and send the event of EventBridge."""
        super().change(execution, status)
        kind = "MCP Input Request" if status == _WAITING else "Step Functions Execution Status Change"
        detail = {"executionArn": execution.name, "name": execution.name.rpartition(":")[2], "status": status}
        self._queue.append(json.dumps({"detail-type": kind, "resources": [execution.name], "detail": detail}))

    def _describe_state_machine(self, given: Mapping[str, Any]) -> Any:
        definition = json.dumps({"StartAt": STEP, "States": {STEP: {"Type": "Pass", "End": True}}})
        about = {"name": MACHINE, "type": "STANDARD", "status": "ACTIVE", "creationDate": 1.76e9}
        role = f"arn:aws:iam::{ACCOUNT}:role/x"
        return {"stateMachineArn": given["stateMachineArn"], **about, "roleArn": role, "definition": definition}

    def _start_execution(self, given: Mapping[str, Any]) -> Any:
        name = f"{ARN}:execution:{MACHINE}:{given.get('name') or uuid.uuid4()}"
        made = self.executions.get(name) or self.add(name, given.get("input", "{}"))
        return {"executionArn": name, "startDate": made.started}

    def _describe_execution(self, given: Mapping[str, Any]) -> Any:
        execution = self.executions[given["executionArn"]]
        execution.read = time.monotonic()
        end = {"stopDate": execution.ended, "output": '{"total":1}'} if execution.ended else {}
        return {**_row(execution), "input": execution.input, **end}

    def _get_execution_history(self, given: Mapping[str, Any]) -> Any:
        execution = self.executions[given["executionArn"]]
        entered = {"stateEnteredEventDetails": {"name": STEP, "input": execution.input}}
        started = {"executionStartedEventDetails": {"input": execution.input}}
        kinds: list[tuple[str, Mapping[str, Any]]] = [("ExecutionStarted", started), ("TaskStateEntered", entered)]
        if execution.status == _WAITING:
            kinds.append(("TaskScheduled", {"taskScheduledEventDetails": _question(execution)}))
        if execution.ended:
            kinds.append(("ExecutionSucceeded", {}))
        events = [
            {"id": at + 1, "previousEventId": at, "type": kind, "timestamp": execution.started, **details}
            for at, (kind, details) in enumerate(kinds)
        ]
        return {"events": (events[::-1] if given.get("reverseOrder") else events)[: given.get("maxResults") or 100]}

    def _list_executions(self, given: Mapping[str, Any]) -> Any:
        size = given.get("maxResults") or 100
        page = self.newest(given.get("nextToken"), size, lambda each: each.ended is None)
        more = {"nextToken": str(page[-1].number)} if len(page) == size else {}
        return {"executions": [_row(each) for each in page], **more}

    def _receive_message(self, given: Mapping[str, Any]) -> Any:
        bodies = [self._queue.popleft() for _ in range(min(len(self._queue), given.get("MaxNumberOfMessages") or 1))]
        return {"Messages": [{"MessageId": str(n), "ReceiptHandle": str(n), "Body": at} for n, at in enumerate(bodies)]}


def _row(execution: Execution) -> Mapping[str, Any]:
    return {
        "executionArn": execution.name,
        "stateMachineArn": f"{ARN}:stateMachine:{MACHINE}",
        "name": execution.name.rpartition(":")[2],
        "status": _SUCCEEDED if execution.ended else "RUNNING",
        "startDate": execution.started,
    }


def _question(execution: Execution) -> Mapping[str, Any]:
    """Return what a state with `events:putEvents.waitForTaskToken` schedules when it asks."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    asked = {"method": "elicitation/create", "params": {"message": "Ship it?", "requestedSchema": schema}}
    detail = {"mcpInput": asked, "taskToken": f"AQ{execution.number:032}", "executionArn": execution.name}
    entry = {"Source": "mcp.workflows", "DetailType": "MCP Input Request", "Detail": detail}
    resource = {"resourceType": "events", "resource": "putEvents.waitForTaskToken", "region": "us-east-1"}
    return {**resource, "parameters": json.dumps({"Entries": [entry]})}


class GitHub(Stub):
    """GitHub's API for Actions, with the examples of its OpenAPI description.

    Source of the headers: https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
    """

    latency = 0.1
    list_latency = 0.3  # seconds, in addition

    def __init__(self) -> None:
        super().__init__()
        described = json.loads((ROOT / "adapters" / "http" / "tests" / "github.openapi.json").read_text())["paths"]
        root = "/repos/{owner}/{repo}/actions/runs/{run_id}"
        self._run: Mapping[str, Any] = described[root]["get"]["x-examples"]["200"]
        self._job: Mapping[str, Any] = described[f"{root}/jobs"]["get"]["x-examples"]["200"]["jobs"][0]
        self._pending: Any = described[f"{root}/pending_deployments"]["get"]["x-examples"]["200"]

    async def serve(self, port: int) -> None:
        """Serve JSON over HTTP."""
        await serve_http(port, self.answer)

    async def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answer a GET of the list of runs, of a run, of its jobs or of its pending deployments."""
        parts = urlsplit(target)
        *path, last = parts.path.strip("/").split("/")
        await self.count(last if last in {"runs", "jobs", "pending_deployments"} else "run")
        given = {"limit": _AN_HOUR, "remaining": _AN_HOUR - len(self.calls), "reset": int(time.time()) + 3600}
        limits = {f"x-ratelimit-{name}": str(value) for name, value in given.items()} if self.latency else {}
        if last == "runs":
            await asyncio.sleep(self.list_latency)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            link, found = self._page(query, f"http://{headers['host']}{target}")
            return 200, {**limits, **link}, found
        execution = self.executions.get(last if last.isdigit() else path[-1])
        if execution is None:
            return 404, limits, {"message": "Not Found"}
        execution.read = time.monotonic()
        shown = self._shown(execution)
        job = {**self._job, "status": shown["status"], "conclusion": shown["conclusion"]}
        jobs = {"total_count": 2, "jobs": [{**self._job, "name": "test"}, job]}
        return 200, limits, {"jobs": jobs, "pending_deployments": self._pending}.get(last, shown)

    def _shown(self, execution: Execution) -> Mapping[str, Any]:
        running = {"status": _github_status(execution), "conclusion": "success" if execution.ended else None}
        return {**self._run, "id": int(execution.name), **running}

    def _page(self, query: Mapping[str, str], url: str) -> tuple[Mapping[str, str], Any]:
        """Return a page of the runs of a status, the newest first, of 1,000 at most, and the link to the next one."""
        wanted = query.get("status")
        found = [each for each in self.executions.values() if wanted in {None, _github_status(each)}][::-1]
        page, size = int(query.get("page", 1)), int(query["per_page"])
        shown = found[(page - 1) * size : page * size]
        for each in shown:
            each.read = time.monotonic()
        listed = {"total_count": len(found), "workflow_runs": [self._shown(each) for each in shown]}
        if page * size >= min(len(found), 1000):
            return {}, listed
        return {"link": f'<{url.partition("&page=")[0]}&page={page + 1}>; rel="next"'}, listed


def _github_status(execution: Execution) -> str:
    if execution.ended:
        return "completed"
    return "waiting" if execution.status == _WAITING else ("queued", "in_progress")[execution.number % 2]


class Google(Stub):
    """Google's Executions API in gRPC: https://cloud.google.com/workflows/docs/reference/executions/rpc."""

    name = f"{WORKFLOW_NAME}/executions/order-{{number}}"

    async def serve(self, port: int) -> None:
        """Serve gRPC."""
        server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
        replies = {"CreateExecution": self._create, "GetExecution": self._get, "ListExecutions": self._list}
        handlers = {name: self._handler(name, reply) for name, reply in replies.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()

    def _handler(self, name: str, reply: Callable[[bytes], Any]) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            await self.count(name)
            serialized: bytes = reply(request).SerializeToString()
            return serialized

        return grpc.unary_unary_rpc_method_handler(handle)

    def _create(self, request: bytes) -> Any:
        asked = types.CreateExecutionRequest.pb().FromString(request)
        return _message(self.add(f"{asked.parent}/executions/{uuid.uuid4()}", asked.execution.argument), full=True)

    def _get(self, request: bytes) -> Any:
        asked = types.GetExecutionRequest.pb().FromString(request)
        execution = self.executions[asked.name]
        execution.read = time.monotonic()
        return _message(execution, full=asked.view != types.ExecutionView.BASIC)

    def _list(self, request: bytes) -> Any:
        asked = types.ListExecutionsRequest.pb().FromString(request)
        state, size = asked.filter.partition('state="')[2].partition('"')[0], asked.page_size or 100
        page = self.newest(asked.page_token, size, lambda each: state in {"", "SUCCEEDED" if each.ended else "ACTIVE"})
        more = str(page[-1].number) if len(page) == size else ""
        messages = [_message(each, full=asked.view == types.ExecutionView.FULL) for each in page]
        return types.ListExecutionsResponse.pb()(executions=messages, next_page_token=more)


def _message(execution: Execution, *, full: bool) -> Any:
    """Return an execution as a message; a list in BASIC view has less."""
    state = types.Execution.State.SUCCEEDED if execution.ended else types.Execution.State.ACTIVE
    made = types.Execution.pb()(name=execution.name, state=state)
    made.start_time.FromNanoseconds(int(execution.started * 1e9))
    if execution.ended:
        made.end_time.FromNanoseconds(int(execution.ended * 1e9))
    if full:
        made.argument = execution.input
        made.status.current_steps.add(routine="main", step=STEP)
        made.result = '{"total": 1}' if execution.ended else ""
    return made


async def serve_http(port: int, answer: Answer) -> None:
    """Serve HTTP/1.1 with JSON on the loopback until the process ends."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                method, target, _ = first.split(" ", 2)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                status, more, found = await answer(method, target, headers, body)
                text = json.dumps(found).encode()
                more = {"content-type": "application/json", "content-length": str(len(text)), **more}
                head = "".join(f"{name}: {value}\r\n" for name, value in more.items())
                writer.write(f"HTTP/1.1 {status} Stub\r\n{head}\r\n".encode() + text)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    await server.serve_forever()


STUBS: Mapping[str, type[Stub]] = {"stepfunctions": Aws, "google": Google, "http": GitHub}
"""The table of replies of each engine."""


async def serve(engine: str, port: str, control_port: str) -> None:
    """Serve an engine's API and the orders for it on core 1, until the process ends."""
    pin(1)
    stub = STUBS[engine]()
    await asyncio.gather(stub.serve(int(port)), serve_http(int(control_port), stub.control))


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
