"""Metrics as Prometheus scrapes them; needs the extra `ops`, so nobody imports it directly."""

from __future__ import annotations

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

__all__ = ["PrometheusMetrics"]


class PrometheusMetrics:
    """A reader of metrics, and what it has read as text."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.reader = PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)

    def text(self, accept: str) -> tuple[bytes, str]:
        """The metrics now, and their media type, as an `Accept` header wants it; collects them in this thread."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type
