"""The two gRPC services, with Google's own messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.cloud import workflows_v1
from google.cloud.workflows import executions_v1
from google.longrunning import operations_pb2

from mcp_workflows_google_local.executions import ExecutionsService
from mcp_workflows_google_local.refusals import RefusedError
from mcp_workflows_google_local.workflows import WorkflowsService

Handle: TypeAlias = Callable[[Any], Any]  # answers a message of one type with one of another
_Call: TypeAlias = Callable[[Any, Any], Awaitable[Any]]

_EXECUTIONS: Final = "google.cloud.workflows.executions.v1.Executions"
_WORKFLOWS: Final = "google.cloud.workflows.v1.Workflows"


def executions_handler(service: ExecutionsService) -> grpc.GenericRpcHandler:
    """Return the handler of the Executions service."""
    kind: Any = executions_v1  # partly typed
    calls = {
        "CreateExecution": _unary(service.create, kind.CreateExecutionRequest, kind.Execution.serialize),
        "GetExecution": _unary(service.get, kind.GetExecutionRequest, kind.Execution.serialize),
        "ListExecutions": _unary(service.list, kind.ListExecutionsRequest, kind.ListExecutionsResponse.serialize),
        "CancelExecution": _unary(service.cancel, kind.CancelExecutionRequest, kind.Execution.serialize),
    }
    return grpc.method_handlers_generic_handler(_EXECUTIONS, calls)


def workflows_handler(service: WorkflowsService) -> grpc.GenericRpcHandler:
    """Return the handler of the Workflows service."""
    kind: Any = workflows_v1  # partly typed
    done = operations_pb2.Operation.SerializeToString
    revisions = (kind.ListWorkflowRevisionsRequest, kind.ListWorkflowRevisionsResponse.serialize)
    calls: Mapping[str, grpc.RpcMethodHandler[Any, Any]] = {
        "CreateWorkflow": _unary(service.create, kind.CreateWorkflowRequest, done),
        "UpdateWorkflow": _unary(service.update, kind.UpdateWorkflowRequest, done),
        "DeleteWorkflow": _unary(service.delete, kind.DeleteWorkflowRequest, done),
        "GetWorkflow": _unary(service.get, kind.GetWorkflowRequest, kind.Workflow.serialize),
        "ListWorkflows": _unary(service.list, kind.ListWorkflowsRequest, kind.ListWorkflowsResponse.serialize),
        "ListWorkflowRevisions": _unary(service.list_revisions, *revisions),
    }
    return grpc.method_handlers_generic_handler(_WORKFLOWS, calls)


def _unary(handle: Handle, request: Any, serialize: Callable[[Any], bytes]) -> grpc.RpcMethodHandler[Any, Any]:
    async def call(message: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return handle(message)
        except RefusedError as refused:
            await context.abort(refused.code, refused.text)

    return grpc.unary_unary_rpc_method_handler(call, request.deserialize, serialize)
