"""The responses of the suite's client to requests of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from mcp_tasks_conformance.check import JSON
from mcp_tasks_conformance.traffic import RELATED_TASK, Message, as_list, as_object, related_task_id

Answer: TypeAlias = Callable[[Message], JSON]  # the ElicitResult for an elicitation; None leaves it unanswered

METHOD_NOT_FOUND: Final = -32601
_VALUES: Final[Mapping[str, JSON]] = {"boolean": True, "integer": 1, "number": 1, "string": "Ada", "array": []}


def accept(message: Message) -> JSON:
    """Accept an elicitation, with values that fit the requested schema."""
    properties = as_object(as_object(message.params.get("requestedSchema")).get("properties"))
    return {"action": "accept", "content": {name: _value(as_object(schema)) for name, schema in properties.items()}}


def decline(_: Message) -> JSON:
    """Decline an elicitation."""
    return {"action": "decline"}


def hold(_: Message) -> JSON:
    """Leave an elicitation unanswered."""
    return None


def build_response(message: Message, answer: Answer) -> Mapping[str, JSON] | None:
    """Return the `result` or `error` for a request of the server, or None to leave it unanswered."""
    if message.method == "ping":
        return {"result": {}}
    if message.method != "elicitation/create":
        return {"error": {"code": METHOD_NOT_FOUND, "message": f"this client has no {message.method}"}}
    result = answer(message)
    return None if result is None else {"result": {**result, **_meta(message)}}


def _meta(message: Message) -> Mapping[str, JSON]:
    task = related_task_id(message.params)
    return {} if task is None else {"_meta": {RELATED_TASK: {"taskId": task}}}


def _value(schema: Mapping[str, JSON]) -> JSON:
    """Return a value that fits the schema of one form field."""
    choices = as_list(schema.get("enum")) or [as_object(one).get("const") for one in as_list(schema.get("oneOf"))]
    if choices or "default" in schema:
        return choices[0] if choices else schema["default"]
    if "minimum" in schema:
        return schema["minimum"]
    value = _VALUES.get(str(schema.get("type")), "Ada")
    return value.ljust(int(schema.get("minLength", 0)), "a") if isinstance(value, str) else value
