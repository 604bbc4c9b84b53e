"""Tools of a server as drafts: which one starts something, which one tells how it stands, which one cancels it."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import mcp_types as types

from mcp_workflows.adapter import JSON, Discovered, DraftedEngine, Exposed
from mcp_workflows.adapter.expressions import as_object
from mcp_workflows.errors import ConfigError
from mcp_workflows_mcp.settings import McpSettings
from mcp_workflows_mcp.upstream import Connection, Upstream

_WORDS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_STARTS: Final = frozenset(
    {"start", "run", "create", "trigger", "launch", "submit", "execute", "build", "add", "begin", "call", "dispatch"}
)
_LOOKS: Final = frozenset({"status", "poll", "progress", "state", "get", "check", "describe", "list", "tail"})
_SAME: Final = 10  # the likeness of tools that are about just the same
_CANCELS: Final = frozenset({"cancel", "stop", "abort", "kill", "terminate"})
_CHANGES: Final = frozenset({"delete", "remove", "update", "set", "clear"})
_ID: Final = re.compile(r"(^|_|[a-z])(id|Id|ID|uuid|pid|number|handle|key)$")
_GUESSED: Final = "A guess by the names of the tools: say where the id and the status are, and what the words mean."
_FEW: Final = 4  # tools, of which most may well speak of one thing
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH|PRIVATE", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"[A-Za-z_]\w*=")
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
    subjects = _Subjects(tools)
    looks = [tool for tool in tools if _words(tool) & _LOOKS and not _words(tool) & _CANCELS and _ids(tool)]
    found: list[tuple[int, Split]] = []
    for start in tools:
        words = _words(start)
        if words & (_LOOKS | _CANCELS | _CHANGES) or not (
            words & _STARTS or any(words < _words(look) for look in looks)
        ):
            continue
        likeness, look = max(((subjects.likeness(start, look), look) for look in looks), key=_first, default=(0, start))
        if likeness > 0:
            cancels = [tool for tool in tools if _words(tool) & _CANCELS and subjects.likeness(look, tool) > 0]
            cancel = max(cancels, key=lambda tool: subjects.likeness(look, tool), default=None)
            found.append((likeness + (cancel is not None), Split(start=start, look=look, cancel=cancel)))
    return [split for _, split in sorted(found, key=lambda each: -each[0])]


def _first(pair: tuple[int, types.Tool]) -> int:
    return pair[0]


class _Subjects:
    """The words in the names of tools that say what they are about."""

    def __init__(self, tools: Sequence[types.Tool]) -> None:
        counts = Counter(word for tool in tools for word in _words(tool))
        self._common = {word for word, count in counts.items() if len(tools) > _FEW and count > len(tools) / 2}

    def likeness(self, one: types.Tool, other: types.Tool) -> int:
        """Return how much two tools are about the same; 0 or less: they are not."""
        ours, theirs = self._of(one), self._of(other)
        if ours == theirs:
            return _SAME
        return 2 * len(ours & theirs) - len(ours ^ theirs)

    def _of(self, tool: types.Tool) -> frozenset[str]:
        found = _words(tool) - _STARTS - _LOOKS - _CANCELS
        return found - self._common or found  # the common ones say nothing of one tool: often they name the product


def _words(tool: types.Tool) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORDS.findall(tool.name))


def _ids(tool: types.Tool) -> Sequence[str]:
    """Return the arguments of a tool that name an execution: those that it needs and that are called like it first."""
    needed = tool.input_schema.get("required", [])
    names = [name for name in as_object(tool.input_schema.get("properties")) or {} if _ID.search(name)]
    return sorted(names, key=lambda name: (name not in needed, -sum(word in name.lower() for word in _words(tool))))


def address_of(text: str) -> tuple[Mapping[str, JSON], Mapping[str, JSON]]:
    """Return the settings for a URL or a command with its variables, and the same as they are shown: without values.

    Raises:
        ConfigError: it is neither.
    """
    if text.startswith(("http://", "https://")):
        return {"url": text}, {"url": text}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--mcp {text!r}: {error}") from None
    env = dict(each.split("=", 1) for each in itertools.takewhile(_VARIABLE.match, words))
    command = words[len(env) :]
    if not command:
        raise ConfigError(f"--mcp {text!r}: write a URL, or the command of a program")
    shown: dict[str, JSON] = {"command": command}
    if env:
        shown["env"] = {name: f"${{{name}}}" if _SECRET.search(name) else value for name, value in env.items()}
    return {"command": command, "env": env}, shown


def drafted(
    tools: Sequence[types.Tool], connection: Connection, shown: Mapping[str, JSON], start: str | None
) -> DraftedEngine:
    """Return a draft of the engine for a server with these tools; `start` names the one that starts something.

    Raises:
        ConfigError: none of them seems to start something that goes on.
    """
    if start is not None and start not in {tool.name for tool in tools}:
        raise ConfigError(f"the server has no tool {start!r} (it has: {_listed(tools)})")
    info = connection.client.session.server_info
    name = "_".join(_WORDS.findall(info.name)).lower() if info is not None else ""
    own = [tool for tool in tools if makes_tasks(tool)] if connection.in_core is not None else []
    if connection.offers_tasks or own:
        advice = (
            () if own else ("The server makes tasks of some tools, and does not say of which: take out the others.",)
        )
        return _draft(name, shown, [tool for tool in own or tools if start in {None, tool.name}], advice)
    found = [split for split in splits(tools) if start in {None, split.start.name}]
    if not found:
        which = "no tool seems to start" if start is None else f"{start} does not seem to start"
        raise ConfigError(f"{which} something that another tool tells about (the server has: {_listed(tools)})")
    first, *others = found
    advised = (_GUESSED, *(f"{each.start.name} and {each.look.name} belong together, too." for each in others))
    return _draft(name, {**shown, **definition_of(first)}, [first.start], advised)


def _listed(tools: Sequence[types.Tool]) -> str:
    return ", ".join(sorted(tool.name for tool in tools)) or "none"


def _draft(
    name: str, settings: Mapping[str, JSON], starts: Sequence[types.Tool], advice: Sequence[str]
) -> DraftedEngine:
    workflows = [
        Discovered(workflow=tool.name, title=tool.title, description=tool.description, input=tool.input_schema)
        for tool in starts
    ]
    return DraftedEngine(name=name or "server", settings=settings, workflows=workflows, advice=advice)


def definition_of(split: Split) -> Mapping[str, JSON]:
    """Return a draft of the definition: where ids and statuses stand in replies is a guess."""
    given = _ids(split.look)[0]
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
    ids = _ids(tool)
    for name in tool.input_schema.get("required", []) or ids[:1]:
        yield name, "{{handle}}" if ids and name == ids[0] else f"{{{{options.{name}}}}}"
