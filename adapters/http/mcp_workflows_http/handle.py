"""The handle of an execution: the API's id, and what later polls need."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Self, cast

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.errors import ExecutionNotFound
from mcp_workflows.kit.expressions import Scope
from mcp_workflows_http.settings import HttpSettings

_VERSION = 1


def options_of(options: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the values that a tool adds, from the settings that were frozen with its task."""
    return options.get("options") or {}


def run_of(found: JSON) -> JSON:
    """Return the id in a reply or a list; numbers become texts."""
    return str(found) if isinstance(found, int) else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """One execution."""

    run: JSON  # as in `start.handle`: a text, or an object of several parts
    workflow: str
    at: float  # when it was ordered, in seconds since 1970
    vars: Mapping[str, str]
    definition: str  # the digest of the definition at its start
    reply: JSON = None  # the reply of a start that has ended at once: replaces a poll

    @classmethod
    def of(cls, run: JSON, start: Start, settings: HttpSettings, definition: str, reply: JSON = None) -> Self:
        """Return the handle of an execution of this order."""
        return cls(
            run=run,
            workflow=start.workflow,
            at=start.created.timestamp(),
            vars=settings.vars,
            definition=definition,
            reply=reply,
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a handle.

        Raises:
            ExecutionNotFound: the text is not a handle.
        """
        try:
            found: Any = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("v") != _VERSION:  # pyright: ignore[reportUnknownMemberType]
            raise ExecutionNotFound("this is no handle of an HTTP engine")
        return cls(**{name: value for name, value in cast("dict[str, Any]", found).items() if name != "v"})

    def text(self) -> str:
        """Return the text that the core stores."""
        return json.dumps({"v": _VERSION, **asdict(self)}, sort_keys=True, separators=(",", ":"))

    @property
    def name(self) -> str:
        """The id for people and for comparison with lists."""
        return self.name_of(self.run)

    @staticmethod
    def name_of(run: JSON) -> str:
        """Return the id of a run as a text."""
        return run if isinstance(run, str) else json.dumps(run, sort_keys=True)

    def scope(self, options: Mapping[str, JSON]) -> Scope:
        """Return the scope of expressions about it."""
        return Scope(
            names={
                "handle": self.run,
                "age": time.time() - self.at,
                "workflow": self.workflow,
                "options": options_of(options),
                "vars": self.vars,
            }
        )

    def is_younger_than(self, seconds: float, now: datetime) -> bool:
        """Return True if it was ordered less than this many seconds ago."""
        return now.timestamp() - self.at < seconds
