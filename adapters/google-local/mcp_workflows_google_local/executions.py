"""The Executions service: names, views, filters, order and pages; interpreter.py defines executions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from google.cloud.workflows import executions_v1 as api

from mcp_workflows_google_local.engine import Engine
from mcp_workflows_google_local.filters import Filters, Value
from mcp_workflows_google_local.pages import page
from mcp_workflows_google_local.project import Home
from mcp_workflows_google_local.record import Record
from mcp_workflows_google_local.refusals import invalid

_MOST: Final = {True: 100, False: 1000}  # on a page, by whether the view is FULL
_USUAL: Final = 100
_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)

_FIELDS: Final[Mapping[str, Callable[[Record], Value]]] = {
    "executionId": lambda record: record.execution,
    "executionID": lambda record: record.execution,
    "state": lambda record: record.state.name,
    "createTime": lambda record: record.created,
    "startTime": lambda record: record.started,
    "endTime": lambda record: record.at_end,
    "workflowRevisionId": lambda record: record.kept.workflow_revision_id,
    "workflowRevisionID": lambda record: record.kept.workflow_revision_id,
    "stepName": lambda record: record.steps[-1].step if record.steps else None,
}
_ORDERS: Final[Mapping[str, Callable[[Record], Any]]] = {
    "executionId": lambda record: record.execution,
    "executionID": lambda record: record.execution,
    "state": lambda record: int(record.state),
    "createTime": lambda record: record.created,
    "startTime": lambda record: record.started or _LONG_AGO,
    "endTime": lambda record: record.at_end or _LONG_AGO,
    "duration": lambda record: (record.at_end or _LONG_AGO) - (record.started or _LONG_AGO),
    "workflowRevisionId": lambda record: record.kept.workflow_revision_id,
    "workflowRevisionID": lambda record: record.kept.workflow_revision_id,
}
_FILTERS: Final = Filters[Record](_FIELDS, lambda record: record.kept.labels)


class ExecutionsService:
    """The handlers of the four calls."""

    def __init__(self, home: Home, engine: Engine) -> None:
        self._home = home
        self._engine = engine

    def create(self, request: api.CreateExecutionRequest) -> Any:
        """CreateExecution."""
        workflow = self._home.workflow(request.parent, "workflows.executions.create")
        return self._engine.create(workflow, request.execution).shown(full=True)

    def get(self, request: api.GetExecutionRequest) -> Any:
        """GetExecution; the default view is FULL."""
        name = self._home.execution(request.name, "workflows.executions.get")
        return self._engine.get(*name).shown(full=request.view != api.ExecutionView.BASIC)

    def list(self, request: api.ListExecutionsRequest) -> api.ListExecutionsResponse:
        """ListExecutions; the default view is BASIC, the default order newest first."""
        workflow = self._home.workflow(request.parent, "workflows.executions.list")
        if request.page_size < 0:
            raise invalid(f"page_size must not be negative: {request.page_size}")
        full = request.view == api.ExecutionView.FULL
        tests = _FILTERS.read(request.filter)
        rows = [record for record in self._engine.of(workflow) if all(test(record) for test in tests)]
        for field, backwards in reversed(_order(request.order_by)):
            rows.sort(key=_ORDERS[field], reverse=backwards)
        size = min(request.page_size or _USUAL, _MOST[full])
        question = "\n".join((workflow, str(full), request.filter, request.order_by))
        shown, token = page(rows, size, request.page_token, question)
        return api.ListExecutionsResponse(
            executions=[record.shown(full=full) for record in shown], next_page_token=token
        )

    def cancel(self, request: api.CancelExecutionRequest) -> Any:
        """CancelExecution."""
        name = self._home.execution(request.name, "workflows.executions.cancel")
        return self._engine.cancel(*name).shown(full=True)


def _order(text: str) -> list[tuple[str, bool]]:
    """Return the fields, and whether each is in descending order."""
    order: list[tuple[str, bool]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        field, _, direction = part.partition(" ")
        if field not in _ORDERS or direction.strip() not in ("", "asc", "desc"):
            raise invalid(f"invalid order_by {part!r}; these fields are known: {', '.join(_ORDERS)}")
        order.append((field, direction.strip() == "desc"))
    return order
