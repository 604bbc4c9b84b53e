"""Definitions as they were when tasks were started: each is looked at with that of its start."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from pydantic import ValidationError

from mcp_workflows.adapter import Notes, digest
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows_http.definition import ApiDefinition
from mcp_workflows_http.settings import HttpSettings

KEPT: Final = timedelta(days=400)  # longer than tasks live
_AGAIN: Final = timedelta(days=1)  # until it is kept anew


class Definitions:
    """The definition of now, and earlier ones by their digest, kept in the store."""

    def __init__(self, settings: HttpSettings) -> None:
        self._written = settings.definition
        self.now: Final = digest(self._written)
        self._known: dict[str, ApiDefinition] = {self.now: settings}
        self._notes: Notes | None = None
        self._kept_until = datetime.now(UTC)

    def remember(self, notes: Notes) -> None:
        """Use this store."""
        self._notes = notes

    async def keep(self) -> None:
        """Keep the definition of now: an execution is about to be started with it.

        Raises:
            EngineUnavailable: the store cannot be used now.
        """
        now = datetime.now(UTC)
        if self._notes is not None and now >= self._kept_until:
            await self._notes.put(_place(self.now), dict(self._written), until=now + KEPT)
            self._kept_until = now + _AGAIN

    async def get(self, name: str) -> ApiDefinition:
        """Return the definition of this digest; that of now if it is not known any more.

        Raises:
            EngineUnavailable: the store cannot be used now.
        """
        known = self._known.get(name)
        if known is not None:
            return known
        found = None if self._notes is None else await self._notes.get(_place(name))
        self._known[name] = self._read(found)
        return self._known[name]

    def _read(self, found: object) -> ApiDefinition:
        if not isinstance(found, Mapping):
            return self._known[self.now]
        try:
            return ApiDefinition.model_validate(found)
        except ValidationError:
            raise EngineUnavailable(
                "its definition was kept by another version of this adapter, which reads it no more", silent=False
            ) from None


def _place(name: str) -> str:
    return f"definition/{name}"
