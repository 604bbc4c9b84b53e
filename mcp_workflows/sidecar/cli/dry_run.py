"""`mcp-workflows call --dry-run`: what would be sent to the engine, without starting anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from mcp_workflows.access import LOCAL
from mcp_workflows.adapter import Previews, Start
from mcp_workflows.sidecar.cli.prompts import Answers, Key
from mcp_workflows.sidecar.config.load import Config
from mcp_workflows.tools.dialogue import Dialogue, confirmation, still_to_ask
from mcp_workflows.tools.tool import EXECUTION_ID, Kind, Tool, on_behalf_of

NEW = "0" * 40  # stands for the id and the key that a real call would get


async def preview(
    config: Config,
    tool: Tool,
    arguments: Mapping[str, Any],  # Any: JSON
    answers: Answers,
) -> dict[str, Any]:
    """The start as the adapter would get it and, if the adapter can tell, the request it would make of it.

    For a tool that watches: which execution.

    Raises:
        EngineRefused: it would be refused before anything is sent.
        MappingError: the arguments do not fit the tool's templates.
    """
    asked, arguments = _answered(tool, arguments, answers)
    scope = {"args": arguments, **LOCAL.scope, "task": {"id": NEW}}
    engine = config.engines[tool.engine]
    start = Start(
        workflow=tool.workflow,
        arguments=tool.map(scope),
        key=NEW,
        created=datetime.now(UTC),
        options=tool.frozen_options(scope),
        context=on_behalf_of(tool, LOCAL, scope),
    )
    sought = confirmation(tool, scope)
    told: dict[str, Any] = {
        "tool": tool.name,
        "engine": tool.engine,
        "adapter": engine.adapter,
        "workflow": start.workflow,
        "arguments": start.arguments,
        "options": start.options,
        "asks": {name: tool.question(name, scope) for name in asked},
        "confirms": None if sought is None else sought.request.params["message"],
        "gates": {name: asdict(gate) for name, gate in tool.frozen_gates(scope).items()},
    }
    if tool.kind is Kind.WATCH:  # it sends nothing
        told = {**told, "arguments": None, "watches": arguments[EXECUTION_ID]}
        return {key: value for key, value in told.items() if value not in ({}, None)}
    async with engine.kind(engine.settings) as adapter:  # which does not reach for the engine yet
        if isinstance(adapter, Previews):
            told["request"] = adapter.preview(start)
    return {key: value for key, value in told.items() if value not in ({}, None)}


def _answered(tool: Tool, given: Mapping[str, Any], answers: Answers) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """The questions that would still be asked of a person, and the arguments with what the flags answer."""
    arguments, dialogue = dict(given), Dialogue()
    asked: list[str] = []
    for name in still_to_ask(tool, arguments, dialogue):
        content = answers.by_flag(Key(name, name), tool.ask[name].form(name))
        arguments.update(content)
        if not content:
            asked.append(name)
    return tuple(asked), arguments
