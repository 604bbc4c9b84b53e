"""Questions that only a real engine can answer, asked by `check --live` with temporarily deployed workflows.

A question is a generator of observations about a deployment; it blocks, and its docstring is shown.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import anyio
import anyio.to_thread

from mcp_workflows.adapter import Observation, Question


class Removable(Protocol):
    """A deployment that is removed in the end."""

    def remove(self) -> None:
        """Stop and remove everything; this blocks."""


D = TypeVar("D", bound=Removable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed(Generic[D]):
    """A deployment, its workflows by role, and a way to run blocking functions."""

    at: D
    parts: Mapping[str, str]
    run: Callable[[Callable[[], Sequence[Observation]]], Awaitable[Sequence[Observation]]]

    def questions(self, ask: Iterable[Callable[[D], Iterable[Observation]]]) -> Mapping[str, Question]:
        """Return the questions by their docstrings."""
        return {(each.__doc__ or "").strip(): self._question(each) for each in ask}

    def _question(self, ask: Callable[[D], Iterable[Observation]]) -> Question:
        return lambda: self.run(lambda: list(ask(self.at)))


@asynccontextmanager
async def deployed(
    open_deployment: Callable[[], D],
    deploy: Callable[[D], Mapping[str, str]],
    translated: Callable[[], AbstractContextManager[None]],
) -> AsyncGenerator[Deployed[D]]:
    """Deploy workflows in a thread, and remove them in the end; `translated` turns the SDK's errors into ours."""

    async def run(function: Callable[[], T]) -> T:
        with translated():
            return await anyio.to_thread.run_sync(function)

    at = await run(open_deployment)
    try:
        yield Deployed(at=at, parts=await run(lambda: deploy(at)), run=run)
    finally:
        with anyio.CancelScope(shield=True):
            await run(at.remove)


def expect(expected: str, found: object) -> Observation:
    """Return the observation of a value that must be the expected one."""
    return Observation(expected=expected, seen=str(found), ok=str(found) == expected)


def expect_one_of(expected: Sequence[str], found: str, about: str = "") -> Observation:
    """Return the observation of a value that must be one of the expected ones; `about` names the value."""
    return Observation(
        expected=" or ".join(expected), seen=f"{about}: {found}" if about else found, ok=found in expected
    )


def note(text: str, *, ok: bool | None = None) -> Observation:
    """Return an observation without an expected value; `ok` is None if nothing depends on it."""
    return Observation(expected="", seen=text, ok=ok)


def seconds(call: Callable[[], object]) -> float:
    """Return the duration of a call."""
    began = time.monotonic()
    call()
    return time.monotonic() - began
