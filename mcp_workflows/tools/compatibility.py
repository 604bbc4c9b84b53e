"""The compatibility of tools with the engines that run them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, ValidationError

from mcp_workflows.adapter import GATE_WORDS, Adapter, Adopts, Message, Terminates
from mcp_workflows.tools.tool import Annotations, AnyTool, TaskSupport, WatchTool, is_action


def find_incompatibilities(tool: AnyTool, adapter: Adapter | type[Adapter]) -> Iterator[tuple[str, str]]:
    """Yield what this adapter (or its class) cannot do for the tool, each with the setting that asks for it."""
    is_watch, is_fleeting = isinstance(tool, WatchTool), adapter.fleeting(tool.options)
    if (message := adapter.message(tool.options)) is not None:
        yield from _wrong_message(tool, message)
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


def _wrong_message(tool: AnyTool, message: Message) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a tool that sends a message to the execution with an id of the business."""
    if tool.workflow not in {"", message.name}:
        yield "workflow", f"{message.name} stands in its place: leave it out"
    for place, settings in {"questions": tool.gates, "actions": tool.actions}.items():
        if settings:
            yield place, "a tool that sends a message starts no workflow: leave them out"
    named = message.addressed_by
    rules = tool.allow.act if tool.allow else []
    partial = any(rule.arguments and not rule.binds(named) for rule in rules)
    if named and (partial or not any(rule.binds(named) for rule in rules)):
        plain = named - {"*"}
        names, bound = ", ".join(sorted(plain)) or "the arguments", min(plain, default="NAME")
        text = (
            f"a model writes {names}, and so could name the execution of somebody else. Say who may: "
            f"`act: {{arguments: {{{bound}: principal.subject}}}}` binds it to the caller, and `act: {{any_owner: "
            "true}` lets all who may call the tool speak to every execution"
        )
        yield "allow", text


def adapt_tool(tool: AnyTool, adapter: Adapter | type[Adapter] | None) -> AnyTool:
    """Return the tool with what follows from its engine: no tasks for short-lived workflows, the name of a message."""
    if adapter is None:
        return tool
    changes: dict[str, object] = {}
    is_free = is_action(tool.name) or "tasks" not in tool.model_fields_set
    if is_free and not isinstance(tool, WatchTool) and adapter.fleeting(tool.options):
        changes["tasks"] = TaskSupport.FORBIDDEN
    if (message := adapter.message(tool.options)) is not None:
        changes |= {"workflow": message.name, "message": message}
        if message.reads and tool.annotations is None:
            changes["annotations"] = Annotations(readOnlyHint=True)
    return tool.model_copy(update=changes) if changes else tool


def actions_of(tool: AnyTool, adapter: Adapter | None) -> Sequence[AnyTool]:
    """Return the actions of a tool as tools that no client sees."""
    return [adapt_tool(action.tool(name, tool), adapter) for name, action in tool.actions.items()]


def find_problems(tool: AnyTool, engines: Mapping[str, Adapter]) -> Iterator[str]:
    """Yield all that is wrong with one tool on these engines, a line each."""
    adapter = engines.get(tool.engine)
    if adapter is None:
        yield f"no engine named {tool.engine!r} (engines: {', '.join(engines) or 'none'})"
        return
    if not tool.workflow and adapter.message(tool.options) is None:
        yield "workflow is missing"
    yield from _validated(adapter.Options, tool.options, "options")
    yield from _wrong_gates(tool, adapter)
    yield from _wrong_actions(tool, adapter)
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


def _wrong_actions(tool: AnyTool, adapter: Adapter) -> Iterator[str]:
    if tool.actions and adapter.ActionSettings is None:
        yield f"actions: the adapter of engine {tool.engine!r} sends no messages"
    elif adapter.ActionSettings is not None:
        for name, action in tool.actions.items():
            yield from _validated(adapter.ActionSettings, action.settings, f"actions.{name}")


def _validated(model: type[BaseModel], values: object, where: str) -> Iterator[str]:
    try:
        model.model_validate(values)
    except ValidationError as error:
        yield f"{where}.{first(error)}"
