"""All state machines and how often they ran lately, for a draft of tools.

ListExecutions has a small quota of the whole account (5/s, in most Regions 2/s): only some machines are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from mcp_workflows.adapter import JSON, Discovered
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.machines import EXPRESS
from mcp_workflows_stepfunctions.names import DENIED

MOST: Final = 5_000  # machines
PAGE: Final = 1000  # machines of one call
COUNTED: Final = 25  # machines, the newest
LATEST: Final = 100  # executions per machine

_AS_EXPRESS: Final[Mapping[str, JSON]] = {"express": True, "tasks": "forbidden"}  # the options of its tool
_UNCOUNTABLE: Final = frozenset({DENIED, "StateMachineDoesNotExist", "StateMachineTypeNotSupported"})


async def discover(client: Client) -> Sequence[Discovered]:
    """Return all state machines of the engine's account and Region, the most frequent first, then by name.

    Raises:
        EngineRefused, EngineUnavailable: see `Discovers.discover`.
    """
    rows = await client.pages("list_state_machines", "stateMachines", limit=MOST, maxResults=PAGE)
    standard = [row for row in rows if row["type"] != EXPRESS]  # Express executions cannot be listed
    standard.sort(key=_created, reverse=True)
    starts = {str(row["stateMachineArn"]): await _starts(client, row) for row in standard[:COUNTED]}
    found = [_discovered(row, starts.get(str(row["stateMachineArn"]), ())) for row in rows]
    return sorted(found, key=lambda each: (-each.executions, each.workflow))


async def _starts(client: Client, row: Mapping[str, Any]) -> Sequence[datetime]:
    """Return the start times of its latest executions; none if they cannot be listed, or not now."""
    try:
        found = await client.call(
            "list_executions", known=_UNCOUNTABLE, stateMachineArn=row["stateMachineArn"], maxResults=LATEST
        )
    except (ExpectedCodeError, EngineUnavailable):
        return ()
    return [execution["startDate"] for execution in found["executions"]]


def _discovered(row: Mapping[str, Any], starts: Sequence[datetime]) -> Discovered:
    return Discovered(
        workflow=str(row["name"]),
        options=_AS_EXPRESS if row["type"] == EXPRESS else {},
        last_seen=max(starts, default=None),
        executions=len(starts),
    )


def _created(row: Mapping[str, Any]) -> datetime:
    created: datetime = row["creationDate"]
    return created
