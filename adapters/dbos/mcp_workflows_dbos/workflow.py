"""The functions that workflows call: `ask` asks a person, and `progress` reports how far the work is.

A question is one step, and its key is the id of that step: recovery asks it under the same key, and no other question
of the workflow has that key. The answer is a message on a topic that ends with the key. `ask` reserves its step id
before its first await, so several questions may be asked concurrently: `await asyncio.gather(ask(...), ask(...))`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from dbos import DBOS

from mcp_workflows.adapter.forms import read_form
from mcp_workflows.kit.change_hints import ChangeHints

__all__ = ["ANSWER", "ASK", "CHANGES", "PROGRESS", "QUESTION", "Answer", "McpError", "ask", "progress"]

ASK: Final = "ask"  # the step name of a question
PROGRESS: Final = "mcp.progress"  # the event with the last progress report
QUESTION: Final = "mcp.question."  # the event of a question: this prefix and its key
ANSWER: Final = "mcp.answer."  # the topic of its answer: this prefix and its key
CHANGES: Final = ChangeHints()  # of the workflows in this process, which has one DBOS

_FOREVER: Final = 100 * 365 * 86400.0  # seconds
_NOTHING: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}  # accept or decline


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a person to a question (MCP `ElicitResult`)."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, Any] = field(
        default_factory=dict[str, Any]
    )  # Any: JSON that fits the schema; empty unless accepted

    @property
    def accepted(self) -> bool:
        """True if the person filled in the form and sent it."""
        return self.action == "accept"


class McpError(Exception):
    """A JSON-RPC error for the client. A workflow that raises it fails with this `code`, `message` and `data`."""

    def __init__(self, message: str, code: int, data: Any = None) -> None:  # Any: JSON
        super().__init__(message, code, data)
        self.message = message
        self.code = code
        self.data = data

    def __str__(self) -> str:
        return self.message


async def ask(message: str, schema: Mapping[str, Any] | type | None = None) -> Answer:
    """Ask the person behind the task and wait for the answer without a time limit.

    `schema` is a flat JSON Schema object of primitive properties, or a pydantic model or a dataclass with such a
    schema (MCP elicitation, form mode). Without it the person can only accept or decline. A form that no client can
    show is refused when the module is loaded, if the call names it by names at the top of the module.

    Raises:
        ValueError: no client can show the schema as a form.
    """
    question = {
        "mode": "form",
        "message": message,
        "requestedSchema": read_form(_NOTHING if schema is None else schema),
    }
    reserved = DBOS.reserve_step()  # before the first await, so that recovery reserves the same id
    key = str(reserved.step_id)
    answer = asyncio.ensure_future(DBOS.recv_async(f"{ANSWER}{key}", _FOREVER))

    async def publish() -> str:
        await DBOS.set_event_async(f"{QUESTION}{key}", question)
        return key

    try:
        await reserved.run_async({"name": ASK}, publish)
        CHANGES.notify(str(DBOS.workflow_id))
        response = await answer
    finally:
        answer.cancel()
    content = cast("Mapping[str, Any]", response.get("content") or {})
    return Answer(action=response["action"], content=content if response["action"] == "accept" else {})


async def progress(message: str, value: float | None = None, total: float | None = None) -> None:
    """Report the current step, and that `value` of `total` units are done, in any unit.

    Each report adds a row to the step table, so report steps, not bytes.
    """
    await DBOS.set_event_async(PROGRESS, {"message": message, "value": value, "total": total})
    CHANGES.notify(str(DBOS.workflow_id))
