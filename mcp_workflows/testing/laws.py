"""The laws of the boundary as functions, for the tests of `AdapterContract` and for `mcp-workflows check --live`.

A broken law raises `LawBroken`; a law that cannot be tested here raises `NotTried`. Needs no pytest.
"""

from __future__ import annotations

import time
import unittest
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial, wraps
from itertools import pairwise
from typing import Final, TypeAlias, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

from mcp_workflows.adapter.boundary import JSON, Adapter, Execution, Ref, Start, StartGuarantee, Status
from mcp_workflows.adapter.capabilities import Finds, Fixtures, MessageRole, Role
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound, StartConflict

STACK_TRACES: Final = ("Traceback (most recent call last)", 'File "', "\n    at ")
_FIRST_PAUSE: Final = 0.05  # seconds
_LONGEST_PAUSE: Final = 1.0
_POLLS: Final = 3  # one poll that does not block is enough
_LONGEST_BLOCK: Final = 1.0  # seconds
_TIMEOUT: Final = 30.0  # until an execution has reached the expected state

KEYED_OR_FINDABLE: Final = frozenset({StartGuarantee.KEYED, StartGuarantee.FINDABLE})
FINDABLE: Final = frozenset({StartGuarantee.FINDABLE})


class LawBroken(AssertionError):  # noqa: N818  # an outcome, not a defect
    """The adapter or its engine breaks a law; the message has the actual behaviour."""


class NotTried(unittest.SkipTest):  # an outcome; test runners know its base class
    """A law cannot be tested here; the message has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject(Fixtures):
    """The subject of the tests: a factory of adapters, and the workflows for the roles."""

    new_adapter: Callable[[], Adapter]  # not entered; all in one test use the same engine
    unreachable: Callable[[], Adapter] | None = None  # an adapter of an unreachable engine
    secret: str | None = None  # in the settings of `unreachable`: must appear in no message
    losing_replies: Callable[[Adapter], AbstractAsyncContextManager[None]] | None = None  # gets the adapter that starts
    timeout: float = 30  # seconds until an expected event must have happened
    call_timeout: float = 10  # maximum seconds of one call


class _Unknown:
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


UNKNOWN: Final = _Unknown()
"""In a subject: an unpredictable `output`, or unknown `other_arguments`."""

PARTS: Final[Mapping[str, str]] = {
    "asks": "no workflow is known that asks this",
    "asks_two": "no workflow is known that asks this",
    "has_stopped": "the subject cannot tell whether the engine still works",
    "losing_replies": "the subject cannot lose a reply",
    "other_arguments": "no other input is known",
    "refused": "nothing is known that this engine refuses to start",
    "unreachable": "the subject has no unreachable engine",
}
"""The optional parts of a subject, with the reason for not testing a law without each."""

Law: TypeAlias = Callable[[Subject, Adapter], Coroutine[None, None, None]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The conditions for a law."""

    starts: frozenset[StartGuarantee] = frozenset(StartGuarantee)
    parts: tuple[str, ...] = ()  # of the subject: names in `PARTS`
    capability: type | None = None  # the protocol that the adapter or its tooling must implement

    def __call__(self, law: Law) -> Law:
        """Return the law, which raises `NotTried` without its conditions; decorates the functions below."""

        @wraps(law)
        async def tried(subject: Subject, adapter: Adapter) -> None:
            if adapter.starts not in self.starts:
                raise NotTried(f"an engine that starts {adapter.starts.value!r} promises nothing about this")
            if missing := absent_parts(subject).intersection(self.parts):
                raise NotTried(PARTS[min(missing)])
            await law(subject, adapter)

        NEEDS[tried] = self
        return tried


NEEDS: Final[dict[Law, Needs]] = {}
"""The conditions of each law, in the order of definition."""


def absent_parts(subject: Subject) -> frozenset[str]:
    """Return the names of the parts that the subject omits."""
    return frozenset(name for name in PARTS if _is_absent(getattr(subject, name)))


def _is_absent(part: object) -> bool:
    return part is None or part is UNKNOWN


def until_found(poll: Callable[[], T | None], what: str, timeout: float = _TIMEOUT) -> T:
    """Poll in a worker thread until there is a value, and return it; `timeout` in seconds.

    Raises:
        NotTried: there was none in time.
    """
    deadline = time.monotonic() + timeout
    while (found := poll()) is None:
        anyio.from_thread.check_cancelled()
        if time.monotonic() > deadline:
            raise NotTried(f"not seen within {timeout:g} s: {what}")
        time.sleep(0.1)
    return found


def new_start(role: Role) -> Start:
    """Return a start with a unique key.

    Raises:
        NotTried: no workflow has this role.
    """
    if role.missing is not None:
        raise NotTried(role.missing)
    return Start(
        workflow=role.workflow,
        arguments=role.arguments,
        key=f"contract-{uuid.uuid4().hex}",
        created=datetime.now(UTC),
        options=role.options,
    )


async def start_again(subject: Subject, adapter: Adapter, start: Start) -> str:
    """Return the handle of a start that may have happened before, as the core gets it: see `StartGuarantee`.

    KEYED starts again. FINDABLE searches until the execution is visible; nothing is started twice.
    """
    if adapter.starts is not StartGuarantee.FINDABLE:
        return await adapter.start(start)
    with anyio.move_on_after(subject.timeout):
        for pause in _pauses():
            if (handle := await finder(adapter).find(start)) is not None:
                return handle
            await anyio.sleep(pause)  # a list may lag behind
    raise LawBroken(f"find() does not see within {subject.timeout} s what was started under this key")


def _pauses() -> Iterator[float]:
    """Yield the seconds before the next poll, increasingly long: an engine may have a rate limit."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * 1.25, _LONGEST_PAUSE)


def finder(adapter: Adapter) -> Finds:
    """Return the adapter as one that can find an execution by its key, which FINDABLE requires."""
    if not isinstance(adapter, Finds):
        raise LawBroken("`starts` says FINDABLE: write find() and settling, or say ONCE")
    return adapter


def ref_of(start: Start, handle: str) -> Ref:
    """Return the execution of this start."""
    return Ref(workflow=start.workflow, handle=handle, options=start.options)


def accepted(subject: Subject) -> JSON:
    """Return the response that accepts a question."""
    return {"action": "accept", "content": subject.content}


def hold(condition: bool, text: str) -> None:
    """Raise `LawBroken` with this text unless the condition is true."""
    if not condition:
        raise LawBroken(text)


async def expect(call: Awaitable[object], *kinds: type[EngineError], advice: str) -> EngineError:
    """Return the error of the call, which must be one of these kinds; otherwise raise `LawBroken` with the advice."""
    try:
        result = await call
    except kinds as expected:
        return expected
    except Exception as error:  # an adapter may raise anything
        raise LawBroken(f"{advice}; it raised {type(error).__name__}: {error}") from error
    raise LawBroken(f"{advice}; it returned {result!r}")


async def expect_conflict(subject: Subject, adapter: Adapter, start: Start) -> None:
    """Expect that the key of this start belongs to an execution of another workflow or with another input."""
    verb = "find" if adapter.starts is StartGuarantee.FINDABLE else "start"
    advice = (
        f"{verb}() must raise StartConflict when the key belongs to an execution with another workflow or input: keep "
        "start.digest with the key, or ask the engine, and compare, also after its end (`same`; over http: `conflict`)"
    )
    await expect(start_again(subject, adapter, start), StartConflict, advice=advice)


async def expect_not_found(call: Awaitable[object], verb: str, *, refused: bool = False) -> None:
    """Expect that the call finds no execution; with `refused`, a refusal is fine, too."""
    advice = f"{verb}() must raise ExecutionNotFound when there is no such execution"
    advice += ": ask the engine, even when there seems to be nothing to do" if refused else ""
    kinds = (ExecutionNotFound, EngineRefused) if refused else (ExecutionNotFound,)
    await expect(call, *kinds, advice=f"{advice} (the subject's unknown_handle: one that looks like yours, of nothing)")


async def poll(subject: Subject, adapter: Adapter, ref: Ref) -> Execution:
    """Poll once, within the time limit of one call; a blocked event loop counts, too."""
    began, seen = anyio.current_time(), None
    with anyio.move_on_after(subject.call_timeout):
        seen = await adapter.describe(ref)
    if seen is None or anyio.current_time() - began > subject.call_timeout:
        raise LawBroken(
            f"describe() took more than {subject.call_timeout:g} s: it is one poll, and waits for nothing, neither for "
            "the end of the execution nor for a worker"
        )
    return seen


async def until(subject: Subject, adapter: Adapter, ref: Ref, wanted: Callable[[Execution], bool]) -> Execution:
    """Poll until the condition holds; the law is broken after `subject.timeout` seconds.

    A poll without a reply is repeated, as in the poller; the last error is raised.
    """
    last: Execution | EngineUnavailable | None = None
    with anyio.move_on_after(subject.timeout):
        for pause in _pauses():
            try:
                if wanted(last := await poll(subject, adapter, ref)):
                    return last
            except EngineUnavailable as error:
                last = error
            await anyio.sleep(pause)  # a remote engine sets no event of ours
    if isinstance(last, EngineUnavailable):
        raise last
    raise LawBroken(f"not seen within {subject.timeout} s; the last poll: {last}")


async def until_ended(subject: Subject, adapter: Adapter, ref: Ref) -> Execution:
    """Poll until the execution has ended."""
    return await until(subject, adapter, ref, lambda seen: seen.terminal)


async def see_end(subject: Subject, adapter: Adapter, role: Role) -> Execution:
    """Return the last poll of a new execution."""
    start = new_start(role)
    return await until_ended(subject, adapter, ref_of(start, await adapter.start(start)))


async def see_questions(subject: Subject, adapter: Adapter, role: Role | None) -> tuple[Ref, Execution]:
    """Return a new execution, with the poll that shows its questions."""
    assert role is not None, "the law needs this part of the subject"
    start = new_start(role)
    ref = ref_of(start, await adapter.start(start))
    return ref, await until(subject, adapter, ref, lambda seen: seen.status is Status.INPUT_REQUIRED)


async def run_on(subject: Subject, adapter: Adapter) -> None:
    """Wait until an execution started now has ended; by then, all earlier ones run.

    An engine that runs one at a time ends none in the meantime; then wait for `timeout` seconds.
    """
    start = new_start(subject.finishes)
    ref = ref_of(start, await adapter.start(start))
    with anyio.move_on_after(subject.timeout):
        for pause in _pauses():
            if (await poll(subject, adapter, ref)).terminal:
                return
            await anyio.sleep(pause)


@asynccontextmanager
async def cancelled_afterwards(
    subject: Subject, adapter: Adapter, start: Start, *, again: bool = False
) -> AsyncGenerator[Ref]:
    """Start an execution and cancel it in the end; `again` if it may have been started before."""
    ref = ref_of(start, await (start_again(subject, adapter, start) if again else adapter.start(start)))
    try:
        yield ref
    finally:
        await adapter.cancel(ref)
        await until_ended(subject, adapter, ref)


async def one_left(subject: Subject, adapter: Adapter, start: Start, handles: Collection[str]) -> str:
    """Return the handle of the only execution with this key that is not cancelled, once all others are.

    An adapter may show the continuing execution instead of a cancelled one.
    """
    with anyio.move_on_after(subject.timeout):
        for pause in _pauses():
            found = await start_again(subject, adapter, start)  # cancels later ones once they are visible
            others = [await adapter.describe(ref_of(start, handle)) for handle in handles if handle != found]
            over = [seen for seen in others if seen.execution_id != found]
            if all(seen.terminal for seen in over):
                ended = {seen.status.value for seen in over}
                hold(ended <= {Status.CANCELLED}, f"later executions under one key must be cancelled: {ended}")
                return found
            await anyio.sleep(pause)
    raise LawBroken(f"within {subject.timeout} s find() has not cancelled all later executions under one key")


def assert_clean(subject: Subject, text: str) -> None:
    """Check that there is a text without stack trace or secret."""
    hold(bool(text), "there must be a text")
    hold(not _traces(text), f"a stack trace crossed the boundary: {text}")
    hold(subject.secret is None or subject.secret not in text, "a secret of the settings crossed the boundary")


def _traces(text: str) -> Sequence[str]:
    return [trace for trace in STACK_TRACES if trace in text]


def _succeeded_as(subject: Subject, ended: Execution, *, how: str = "") -> None:
    right = ended.status is Status.SUCCEEDED and ended.failure is None and ended.output == subject.output
    hold(right, f"{how}it must succeed with {subject.output!r}; describe() said {ended}")


def _unchanged(before: Execution, now: Execution, after: str) -> None:
    hold(before == now, f"a terminal answer never changes; after {after} it was {now}, before {before}")


# --- start


@Needs(starts=KEYED_OR_FINDABLE)
async def starting_twice_with_one_key_is_starting_once(subject: Subject, adapter: Adapter) -> None:
    """One key starts one execution."""
    start = new_start(subject.endless)
    async with cancelled_afterwards(subject, adapter, start) as ref:
        again = await start_again(subject, adapter, start)
        hold(again == ref.handle, f"the same key gave another execution: {again}, not {ref.handle}")


@Needs(starts=KEYED_OR_FINDABLE)
async def starting_again_after_it_ended_starts_nothing(subject: Subject, adapter: Adapter) -> None:
    """One key starts one execution, even after it ended."""
    start = new_start(subject.finishes)
    ref = ref_of(start, await adapter.start(start))
    ended = await until_ended(subject, adapter, ref)
    again = await start_again(subject, adapter, start)
    hold(again == ref.handle, f"the same key gave another execution: {again}, not {ref.handle}")
    _unchanged(ended, await adapter.describe(ref), "another start")


@Needs(parts=("losing_replies",))
async def a_start_whose_reply_was_lost_is_found_again(subject: Subject, adapter: Adapter) -> None:
    """One key starts one execution, even when the reply was lost."""
    assert subject.losing_replies is not None
    start = new_start(subject.finishes)
    async with subject.losing_replies(adapter):
        advice = "start() must raise EngineUnavailable when no reply comes (if it came: `losing_replies` lost none)"
        lost = await expect(adapter.start(start), EngineUnavailable, advice=advice)
    sent = isinstance(lost, EngineUnavailable) and lost.sent
    hold(sent, "EngineUnavailable(sent=False) is a promise that nothing was started: this may have been")
    if adapter.starts is StartGuarantee.ONCE:
        return  # whether it was started stays unknown
    if subject.other_arguments is not UNKNOWN:
        taken = replace(start, arguments=subject.other_arguments)
        await expect_conflict(subject, adapter, taken)  # so the lost start is the one found below
    handle = await start_again(subject, adapter, start)
    again = await start_again(subject, adapter, start)
    hold(again == handle, f"the same key gave two executions: {handle} and {again}")
    _succeeded_as(subject, await until_ended(subject, adapter, ref_of(start, handle)))


@Needs(starts=KEYED_OR_FINDABLE)
async def starting_at_once_from_two_replicas_leaves_one_execution(subject: Subject, adapter: Adapter) -> None:
    """Starts at the same moment under one key leave one execution."""
    start = new_start(subject.endless)
    handles: list[str] = []
    refused: list[EngineError] = []
    async with subject.new_adapter() as other:

        async def begin(one: Adapter) -> None:
            try:
                handles.append(await one.start(start))
            except EngineError as error:
                refused.append(error)  # a group of ten has no more information than the first

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(begin, (adapter, other)[number % 2])
    hold(not refused, f"{len(refused)} of 10 starts under one key: {refused[:1]}")
    if adapter.starts is StartGuarantee.FINDABLE:
        left = await one_left(subject, adapter, start, handles)
        hold(left in handles, f"find() found an execution that none of these calls started: {left}")
    async with cancelled_afterwards(subject, adapter, start, again=True) as ref:
        keyed = adapter.starts is StartGuarantee.KEYED
        hold(not keyed or set(handles) == {ref.handle}, f"one key started {len(set(handles))} executions")
        seen = await adapter.describe(ref)
        hold(seen.status is Status.RUNNING, f"the execution that is left must run: {seen}")


@Needs(starts=FINDABLE)
async def of_two_started_one_after_the_other_the_first_goes_on(subject: Subject, adapter: Adapter) -> None:
    """Of two executions under one key the first continues, and the second is cancelled."""
    start = new_start(subject.endless)
    async with cancelled_afterwards(subject, adapter, start) as first:
        second = await adapter.start(start)
        left = await one_left(subject, adapter, start, {first.handle, second})
        hold(left == first.handle, f"the oldest is adopted, which is {first.handle}; find() chose {left}")
        seen = await adapter.describe(first)
        hold(seen.status is Status.RUNNING, f"the first must go on: {seen}")


@Needs(starts=FINDABLE)
async def what_nobody_started_is_not_found_by_its_key(subject: Subject, adapter: Adapter) -> None:
    """A search for a key sees the executions of this key only."""
    finding, start = finder(adapter), new_start(subject.endless)
    async with cancelled_afterwards(subject, adapter, start):
        await start_again(subject, adapter, start)  # so others would be visible, too
        found = await finding.find(new_start(subject.endless))
        hold(found is None, f"find() must return None for a key that nobody used; it returned {found!r}")


@Needs(starts=KEYED_OR_FINDABLE, parts=("other_arguments",))
async def another_input_under_the_same_key_is_refused(subject: Subject, adapter: Adapter) -> None:
    """Another input under the same key is refused."""
    start = new_start(subject.finishes)
    ref = ref_of(start, await adapter.start(start))
    await expect_conflict(subject, adapter, replace(start, arguments=subject.other_arguments))
    _succeeded_as(subject, await until_ended(subject, adapter, ref))


@Needs(starts=KEYED_OR_FINDABLE)
async def another_workflow_under_the_same_key_is_refused(subject: Subject, adapter: Adapter) -> None:
    """Another workflow under the same key is refused."""
    start, other = new_start(subject.finishes), new_start(subject.fails)
    await adapter.start(start)
    await expect_conflict(subject, adapter, replace(other, key=start.key))


@Needs(parts=("refused",))
async def a_start_that_the_engine_refuses_is_a_definite_no(subject: Subject, adapter: Adapter) -> None:
    """A start that the engine refuses is a definite no, with a reason."""
    assert subject.refused is not None
    advice = "start() must raise EngineRefused when the engine says no (a 4xx): anything else is tried again and again"
    refused = await expect(adapter.start(new_start(subject.refused)), EngineRefused, advice=advice)
    assert_clean(subject, str(refused))


@Needs()
async def another_key_is_another_execution(subject: Subject, adapter: Adapter) -> None:
    """Another key starts another execution."""
    one, other = new_start(subject.finishes), new_start(subject.finishes)
    handles = [await adapter.start(each) for each in (one, other)]
    hold(handles[0] != handles[1], f"two keys gave one execution: {handles[0]}")


@Needs()
async def a_handle_survives_our_restart(subject: Subject, adapter: Adapter) -> None:
    """A handle can be stored, and is good after a restart."""
    start = new_start(subject.finishes)
    async with subject.new_adapter() as before:
        handle = await before.start(start)
    hold(type(handle) is str and handle != "", f"the handle that start() returns is a text, not {handle!r}")
    async with subject.new_adapter() as after:
        _succeeded_as(subject, await until_ended(subject, after, ref_of(start, handle)))


# --- describe


@Needs()
async def a_poll_of_a_running_execution_never_waits(subject: Subject, adapter: Adapter) -> None:
    """A poll of a running execution never waits, and has nothing that belongs to its end."""
    async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
        polls = [await poll(subject, adapter, ref)]  # possibly before it runs
        await run_on(subject, adapter)
        polls += [await poll(subject, adapter, ref) for _ in range(2)]
    for seen in polls:
        runs = seen.status is Status.RUNNING and seen.output is None and seen.failure is None and not seen.requests
        hold(runs, f"a running execution has neither an end nor a question: {seen}")
        hold(bool(seen.execution_id), "describe() says execution_id: what a person types into the engine's own page")


@Needs()
async def a_poll_does_not_block_the_event_loop(subject: Subject, adapter: Adapter) -> None:
    """A poll leaves the event loop to others: a blocking call belongs in a thread."""
    blocked: list[float] = []
    async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
        for _ in range(_POLLS):
            ticks = [anyio.current_time()]
            async with anyio.create_task_group() as group:
                group.start_soon(_tick, ticks)
                await anyio.lowlevel.checkpoint()
                await poll(subject, adapter, ref)
                await anyio.sleep(_FIRST_PAUSE)
                group.cancel_scope.cancel()
            blocked.append(max(after - before for before, after in pairwise(ticks)))
    least = min(blocked)  # a busy machine delays some polls, a blocking adapter all
    hold(least < _LONGEST_BLOCK, f"describe() kept the event loop for {least:.1f} s: call what blocks in a thread")


async def _tick(ticks: list[float]) -> None:
    while True:
        await anyio.sleep(_FIRST_PAUSE / 2)
        ticks.append(anyio.current_time())


@Needs()
async def the_output_is_there_when_it_has_succeeded(subject: Subject, adapter: Adapter) -> None:
    """The output comes across when the execution has succeeded."""
    _succeeded_as(subject, await see_end(subject, adapter, subject.finishes))


@Needs()
async def a_failure_says_why_without_a_stack_trace(subject: Subject, adapter: Adapter) -> None:
    """A failure says why, without a stack trace."""
    seen = await see_end(subject, adapter, subject.fails)
    failure = seen.failure
    hold(seen.status is Status.FAILED and failure is not None, f"it must have failed, with a failure: {seen}")
    if failure is not None:
        hold(subject.failure in failure.text, f"{subject.failure!r} must be in the text of the failure: {failure}")
        hold(not _traces(f"{failure}{seen.message}"), f"a stack trace crossed the boundary: {failure}")


@Needs()
async def a_terminal_answer_never_changes(subject: Subject, adapter: Adapter) -> None:
    """A terminal answer never changes, after any call and for any replica."""
    for role in (subject.finishes, subject.fails):
        start = new_start(role)
        ref = ref_of(start, await adapter.start(start))
        ended = await until_ended(subject, adapter, ref)
        await adapter.cancel(ref)
        await adapter.answer(ref, {"late": accepted(subject)})
        _unchanged(ended, await adapter.describe(ref), "cancel() and answer()")
        async with subject.new_adapter() as other:
            _unchanged(ended, await other.describe(ref), "a restart")


@Needs()
async def an_execution_nobody_started_is_not_found(subject: Subject, adapter: Adapter) -> None:
    """An execution that nobody started is not found; cancel and answer may refuse."""
    ref = Ref(workflow=subject.finishes.workflow, handle=subject.unknown_handle, options=dict(subject.finishes.options))
    await expect_not_found(adapter.describe(ref), "describe")
    await expect_not_found(adapter.cancel(ref), "cancel", refused=True)
    await expect_not_found(adapter.answer(ref, {"question": accepted(subject)}), "answer", refused=True)


# --- answer


@Needs(parts=("asks",))
async def an_answer_lets_it_go_on(subject: Subject, adapter: Adapter) -> None:
    """An answer arrives once, and lets the execution go on; sent again it is ignored."""
    ref, seen = await see_questions(subject, adapter, subject.asks)
    (key, request), *more = seen.requests.items()
    hold(not more, f"one question is expected: {sorted(seen.requests)}")
    spoken = request.method == "elicitation/create" and {"message", "requestedSchema"} <= set(request.params)
    hold(spoken, f"a question is in the method and params of MCP's elicitation: {request}")
    await adapter.answer(ref, {key: accepted(subject)})
    ended = await until_ended(subject, adapter, ref)
    hold(ended.status is Status.SUCCEEDED, f"the answer lets it go on, and succeed: {ended}")
    await adapter.answer(ref, {key: {"action": "decline"}})  # a host may send it again: ignored, not refused
    _unchanged(ended, await adapter.describe(ref), "the same answer once more")


@Needs(parts=("asks",))
async def an_answer_to_an_unknown_question_is_ignored(subject: Subject, adapter: Adapter) -> None:
    """An answer to an unknown question is ignored."""
    ref, seen = await see_questions(subject, adapter, subject.asks)
    await adapter.answer(ref, {"nobody-asked": accepted(subject)})
    still = await adapter.describe(ref)
    waits = (still.status, still.requests) == (Status.INPUT_REQUIRED, seen.requests)
    hold(waits, f"the question must stay open: {still}")
    await adapter.answer(ref, {"nobody-asked": accepted(subject)} | {key: accepted(subject) for key in seen.requests})
    ended = await until_ended(subject, adapter, ref)
    hold(ended.status is Status.SUCCEEDED, f"the known answer counts beside the unknown one: {ended}")


@Needs(parts=("asks_two",))
async def some_of_the_questions_can_be_answered_first(subject: Subject, adapter: Adapter) -> None:
    """Some of the open questions can be answered first; a key is never used again."""
    ref, _ = await see_questions(subject, adapter, subject.asks_two)
    seen = await until(subject, adapter, ref, lambda now: len(now.requests) > 1)  # they may appear one by one
    first, second = seen.requests
    await adapter.answer(ref, {first: accepted(subject)})
    left = await until(subject, adapter, ref, lambda now: first not in now.requests)
    waits = (left.status, set(left.requests)) == (Status.INPUT_REQUIRED, {second})
    hold(waits, f"the other question must stay open: {left}")
    await adapter.answer(ref, {first: {"action": "decline"}})
    still = set((await adapter.describe(ref)).requests)
    hold(still == {second}, f"an answered question was answered again, and now open are {sorted(still)}")
    await adapter.answer(ref, {second: accepted(subject)})
    ended = await until(subject, adapter, ref, lambda now: now.terminal or first in now.requests)
    hold(ended.status is Status.SUCCEEDED, f"with both answers it must succeed: {ended}")


@Needs(parts=("asks",))
async def a_question_is_answered_after_our_restart(subject: Subject, adapter: Adapter) -> None:
    """A question is answered by another replica, or after a restart."""
    ref, seen = await see_questions(subject, adapter, subject.asks)
    async with subject.new_adapter() as other:
        asked = (await other.describe(ref)).requests
        hold(asked == seen.requests, f"another replica must see the same questions: {asked}, not {seen.requests}")
        await other.answer(ref, {key: accepted(subject) for key in seen.requests})
        ended = await until_ended(subject, other, ref)
        hold(ended.status is Status.SUCCEEDED, f"the answer of another replica lets it go on: {ended}")


@Needs(parts=("asks",))
async def a_declined_question_is_not_delivered_as_accepted(subject: Subject, adapter: Adapter) -> None:
    """A declined question is not delivered as accepted; the outcome of `asks` must show which it was."""
    ref, seen = await see_questions(subject, adapter, subject.asks)
    agreed = await _answered(subject, adapter, ref, seen, accepted(subject))
    ref, seen = await see_questions(subject, adapter, subject.asks)
    try:
        declined = await _answered(subject, adapter, ref, seen, {"action": "decline"})
    except EngineRefused:
        return  # it cannot be declined, and reports that
    same = (declined.status, declined.output) == (agreed.status, agreed.output)
    hold(not same, f"a declined question was delivered as an accepted one: both ended as {declined}")


@Needs(parts=("asks_two",))
async def a_later_answer_does_not_replace_the_first(subject: Subject, adapter: Adapter) -> None:
    """The first answer counts, also while another question keeps the execution waiting."""
    outputs: list[JSON] = []
    for later in (accepted(subject), {"action": "decline"}):
        ref, _ = await see_questions(subject, adapter, subject.asks_two)
        seen = await until(subject, adapter, ref, lambda now: len(now.requests) > 1)
        first, second = seen.requests
        await adapter.answer(ref, {first: accepted(subject)})
        await until(subject, adapter, ref, partial(_is_answered, first))
        await adapter.answer(ref, {first: later})
        await adapter.answer(ref, {second: accepted(subject)})
        outputs.append((await until_ended(subject, adapter, ref)).output)
    hold(outputs[0] == outputs[1], f"a later answer replaced the first: {outputs[1]}, without it {outputs[0]}")


def _is_answered(key: str, seen: Execution) -> bool:
    return key not in seen.requests


async def _answered(subject: Subject, adapter: Adapter, ref: Ref, seen: Execution, response: JSON) -> Execution:
    await adapter.answer(ref, dict.fromkeys(seen.requests, response))
    return await until_ended(subject, adapter, ref)


# --- cancel


@Needs()
async def a_running_execution_can_be_cancelled(subject: Subject, adapter: Adapter) -> None:
    """A running execution can be cancelled; to ask twice is to ask once."""
    start = new_start(subject.endless)
    ref = ref_of(start, await adapter.start(start))
    await adapter.cancel(ref)
    await adapter.cancel(ref)
    ended = await until_ended(subject, adapter, ref)
    hold((ended.status, ended.output) == (Status.CANCELLED, None), f"it must end as cancelled: {ended}")


@Needs(parts=("has_stopped",))
async def a_cancel_stops_the_work(subject: Subject, adapter: Adapter) -> None:
    """A cancellation stops the work itself, and does not only change the status."""
    assert subject.has_stopped is not None
    start = new_start(subject.endless)
    ref = ref_of(start, await adapter.start(start))
    await adapter.cancel(ref)
    await until_ended(subject, adapter, ref)
    with anyio.move_on_after(subject.timeout):
        for pause in _pauses():
            if await subject.has_stopped(ref):
                return
            await anyio.sleep(pause)
    raise LawBroken("it ended as cancelled, and the engine still works on it: cancel() must reach the engine")


@Needs(parts=("asks",))
async def an_execution_that_waits_for_an_answer_can_be_cancelled(subject: Subject, adapter: Adapter) -> None:
    """An execution that waits for an answer can be cancelled, and then asks nothing."""
    ref, _ = await see_questions(subject, adapter, subject.asks)
    await adapter.cancel(ref)
    ended = await until_ended(subject, adapter, ref)
    hold((ended.status, dict(ended.requests)) == (Status.CANCELLED, {}), f"it must end as cancelled: {ended}")


# --- messages


@Needs(capability=MessageRole)
async def a_message_sent_twice_under_its_key_is_delivered_once(subject: Subject, adapter: Adapter) -> None:
    """A message that is sent twice under its key is delivered once; to cancel it does not cancel its execution."""
    role = _message_role(subject)
    if adapter.promise(role.settings) is not StartGuarantee.KEYED:
        raise NotTried("this engine does not promise that a repeated message is delivered once")
    async with cancelled_afterwards(subject, adapter, new_start(role.receiver)) as ref:
        first, last = _new_message(role, ref.handle, "first"), _new_message(role, ref.handle, "last")
        sent = [ref_of(first, await adapter.start(first)) for _ in range(2)]
        async with subject.new_adapter() as other:
            await other.start(first)
        for each in (*sent, ref_of(last, await adapter.start(last))):
            ended = await until_ended(subject, adapter, each)
            hold(ended.status is Status.SUCCEEDED, f"describe() must say that the message was sent: {ended}")
            with suppress(EngineRefused):
                await adapter.cancel(each)
        received: Sequence[JSON] = ()
        with anyio.move_on_after(subject.timeout):
            for pause in _pauses():
                if "last" in (received := await role.received(adapter, ref)):
                    break
                await anyio.sleep(pause)  # the execution processes them at its own pace
        once = sorted(received) == ["first", "last"]
        hold(once, f"'first' was sent three times under one key, then 'last'; what arrived is {received}")
        seen = await adapter.describe(ref)
        hold(seen.status is Status.RUNNING, f"cancel() of a message must leave its execution alone: {seen}")


@Needs(capability=MessageRole)
async def a_message_to_an_execution_that_is_not_there_is_refused(subject: Subject, adapter: Adapter) -> None:
    """A message to an execution that is not there is a definite no."""
    message = _new_message(_message_role(subject), subject.unknown_handle, "first")
    advice = "start() must raise EngineRefused for a message to an execution that the engine does not know"
    await expect(adapter.start(message), EngineRefused, advice=advice)


def _message_role(subject: Subject) -> MessageRole:
    if subject.messages is None:
        raise NotTried("no workflow is known that takes messages")
    return subject.messages


def _new_message(role: MessageRole, target: str, text: str) -> Start:
    sent = new_start(Role(workflow="message", arguments=[text], options=role.settings))
    return replace(sent, target=target)


LAWS: Final[Sequence[Law]] = tuple(NEEDS)
"""The laws that can be tested on any engine, in the order of the verbs."""
