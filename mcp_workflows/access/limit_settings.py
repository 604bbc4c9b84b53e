"""The settings of limits: how much callers may have, ask for and send; pure.

Each limit has a default that normal clients never reach, and `null` switches it off.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mcp_workflows.units import MAX_TTL, Duration, write_duration

Most: TypeAlias = Annotated[int, Field(gt=0)]
SHORTEST_TTL = timedelta(minutes=1)  # even if a client asks for less
MAX_JSON_VALUES: Final = 60_000
"""JSON values in the arguments of a call, or in the answers of one request.

Each text, number, list and object counts, however deep in others. Over HTTP a body with more is refused before it is
parsed.
"""
_MOST_MS = MAX_TTL // timedelta(milliseconds=1)


class ToolLimits(BaseModel):
    """Limits on the tasks of one tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: Most | None = Field(
        default=None, description="Tasks of this tool that may go on at the same time, of all callers together."
    )
    tasks_per_principal: Most | None = Field(
        default=None, description="Tasks of this tool that may go on at the same time for one principal."
    )
    creates_per_minute: Most | None = Field(
        default=None, description="Tasks of this tool that may be created in a minute, by all callers together."
    )


class Limits(BaseModel):
    """Limits for one principal and for all together; `null` is no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks_per_principal: Most | None = Field(
        default=1000,
        description="Tasks of one principal that may go on at the same time. Anonymous callers are one principal.",
    )
    creates_per_minute: Most | None = Field(
        default=300,
        description="Tasks that one principal may create in a minute, on all replicas together; and, counted apart in "
        "each process, calls in a minute that start nothing.",
    )
    polls_per_minute: Most | None = Field(
        default=6000,
        description="Requests about tasks (get, result, list, answer, cancel, listen) of one principal, per process: "
        "so many at once, and so many more each minute. Of anonymous callers: per address.",
    )
    failed_lookups_per_minute: Most | None = Field(
        default=60,
        description="Requests of one principal in a minute for tasks that are not there for them, likewise.",
    )
    open_listens_per_principal: Most | None = Field(
        default=100,
        description="Requests of one principal that stay open at the same time: `subscriptions/listen`, "
        "`tasks/result`, `task_wait`. Of anonymous callers: per address.",
    )
    open_listens: Most | None = Field(default=1000, description="The same of all callers together.")
    sessions_per_principal: Most | None = Field(
        default=1000,
        description="Sessions of 2025-11-25 (and before) over HTTP that one principal may have open at the same "
        "time. Of anonymous callers: per address.",
    )
    max_arguments: Most | None = Field(default=1_000_000, description="Bytes of JSON of the arguments of a call.")
    max_answer: Most | None = Field(
        default=64 * 1024, description="Bytes of JSON of the answers to questions in one request."
    )
    max_kept_result: Most | None = Field(
        default=10_000_000,
        description="Bytes of JSON of a result above which it is not kept at all, and the task says so. What is kept "
        "becomes a link above `max_result` of its tool.",
    )
    default_ttl: Duration | None = Field(
        default=None,
        description="How long a task can be read after its creation, if neither its tool nor its caller says. Default: "
        "the store's retention.",
    )
    max_ttl: Duration | None = Field(
        default=None,
        description="The longest ttl that a tool may set or a caller may ask for. Default: the tool's ttl, or else the "
        "store's retention.",
    )
    anonymous_ttl: Duration | None = Field(
        default=timedelta(days=1),
        description="The longest ttl of tasks of anonymous callers: the id is all that protects these.",
    )

    @model_validator(mode="after")
    def _of_one_mind(self) -> Self:
        if wrong := self.too_long(self.default_ttl):
            raise ValueError(f"default_ttl: {wrong}")
        return self

    def too_long(self, ttl: timedelta | None) -> str | None:
        """Return the problem with a ttl that is set, if it is longer than the longest one allowed."""
        if ttl is None or self.max_ttl is None or ttl <= self.max_ttl:
            return None
        return f"{write_duration(ttl)} is longer than limits.max_ttl, {write_duration(self.max_ttl)}"

    def ttl(self, *, asked_ms: int | None, tool: timedelta | None, retention: timedelta, identified: bool) -> timedelta:
        """Return how long a new task can be read: as long as its caller asks for, within bounds.

        `tool` is the ttl of its tool, which no caller may exceed; `retention` is that of the store.
        """
        usual = tool or self.default_ttl or retention
        longest = min(tool or self.max_ttl or usual, self.max_ttl or timedelta.max)
        if not identified:
            longest = min(longest, self.anonymous_ttl or timedelta.max)
        if asked_ms is None:
            return min(usual, longest)
        return min(max(timedelta(milliseconds=min(asked_ms, _MOST_MS)), SHORTEST_TTL), longest)


DEFAULTS = Limits()
UNLIMITED = Limits(**dict.fromkeys(Limits.model_fields))
