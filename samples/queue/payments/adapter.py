"""The adapter: five functions in front of the table of runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from mcp_workflows import from_functions
from mcp_workflows.adapter import JSON, Execution, Failure, InputRequest, Nothing, Ref, Start, StartGuarantee, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from payments.tasks import TASKS, runs

STATES = {"done": Status.SUCCEEDED, "failed": Status.FAILED, "cancelled": Status.CANCELLED}


def start(start: Start) -> str:
    task = TASKS.get(start.workflow)
    if task is None:
        raise EngineRefused(f"there is no task {start.workflow!r}", final=True)
    arguments: JSON = start.arguments[0] if start.arguments else {}
    if runs.add(start.key, start.workflow, arguments, start.digest) == "queued":
        task(start.key)  # perhaps a second time: only the first message begins the run
    return start.key


def same(start: Start, handle: str) -> bool:
    return bool(runs.get(handle)["digest"] == start.digest)


def describe(ref: Ref) -> Execution:
    run = runs.get(ref.handle)
    status, result = STATES.get(run["state"], Status.RUNNING), json.loads(run["result"] or "null")
    questions = {
        each["key"]: InputRequest(
            method="elicitation/create",
            params={"message": each["message"], "requestedSchema": json.loads(each["schema"])},
        )
        for each in (runs.questions(ref.handle) if run["state"] == "running" else [])
    }
    return Execution(
        status=Status.INPUT_REQUIRED if questions else status,
        message=run["state"],
        requests=questions,
        output=result if status is Status.SUCCEEDED else None,
        failure=Failure(text=result) if status is Status.FAILED else None,
        cancel_requested=run["state"] == "stopping",
    )


def answer(ref: Ref, responses: Mapping[str, JSON]) -> None:
    runs.get(ref.handle)  # there must be one
    for key, response in responses.items():
        runs.answer(ref.handle, key, response["content"] if response["action"] == "accept" else None)


def cancel(ref: Ref) -> None:
    runs.get(ref.handle)
    runs.stop(ref.handle)


PaymentsAdapter = from_functions(
    settings=Nothing,
    start=start,
    same=same,
    describe=describe,
    answer=answer,
    cancel=cancel,
    starts=StartGuarantee.KEYED,
    errors={LookupError: ExecutionNotFound, sqlite3.OperationalError: EngineUnavailable},
)
