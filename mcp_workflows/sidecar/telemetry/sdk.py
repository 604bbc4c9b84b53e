"""The providers of an OpenTelemetry SDK; imported by name, because it needs the extra `ops` or `otlp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from mcp_workflows.telemetry import Telemetry


class Providers:
    """The providers of one server, which pass metrics to all readers and spans to all processors."""

    def __init__(
        self,
        service: Mapping[str, str],
        *,
        readers: Sequence[MetricReader],
        processors: Sequence[SpanProcessor],
    ) -> None:
        resource = Resource.create(dict(service))
        self._tracers: TracerProvider | None = None
        self._meters = MeterProvider(readers, resource, shutdown_on_exit=False)
        if processors:
            self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
            for processor in processors:
                self._tracers.add_span_processor(processor)
        self.telemetry = Telemetry(meters=self._meters, tracers=self._tracers)

    def make_global(self) -> None:
        """Make them the providers of the process, which the MCP SDK and other libraries use."""
        metrics.set_meter_provider(self._meters)
        if self._tracers is not None:
            trace.set_tracer_provider(self._tracers)

    def close(self) -> None:
        """Send the remaining data; blocks."""
        if self._tracers is not None:
            self._tracers.shutdown()
        self._meters.shutdown()
