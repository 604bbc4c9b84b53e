"""A host for the language alone: it answers effects from a table, writes them down, and can replay them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any

from mcp_workflows_google_local.language.errors import Raised, WorkflowError
from mcp_workflows_google_local.language.host import Path, Step
from mcp_workflows_google_local.language.source import load

Answer = Callable[[Mapping[str, Any]], Any]


def response(code: int, body: Any = None) -> dict[str, Any]:
    """What a JSON service answers."""
    content = base64.b64encode(json.dumps(body).encode()).decode()
    return {"code": code, "headers": {"content-type": "application/json"}, "body": content}


@dataclass(slots=True, kw_only=True)
class Desk:
    """Answers by effect; a WorkflowError among the answers is raised. `journal`: what was answered, by path."""

    answers: Mapping[str, Answer] = field(default_factory=dict[str, Answer])
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    journal: dict[Path, Any] = field(default_factory=dict[Path, Any])
    effects: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    seen: list[Sequence[Step]] = field(default_factory=list[Sequence[Step]])

    def at(self, steps: Sequence[Step]) -> None:
        self.seen.append(steps)

    async def effect(self, name: str, arguments: Mapping[str, Any], path: Path) -> Any:
        if path not in self.journal:
            self.effects.append((name, dict(arguments)))
            await asyncio.sleep(0)
            answer = self.answers.get(name)
            self.journal[path] = answer(arguments) if answer else None
        found = self.journal[path]
        if isinstance(found, WorkflowError):
            raise found
        return found


async def run(source: str, argument: Any = None, desk: Desk | None = None) -> Any:
    """The result of a workflow."""
    return await load(dedent(source)).run(argument, desk or Desk())


async def failed(source: str, argument: Any = None, desk: Desk | None = None) -> Any:
    """What a workflow fails with."""
    try:
        result = await run(source, argument, desk)
    except Raised as raised:
        return raised.payload
    raise AssertionError(f"it did not fail: {result}")


async def evaluated(expression: str, argument: Any = None) -> Any:
    """The value of an expression; `x` is the argument."""
    source = {"main": {"params": ["x"], "steps": [{"it": {"return": f"${{{expression}}}"}}]}}
    return await load(json.dumps(source)).run(argument, Desk(env={"NAME": "value"}))


async def tag(expression: str, argument: Any = None) -> str:
    """The first tag of the error of an expression."""
    try:
        found = await evaluated(expression, argument)
    except Raised as raised:
        return str(raised.payload["tags"][0])
    raise AssertionError(f"it has a value: {found}")
