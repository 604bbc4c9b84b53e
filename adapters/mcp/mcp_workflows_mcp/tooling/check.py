"""Checks that the server answers, and has the tools of the definition with the arguments in their calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import mcp_types as types

from mcp_workflows.adapter import JSON, Finding
from mcp_workflows.errors import EngineError, EngineUnavailable
from mcp_workflows.kit.definition import promise_of
from mcp_workflows.kit.expressions import as_object
from mcp_workflows_mcp.client import Upstream, hint_for
from mcp_workflows_mcp.definition import DescribeCall, StartCall, ToolCall, ToolsDefinition
from mcp_workflows_mcp.settings import McpSettings

_OPTION = re.compile(r"options\.([A-Za-z_]\w*)")
_OF_REPLY = re.compile(r"\breply\.([A-Za-z_]\w*)")


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
            text = f"{place}: the server has no tool {call.tool!r}"
            return Finding(ok=False, text=text, hint=hint_for(call.tool, tools))
        if wrong := _misfit(call, tools[call.tool].input_schema):
            return Finding(ok=False, text=f"{place}: {wrong}", hint=f"check {place}.args")
    for name in settings.expose:
        if name not in tools:
            return Finding(ok=False, text=f"expose: the server has no tool {name!r}", hint=hint_for(name, tools))
    info = connection.client.session.server_info
    who = "it" if info is None else f"{info.name} {info.version or ''}".strip()
    text = (
        f"{who} answers ({connection.client.protocol_version}) with {len(tools)} tools; {promise_of(settings.starts)}"
    )
    return Finding(ok=True, text=f"{text}; {_identity(settings)}")


def _identity(settings: McpSettings) -> str:
    """Return which account acts on the server."""
    auth = settings.auth
    if settings.url is None:
        return "all callers act there as the program's own account"
    if auth is None:
        return "all callers act there anonymously (no auth)"
    return "all callers act there as the account of auth"


def _calls(definition: ToolsDefinition) -> Iterator[tuple[str, ToolCall]]:
    yield "start", definition.start
    if definition.describe is not None:
        yield "describe", definition.describe
        yield from ((f"describe.more.{name}", call) for name, call in definition.describe.more.items())
    if definition.find is not None:
        yield "find", definition.find
    if definition.cancel is not None:
        yield "cancel", definition.cancel
    yield from ((f"actions.{name}", call) for name, call in definition.actions.items())
    for name, ask in definition.asks.items():
        yield from (
            (f"asks.{name}.{verb}", call) for verb, call in (("send", ask.send), ("decline", ask.decline)) if call
        )


def _misfit(call: ToolCall, schema: Mapping[str, JSON]) -> str | None:
    """Return the problem with the names of the arguments; None if there is none, or the arguments are an expression."""
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


async def check_workflow(
    upstream: Upstream, settings: McpSettings, workflow: str, options: Mapping[str, JSON]
) -> Finding:
    """Check that the tool that starts this workflow exists, and can be polled as the definition says."""
    missing = sorted(set(_OPTION.findall(json.dumps(settings.definition))) - set(options.get("options") or {}))
    if missing:
        text = f"workflow {workflow}: the engine's calls use options.{missing[0]}, which the tool does not set"
        return Finding(ok=False, text=text, hint=f"options: {{{missing[0]}: ...}} in the tool")
    name = settings.start.tool.replace("{{workflow}}", workflow)
    if "{{" in name:
        return Finding(ok=None, text=f"workflow {workflow}: the name of its tool depends on the call")
    try:
        tool = await upstream.tool(name)
        tools = await upstream.tools()
        connection = await upstream.connection()
    except EngineError as error:
        return Finding(ok=False, text=f"workflow {workflow}: {error}")
    in_core = connection.in_core
    if in_core is not None and in_core.offered(tool):
        return Finding(ok=True, text=f"workflow {workflow} is a tool whose calls are tasks of the server's own")
    if settings.describe is not None:
        return _check_replies(settings.start, settings.describe, tool, tools)
    if connection.offers_tasks:
        return Finding(ok=True, text=f"workflow {workflow} is a tool of a server that creates tasks")
    text = f"workflow {workflow}: its calls are not tasks: they are lost when this process ends"
    return Finding(ok=None, text=text, hint="if another tool reports the status, set start.handle and describe")


def _check_replies(start: StartCall, how: DescribeCall, starts: types.Tool, tools: Mapping[str, types.Tool]) -> Finding:
    """Check that the tools' output schemas name the fields with the id and the status."""
    text = f"workflow {starts.name} is a tool of the server"
    if "{{" in how.tool:
        return Finding(ok=True, text=text)
    read = {
        "start.handle": (start.handle, start.extract, starts),
        "describe.status": (how.status, how.extract, tools.get(how.tool)),
    }
    unknown = [place for place, (value, extract, tool) in read.items() if _unnamed(value, tool) - extract.keys()]
    if not unknown:
        return Finding(ok=True, text=text)
    places = " and ".join(unknown)
    hint = "make one call to check: mcp-workflows call"
    return Finding(ok=None, text=f"{text}; no output schema names the fields that {places} read", hint=hint)


def _unnamed(value: JSON, tool: types.Tool | None) -> frozenset[str]:
    """Return the fields of the reply that an expression reads and the tool's output schema does not name."""
    named = as_object(((tool and tool.output_schema) or {}).get("properties")) or {}
    return frozenset(_OF_REPLY.findall(json.dumps(value))) - named.keys()
