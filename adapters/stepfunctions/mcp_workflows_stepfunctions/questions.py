"""The question in the parameters of a state that waits for a task token: `{"mcpInput": ..., "taskToken": ...}`.

It may be anywhere in the parameters, also in a text that is JSON, such as a message in a message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from mcp_workflows.adapter import JSON, InputRequest

MCP_INPUT: Final = "mcpInput"  # in the parameters of a `.waitForTaskToken` state: the question, beside the token
TASK_TOKEN: Final = "taskToken"  # noqa: S105  # noqa: S105  # beside it: the name of a field, not a password
ELICIT: Final = "elicitation/create"
MAX_TOKEN: Final = 2_048  # characters
_DEEPEST: Final = 40  # nested objects and lists to search
_SECRET: Final = 20  # characters; a shorter token is not AWS's, and may be part of any word
_HIDDEN: Final = "[task token]"
_SMALL: Final = 8_192  # characters of parameters to keep unchanged
_FORM_TYPES: Final = ("string", "number", "integer", "boolean", "array")

_Object = Mapping[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class McpInput:
    """The `mcpInput` of a state, possibly invalid, and the token beside it."""

    question: JSON
    token: str | None = field(repr=False)  # None: no token beside the question


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question of a waiting state, or the problem with it; both None if it asks nobody."""

    request: InputRequest | None = None
    token: str | None = field(default=None, repr=False)
    problem: str | None = None


class MalformedQuestionError(ValueError):
    """A problem of a question, with a text for the author of the state machine."""


def find_question(parameters: JSON, state: str) -> Question:
    """Return the question in the parameters of a state, if any; slow for large parameters."""
    found = find_mcp_input(parameters)
    if found is None:
        return Question()
    if found.token is None:
        return Question(problem=f"state {state} asks with {MCP_INPUT}, but has no {TASK_TOKEN} beside it")
    try:
        return Question(request=read_question(_without(found.token, opened(found.question))), token=found.token)
    except MalformedQuestionError as error:
        return Question(problem=f"state {state} asks with a malformed {MCP_INPUT}: {error}")


def _without(token: str, value: JSON, depth: int = 0) -> JSON:
    """Remove the token from a question: the author may have put it into a text, and clients must not see it."""
    if depth > _DEEPEST:
        raise MalformedQuestionError("it is nested too deeply")
    if isinstance(value, str):
        return value.replace(token, _HIDDEN) if len(token) >= _SECRET else value
    if isinstance(value, dict):
        return {_without(token, k): _without(token, v, depth + 1) for k, v in cast("_Object", value).items()}
    if isinstance(value, list):
        return [_without(token, item, depth + 1) for item in cast("list[object]", value)]
    return value


def find_mcp_input(parameters: JSON) -> McpInput | None:
    """Return the first `mcpInput`, depth first, preferably one with a token; None without any."""
    found = [_envelope(each) for each in objects(parameters) if MCP_INPUT in each]
    return next((each for each in found if each.token), found[0] if found else None)


def _envelope(found: _Object) -> McpInput:
    token = found.get(TASK_TOKEN)
    return McpInput(question=found[MCP_INPUT], token=token if is_token(token) else None)


def is_token(value: object) -> bool:
    """Return True if the value can be a task token."""
    return isinstance(value, str) and 0 < len(value) <= MAX_TOKEN


def objects(value: JSON, depth: int = 0) -> Iterator[_Object]:
    """Yield all objects in a value, depth first, including those in texts."""
    if depth > _DEEPEST:
        return
    value = opened(value)
    if isinstance(value, dict):
        yield cast("_Object", value)
        for item in cast("_Object", value).values():
            yield from objects(item, depth + 1)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from objects(item, depth + 1)


def opened(value: JSON) -> JSON:
    """Return the object or list in a JSON text; any other value is unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def read_parameters(text: JSON) -> JSON:
    """Return the parameters of an event, with objects and lists instead of their JSON texts.

    In large parameters, long texts that cannot be a token become null, as parameters are kept while the state waits.
    """
    large = isinstance(text, str) and len(text) > _SMALL
    return _mapped(text, _short if large else opened)


def _short(value: JSON) -> JSON:
    value = opened(value)
    return None if isinstance(value, str) and len(value) > MAX_TOKEN else value


def _mapped(value: JSON, change: Callable[[JSON], JSON], depth: int = 0) -> JSON:
    """Return the value with each part changed, outermost first; questions are unchanged."""
    value = change(value)
    if depth > _DEEPEST:
        return None
    if isinstance(value, dict):
        items = cast("_Object", value).items()
        return {key: item if key == MCP_INPUT else _mapped(item, change, depth + 1) for key, item in items}
    if isinstance(value, list):
        return [_mapped(item, change, depth + 1) for item in cast("list[object]", value)]
    return value


def read_question(question: JSON) -> InputRequest:
    """Return the question of an `mcpInput`: `{method, params}`, or short `{message, requestedSchema}`.

    Raises:
        MalformedQuestionError: no client could show it.
    """
    question = opened(question)
    if not isinstance(question, dict):
        raise MalformedQuestionError("it is not an object")
    found = cast("_Object", question)
    if not found.keys() & {"method", "params"}:
        return InputRequest(method=ELICIT, params=_params(found))
    if found.get("method", ELICIT) != ELICIT:
        raise MalformedQuestionError(f"its method is not {ELICIT}")
    params = found.get("params")
    if not isinstance(params, dict):
        raise MalformedQuestionError("its params are not an object")
    return InputRequest(method=ELICIT, params=_params(cast("_Object", params)))


def _params(params: _Object) -> _Object:
    message = params.get("message")
    if not isinstance(message, str) or not message.strip():
        raise MalformedQuestionError("it has no message")
    if params.get("mode", "form") != "form":
        raise MalformedQuestionError("its mode is not form")
    schema = _form(params.get("requestedSchema", {}))
    return {**params, "mode": "form", "message": message, "requestedSchema": schema}


def _form(schema: JSON) -> _Object:
    """Return the schema of a form; without one, that of a form without fields, to accept or decline."""
    if not isinstance(schema, dict) or cast("_Object", schema).get("type", "object") != "object":
        raise MalformedQuestionError("its requestedSchema is not the schema of an object")
    found = cast("_Object", schema)
    properties = found.get("properties", {})
    if not isinstance(properties, dict):
        raise MalformedQuestionError("properties of its requestedSchema are not an object")
    for name, rules in cast("_Object", properties).items():
        if not isinstance(rules, dict) or cast("_Object", rules).get("type") not in _FORM_TYPES:
            raise MalformedQuestionError(f"property {name!r} must have one type of {', '.join(_FORM_TYPES)}")
    required = found.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in cast("list[object]", required)):
        raise MalformedQuestionError("required of its requestedSchema is not a list of names")
    return {"type": "object", **found, "properties": properties}
