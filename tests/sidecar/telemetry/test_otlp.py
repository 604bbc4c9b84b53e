"""A sidecar sends its traces and metrics to a collector, the spans of the MCP SDK among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_workflows.sidecar.telemetry import otlp
from tests.support.served import peer, serving
from tests.support.sidecars import sidecar

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"
CONFIG = """
server: {name: traced, drain: 0s}
store: sqlite:///tasks.db
telemetry: otlp
engines: {here: {adapter: memory}}
tools: {echo: {engine: here, workflow: echo, tasks: forbidden}}
"""


class Collector:
    """Takes what OTLP brings over HTTP."""

    def __init__(self) -> None:
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.keys: set[str | None] = set()

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/traces", self._take(ExportTraceServiceRequest, self.traces), methods=["POST"]),
                Route("/v1/metrics", self._take(ExportMetricsServiceRequest, self.metrics), methods=["POST"]),
            ]
        )

    def _take(self, kind: Any, into: list[Any]) -> Any:
        async def take(request: Request) -> Response:
            message = kind()
            message.ParseFromString(await request.body())
            into.append(message)
            self.keys.add(request.headers.get("x-key"))
            return Response(b"", media_type="application/x-protobuf")

        return take

    @property
    def spans(self) -> Sequence[Any]:
        return [
            span for each in self.traces for res in each.resource_spans for sc in res.scope_spans for span in sc.spans
        ]

    def points(self) -> Iterator[str]:
        for each in self.metrics:
            for resource in each.resource_metrics:
                yield from (metric.name for scope in resource.scope_metrics for metric in scope.metrics)


@pytest.mark.usefixtures("processes")
async def test_a_collector_gets_traces_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector()
    async with serving(collector.app) as url:
        config = tmp_path / "workflows.yaml"
        config.write_text(CONFIG)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url.removesuffix("/mcp"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k")
        with sidecar(config) as process:
            async with peer(process.url) as client:
                await client.call("echo", meta={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
            assert await to_thread.run_sync(process.stop) == 0, "what is left is sent at the end"
    ours = {span.name: span for span in collector.spans if span.trace_id.hex() == TRACE}
    assert ours.keys() >= {"tools/call echo", "engine.call"}
    [served] = [span for span in collector.spans if span.name == "tools/call echo"]
    assert all(span.parent_span_id == served.span_id for span in collector.spans if span.name == "engine.call")
    assert {"mcp.server.operation.duration", "mcp_workflows.engine_calls"} <= set(collector.points())
    assert collector.keys == {"k"}


@pytest.mark.parametrize("signal", ["TRACES", "METRICS"])
def test_one_of_the_two_can_be_left_out(signal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"OTEL_{signal}_EXPORTER", "none")
    assert (otlp.processors if signal == "TRACES" else otlp.readers)() == []
