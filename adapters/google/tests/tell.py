"""Executions and callbacks as Google shows them, for tests that need no engine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from mcp_workflows_google.questions import PostedQuestion
from mcp_workflows_google.resources import Callback, ExecutionName, ExecutionResource, Step

NAME: Final = "projects/shop-123/locations/europe-west1/workflows/refund/executions/e-1"
EXECUTION: Final = ExecutionName.parse(NAME)
NOW: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
GOOGLE: Final = "https://workflowexecutions.googleapis.com"
FORM: Final[Mapping[str, Any]] = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def seen(state: int = 1, *steps: str, **more: Any) -> ExecutionResource:
    """An execution in these steps, each `STEP` of main or `ROUTINE.STEP`."""
    places = [
        Step(routine=routine or "main", step=step) for routine, _, step in (each.rpartition(".") for each in steps)
    ]
    return ExecutionResource(name=NAME, state=state, steps=places, **more)


def callback(identifier: str, method: str = "POST", waiters: int = 1, payloads: int = 0) -> Callback:
    """A callback, as callbacks.list shows it."""
    return Callback(name=f"{NAME}/callback/{identifier}", method=method, waiters=waiters, payloads=payloads)


def url(identifier: str = "cb-1", execution: str = NAME, origin: str = GOOGLE) -> str:
    """The URL of a callback, as a workflow has it."""
    return f"{origin}/v1/{execution}/callbacks/{identifier}"


def posted(**more: Any) -> Mapping[str, Any]:
    """What `mcp_elicit` posts."""
    return {
        "project": "shop-123",
        "project_number": "1234567890",
        "location": "europe-west1",
        "workflow": "refund",
        "execution": "e-1",
        "callback_url": url(),
        "key": "approve",
        "message": "Refund 40 EUR?",
        "requested_schema": FORM,
        "timeout": 3600,
        **more,
    }


def noted(**more: Any) -> Any:
    """A question as it is noted at NOW."""
    found = dict(
        PostedQuestion.read(posted(**{key: value for key, value in more.items() if key != "answered"})).question(NOW)
    )
    return {**found, "answered": more.get("answered", False)}
