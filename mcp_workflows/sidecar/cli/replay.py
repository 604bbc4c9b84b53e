"""The command `mcp-workflows replay`: an execution as clients would have seen it, from its history, offline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import Execution, Gate, InputRequest
from mcp_workflows.errors import ConfigError
from mcp_workflows.kit.tooling import Replayed, Replays
from mcp_workflows.sidecar.cli.app import app, say
from mcp_workflows.sidecar.cli.arguments import WrongUsage, read_arguments, read_pair
from mcp_workflows.sidecar.cli.options import DEFAULT_CONFIG, ConfigOption, LogLevel, load, log
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.sidecar.config.problems import names
from mcp_workflows.tools.json_schema import did_you_mean
from mcp_workflows.tools.questions import ELICIT, NAME_META
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.wire.params import STATUS, progress_text


@app.command()
def replay(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool, with its gates.")],
    history: Annotated[
        Path,
        typer.Argument(metavar="HISTORY", help="The exported history of an execution, JSON."),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="The call's arguments, to fill in what was asked."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON array.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Print what a client would have seen of an execution, from its exported history; needs no engine.

    Without the call's arguments, placeholders stay as they are written.
    """
    log(LogLevel.WARNING)
    loaded = load(config)
    found = _tool(loaded, tool)
    tooling = loaded.engines[found.engine].kind.tooling
    if not isinstance(tooling, Replays):
        raise ConfigError(f"the adapter of engine {found.engine!r} cannot replay histories")
    gates = _gates(found, arguments or [])
    seen = tooling.replay(_read(history), gates)
    if as_json:
        typer.echo(json.dumps([_as_json(each) for each in seen], indent=2))
    else:
        for line in _lines(seen):
            say(line)
    for gate in _never_open(gates, seen):
        say(f"gate {gate} was never open in this history: compare its `when` with what is in there", err=True)


def _tool(config: Config, name: str) -> AnyTool:
    tools = {tool.name: tool for tool in config.tools}
    if name not in tools:
        raise ConfigError(f"there is no tool {name!r}{did_you_mean(name, tools)} (there are: {names(tools)})")
    return tools[name]


def _read(path: Path) -> Any:  # Any: JSON
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}:{error.colno}"
        raise ConfigError(f"{where}: not JSON: {error.msg}; export the history as JSON") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path}: not JSON ({type(error).__name__})") from None


def _gates(tool: AnyTool, words: Sequence[str]) -> Mapping[str, Gate]:
    """Return the tool's gates, filled in from the arguments; without arguments, as they are written."""
    if not words:
        return {name: _as_written(tool, name) for name in tool.gates}
    try:
        arguments = read_arguments(map(read_pair, words), tool.input, {})
    except WrongUsage as error:
        raise ConfigError(str(error)) from None
    return tool.frozen_gates({"args": arguments, **ANONYMOUS.scope, "task": {"id": None}})


def _as_written(tool: AnyTool, name: str) -> Gate:
    gate = tool.gates[name]
    asked = {"mode": "form", "message": gate.message, "requestedSchema": gate.form(name)}
    params = {**asked, "_meta": {NAME_META: name}}
    request = InputRequest(method=ELICIT, params=params, gate=name)
    return Gate(when=gate.when, request=request, send=gate.send, decline=gate.decline)


def _never_open(gates: Mapping[str, Gate], seen: Sequence[Replayed]) -> Iterator[str]:
    """Yield the gates that asked nothing and that no message mentions."""
    asked = {request.gate for each in seen for request in each.execution.requests.values()}
    messages = " ".join(each.execution.message or "" for each in seen)
    yield from (gate for gate in gates if gate not in asked and f"gate {gate}:" not in messages)


def _lines(seen: Sequence[Replayed]) -> Iterator[str]:
    for each in seen:
        texts = [text for text in (_questions(each.execution), _message(each.execution)) if text]
        yield f"event {each.event} {STATUS[each.execution.status]}" + (f": {'; '.join(texts)}" if texts else "")


def _questions(execution: Execution) -> str:
    asked = ((request.params.get("message"), key) for key, request in execution.requests.items())
    return ", ".join(f"{message or 'a question'} ({key})" for message, key in asked)


def _message(execution: Execution) -> str:
    text = execution.failure.text if execution.failure else execution.message or ""
    return f"{text} ({progress_text(execution.progress)})".strip() if execution.progress else text


def _as_json(each: Replayed) -> Mapping[str, Any]:  # Any: JSON
    execution = each.execution
    requests = {key: {"method": it.method, "params": it.params} for key, it in execution.requests.items()}
    seen = {"statusMessage": _message(execution), "inputRequests": requests, "output": execution.output}
    given = {name: value for name, value in seen.items() if value not in ("", {}, None)}
    return {"event": each.event, "status": STATUS[execution.status], **given}
