"""Traces and metrics by OpenTelemetry's API: the instruments and their names; the sidecar exports them.

Without an OpenTelemetry SDK in the process, recording costs almost nothing. Labels come from the configuration and
from closed sets, never from a client: no ids of tasks, no principals.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Final, Literal, NamedTuple, TypeAlias

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider

from mcp_workflows.errors import (
    AdapterBroke,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    ExecutionNotFound,
    StartConflict,
)

NAME: Final = "mcp_workflows"  # of the meter and the tracer
DISTRIBUTION: Final = "mcp-workflows"
TOOL: Final = "gen_ai.tool.name"
_WINDOW: Final = 60.0  # seconds over which polls are counted
_TRACE: Final = ("traceparent", "tracestate")  # SEP-414

SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""The buckets of the semantic conventions for MCP."""

Api: TypeAlias = (
    Literal[
        "start", "find", "describe", "describe_many", "wait", "hints", "answer", "cancel", "terminate", "check", "adopt"
    ]
    | Literal["list_ended", "exposed", "receive", "other"]
)
"""The kinds of calls to an engine."""

OUTCOMES: Final[Mapping[type[EngineError], str]] = {
    StartConflict: "conflict",
    EngineRefused: "refused",
    ExecutionNotFound: "not_found",
    AdapterBroke: "broke",
    EngineUnavailable: "unavailable",
}
"""The outcome of a call to an engine, in a word; also `ok`, `throttled`, and `cancelled`: its caller has gone."""

_API: Final = ("opentelemetry.metrics.", "opentelemetry.trace")


class Metric(NamedTuple):
    """A metric: its kind, its labels (separated by spaces), its meaning, and its unit (`s` for seconds)."""

    kind: Literal["counter", "gauge", "histogram"]
    labels: str
    meaning: str
    unit: str = ""


METRICS: Final[Mapping[str, Metric]] = {
    "tasks": Metric("gauge", "tool status", "Tasks in the store that have not expired."),
    "oldest_working_age": Metric("gauge", "tool", "Age of the oldest working task.", "s"),
    "oldest_question_age": Metric("gauge", "tool", "Age of the oldest open question.", "s"),
    "retention_round_age": Metric("gauge", "engine", "Time since a round of polls reached all tasks.", "s"),
    "retention_skipped": Metric("gauge", "engine", "Tasks whose poll failed in the last full round."),
    "paused": Metric("gauge", "scope", "1 for each pause of new starts."),
    "counts_age": Metric("gauge", "", "Age of the task counts in the metrics above.", "s"),
    "engine_calls": Metric("counter", "engine api outcome", "Calls to engines."),
    "engine_call_duration": Metric("histogram", "engine api", "Calls to engines, with the adapter's retries.", "s"),
    "quota_used_ratio": Metric("gauge", "engine", "Share of this process's quota that its polls used in a minute."),
    "start_recovered": Metric("counter", "engine", "Interrupted starts whose outcome is known now."),
    "start_unknown": Metric("counter", "engine", "Starts with an unknown outcome, which are never repeated."),
    "unmapped_statuses": Metric("counter", "engine", "Polls that returned a status without a mapping."),
    "result_mismatches": Metric("counter", "engine tool", "Results that do not match their output schema."),
    "call_continued": Metric("counter", "engine tool", "Calls without a key that continued an abandoned call."),
    "duplicate_start_prevented": Metric("counter", "engine tool", "Repeated calls that started nothing."),
    "denials": Metric("counter", "tool", "Refused requests; without a tool, failed authentications."),
    "failed_lookups": Metric("counter", "method", "Requests for unknown tasks, or tasks of another owner."),
    "limits_reached": Metric("counter", "tool", "Requests that a limit refused."),
    "event_subscriptions": Metric("gauge", "state", "Webhook subscriptions to events, active or suspended."),
    "event_queue": Metric("gauge", "", "Events that wait for delivery to endpoints that are not suspended."),
    "oldest_event_age": Metric("gauge", "", "Age of the oldest waiting event.", "s"),
    "event_deliveries": Metric("counter", "outcome", "Attempts to deliver an event."),
    "audit_lost": Metric("counter", "", "Audit events that could not be written."),
    "mcp.server.operation.duration": Metric(
        "histogram",
        "mcp_method_name mcp_protocol_version network_transport gen_ai_operation_name gen_ai_tool_name error_type",
        "Requests and notifications of MCP, from their receipt until the result is sent.",
        "s",
    ),
}
"""All metrics. The prefix `mcp_workflows.` is left out."""

Labels: TypeAlias = Mapping[str, str]
Seen: TypeAlias = Callable[[], Iterable[tuple[float, Labels]]]


def outcome_of(error: BaseException | None) -> str:
    """Return the word for the end of a call; None: it succeeded."""
    if error is None:
        return "ok"
    if not isinstance(error, EngineError):
        return "cancelled"
    if isinstance(error, EngineUnavailable) and error.throttled:
        return "throttled"
    return next((word for kind, word in OUTCOMES.items() if isinstance(error, kind)), "unavailable")


class Telemetry:
    """The instruments of one server; without providers, those that are global in this process, if there are any."""

    def __init__(self, *, meters: MeterProvider | None = None, tracers: TracerProvider | None = None) -> None:
        own = version(DISTRIBUTION)
        self._given = meters or tracers
        self._tracer = (tracers or trace.get_tracer_provider()).get_tracer(NAME, own)
        meter = self._meter = (meters or metrics.get_meter_provider()).get_meter(NAME, own)
        self._counters = {
            name: meter.create_counter(f"{NAME}.{name}", description=metric.meaning)
            for name, metric in METRICS.items()
            if metric.kind == "counter"
        }
        self._histograms = {
            name: meter.create_histogram(
                name if "." in name else f"{NAME}.{name}",
                unit=metric.unit,
                description=metric.meaning,
                explicit_bucket_boundaries_advisory=SECONDS,
            )
            for name, metric in METRICS.items()
            if metric.kind == "histogram"
        }
        # These counters start at 0, so that `increase()` sees the first event. Prometheus treats a missing and an empty
        # label alike, and keeps only the first of two such series: so they have their final labels.
        for name in ("denials", "failed_lookups", "limits_reached", "audit_lost"):
            self._counters[name].add(0, dict.fromkeys(METRICS[name].labels.split(), ""))
        self._counters["event_deliveries"].add(0, {"outcome": "ok"})
        self._polls: dict[str, deque[float]] = {}

    @property
    def heard(self) -> bool:
        """True if metrics of requests have a receiver: providers were given, or set for this process."""
        there = (self._given, metrics.get_meter_provider(), trace.get_tracer_provider())
        return any(each is not None and not type(each).__module__.startswith(_API) for each in there)

    # --- engines

    def engine_call(self, engine: str, api: Api, *, timed: bool) -> EngineCallRecord:
        """Begin to record one call to an engine; `timed` if it is short."""
        if api == "describe":
            self._polled(engine)
        labels, span = {"engine": engine, "api": api}, None
        if timed and trace.get_current_span().is_recording():  # calls in the background belong to no request
            attributes = {f"{NAME}.{name}": value for name, value in labels.items()}
            span = self._tracer.start_span("engine.call", kind=SpanKind.CLIENT, attributes=attributes)
        return EngineCallRecord(self, labels, timed=timed, span=span)

    def engine_opened(self, engine: str) -> None:
        """Show the counters of rare events of an engine before they happen, as an alert needs to see them rise."""
        self._counters["start_unknown"].add(0, {"engine": engine})
        self._counters["unmapped_statuses"].add(0, {"engine": engine})
        self._counters["result_mismatches"].add(0, {"engine": engine, "tool": ""})

    def engine_called(self, labels: Labels, outcome: str, seconds: float | None) -> None:
        """Count a call to an engine that has ended; `seconds` if it was timed."""
        self._counters["engine_calls"].add(1, {**labels, "outcome": outcome})
        if seconds is not None:
            self._histograms["engine_call_duration"].record(seconds, labels)

    def _polled(self, engine: str) -> None:
        now = time.monotonic()
        polls = self._polls.setdefault(engine, deque())
        polls.append(now)
        while polls[0] < now - _WINDOW:
            polls.popleft()

    def polls_per_second(self, engine: str) -> float:
        """Return the rate of polls of executions over the last minute."""
        since = time.monotonic() - _WINDOW
        return sum(at >= since for at in self._polls.get(engine, ())) / _WINDOW

    # --- what happens

    def operation(self, seconds: float, attributes: Labels) -> None:
        """Record a request or a notification that was served."""
        self._histograms["mcp.server.operation.duration"].record(seconds, attributes)

    def count(self, name: str, **labels: str) -> None:
        """Count one event of a counter of `METRICS`; a tool or method that is not ours is an empty label."""
        self._counters[name].add(1, labels)

    def observe(self, name: str, seen: Seen) -> None:
        """Add a gauge of `METRICS`: each collection of metrics calls `seen`, in any thread, and it must not block."""

        def observed(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, labels) for value, labels in seen()]

        metric = METRICS[name]
        self._meter.create_observable_gauge(f"{NAME}.{name}", [observed], unit=metric.unit, description=metric.meaning)


class EngineCallRecord:
    """One call to an engine: counted by its outcome, and if it is short timed and made a span of the current trace."""

    __slots__ = ("_began", "_labels", "_span", "_telemetry", "_timed", "_token")

    def __init__(self, telemetry: Telemetry, labels: Labels, *, timed: bool, span: Span | None) -> None:
        self._telemetry = telemetry
        self._labels = labels
        self._timed = timed
        self._span = span
        self._token = None if span is None else context.attach(trace.set_span_in_context(span))
        self._began = time.perf_counter()

    def end(self, outcome: str) -> None:
        """Record the end, in the word of `outcome_of`; an error's text may be private."""
        self._telemetry.engine_called(self._labels, outcome, time.perf_counter() - self._began if self._timed else None)
        if self._span is None or self._token is None:
            return
        if outcome not in ("ok", "cancelled"):
            self._span.set_attribute("error.type", outcome)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()
        context.detach(self._token)


# --- traces


def detach_trace() -> None:
    """Detach this task of the event loop from the request that began it."""
    context.attach(Context())


def propagated(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the trace context for an execution: that of the current span, or the client's unchanged."""
    if not trace.get_current_span().is_recording():
        return given
    ours: dict[str, str] = {}
    propagate.inject(ours)
    return {**given, **{key: value for key, value in ours.items() if key in _TRACE}}


def annotate_span(tool: str, kept: Mapping[str, str]) -> None:
    """Set the tool of the current request in its span, and link the trace that created the task."""
    span = trace.get_current_span()
    if not span.is_recording():
        return
    span.set_attribute(TOOL, tool)
    created = trace.get_current_span(propagate.extract(kept)).get_span_context()
    if created.is_valid and created.span_id != span.get_span_context().span_id:
        span.add_link(created)


def trace_id(traceparent: str | None, *, at_hand: bool = True) -> str | None:
    """Return the trace id of the current request, or else of this trace parent; 32 hexadecimal characters."""
    found = trace.get_current_span(None if at_hand else Context()).get_span_context()
    if not found.is_valid and traceparent:
        kept = propagate.extract({"traceparent": traceparent}, Context())
        found = trace.get_current_span(kept).get_span_context()
    return format(found.trace_id, "032x") if found.is_valid else None
