"""The trace of a call, where the tracing interceptors of Temporal's SDKs look for it: a header of the workflow.

Source: https://github.com/temporalio/sdk-python/tree/main/temporalio/contrib/opentelemetry
"""

from __future__ import annotations

from typing import Any, Final

from mcp_workflows_temporal_worker.contract import MEMO_CONTEXT
from temporalio.client import Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle
from temporalio.converter import PayloadConverter

from mcp_workflows_temporal.labels import mapping

HEADER: Final = "_tracer-data"
_TRACE: Final = ("traceparent", "tracestate")


class Tracing(Interceptor):
    """Carries what the memo says of the trace into the header, too."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002  # the SDK's own name
        """Stand before the SDK's own calls."""
        return _Calls(next)


class _Calls(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002  # Any: see starting
        """Start it, with that header if there is a trace."""
        context = mapping((input.memo or {}).get(MEMO_CONTEXT))
        carrier = {name: context[name] for name in _TRACE if name in context}
        if carrier:
            [payload] = PayloadConverter.default.to_payloads([carrier])
            input.headers = {**input.headers, HEADER: payload}
        return await super().start_workflow(input)
