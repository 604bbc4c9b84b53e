"""The tools that the checks call, by default those of the official conformance suite, and the event they wait for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from mcp_tasks_conformance.check import JSON, ToolRole

ROLE_DESCRIPTIONS: Final[Mapping[ToolRole, str]] = {
    ToolRole.PLAIN: "a tool that cannot be called as a task",
    ToolRole.QUICK: "ends at once, with the same result each time; best with taskSupport optional",
    ToolRole.SLOW: "works for a few seconds, then ends well",
    ToolRole.LONG: "works for at least half a minute, and can be cancelled",
    ToolRole.FAILS: "ends with a result that has isError true; best with taskSupport required",
    ToolRole.BREAKS: "ends with a JSON-RPC error",
    ToolRole.ASKS: "asks one question by elicitation/create, then ends, whatever the answer",
    ToolRole.ASKS_TWO: "asks two questions, at once or one after the other, then ends",
    ToolRole.COUNTS: "tells its progress while it works, if the call has a progress token",
    ToolRole.FIRES: "makes the event of `--event` happen; called as a task if it can be one",
}
"""The behaviour that each role demands of its tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixture:
    """A tool and the arguments to call it with."""

    tool: str
    arguments: Mapping[str, JSON] = field(default_factory=dict[str, JSON])

    def __str__(self) -> str:
        """Return the fixture in the syntax of `--tool`, without the role."""
        return f"{self.tool} {json.dumps(self.arguments)}" if self.arguments else self.tool


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFixture:
    """An event type, and the arguments to subscribe to it with."""

    name: str
    arguments: Mapping[str, JSON] = field(default_factory=dict[str, JSON])


class UsageError(Exception):
    """The command line is invalid; the message says what to type instead."""


def official_fixtures(slow_seconds: float) -> Mapping[ToolRole, Fixture]:
    """Return the fixtures of the official suite, with a slow tool that works for this many seconds."""
    return {
        ToolRole.PLAIN: Fixture(tool="greet", arguments={"name": "Ada"}),
        ToolRole.QUICK: Fixture(tool="slow_compute", arguments={"seconds": 0, "label": "quick"}),
        ToolRole.SLOW: Fixture(tool="slow_compute", arguments={"seconds": slow_seconds, "label": "slow"}),
        ToolRole.LONG: Fixture(tool="slow_compute", arguments={"seconds": 60, "label": "long"}),
        ToolRole.FAILS: Fixture(tool="failing_job"),
        ToolRole.BREAKS: Fixture(tool="protocol_error_job"),
        ToolRole.ASKS: Fixture(tool="confirm_delete", arguments={"filename": "conformance.txt"}),
        ToolRole.ASKS_TWO: Fixture(tool="multi_input"),
        ToolRole.COUNTS: Fixture(tool="test_tool_with_progress"),
        ToolRole.FIRES: Fixture(tool="slow_compute", arguments={"seconds": 0, "label": "fires"}),
    }


def default_event(fixtures: Mapping[ToolRole, Fixture]) -> EventFixture:
    """Return the event that a task of the role `fires` has ended."""
    return EventFixture(name="task.ended", arguments={"tool": fixtures[ToolRole.FIRES].tool, "status": "completed"})


def parse_fixture(text: str) -> tuple[ToolRole, Fixture]:
    """Parse `ROLE=TOOL` or `ROLE=TOOL {"arguments": "as JSON"}`.

    Raises:
        UsageError: the text has another form.
    """
    role, equals, rest = text.partition("=")
    tool, _, arguments = rest.strip().partition(" ")
    if not equals or not tool or role not in set(ToolRole):
        raise UsageError(f"--tool {text!r}: ROLE=TOOL or ROLE='TOOL {{...}}'; roles are {', '.join(ToolRole)}")
    return ToolRole(role), Fixture(tool=tool, arguments=_parse_arguments(f"--tool {text!r}", arguments))


def parse_event(text: str) -> EventFixture:
    """Parse `NAME` or `NAME {"arguments": "as JSON"}`.

    Raises:
        UsageError: the text has another form.
    """
    name, _, arguments = text.strip().partition(" ")
    return EventFixture(name=name, arguments=_parse_arguments(f"--event {text!r}", arguments))


def _parse_arguments(option: str, arguments: str) -> Mapping[str, JSON]:
    try:
        value = json.loads(arguments.strip() or "{}")
    except ValueError as error:
        raise UsageError(f"{option}: the arguments are no JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{option}: the arguments must be a JSON object")
    return cast("Mapping[str, JSON]", value)
