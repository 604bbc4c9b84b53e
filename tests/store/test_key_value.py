"""What an adapter must remember: in the store, each engine's own, and in the words of the boundary."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import pytest

from mcp_workflows.adapter import JSON, Notes
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.store.key_value import notes_in
from mcp_workflows.store.protocol import open_store
from mcp_workflows.testing import MemoryNotes

pytestmark = pytest.mark.anyio

UNTIL = datetime(2026, 7, 28, tzinfo=UTC)


class RememberingAdapter(MemoryAdapter):
    """Looks into its notes as soon as it is entered."""

    def __init__(self) -> None:
        super().__init__(MemorySettings())
        self.notes: Notes | None = None
        self.found: JSON = None

    def remember(self, notes: Notes) -> None:
        self.notes = notes

    async def __aenter__(self) -> MemoryAdapter:
        self.found = None if self.notes is None else await self.notes.get("a")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.notes is not None:
            await self.notes.put("a", 1, until=UNTIL)


@pytest.mark.parametrize("in_memory", [True, False])
async def test_notes_for_tests_are_as_those_of_a_store(tmp_path: Path, in_memory: bool) -> None:
    async with open_store(f"sqlite:///{tmp_path}/tasks.db") as store:
        notes: Notes = MemoryNotes() if in_memory else notes_in(store)("here")
        given = {"n": [1]}
        assert await notes.add("b", given, until=UNTIL) == {"n": [1]}
        given["n"].append(2)
        assert await notes.add("b", given, until=UNTIL) == await notes.get("b") == {"n": [1]}
        await notes.put("a%", None, until=UNTIL)
        await notes.put("a", 1, until=UNTIL)
        assert list((await notes.under("a")).items()) == [("a", 1), ("a%", None)]
        assert await notes.under("a%") == {"a%": None}
        assert (await notes.get("a%"), await notes.get("c"), await notes.under("_")) == (None, None, {})


async def test_a_store_in_trouble_is_an_engine_that_gives_no_answer(tmp_path: Path) -> None:
    notes = notes_in(open_store(f"sqlite:///{tmp_path}/tasks.db"))("here")
    for call in (
        notes.get("a"),
        notes.under("a"),
        notes.add("a", 1, until=UNTIL),
        notes.put("a", 1, until=UNTIL),
    ):
        with pytest.raises(EngineUnavailable, match="cannot be read or written now: the store is not open") as untold:
            await call
        assert not untold.value.silent, "it may well answer"


async def test_an_adapter_has_its_notes_from_before_it_is_entered_until_after_it_is_left(tmp_path: Path) -> None:
    for expected in (None, 1):
        adapter = RememberingAdapter()
        async with (
            open_store(f"sqlite:///{tmp_path}/tasks.db") as store,
            Engines({"here": adapter}, notes=notes_in(store)),
        ):
            assert adapter.found == expected


async def test_an_adapter_that_is_swapped_in_has_them_too(tmp_path: Path) -> None:
    kept, new = RememberingAdapter(), RememberingAdapter()
    async with open_store(f"sqlite:///{tmp_path}/tasks.db") as store:
        await store.put_note("new", "a", 7, until=UNTIL)
        async with Engines({"kept": kept}, notes=notes_in(store)) as engines:
            notes = kept.notes
            engines.use(await engines.opened({"kept": kept, "new": new}))
            assert (kept.notes, new.found) == (notes, 7)
