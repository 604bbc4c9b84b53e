"""What an execution is seen as, wherever that is read: in a look, in an Express reply, in an exported history."""

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
    """While it runs: the state it is in, what is wrong with its questions, and those that can be answered."""
    asked = requests(history, gates)
    said = [text for text in (history.state, *problems(history, gates)) if text]
    status = Status.INPUT_REQUIRED if asked else Status.RUNNING
    return Execution(status=status, message="; ".join(said) or None, progress=history.progress, requests=asked)


def ended_execution(status: str, told: Mapping[str, Any]) -> Execution:
    """How it ended, in the words of the API; `output`, `error` and `cause` may all be missing."""
    error, cause = _text(told.get("error")), _text(told.get("cause"))
    match STATUSES[status]:
        case Status.SUCCEEDED:
            return _succeeded(told.get("output"))
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


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


async def describe_execution(client: Client, reader: HistoryReader, console: Console, ref: Ref) -> Execution:
    """One call for an execution that has ended, two while it runs; one if its tool wants no history."""
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
    history = await reader.read(ref.handle, ref.gates)  # if it has ended since the call before, the next look tells how
    return running_execution(history, ref.gates)


_DOMAINS: Final[Mapping[str, str]] = {
    "aws": "console.aws.amazon.com",
    "aws-cn": "console.amazonaws.cn",
    "aws-us-gov": "console.amazonaws-us-gov.com",
    "aws-eusc": "console.amazonaws-eusc.eu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Where the console of a Region is; `root` None: there is none (an engine of one's own, another partition)."""

    root: str | None
    region: str

    @classmethod
    def of_region(cls, partition: str, region: str, *, url: str | None, custom: bool) -> Console:
        """As set (`url`), or AWS's own, unless the endpoint is a custom one."""
        domain = None if custom else _DOMAINS.get(partition)
        own = f"https://{region}.{domain}" if domain else None
        return cls(root=url.rstrip("/") if url else own, region=region)

    def page(self, execution: str) -> str | None:
        """The page of an execution ARN."""
        if self.root is None:
            return None
        return f"{self.root}/states/home?region={self.region}#/v2/executions/details/{quote(execution, safe=':')}"
