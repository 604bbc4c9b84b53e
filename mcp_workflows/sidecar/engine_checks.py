"""Calls of adapters' tools: limited and counted like all calls to engines, with their texts cleaned for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import anyio

from mcp_workflows.adapter import Adapter, Finding
from mcp_workflows.adapter.display_text import MAX_DESCRIPTION, cleaned, cleaned_schema
from mcp_workflows.adapter.redaction import mask
from mcp_workflows.engines.registry import MAX_STEP_NAME, Engines
from mcp_workflows.errors import EngineError, EngineUnavailable
from mcp_workflows.kit.tooling import Checks, Discovered, Exposed, Exposes

CHECK_TIMEOUT = 2.0  # seconds for a check of an engine's health
DISCOVERY_TIMEOUT = 120.0  # seconds for all marked workflows of an engine: page by page, within its quotas

Described = TypeVar("Described", Exposed, Discovered)


def one_workflow(adapter: Adapter | type[Adapter], written: str, found: str) -> bool:
    """True if both names mean one workflow, even if one of them includes a version."""
    return adapter.same_workflow(written, found) or adapter.same_workflow(found, written)


async def check_engines(engines: Engines) -> Mapping[str, Finding]:
    """Check all engines concurrently and return the findings; unknown if an adapter has no check."""
    findings: dict[str, Finding] = {}
    names = engines.names

    async def check(name: str) -> None:
        unknown = Finding(ok=None, text="not checked: its adapter cannot check this")
        findings[name] = await check_engine(engines, name) or unknown

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(check, name)
    return {name: findings[name] for name in names}


async def check_engine(engines: Engines, name: str) -> Finding | None:
    """Check one engine and return the finding; None if its adapter has no check."""
    adapter = engines.get(name)
    tooling = None if adapter is None else adapter.tooling
    if not isinstance(tooling, Checks):
        return None
    finding = Finding(ok=False, text=f"no answer within {CHECK_TIMEOUT:g} s")
    try:
        with anyio.move_on_after(CHECK_TIMEOUT):
            async with engines.calling(name, api="check"):
                finding = await tooling.check_engine()
    except EngineError as error:
        finding = Finding(ok=False, text=str(error))
    finding = replace(finding, text=mask(finding.text))
    if (silence := engines.silence(name)) and not finding.ok:
        finding = replace(finding, text=f"{finding.text}; polls: {silence}")
    return finding


async def find_exposed(engines: Engines, engine: str, time_limit: float = DISCOVERY_TIMEOUT) -> Sequence[Exposed]:
    """Return the workflows of an engine that are marked as tools; none if its adapter does not support that.

    Raises:
        EngineError: the engine did not reply, or not within `time_limit` seconds.
    """
    try:
        with anyio.fail_after(time_limit):
            async with engines.calling(engine, api="exposed", bounded=False) as adapter:
                tooling = adapter.tooling
                return [described(each) for each in await tooling.exposed()] if isinstance(tooling, Exposes) else []
    except TimeoutError:
        raise EngineUnavailable(f"no answer within {time_limit:g} s") from None


def described(workflow: Described) -> Described:
    """Return a workflow of an engine with its texts cleaned for models."""
    title, text, schema = workflow.title, workflow.description, workflow.input
    return replace(
        workflow,
        title=title and cleaned(title, MAX_STEP_NAME),
        description=text and cleaned(text, MAX_DESCRIPTION),
        input=cleaned_schema(schema),
    )
