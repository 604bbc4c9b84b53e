"""Plain functions as an adapter: what they may return and raise, and the threads they run in."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import IncompleteRead
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import httpx2
import pytest
import requests
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

import mcp_workflows.kit.functions
from mcp_workflows import Tool, attach, from_functions
from mcp_workflows.adapter import (
    Adapter,
    Execution,
    InputRequest,
    Ref,
    Start,
    StartGuarantee,
    Status,
)
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import (
    ConfigError,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    ExecutionNotFound,
)
from mcp_workflows.kit.error_table import Errors
from mcp_workflows.kit.functions import FunctionsAdapter
from mcp_workflows.testing import AdapterContract, MemoryAdapter, MemorySettings, Role, Subject

pytestmark = pytest.mark.anyio

PATIENCE = 60
REF = Ref(workflow="press", handle="h")
START = Start(workflow="press", arguments={}, key="k", created=datetime.now(UTC))


class TestAsyncFunctions(AdapterContract):
    """Async functions in front of a whole engine: all laws, no gaps."""

    lacks = frozenset({"has_stopped", "losing_replies", "refused"})

    @pytest.fixture
    def subject(self) -> Subject:
        settings = MemorySettings(name=uuid.uuid4().hex)

        def of(engine: MemoryAdapter) -> Adapter:
            return from_functions(
                start=engine.start,
                describe=engine.describe,
                cancel=engine.cancel,
                answer=engine.answer,
                starts=StartGuarantee.KEYED,
            )

        return Subject(
            new_adapter=lambda: of(MemoryAdapter(settings)),
            finishes=Role(workflow="echo", arguments=[{"text": "hi"}]),
            output={"text": "hi"},
            other_arguments=[{"text": "ho"}],
            fails=Role(workflow="fail"),
            failure="declined",
            endless=Role(workflow="forever"),
            asks=Role(workflow="ask"),
            asks_two=Role(workflow="ask_two"),
            content={"answer": "yes"},
            unreachable=lambda: of(MemoryAdapter(MemorySettings(name=uuid.uuid4().hex, unreachable=True))),
        )


def nothing(ref: Ref) -> None:
    """A cancel that does nothing."""


def key(start: Start) -> str:
    return start.key


def running(ref: Ref) -> Status:
    return Status.RUNNING


def asking(ref: Ref) -> Execution:
    question = InputRequest(method="elicitation/create", params={"message": "?", "requestedSchema": {}})
    return Execution(status=Status.INPUT_REQUIRED, requests={"q": question})


def raising(error: Exception) -> Callable[[Ref], Status]:
    def describe(ref: Ref) -> Status:
        raise error

    return describe


async def described(describe: Callable[[Ref], Any], errors: Errors) -> Execution:
    async with from_functions(start=key, describe=describe, cancel=nothing, errors=errors) as adapter:
        return await adapter.describe(REF)


@pytest.mark.parametrize("status", [*Status, "running"])
async def test_a_status_is_enough_of_a_look(status: str) -> None:
    seen = await described(lambda ref: status, {})
    assert (seen.status, seen.execution_id, seen.failure is not None) == (status, "h", status == "failed")


@pytest.mark.parametrize(("wrong", "told"), [(None, "returned nothing"), (7, "returned a int"), ("done", "a str")])
async def test_what_is_no_look_ends_no_task_and_says_so(wrong: object, told: str) -> None:
    with pytest.raises(EngineUnavailable, match=f"{told}.*must return an Execution or a Status"):
        await described(lambda ref: wrong, {})


@pytest.mark.parametrize("wrong", [None, 7, ""])
async def test_a_start_without_a_handle_says_so(wrong: Any) -> None:
    async with from_functions(start=lambda start: wrong, describe=running, cancel=nothing) as adapter:
        with pytest.raises(EngineUnavailable, match="must return the handle") as error:
            await adapter.start(START)
    assert error.value.sent


@pytest.mark.parametrize(
    ("raised", "crosses"),
    [
        (EngineRefused("no"), EngineRefused),
        (ConnectionRefusedError("s3cret"), EngineUnavailable),
        (TimeoutError("s3cret"), EngineUnavailable),
        (KeyError("s3cret"), ExecutionNotFound),
        (FileNotFoundError("s3cret"), ExecutionNotFound),
    ],
    ids=repr,
)
async def test_a_foreign_error_is_translated_by_the_table(raised: Exception, crosses: type[EngineError]) -> None:
    with pytest.raises(crosses) as error:
        await described(raising(raised), {FileNotFoundError: ExecutionNotFound, LookupError: ExecutionNotFound})
    assert "s3cret" not in str(error.value)
    assert getattr(error.value, "sent", True)  # whether anything was sent, only the function can know


async def test_a_defect_is_logged_with_its_trace_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    adapter = from_functions(start=key, describe=raising(ZeroDivisionError("1/0")), cancel=nothing)
    async with Engines({"acme": adapter}) as engines:
        with pytest.raises(EngineUnavailable, match="ZeroDivisionError"):
            async with engines.calling("acme") as acme:
                await acme.describe(REF)
    assert "Traceback" in caplog.text


async def test_an_answer_without_a_function_is_refused_only_if_it_was_asked_for() -> None:
    async with from_functions(start=key, describe=asking, cancel=nothing) as adapter:
        await adapter.answer(REF, {"nobody-asked": {"action": "accept"}})
        with pytest.raises(EngineRefused, match="give `answer` to from_functions"):
            await adapter.answer(REF, {"q": {"action": "accept"}})


# --- what HTTP clients raise

TOKEN = "s3cret"


@dataclass(slots=True)
class Web:
    """An HTTP server on a thread: it answers each request with this status and body, and counts the POSTs."""

    url: str
    status: int = 422
    body: bytes = b'{"error": "days: not over 30"}'
    posts: int = 0
    lost: bool = False  # the connection breaks in the middle of the answer
    pause: float = 0  # seconds before each byte of the body


@contextmanager
def serving_web() -> Generator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(web.status)
            self.send_header("Content-Length", str(len(web.body) + web.lost))
            self.send_header("X-Token", TOKEN)
            self.end_headers()
            with suppress(OSError):
                for piece in re.findall(b"." if web.pause else b".*", web.body, re.DOTALL):
                    time.sleep(web.pause)
                    self.wfile.write(piece)

        def do_POST(self) -> None:
            web.posts += 1
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is http.server's
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        web = Web(url=f"http://user:{TOKEN}@127.0.0.1:{server.server_address[1]}/orders?key={TOKEN}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield web
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def web() -> Iterator[Web]:
    with serving_web() as served:
        yield served


def of_urllib(url: str) -> None:
    with urllib.request.urlopen(url.replace(f"user:{TOKEN}@", ""), b"{}", timeout=PATIENCE) as reply:
        reply.read()


def of_requests(url: str) -> None:
    requests.post(url, json={}, timeout=PATIENCE).raise_for_status()


def of_requests_streaming(url: str) -> None:
    requests.post(url, json={}, timeout=PATIENCE, stream=True).raise_for_status()


def of_httpx(url: str) -> None:
    httpx.post(url, json={}, timeout=PATIENCE).raise_for_status()


def of_httpx2(url: str) -> None:
    httpx2.post(url, json={}, timeout=PATIENCE).raise_for_status()


async def of_async_httpx(url: str) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        (await client.post(url, json={})).raise_for_status()


Ask = Callable[[str], Awaitable[None] | None]
CLIENTS: Final[Sequence[Ask]] = [of_urllib, of_requests, of_requests_streaming, of_httpx, of_httpx2, of_async_httpx]


def asks(url: str, ask: Ask, starts: StartGuarantee = StartGuarantee.KEYED) -> Adapter:
    """Functions that send a request each, and let what comes of it through."""

    def call(*_: object) -> Any:
        return ask(url)

    return from_functions(start=call, describe=call, cancel=call, answer=call, starts=starts)


async def met(adapter: Adapter) -> dict[str, EngineError]:
    """The errors that cross, by verb."""
    found: dict[str, EngineError] = {}
    async with adapter:
        calls: Mapping[str, Callable[[], Awaitable[object]]] = {
            "start": lambda: adapter.start(START),
            "describe": lambda: adapter.describe(REF),
            "answer": lambda: adapter.answer(REF, {}),
            "cancel": lambda: adapter.cancel(REF),
        }
        for verb, call in calls.items():
            with pytest.raises(EngineError) as error:
                await call()
            found[verb] = error.value
    return found


@pytest.mark.parametrize("ask", CLIENTS)
async def test_a_refusal_over_http_is_a_definite_no_with_the_reason_of_the_engine(ask: Ask, web: Web) -> None:
    found = await met(asks(web.url, ask))
    unavailable = found.pop("describe")
    assert {verb: (type(error), str(error)) for verb, error in found.items()} == dict.fromkeys(
        ("start", "answer", "cancel"), (EngineRefused, "it answered 422: days: not over 30")
    )
    assert isinstance(unavailable, EngineUnavailable)
    assert not unavailable.silent  # it has answered


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
async def test_what_may_be_well_later_is_no_refusal(status: int, web: Web) -> None:
    web.status = status
    web.body = b"days: 30 at line 3"
    for error in (await met(asks(web.url, of_urllib))).values():
        assert isinstance(error, EngineUnavailable)
        assert ("line 3" in str(error)) is (status < 500)
        assert (error.sent, error.throttled) == (True, status == HTTPStatus.TOO_MANY_REQUESTS)


@pytest.mark.parametrize("status", [404, 410])
async def test_an_execution_is_gone_when_a_look_says_so(status: int, web: Web) -> None:
    web.status = status
    found = await met(asks(web.url, of_urllib))
    assert {verb: type(error) for verb, error in found.items()} == {
        **dict.fromkeys(("start", "answer", "cancel"), EngineRefused),
        "describe": ExecutionNotFound,
    }


@pytest.mark.parametrize(
    ("starts", "crosses"), [(StartGuarantee.KEYED, EngineUnavailable), (StartGuarantee.ONCE, EngineRefused)]
)
async def test_a_conflict_at_a_start_under_a_key_does_not_say_that_nothing_was_started(
    starts: StartGuarantee, crosses: type[EngineError], web: Web
) -> None:
    web.status = 409
    found = await met(asks(web.url, of_urllib, starts))
    assert type(found["start"]) is crosses
    assert "days: not over 30" in str(found["start"])
    assert (type(found["answer"]), type(found["cancel"])) == (EngineRefused, EngineRefused)


@pytest.mark.parametrize(
    ("status", "final"), [(400, False), (401, False), (403, False), (404, False), (413, True), (422, True)]
)
async def test_only_a_no_to_the_input_itself_is_one_to_earlier_attempts(status: int, final: bool, web: Web) -> None:
    web.status = status
    refused = (await met(asks(web.url, of_urllib)))["start"]
    assert isinstance(refused, EngineRefused)
    assert refused.final is final


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"error": {"code": 400, "message": "no such account", "status": "INVALID_ARGUMENT"}}, ": no such account"),
        ({"title": "Out of credit", "detail": "30 is more than 20"}, ": 30 is more than 20"),
        ({"detail": [{"loc": ["body", "text"], "msg": "Field required"}]}, ": body.text: Field required"),
        ({"text": ["is missing"]}, ": text: is missing"),
        ({"code": 7, "request": {"headers": {"Authorization": f"Bearer {TOKEN}"}}}, " Bad Request"),
        ({"message": f"Bearer {TOKEN} may not"}, ": Bearer ... may not"),
        ('{"trace": "at com.acme.Orders.take(Orders.java:3)", "message": "cut', " Bad Request"),
        ("plain \u202ewords\r\n\x1b[2Jof it", ": plain words [2Jof it"),
        ("<html><h1>Nothing here</h1></html>", " Bad Request"),
        ('Traceback (most recent call last):\n  File "orders.py", line 3, in start', " Bad Request"),
        ({"error": "no\n\tat com.acme.Orders.take(Orders.java:3)"}, " Bad Request"),
        ("", " Bad Request"),
        ("[" * 8000, " Bad Request"),
        ("words " * 5000, f": {('words ' * 84)[:499]}…"),
        (b"\xff\xfe", ": \ufffd\ufffd"),
    ],
    ids=repr,
)
async def test_the_reason_is_what_the_body_says_in_a_bounded_line(body: Any, told: str, web: Web) -> None:
    web.status = 400
    web.body = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    assert str((await met(asks(web.url, of_requests_streaming)))["start"]) == f"it answered 400{told}"


@pytest.mark.parametrize("ask", CLIENTS)
async def test_no_address_header_or_echoed_credential_crosses_with_a_refusal(
    ask: Ask, web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    web.status, web.body = 401, f'{{"error": "{TOKEN} is no valid key"}}'.encode()
    for verb, error in (await met(asks(web.url, ask))).items():
        assert isinstance(error, EngineUnavailable if verb == "describe" else EngineRefused)
        assert str(error) == "it answered 401: it does not accept our credentials"
    assert TOKEN not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("mcp_work"))


@pytest.mark.parametrize("ask", CLIENTS)
async def test_a_server_that_is_not_there_is_unavailable_and_no_defect(ask: Ask) -> None:
    for error in (await met(asks("http://127.0.0.1:1/", ask))).values():
        assert type(error) is EngineUnavailable
        assert str(error).startswith("its adapter met a ")


async def test_a_body_that_was_read_already_takes_only_the_reason_away(web: Web) -> None:
    def start(_: Start) -> str:
        try:
            of_urllib(web.url)
        except urllib.error.HTTPError as error:
            error.read()
            error.close()
            raise
        return "never"

    async with from_functions(start=start, describe=running, cancel=nothing) as adapter:
        with pytest.raises(EngineRefused, match="it answered 422 Unprocessable"):
            await adapter.start(START)


@dataclass
class ClientError(Exception):
    """As in aiohttp.client_exceptions, which is not installed here: the names and attributes are."""

    status: int = 0
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: {"X-Token": TOKEN})


def of_aiohttp(name: str, *parents: str) -> type[ClientError]:
    """A class of aiohttp by its name, under these."""
    above = of_aiohttp(*parents) if parents else ClientError
    return cast("type[ClientError]", type(name, (above,), {"__module__": "aiohttp.client_exceptions"}))


@pytest.mark.parametrize(
    ("error", "crosses", "told"),
    [
        (of_aiohttp("ClientResponseError")(422, "Not so"), EngineRefused, "it answered 422: Not so"),
        (of_aiohttp("ContentTypeError", "ClientResponseError")(200, "not JSON"), EngineUnavailable, "it answered 200"),
        (of_aiohttp("ClientHttpProxyError", "ClientResponseError")(403), EngineUnavailable, "its adapter met a"),
        (of_aiohttp("ServerDisconnectedError", "ClientConnectionError")(), EngineUnavailable, "its adapter met a"),
        (IncompleteRead(b""), EngineUnavailable, "its adapter met a IncompleteRead"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_other_clients_are_known_by_the_names_of_their_errors(
    error: Exception, crosses: type[EngineError], told: str
) -> None:
    async def start(_: Start) -> str:
        await anyio.lowlevel.checkpoint()
        raise error

    async with from_functions(start=start, describe=running, cancel=nothing) as adapter:
        with pytest.raises(crosses, match=told):
            await adapter.start(START)


class Slow:
    """A function that blocks until it is let go, and counts how many are in it at once."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.inside = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self, start: Start) -> str:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.entered.release()
        assert self.let_go.wait(PATIENCE)
        with self._lock:
            self.inside -= 1
        return f"handle-of-{start.key}"

    async def until_entered(self, times: int = 1) -> None:
        for _ in range(times):
            assert await anyio.to_thread.run_sync(self.entered.acquire, True, PATIENCE)


@asynccontextmanager
async def slow_adapter(
    slow: Slow, starts: StartGuarantee, threads: int = 8, describe: Callable[[Ref], Status] = running
) -> AsyncGenerator[Adapter]:
    made = from_functions(start=slow, describe=describe, cancel=nothing, starts=starts, threads=threads)
    async with made as adapter:
        try:
            yield adapter
        finally:
            slow.let_go.set()


async def test_blocking_functions_hold_up_nothing_and_stay_within_their_threads() -> None:
    slow, handles = Slow(), list[str]()

    async def begin(adapter: Adapter) -> None:
        handles.append(await adapter.start(START))

    async with slow_adapter(slow, StartGuarantee.KEYED, threads=2) as adapter, anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(begin, adapter)
        await slow.until_entered(2)
        assert handles == []
        slow.let_go.set()
    assert (handles, slow.most) == (["handle-of-k"] * 5, 2)


async def test_a_start_that_must_not_be_repeated_is_not_lost_when_time_is_up() -> None:
    slow, handles = Slow(), list[str]()

    async def begin(adapter: Adapter) -> None:
        async with Engines({"acme": adapter}, call_timeout=0.05) as engines, engines.calling("acme") as acme:
            with anyio.CancelScope() as scope:
                canceller.append(scope)
                handles.append(await acme.start(START))

    canceller: list[anyio.CancelScope] = []
    adapter = from_functions(start=slow, describe=running, cancel=nothing)
    async with anyio.create_task_group() as group:
        group.start_soon(begin, adapter)
        await slow.until_entered()
        canceller[0].cancel()
        await anyio.wait_all_tasks_blocked()
        slow.let_go.set()
    assert handles == ["handle-of-k"]


async def test_a_start_that_may_be_repeated_is_given_up_in_time_and_keeps_its_thread() -> None:
    slow = Slow()
    async with slow_adapter(slow, StartGuarantee.KEYED, threads=1) as adapter:
        with anyio.move_on_after(PATIENCE) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(adapter.start, START)
                await slow.until_entered()
                group.cancel_scope.cancel()
        assert not scope.cancelled_caught
        with anyio.move_on_after(0.05) as waiting:  # the only thread is still in the start that nobody waits for
            await adapter.describe(REF)
        assert waiting.cancelled_caught
        slow.let_go.set()
        with anyio.fail_after(PATIENCE):
            assert (await adapter.describe(REF)).status is Status.RUNNING


async def test_a_start_that_found_no_free_thread_was_certainly_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_workflows.kit.functions, "TURN", 0.05)
    slow = Slow()
    async with slow_adapter(slow, StartGuarantee.ONCE, threads=1) as adapter, anyio.create_task_group() as group:
        group.start_soon(adapter.start, START)
        await slow.until_entered()
        with pytest.raises(EngineUnavailable, match=r"all 1 threads .* are busy") as error:
            await adapter.start(START)
        assert not error.value.sent
        slow.let_go.set()


async def test_a_start_that_never_returns_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_workflows.kit.functions, "KEPT", 0.05)
    async with slow_adapter(Slow(), StartGuarantee.ONCE) as adapter:
        with pytest.raises(EngineUnavailable, match="nobody knows") as error:
            await adapter.start(START)
    assert error.value.sent


class Bounds(BaseModel):
    """Settings and options of an adapter of functions."""

    copies: int = 1


class PressAdapter(FunctionsAdapter):
    """What an entry point would name."""

    Settings = Bounds
    Options = Bounds
    starts = StartGuarantee.KEYED

    def __init__(self, settings: Bounds) -> None:
        super().__init__(start=key, describe=lambda ref: str_of(settings, ref), cancel=nothing)


def str_of(settings: Bounds, ref: Ref) -> Execution:
    return Execution(status=Status.SUCCEEDED, output=f"{settings.copies} copies")


async def test_a_subclass_has_settings_and_can_be_an_entry_point() -> None:
    async with PressAdapter(Bounds(copies=3)) as adapter:
        assert (await adapter.describe(REF)).output == "3 copies"
    async with adapter:  # entered again, as a server may be
        assert (await adapter.describe(REF)).output == "3 copies"


def test_options_nobody_declared_are_refused() -> None:
    tool = Tool(name="say", engine="press", workflow="echo", options={"copies": 2})
    with pytest.raises(ConfigError, match="copies"):
        attach(
            MCPServer("own"),
            tools=[tool],
            engines={"press": from_functions(start=key, describe=running, cancel=nothing)},
        )
    known = from_functions(start=key, describe=running, cancel=nothing, options=Bounds)
    assert attach(MCPServer("own"), tools=[tool], engines={"press": known})
