"""Executions started elsewhere: recent workflow types, ended executions, and the adoption of one as a task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from statistics import median

import anyio
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON, MOST_ENDED, EndedExecution, Ref, Status
from mcp_workflows.errors import EngineError
from mcp_workflows.kit.tooling import Discovered, infer_schema
from mcp_workflows_temporal.client import STATUSES, Frontend, Handle, is_followed, quoted
from mcp_workflows_temporal.errors import unless_ended
from mcp_workflows_temporal.payloads import UndecodableError, decode

PAGE = 1000  # executions
PAGES = 5
SAMPLED_TYPES = 20  # workflow types whose inputs are read, with `SAMPLES` executions each
SAMPLES = 5
SAMPLED_AT_ONCE = 8
ENDED = ("Completed", "Failed", "Canceled", "Terminated", "TimedOut")  # in the syntax of a list query, too
CLOCKS_DIFFER = timedelta(hours=1)


async def discover(frontend: Frontend, own_queue: str | None, named: Collection[str]) -> Sequence[Discovered]:
    """Return the types of the latest executions, with the common schema of their inputs; see `Discovers.discover`.

    A type has a task queue only if it differs from the engine's.
    """
    seen = defaultdict[tuple[str, str], list[WorkflowExecutionInfo]](list)
    async for row in frontend.list_executions("", page=PAGE, pages=PAGES):
        seen[row.type.name, row.task_queue].append(row)
    found = {key: _discovered(key, own_queue, rows) for key, rows in seen.items()}
    order = sorted(found, key=lambda key: (found[key].is_child, -found[key].executions, key))
    at_once = anyio.Semaphore(SAMPLED_AT_ONCE)

    async def read(key: tuple[str, str]) -> None:
        async with at_once:
            found[key] = await _with_input(frontend, found[key], seen[key][:SAMPLES])

    async with anyio.create_task_group() as tasks:
        for key in sorted(order, key=lambda key: key[0] not in named)[:SAMPLED_TYPES]:
            tasks.start_soon(read, key)
    return [found[key] for key in order]


def _discovered(key: tuple[str, str], own_queue: str | None, rows: Sequence[WorkflowExecutionInfo]) -> Discovered:
    workflow, queue = key
    lengths = [
        (row.close_time.ToDatetime(UTC) - row.start_time.ToDatetime(UTC)).total_seconds()
        for row in rows
        if STATUSES.get(row.status) is Status.SUCCEEDED
    ]
    return Discovered(
        workflow=workflow,
        options={} if queue in {own_queue, ""} else {"task_queue": queue},
        last_seen=max(row.start_time.ToDatetime(UTC) for row in rows),
        executions=len(rows),
        usual=timedelta(seconds=median(lengths)) if lengths else None,
        is_child=all(row.parent_execution.workflow_id for row in rows),
    )


async def _with_input(frontend: Frontend, found: Discovered, rows: Sequence[WorkflowExecutionInfo]) -> Discovered:
    """Add the schema of these executions' inputs; omit it if they cannot be read here.

    The history has no names of positional arguments.
    """
    samples: list[Sequence[JSON]] = []
    for row in rows:
        converter = frontend.converter(row.execution.workflow_id)
        try:
            payloads = await frontend.read_input(row.execution)
            samples.append([await decode(converter, payload) for payload in payloads])
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # it may have been deleted since
                return found
        except (EngineError, UndecodableError):
            return found
    most = max(map(len, samples), default=0)
    if not samples:
        return found
    if most == 1 and all(isinstance(value, dict) for sample in samples for value in sample):
        return replace(found, input=infer_schema([value for sample in samples for value in sample]), is_sampled=True)
    given = {f"arg{number}": values for number, values in enumerate(zip_longest(*samples), 1)}
    properties = {name: infer_schema(values, least=2) for name, values in given.items()}
    required = {"required": names} if (names := [name for name in given if None not in given[name]]) else {}
    args: JSON = [f"{{{{{name}}}}}" for name in given]
    if most == min(map(len, samples)):  # null keeps its position in one expression
        args = f"{{{{[{', '.join(given)}]}}}}"
    options = {**found.options, "args": args} if given else found.options
    schema = {"type": "object", "properties": properties, **required}
    return replace(found, input=schema, options=options, is_sampled=bool(given))


async def adopt(frontend: Frontend, execution_id: str) -> Ref:
    """Return the chain of a workflow id, or of `id/run id`, running or ended.

    Raises:
        ExecutionNotFound: there is none.
        EngineRefused: it has a cron schedule.
    """
    info = (await _find(frontend, execution_id)).workflow_execution_info
    await frontend.refuse_cron(info.execution, execution_id, final=True)
    handle = Handle(workflow_id=info.execution.workflow_id, first_run_id=info.first_run_id)
    return Ref(workflow=info.type.name, handle=str(handle))


async def _find(frontend: Frontend, execution_id: str) -> Described:
    """Try the whole text first, as a workflow id may contain slashes; a run id must belong to that chain."""
    workflow_id, _, run_id = execution_id.rpartition("/")
    try:
        return await frontend.describe(execution_id)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND or not workflow_id:
            raise
    found = await frontend.describe(workflow_id)
    info = found.workflow_execution_info
    if run_id in (info.execution.run_id, info.first_run_id):
        return found
    return await frontend.describe_chain(Handle(workflow_id=workflow_id, first_run_id=run_id))


async def list_ended(frontend: Frontend, workflow: str, since: datetime) -> Sequence[EndedExecution]:
    """Return the chains of runs of a workflow type that ended since then, the earliest first.

    Temporal lists the latest first; no other order works on SQL databases and in Temporal Cloud. So a period in which
    more runs closed than fit into a page is halved.
    """
    found: list[EndedExecution] = []
    times = [(since, datetime.now(UTC) + CLOCKS_DIFFER)]
    while times and len(found) < MOST_ENDED:
        begin, end = times.pop()
        middle = begin + (end - begin) / 2
        closed = f"CloseTime >= '{begin.isoformat()}' AND CloseTime < '{end.isoformat()}'"
        query = f"WorkflowType = {quoted(workflow)} AND ExecutionStatus IN {ENDED} AND {closed}"
        pages = 2 if begin < middle else None
        rows = [row async for row in frontend.list_executions(query, page=PAGE, pages=pages)]
        if pages and len(rows) > PAGE:
            times += [(middle, end), (begin, middle)]
            continue
        for row in sorted(rows, key=lambda row: row.close_time.ToNanoseconds()):
            if len(found) < MOST_ENDED and (ended := await _end_of_chain(frontend, row)):
                found.append(ended)
    return found


async def _end_of_chain(frontend: Frontend, row: WorkflowExecutionInfo) -> EndedExecution | None:
    """Return the end of the chain that ended with this run; None if another run followed it, or it was deleted.

    A list shows neither, so each run is described. The result is cached, so that a call which times out is not wasted.
    """
    run_id = row.execution.run_id
    if run_id not in frontend.ended_chains:
        with unless_ended():
            frontend.ended_chains[run_id] = await _describe_end(frontend, row)
    return frontend.ended_chains.get(run_id)


async def _describe_end(frontend: Frontend, row: WorkflowExecutionInfo) -> EndedExecution | None:
    workflow_id, run_id = row.execution.workflow_id, row.execution.run_id
    current = info = (await frontend.describe(workflow_id)).workflow_execution_info
    if current.execution.run_id != run_id:
        info = (await frontend.describe(workflow_id, run_id)).workflow_execution_info
        if info.first_run_id == current.first_run_id or is_followed(await frontend.close_event(info)):
            return None
    handle = str(Handle(workflow_id=workflow_id, first_run_id=info.first_run_id))
    name = workflow_id if info is current else handle  # the id alone now names another execution
    ended = row.close_time.ToDatetime(UTC)
    return EndedExecution(handle=handle, execution_id=name, status=STATUSES[row.status], ended=ended)
