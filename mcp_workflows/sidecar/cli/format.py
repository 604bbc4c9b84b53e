"""Tasks as text and JSON for the operator, with the statuses of MCP; arguments are never shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcp_workflows.adapter import JSON, ExecutionStep, Status, asked
from mcp_workflows.adapter.display_text import number_text, rough_duration, without_zero_fractions
from mcp_workflows.sidecar.cli.app import harmless
from mcp_workflows.task import Task
from mcp_workflows.tasks.executions import ObservedTask
from mcp_workflows.tasks.results import failure_facts
from mcp_workflows.wire.params import STATUS

SHORT = 12  # characters of an id in a list, enough to identify it
WIDEST = 24  # of a fact's name: a longer one (a question with a UUID) does not indent the others
UNCUT = 1_000_000  # columns: for a file, a pipe and --wide
EXECUTION_SHARE = 5  # divisor of a terminal's width: the maximum for an execution's id, to leave room for messages
CUT_FIRST = frozenset({"TOOL", "EXECUTION", "MESSAGE"})  # the widest of these is cut first; the others stay whole
HEADINGS = ("ID", "TOOL", "STATUS", "AGE", "EXECUTION", "MESSAGE")


class TaskStatus(StrEnum):
    """The statuses of MCP."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


STATUSES: Mapping[TaskStatus, Status] = {TaskStatus(word): status for status, word in STATUS.items()}
_STATES: Mapping[Status, TaskStatus] = {status: state for state, status in STATUSES.items()}


def status_of(task: Task) -> TaskStatus:
    """Return the status of a task."""
    return _STATES[task.seen.status]


def message_of(task: Task) -> str:
    """Return the task's message with its progress, or the reason for its failure."""
    seen, progress = task.seen, task.seen.progress
    if seen.failure:
        return _plain(seen.failure.text)
    total = "" if progress is None or progress.total is None else f"/{number_text(progress.total)}"
    steps = "" if progress is None else f"[{number_text(progress.value)}{total}] "
    return _plain(steps + (seen.message or ""))


def question_or_message(task: Task) -> str:
    """Return the question that the task waits for, or else its message."""
    return _plain(asked(task.seen.requests)) if task.seen.status is Status.INPUT_REQUIRED else message_of(task)


def render_table(observed: Sequence[ObservedTask], width: int | None = None) -> str:
    """Return a line per task, for people and for `grep`; cut to `width` columns if given."""
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for heading in HEADINGS:
        is_id = heading == "EXECUTION"
        most = width // EXECUTION_SHARE if width and is_id else None
        rows.add_column(heading, no_wrap=heading not in CUT_FIRST, max_width=most)
    for each in observed:
        rows.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in _row(each.task)))
    console = Console(file=StringIO(), width=width or UNCUT, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(rows)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _row(task: Task) -> Sequence[str]:
    age = rough_duration(datetime.now(UTC) - task.created)
    place = task.execution.execution_id or "-"
    return task.id[:SHORT], task.tool, status_of(task), age, _plain(place), question_or_message(task)


def render_facts(facts: Mapping[str, str]) -> str:
    """Return a line for each fact."""
    width = max((len(name) for name in facts if len(name) <= WIDEST), default=0) + 1
    return "\n".join(f"{f'{_plain(name)}:':<{width}} {_plain(text)}" for name, text in facts.items())


def render_task(observed: ObservedTask) -> str:
    """Return all facts of one task, and its result last, as JSON."""
    task, seen = observed.task, observed.task.seen
    facts = {
        "id": task.id,
        "tool": task.tool,
        "status": status_of(task).value,
        "message": message_of(task),
        **facts_of_failure(task),
        "owner": task.owner,
        "engine": f"{task.engine}, workflow {task.workflow}",
        "execution": seen.execution_id,
        "see": seen.url,
        "created": _moment(task.created),
        "last change": _moment(task.updated),
        "ended": _moment(task.ended),
        "expires": _moment(task.expires) or "never",
        "cancel": _cancel(task),
        **{f"step {number}": _step(step) for number, step in enumerate(seen.steps, 1)},
        **{f"question {key}": str(request.params.get("message", "")) for key, request in seen.requests.items()},
    }
    text = render_facts({name: value for name, value in facts.items() if value})
    if seen.status is not Status.SUCCEEDED:
        return text
    return f"{text}\nresult:\n{json.dumps(seen.output, indent=2)}"  # ASCII: nothing for the terminal to interpret


def facts_of_failure(task: Task) -> dict[str, str]:
    """Return the facts of a task's failure besides its text; empty if it has not failed."""
    facts = failure_facts(task.seen.failure) if task.seen.failure else {}
    return {f"error {name}": text for name, text in in_words(facts).items()}


def in_words(facts: Mapping[str, JSON]) -> dict[str, str]:
    """Return facts by name as text; other values as JSON."""
    return {name: each if isinstance(each, str) else json.dumps(each) for name, each in facts.items()}


def _step(step: ExecutionStep) -> str:
    """Return a step on one line."""
    at = "" if step.at is None else f", {_moment(step.at)}"
    return f"{step.name} ({_STATES[step.status].value}{at})"


def summary_json(observed: ObservedTask) -> Mapping[str, Any]:
    """Return a summary of one task for programs: JSON, times in ISO 8601."""
    task, seen = observed.task, observed.task.seen
    return {
        "id": task.id,
        "tool": task.tool,
        "status": status_of(task),
        "message": seen.failure.text if seen.failure else seen.message,
        "progress": seen.progress and without_zero_fractions(asdict(seen.progress)),
        "steps": [{"name": step.name, "status": _STATES[step.status].value} for step in seen.steps],
        "owner": task.owner,
        "engine": task.engine,
        "workflow": task.workflow,
        "executionId": seen.execution_id,
        "url": seen.url,
        "createdAt": task.created.isoformat(),
        "lastUpdatedAt": task.updated.isoformat(),
        "endedAt": task.ended and task.ended.isoformat(),
        "cancelRequestedAt": task.cancel_requested and task.cancel_requested.isoformat(),
        "trouble": observed.warning,
    }


def task_json(observed: ObservedTask) -> Mapping[str, Any]:
    """Return the summary with the task's questions, and its result or the facts of its failure."""
    seen = observed.task.seen
    error = failure_facts(seen.failure) if seen.failure else None
    asked = {key: {"method": request.method, "params": request.params} for key, request in seen.requests.items()}
    return {**summary_json(observed), "inputRequests": asked, "result": seen.output, "error": error}


def _cancel(task: Task) -> str | None:
    if task.cancel_requested is None:
        return None
    return f"asked for {_moment(task.cancel_requested)}" + ("" if task.cancel_delivered else ", not delivered yet")


def _moment(at: datetime | None) -> str | None:
    return None if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC ({_when(at - datetime.now(UTC))})"


def _when(ahead: timedelta) -> str:
    return f"in {rough_duration(ahead)}" if ahead > timedelta(0) else f"{rough_duration(-ahead)} ago"


def _plain(text: str) -> str:
    """Return a workflow's text on one line, without control characters."""
    return harmless(text).replace("\n", " ")
