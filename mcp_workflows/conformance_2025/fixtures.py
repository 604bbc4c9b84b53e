"""Which tool of the server plays which part: the fixtures of the official suite's scenarios, unless told otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from mcp_workflows.conformance_2025.check import JSON, Role

WHAT: Final[Mapping[Role, str]] = {
    Role.PLAIN: "a tool that cannot be called as a task",
    Role.QUICK: "ends at once, with the same result each time; best with taskSupport optional",
    Role.SLOW: "works for a few seconds, then ends well",
    Role.LONG: "works for at least half a minute, and can be cancelled",
    Role.FAILS: "ends with a result that has isError true; best with taskSupport required",
    Role.BREAKS: "ends with a JSON-RPC error",
    Role.ASKS: "asks one question by elicitation/create, then ends, whatever the answer",
    Role.ASKS_TWO: "asks two questions, at once or one after the other, then ends",
    Role.COUNTS: "tells its progress while it works, if the call has a progress token",
}
"""What the tool of each role has to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixture:
    """One tool, and what to call it with."""

    tool: str
    arguments: Mapping[str, JSON] = field(default_factory=dict[str, JSON])

    def __str__(self) -> str:
        """As it is typed."""
        return f"{self.tool} {json.dumps(self.arguments)}" if self.arguments else self.tool


class WrongUsageError(Exception):
    """What was typed cannot be meant; the message says what to type instead."""


def official(seconds: float) -> Mapping[Role, Fixture]:
    """The fixtures of the official suite; the slow one takes so many seconds."""
    return {
        Role.PLAIN: Fixture(tool="greet", arguments={"name": "Ada"}),
        Role.QUICK: Fixture(tool="slow_compute", arguments={"seconds": 0, "label": "quick"}),
        Role.SLOW: Fixture(tool="slow_compute", arguments={"seconds": seconds, "label": "slow"}),
        Role.LONG: Fixture(tool="slow_compute", arguments={"seconds": 60, "label": "long"}),
        Role.FAILS: Fixture(tool="failing_job"),
        Role.BREAKS: Fixture(tool="protocol_error_job"),
        Role.ASKS: Fixture(tool="confirm_delete", arguments={"filename": "conformance.txt"}),
        Role.ASKS_TWO: Fixture(tool="multi_input"),
        Role.COUNTS: Fixture(tool="test_tool_with_progress"),
    }


def read_fixture(text: str) -> tuple[Role, Fixture]:
    """`ROLE=TOOL` or `ROLE=TOOL {"arguments": "as JSON"}`.

    Raises:
        WrongUsageError: it is not.
    """
    role, equals, rest = text.partition("=")
    tool, _, arguments = rest.strip().partition(" ")
    if not equals or not tool or role not in set(Role):
        raise WrongUsageError(f"--tool {text!r}: ROLE=TOOL or ROLE='TOOL {{...}}'; roles are {', '.join(Role)}")
    return Role(role), Fixture(tool=tool, arguments=_arguments(text, arguments.strip()))


def _arguments(text: str, given: str) -> Mapping[str, JSON]:
    try:
        value = json.loads(given or "{}")
    except ValueError as error:
        raise WrongUsageError(f"--tool {text!r}: the arguments are no JSON: {error}") from None
    if not isinstance(value, dict):
        raise WrongUsageError(f"--tool {text!r}: the arguments must be a JSON object")
    return cast("Mapping[str, JSON]", value)
