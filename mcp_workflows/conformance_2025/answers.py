"""What the suite answers when a server asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from mcp_workflows.conformance_2025.check import JSON
from mcp_workflows.conformance_2025.traffic import RELATED, Message, as_list, as_object, related

Answer: TypeAlias = Callable[[Message], JSON]  # the result for an elicitation; None: leave it open

_VALUES: Final[Mapping[str, JSON]] = {"boolean": True, "integer": 1, "number": 1, "string": "Ada", "array": []}
METHOD_NOT_FOUND: Final = -32601


def accept(message: Message) -> JSON:
    """Fill in the form."""
    properties = as_object(as_object(message.params.get("requestedSchema")).get("properties"))
    return {"action": "accept", "content": {name: _value(as_object(schema)) for name, schema in properties.items()}}


def decline(_: Message) -> JSON:
    """Refuse to say."""
    return {"action": "decline"}


def hold(_: Message) -> JSON:
    """Say nothing yet."""
    return None


def answered(message: Message, answer: Answer) -> Mapping[str, JSON] | None:
    """The response to a request of the server: `result` or `error`; None: none yet."""
    if message.method == "ping":
        return {"result": {}}
    if message.method != "elicitation/create":
        return {"error": {"code": METHOD_NOT_FOUND, "message": f"this client has no {message.method}"}}
    result = answer(message)
    return None if result is None else {"result": {**result, **_meta(message)}}


def _meta(message: Message) -> Mapping[str, JSON]:
    task = related(message.params)
    return {} if task is None else {"_meta": {RELATED: {"taskId": task}}}


def _value(schema: Mapping[str, JSON]) -> JSON:
    """Something that fits one field of a form."""
    choices = as_list(schema.get("enum")) or [as_object(one).get("const") for one in as_list(schema.get("oneOf"))]
    if choices or "default" in schema:
        return choices[0] if choices else schema["default"]
    if "minimum" in schema:
        return schema["minimum"]
    value = _VALUES.get(str(schema.get("type")), "Ada")
    return value.ljust(int(schema.get("minLength", 0)), "a") if isinstance(value, str) else value
