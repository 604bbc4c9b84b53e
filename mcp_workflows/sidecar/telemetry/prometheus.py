"""Metrics for Prometheus; imported by name, because it needs the extra `ops`."""

from __future__ import annotations

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

__all__ = ["PrometheusMetrics"]


class PrometheusMetrics:
    """A reader of metrics that renders them as text."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.reader = PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)

    def text(self, accept: str) -> tuple[bytes, str]:
        """Collect the metrics in this thread; return their text and media type, chosen by an `Accept` header."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type
