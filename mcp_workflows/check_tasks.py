"""Which live tasks use tools and engines that the configuration does not have any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mcp_workflows.adapter import Finding
from mcp_workflows.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTasks:
    """How many tasks have not ended; those of removed tools and on removed engines, by name."""

    total: int = 0
    removed_tools: Mapping[str, int] = field(default_factory=dict[str, int])
    removed_engines: Mapping[str, int] = field(default_factory=dict[str, int])

    def as_json(self) -> Mapping[str, Any]:
        """For programs."""
        return {"live": self.total, "removed_tools": self.removed_tools, "removed_engines": self.removed_engines}

    def findings(self) -> Mapping[str, Finding]:
        """For people; a task of a removed tool is fine, as it has the settings it started with."""
        removed = self.removed_tools or self.removed_engines
        total = _tasks(self.total) + ("" if removed or not self.total else ", all of tools that are configured")
        return {
            "live": Finding(ok=True, text=total),
            **{f"tool {name}": _of_removed_tool(count) for name, count in self.removed_tools.items()},
            **{f"engine {name}": _on_removed_engine(name, count) for name, count in self.removed_engines.items()},
        }


async def count_live_tasks(config: Config) -> LiveTasks:
    """Count them in the store.

    Raises:
        StoreError: it cannot be read.
    """
    async with config.store.open() as store:
        tally = await store.tally(datetime.now(UTC))
    configured = {tool.name for tool in config.tools}
    tools, engines = Counter[str](), Counter[str]()
    for (tool, engine), count in tally.items():
        tools[tool] += count
        engines[engine] += count
    return LiveTasks(
        total=sum(tally.values()),
        removed_tools={name: count for name, count in tools.items() if name not in configured},
        removed_engines={name: count for name, count in engines.items() if name not in config.engines},
    )


def _tasks(count: int) -> str:
    return "1 live task" if count == 1 else f"{count} live tasks"


def _of_removed_tool(count: int) -> Finding:
    text = f"{_tasks(count)} of a tool that is not in the configuration any more: still to be read, answered, cancelled"
    return Finding(ok=True, text=text)


def _on_removed_engine(name: str, count: int) -> Finding:
    text = f"{_tasks(count)} on an engine that is not in the configuration any more: nobody can look at them"
    return Finding(ok=False, text=text, hint=f"put engine {name} back until they have ended")
