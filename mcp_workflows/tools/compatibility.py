"""The compatibility of tools with the engines that run them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, ValidationError

from mcp_workflows.adapter import GATE_WORDS, Adapter, Adopts, Message, Terminates
from mcp_workflows.tools.tool import Annotations, AnyTool, TaskSupport, WatchTool, is_action


def find_incompatibilities(tool: AnyTool, adapter: Adapter | type[Adapter]) -> Iterator[tuple[str, str]]:
    """Yield what this adapter (or its class) cannot do for the tool, each with the setting that requires it."""
    is_watch, is_fleeting = isinstance(tool, WatchTool), adapter.fleeting(tool.options)
    if (message := adapter.message(tool.options)) is not None:
        yield from _wrong_message(tool, message)
    if is_watch and not isinstance(adapter, Adopts):
        yield "kind", "the adapter of this engine cannot watch executions that were started elsewhere"
    for name in sorted(adapter.start_options & tool.options.keys()) if is_watch else ():
        yield name, "applies only when a workflow is started, and kind: watch starts none; remove it"
    if tool.cancel is not None and adapter.cancels_at_once:
        yield "cancel", "a cancellation ends executions of this engine at once: remove `cancel`"
    elif tool.cancel is not None and not isinstance(adapter, Terminates):
        yield "cancel", "the adapter of this engine cannot terminate executions: remove `cancel`"
    if is_fleeting and is_watch:
        yield "kind", "this workflow is too short-lived to be watched: the engine stores nothing to look up"
    elif is_fleeting and tool.tasks is not TaskSupport.FORBIDDEN:
        yield "tasks", "this workflow is too short-lived to be a task: remove `tasks`, which is `forbidden` here"


def _wrong_message(tool: AnyTool, message: Message) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a tool that sends a message to the execution with a business id."""
    if tool.workflow not in {"", message.name}:
        yield "workflow", f"{message.name} replaces it: remove it"
    for place, settings in {"questions": tool.gates, "actions": tool.actions}.items():
        if settings:
            yield place, "a tool that sends a message starts no workflow: remove them"
    named = message.addressed_by
    rules = tool.allow.act if tool.allow else []
    partial = any(rule.arguments and not rule.binds(named) for rule in rules)
    if named and (partial or not any(rule.binds(named) for rule in rules)):
        plain = named - {"*"}
        names, bound = ", ".join(sorted(plain)) or "the arguments", min(plain, default="NAME")
        text = (
            f"a model sets {names}, so a caller could reach somebody else's execution. Say who may: `act: {{arguments: "
            f"{{{bound}: principal.subject}}}}` binds it to the caller; `act: {{any_owner: true}}` lets every caller "
            "of the tool message every execution"
        )
        yield "allow", text


def adapt_tool(tool: AnyTool, adapter: Adapter | type[Adapter] | None) -> AnyTool:
    """Return the tool adapted to its engine: no tasks for short-lived workflows, the name of a message."""
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
    """Yield everything wrong with one tool on these engines, one per line."""
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
    """Return the first error and its place, but never the value."""
    found = error.errors(include_url=False, include_input=False)[0]
    text = found["msg"].removeprefix("Value error, ").replace("String should ", "must ", 1)
    return f"{'.'.join(map(str, found['loc']))}: {text}"


def _wrong_gates(tool: AnyTool, adapter: Adapter) -> Iterator[str]:
    model = adapter.GateSettings
    if model is None:
        if tool.gates:
            yield f"the adapter of engine {tool.engine!r} does not support gates"
        return
    for name, gate in tool.gates.items():
        yield from _validated(model, gate.model_dump(include=set(GATE_WORDS)), f"questions.{name}")


def _wrong_actions(tool: AnyTool, adapter: Adapter) -> Iterator[str]:
    if tool.actions and adapter.ActionSettings is None:
        yield f"actions: the adapter of engine {tool.engine!r} cannot send messages"
    elif adapter.ActionSettings is not None:
        for name, action in tool.actions.items():
            yield from _validated(adapter.ActionSettings, action.settings, f"actions.{name}")


def _validated(model: type[BaseModel], values: object, where: str) -> Iterator[str]:
    try:
        model.model_validate(values)
    except ValidationError as error:
        yield f"{where}.{first(error)}"
