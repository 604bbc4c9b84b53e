"""Questions, message and progress in a workflow's memo, and progress from one of its queries.

A memo can contain anything, so values of another shape are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import anyio
from mcp_workflows_temporal_worker.contract import (
    ANSWER_SIGNAL,
    ANSWER_UPDATE,
    BAD_ANSWER,
    MEMO_INPUT,
    UNKNOWN_QUESTION,
)
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.service import RPCError

from mcp_workflows.adapter import JSON, InputRequest, Progress
from mcp_workflows.adapter.templates import Template
from mcp_workflows.errors import EngineRefused, MappingError
from mcp_workflows_temporal.client import REMEMBERED, Frontend, Handle, Latest, Run, is_open
from mcp_workflows_temporal.errors import unless_ended
from mcp_workflows_temporal.gates import QUERY_EVERY, QueryResult, ask
from mcp_workflows_temporal.payloads import as_mapping, read_memo
from mcp_workflows_temporal.settings import QueriedProgress


def read_progress(status: Mapping[str, JSON]) -> Progress | None:
    """Return the progress in `mcp.status`."""
    value, total = status.get("progress"), status.get("total")
    if not isinstance(value, int | float):
        return None
    return Progress(value=value, total=total if isinstance(total, int | float) else None)


def read_questions(asked: Mapping[str, JSON]) -> Mapping[str, InputRequest]:
    """Return the questions in `mcp.input`, by key."""
    found: dict[str, InputRequest] = {}
    for key, value in as_mapping(asked.get("requests")).items():
        method, params = as_mapping(value).get("method"), as_mapping(value).get("params")
        if isinstance(method, str) and isinstance(params, dict):
            ordered = _in_order(as_mapping(params), as_mapping(value).get("order"))
            found[key] = InputRequest(method=method, params=ordered)
    return found


def _in_order(params: Mapping[str, JSON], order: JSON) -> Mapping[str, JSON]:
    """Return the form with its fields in the workflow's order: most converters sort the keys of an object."""
    schema = as_mapping(params.get("requestedSchema"))
    fields = as_mapping(schema.get("properties"))
    if not isinstance(order, list) or not fields:
        return params
    names = cast("Sequence[JSON]", order)
    first = {name: fields[name] for name in names if isinstance(name, str) and name in fields}
    return {**params, "requestedSchema": {**schema, "properties": {**first, **fields}}}


async def own_questions(frontend: Frontend, found: Described, memo: Mapping[str, JSON]) -> Mapping[str, InputRequest]:
    """Return the questions in the memo if the current run asked them; a later run of the chain inherits the memo."""
    asked = as_mapping(memo.get(MEMO_INPUT))
    questions = read_questions(asked)
    execution = found.workflow_execution_info.execution
    asked_by = asked.get("run")
    if not questions or (asked_by != execution.run_id and asked_by != await frontend.original_run(execution)):
        return {}
    return questions


async def answer_questions(frontend: Frontend, handle: Handle, responses: Mapping[str, JSON]) -> None:
    """Send each answer as an update, or as a signal if no worker accepts an update in time.

    Raises:
        EngineRefused: the workflow does not accept an answer.
    """
    found = await frontend.describe_chain(handle)
    if not is_open(found):
        return
    questions = await own_questions(
        frontend, found, await read_memo(frontend, found.workflow_execution_info, MEMO_INPUT)
    )
    has_worker = True
    for key in responses.keys() & questions.keys():
        has_worker = has_worker and await _update(frontend, handle, key, responses[key])
        if not has_worker:
            with unless_ended():
                await frontend.signal(handle.execution, ANSWER_SIGNAL, [{"key": key, "response": responses[key]}])


async def _update(frontend: Frontend, handle: Handle, key: str, response: JSON) -> bool:
    """Return False if no worker took the update in time, or the workflow has no handler for it yet."""
    try:
        done = await frontend.update(handle.execution, ANSWER_UPDATE, [key, response], key, handle.first_run_id)
    except RPCError:
        return False  # any error other than a missing worker recurs with the signal
    kind = done.outcome.failure.application_failure_info.type
    if kind == BAD_ANSWER:
        raise EngineRefused(f"the workflow does not accept this answer: {done.outcome.failure.message}")
    return not done.outcome.HasField("failure") or kind == UNKNOWN_QUESTION


# --- progress that the workflow does not write


class ProgressQueries:
    """Runs the progress queries of executions, and caches their latest results."""

    def __init__(self) -> None:
        self._results = Latest[tuple[str, str], tuple[Run, QueryResult]](REMEMBERED)  # by the first run and the setting

    async def read(self, run: Run, options: Mapping[str, JSON]) -> tuple[Progress | None, str | None]:
        """Return the progress and message for a tool's `progress` setting.

        A workflow's state changes only with its history, so the query is repeated when that has grown. While no worker
        answers, or one run follows another, the latest result is used.
        """
        if not options.get("progress"):
            return None, None
        wanted = QueriedProgress.model_validate(options["progress"])
        key = (run.first_run_id, wanted.model_dump_json())
        known = self._results.get(key)
        is_old = known is not None and known[1].needs_worker and anyio.current_time() - known[1].at >= QUERY_EVERY
        if known is None or is_old or (known[0].ids, known[0].length) != (run.ids, run.length):
            result = await ask(run, wanted.query, wanted.args)
            if known is not None and (result.needs_worker or (result.value is None and not result.problem)):
                result = replace(known[1], at=result.at, needs_worker=True)
            self._results[key] = known = run, result
        return _progress_in(known[1], wanted)


def _progress_in(result: QueryResult, wanted: QueriedProgress) -> tuple[Progress | None, str | None]:
    """Return the progress in a query's result, and the message, or the reason why there is none."""
    if result.value is None:
        problem = None if result.needs_worker else result.problem
        return None, problem and f"its progress is not known: {problem}"
    scope: Mapping[str, JSON] = {"args": as_mapping(result.value), "output": result.value}
    try:
        value, total = (Template(each).render(scope) for each in (wanted.value, wanted.total))
        message = Template(wanted.message).text(scope) if wanted.message else None
    except MappingError as error:
        return None, f"its progress is not known: {error}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        wrong = f"its progress is not known: {wanted.value} is no number in what {wanted.query} gives"
        return None, message or wrong
    is_number = isinstance(total, int | float) and not isinstance(total, bool)
    return Progress(value=value, total=total if is_number else None), message
