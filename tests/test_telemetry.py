"""Traces and metrics by the semantic conventions for MCP; nothing in them is of anybody's making but the operator's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared import _otel as sdk  # the MCP SDK makes the server's spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from mcp_workflows import Tool
from mcp_workflows.access.audit import Event, Record, counting
from mcp_workflows.adapter import Allowance, Start
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import (
    AdapterBroke,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    ExecutionNotFound,
    StartConflict,
)
from mcp_workflows.telemetry import Telemetry
from tests.support.served import Peer, peer, site

pytestmark = pytest.mark.anyio

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
KEY = {"mcp-workflows/idempotencyKey": "0123456789abcdef0123456789abcdef"}


class Keeping(MemoryAdapter):
    """Remembers what it was told to start, and has a quota."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self.starts_seen: list[Start] = []

    async def start(self, start: Start) -> str:
        self.starts_seen.append(start)
        return await super().start(start)

    @property
    def allowance(self) -> Allowance:
        return Allowance(polls_per_second=10, batch_every=5, batch=100)


class Lab:
    """An OpenTelemetry SDK that keeps everything in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(meters=self.meters, tracers=self.tracers)

    def spans(self, name: str) -> Sequence[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self, name: str) -> Mapping[frozenset[tuple[str, Any]], Any]:
        """The points of one metric, by attributes."""
        found = {point_attributes(point): point for metric, point in self._all() if metric == name}
        return {key: point.value if isinstance(point, NumberDataPoint) else point for key, point in found.items()}

    def attributes(self) -> Iterator[tuple[str, str, Any]]:
        for metric, point in self._all():
            for key, value in point_attributes(point):
                yield metric, key, value

    def _all(self) -> Iterator[tuple[str, Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        yield metric.name, point


def point_attributes(point: Any) -> frozenset[tuple[str, Any]]:
    attributes: Mapping[str, Any] = point.attributes or {}
    return frozenset(attributes.items())


def labels(**given: str) -> frozenset[tuple[str, Any]]:
    return frozenset(given.items())


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    found = Lab()
    monkeypatch.setattr(sdk, "_tracer", found.tracers.get_tracer("mcp-python-sdk"))
    return found


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Keeping:
    return Keeping(MemorySettings(name=request.node.nodeid))


@pytest.fixture
async def client(lab: Lab, engine: Keeping, tmp_path: Path) -> Any:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with (
        site(store=store, adapters={"memory": engine}, telemetry=lab.telemetry) as served,
        peer(served.url) as found,
    ):
        yield found


async def created(client: Peer, tool: str = "forever", **more: Any) -> str:
    return str((await client.call(tool, **more)).result["taskId"])


async def test_a_call_is_a_span_of_the_clients_trace_and_the_start_is_below_it(client: Peer, lab: Lab) -> None:
    await created(client, meta=PARENT)
    [served] = lab.spans("tools/call forever")
    assert served.context is not None
    assert served.parent is not None
    assert served.attributes is not None
    assert (format(served.parent.trace_id, "032x"), format(served.parent.span_id, "016x")) == (TRACE, SPAN)
    assert served.kind is SpanKind.SERVER
    expected = {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2026-07-28",
        "gen_ai.tool.name": "forever",
        "gen_ai.operation.name": "execute_tool",
        "network.transport": "tcp",
    }
    assert {key: served.attributes[key] for key in expected} == expected
    assert "jsonrpc.request.id" in served.attributes
    [call] = lab.spans("engine.call")
    assert call.parent == served.context
    assert call.kind is SpanKind.CLIENT
    assert dict(call.attributes or {}) == {"mcp_workflows.engine": "memory", "mcp_workflows.api": "start"}


async def test_the_execution_gets_the_trace_with_our_span_as_its_parent(
    client: Peer, lab: Lab, engine: Keeping
) -> None:
    await created(client, meta=PARENT)
    [served], [start] = lab.spans("tools/call forever"), engine.starts_seen
    assert served.context is not None
    ours = format(served.context.span_id, "016x")
    assert start.context["traceparent"] == f"00-{TRACE}-{ours}-01"
    assert start.context["tracestate"] == "vendor=1"


async def test_without_an_sdk_the_execution_gets_the_clients_trace_as_it_is(tmp_path: Path, engine: Keeping) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with site(store=store, adapters={"memory": engine}) as served, peer(served.url) as client:
        await created(client, meta=PARENT)
        await created(client)
    first, second = engine.starts_seen
    assert {key: first.context[key] for key in PARENT} == PARENT
    assert "traceparent" not in second.context


async def test_a_poll_is_a_span_linked_to_that_of_the_creation(client: Peer, lab: Lab) -> None:
    task_id = await created(client, meta=PARENT)
    await client.get(task_id)
    [made], [polled] = lab.spans("tools/call forever"), lab.spans("tasks/get")
    assert polled.attributes is not None
    assert polled.attributes["gen_ai.tool.name"] == "forever"
    assert polled.parent is None
    assert [link.context.span_id for link in polled.links] == [made.context.span_id if made.context else 0]
    [look] = [span for span in lab.spans("engine.call") if (span.attributes or {})["mcp_workflows.api"] == "describe"]
    assert look.parent == polled.context


async def test_no_span_holds_an_id_of_a_task_or_an_argument(client: Peer, lab: Lab) -> None:
    task_id = await created(client, "echo", arguments={"order": "secret-order"})
    await client.until(task_id)
    await client.send("tasks/get", {"taskId": "f" * 40})
    for span in lab.exporter.get_finished_spans():
        text = span.to_json()
        assert task_id not in text
        assert "f" * 40 not in text
        assert "secret-order" not in text


async def test_requests_are_timed_by_closed_sets_of_labels_only(client: Peer, lab: Lab) -> None:
    task_id = await created(client)
    await client.get(task_id)
    await client.call("made-up-tool")
    await client.send("made/up", {})
    await client.send("tasks/get", {"taskId": "f" * 40})
    points = lab.points("mcp.server.operation.duration")
    modern = {"mcp.protocol.version": "2026-07-28", "network.transport": "tcp"}
    call = {"gen_ai.operation.name": "execute_tool", "mcp.method.name": "tools/call", **modern}
    for expected in (
        {"gen_ai.tool.name": "forever", **call},
        {"gen_ai.tool.name": "_OTHER", "error.type": "-32602", **call},
        {"mcp.method.name": "tasks/get", **modern},
        {"mcp.method.name": "tasks/get", "error.type": "-32602", **modern},
    ):
        assert frozenset(expected.items()) in points, expected
    assert {method for _, key, method in lab.attributes() if key == "mcp.method.name"} <= {
        *("tools/call", "tasks/get", "_OTHER", "server/discover")
    }
    assert all(task_id not in str(value) for _, _, value in lab.attributes())
    point = points[frozenset({"mcp.method.name": "tasks/get", **modern}.items())]
    assert list(point.explicit_bounds) == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300]


async def test_who_listens_no_more_is_no_error(client: Peer, lab: Lab) -> None:
    task_id = await created(client)
    async with client.stream("subscriptions/listen", {"notifications": {"taskIds": [task_id]}}) as (_, frames):
        await anext(frames)
    name = "mcp.server.operation.duration"
    with anyio.fail_after(60):
        while not (found := [key for key in lab.points(name) if ("mcp.method.name", "subscriptions/listen") in key]):
            await anyio.sleep(0.01)
    assert "error.type" not in dict(found[0])


async def test_what_is_not_found_and_what_is_prevented_and_healed_is_counted(
    client: Peer, lab: Lab, engine: Keeping
) -> None:
    await client.send("tasks/get", {"taskId": "f" * 40})
    assert lab.points("mcp_workflows.failed_lookups")[labels(method="tasks/get")] == 1
    for _ in range(3):
        await created(client, meta=KEY)
    prevented = lab.points("mcp_workflows.duplicate_start_prevented")
    assert prevented == {labels(engine="memory", tool="forever"): 2}
    assert lab.points("mcp_workflows.start_recovered") == {}
    engine.faults.lost_start_replies = 1
    task_id = await created(client)
    await client.get(task_id)
    assert lab.points("mcp_workflows.start_recovered") == {labels(engine="memory"): 1}
    calls = lab.points("mcp_workflows.engine_calls")
    assert calls[labels(engine="memory", api="start", outcome="unavailable")] == 1
    assert calls[labels(engine="memory", api="start", outcome="ok")] == 2


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StartConflict("x"), "conflict"),
        (EngineRefused("x"), "refused"),
        (ExecutionNotFound("x"), "not_found"),
        (EngineUnavailable("x"), "unavailable"),
        (EngineUnavailable("x", throttled=True), "throttled"),
        (RuntimeError("secret"), "broke"),
    ],
)
async def test_a_call_to_an_engine_is_counted_by_what_comes_of_it(
    lab: Lab, engine: Keeping, error: Exception, outcome: str
) -> None:
    async with Engines({"here": engine}, telemetry=lab.telemetry) as engines:
        with pytest.raises(EngineError), lab.tracers.get_tracer("t").start_as_current_span("request"):
            async with engines.calling("here", api="describe"):
                raise error
    counted = lab.points("mcp_workflows.engine_calls")
    assert counted == {labels(engine="here", api="describe", outcome=outcome): 1}
    [span] = lab.spans("engine.call")
    assert (span.attributes or {})["error.type"] == outcome
    assert "secret" not in span.to_json()
    assert isinstance(error, EngineError) or outcome == "broke", AdapterBroke


async def test_a_result_that_does_not_match_its_schema_is_counted_and_logged_once_without_its_value(
    lab: Lab, engine: Keeping, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tools = [Tool(name="count", engine="memory", workflow="echo", output=number)]
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with (
        site(store=store, tools=tools, adapters={"memory": engine}, telemetry=lab.telemetry) as served,
        peer(served.url) as client,
    ):
        task_id = await created(client, "count", arguments={"n": "hidden"})
        for _ in range(2):
            seen = await client.until(task_id)
            assert (seen["status"], seen["result"]["isError"]) == ("completed", False)
    assert lab.points("mcp_workflows.result_mismatches")[labels(engine="memory", tool="count")] == 1
    [said] = [record.getMessage() for record in caplog.records if "output schema" in record.getMessage()]
    assert "'count'" in said
    assert "hidden" not in said


async def test_the_census_shows_tasks_questions_and_quotas(lab: Lab, engine: Keeping, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with (
        site(store=store, adapters={"memory": engine}, telemetry=lab.telemetry) as served,
        peer(served.url) as client,
    ):
        await created(client)
        asking = await created(client, "ask")
        await client.until(asking, "input_required")
        assert lab.points("mcp_workflows.tasks") == {}, "nobody has counted yet"
        await served.workflows.count()
        tasks = lab.points("mcp_workflows.tasks")
        assert tasks == {labels(tool="forever", status="running"): 1, labels(tool="ask", status="input_required"): 1}
        assert set(lab.points("mcp_workflows.oldest_working_age")) == {labels(tool="forever")}
        [unanswered] = lab.points("mcp_workflows.oldest_question_age").values()
        assert 0 <= unanswered < 60
        [(whose, used)] = lab.points("mcp_workflows.quota_used_ratio").items()
        assert whose == labels(engine="memory")
        assert 0 < used <= engine.calls["describe"] / 60 / 10 + 0.001


REFUSED: Sequence[tuple[Record, Mapping[str, str]]] = [
    (Record(event=Event.DENY, principal="p", tool="t"), {"denials": "t"}),
    (Record(event=Event.DENY, principal="p", tool="t", task="x"), {"denials": "t"}),
    (Record(event=Event.DENY, principal=None), {"denials": ""}),  # not let in
    (Record(event=Event.DENY, principal="p"), {"denials": ""}),  # let in, but not with this token's scopes
    (Record(event=Event.DENY, principal="p", task="x"), {}),  # no such task: counted where the request is
    (Record(event=Event.LIMIT, principal="p", tool="t"), {"limits_reached": "t"}),
    (Record(event=Event.CREATE, principal="p", tool="t"), {}),
]


@pytest.mark.parametrize(("record", "counted"), REFUSED)
def test_what_is_refused_is_counted(lab: Lab, record: Record, counted: Mapping[str, str]) -> None:
    kept: list[Record] = []
    counting(kept.append, lab.telemetry)(record)
    assert kept == [record]
    for name in ("denials", "limits_reached"):
        points = lab.points(f"mcp_workflows.{name}")
        seen = {dict(key)["tool"]: value for key, value in points.items() if value}
        assert seen == ({counted[name]: 1} if name in counted else {})
