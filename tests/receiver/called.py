"""An engine whose workflows call it over HTTP, and which must remember what they said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from mcp_workflows.adapter import JSON, Notes, Route, Trusted
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound
from tests.support.strangers import installed
from tests.support.tokens import ACCOUNT, AUDIENCE, ISSUER

FAILURES: Mapping[str, Exception] = {
    "refused": EngineRefused("its message is empty"),
    "not found": ExecutionNotFound("no such execution"),
    "unavailable": EngineUnavailable("the engine is down"),
    "odd": EngineError("something of its own"),
    "broken": ZeroDivisionError("a secret of the adapter"),
}


class CalledSettings(MemorySettings):
    """Where it is called, and by whom."""

    routes: tuple[str, ...] = ("input", "claim")
    keys_url: str = ""
    audience: str = AUDIENCE
    accounts: tuple[str, ...] = (ACCOUNT,)


class CalledAdapter(MemoryAdapter):
    """Answers with what it was sent; `fail`, `say` and `note` in it do as they say."""

    Settings = CalledSettings

    def __init__(self, settings: CalledSettings) -> None:
        super().__init__(settings)
        self._called = settings
        self.notes: Notes | None = None

    def remember(self, notes: Notes) -> None:
        self.notes = notes

    def routes(self) -> Sequence[Route]:
        if "broken" in self._called.routes:
            raise FAILURES["broken"]
        trusted = Trusted(
            issuer=ISSUER,
            keys_url=self._called.keys_url,
            audience=self._called.audience,
            accounts=frozenset(self._called.accounts),
        )
        return [Route(path=path, trusted=trusted, receive=self._receive) for path in self._called.routes]

    async def _receive(self, body: JSON, account: str) -> JSON:
        asked = cast("Mapping[str, Any]", body if isinstance(body, dict) else {})
        if "fail" in asked:
            raise FAILURES[asked["fail"]]
        if "say" in asked:
            return {"number": float("nan"), "object": object()}[asked["say"]]
        if "note" in asked:
            return await self._noted(asked["note"], asked.get("value"))
        return {"got": cast("JSON", body), "from": account}

    async def _noted(self, key: str, value: JSON) -> JSON:
        if self.notes is None:
            return "nothing is known"
        first = await self.notes.add(key, value, until=datetime.now(UTC) + timedelta(hours=1))
        return {"first": first, "all": dict(await self.notes.under(key[:1]))}


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an adapter of strangers."""
    installed(folder, monkeypatch, {"called": CalledAdapter})
