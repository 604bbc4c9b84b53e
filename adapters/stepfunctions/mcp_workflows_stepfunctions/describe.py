"""The state of an execution: DescribeExecution, and while it runs its history.

Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_DescribeExecution.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from mcp_workflows.adapter import TERMINAL, Execution, Failure, Gate, Ref, Status
from mcp_workflows_stepfunctions.client import Client
from mcp_workflows_stepfunctions.history import History
from mcp_workflows_stepfunctions.history_reader import HistoryReader
from mcp_workflows_stepfunctions.options import StepFunctionsOptions
from mcp_workflows_stepfunctions.outcome import describe_stop, read_failure
from mcp_workflows_stepfunctions.questions import problems, requests

STATUSES: Final[Mapping[str, Status]] = {
    "RUNNING": Status.RUNNING,
    "PENDING_REDRIVE": Status.RUNNING,  # a child of a Map run that waits to be redriven
    "SUCCEEDED": Status.SUCCEEDED,
    "FAILED": Status.FAILED,
    "TIMED_OUT": Status.FAILED,
    "ABORTED": Status.CANCELLED,
}


def running_execution(history: History, gates: Mapping[str, Gate]) -> Execution:
    """Return a running execution: its state, problems of its questions, and the questions that can be answered."""
    asked = requests(history, gates)
    parts = [text for text in (history.state, *problems(history, gates)) if text]
    status = Status.INPUT_REQUIRED if asked else Status.RUNNING
    return Execution(
        status=status,
        message="; ".join(parts) or None,
        progress=history.progress,
        requests=asked,
        steps=history.steps,
    )


def ended_execution(status: str, reply: Mapping[str, Any]) -> Execution:
    """Return an ended execution from the API's fields; `output`, `error` and `cause` may all be missing."""
    error, cause = _as_text(reply.get("error")), _as_text(reply.get("cause"))
    match STATUSES[status]:
        case Status.SUCCEEDED:
            return _succeeded(reply.get("output"))
        case Status.CANCELLED:
            return Execution(status=Status.CANCELLED, message=describe_stop(error, cause))
        case _:
            return Execution(status=Status.FAILED, failure=read_failure(status, error, cause))


def _succeeded(output: object) -> Execution:
    try:
        return Execution(status=Status.SUCCEEDED, output=json.loads(output) if isinstance(output, str) else output)
    except (ValueError, RecursionError) as error:
        what = "is nested too deeply" if isinstance(error, RecursionError) else "is no JSON"
        why = Failure(text=f"the execution succeeded, but its output {what}", kind="UndecodableResult")
        return Execution(status=Status.FAILED, failure=why)


def _as_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


async def describe_execution(client: Client, reader: HistoryReader, console: Console, ref: Ref) -> Execution:
    """Describe an execution: one call for an ended one, two while it runs, or one if its tool reads no history."""
    found = await client.call("describe_execution", executionArn=ref.handle)
    if STATUSES.get(found["status"]) in TERMINAL:
        reader.forget(ref.handle)
        seen = ended_execution(found["status"], found)
    else:
        seen = await _running(reader, ref)
    return replace(seen, execution_id=ref.handle, url=console.page(ref.handle))


async def _running(reader: HistoryReader, ref: Ref) -> Execution:
    if not StepFunctionsOptions.read(ref.options).history:
        return Execution(status=Status.RUNNING)
    history = await reader.read(ref.handle, ref.gates)  # an end since the call before shows in the next look
    return running_execution(history, ref.gates)


_DOMAINS: Final[Mapping[str, str]] = {
    "aws": "console.aws.amazon.com",
    "aws-cn": "console.amazonaws.cn",
    "aws-us-gov": "console.amazonaws-us-gov.com",
    "aws-eusc": "console.amazonaws-eusc.eu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """The address of the AWS console of a Region; `root` is None for other engines and partitions without a console."""

    root: str | None
    region: str

    @classmethod
    def of_region(cls, partition: str, region: str, *, url: str | None, custom: bool) -> Console:
        """Return the console as configured (`url`), or AWS's own unless the endpoint is a custom one."""
        domain = None if custom else _DOMAINS.get(partition)
        own = f"https://{region}.{domain}" if domain else None
        return cls(root=url.rstrip("/") if url else own, region=region)

    def page(self, execution: str) -> str | None:
        """Return the page of an execution ARN."""
        if self.root is None:
            return None
        return f"{self.root}/states/home?region={self.region}#/v2/executions/details/{quote(execution, safe=':')}"
