"""The states in the definition of a state machine (Amazon States Language).

Source: https://states-language.net/spec.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from mcp_workflows.adapter import JSON
from mcp_workflows_stepfunctions.questions import MCP_INPUT, is_token, opened

WAITS_FOR_TOKEN: Final = ".waitForTaskToken"  # noqa: S105  # noqa: S105  # the end of a Resource, not a password
_WITHIN: Final = ("ItemProcessor", "Iterator")  # of a Map


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One state, at any depth."""

    name: str
    fields: Mapping[str, Any]  # Any: JSON
    limited: bool = False  # the whole machine has a TimeoutSeconds

    @property
    def waits_for_token(self) -> bool:
        """True if the state waits for an answer with its task token."""
        return str(self.fields.get("Resource", "")).endswith(WAITS_FOR_TOKEN)

    @property
    def asks(self) -> bool:
        """True if the state asks people with `mcpInput`."""
        return self.waits_for_token and MCP_INPUT in json.dumps(self._parameters)

    @property
    def token_places(self) -> Sequence[TokenPlace]:
        """The places of its task token in its parameters."""
        return token_places(self._parameters)

    @property
    def sent(self) -> Any:  # Any: JSON
        """Its parameters without the `.$` of names, with unevaluated expressions."""
        return _written(self._parameters)

    @property
    def jsonata(self) -> bool:
        """True if the state is written in JSONata."""
        return "Arguments" in self.fields

    @property
    def bounded(self) -> bool:
        """True if the state ends without an answer."""
        own = (f"{name}Seconds{path}" for name in ("Timeout", "Heartbeat") for path in ("", "Path"))
        return self.limited or any(name in self.fields for name in own)

    @property
    def caught(self) -> frozenset[str]:
        """The errors in its own `Catch` and `Retry`."""
        takers = [*self.fields.get("Catch", ()), *self.fields.get("Retry", ())]
        return frozenset(str(error) for taker in takers for error in taker.get("ErrorEquals", ()))

    @property
    def _parameters(self) -> Any:  # Any: JSON
        return self.fields.get("Parameters", self.fields.get("Arguments"))


def _written(value: object) -> object:
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {key.removesuffix(".$"): _written(item) for key, item in fields.items()}
    return [_written(item) for item in cast("list[object]", value)] if isinstance(value, list) else value


def states(definition: str) -> Mapping[str, State]:
    """Return the states by name, at any depth; empty if the definition cannot be read."""
    try:
        machine = json.loads(definition)
    except (ValueError, RecursionError):
        return {}
    whole = cast("dict[str, Any]", machine) if isinstance(machine, dict) else {}
    return {state.name: state for state in _states(whole, limited="TimeoutSeconds" in whole)}


def _states(machine: object, *, limited: bool) -> Iterator[State]:
    found = cast("dict[str, Any]", machine).get("States") if isinstance(machine, dict) else None
    for name, fields in cast("dict[str, Any]", found if isinstance(found, dict) else {}).items():
        if isinstance(fields, dict):
            state = cast("dict[str, Any]", fields)
            yield State(name=name, fields=state, limited=limited)
            for nested in (*state.get("Branches", ()), *(state.get(each) for each in _WITHIN)):
                yield from _states(nested, limited=limited)


Path: TypeAlias = tuple[str | int, ...]

_CONTEXT: Final[Mapping[str, Path]] = {  # expressions for an object with the token, and the token's path inside
    "$$.Task.Token": (),
    "$$.Task": ("Token",),
    "$$": ("Task", "Token"),
    "$states.context.Task.Token": (),
    "$states.context.Task": ("Token",),
    "$states.context": ("Task", "Token"),
}
_MENTIONED: Final = re.compile(r"(?:\$\$|context)\.Task\b")
_JSONATA: Final = re.compile(r"\s*\{%\s*(.*?)\s*%\}\s*", re.DOTALL)
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlace:
    """The place of a token in the parameters of a state."""

    path: Path
    readable: bool = True  # False: the token is inside a larger expression

    def read(self, parameters: JSON) -> str | None:
        """Return the token at this place, or None."""
        found = parameters
        for step in self.path:
            found = _item(opened(found), step)
        return found if self.readable and isinstance(found, str) and is_token(found) else None

    @property
    def expression(self) -> str:
        """The place as JMESPath, for `when.token` of a gate."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{_name(step)}" for step in self.path)
        return "".join(steps).removeprefix(".")


def token_places(parameters: JSON) -> Sequence[TokenPlace]:
    """Return all places of the token in the `Parameters` or `Arguments` of a definition."""
    return list(_places(parameters, ()))


def is_token_expression(value: object) -> bool:
    """Return True if the value in a definition is only the token."""
    return isinstance(value, str) and _CONTEXT.get(_JSONATA.sub(r"\1", value).strip()) == ()


def _places(value: JSON, path: Path) -> Iterator[TokenPlace]:
    if isinstance(value, dict):
        for key, item in cast("Mapping[str, JSON]", value).items():
            if key.endswith(".$") and isinstance(item, str):
                yield from _place(item, (*path, key.removesuffix(".$")))
            else:
                yield from _places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("Sequence[JSON]", value)):
            yield from _places(item, (*path, index))
    elif isinstance(value, str) and (expression := _JSONATA.fullmatch(value)):
        yield from _place(expression[1], path)


def _place(expression: str, path: Path) -> Iterator[TokenPlace]:
    """Return the place of the token in the value of an expression, if the expression mentions the token."""
    inside = _CONTEXT.get(expression.strip())
    if inside is not None:
        yield TokenPlace(path=(*path, *inside))
    elif _MENTIONED.search(expression):
        yield TokenPlace(path=path, readable=False)


def _item(value: JSON, step: str | int) -> JSON:
    if isinstance(step, str):
        return cast("Mapping[str, Any]", value).get(step) if isinstance(value, dict) else None
    items = cast("Sequence[JSON]", value) if isinstance(value, list) else ()
    return items[step] if step < len(items) else None


def _name(step: str) -> str:
    return step if _PLAIN.fullmatch(step) else '"' + step.replace("\\", "\\\\").replace('"', '\\"') + '"'
