"""What the official conformance suite wants of a server, as real workflows: seven for tasks, four for tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from mcp_workflows_temporal_worker import Answer, elicit, progress

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
CONFIRM = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
OPTIONS = ["option1", "option2", "option3"]
TITLED = [
    {"const": "value1", "title": "First Option"},
    {"const": "value2", "title": "Second Option"},
    {"const": "value3", "title": "Third Option"},
]
FORMS: Mapping[str, Mapping[str, Any]] = {  # Any: JSON Schema
    "user": {
        "type": "object",
        "properties": {
            "username": {"type": "string", "description": "User's response"},
            "email": {"type": "string", "description": "User's email address"},
        },
        "required": ["username", "email"],
    },
    "defaults": {  # SEP-1034
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        },
    },
    "choices": {  # SEP-1330
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": OPTIONS},
            "titledSingle": {"type": "string", "oneOf": TITLED},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
            "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
        },
    },
}


@workflow.defn
class Greet:
    """Ends at once."""

    @workflow.run
    async def run(self, name: str) -> str:
        """Say hello."""
        return f"Hello, {name}!"


@workflow.defn
class SlowCompute:
    """Takes as long as it is told."""

    @workflow.run
    async def run(self, seconds: float = 1.0, label: str = "") -> str:
        """Sleep so many seconds, and say so."""
        await progress(f"computing {label}".strip())
        if seconds > 0:
            await workflow.sleep(timedelta(seconds=seconds))
        return f"computed {label} in {seconds:g} s"


@workflow.defn
class FailingJob:
    """Fails as workflows do."""

    @workflow.run
    async def run(self) -> str:
        """Fail after a second."""
        await workflow.sleep(timedelta(seconds=1))
        raise ApplicationError("this one always fails", type="AlwaysFails", non_retryable=True)


@workflow.defn
class ProtocolErrorJob:
    """Fails with a JSON-RPC error, because it asks for one."""

    @workflow.run
    async def run(self) -> str:
        """Fail after a second."""
        await workflow.sleep(timedelta(seconds=1))
        raise ApplicationError("this one always breaks", -32603, type="McpError", non_retryable=True)


@workflow.defn
class ConfirmDelete:
    """Asks one question."""

    @workflow.run
    async def run(self, filename: str) -> str:
        """Delete nothing, but only if told so."""
        answer = await elicit(f"Delete {filename}?", CONFIRM)
        return f"{filename} was deleted" if _confirmed(answer) else f"{filename} was kept"


@workflow.defn
class MultiInput:
    """Asks two questions at once."""

    @workflow.run
    async def run(self) -> str:
        """Wait for both answers, in whichever order they come."""
        who, sure = await asyncio.gather(elicit("What is your name?", NAME), elicit("Are you sure?", CONFIRM))
        name = who.content.get("name", "somebody")
        return f"{name} is sure" if _confirmed(sure) else f"{name} is not sure"


@workflow.defn
class GreetLater:
    """Needs an argument that the sidecar asks for before it starts anything."""

    @workflow.run
    async def run(self, name: str) -> str:
        """Say hello, after a while."""
        await workflow.sleep(timedelta(seconds=1))
        return f"Hello, {name}, this took a while"


@workflow.defn
class Echo:
    """Gives back what it got: a text, or a whole result with content of any kind."""

    @workflow.run
    async def run(self, value: Any) -> Any:  # Any: JSON
        """Return it."""
        return value


@workflow.defn
class Count:
    """Tells how far it is."""

    @workflow.run
    async def run(self) -> str:
        """Count to 100 in three steps."""
        for percent in (0, 50, 100):
            await progress(f"{percent} %", percent, 100)
            await workflow.sleep(timedelta(seconds=1))
        return "counted to 100"


@workflow.defn
class TwoSteps:
    """Got one answer before it started, and asks for another."""

    @workflow.run
    async def run(self, name: str) -> str:
        """Ask for a colour."""
        schema = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
        answer = await elicit("Step 2: What is your favorite color?", schema)
        return f"{name} likes {answer.content.get('color', 'no color')}"


@workflow.defn
class AskForm:
    """Asks with one of the forms, and tells the answer."""

    @workflow.run
    async def run(self, message: str, form: str) -> str:
        """Wait for the answer."""
        answer = await elicit(message, FORMS[form])
        return f"User response: action={answer.action}, content={json.dumps(answer.content)}"


def _confirmed(answer: Answer) -> bool:
    return bool(answer.content.get("confirm"))


SEVEN = (Greet, SlowCompute, FailingJob, ProtocolErrorJob, ConfirmDelete, MultiInput, GreetLater)
ALL = [*SEVEN, Echo, Count, TwoSteps, AskForm]
