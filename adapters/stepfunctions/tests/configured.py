"""A workflows.yaml over an engine of the tests, and what is looked up there; the rest as with every engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.configured import KEY, YES, asked, by_flags, called, client_of, operating, written
from tests.support.stepfunctions_engine import REGION, StepFunctions

__all__ = [
    "KEY",
    "PACE",
    "YES",
    "asked",
    "by_flags",
    "called",
    "client_of",
    "configured",
    "executions",
    "operating",
    "types",
]

PACE: Final = {"pollIntervalMs": 0}  # in place of the interval of a task, which depends on the load


def configured(
    folder: Path,
    url: str,
    tools: Mapping[str, Mapping[str, Any]],
    server: Mapping[str, Any] | None = None,
    **engine: Any,
) -> Path:
    """These tools of the engine `aws` at this URL, with a store beside it; `engine` adds to its settings."""
    settings = {"adapter": "stepfunctions", "region": REGION, "endpoint_url": url, **engine}
    return written(folder, "aws", settings, tools, server)


def executions(engine: StepFunctions, machine: str) -> list[str]:
    found = engine.client().list_executions(stateMachineArn=machine)["executions"]
    return [each["executionArn"] for each in found]


def types(engine: StepFunctions, execution: str) -> list[str]:
    history = engine.client().get_execution_history(executionArn=execution, maxResults=1000)
    return [event["type"] for event in history["events"]]
