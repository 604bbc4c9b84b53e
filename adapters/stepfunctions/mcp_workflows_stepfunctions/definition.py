"""The states in the definition of a state machine (Amazon States Language).

Source: https://states-language.net/spec.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from mcp_workflows_stepfunctions.names import MCP_INPUT
from mcp_workflows_stepfunctions.token_places import TokenPlace, token_places

WAITS_FOR_TOKEN: Final = ".waitForTaskToken"  # noqa: S105  # the end of a Resource, no password
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
        """The places of its task token in the parameters it sends."""
        path = self.fields.get("InputPath")
        input_path = path if isinstance(path, str) else None
        sent = {".$": "$"} if self._parameters is None else self._parameters  # without parameters: its input
        return token_places(sent, input_path)

    @property
    def sent(self) -> Any:  # Any: JSON
        """The parameters it sends, with null for values that are filled in at run time."""
        return _written(self._parameters)

    @property
    def jsonata(self) -> bool:
        """True if the state is written in JSONata."""
        return "Arguments" in self.fields

    @property
    def bounded(self) -> bool:
        """True if the state ends although it gets no answer."""
        own = (f"{name}Seconds{path}" for name in ("Timeout", "Heartbeat") for path in ("", "Path"))
        return self.limited or any(name in self.fields for name in own)

    @property
    def caught(self) -> frozenset[str]:
        """The errors that its own `Catch` and `Retry` name."""
        takers = [*self.fields.get("Catch", ()), *self.fields.get("Retry", ())]
        return frozenset(str(error) for taker in takers for error in taker.get("ErrorEquals", ()))

    @property
    def _parameters(self) -> Any:  # Any: JSON
        return self.fields.get("Parameters", self.fields.get("Arguments"))


def _written(value: object) -> object:
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {key.removesuffix(".$"): None if key.endswith(".$") else _written(item) for key, item in fields.items()}
    if isinstance(value, list):
        return [_written(item) for item in cast("list[object]", value)]
    return None if isinstance(value, str) and value.lstrip().startswith("{%") else value


def states(definition: str) -> Mapping[str, State]:
    """Return the states by name, at any depth; none if the definition cannot be read."""
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
