"""A small receiver of tasks of 2025-11-25, with the default fixtures of the suite and with faults to switch on.

The receiver implements the specification independently: it shares no code with `mcp_workflows`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from conformance.tests.event_server import Body, EventServer, Mutate, Refused, declared_events, now, part

MODERN = "2026-07-28"
RELATED = "io.modelcontextprotocol/related-task"
ENDED = frozenset({"completed", "failed", "cancelled"})
PAGE = 4
TICK = 0.02  # seconds
MAXIMUM = 24 * 3_600_000
CAPABILITIES: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
FORMS = {
    "confirm": {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]},
    "name": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
SUPPORT = {
    "greet": "forbidden",
    "slow_compute": "optional",
    "failing_job": "required",
    "protocol_error_job": "optional",
    "confirm_delete": "optional",
    "multi_input": "optional",
    "test_tool_with_progress": "optional",
}


def untouched(_: str, __: Body, body: Body) -> Body:
    """Return the body unchanged."""
    return body


def text(said: str, *, wrong: bool = False) -> Body:
    """Return a tool result with this text."""
    return {"content": [{"type": "text", "text": said}], "isError": wrong}


@dataclass(slots=True, eq=False)
class Client:
    """A client session."""

    version: str
    elicits: bool
    owner: str
    pushed: asyncio.Queue[Body | None] = field(default_factory=asyncio.Queue["Body | None"])
    asked: dict[str, tuple[Work, str]] = field(default_factory=dict[str, "tuple[Work, str]"])


@dataclass(slots=True, eq=False)
class Work:
    """A task, and the call that created it."""

    client: Client
    tool: str
    ttl: Any  # any JSON, if a fault lets it in
    token: str | None
    label: str
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    status: str = "working"
    message: str | None = None
    created: str = field(default_factory=now)
    updated: str = field(default_factory=now)
    end: Body | None = None  # result or error
    open: set[str] = field(default_factory=set[str])
    polls: int = 0
    looks: int = 0
    already_asked: set[str] = field(default_factory=set[str])
    waiting: int = 0
    changes: int = 0

    def show(self) -> Body:
        """Return the task as the protocol represents it."""
        shown: Body = {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.created,
            "lastUpdatedAt": self.updated,
            "ttl": self.ttl,
            "pollInterval": 500,
        }
        return shown if self.message is None else {**shown, "statusMessage": self.message}


class Receiver:
    """The server, with these faults; `mutate` may change every reply and message before it is sent."""

    def __init__(self, *faults: str, mutate: Mutate | None = None) -> None:
        self.faults = faults
        self.mutate: Mutate = mutate or untouched
        self.clients: dict[str, Client] = {}
        self.works: dict[str, Work] = {}
        self.running: set[asyncio.Task[None]] = set()
        self.closed = False
        self.events = EventServer(faults, lambda method, params, body: self.mutate(method, params, body))
        self.route = Route("/mcp", self.serve, methods=["GET", "POST", "DELETE"])

    def close(self) -> None:
        """Stop the running tasks, and close the streams."""
        for task in (*self.running, *self.events.running):
            task.cancel()
        for client in self.clients.values():
            client.pushed.put_nowait(None)
        self.closed = True

    async def serve(self, request: Request) -> Response:
        """Handle a request to the MCP endpoint."""
        client = self.clients.get(request.headers.get("mcp-session-id", ""))
        if request.headers.get("mcp-protocol-version") == MODERN:
            client = Client(version=MODERN, elicits=False, owner=request.headers.get("authorization", ""))
        if request.method == "DELETE":
            return Response(status_code=204)
        if request.method == "GET":
            assert client is not None
            if "last-event-id" in request.headers:
                return _stream(self.result(client, *json.loads(request.headers["last-event-id"])))
            return Response(status_code=405) if "no-get" in self.faults else _stream(_until_closed(client.pushed))
        try:
            body = await request.json()
        except ClientDisconnect:
            return Response(status_code=400)
        if body.get("method") == "initialize":
            return self.initialize(body, request.headers.get("authorization", ""))
        if client is None:
            return Response(status_code=404)
        if "method" not in body or "id" not in body:
            return self.heard(client, body)
        return await self.answer(client, body)

    def initialize(self, body: Body, owner: str) -> Response:
        """Open a session."""
        version, key = body["params"]["protocolVersion"], secrets.token_hex(8)
        client = Client(version=version, elicits="elicitation" in body["params"]["capabilities"], owner=owner)
        self.clients[key] = client
        tasks = {"tasks": CAPABILITIES} if version == "2025-11-25" else {}
        result = {"protocolVersion": version, "serverInfo": {"name": "small", "version": "1"}}
        reply = {"result": {**result, "capabilities": {"tools": {}, **tasks, **declared_events()}}}
        return JSONResponse(
            self.finished("initialize", body["params"], reply, body["id"]), headers={"mcp-session-id": key}
        )

    def heard(self, client: Client, body: Body) -> Response:
        """Handle a response or a notification of the client."""
        work, key = client.asked.pop(str(body.get("id")), (None, ""))
        if work is not None and "method" not in body:
            if f"ignores-{body['result']['action']}" in self.faults:
                return Response(status_code=202)
            work.open.discard(key)
            if "ends-at-first-answer" in self.faults:
                work.open.clear()
            if not work.open:
                self.turn(work, "working")
            work.changes += 1
        if body.get("method") == "notifications/cancelled" and "cancelled-by-notification" in self.faults:
            for work in [work for work in self.works.values() if work.client is client and work.status not in ENDED]:
                self.turn(work, "cancelled", {"error": {"code": -32800, "message": "cancelled"}})
        return Response(status_code=202)

    async def answer(self, client: Client, body: Body) -> Response:
        """Handle a JSON-RPC request."""
        method, params = body["method"], part(body, "params")
        if method == "tasks/result":
            if "closes-streams" in self.faults:  # and takes them up again
                return _stream(_once({}), event_id=json.dumps([body]))
            return _stream(self.result(client, body))
        if method == "events/stream":
            return await self.stream_events(client, body)
        try:
            reply: Body = {"result": await self.table(method)(client, params)}
        except Refused as refused:
            reply = {"error": refused.body}
        finished = self.finished(method, params, reply, body["id"])
        if method == "tasks/get" and "get-streams" in self.faults:
            return _stream(_once(finished))
        return JSONResponse(finished)

    async def stream_events(self, client: Client, body: Body) -> Response:
        """Handle events/stream."""
        params = part(body, "params")
        try:
            frames = self.events.stream(client.owner, id(client), params, body["id"])
        except Refused as refused:
            return JSONResponse(self.finished("events/stream", params, {"error": refused.body}, body["id"]))
        return _stream(frames)

    async def discover(self, _: Client, __: Body) -> Body:
        """Handle server/discover."""
        return {"resultType": "complete", "supportedVersions": [MODERN], "capabilities": declared_events()}

    def table(self, method: str) -> Callable[[Client, Body], Awaitable[Body]]:
        """Return the handler of a method."""
        methods = {
            "ping": self.ping,
            "tools/list": self.tools,
            "tools/call": self.call,
            "tasks/get": self.get,
            "tasks/list": self.list,
            "tasks/cancel": self.cancel,
            "server/discover": self.discover,
            **{
                f"events/{name}": partial(_of_owner, handle)
                for name, handle in {
                    "list": self.events.list,
                    "poll": self.events.poll,
                    "subscribe": self.events.subscribe,
                    "unsubscribe": self.events.unsubscribe,
                }.items()
            },
        }
        if method not in methods:
            raise Refused(-32601, "no such method")
        return methods[method]

    def finished(self, method: str, params: Body, reply: Body, number: Any) -> Body:
        """Return the JSON-RPC response, after `mutate`."""
        return {"jsonrpc": "2.0", "id": number, **self.mutate(method, params, reply)}

    async def ping(self, client: Client, _: Body) -> Body:
        """Handle ping."""
        while "ping-waits" in self.faults and any(
            work.waiting for work in self.works.values() if work.client is client
        ):
            await asyncio.sleep(0.02)
        return {}

    async def tools(self, _: Client, __: Body) -> Body:
        """Handle tools/list."""
        schema = {"type": "object"}
        return {
            "tools": [
                {"name": name, "inputSchema": schema, "execution": {"taskSupport": support}}
                for name, support in SUPPORT.items()
            ]
        }

    async def call(self, client: Client, params: Body) -> Body:
        """Handle tools/call, with or without a task."""
        name, wanted = params["name"], params.get("task")
        as_task = wanted is not None and (client.version == "2025-11-25" or "tasks-anywhere" in self.faults)
        support = SUPPORT[name]
        if name == "greet" and (not as_task or "forbidden-anyway" in self.faults):
            return text(f"Hello, {params['arguments']['name']}!")
        if support == ("forbidden" if as_task else "required"):
            raise Refused(-32601, "this tool must be a task" if support == "required" else "this tool is no task")
        work = self.started(client, params)
        if as_task:
            return {"task": await self.created(work, params)}
        while work.end is None and not self.closed:
            await self.change(work)
        return _unpacked(work.end or {"error": {"code": -32603, "message": "closed"}})

    async def created(self, work: Work, params: Body) -> Body:
        """Return the new task as the CreateTaskResult shows it."""
        begun = work.show()
        while "slow-creation" in self.faults and not self.closed and work.label == "slow" and work.status not in ENDED:
            await self.change(work)
        if "progress-only-before" in self.faults and work.token:
            self.push(work, "notifications/progress", {"progressToken": work.token, "progress": 0}, meta=True)
            await asyncio.sleep(0.2)
        chosen = params["task"].get("taskId")
        if chosen and "takes-ids" in self.faults:
            begun["taskId"] = chosen
        return begun

    def started(self, client: Client, params: Body) -> Work:
        """Create a task, and start its work."""
        wanted = part(params, "task").get("ttl", 3_600_000)
        if isinstance(wanted, str) and "string-ttl" not in self.faults:
            raise Refused(-32602, "params.task.ttl must be a number")
        token = part(params, "_meta").get("progressToken")
        ttl = wanted if isinstance(wanted, str) or "any-ttl" in self.faults else min(wanted, MAXIMUM)
        ttl = 60_000 if "own-ttl" in self.faults else ttl
        label = part(params, "arguments").get("label", "")
        work = Work(client=client, tool=params["name"], ttl=ttl, token=token, label=label)
        before = [other for other in self.works.values() if other.client is client and other.label == "quick"]
        if "same-ids" in self.faults and len(before) == 2:
            work.id = before[-1].id
        if "short-ids" in self.faults:
            work.id = f"task-{len(self.works) + 1:06}"
        self.works[work.id] = work
        running = asyncio.get_running_loop().create_task(self.run(work, part(params, "arguments")))
        self.running.add(running)
        return work

    async def run(self, work: Work, arguments: Body) -> None:
        """Do the work of a tool."""
        match work.tool:
            case "slow_compute":
                await asyncio.sleep(arguments["seconds"])
                end = {"result": text(f"computed {work.label}")}
                self.turn(work, "failed" if f"fails-{work.label}" in self.faults else "completed", end)
            case "failing_job":
                wrong = "completed" if "is-error-completed" in self.faults else "failed"
                self.turn(work, wrong, {"result": text("no such disk", wrong=True)}, "it failed: no such disk")
            case "protocol_error_job":
                wrong = "completed" if "error-completed" in self.faults else "failed"
                self.turn(work, wrong, {"error": {"code": -32603, "message": "boom"}}, "boom")
            case "test_tool_with_progress":
                await self.count(work)
            case asks:
                work.open = {"confirm"} if asks == "confirm_delete" else {"confirm", "name"}
                self.turn(work, "input_required")
                while work.open:
                    await self.change(work)
                await asyncio.sleep(0.05)
                self.turn(work, "completed", {"result": text("thank you")})

    async def count(self, work: Work) -> None:
        """Send progress notifications, and complete the task."""
        for value in (1, 2, 3):
            await asyncio.sleep(0.05)
            if "progress-only-before" not in self.faults:
                self.push(work, "notifications/progress", {"progressToken": work.token, "progress": value}, meta=True)
        self.turn(work, "completed", {"result": text("counted")})
        if "late-progress" in self.faults:
            await asyncio.sleep(0.3)
            self.push(work, "notifications/progress", {"progressToken": work.token, "progress": 4}, meta=True)

    def turn(self, work: Work, status: str, end: Body | None = None, message: str | None = None) -> None:
        """Change the status, unless the task has ended."""
        if work.status in ENDED and "revives" not in self.faults:
            return
        work.status, work.end, work.message, work.updated = status, end, message, now()
        work.changes += 1
        self.push(work, "notifications/tasks/status", work.show())
        if status in ENDED:
            self.events.happened(work.client.owner, {"taskId": work.id, "tool": work.tool, "status": status})

    async def change(self, work: Work) -> None:
        """Wait until the task changes."""
        seen = work.changes
        while work.changes == seen and not self.closed:
            await asyncio.sleep(TICK)

    async def hang(self) -> None:
        """Wait until the receiver is closed."""
        while not self.closed:
            await asyncio.sleep(TICK)

    def push(self, work: Work, method: str, params: Body, *, meta: bool = False) -> None:
        """Send a notification on the GET stream."""
        related = {"_meta": {RELATED: {"taskId": work.id}}} if meta else {}
        if method != "notifications/progress" or work.token is not None:
            told = self.mutate(method, {}, {"params": {**params, **related}})
            if told:
                work.client.pushed.put_nowait({"jsonrpc": "2.0", "method": method, **told})

    def load(self, client: Client, method: str, params: Body) -> Work:
        """Return the client's task, or refuse the request."""
        work = self.works.get(params["taskId"]) if isinstance(params.get("taskId"), str) else None
        if f"trusts-meta {method}" in self.faults and (meta := part(params, "_meta").get(RELATED)):
            work = self.works[meta["taskId"]]
        foreign = work is not None and work.client.owner != client.owner
        if foreign and "tells-foreign" in self.faults:
            raise Refused(-32602, "this task belongs to somebody else")
        if work is not None and work.client is not client and "session-bound" in self.faults:
            raise Refused(-32602, "Failed to retrieve task: Task not found")
        if work is not None and isinstance(work.ttl, int) and "keeps-expired" not in self.faults:
            age = datetime.now(UTC) - datetime.fromisoformat(work.created.replace("Z", "+00:00"))
            work = work if age < timedelta(milliseconds=work.ttl) else None
        if work is None or (foreign and f"not-isolated {method}" not in self.faults):
            raise Refused(-32602, "Failed to retrieve task: Task not found")
        return work

    async def get(self, client: Client, params: Body) -> Body:
        """Handle tasks/get; a client that only polls is sent its questions on the GET stream."""
        work = self.load(client, "tasks/get", params)
        work.looks += 1
        if "known-late" in self.faults and work.looks == 1 and work.label == "slow":
            raise Refused(-32602, "not yet")
        work.polls += work.status == "input_required"
        if work.polls == 3 and not work.waiting and "asks-no-poller" not in self.faults:
            for key in sorted(work.open):
                if (question := self.question(client, work, key)) is not None:
                    client.pushed.put_nowait(question)
        return work.show()

    async def list(self, client: Client, params: Body) -> Body:
        """Handle tasks/list, newest first; the cursor is the id of the last task on the page."""
        everybody = "lists-all" in self.faults
        own = [work for work in reversed(self.works.values()) if everybody or work.client.owner == client.owner]
        ids = [work.id for work in own]
        cursor = params.get("cursor")
        if "any-cursor" in self.faults and cursor not in ids:
            cursor = None
        if cursor is not None and cursor not in ids:
            raise Refused(-32602, "no such cursor")
        start = 0 if cursor is None else ids.index(cursor) + 1
        page = own[start : start + PAGE]
        more = {"nextCursor": page[-1].id} if len(own) > start + PAGE else {}
        return {"tasks": [work.show() for work in page], **more}

    async def cancel(self, client: Client, params: Body) -> Body:
        """Handle tasks/cancel."""
        work = self.load(client, "tasks/cancel", params)
        if f"cancels-{work.status}" in self.faults:
            return work.show()
        if work.status in ENDED or f"keeps-{work.status}" in self.faults:
            raise Refused(-32602, f"Cannot cancel task: already in terminal status {work.status!r}")
        end = {"error": {"code": -32800, "message": "the task was cancelled"}}
        if "cancels-later" in self.faults:
            asyncio.get_running_loop().call_later(0.2, self.turn, work, "cancelled", end)
            return {**work.show(), "status": "cancelled"}
        self.turn(work, "cancelled", end)
        return work.show()

    async def result(self, client: Client, body: Body) -> AsyncIterator[Body]:
        """Yield the messages of tasks/result: questions, then the response."""
        params = part(body, "params")
        try:
            work = self.load(client, "tasks/result", params)
            if work.waiting and "one-waiter" in self.faults:
                raise Refused(-32603, "somebody waits for this already")
        except Refused as refused:
            yield self.finished("tasks/result", params, {"error": refused.body}, body["id"])
            return
        if work.status == "cancelled" and "result-of-cancelled-hangs" in self.faults:
            await self.hang()
        begun = work.end is None
        asked = work.already_asked if "asks-once" in self.faults else set[str]()
        work.waiting += 1
        try:
            while work.end is None and not self.closed:
                for key in sorted(work.open - asked)[: not asked if "asks-first-only" in self.faults else None]:
                    asked.add(key)
                    if "asks-nobody" not in self.faults and (question := self.question(client, work, key)) is not None:
                        yield question
                if f"does-not-wait-{work.status}" in self.faults:
                    break
                await self.change(work)
        except asyncio.CancelledError:  # the client has disconnected
            if "dies-with-connection" in self.faults:
                self.turn(work, "cancelled", {"error": {"code": -32800, "message": "the client is gone"}})
            raise
        finally:
            work.waiting -= 1
        if work.status == "cancelled" and begun and "waiting-result-hangs" in self.faults:
            await self.hang()
        yield self.finished("tasks/result", params, self.told(work), body["id"])

    def told(self, work: Work) -> Body:
        """Return the outcome of the task for tasks/result."""
        end = work.end or {"result": text("not yet")}
        if "error" in end:
            return end
        return {"result": {**end["result"], "_meta": {RELATED: {"taskId": work.id}}}}

    def question(self, client: Client, work: Work, key: str) -> Body | None:
        """Return an elicitation request, or None for a client without the capability."""
        if not client.elicits and "asks-anybody" not in self.faults:
            return None
        number = secrets.token_hex(4)
        client.asked[number] = (work, key)
        params: Body = {"mode": "form", "message": f"{key}?", "requestedSchema": FORMS[key]}
        params["_meta"] = {RELATED: {"taskId": work.id}}
        told = self.mutate("elicitation/create", {}, {"params": params})
        return {"jsonrpc": "2.0", "id": number, "method": "elicitation/create", **told}


@asynccontextmanager
async def serve(*receivers: Receiver) -> AsyncGenerator[Sequence[str]]:
    """Serve these receivers in this process, and yield their URLs."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    port = listening.getsockname()[1]
    app = Starlette(routes=[Mount(f"/{n}", routes=[receiver.route]) for n, receiver in enumerate(receivers)])
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve, [listening])
        try:
            yield [f"http://127.0.0.1:{port}/{n}/mcp" for n in range(len(receivers))]
        finally:
            for receiver in receivers:
                receiver.close()
            server.should_exit = True


def _unpacked(end: Body) -> Body:
    if "error" in end:
        raise Refused(end["error"]["code"], end["error"]["message"])
    return end["result"]


async def _of_owner(handle: Callable[[str, Body], Awaitable[Body]], client: Client, params: Body) -> Body:
    return await handle(client.owner, params)


async def _once(message: Body) -> AsyncIterator[Body]:
    yield message


async def _until_closed(queue: asyncio.Queue[Body | None]) -> AsyncIterator[Body]:
    while (message := await queue.get()) is not None:
        yield message


def _stream(messages: AsyncIterator[Body], *, event_id: str = "") -> Response:
    async def events() -> AsyncIterator[str]:
        yield ": open\n\n"
        async for message in messages:
            number = f"id: {event_id}\n" if event_id else ""
            yield f"event: message\n{number}data: {json.dumps(message) if message else ''}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")
