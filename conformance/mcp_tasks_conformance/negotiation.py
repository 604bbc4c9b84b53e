"""Checks of the tasks capability, and of each tool's taskSupport."""

from __future__ import annotations

from typing import Final

from mcp_tasks_conformance.check import Feature, Level, Scenario, ToolRole, ViolationError, expect, skip_unless
from mcp_tasks_conformance.server_under_test import ServerUnderTest
from mcp_tasks_conformance.traffic import Traffic, as_object, format_json

OLDER: Final = "2025-06-18"
METHOD_NOT_FOUND: Final = -32601
SUPPORT: Final = ("required", "optional", "forbidden")

negotiation = Scenario(name="negotiation", title="Capabilities and tools")


@negotiation.check(Level.MUST, "Capabilities")
async def declared(server: ServerUnderTest) -> None:
    """At 2025-11-25 the server declares tasks.requests.tools.call."""
    expect(
        server.skip_reason(Feature.TASKS) is None,
        f"capabilities.tasks is {format_json(server.capabilities.get('tasks'))}",
    )


@negotiation.check(Level.MUST, "Server Capabilities", Feature.TASKS)
async def capability_objects(server: ServerUnderTest) -> None:
    """tasks.list, tasks.cancel and tasks.requests.tools.call, where present, are objects."""
    calls = as_object(as_object(server.task_capabilities.get("requests")).get("tools"))
    found = {
        **{name: server.task_capabilities[name] for name in ("list", "cancel") if name in server.task_capabilities},
        **calls,
    }
    wrong = [name for name, value in found.items() if not isinstance(value, dict)]
    expect(not wrong, f"no object: {', '.join(wrong)}")


@negotiation.check(Level.INTEROP, "the note at the top of the page")
async def not_in_older_revisions(server: ServerUnderTest) -> None:
    """The server declares no tasks capability to a client that negotiates 2025-06-18."""
    async with server.session(version=OLDER, traffic=Traffic()) as session:
        skip_unless(session.version == OLDER, f"the server answers {OLDER} with {session.version}")
        capabilities = as_object(session.initialize_result.get("capabilities"))
    expect("tasks" not in capabilities, f"capabilities.tasks at {OLDER} is {format_json(capabilities.get('tasks'))}")


@negotiation.check(Level.MUST, "Task Support and Handling 1", ToolRole.QUICK)
async def task_ignored_if_undeclared(server: ServerUnderTest) -> None:
    """Where tasks are not declared (2025-06-18), params.task is ignored and the call returns its result."""
    skip_unless(
        server.task_support(ToolRole.QUICK) == "optional", "the tool of the role quick does not run without a task"
    )
    async with server.session(version=OLDER, traffic=Traffic()) as session:
        skip_unless(session.version == OLDER, f"the server answers {OLDER} with {session.version}")
        skip_unless(
            "tasks" not in as_object(session.initialize_result.get("capabilities")), f"tasks are declared at {OLDER}"
        )
        reply = await session.request("tools/call", server.call_params(ToolRole.QUICK, task={}))
    expect("content" in reply.result and "task" not in reply.result, f"instead of the tool's result: {reply}")


@negotiation.check(Level.MUST, "Tool-Level Negotiation")
async def task_support_values(server: ServerUnderTest) -> None:
    """execution.taskSupport of a tool, where present, is required, optional or forbidden."""
    executions = {name: as_object(tool.get("execution")) for name, tool in server.tools.items()}
    wrong = [name for name, found in executions.items() if found.get("taskSupport", "forbidden") not in SUPPORT]
    expect(not wrong, f"another value in: {', '.join(wrong)}")


@negotiation.check(Level.SHOULD, "Tool-Level Negotiation 2.1", ToolRole.PLAIN)
async def forbidden_with_task(server: ServerUnderTest) -> None:
    """A tool without task support refuses a task-augmented call: -32601."""
    async with server.session() as session:
        reply = await session.request("tools/call", server.call_params(ToolRole.PLAIN, task={}))
    expect(reply.code == METHOD_NOT_FOUND, str(reply))


@negotiation.check(Level.INTEROP, "Tool-Level Negotiation 2.2", ToolRole.QUICK)
async def optional_without_task(server: ServerUnderTest) -> None:
    """An optional tool that is called without params.task returns its result, and no task."""
    skip_unless(server.task_support(ToolRole.QUICK) == "optional", "the tool of the role quick is not optional")
    async with server.session() as session:
        reply = await session.request("tools/call", server.call_params(ToolRole.QUICK))
    expect("content" in reply.result and "task" not in reply.result, str(reply))


@negotiation.check(Level.MUST, "Tool-Level Negotiation 2.3", Feature.TASKS)
async def required_without_task(server: ServerUnderTest) -> None:
    """A tool with taskSupport required refuses a call without params.task: -32601."""
    required = [
        role for role in ToolRole if server.skip_reason(role) is None and server.task_support(role) == "required"
    ]
    skip_unless(required, "no tool of any role has taskSupport required")
    async with server.session() as session:
        for role in required:
            reply = await session.request("tools/call", server.call_params(role))
            if reply.code != METHOD_NOT_FOUND:
                raise ViolationError(f"{server.settings.fixtures[role].tool}: {reply}")


@negotiation.check(Level.INTEROP, "Capability Negotiation", ToolRole.QUICK)
async def cancel_undeclared(server: ServerUnderTest) -> None:
    """Without tasks.cancel, tasks/cancel is not served: -32601."""
    skip_unless(server.skip_reason(Feature.CANCEL), "tasks.cancel is declared")
    async with server.session() as session:
        reply = await session.request("tasks/cancel", {"taskId": await server.create_task(session, ToolRole.QUICK)})
    expect(reply.code == METHOD_NOT_FOUND, str(reply))


@negotiation.check(Level.INTEROP, "Capability Negotiation", Feature.TASKS)
async def list_undeclared(server: ServerUnderTest) -> None:
    """Without tasks.list, tasks/list is not served: -32601."""
    skip_unless(server.skip_reason(Feature.LIST), "tasks.list is declared")
    async with server.session() as session:
        reply = await session.request("tasks/list", {})
    expect(reply.code == METHOD_NOT_FOUND, str(reply))


@negotiation.check(Level.SHOULD, "Task Isolation and Access Control", Feature.LIST)
async def list_needs_an_identity(server: ServerUnderTest) -> None:
    """tasks.list is not declared to an anonymous caller."""
    skip_unless(not server.settings.headers, "this caller has credentials: --header")
    raise ViolationError("tasks.list is declared to a caller without credentials; fine if the server has a single user")
