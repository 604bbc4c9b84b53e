"""Export of traces, metrics and audit events by OTLP; imported by name, because it needs the extra `otlp`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

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

from mcp_workflows.sidecar.config.models import OtlpSettings

EVENT_NAME = "mcp_workflows.audit"


def spans(settings: OtlpSettings) -> SpanProcessor:
    """Return a processor that sends spans."""
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=_at(settings, "traces"), headers=_headers(settings)))


def reader(settings: OtlpSettings) -> MetricReader:
    """Return a reader that sends metrics periodically."""
    exporter = OTLPMetricExporter(endpoint=_at(settings, "metrics"), headers=_headers(settings))
    return PeriodicExportingMetricReader(exporter, export_interval_millis=settings.every.total_seconds() * 1000)


class AuditLogs(logging.Handler):
    """Sends lines of JSON as log records with these attributes."""

    def __init__(self, settings: OtlpSettings, service: Mapping[str, str]) -> None:
        super().__init__()
        self._logs = LoggerProvider(Resource.create(dict(service)), shutdown_on_exit=False)
        exporter = OTLPLogExporter(endpoint=_at(settings, "logs"), headers=_headers(settings))
        self._logs.add_log_record_processor(BatchLogRecordProcessor(exporter))
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


def _at(settings: OtlpSettings, signal: str) -> str | None:
    return None if settings.endpoint is None else f"{settings.endpoint}/v1/{signal}"


def _headers(settings: OtlpSettings) -> dict[str, str] | None:
    return {name: value.get_secret_value() for name, value in settings.headers.items()} or None
