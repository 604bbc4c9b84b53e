"""The Workflows service: each change is complete when its operation is returned; catalog.py has the workflows."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from google.cloud import workflows_v1 as api
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, empty_pb2

from mcp_workflows_google_local.catalog import Catalog
from mcp_workflows_google_local.engine import Engine
from mcp_workflows_google_local.filters import Filters, Value
from mcp_workflows_google_local.pages import page
from mcp_workflows_google_local.project import WORKFLOW, Home
from mcp_workflows_google_local.refusals import invalid

_NAME: Final = re.compile(WORKFLOW, re.ASCII)
_USUAL, _MOST = 500, 1000  # workflows on a page
_USUAL_REVISIONS, _MOST_REVISIONS = 20, 100

_FIELDS: Final[Mapping[str, Callable[[api.Workflow], Value]]] = {
    "name": lambda workflow: workflow.name,
    "state": lambda workflow: workflow.state.name,
    "description": lambda workflow: workflow.description,
    "createTime": lambda workflow: cast("datetime", workflow.create_time),
    "updateTime": lambda workflow: cast("datetime", workflow.update_time),
    "revisionId": lambda workflow: workflow.revision_id,
    "serviceAccount": lambda workflow: workflow.service_account,
}
_FILTERS: Final = Filters[api.Workflow](_FIELDS, lambda workflow: workflow.labels)


class WorkflowsService:
    """The handlers of the six calls."""

    def __init__(self, home: Home, catalog: Catalog, engine: Engine) -> None:
        self._home = home
        self._catalog = catalog
        self._engine = engine

    def create(self, request: api.CreateWorkflowRequest) -> operations_pb2.Operation:
        """CreateWorkflow."""
        self._home.check_place(request.parent, "workflows.workflows.create")
        workflow = request.workflow_id
        check_id(workflow)
        return self._done("create", workflow, self._catalog.create(workflow, request.workflow))

    def update(self, request: api.UpdateWorkflowRequest) -> operations_pb2.Operation:
        """UpdateWorkflow."""
        workflow = self._home.workflow(request.workflow.name, "workflows.workflows.update")
        changed = self._catalog.update(workflow, request.workflow, request.update_mask.paths)
        return self._done("update", workflow, changed)

    def delete(self, request: api.DeleteWorkflowRequest) -> operations_pb2.Operation:
        """DeleteWorkflow, which also deletes all its executions."""
        workflow = self._home.workflow(request.name, "workflows.workflows.delete")
        self._catalog.get(workflow)
        self._engine.forget(workflow)
        self._catalog.delete(workflow)
        return self._done("delete", workflow, None)

    def get(self, request: api.GetWorkflowRequest) -> Any:
        """GetWorkflow."""
        workflow = self._home.workflow(request.name, "workflows.workflows.get")
        return self._catalog.get(workflow, request.revision_id)

    def list(self, request: api.ListWorkflowsRequest) -> api.ListWorkflowsResponse:
        """ListWorkflows, in name order."""
        self._home.check_place(request.parent, "workflows.workflows.list")
        if request.order_by:
            raise invalid("this engine lists workflows in the order of their names only: leave order_by out")
        tests = _FILTERS.read(request.filter)
        rows = [workflow for workflow in self._catalog.listed() if all(test(workflow) for test in tests)]
        shown, token = _page(rows, request, _USUAL, _MOST, request.filter)
        return api.ListWorkflowsResponse(workflows=shown, next_page_token=token)

    def list_revisions(self, request: api.ListWorkflowRevisionsRequest) -> api.ListWorkflowRevisionsResponse:
        """ListWorkflowRevisions, newest first."""
        workflow = self._home.workflow(request.name, "workflows.workflows.listRevision")
        rows = list(reversed(self._catalog.revisions(workflow)))
        shown, token = _page(rows, request, _USUAL_REVISIONS, _MOST_REVISIONS, workflow)
        return api.ListWorkflowRevisionsResponse(workflows=shown, next_page_token=token)

    def _done(self, verb: str, workflow: str, changed: api.Workflow | None) -> operations_pb2.Operation:
        """Return a completed operation; its result is the workflow, or empty after a deletion."""
        moment = datetime.now(UTC)
        target = self._home.workflow_name(workflow)
        about = api.OperationMetadata(create_time=moment, end_time=moment, target=target, verb=verb, api_version="v1")
        place = target.partition("/workflows/")[0]
        return operations_pb2.Operation(
            name=f"{place}/operations/operation-{uuid.uuid4()}",
            metadata=_any(api.OperationMetadata, about),
            done=True,
            response=_any(api.Workflow, changed),
        )


def check_id(workflow: str) -> None:
    """Refuse an invalid workflow id."""
    if not _NAME.fullmatch(workflow):
        raise invalid(
            f"invalid workflow_id {workflow!r}: 1 to 64 letters, digits, underscores and hyphens, of which the first "
            "is a letter, and the last a letter or a digit"
        )


def _any(kind: Any, message: Any) -> any_pb2.Any:
    """Return a message of this kind in an envelope; None is an empty one."""
    packed = any_pb2.Any()
    packed.Pack(empty_pb2.Empty() if message is None else kind.pb(message))
    return packed


def _page(
    rows: Sequence[api.Workflow], request: Any, usual: int, most: int, question: str
) -> tuple[Sequence[api.Workflow], str]:
    if request.page_size < 0:
        raise invalid(f"page_size must not be negative: {request.page_size}")
    return page(rows, min(request.page_size or usual, most), request.page_token, question)
