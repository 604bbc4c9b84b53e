"""What the official conformance suite wants of a server, as real workflows: seven for tasks, four for tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from dbos import DBOS
from mcp_workflows_dbos import Answer, McpError, ask, progress

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


@DBOS.workflow(name="Greet")
async def greet(name: str) -> str:
    """Ends at once."""
    return f"Hello, {name}!"


@DBOS.workflow(name="SlowCompute")
async def slow_compute(seconds: float = 1.0, label: str = "") -> str:
    """Takes as long as it is told."""
    await progress(f"computing {label}".strip())
    if seconds > 0:
        await DBOS.sleep_async(seconds)
    return f"computed {label} in {seconds:g} s"


@DBOS.workflow(name="FailingJob")
async def failing_job() -> str:
    """Fails as workflows do."""
    await DBOS.sleep_async(1)
    raise RuntimeError("this one always fails")


@DBOS.workflow(name="ProtocolErrorJob")
async def protocol_error_job() -> str:
    """Fails with a JSON-RPC error, because it asks for one."""
    await DBOS.sleep_async(1)
    raise McpError("this one always breaks", -32603)


@DBOS.workflow(name="ConfirmDelete")
async def confirm_delete(filename: str) -> str:
    """Asks one question."""
    answer = await ask(f"Delete {filename}?", CONFIRM)
    return f"{filename} was deleted" if _confirmed(answer) else f"{filename} was kept"


@DBOS.workflow(name="MultiInput")
async def multi_input() -> str:
    """Asks two questions at once."""
    who, sure = await asyncio.gather(ask("What is your name?", NAME), ask("Are you sure?", CONFIRM))
    name = who.content.get("name", "somebody")
    return f"{name} is sure" if _confirmed(sure) else f"{name} is not sure"


@DBOS.workflow(name="GreetLater")
async def greet_later(name: str) -> str:
    """Needs an argument that the sidecar asks for before it starts anything."""
    await DBOS.sleep_async(1)
    return f"Hello, {name}, this took a while"


@DBOS.workflow(name="Echo")
async def echo(value: Any) -> Any:
    """Gives back what it got: a text, or a whole result with content of any kind."""
    return value


@DBOS.workflow(name="Count")
async def count() -> str:
    """Tells how far it is."""
    for percent in (0, 50, 100):
        await progress(f"{percent} %", percent, 100)
        await DBOS.sleep_async(1)
    return "counted to 100"


@DBOS.workflow(name="TwoSteps")
async def two_steps(name: str) -> str:
    """Got one answer before it started, and asks for another."""
    schema = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    answer = await ask("Step 2: What is your favorite color?", schema)
    return f"{name} likes {answer.content.get('color', 'no color')}"


@DBOS.workflow(name="AskForm")
async def ask_form(message: str, form: str) -> str:
    """Asks with one of the forms, and tells the answer."""
    answer = await ask(message, FORMS[form])
    return f"User response: action={answer.action}, content={json.dumps(answer.content)}"


def _confirmed(answer: Answer) -> bool:
    return bool(answer.content.get("confirm"))
