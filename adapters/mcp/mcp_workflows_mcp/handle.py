"""The handle of an execution: the server's id, and what later polls need."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self, cast

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.errors import ExecutionNotFound
from mcp_workflows.kit.expressions import Scope, as_object

_VERSION: Final = 1
_LONGEST_SHOWN: Final = 200  # characters


class HandleKind(StrEnum):
    """The way to poll an execution."""

    SPLIT = "split"  # by the tools of the definition
    TASK = "task"  # by a task of the server
    CALL = "call"  # its call is open, or has ended with its result


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """One execution."""

    kind: HandleKind
    run: JSON  # SPLIT: as in `start.handle`, a text or an object of several parts; otherwise an id
    workflow: str
    at: float  # when it was ordered, in seconds since 1970
    definition: str  # the digest of the definition at its start
    reply: JSON = None  # the reply of a start that has ended at once: replaces a poll

    @classmethod
    def of(cls, kind: HandleKind, run: JSON, start: Start, definition: str, reply: JSON = None) -> Self:
        """Return the handle of an execution of this order."""
        at = start.created.timestamp()
        return cls(kind=kind, run=run, workflow=start.workflow, at=at, definition=definition, reply=reply)

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
            raise ExecutionNotFound("this is no handle of an MCP engine")
        fields = {name: value for name, value in cast("dict[str, Any]", found).items() if name not in {"v", "kind"}}
        return cls(kind=HandleKind(found["kind"]), **fields)  # pyright: ignore[reportUnknownArgumentType]

    def text(self) -> str:
        """Return the text that the core stores."""
        return json.dumps({"v": _VERSION, **asdict(self)}, sort_keys=True, separators=(",", ":"))

    @property
    def name(self) -> str:
        """The id as a text."""
        return self.run if isinstance(self.run, str) else json.dumps(self.run, sort_keys=True)

    @property
    def shown(self) -> str:
        """The id as people read it."""
        return cleaned(" ".join(self.name.split()), _LONGEST_SHOWN)

    def scope(self, options: Mapping[str, JSON]) -> Scope:
        """Return the scope of expressions about it."""
        return Scope(
            names={
                "handle": self.run,
                "age": time.time() - self.at,
                "workflow": self.workflow,
                "options": options.get("options") or {},
                "error": None,
            }
        )

    def is_younger_than(self, seconds: float) -> bool:
        """Return True if it was ordered less than this many seconds ago."""
        return time.time() - self.at < seconds


def run_of(found: JSON) -> JSON:
    """Return the id in a reply, a text or a number; None if it or a part of it is missing or not an id."""
    parts = as_object(found)
    if parts is not None:
        named = {name: run_of(part) for name, part in parts.items()}
        return None if None in named.values() or not named else named
    if isinstance(found, float) and found.is_integer():
        return int(found)
    return found if isinstance(found, str | int) and not isinstance(found, bool) and found != "" else None
