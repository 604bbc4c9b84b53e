"""The adapter of functions with a capability: `Checks` finds misspelled workflows."""

# `connect` gives the functions their first argument:
# pyright: reportArgumentType=false

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import httpx2

from mcp_workflows.adapter import Finding, StartGuarantee
from mcp_workflows.errors import StartConflict
from mcp_workflows.kit.functions import FunctionsAdapter
from mcp_workflows_acme.functions import WorkshopSettings, answer, cancel, connect, describe, start


class CheckedAdapter(FunctionsAdapter):
    Settings = WorkshopSettings
    starts = StartGuarantee.KEYED

    def __init__(self, settings: WorkshopSettings) -> None:
        super().__init__(
            start=start,
            describe=describe,
            answer=answer,
            cancel=cancel,
            connect=partial(connect, settings),
            errors={409: StartConflict},
        )
        self.tooling = WorkshopTooling(settings)


class WorkshopTooling:
    def __init__(self, settings: WorkshopSettings) -> None:
        self.settings = settings

    def products(self) -> Sequence[str]:
        with connect(self.settings) as workshop:
            return workshop.get("/products").raise_for_status().json()

    async def check_engine(self) -> Finding:
        try:
            products = await asyncio.to_thread(self.products)
        except httpx2.HTTPError as error:
            return Finding(ok=False, text=f"no answer ({type(error).__name__})", hint="check address and api_key")
        return Finding(ok=True, text=f"it makes {', '.join(products)}")

    async def check(self, workflow: str, options: Mapping[str, Any]) -> Finding:
        found = await self.check_engine()
        if found.ok and workflow not in await asyncio.to_thread(self.products):
            return Finding(ok=False, text=f"it does not make {workflow!r}", hint=found.text)
        return found
