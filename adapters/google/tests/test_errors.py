"""The table of what Google says no with: all sixteen gRPC statuses on each call, from a server that does as told."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from math import inf
from typing import Any, Final

import anyio
import grpc
import pytest
from anyio.abc import ByteStream, SocketAttribute
from google.cloud.workflows import executions_v1 as ev
from mcp_workflows_google.client import PER_MINUTE, Client, limits, open_client
from mcp_workflows_google.connections import DeliveryOutcome
from mcp_workflows_google.errors import REASONS, RETRYABLE, STATUSES, PermissionDenied
from mcp_workflows_google.resources import ExecutionName, Place, WorkflowName
from mcp_workflows_google.settings import GoogleSettings, Quota

from adapters.google.tests.injecting import CUT, HANG, LOST, Fault, Injecting, Reply, injecting
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows.kit.token_bucket import UNLIMITED, Buckets
from mcp_workflows.testing import LossyProxy
from tests.support.child_processes import free_port
from tests.support.stopwatch import stopwatch
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.anyio

PLACE: Final = Place(project="demo", location="us-central1")
ORDERS: Final = WorkflowName(place=PLACE, workflow="orders")
EXECUTION: Final = ExecutionName(workflow=ORDERS, execution="e-1")
SECRET: Final = "hunter2"  # stands for what Google's own words may repeat
CALLBACK: Final = f"/v1/{EXECUTION.name}/callbacks/c-1"

VERBS: Final[dict[str, Callable[[Client], Awaitable[Any]]]] = {
    "CreateExecution": lambda calls: calls.create(ORDERS, "{}", {}),
    "GetExecution": lambda calls: calls.get(EXECUTION, full=True),
    "ListExecutions": lambda calls: calls.executions(ORDERS),
    "CancelExecution": lambda calls: calls.cancel(EXECUTION),
}
CODES: Final = sorted(code.name for code in grpc.StatusCode if code.name != "OK")

REFUSED, FINAL, DENIED, UNSURE, THROTTLED, NOT_FOUND = "refused", "final", "denied", "unsure", "throttled", "not found"
EVERYWHERE: Final = {
    "CANCELLED": UNSURE,
    "UNKNOWN": UNSURE,
    "INVALID_ARGUMENT": FINAL,
    "DEADLINE_EXCEEDED": UNSURE,
    "NOT_FOUND": REFUSED,  # a workflow, a location
    "ALREADY_EXISTS": REFUSED,
    "PERMISSION_DENIED": DENIED,
    "RESOURCE_EXHAUSTED": THROTTLED,
    "FAILED_PRECONDITION": REFUSED,
    "ABORTED": UNSURE,
    "OUT_OF_RANGE": FINAL,
    "UNIMPLEMENTED": REFUSED,
    "INTERNAL": UNSURE,
    "UNAVAILABLE": UNSURE,
    "DATA_LOSS": UNSURE,
    "UNAUTHENTICATED": REFUSED,
}
SPECIAL: Final = {
    ("GetExecution", "NOT_FOUND"): NOT_FOUND,
    ("CancelExecution", "NOT_FOUND"): NOT_FOUND,
    ("CancelExecution", "FAILED_PRECONDITION"): None,  # it has ended: nothing to cancel
}


@pytest.fixture(scope="module", autouse=True)
async def one_event_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Share one event loop: gRPC's thread tells it of a cancelled call when the test is over."""
    yield
    await anyio.sleep(0.1)


@pytest.fixture(scope="module")
def engine() -> Iterator[Injecting]:
    with injecting() as server:
        yield server


@pytest.fixture
def server(engine: Injecting) -> Injecting:
    """The one of this module, as new."""
    engine.clear()
    engine.executions[EXECUTION.name] = ev.Execution(name=EXECUTION.name, state=ev.Execution.State.ACTIVE)
    return engine


@pytest.fixture
async def calls(server: Injecting) -> AsyncIterator[Client]:
    async with open_client(settings(server)) as calls:
        yield calls


def settings(server: Injecting, seconds: float = 8) -> GoogleSettings:
    return GoogleSettings(location="us-central1", emulator=server.address, timeout_seconds=seconds)


async def outcome(calling: Awaitable[Any]) -> EngineError | None:
    try:
        await calling
    except EngineError as error:
        return error
    return None


def kind(error: EngineError | None) -> str | None:
    """Which of the words above it is."""
    match error:
        case None:
            return None
        case EngineUnavailable(throttled=True):
            assert not error.sent
            return THROTTLED
        case EngineUnavailable():
            assert error.sent
            return UNSURE
        case PermissionDenied():
            return DENIED
        case EngineRefused():
            return FINAL if error.final else REFUSED
        case _:
            assert isinstance(error, ExecutionNotFound)
            return NOT_FOUND


def test_the_table_speaks_of_all_sixteen_statuses() -> None:
    assert sorted(STATUSES) == CODES == sorted(EVERYWHERE)
    assert len(CODES) == 16
    assert set(STATUSES) >= RETRYABLE


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("code", CODES)
async def test_a_status_is_what_the_table_says(server: Injecting, calls: Client, verb: str, code: str) -> None:
    server.tell(verb, *[Fault(code=code, text=f"no: {SECRET}")] * 3)
    error = await outcome(VERBS[verb](calls))
    assert kind(error) == SPECIAL.get((verb, code), EVERYWHERE[code])
    assert SECRET not in str(error)
    assert error is None or error.__cause__ is None


@pytest.mark.parametrize("code", CODES)
async def test_a_create_and_a_cancel_are_made_once_whatever_comes_back(
    server: Injecting, calls: Client, code: str
) -> None:
    for verb in ("CreateExecution", "CancelExecution"):
        server.tell(verb, Fault(code=code))
        await outcome(VERBS[verb](calls))
        assert server.count(verb) == 1


@pytest.mark.parametrize("verb", ["GetExecution", "ListExecutions"])
async def test_a_read_is_made_again_after_what_may_pass(server: Injecting, calls: Client, verb: str) -> None:
    server.tell(verb, Fault(code="UNAVAILABLE"), CUT)
    await VERBS[verb](calls)
    assert server.count(verb) == 3


@pytest.mark.parametrize("code", sorted(set(CODES) - RETRYABLE - {"UNAUTHENTICATED"}))
async def test_a_read_is_not_made_again_after_what_stays(server: Injecting, calls: Client, code: str) -> None:
    server.tell("GetExecution", Fault(code=code))
    await outcome(VERBS["GetExecution"](calls))
    assert server.count("GetExecution") == 1


async def test_a_create_whose_reply_is_lost_may_have_been_sent(server: Injecting, calls: Client) -> None:
    unreached = Fault(code="UNAVAILABLE", text="failed to connect to all addresses", work=True)  # says who was asked
    for made, fault in enumerate((LOST, CUT, unreached), 2):
        server.tell("CreateExecution", fault)
        assert kind(await outcome(VERBS["CreateExecution"](calls))) == UNSURE
        with anyio.fail_after(TIMEOUT):  # the reply is lost before or after the work
            while len(server.executions) < made:
                await anyio.sleep(0.01)
        assert len(server.executions) == made


async def test_a_call_without_an_answer_ends_in_time(server: Injecting) -> None:
    found: dict[str, str | None] = {}

    async def call(calls: Client, verb: str) -> None:
        found[verb] = kind(await outcome(VERBS[verb](calls)))

    with stopwatch() as seconds:
        async with open_client(settings(server, 1)) as calls, anyio.create_task_group() as group:
            for verb in VERBS:
                server.tell(verb, HANG, HANG, HANG)
                group.start_soon(call, calls, verb)
        assert found == dict.fromkeys(VERBS, UNSURE)
        assert seconds() < 1.9


@pytest.mark.parametrize("verb", ["CreateExecution", "GetExecution"])
async def test_a_call_without_an_answer_ends_in_time_though_grpc_has_not_ended_it(
    server: Injecting, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """As after a stall of the machine, when all time is over at once."""
    monkeypatch.setattr("mcp_workflows_google.client._GRACE", -0.9)
    server.tell(verb, HANG)
    async with open_client(settings(server, 1)) as calls:
        assert kind(await outcome(VERBS[verb](calls))) == UNSURE


async def test_who_gives_up_on_a_read_is_given_up_alone(server: Injecting, calls: Client) -> None:
    server.tell("GetExecution", HANG)
    with anyio.move_on_after(0.2) as patience:
        await VERBS["GetExecution"](calls)
    assert patience.cancelled_caught


async def test_a_create_that_nobody_waits_for_any_more_is_finished(server: Injecting, calls: Client) -> None:
    server.tell("CreateExecution", Fault(delay=0.2))
    with anyio.move_on_after(0.05):
        await VERBS["CreateExecution"](calls)
    assert len(server.executions) == 2


@pytest.mark.parametrize("reason", REASONS)
async def test_a_reason_says_more_than_the_status(server: Injecting, calls: Client, reason: str) -> None:
    told = {"service": "workflowexecutions.googleapis.com", "consumer": "projects/123456789012"}
    server.tell("CreateExecution", Fault(code="PERMISSION_DENIED", text=SECRET, reason=reason, metadata=told))
    error = await outcome(VERBS["CreateExecution"](calls))
    assert isinstance(error, EngineRefused)
    assert REASONS[reason].text.partition("{")[0] in str(error)
    assert SECRET not in str(error)


@pytest.mark.parametrize(
    ("fault", "permission", "resource"),
    [
        (Fault(), "workflows.executions.create", ORDERS.name),
        (
            Fault(
                text=f"Permission 'workflows.executions.get' denied on resource '//x.googleapis.com/{ORDERS.name}' (..)"
            ),
            "workflows.executions.get",
            ORDERS.name,
        ),
        (
            Fault(reason="IAM_PERMISSION_DENIED", metadata={"permission": "workflows.x.y", "resource": "projects/p-1"}),
            "workflows.x.y",
            "projects/p-1",
        ),
        (
            Fault(reason="IAM_PERMISSION_DENIED", metadata={"permission": f"a\n{SECRET} b", "resource": f"{SECRET} c"}),
            "workflows.executions.create",
            ORDERS.name,
        ),
    ],
    ids=["ours", "text", "details", "no names"],
)
async def test_a_missing_permission_is_named_with_what_it_is_missing_on(
    server: Injecting, calls: Client, fault: Fault, permission: str, resource: str
) -> None:
    denied = Fault(code="PERMISSION_DENIED", text=fault.text, reason=fault.reason, metadata=fault.metadata)
    server.tell("CreateExecution", denied)
    with pytest.raises(PermissionDenied, match=re.escape(permission)) as caught:
        await calls.create(ORDERS, "{}", {})
    assert resource in str(caught.value)
    assert SECRET not in str(caught.value)


async def test_a_location_that_does_not_exist_is_told(server: Injecting, calls: Client) -> None:
    text = "Location us-central1 is not found or access is unauthorized."
    server.tell("CreateExecution", Fault(code="PERMISSION_DENIED", text=text))
    with pytest.raises(EngineRefused, match="there is no location us-central1"):
        await calls.create(ORDERS, "{}", {})


async def test_a_state_of_the_future_stays_a_number(server: Injecting, calls: Client) -> None:
    messages: Any = ev.Execution  # Any: the message beneath takes any number
    messages.pb(server.executions[EXECUTION.name]).state = 42
    assert (await calls.get(EXECUTION, full=True)).state == 42


async def test_lists_have_all_pages_or_as_many_as_wanted_or_those_since(server: Injecting, calls: Client) -> None:
    server.executions.clear()
    for _ in range(120):
        await calls.create(ORDERS, "{}", {"n": "1"})
    rows = await calls.executions(ORDERS, full=True)
    assert len({row.name for row in rows}) == 120
    assert server.count("ListExecutions") == 3
    assert [row.name for row in await calls.executions(ORDERS, limit=7)] == [row.name for row in rows[:7]]
    since = rows[9].start_time
    assert [row.name for row in await calls.executions(ORDERS, since=since)] == [row.name for row in rows[:10]]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(status=204), DeliveryOutcome.TAKEN),
        (Reply(status=404), DeliveryOutcome.GONE),
        (Reply(status=429), DeliveryOutcome.BUSY),
        (Reply(status=408), DeliveryOutcome.UNKNOWN),
        (Reply(status=500), DeliveryOutcome.UNKNOWN),
        (Reply(cut=True), DeliveryOutcome.UNKNOWN),
        (Reply(status=302, headers={"Location": "http://127.0.0.1:1/elsewhere"}), REFUSED),
        (Reply(status=307, headers={"Location": CALLBACK + "-2"}), REFUSED),
        (Reply(status=400, body={"error": {"status": "INVALID_ARGUMENT", "message": SECRET}}), FINAL),
        (Reply(status=401), REFUSED),
        (Reply(status=403, body=b"<html>"), DENIED),
    ],
    ids=str,
)
async def test_an_answer_is_delivered_once_or_told_why_not(
    server: Injecting, calls: Client, reply: Reply, expected: object
) -> None:
    server.reply(f"POST {CALLBACK}", reply)
    got: list[DeliveryOutcome] = []

    async def deliver() -> None:
        got.append(await calls.deliver(calls.rest_url + CALLBACK, "POST", {"action": "accept"}))

    error = await outcome(deliver())
    assert (got or [kind(error)]) == [expected]
    assert CALLBACK not in str(error)
    assert SECRET not in str(error)
    assert [each.what for each in server.asked] == [f"POST {CALLBACK}"]


async def test_an_answer_to_a_callback_that_does_not_reply_may_have_arrived(server: Injecting) -> None:
    server.reply(f"POST {CALLBACK}", Reply(hang=True))
    async with open_client(settings(server, 1)) as calls:
        assert await calls.deliver(calls.rest_url + CALLBACK, "POST", {}) is DeliveryOutcome.UNKNOWN


async def test_our_token_goes_to_google_or_the_emulator_and_nowhere_else(server: Injecting, calls: Client) -> None:
    for origin in (f"http://127.0.0.1:{free_port()}", "https://workflowexecutions.googleapis.com", "http://x.invalid"):
        with pytest.raises(EngineRefused, match="not at Google"):
            await calls.deliver(origin + CALLBACK, "POST", {})
    assert server.asked == []


async def test_callbacks_are_those_of_all_pages(server: Injecting, calls: Client) -> None:
    row = {"name": f"{EXECUTION.name}/callback/c-1", "method": "POST", "waiters": "2", "availablePayloads": ["a"]}
    path = f"GET /v1/{EXECUTION.name}/callbacks"
    odd: list[Any] = [row, None, {"name": 1}]
    server.reply(path, Reply(body={"callbacks": odd, "nextPageToken": "2"}), Reply(body={"callbacks": [row]}))
    found = await calls.callbacks(EXECUTION)
    assert [(each.id, each.method, each.waiters, each.payloads) for each in found] == [("c-1", "POST", 2, 1)] * 2
    server.reply(path, Reply(status=503), Reply(body={}))
    assert await calls.callbacks(EXECUTION) == []


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(status=404, body={"error": {"code": 404, "status": "NOT_FOUND"}}), NOT_FOUND),
        (Reply(status=403, body={"error": {"code": 403, "status": "PERMISSION_DENIED"}}), DENIED),
        (Reply(status=429), THROTTLED),
        (Reply(status=500), UNSURE),
        (Reply(status=200, body=b"<html>"), REFUSED),
        (Reply(status=200, body=b" " * (9 * 1024 * 1024)), REFUSED),
        (Reply(status=301, headers={"Location": "http://127.0.0.1:1/"}), REFUSED),
    ],
    ids=["404", "403", "429", "500", "not json", "endless", "moved"],
)
async def test_an_error_over_http_is_the_same_as_over_grpc(
    server: Injecting, calls: Client, reply: Reply, expected: str
) -> None:
    server.reply(f"GET /v1/{EXECUTION.name}/callbacks", reply)
    assert kind(await outcome(calls.callbacks(EXECUTION))) == expected


@pytest.fixture
def talking() -> Iterator[Callable[[bytes | None], int]]:
    """Ports where something says this to whoever connects, and closes; None: it says nothing."""
    listening: list[socket.socket] = []
    here: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def talk(says: bytes | None) -> int:
        listener = socket.create_server(("127.0.0.1", free_port()))
        listening.append(listener)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    here.append(client)
                    if says is not None:
                        with suppress(OSError), client:
                            client.recv(64)
                            client.sendall(says)

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield talk
    for each in listening:
        each.shutdown(socket.SHUT_RDWR)  # wakes who accepts: one more would be closed by nobody
    for thread in threads:
        thread.join(60)
    for each in listening + here:
        each.close()


HTTP: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
Talking = Callable[[bytes | None], int]


async def asked_of(**where: Any) -> EngineError:
    """What a create is answered there."""
    given = {"location": "us-central1", "project": "demo-1", **where}
    async with open_client(GoogleSettings.model_validate(given)) as calls:
        error = await outcome(calls.create(ORDERS, "{}", {}))
    assert error is not None
    return error


async def test_what_is_not_there_was_not_asked() -> None:
    port = free_port()
    error = await asked_of(emulator=f"127.0.0.1:{port}")
    assert isinstance(error, EngineUnavailable)
    assert not error.sent
    start = f"Start it: python -m mcp_workflows_google_local --port {port}"
    assert str(error).endswith(f"connection refused; is the local engine running there? {start}")


async def test_a_connection_that_takes_a_while_is_waited_for(server: Injecting) -> None:
    proxy = LossyProxy(int(server.address.partition(":")[2]))

    async def slowly(client: ByteStream) -> None:
        await anyio.sleep(0.8)  # a machine that is busy, or far away
        await proxy.serve(client)

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(listener.serve, slowly)
        here = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        async with open_client(GoogleSettings(location="us-central1", emulator=here)) as calls:
            assert (await calls.create(ORDERS, "{}", {})).name
        group.cancel_scope.cancel()


async def test_an_emulator_that_speaks_http_only_is_a_wrong_address_and_no_outage(talking: Talking) -> None:
    error = await asked_of(emulator=f"127.0.0.1:{talking(HTTP)}")
    assert isinstance(error, EngineRefused)
    assert "is not this API" in str(error)


async def test_google_s_own_words_are_in_no_log(
    server: Injecting, calls: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.tell("CreateExecution", Fault(code="INTERNAL", text=SECRET))
    await outcome(calls.create(ORDERS, f'"{SECRET}"', {}))
    assert SECRET not in caplog.text
    assert "Bearer" not in caplog.text


# --- quotas


def limited(server: Injecting, **quota: float) -> GoogleSettings:
    given = {"location": "us-central1", "emulator": server.address, "quota": quota}
    return GoogleSettings.model_validate(given)


@pytest.mark.parametrize("api", PER_MINUTE)
def test_no_minute_sees_more_than_our_share(api: str) -> None:
    ours = limits(api, Quota(share=0.5))
    assert ours.bucket + 60 * ours.refill == pytest.approx(PER_MINUTE[api] / 2)


def test_replicas_divide_the_share_and_a_project_with_other_quotas_says_so_per_api() -> None:
    assert limits("get_execution", Quota(share=1, replicas=4)).refill == pytest.approx(6000 / 4 / 60 * 5 / 6)
    assert limits("list_executions", Quota(share=0.001)).bucket == 1
    assert limits("get_execution", Quota(share=1, get_execution=60)).bucket == 10
    assert limits("list_executions", Quota(get_execution=60)) == limits("list_executions", Quota())


def test_a_local_engine_has_no_quota_unless_the_settings_say_so() -> None:
    assert limits("get_execution", None) == UNLIMITED
    calls = Client(GoogleSettings(location="us-central1", emulator="127.0.0.1:1"))
    assert calls.refill("get_execution") == inf
    assert calls.allowance.polls_per_second == 50
    assert Client(GoogleSettings(location="us-central1")).refill("get_execution") < 50


async def test_what_is_over_the_quota_is_held_back_here_and_was_not_sent(server: Injecting) -> None:
    tight = limited(server, share=1, write_executions=1)
    async with open_client(tight) as calls:
        await calls.create(ORDERS, "{}", {})
        with pytest.raises(EngineUnavailable, match="held back") as caught:
            await calls.create(ORDERS, "{}", {})
    assert (caught.value.sent, caught.value.throttled) == (False, True)
    assert server.count("CreateExecution") == 1


async def test_engines_of_one_project_and_location_share_a_quota(server: Injecting) -> None:
    tight = limited(server, share=1, list_executions=2)
    async with open_client(tight) as one, open_client(tight) as other:
        await one.executions(ORDERS)
        with pytest.raises(EngineUnavailable, match="held back"):
            await other.executions(ORDERS)


async def test_each_page_and_each_attempt_takes_a_token(server: Injecting) -> None:
    quota = {"list_executions": 1200, "get_execution": 600}
    calls = Client(limited(server, share=1, **quota), Buckets(clock=lambda: 0.0))  # nothing comes in

    def spare(api: str) -> float:
        return calls._caller.bucket(api).spare  # pyright: ignore[reportPrivateUsage]

    for _ in range(101):
        await calls.create(ORDERS, "{}", {})
    before = {api: spare(api) for api in quota}
    await calls.executions(ORDERS, full=True)
    server.tell("GetExecution", Fault(code="INTERNAL"), Fault(code="INTERNAL"))
    await calls.get(EXECUTION, full=False)
    assert {api: before[api] - spare(api) for api in quota} == {"list_executions": 3, "get_execution": 3}
    await calls.close()


async def test_when_google_throttles_we_ask_less_for_a_while(server: Injecting) -> None:
    async with open_client(limited(server, share=1, get_execution=60_000)) as calls:
        before = calls.allowance.polls_per_second
        server.tell("GetExecution", Fault(code="RESOURCE_EXHAUSTED", reason="RATE_LIMIT_EXCEEDED"))
        with pytest.raises(EngineUnavailable, match="throttles") as caught:
            await calls.get(EXECUTION, full=False)
        assert caught.value.throttled
        assert calls.refill("get_execution") < 60_000 / 60 * 5 / 6 * 0.6
        assert calls.allowance.polls_per_second <= before
        assert calls.allowance.burst == 0
    assert server.count("GetExecution") == 1
