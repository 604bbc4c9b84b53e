"""Drafts from a server's list of tools: guesses which tools start, poll and cancel an execution."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import mcp_types as types

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import ConfigError
from mcp_workflows.kit.expressions import as_object
from mcp_workflows.kit.tooling import Discovered, DraftedEngine, Exposed
from mcp_workflows_mcp.client import Connection, Upstream
from mcp_workflows_mcp.settings import McpSettings

_WORDS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_RUNS: Final = frozenset({"run", "trigger", "launch", "submit", "execute", "build", "start", "dispatch"})
_STARTS: Final = _RUNS | {"create", "add", "begin", "call"}
_STATES: Final = frozenset({"status", "poll", "progress", "state", "tail"})
_READS: Final = _STATES | {"get", "check", "describe", "list"}
_SAME: Final = 10  # the likeness of tools with the same subject
_CANCELS: Final = frozenset({"cancel", "stop", "abort", "kill", "terminate"})
_RESULTS: Final = frozenset({"result", "results", "output", "outputs"})
_CHANGES: Final = frozenset({"delete", "remove", "update", "set", "clear"})
_ID: Final = re.compile(r"(^|_|[a-z])(id|Id|ID|uuid|pid|number|handle|key)$")
_WORDS_OF_STATUSES: Final[Mapping[str, Sequence[str]]] = {
    "running": ["queued", "pending", "running", "processing"],
    "succeeded": ["success", "succeeded", "completed", "done"],
    "failed": ["failed", "failure", "error"],
    "cancelled": ["cancelled", "canceled", "aborted"],
}
_WHICH_TASKS: Final = "The server makes tasks of some tools, and does not say of which: take out the others."
_MOST_OTHERS: Final = 3  # tools to name beside the draft
_GUESSED: Final = (
    "A guess by the names of the tools: say where the id and the status are, what the words mean, and in "
    "describe.gone_if how the server says that it does not know the id."
)
_FEW: Final = 4  # tools; among so few, most may share a subject
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASS|CRED|AUTH|PRIVATE", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"[A-Za-z_]\w*=")
_OF_TASKS: Final = frozenset({"optional", "required"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Tools that belong together, by their names and arguments."""

    start: types.Tool
    describe: types.Tool
    cancel: types.Tool | None
    result: types.Tool | None


async def discover(upstream: Upstream, settings: McpSettings) -> Sequence[Discovered]:
    """Return the tools that can start executions, as drafts of our tools.

    Raises:
        EngineRefused, EngineUnavailable: the server returns no list.
    """
    tools = list((await upstream.tools(fresh=True)).values())
    connection = await upstream.connection()
    starts = [tool for tool in tools if connection.offers_tasks or makes_tasks(tool)]
    starts += [split.start for split in splits(tools) if split.start not in starts]
    if settings.describe is not None and "{{" not in settings.start.tool:
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
            pin=settings.pin,
        )
        for tool in (tools[name] for name in settings.expose if name in tools)
    ]


def makes_tasks(tool: types.Tool) -> bool:
    """Return True if calls of a tool can be tasks, as the revision of 2025-11-25 says it."""
    return tool.execution is not None and tool.execution.task_support in _OF_TASKS


def splits(tools: Sequence[types.Tool], named: str | None = None) -> Sequence[Split]:
    """Return the tools that look as if they belonged together, the most certain first.

    One starts something; another takes an id, and reports on it. Both speak of the same thing. A tool that only makes
    something counts if the other one reports a state, or if it is `named`: most things that are made do not run.
    """
    subjects = _Subjects(tools)
    reads = [tool for tool in tools if _words(tool) & _READS and not _words(tool) & _CANCELS and _ids(tool)]
    reads.sort(key=_returns_results)  # of two about the same, the first is taken
    found: list[tuple[int, Split]] = []
    for start in tools:
        words = _words(start)
        if words & (_READS | _CANCELS | _CHANGES):
            continue
        runs = words & _RUNS or start.name == named
        reports = [report for report in reads if runs or _words(report) & _STATES]
        if not (runs or words & _STARTS or any(words < _words(report) for report in reports)):
            continue
        likeness, report = max(
            ((subjects.likeness(start, report), report) for report in reports), key=_first, default=(0, start)
        )
        if likeness > 0:
            others = [tool for tool in tools if tool not in (start, report) and subjects.likeness(report, tool) > 0]
            cancels = [tool for tool in others if _words(tool) & _CANCELS]
            cancel = max(cancels, key=lambda tool: subjects.likeness(report, tool), default=None)
            begins_so = _WORDS.findall(start.name)[0].lower() in _RUNS
            certainty = likeness + (cancel is not None) + begins_so
            results = [tool for tool in others if _returns_results(tool) and _ids(tool)]
            result = max(results, key=lambda tool: subjects.likeness(report, tool), default=None)
            found.append((certainty, Split(start=start, describe=report, cancel=cancel, result=result)))
    return [split for _, split in sorted(found, key=lambda each: -each[0])]


def _returns_results(tool: types.Tool) -> bool:
    return bool(_words(tool) & _RESULTS)


def _first(pair: tuple[int, types.Tool]) -> int:
    return pair[0]


class _Subjects:
    """The words in the names of tools that name their subject."""

    def __init__(self, tools: Sequence[types.Tool]) -> None:
        counts = Counter(word for tool in tools for word in _words(tool))
        self._common = {word for word, count in counts.items() if len(tools) > _FEW and count > len(tools) / 2}

    def likeness(self, one: types.Tool, other: types.Tool) -> int:
        """Return how much the subjects of two tools agree; 0 or less: they differ."""
        ours, theirs = self._of(one), self._of(other)
        if ours == theirs:
            return _SAME
        return 2 * len(ours & theirs) - len(ours ^ theirs)

    def _of(self, tool: types.Tool) -> frozenset[str]:
        found = _words(tool) - _STARTS - _READS - _CANCELS - _RESULTS
        return found - self._common or found  # common words do not distinguish tools: often they name the product


def _words(tool: types.Tool) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORDS.findall(tool.name))


def _ids(tool: types.Tool) -> Sequence[str]:
    """Return the arguments of a tool that name an execution: required ones and those named like the tool first."""
    needed = tool.input_schema.get("required", [])
    names = [name for name in as_object(tool.input_schema.get("properties")) or {} if _ID.search(name)]
    return sorted(names, key=lambda name: (name not in needed, -sum(word in name.lower() for word in _words(tool))))


def address_of(text: str) -> tuple[Mapping[str, JSON], Mapping[str, JSON]]:
    """Return the settings for a URL or for a command with variables, and the same without values, for people.

    Raises:
        ConfigError: the text is neither.
    """
    if text.startswith(("http://", "https://")):
        return {"url": text}, {"url": text}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--mcp {text!r}: {error}") from None
    env = dict(each.split("=", 1) for each in itertools.takewhile(_VARIABLE.match, words))
    command = words[len(env) :]
    if not command or ("/" in command[0] and "." in command[0].partition("/")[0][1:]):
        raise ConfigError(f"--mcp {text!r}: write a URL with https://, or the command of a program")
    shown: dict[str, JSON] = {"command": list(_without_secrets(command))}
    if env:
        shown["env"] = {name: f"${{{name}}}" if _SECRET.search(name) else value for name, value in env.items()}
    return {"command": command, "env": env}, shown


def _without_secrets(command: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command, with variables for the values of options that are named like secrets."""
    before = ""
    for word in command:
        flag, equals, _ = word.partition("=")
        if word.startswith("-") and equals and _SECRET.search(flag):
            yield f"{flag}=${{{_variable(flag)}}}"
        elif before.startswith("-") and "=" not in before and _SECRET.search(before) and not word.startswith("-"):
            yield f"${{{_variable(before)}}}"
        else:
            yield word
        before = word


def _variable(flag: str) -> str:
    return flag.strip("-").upper().replace("-", "_")


def draft_engine(
    tools: Sequence[types.Tool], connection: Connection, shown: Mapping[str, JSON], start: str | None
) -> DraftedEngine:
    """Return a draft of the engine for a server with these tools; `start` names the tool that starts executions.

    Raises:
        ConfigError: no tool seems to start an execution.
    """
    listed = ", ".join(sorted(tool.name for tool in tools)) or "none"
    if start is not None and start not in {tool.name for tool in tools}:
        raise ConfigError(f"the server has no tool {start!r} (it has: {listed})")
    info = connection.client.session.server_info
    name = "server" if info is None else info.name
    own = [tool.name for tool in tools if makes_tasks(tool)] if connection.in_core is not None else []
    if connection.offers_tasks or own:
        exposed = [start] if start is not None else own or [tool.name for tool in tools]
        advice = () if own or start else (_WHICH_TASKS,)
        return DraftedEngine(name=name, settings={**shown, "expose": exposed}, advice=advice)
    found = [split for split in splits(tools, start) if start in {None, split.start.name}]
    if not found:
        which = "no tool seems to start" if start is None else f"{start} does not seem to start"
        raise ConfigError(f"{which} something that another tool reports on (the server has: {listed})")
    first, *others = found
    advised = [_GUESSED]
    if others:
        names = ", ".join(split.start.name for split in others[:_MOST_OTHERS])
        advised.append(f"Name another tool to draft that one (import TOOL --mcp ...): {names}.")
    settings = {**shown, **definition_of(first), "expose": [first.start.name]}
    return DraftedEngine(name=name, settings=settings, advice=advised)


def definition_of(split: Split) -> Mapping[str, JSON]:
    """Return a draft of the definition: the places of the id and the status in replies are guesses.

    Other arguments that the `describe` tool requires are kept in the handle if the start also has them.
    """
    own_id = _ids(split.describe)[0]
    others = (tool for tool in (split.describe, split.cancel, split.result) if tool is not None)
    needed = list(dict.fromkeys([own_id, *(name for tool in others for name in _needed(tool))]))
    of_start = as_object(split.start.input_schema.get("properties")) or {}
    handle: dict[str, JSON] = {own_id: f"{{{{reply.{own_id}}}}}"}
    handle |= {name: f"{{{{arguments.{name}}}}}" for name in needed if name in of_start and name != own_id}

    def arguments(tool: types.Tool) -> Mapping[str, JSON]:
        ids = _ids(tool)
        names = _needed(tool) or ids[:1]
        return {name: _place(own_id if ids and name == ids[0] else name, handle) for name in names}

    describe: dict[str, JSON] = {
        "tool": split.describe.name,
        "args": arguments(split.describe),
        "status": "{{reply.status}}",
        "map": _WORDS_OF_STATUSES,
    }
    drafted: dict[str, JSON] = {
        "start": {"handle": handle if len(handle) > 1 else handle[own_id]},
        "describe": describe,
    }
    if split.result is not None:
        call: dict[str, JSON] = {"tool": split.result.name, "args": arguments(split.result)}
        more: dict[str, JSON] = {"result": {**call, "when": "{{status == 'succeeded'}}"}}
        describe |= {"more": more, "output": "{{more.result}}"}
    if split.cancel is not None:
        drafted["cancel"] = {"tool": split.cancel.name, "args": arguments(split.cancel)}
    return drafted


def _needed(tool: types.Tool) -> Sequence[str]:
    found: Sequence[str] = tool.input_schema.get("required", [])
    return found


def _place(name: str, handle: Mapping[str, JSON]) -> str:
    """Return the expression for an argument: the handle, a part of it, or an option of the tool."""
    if name not in handle:
        return f"{{{{options.{name}}}}}"
    return f"{{{{handle.{name}}}}}" if len(handle) > 1 else "{{handle}}"
