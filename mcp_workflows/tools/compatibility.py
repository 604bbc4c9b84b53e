"""The compatibility of tools with the engines that run them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel, ValidationError

from mcp_workflows.adapter import GATE_WORDS, Adapter, Adopts, Terminates
from mcp_workflows.tools.tool import AnyTool, TaskSupport, WatchTool


def find_incompatibilities(tool: AnyTool, adapter: Adapter | type[Adapter]) -> Iterator[tuple[str, str]]:
    """Yield what this adapter (or its class) cannot do for the tool, each with the setting that asks for it."""
    is_watch, is_fleeting = isinstance(tool, WatchTool), adapter.fleeting(tool.options)
    if is_watch and not isinstance(adapter, Adopts):
        yield "kind", "the adapter of this engine cannot watch executions that were started elsewhere"
    for name in sorted(adapter.start_options & tool.options.keys()) if is_watch else ():
        yield name, "only matters when a workflow is started, and kind: watch starts none; leave it out"
    if tool.cancel is not None and adapter.cancels_at_once:
        yield "cancel", "a cancellation ends executions of this engine at once: leave `cancel` out"
    elif tool.cancel is not None and not isinstance(adapter, Terminates):
        yield "cancel", "the adapter of this engine cannot terminate executions: leave `cancel` out"
    if is_fleeting and is_watch:
        yield "kind", "this workflow is too short-lived to be watched, the engine keeps nothing to look up"
    elif is_fleeting and tool.tasks is not TaskSupport.FORBIDDEN:
        yield "tasks", "this workflow is too short-lived to be a task: leave `tasks` out, it is `forbidden` here"


def adapt_tool(tool: AnyTool, adapter: Adapter | None) -> AnyTool:
    """Return the tool; its tasks are forbidden if its workflow is too short-lived and `tasks` is not set."""
    is_set = "tasks" in tool.model_fields_set or isinstance(tool, WatchTool)
    if is_set or adapter is None or not adapter.fleeting(tool.options):
        return tool
    return tool.model_copy(update={"tasks": TaskSupport.FORBIDDEN})


def find_problems(tool: AnyTool, engines: Mapping[str, Adapter]) -> Iterator[str]:
    """Yield all that is wrong with one tool on these engines, a line each."""
    adapter = engines.get(tool.engine)
    if adapter is None:
        yield f"no engine named {tool.engine!r} (engines: {', '.join(engines) or 'none'})"
        return
    yield from _validated(adapter.Options, tool.options, "options")
    yield from _wrong_gates(tool, adapter)
    yield from (f"{place}: {text}" for place, text in (*tool.problems(), *find_incompatibilities(tool, adapter)))


def first(error: ValidationError) -> str:
    """Return the first thing that is wrong, and where; never the value itself."""
    found = error.errors(include_url=False, include_input=False)[0]
    text = found["msg"].removeprefix("Value error, ").replace("String should ", "must ", 1)
    return f"{'.'.join(map(str, found['loc']))}: {text}"


def _wrong_gates(tool: AnyTool, adapter: Adapter) -> Iterator[str]:
    model = adapter.GateSettings
    if model is None:
        if tool.gates:
            yield f"the adapter of engine {tool.engine!r} knows no gates"
        return
    for name, gate in tool.gates.items():
        yield from _validated(model, gate.model_dump(include=set(GATE_WORDS)), f"questions.{name}")


def _validated(model: type[BaseModel], values: object, where: str) -> Iterator[str]:
    try:
        model.model_validate(values)
    except ValidationError as error:
        yield f"{where}.{first(error)}"
