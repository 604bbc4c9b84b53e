"""An adapter that is observed: the executions that it starts, the times of its calls, and replies that are ignored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from types import TracebackType
from typing import ClassVar, Final, Self

import anyio
from pydantic import BaseModel

from mcp_workflows.adapter import JSON, Adapter, Execution, Finds, Ref, Start, StartGuarantee
from mcp_workflows.errors import EngineError, EngineUnavailable

_AGAIN: Final = 0.2  # seconds between two looks at an execution that was cancelled


@dataclass(slots=True, kw_only=True)
class Observations:
    """The executions that all observed adapters of one engine have started, and the times of their calls."""

    started: dict[str, Ref] = field(default_factory=dict[str, Ref])  # by handle
    ended: set[str] = field(default_factory=set[str])
    unheard: dict[str, Start] = field(default_factory=dict[str, Start])  # by key: sent, and no reply yet
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])  # by verb
    found_after: list[float] = field(default_factory=list[float])  # seconds from the reply of a start to `find`
    errors: list[str] = field(default_factory=list[str])  # the texts of all that were raised
    _started_at: dict[str, float] = field(default_factory=dict[str, float])  # by key
    is_ignoring: bool = False

    def observe(self, adapter: Adapter) -> ObservedAdapter:
        """Return an adapter that does what this one does, and is observed."""
        kind = ObservedFindableAdapter if isinstance(adapter, Finds) else ObservedAdapter
        return kind(adapter, self)

    @asynccontextmanager
    async def ignoring_replies(self, _: Adapter) -> AsyncGenerator[None]:
        """Ignore the replies to starts: they take effect, and are reported as unavailable."""
        self.is_ignoring = True
        try:
            yield
        finally:
            self.is_ignoring = False

    def note_start(self, start: Start, handle: str) -> None:
        """Keep the execution of a start."""
        self.unheard.pop(start.key, None)
        self.started[handle] = Ref(workflow=start.workflow, handle=handle, options=start.options)
        self._started_at.setdefault(start.key, anyio.current_time())

    def note_found(self, start: Start, handle: str) -> None:
        """Keep an execution that was found, and how late that was."""
        if (began := self._started_at.pop(start.key, None)) is not None:
            self.found_after.append(anyio.current_time() - began)
        self.note_start(start, handle)

    def measured(self) -> Mapping[str, float]:
        """Return the median of each verb in milliseconds, and the longest time until a search has found something."""
        times = {
            f"{verb} (ms, median)": round(median(each) * 1e3, 1) for verb, each in sorted(self.seconds.items()) if each
        }
        late = {"found after (s, longest)": round(max(self.found_after), 1)} if self.found_after else {}
        return {**times, **late, "executions started": len(self.started)}

    async def end_all(self, adapter: Adapter, patience: float) -> Sequence[str]:
        """Cancel all that still runs; return what does not end within `patience` seconds, as texts."""
        for start in list(self.unheard.values()):
            await self._hear(adapter, start)
        left: dict[str, str] = dict.fromkeys(self.started.keys() - self.ended, "it runs")
        asked: set[str] = set()
        with anyio.move_on_after(patience):
            while left:
                for handle in list(left):
                    try:
                        if (await adapter.describe(self.started[handle])).terminal:
                            del left[handle]
                        elif handle not in asked:
                            await adapter.cancel(self.started[handle])
                            asked.add(handle)
                    except EngineError as error:
                        left[handle] = str(error)
                    except Exception as error:  # noqa: BLE001  # the others are ended, whatever an adapter raises
                        left[handle] = type(error).__name__
                if left:
                    await anyio.sleep(_AGAIN)
        unknown = [f"key {start.key}: it is not known whether it was started" for start in self.unheard.values()]
        return [*(f"{handle}: {why}" for handle, why in left.items()), *unknown]

    async def _hear(self, adapter: Adapter, start: Start) -> None:
        """Find out what became of a start that was interrupted, as the core does."""
        try:
            if adapter.starts is StartGuarantee.KEYED:
                await adapter.start(start)
            elif isinstance(adapter, Finds) and await adapter.find(start) is None:
                self.unheard.pop(start.key, None)
        except Exception:  # noqa: BLE001, S110  # whatever an adapter raises
            pass  # it stays unknown, and is reported


class ObservedAdapter(Adapter):
    """The four verbs of another adapter, observed."""

    Settings: ClassVar[type[BaseModel]]
    Options: ClassVar[type[BaseModel]]

    def __init__(self, adapter: Adapter, observations: Observations) -> None:
        self.adapter = adapter
        self.observations = observations
        self.starts = adapter.starts  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # its own

    async def __aenter__(self) -> Self:
        """Enter the adapter."""
        await self.adapter.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the adapter."""
        await self.adapter.__aexit__(kind, error, trace)

    async def start(self, start: Start) -> str:
        """Start it, and remember that."""
        seen = self.observations
        seen.unheard[start.key] = start
        try:
            with self._timed("start"):
                handle = await self.adapter.start(start)
        except EngineUnavailable as error:
            if not error.sent:
                seen.unheard.pop(start.key, None)
            raise
        except EngineError:
            seen.unheard.pop(start.key, None)
            raise
        seen.note_start(start, handle)
        if seen.is_ignoring:
            raise EngineUnavailable("the reply was ignored on purpose")
        return handle

    async def describe(self, ref: Ref) -> Execution:
        """Look once."""
        with self._timed("describe"):
            found = await self.adapter.describe(ref)
        if found.terminal:
            self.observations.ended.add(ref.handle)
        return found

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Deliver the responses."""
        with self._timed("answer"):
            await self.adapter.answer(ref, responses)

    async def cancel(self, ref: Ref) -> None:
        """Ask to cancel."""
        with self._timed("cancel"):
            await self.adapter.cancel(ref)

    def _timed(self, verb: str) -> _Timer:
        return _Timer(self.observations.seconds.setdefault(verb, []), self.observations.errors)


class ObservedFindableAdapter(ObservedAdapter):
    """The same for an adapter that can search for a key."""

    @property
    def settling(self) -> timedelta:
        """As the adapter has it; see `Finds`."""
        return self._finding.settling

    async def find(self, start: Start) -> str | None:
        """Search once."""
        with self._timed("find"):
            found = await self._finding.find(start)
        if found is not None:
            self.observations.note_found(start, found)
        return found

    @property
    def _finding(self) -> Finds:
        assert isinstance(self.adapter, Finds), "`observe` chooses the class"
        return self.adapter


class _Timer:
    """Keeps the time of a call that returns, and the text of the error of one that does not."""

    def __init__(self, times: list[float], errors: list[str]) -> None:
        self._times = times
        self._errors = errors
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = anyio.current_time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._times.append(anyio.current_time() - self._began)
        elif isinstance(error, EngineError):
            self._errors.append(str(error))
