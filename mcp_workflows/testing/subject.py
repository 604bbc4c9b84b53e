"""The subject of AdapterContract, and the looks that the contract takes at its executions."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import anyio
import pytest

from mcp_workflows.adapter import JSON, Adapter, Execution, Finds, Ref, Start, StartGuarantee, Status
from mcp_workflows.errors import EngineError, EngineRefused, ExecutionNotFound, StartConflict

STACK_TRACES = ("Traceback (most recent call last)", 'File "', "\n    at ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A workflow that plays a part, and its input."""

    workflow: str
    arguments: JSON = field(default_factory=list[JSON])
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The subject of the proof: a way to make an adapter, and the workflows that play the parts."""

    new_adapter: Callable[[], Adapter]  # not entered; all of one test talk to the same engine
    finishes: Role  # at once, with `output`
    output: JSON
    other_arguments: JSON  # that `finishes` could have been started with as well
    fails: Role  # at once, with `failure` in its text
    failure: str
    endless: Role  # runs until it is cancelled
    asks: Role | None = None  # one question, then it succeeds; None: this engine never asks a person
    asks_two: Role | None = None  # two questions at once, then it succeeds
    content: JSON = None  # that answers each of these questions
    refused: Role | None = None  # the engine does not take it at all: a definite no; None: it takes everything
    unknown_handle: str = "no-such-execution"
    unreachable: Callable[[], Adapter] | None = None  # an adapter of an engine that is not there
    secret: str | None = None  # in the settings of `unreachable`: must appear in no message
    losing_replies: Callable[[Adapter], AbstractAsyncContextManager[None]] | None = None  # gets the adapter that starts
    patience: float = 30  # seconds until something that must happen has happened
    glance: float = 10  # seconds one call may take at most


def new_start(role: Role) -> Start:
    """Return a start under a key of its own."""
    return Start(
        workflow=role.workflow,
        arguments=role.arguments,
        key=f"contract-{uuid.uuid4().hex}",
        created=datetime.now(UTC),
        options=role.options,
    )


async def start_again(subject: Subject, adapter: Adapter, start: Start) -> str:
    """Return the handle of a start that may have happened before, as the core gets it: see `StartGuarantee`.

    KEYED starts again. FINDABLE is searched until it is seen; nothing is started twice.
    """
    if adapter.starts is not StartGuarantee.FINDABLE:
        return await adapter.start(start)
    with anyio.move_on_after(subject.patience):
        while True:
            if (handle := await finder(adapter).find(start)) is not None:
                return handle
            await anyio.sleep(0.05)  # its list may lag behind
    pytest.fail(f"find() does not see within {subject.patience} s what was started under this key")


def finder(adapter: Adapter) -> Finds:
    """Return the adapter as one that can look for an execution by its key, as FINDABLE must."""
    assert isinstance(adapter, Finds), "`starts` says FINDABLE: write find() and settling, or say ONCE"
    return adapter


def ref_of(start: Start, handle: str) -> Ref:
    """Return the execution of this start."""
    return Ref(workflow=start.workflow, handle=handle, options=start.options)


def accepted(subject: Subject) -> JSON:
    """Return the response that accepts a question."""
    return {"action": "accept", "content": subject.content}


async def expect(call: Awaitable[object], *kinds: type[EngineError], advice: str) -> EngineError:
    """Return the error of the call, which must be one of these; otherwise the test fails with the advice."""
    with pytest.raises(Exception) as raised:  # noqa: PT011  # any: an adapter may let everything through
        pytest.fail(f"{advice}; it returned {await call!r}")
    if isinstance(raised.value, kinds):
        return raised.value
    said = f"{advice}; it raised {type(raised.value).__name__}: {raised.value}"
    raise pytest.fail.Exception(said) from raised.value


async def expect_conflict(subject: Subject, adapter: Adapter, start: Start) -> None:
    """Expect that the key of this start is taken by an execution of another workflow or with another input."""
    verb = "find" if adapter.starts is StartGuarantee.FINDABLE else "start"
    advice = (
        f"{verb}() must raise StartConflict when the key belongs to an execution with another workflow or input: keep "
        "start.digest with the key, or ask the engine, and compare (functions: `same`), also after its end"
    )
    await expect(start_again(subject, adapter, start), StartConflict, advice=advice)


async def expect_not_found(call: Awaitable[object], verb: str, *, refused: bool = False) -> None:
    """Expect that the call finds no execution; `refused` if a definite no will do, too."""
    advice = f"{verb}() must raise ExecutionNotFound when there is no such execution"
    advice += ": ask the engine, even when there seems to be nothing to do" if refused else ""
    kinds = (ExecutionNotFound, EngineRefused) if refused else (ExecutionNotFound,)
    await expect(call, *kinds, advice=f"{advice} (the subject's unknown_handle: one that looks like yours, of nothing)")


async def look(subject: Subject, adapter: Adapter, ref: Ref) -> Execution:
    """Look once, within the time for one look; a blocked event loop counts, too."""
    began, seen = anyio.current_time(), None
    with anyio.move_on_after(subject.glance):
        seen = await adapter.describe(ref)
    if seen is None or anyio.current_time() - began > subject.glance:
        pytest.fail(
            f"describe() took more than {subject.glance:g} s: it is one look, and waits for nothing, neither for the "
            "end of the execution nor for a worker"
        )
    return seen


async def until(subject: Subject, adapter: Adapter, ref: Ref, wanted: Callable[[Execution], bool]) -> Execution:
    """Look until it is as wanted; fails with the last look after `subject.patience` seconds."""
    seen = await look(subject, adapter, ref)
    with anyio.move_on_after(subject.patience):
        while not wanted(seen):
            await anyio.sleep(0.05)  # an engine far away sets no event of ours
            seen = await look(subject, adapter, ref)
        return seen
    pytest.fail(f"not seen within {subject.patience} s; the last look: {seen}")


async def until_ended(subject: Subject, adapter: Adapter, ref: Ref) -> Execution:
    """Look until it has ended."""
    return await until(subject, adapter, ref, lambda seen: seen.terminal)


async def see_end(subject: Subject, adapter: Adapter, role: Role) -> Execution:
    """Return the last look at a new execution."""
    start = new_start(role)
    return await until_ended(subject, adapter, ref_of(start, await adapter.start(start)))


async def see_questions(subject: Subject, adapter: Adapter, role: Role | None) -> tuple[Ref, Execution]:
    """Return a new execution, and the look at it that shows its questions."""
    if role is None:
        pytest.skip("the subject has no workflow that asks this")
    start = new_start(role)
    ref = ref_of(start, await adapter.start(start))
    return ref, await until(subject, adapter, ref, lambda seen: seen.status is Status.INPUT_REQUIRED)


async def run_on(subject: Subject, adapter: Adapter) -> None:
    """Wait until an execution that is started now has ended: all that were started before it run by then.

    An engine that runs one at a time ends none meanwhile: then it has run for `patience` seconds.
    """
    start = new_start(subject.finishes)
    ref = ref_of(start, await adapter.start(start))
    with anyio.move_on_after(subject.patience):
        seen = await look(subject, adapter, ref)
        while not seen.terminal:
            await anyio.sleep(0.05)
            seen = await look(subject, adapter, ref)


@asynccontextmanager
async def cancelled_afterwards(
    subject: Subject, adapter: Adapter, start: Start, *, again: bool = False
) -> AsyncGenerator[Ref]:
    """Start an execution that is cancelled in the end; `again` if it may have been started before."""
    ref = ref_of(start, await (start_again(subject, adapter, start) if again else adapter.start(start)))
    try:
        yield ref
    finally:
        await adapter.cancel(ref)
        await until_ended(subject, adapter, ref)


async def one_left(subject: Subject, adapter: Adapter, start: Start, handles: Collection[str]) -> str:
    """Return the handle of the only execution under this key that is not cancelled, once all others are.

    An adapter may show the execution that goes on in place of a cancelled one.
    """
    with anyio.move_on_after(subject.patience):
        while True:
            found = await start_again(subject, adapter, start)  # which cancels later ones, as they come to be seen
            others = [await adapter.describe(ref_of(start, handle)) for handle in handles if handle != found]
            over = [seen for seen in others if seen.execution_id != found]
            if all(seen.terminal for seen in over):
                assert {seen.status for seen in over} <= {Status.CANCELLED}
                return found
            await anyio.sleep(0.05)
    pytest.fail(f"within {subject.patience} s find() has not cancelled all later executions under one key")


def unreachable(subject: Subject) -> Adapter:
    """Return an adapter, not entered, of an engine that is not there."""
    if subject.unreachable is None:
        pytest.skip("the subject has no unreachable engine")
    return subject.unreachable()


def only_if(adapter: Adapter, guarantees: frozenset[StartGuarantee]) -> None:
    """Skip what an engine of another guarantee does not promise."""
    if adapter.starts not in guarantees:
        pytest.skip(f"an engine that starts {adapter.starts.value!r} promises nothing about this")


def assert_clean(subject: Subject, text: str) -> None:
    """Assert that there is a text, with no stack trace and no secret in it."""
    assert text
    assert not [trace for trace in STACK_TRACES if trace in text]
    assert subject.secret is None or subject.secret not in text
