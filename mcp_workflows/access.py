"""Who asks: the principal that owns a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks. `id` is the owner of the tasks they create and the only thing ever compared."""

    id: str
    subject: str | None = None  # the person, if the token names one: `{{principal.subject}}` in mappings

    @property
    def scope(self) -> Mapping[str, Mapping[str, str | None]]:
        """`principal` as templates see it."""
        return {"principal": {"id": self.id, "subject": self.subject}}


ANONYMOUS = Principal(id="anonymous")
