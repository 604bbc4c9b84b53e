"""Checks that the server answers, and has the tools that the definition names, with the arguments it gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mcp_workflows.adapter import JSON, Finding, StartGuarantee, closest
from mcp_workflows.adapter.expressions import as_object
from mcp_workflows.errors import EngineError, EngineUnavailable
from mcp_workflows_mcp.definition import ToolCall, ToolsDefinition
from mcp_workflows_mcp.settings import McpSettings
from mcp_workflows_mcp.upstream import Upstream, named

_SHORT = "a repeated start is deduplicated by its key"
_PROMISE: Mapping[StartGuarantee, str] = {
    StartGuarantee.KEYED: _SHORT,
    StartGuarantee.FINDABLE: "a start whose reply is lost is searched for by its key",
    StartGuarantee.ONCE: "a start whose reply is lost stays unknown",
}


async def check_engine(upstream: Upstream, settings: McpSettings) -> Finding:
    """Check that the server answers, and has each tool of the definition."""
    try:
        connection = await upstream.connection()
        tools = await upstream.tools(fresh=True)
    except EngineError as error:
        unreachable = isinstance(error, EngineUnavailable)
        hint = ("check command and env" if settings.url is None else "check url") if unreachable else "check auth"
        return Finding(ok=False, text=str(error), hint=hint)
    for place, call in _calls(settings):
        if "{{" in call.tool:
            continue
        if call.tool not in tools:
            meant = closest(call.tool, tools)
            hint = f"did you mean {meant!r}?" if meant else f"it has {named(tools)}"
            return Finding(ok=False, text=f"{place}: the server has no tool {call.tool!r}", hint=hint)
        if wrong := _misfit(call, tools[call.tool].input_schema):
            return Finding(ok=False, text=f"{place}: {wrong}", hint=f"check {place}.args")
    for name in settings.expose:
        if name not in tools:
            return Finding(ok=False, text=f"expose: the server has no tool {name!r}", hint="check expose")
    info = connection.client.session.server_info
    who = "it" if info is None else f"{info.name} {info.version or ''}".strip()
    text = f"{who} answers ({connection.client.protocol_version}) with {len(tools)} tools; {_PROMISE[settings.starts]}"
    return Finding(ok=True, text=f"{text}; {_identity(settings)}")


def _identity(settings: McpSettings) -> str:
    """Return who acts on the server."""
    auth = settings.auth
    if settings.url is None:
        return "all callers act there as the account in env, as one program serves them"
    if auth is None:
        return "all callers act there as nobody (no auth)"
    return "all callers act there as the account of auth"


def _calls(definition: ToolsDefinition) -> Iterator[tuple[str, ToolCall]]:
    yield "start", definition.start
    if definition.look is not None:
        yield "look", definition.look
        yield from ((f"look.more.{name}", call) for name, call in definition.look.more.items())
    if definition.find is not None:
        yield "find", definition.find
    if definition.cancel is not None:
        yield "cancel", definition.cancel
    for name, ask in definition.asks.items():
        yield from (
            (f"asks.{name}.{verb}", call) for verb, call in (("send", ask.send), ("decline", ask.decline)) if call
        )


def _misfit(call: ToolCall, schema: Mapping[str, JSON]) -> str | None:
    """Return what is wrong with the names of the arguments; None if nothing is, or they are not written here."""
    given = as_object(call.args)
    if given is None:
        return None
    known = as_object(schema.get("properties")) or {}
    missing = [name for name in schema.get("required", []) if name not in given]
    if missing:
        return f"the tool {call.tool} needs {', '.join(missing)}"
    unknown = [name for name in given if name not in known]
    if unknown and schema.get("additionalProperties") is False:
        return f"the tool {call.tool} has no argument {', '.join(unknown)} (it has {', '.join(known) or 'none'})"
    return None


def unmapped_finding(settings: McpSettings, words: Sequence[str]) -> Finding | None:
    """Return a finding about words for statuses that the server uses and the map still does not name."""
    look = settings.look
    unnamed = "" if look is None else ", ".join(repr(word) for word in words if look.map.status(word) is None)
    if not unnamed:
        return None
    text = f"its status {unnamed} has been in no map for a day: a task with it goes on for ever"
    return Finding(ok=False, text=text, hint="say in look.map what it means")


async def check_workflow(
    upstream: Upstream, settings: McpSettings, workflow: str, options: Mapping[str, JSON]
) -> Finding:
    """Check that the tool that starts this workflow is there, and fits the way in which it is looked at."""
    name = settings.start.tool.replace("{{workflow}}", workflow)
    if "{{" in name:
        return Finding(ok=None, text=f"workflow {workflow}: the name of its tool depends on the call")
    try:
        tool = await upstream.tool(name)
        connection = await upstream.connection()
    except EngineError as error:
        return Finding(ok=False, text=f"workflow {workflow}: {error}")
    in_core = connection.in_core
    if in_core is not None and in_core.offered(tool):
        return Finding(ok=True, text=f"workflow {workflow} is a tool whose calls are tasks of the server's own")
    if settings.look is not None:
        return Finding(ok=True, text=f"workflow {workflow} is a tool of the server")
    if connection.offers_tasks:
        return Finding(ok=True, text=f"workflow {workflow} is a tool of a server that makes tasks")
    text = f"workflow {workflow}: its calls are no tasks: each is waited for, and is lost when this process ends"
    return Finding(ok=None, text=text, hint="if another tool tells how it stands, say so in start.handle and look")
