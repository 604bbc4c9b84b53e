"""Who may augment what: capabilities, and each tool's own word."""

from __future__ import annotations

from typing import Final

from mcp_workflows.conformance_2025.check import Feature, Level, Role, Scenario, ViolationError, expect, need
from mcp_workflows.conformance_2025.site import Site
from mcp_workflows.conformance_2025.traffic import Traffic, as_object, shown

OLDER: Final = "2025-06-18"
METHOD_NOT_FOUND: Final = -32601
SUPPORT: Final = ("required", "optional", "forbidden")

negotiation = Scenario(name="negotiation", title="Capabilities and tools")


@negotiation.check(Level.MUST, "Capabilities")
async def declared(site: Site) -> None:
    """At 2025-11-25 the server declares tasks.requests.tools.call."""
    expect(site.lacks(Feature.TASKS) is None, f"capabilities.tasks is {shown(site.capabilities.get('tasks'))}")


@negotiation.check(Level.MUST, "Server Capabilities", Feature.TASKS)
async def capability_objects(site: Site) -> None:
    """tasks.list, tasks.cancel and tasks.requests.tools.call are objects, as far as they are there."""
    calls = as_object(as_object(site.declared.get("requests")).get("tools"))
    found = {**{name: site.declared[name] for name in ("list", "cancel") if name in site.declared}, **calls}
    wrong = [name for name, value in found.items() if not isinstance(value, dict)]
    expect(not wrong, f"no object: {', '.join(wrong)}")


@negotiation.check(Level.INTEROP, "the note at the top of the page")
async def not_in_older_revisions(site: Site) -> None:
    """A client that negotiates 2025-06-18 is shown no tasks capability."""
    async with site.session(version=OLDER, traffic=Traffic()) as session:
        need(session.version == OLDER, f"the server answers {OLDER} with {session.version}")
        capabilities = as_object(session.initialized.get("capabilities"))
    expect("tasks" not in capabilities, f"capabilities.tasks at {OLDER} is {shown(capabilities.get('tasks'))}")


@negotiation.check(Level.MUST, "Task Support and Handling 1", Role.QUICK)
async def task_ignored_if_undeclared(site: Site) -> None:
    """Where tasks are not declared (2025-06-18), params.task is ignored and the call is answered as usual."""
    need(site.support(Role.QUICK) == "optional", "the tool of the role quick does not run without a task")
    async with site.session(version=OLDER, traffic=Traffic()) as session:
        need(session.version == OLDER, f"the server answers {OLDER} with {session.version}")
        need("tasks" not in as_object(session.initialized.get("capabilities")), f"tasks are declared at {OLDER}")
        reply = await session.request("tools/call", site.call(Role.QUICK, task={}))
    expect("content" in reply.result and "task" not in reply.result, f"instead of the tool's result: {reply}")


@negotiation.check(Level.MUST, "Tool-Level Negotiation")
async def task_support_values(site: Site) -> None:
    """execution.taskSupport of every listed tool is required, optional or forbidden, if it is there."""
    told = {name: as_object(tool.get("execution")) for name, tool in site.tools.items()}
    wrong = [name for name, found in told.items() if found.get("taskSupport", "forbidden") not in SUPPORT]
    expect(not wrong, f"another value in: {', '.join(wrong)}")


@negotiation.check(Level.SHOULD, "Tool-Level Negotiation 2.1", Role.PLAIN)
async def forbidden_with_task(site: Site) -> None:
    """A tool that is no task refuses to be called as one with -32601."""
    async with site.session() as session:
        reply = await session.request("tools/call", site.call(Role.PLAIN, task={}))
    expect(reply.code == METHOD_NOT_FOUND, str(reply))


@negotiation.check(Level.INTEROP, "Tool-Level Negotiation 2.2", Role.QUICK)
async def optional_without_task(site: Site) -> None:
    """An optional tool that is called without params.task gives its result, and no task."""
    need(site.support(Role.QUICK) == "optional", "the tool of the role quick is not optional")
    async with site.session() as session:
        reply = await session.request("tools/call", site.call(Role.QUICK))
    expect("content" in reply.result and "task" not in reply.result, str(reply))


@negotiation.check(Level.MUST, "Tool-Level Negotiation 2.3", Feature.TASKS)
async def required_without_task(site: Site) -> None:
    """A tool that must be a task refuses to be called without params.task with -32601."""
    able = [role for role in Role if site.lacks(role) is None and site.support(role) == "required"]
    need(able, "no tool of any role has taskSupport required")
    async with site.session() as session:
        for role in able:
            reply = await session.request("tools/call", site.call(role))
            if reply.code != METHOD_NOT_FOUND:
                raise ViolationError(f"{site.settings.fixtures[role].tool}: {reply}")


@negotiation.check(Level.INTEROP, "Capability Negotiation", Role.QUICK)
async def cancel_undeclared(site: Site) -> None:
    """Without tasks.cancel, tasks/cancel is not served: -32601."""
    need(site.lacks(Feature.CANCEL), "tasks.cancel is declared")
    async with site.session() as session:
        reply = await session.request("tasks/cancel", {"taskId": await site.create(session, Role.QUICK)})
    expect(reply.code == METHOD_NOT_FOUND, str(reply))


@negotiation.check(Level.INTEROP, "Capability Negotiation", Feature.TASKS)
async def list_undeclared(site: Site) -> None:
    """Without tasks.list, tasks/list is not served: -32601."""
    need(site.lacks(Feature.LIST), "tasks.list is declared")
    async with site.session() as session:
        reply = await session.request("tasks/list", {})
    expect(reply.code == METHOD_NOT_FOUND, str(reply))


@negotiation.check(Level.SHOULD, "Task Isolation and Access Control", Feature.LIST)
async def list_needs_an_identity(site: Site) -> None:
    """tasks.list is not declared to an anonymous caller."""
    need(not site.settings.headers, "this caller has credentials: --header")
    raise ViolationError("tasks.list is declared to a caller without credentials; fine if the server has a single user")
