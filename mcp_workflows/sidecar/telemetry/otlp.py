"""Export of traces, metrics and audit events by OTLP; imported by name, because it needs the extra `otlp`.

The environment variables of OpenTelemetry (`OTEL_...`) set the destination and the sampling.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor

EVENT_NAME = "mcp_workflows.audit"


def processors() -> Sequence[SpanProcessor]:
    """Return a processor that sends spans; none with `OTEL_TRACES_EXPORTER=none`."""
    return [] if os.environ.get("OTEL_TRACES_EXPORTER") == "none" else [BatchSpanProcessor(OTLPSpanExporter())]


def readers() -> Sequence[MetricReader]:
    """Return a reader that sends metrics periodically; none with `OTEL_METRICS_EXPORTER=none`."""
    is_off = os.environ.get("OTEL_METRICS_EXPORTER") == "none"
    return [] if is_off else [PeriodicExportingMetricReader(OTLPMetricExporter())]


class AuditLogs(logging.Handler):
    """Sends lines of JSON as log records with these attributes."""

    def __init__(self, service: Mapping[str, str]) -> None:
        super().__init__()
        self._logs = LoggerProvider(Resource.create(dict(service)), shutdown_on_exit=False)
        self._logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        self._logger = self._logs.get_logger(EVENT_NAME)

    def emit(self, record: logging.LogRecord) -> None:
        """Put one event into the exporter's queue."""
        line = self.format(record)
        event = json.loads(line)
        attributes = {f"audit.{key}": value for key, value in event.items() if isinstance(value, str | int)}
        self._logger.emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                context=Context(),
                severity_number=SeverityNumber.INFO,
                severity_text="INFO",
                body=line,
                attributes=attributes,
                event_name=EVENT_NAME,
            )
        )

    def close(self) -> None:
        """Send the remaining events; blocks."""
        self._logs.shutdown()
        super().close()
