"""Drafts of a configuration: from workflows seen on an engine, and from a Python file with workflows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final, cast

import anyio

from mcp_workflows.adapter import JSON, load_adapter
from mcp_workflows.errors import ConfigError
from mcp_workflows.kit.tooling import Discovered, DraftedEngine, Drafts
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.units import write_duration

MAX_NAME = 64
SAMPLED: Final = "inferred from recent executions: check that no key is data"
_ADAPTER: Final = "dbos"  # the only adapter whose workflows are functions in a Python file
_PLAIN = re.compile(r"[A-Za-z][\w-]*")
_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_INPUT = "{type: object, properties: {order_id: {type: string}}, required: [order_id]}"
_SECOND = timedelta(seconds=1)
_UNITS = (  # the minimum value for each unit
    (7200 * _SECOND, 3600 * _SECOND),
    (120 * _SECOND, 60 * _SECOND),
    (_SECOND, _SECOND),
    (timedelta.min, timedelta(milliseconds=1)),
)
_YAML_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def tool_name(workflow: str, taken: Set[str]) -> str:
    """Return a unique name for the tool of a workflow: `FulfilOrder` -> `fulfil_order`."""
    name = "_".join(word.lower() for word in _WORDS.findall(workflow))[:MAX_NAME] or "workflow"
    numbered = (f"{name[: MAX_NAME - 4]}_{number}" for number in range(2, len(taken) + 3))
    return next(each for each in (name, *numbered) if each not in taken)


def draft_engine(adapter: str, settings: Mapping[str, JSON], *, name: str | None = None) -> Iterator[str]:
    """Yield the lines of an `engines` section with one engine; `${...}` in settings is kept.

    `name` is the engine's name; by default, that of its adapter.
    """
    yield "# Workflows as MCP tools. `mcp-workflows check` tests this file, `mcp-workflows serve` serves it."
    yield "engines:"
    yield f"  {_scalar(name or adapter)}:"
    yield f"    adapter: {_scalar(adapter)}"
    for key, value in settings.items():
        yield from _setting(key, value, " " * 4)


def _setting(name: str, value: JSON, indent: str) -> Iterator[str]:
    """Yield the lines of a setting: a mapping of mappings over several lines, any other value on one."""
    inner: Mapping[str, JSON] = cast("Mapping[str, JSON]", value) if isinstance(value, Mapping) else {}
    if not any(isinstance(each, Mapping) for each in inner.values()):
        yield f"{indent}{_scalar(name)}: {_substituted(value)}"
        return
    yield f"{indent}{_scalar(name)}:"
    for key, each in inner.items():
        yield from _setting(key, each, indent + "  ")


def draft(
    engine: str,
    seen: Sequence[Discovered],
    *,
    configured: Mapping[str, Sequence[str]],
    taken: Iterable[str],
    chosen: Sequence[Discovered] = (),
) -> Iterator[str]:
    """Yield the lines of a `tools` section; tools that are not chosen are commented out, without sampled inputs.

    `configured`: the names of existing tools, by workflow; `taken`: the names of all tools.
    """
    new = [found for found in seen if found.workflow not in configured]
    new = [found if found in chosen or not found.is_sampled else _without_input(found) for found in new]
    rest = [found for found in new if found not in chosen]
    if rest or not chosen:
        text = f"{_count(len(rest), 'workflow')} on engine {engine} not configured yet, the most frequent first."
        yield f"# {text}"
        todo = "" if all(found.input for found in rest) else ", and add the input, as the engine knows no types"
        yield f"# Copy what you want to `tools`, without the #{todo}."
        if any(found.is_sampled for found in rest):
            yield f"# With --workflow NAME, a tool also gets its input, {SAMPLED}."
    for found in seen:
        if found.workflow in configured:
            yield f"# {one_line(found.workflow)} is there already: {', '.join(configured[found.workflow])}"
    yield "tools:"
    names = set(taken)
    for found in new:
        name = tool_name(found.title or found.workflow, names)
        names.add(name)
        yield ""
        if found in chosen:
            yield f"  {_scalar(name)}:"
            yield from (f"    {line}" for line in _entry(engine, found))
            if found.input is None:
                yield f"    # input: {_INPUT}  # TODO: the arguments, as JSON Schema"
        else:
            yield f"  # {_scalar(name)}:  # {summary(found)}"
            yield from (f"  #   {line}" for line in _entry(engine, found))


def _entry(engine: str, found: Discovered) -> Iterator[str]:
    yield f"engine: {_scalar(engine)}"
    yield f"workflow: {_scalar(found.workflow)}"
    yield from (f"{key}: {_scalar(value)}" for key, value in found.options.items())
    if found.title:
        yield f"title: {_scalar(found.title)}"
    yield f"description: {_scalar(found.description or 'TODO: what it does, and when a model should call it.')}"
    if found.code is not None:
        yield f"input: {found.code}"
    elif found.input is not None:
        yield from [f"# {SAMPLED}"] if found.is_sampled else ()
        yield f"input: {_scalar(found.input)}"


def _without_input(found: Discovered) -> Discovered:
    return replace(found, input=None, options={name: value for name, value in found.options.items() if name != "args"})


def summary(found: Discovered) -> str:
    """Return how often a workflow was seen, its usual duration, and whether other workflows start it."""
    if not found.executions:
        return "no execution seen"
    usual = [f"usually {_rounded(found.usual)}"] if found.usual is not None else []
    last = [f"last started {found.last_seen:%Y-%m-%d %H:%M} UTC"] if found.last_seen else []
    child = ["started by other workflows"] if found.is_child else []
    return ", ".join([_count(found.executions, "execution"), *usual, *last, *child])


def _rounded(value: timedelta) -> str:
    """Return a duration in whole units of a suitable size: 40ms, 52s, 90s, 3m, 2h."""
    unit = next(unit for least, unit in _UNITS if value >= least)
    return write_duration(unit * round(value / unit))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def one_line(text: str) -> str:
    """Return a name for use in a line: as JSON if it contains line feeds or other control characters."""
    return text if text.isprintable() else json.dumps(text)


def _scalar(value: JSON) -> str:
    return _substituted(value).replace("${", "$${")


def _substituted(value: JSON) -> str:
    """Return a JSON value as YAML, in which `${NAME}` is a variable."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=not str(value).isprintable())


def draft_python(path: Path) -> tuple[str, Sequence[str]]:
    """Return the configuration of a Python file, with a tool per valid workflow, and the problems of the others.

    Raises:
        ConfigError: the adapter is not installed, or the file is unusable; the message has the file and line.
    """
    drafted = _read(path)
    text, _, problems = _usable(path, drafted, os.environ)
    return text, problems


def load_python(path: Path, environ: Mapping[str, str]) -> Config:
    """Load the configuration of a Python file; workflows that cannot be tools are in `not_offered`.

    Raises:
        ConfigError: see `draft_python`.
    """
    _, config, problems = _usable(path, _read(path), environ)
    return replace(config, not_offered=problems)


def _read(path: Path) -> DraftedEngine:
    tooling = load_adapter(_ADAPTER).tooling
    if not isinstance(tooling, Drafts):
        raise ConfigError(f"the adapter {_ADAPTER!r} that is installed cannot read Python files")
    return anyio.run(tooling.draft, str(path), None)


def _usable(path: Path, drafted: DraftedEngine, environ: Mapping[str, str]) -> tuple[str, Config, Sequence[str]]:
    """Return the configuration of the workflows that can be tools, as text and loaded, and the problems of the
    others."""

    def written(workflows: Sequence[Discovered]) -> tuple[str, Config]:
        head = draft_engine(_ADAPTER, drafted.settings, name=drafted.name)
        lines = [*head, *draft(drafted.name, workflows, configured={}, taken=(), chosen=workflows)]
        text = "\n".join(lines) + "\n"
        return text, load_config(path, environ, text=text)

    usable: list[Discovered] = []
    problems = list(drafted.advice)
    for each in drafted.workflows:
        try:
            written([each])
        except ConfigError as error:  # its line numbers are those of the draft, which is never written
            problems += re.sub(rf"^{re.escape(str(path))}:\d+:", f"{each.place}:", str(error), flags=re.M).splitlines()
        else:
            usable.append(each)
    if not usable:
        raise ConfigError("\n".join(problems))
    return *written(usable), problems
