"""A draft of tools for workflows that were seen on an engine: to be pasted, uncommented and completed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from mcp_workflows.capabilities import Discovered

MAX_NAME = 64
_PLAIN = re.compile(r"[A-Za-z][\w-]*")
_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_YAML_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def tool_name(workflow: str, taken: Set[str]) -> str:
    """A name for the tool of a workflow that no other tool has: `FulfilOrder` -> `fulfil_order`."""
    name = "_".join(word.lower() for word in _WORDS.findall(workflow))[:MAX_NAME] or "workflow"
    numbered = (f"{name[: MAX_NAME - 4]}_{number}" for number in range(2, len(taken) + 3))
    return next(each for each in (name, *numbered) if each not in taken)


def draft(
    engine: str, seen: Sequence[Discovered], *, configured: Mapping[str, Sequence[str]], taken: Iterable[str]
) -> Iterator[str]:
    """The lines of a `tools` section, all tools commented out.

    `configured`: the tools there are already, by workflow; `taken`: the names of all tools.
    """
    new = [found for found in seen if found.workflow not in configured]
    yield f"# {_count(len(new), 'workflow')} seen on engine {engine} and not configured yet, the most frequent first."
    yield "# Put what you want under `tools`, without the #, and say what goes in: the engine knows no types."
    for found in seen:
        if found.workflow in configured:
            yield f"# {_one_line(found.workflow)} is there already: {', '.join(configured[found.workflow])}"
    yield "tools:"
    names = set(taken)
    for found in new:
        name = tool_name(found.workflow, names)
        names.add(name)
        yield ""
        yield from (f"  # {line}" for line in _entry(name, engine, found))


def _entry(name: str, engine: str, found: Discovered) -> Iterator[str]:
    yield f"{_scalar(name)}:  # {_seen(found)}"
    yield f"  engine: {_scalar(engine)}"
    yield f"  workflow: {_scalar(found.workflow)}"
    yield from (f"  {key}: {_scalar(value)}" for key, value in found.options.items())
    yield '  description: "TODO: what it does, and when a model should call it."'


def _seen(found: Discovered) -> str:
    if not found.executions:
        return "no execution seen"
    last = f", last started {found.last_seen:%Y-%m-%d %H:%M} UTC" if found.last_seen else ""
    return f"{_count(found.executions, 'execution')}{last}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)


def _scalar(value: Any) -> str:  # any JSON value, which is also a YAML one
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=not str(value).isprintable()).replace("${", "$${")
