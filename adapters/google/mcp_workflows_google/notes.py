"""What is remembered of executions, in the notes of this engine: questions, claims, and since when something is so.

Keys: `LOCATION/WORKFLOW/EXECUTION/ask/CALLBACK`, `.../lost`, `.../unavailable`, and `claim/CLAIMED`, which is
made by `Projects.claimed`. The project has two names, an id and a number, so that it is in none of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from mcp_workflows.adapter import JSON, Notes
from mcp_workflows_google.names import ExecutionName

LONGEST: Final = timedelta(days=366)  # an execution may run for a year
REPEATED: Final = timedelta(days=1)  # a workflow may repeat a question; `mcp_elicit` gives up within two hours
_LOST, _UNAVAILABLE, _ASK = "lost", "unavailable", "ask/"
_UNCONFIRMED: Final = "doubted"


def utc_now() -> datetime:
    """The clock."""
    return datetime.now(UTC)


def is_unconfirmed(question: JSON) -> bool:
    """Whether an answer to it was sent that may not have arrived."""
    return isinstance(question, Mapping) and cast("Mapping[str, JSON]", question).get(_UNCONFIRMED) is True


class EmptyNotes:
    """Where there is no store: nothing is known, and nothing is kept."""

    async def get(self, key: str) -> JSON:
        """Nothing."""
        return None

    async def under(self, beginning: str) -> Mapping[str, JSON]:
        """Nothing."""
        return {}

    async def add(self, key: str, value: JSON, *, until: datetime) -> JSON:
        """The value, which nobody has had before."""
        return value

    async def put(self, key: str, value: JSON, *, until: datetime) -> None:
        """It is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRecord:
    """What is known of one execution."""

    name: ExecutionName
    questions: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # by callback
    winner: str | None = None  # the execution that has claimed the key of this one
    unavailable: bool = False


class ExecutionNotes:
    """The notes of one engine, in our words."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    async def read(self, handle: str) -> ExecutionRecord:
        """What is known of the execution of this handle; of the one that has claimed its key, if that is another.

        Raises:
            EngineRefused: it is no handle of ours.
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
        """What an execution has asked, by callback."""
        return (await self._read(name)).questions

    async def questions_under(self, beginning: str) -> Mapping[str, Mapping[str, JSON]]:
        """The questions of all executions whose `ExecutionName.note_prefix` begins so: by note, by callback."""
        found: dict[str, dict[str, JSON]] = {}
        for key, value in (await self._notes.under(beginning)).items():
            note, ask, callback = key.partition(_ASK)
            if ask and note.endswith("/"):
                found.setdefault(note, {})[callback] = value
        return found

    async def add_question(self, name: ExecutionName, callback: str, question: JSON, *, until: datetime) -> None:
        """Keep a question; the same one again changes nothing, answered or not."""
        await self._notes.add(f"{name.note_prefix}{_ASK}{callback}", question, until=until)

    async def close_question(self, name: ExecutionName, callback: str, question: Mapping[str, JSON]) -> None:
        """It is closed: what the workflow repeats by itself must not open it again."""
        key = f"{name.note_prefix}{_ASK}{callback}"
        closed = {**question, "answered": True, _UNCONFIRMED: False}
        await self._notes.put(key, closed, until=utc_now() + REPEATED)

    async def mark_unconfirmed(self, name: ExecutionName, callback: str, question: Mapping[str, JSON]) -> None:
        """An answer was sent, and nobody knows whether it has arrived."""
        key = f"{name.note_prefix}{_ASK}{callback}"
        await self._notes.put(key, {**question, _UNCONFIRMED: True}, until=utc_now() + LONGEST)

    async def claim_holder(self, key: str) -> str | None:
        """The execution that has claimed this key."""
        found = await self._notes.get(f"claim/{key}")
        return None if found is None else str(found)

    async def claim(self, key: str, name: ExecutionName) -> ExecutionName:
        """The execution that may go on under this key: this one, if it is the first that asks."""
        until = utc_now() + LONGEST
        holder = ExecutionName.parse(str(await self._notes.add(f"claim/{key}", name.name, until=until)))
        if holder.note_prefix != name.note_prefix:
            await self._notes.put(name.note_prefix + _LOST, holder.name, until=until)
        return holder

    async def record_lost_claim(self, key: str, name: ExecutionName) -> bool:
        """Whether another execution has claimed the key of this one, which did not come to claim it itself."""
        holder = await self.claim_holder(key)
        lost = holder is not None and ExecutionName.parse(holder).note_prefix != name.note_prefix
        if lost:
            await self._notes.put(name.note_prefix + _LOST, holder, until=utc_now() + LONGEST)
        return lost

    async def unavailable_since(self, name: ExecutionName) -> datetime:
        """Since when its data cannot be read, as far as we have seen."""
        key, now = name.note_prefix + _UNAVAILABLE, utc_now()
        since = await self._notes.add(key, now.isoformat(), until=now + LONGEST)
        if since is None or datetime.fromisoformat(since) > now:  # readable in between; or the clock was set back
            await self._notes.put(key, since := now.isoformat(), until=now + LONGEST)
        return datetime.fromisoformat(since)

    async def clear_unavailable(self, name: ExecutionName) -> None:
        """It can be read again."""
        await self._notes.put(name.note_prefix + _UNAVAILABLE, None, until=utc_now())
