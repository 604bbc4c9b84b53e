"""Tools of a server as drafts: which one starts something, which one tells how it stands, which one cancels it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import mcp_types as types

from mcp_workflows.adapter import JSON, Discovered, Exposed
from mcp_workflows.adapter.expressions import as_object
from mcp_workflows_mcp.settings import McpSettings
from mcp_workflows_mcp.upstream import Upstream

_WORDS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_STARTS: Final = frozenset(
    {"start", "run", "create", "trigger", "launch", "submit", "execute", "build", "add", "begin", "call", "dispatch"}
)
_LOOKS: Final = frozenset({"status", "poll", "progress", "state", "get", "check", "wait", "describe", "list"})
_BEST_LOOKS: Final = ("status", "poll", "progress", "state")
_CANCELS: Final = frozenset({"cancel", "stop", "abort", "kill", "terminate"})
_ID: Final = re.compile(r"(^|_|[a-z])(id|Id|ID|uuid|pid|number|handle|key)$")
_OF_TASKS: Final = frozenset({"optional", "required"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Tools that belong together, by their names and arguments."""

    start: types.Tool
    look: types.Tool
    cancel: types.Tool | None


async def discover(upstream: Upstream, settings: McpSettings) -> Sequence[Discovered]:
    """Return the tools that can start something, as drafts of tools of ours.

    Raises:
        EngineRefused, EngineUnavailable: there is no list.
    """
    tools = list((await upstream.tools(fresh=True)).values())
    connection = await upstream.connection()
    starts = [tool for tool in tools if connection.offers_tasks or makes_tasks(tool)]
    starts += [split.start for split in splits(tools) if split.start not in starts]
    if settings.look is not None and "{{" not in settings.start.tool:
        starts = [tool for tool in tools if tool.name == settings.start.tool]
    return [
        Discovered(workflow=tool.name, title=tool.title, description=tool.description, input=tool.input_schema)
        for tool in starts
    ]


async def exposed(upstream: Upstream, settings: McpSettings) -> Sequence[Exposed]:
    """Return the tools that the settings expose, as the server describes them now.

    Raises:
        EngineRefused, EngineUnavailable: there is no list.
    """
    tools = await upstream.tools(fresh=True)
    return [
        Exposed(
            name=tool.name,
            workflow=tool.name,
            source=tool.name,
            title=tool.title,
            description=tool.description,
            input=tool.input_schema,
        )
        for tool in (tools[name] for name in settings.expose if name in tools)
    ]


def makes_tasks(tool: types.Tool) -> bool:
    """Return True if calls of a tool can be tasks, as the revision of 2025-11-25 says it."""
    return tool.execution is not None and tool.execution.task_support in _OF_TASKS


def splits(tools: Sequence[types.Tool]) -> Sequence[Split]:
    """Return the tools that look as if they belonged together, the most certain first.

    One starts something; another takes an id, and tells how that stands. Both speak of the same thing.
    """
    found: list[tuple[int, Split]] = []
    for start in tools:
        about = _words(start) - _STARTS - _LOOKS
        if not (_words(start) & _STARTS or any(_words(start) < _words(other) for other in tools)):
            continue
        if _words(start) & (_LOOKS | _CANCELS):
            continue
        looks = [(_likeness(start, about, each), each) for each in tools if each is not start and _tells_state(each)]
        best = max((each for each in looks if each[0] > 0), key=lambda each: each[0], default=None)
        if best is not None:
            likeness, look = best
            found.append((likeness, Split(start=start, look=look, cancel=_cancels(tools, start, look))))
    return [split for _, split in sorted(found, key=lambda each: -each[0])]


def _likeness(start: types.Tool, about: frozenset[str], look: types.Tool) -> int:
    """Return how much a tool that tells a state speaks of what the other one starts; 0: of something else."""
    if _words(start) < _words(look):
        return 10
    shared = about & _words(look)
    return 2 * len(shared) + bool(_words(look) & set(_BEST_LOOKS)) if shared else 0


def _tells_state(tool: types.Tool) -> bool:
    return bool(_words(tool) & _LOOKS) and bool(ids_of(tool)) and not _words(tool) & _CANCELS


def _cancels(tools: Sequence[types.Tool], start: types.Tool, look: types.Tool) -> types.Tool | None:
    about = (_words(start) | _words(look)) - _STARTS - _LOOKS
    fits = [tool for tool in tools if _words(tool) & _CANCELS and about & _words(tool) and ids_of(tool)]
    return max(fits, key=lambda tool: len(about & _words(tool)), default=None)


def ids_of(tool: types.Tool) -> Sequence[str]:
    """Return the arguments of a tool that name an execution, those that it needs first."""
    needed = tool.input_schema.get("required", [])
    names = list(as_object(tool.input_schema.get("properties")) or {})
    return sorted((name for name in names if _ID.search(name)), key=lambda name: name not in needed)


def _words(tool: types.Tool) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORDS.findall(tool.name))


def definition_of(split: Split) -> Mapping[str, JSON]:
    """Return a draft of the definition: where ids and statuses stand in replies is a guess."""
    given = ids_of(split.look)[0]
    drafted: dict[str, JSON] = {
        "start": {"handle": f"{{{{reply.{given}}}}}"},
        "look": {
            "tool": split.look.name,
            "args": dict(_arguments(split.look)),
            "status": "{{reply.status}}",
            "map": {
                "running": ["queued", "pending", "running", "processing"],
                "succeeded": ["success", "succeeded", "completed", "done"],
                "failed": ["failed", "failure", "error"],
                "cancelled": ["cancelled", "canceled", "aborted"],
            },
            "output": "{{reply}}",
        },
    }
    if split.cancel is not None:
        drafted["cancel"] = {"tool": split.cancel.name, "args": dict(_arguments(split.cancel))}
    return drafted


def _arguments(tool: types.Tool) -> Iterator[tuple[str, str]]:
    """Yield the arguments that a tool needs: the id, and those that are to be filled in."""
    ids = ids_of(tool)
    for name in tool.input_schema.get("required", []) or ids[:1]:
        yield name, "{{handle}}" if ids and name == ids[0] else f"{{{{options.{name}}}}}"
