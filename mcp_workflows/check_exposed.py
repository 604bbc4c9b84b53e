"""What is marked on engines to be tools: what would be offered, and what would not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import anyio

from mcp_workflows.adapter import Adapter, Exposed, Exposes, Finding
from mcp_workflows.config import Config
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineError
from mcp_workflows.exposing import Marked, compose

_PAGES = 3  # so many times the patience for one call: it may take several


@dataclass(slots=True)
class Looks:
    """What was seen on the engines that are to be looked at; filled while it is found out."""

    adapters: dict[str, Adapter] = field(default_factory=dict[str, Adapter])
    exposed: dict[str, Sequence[Exposed]] = field(default_factory=dict[str, Sequence[Exposed]])
    trouble: dict[str, str] = field(default_factory=dict[str, str])

    async def look(self, engine: str, adapter: Exposes, engines: Engines, patience: float) -> None:
        """At one engine, which is open."""
        longest = patience * _PAGES
        try:
            with anyio.fail_after(longest):
                async with engines.calling(engine, bounded=False) as opened:
                    self.adapters[engine], self.exposed[engine] = opened, list(await adapter.exposed())
        except EngineError as error:
            self.trouble[engine] = str(error)
        except TimeoutError:
            self.trouble[engine] = f"no answer within {longest:g} s"

    def findings(self, config: Config) -> Sequence[tuple[str, Mapping[str, str], Finding]]:
        """Each marked workflow and each engine without any: its name, its details, and what becomes of it."""
        my_tasks, laying = config.server.my_tasks, config.laying
        marked = compose(config.tools, self.exposed, self.adapters, my_tasks=my_tasks, laying=laying)
        found = [(each.exposed.name, _details(each), _finding(each)) for each in marked]
        nothing = Finding(ok=True, text="nothing is marked there")
        found += [(name, {"engine": name}, nothing) for name, exposed in self.exposed.items() if not exposed]
        lost = {
            name: Finding(ok=False, text=f"cannot see what is marked there: {why}")
            for name, why in self.trouble.items()
        }
        return [*found, *((name, {"engine": name}, finding) for name, finding in lost.items())]


def _details(marked: Marked) -> Mapping[str, str]:
    return {"engine": marked.engine, "workflow": marked.exposed.workflow}


def _finding(marked: Marked) -> Finding:
    if marked.wrong:
        return Finding(ok=False, text=f"not offered: {marked.wrong}", hint=marked.hint)
    said = (
        f"marked, and offered as workflows.yaml says: {marked.named}" if marked.named else "marked: offered as a tool"
    )
    return Finding(ok=True, text=said, hint=None if marked.named else _suggestion(marked.exposed))


def _suggestion(exposed: Exposed) -> str | None:
    """A schema that its owner may correct and set; nothing of it counts before."""
    if exposed.draft is None:
        return None
    return f"its input schema might be, correct it and set it: {json.dumps(exposed.draft)}"
