"""The settings of limits: how much callers can store, request and send; pure.

Each limit has a default that normal clients never reach, and `null` switches it off.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mcp_workflows.units import MAX_TTL, Duration, write_duration

Most: TypeAlias = Annotated[int, Field(gt=0)]
SHORTEST_TTL = timedelta(minutes=1)  # even if a client requests less
MAX_JSON_VALUES: Final = 60_000
"""Maximum number of JSON values in the arguments of a call, or in the answers of one request.

Each text, number, list and object counts, at any depth. Over HTTP, a larger body is refused before it is parsed.
"""
_MOST_MS = MAX_TTL // timedelta(milliseconds=1)


class ToolLimits(BaseModel):
    """Limits on the tasks of one tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks: Most | None = Field(
        default=None, description="Maximum number of running tasks of this tool, over all callers."
    )
    tasks_per_principal: Most | None = Field(
        default=None, description="Maximum number of running tasks of this tool for one principal."
    )
    creates_per_minute: Most | None = Field(
        default=None, description="Maximum number of tasks of this tool created per minute, over all callers."
    )


class Limits(BaseModel):
    """Limits per principal and in total; `null` means no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tasks_per_principal: Most | None = Field(
        default=1000,
        description="Maximum number of running tasks of one principal. Anonymous callers are one principal.",
    )
    creates_per_minute: Most | None = Field(
        default=300,
        description="Maximum number of tasks that one principal creates per minute, over all replicas. Calls "
        "that start nothing count separately, per process, with the same limit.",
    )
    polls_per_minute: Most | None = Field(
        default=6000,
        description="Maximum number of requests about tasks (get, result, list, answer, cancel, listen) of "
        "one principal, per process: a burst of this size, refilled over a minute. Anonymous callers "
        "count per address.",
    )
    failed_lookups_per_minute: Most | None = Field(
        default=60,
        description="Maximum number of look-ups per minute, of one principal, that find no task. Counted per "
        "process; anonymous callers count per address.",
    )
    open_listens_per_principal: Most | None = Field(
        default=100,
        description="Maximum number of open requests of one principal: `subscriptions/listen`, "
        "`tasks/result`, `task_wait`. Anonymous callers count per address.",
    )
    open_listens: Most | None = Field(default=1000, description="Maximum number of open requests of all callers.")
    sessions_per_principal: Most | None = Field(
        default=1000,
        description="Maximum number of open HTTP sessions (2025-11-25 and earlier) of one principal. "
        "Anonymous callers count per address.",
    )
    max_arguments: Most | None = Field(
        default=1_000_000, description="Maximum size of a call's arguments, in bytes of JSON."
    )
    max_answer: Most | None = Field(
        default=64 * 1024, description="Maximum size of the answers in one request, in bytes of JSON."
    )
    max_kept_result: Most | None = Field(
        default=10_000_000,
        description="Maximum size of a stored result, in bytes of JSON. The task says if its result is "
        "larger. Above the tool's `max_result`, a stored result becomes a link.",
    )
    default_ttl: Duration | None = Field(
        default=None,
        description="The ttl of tasks whose tool and caller set none. Default: the store's `retention`.",
    )
    max_ttl: Duration | None = Field(
        default=None,
        description="The longest ttl that a tool can set or a caller can request. Default: the tool's ttl, "
        "`default_ttl` or the store's `retention`, the first that is set.",
    )
    anonymous_ttl: Duration | None = Field(
        default=timedelta(days=1),
        description="The longest ttl of anonymous callers' tasks, which only their id protects.",
    )

    @model_validator(mode="after")
    def _of_one_mind(self) -> Self:
        if wrong := self.too_long(self.default_ttl):
            raise ValueError(f"default_ttl: {wrong}")
        return self

    def too_long(self, ttl: timedelta | None) -> str | None:
        """Return the error of a configured ttl that exceeds the maximum; None if it does not."""
        if ttl is None or self.max_ttl is None or ttl <= self.max_ttl:
            return None
        return f"{write_duration(ttl)} is longer than limits.max_ttl, {write_duration(self.max_ttl)}"

    def ttl(self, *, asked_ms: int | None, tool: timedelta | None, retention: timedelta, identified: bool) -> timedelta:
        """Return how long a new task can be read: the requested time, within limits.

        `tool` is the ttl of the tool, the maximum for any caller; `retention` is that of the store.
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
