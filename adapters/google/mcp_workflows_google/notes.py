"""Durable notes on executions: questions, claims of keys, and the start of unavailability.

Keys: `LOCATION/WORKFLOW/EXECUTION/ask/CALLBACK`, `.../lost`, `.../unavailable`, and `claim/CLAIMED`, where CLAIMED
comes from `Client.claim_key`. The project has two names, an id and a number, so no other key contains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from mcp_workflows.adapter import JSON, Notes
from mcp_workflows_google.resources import ExecutionName

LONGEST: Final = timedelta(days=366)  # an execution may run for a year
REPEATED: Final = timedelta(days=1)  # a workflow may repeat a question; `mcp_elicit` gives up within two hours
_LOST, _UNAVAILABLE, _ASK = "lost", "unavailable", "ask/"
_UNCONFIRMED: Final = "doubted"


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def is_unconfirmed(question: JSON) -> bool:
    """Return whether an answer to the question was sent that may not have arrived."""
    return isinstance(question, Mapping) and cast("Mapping[str, JSON]", question).get(_UNCONFIRMED) is True


class EmptyNotes:
    """Notes without a store: they keep nothing."""

    async def get(self, key: str) -> JSON:
        """Return None."""
        return None

    async def under(self, beginning: str) -> Mapping[str, JSON]:
        """Return no notes."""
        return {}

    async def add(self, key: str, value: JSON, *, until: datetime) -> JSON:
        """Return the value without storing it."""
        return value

    async def put(self, key: str, value: JSON, *, until: datetime) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord:
    """The notes on one execution."""

    name: ExecutionName
    questions: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # by the id of the callback
    winner: str | None = None  # the execution that holds the claim of this one's key
    unavailable: bool = False


class ExecutionNotes:
    """The notes of one engine."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    async def read(self, handle: str) -> ExecutionRecord:
        """Return the notes on the execution of this handle, or on the holder of its key's claim.

        Raises:
            EngineRefused: the text is not a handle of this adapter.
        """
        record = await self._read(ExecutionName.parse(handle))
        return record if record.winner is None else await self._read(ExecutionName.parse(record.winner))

    async def _read(self, name: ExecutionName) -> ExecutionRecord:
        found = await self._notes.under(name.note_prefix)
        said = {key.removeprefix(name.note_prefix): value for key, value in found.items()}
        return ExecutionRecord(
            name=name,
            questions={key.removeprefix(_ASK): value for key, value in said.items() if key.startswith(_ASK)},
            winner=said.get(_LOST),
            unavailable=said.get(_UNAVAILABLE) is not None,
        )

    async def questions(self, name: ExecutionName) -> Mapping[str, JSON]:
        """Return the questions of an execution, by callback."""
        return (await self._read(name)).questions

    async def questions_under(self, beginning: str) -> Mapping[str, Mapping[str, JSON]]:
        """Return the questions of all executions under a prefix: by `ExecutionName.note_prefix`, by callback."""
        found: dict[str, dict[str, JSON]] = {}
        for key, value in (await self._notes.under(beginning)).items():
            note, ask, callback = key.partition(_ASK)
            if ask and note.endswith("/"):
                found.setdefault(note, {})[callback] = value
        return found

    async def add_question(self, name: ExecutionName, callback: str, question: JSON, *, until: datetime) -> None:
        """Store a question; a repetition changes nothing, even after an answer."""
        await self._notes.add(f"{name.note_prefix}{_ASK}{callback}", question, until=until)

    async def close_question(self, name: ExecutionName, callback: str, question: Mapping[str, JSON]) -> None:
        """Mark a question as answered, so that a repetition by the workflow does not reopen it."""
        key = f"{name.note_prefix}{_ASK}{callback}"
        closed = {**question, "answered": True, _UNCONFIRMED: False}
        await self._notes.put(key, closed, until=utc_now() + REPEATED)

    async def mark_unconfirmed(self, name: ExecutionName, callback: str, question: Mapping[str, JSON]) -> None:
        """Record that an answer was sent without confirmation of its arrival."""
        key = f"{name.note_prefix}{_ASK}{callback}"
        await self._notes.put(key, {**question, _UNCONFIRMED: True}, until=utc_now() + LONGEST)

    async def claim_holder(self, key: str) -> str | None:
        """Return the execution that holds the claim of this key."""
        found = await self._notes.get(f"claim/{key}")
        return None if found is None else str(found)

    async def claim(self, key: str, name: ExecutionName) -> ExecutionName:
        """Claim the key for this execution, unless another one holds it; return the holder."""
        until = utc_now() + LONGEST
        holder = ExecutionName.parse(str(await self._notes.add(f"claim/{key}", name.name, until=until)))
        if holder.note_prefix != name.note_prefix:
            await self._notes.put(name.note_prefix + _LOST, holder.name, until=until)
        return holder

    async def record_lost_claim(self, key: str, name: ExecutionName) -> bool:
        """Return whether another execution holds the claim of this key, and record that this one has lost it."""
        holder = await self.claim_holder(key)
        lost = holder is not None and ExecutionName.parse(holder).note_prefix != name.note_prefix
        if lost:
            await self._notes.put(name.note_prefix + _LOST, holder, until=utc_now() + LONGEST)
        return lost

    async def unavailable_since(self, name: ExecutionName) -> datetime:
        """Return the time since which the execution's data is known to be unreadable."""
        key, now = name.note_prefix + _UNAVAILABLE, utc_now()
        since = await self._notes.add(key, now.isoformat(), until=now + LONGEST)
        if since is None or datetime.fromisoformat(since) > now:  # readable in between; or the clock was set back
            await self._notes.put(key, since := now.isoformat(), until=now + LONGEST)
        return datetime.fromisoformat(since)

    async def clear_unavailable(self, name: ExecutionName) -> None:
        """Record that the execution's data is readable again."""
        await self._notes.put(name.note_prefix + _UNAVAILABLE, None, until=utc_now())
