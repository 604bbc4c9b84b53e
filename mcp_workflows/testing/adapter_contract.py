"""AdapterContract: the laws of the boundary as tests. A class gets the tests of the laws that apply to it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, Final

import anyio
import pytest
from jsonschema_rs import Draft202012Validator
from pydantic import BaseModel

from mcp_workflows.adapter import (
    Adapter,
    Adopts,
    Allowance,
    DescribesMany,
    EndedExecution,
    Execution,
    Finds,
    HasLogs,
    Hints,
    Limited,
    ListsEnded,
    MessageRole,
    Ref,
    Routes,
    SharedSecret,
    StartGuarantee,
    Status,
    Terminates,
    Waits,
)
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.kit.tooling import Checks, Explains, Exposes, expose_every
from mcp_workflows.testing.laws import (
    FINDABLE,
    NEEDS,
    PARTS,
    STACK_TRACES,
    Law,
    Needs,
    Subject,
    absent_parts,
    accepted,
    assert_clean,
    cancelled_afterwards,
    expect_not_found,
    finder,
    new_start,
    ref_of,
    see_questions,
    until_ended,
)

MAX_LOG = 65_536  # bytes
ROUTE = re.compile(r"[A-Za-z0-9_-]{1,64}")
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class AdapterContract:
    """Test an adapter: subclass this in a test module, declare its properties, and override the fixture `subject`.

    ```python
    from mcp_workflows.adapter import StartGuarantee, Terminates
    from mcp_workflows.testing import AdapterContract, Role, Subject

    class TestMyAdapter(AdapterContract):
        starts = StartGuarantee.KEYED
        capabilities = frozenset({Terminates})
        lacks = frozenset({"has_stopped", "losing_replies"})

        @pytest.fixture
        def subject(self, my_engine: str) -> Subject:
            return Subject(
                new_adapter=lambda: MyAdapter(MyAdapter.Settings(address=my_engine)),
                finishes=Role(workflow="Echo", arguments=[{"text": "hi"}]),
                output={"text": "hi"},
                other_arguments=[{"text": "ho"}],
                fails=Role(workflow="Decline"),
                failure="card declined",
                endless=Role(workflow="Forever"),
                asks=Role(workflow="Approve"),
                asks_two=Role(workflow="ApproveTwice"),
                content={"answer": "yes"},
                refused=Role(workflow="NobodyWroteThis"),
                unreachable=lambda: MyAdapter(MyAdapter.Settings(address="127.0.0.1:1", api_key="s3cret")),
                secret="s3cret",
            )
    ```
    The class attributes decide which laws become tests; none is skipped. A test compares them with the adapter and the
    subject. If the engine cannot keep a law, override that test and give the reason in its docstring:

    ```python
        async def test_another_input_under_the_same_key_is_refused(self, subject, adapter):
            '''MyEngine does not tell the input of an execution that has ended.'''
    ```
    `losing_replies(adapter)` is a context in which each reply of `start` is lost after it took effect, such as a proxy
    that cuts the connection, or a minimal time-out. An uncertain start is repeated with its key (KEYED) or searched for
    (FINDABLE), as in the core. Needs pytest; runs on asyncio.
    """

    starts: ClassVar[StartGuarantee] = StartGuarantee.KEYED
    capabilities: ClassVar[frozenset[type]] = frozenset()
    """The protocols with laws that the adapter or its tooling implements: `DescribesMany`, `Explains`.

    `MessageRole` stands for an adapter that sends messages; the subject then has `messages`.
    """
    untried: ClassVar[frozenset[type]] = frozenset()
    """Capabilities that cannot be tested on this subject; the class gives the reason in a comment."""
    lacks: ClassVar[frozenset[str]] = frozenset({"has_stopped"})
    """The optional parts that the subject omits: `asks`, `losing_replies` and others of `laws.PARTS`."""
    pytestmark: ClassVar[Sequence[pytest.MarkDecorator]] = [pytest.mark.anyio]

    def __init_subclass__(cls, **more: Any) -> None:  # Any: of other classes
        """Add the tests of the laws that apply to the class.

        An override in the class itself remains. An inherited one is removed if the law does not apply to the class.
        """
        super().__init_subclass__(**more)
        unknown = cls.lacks - PARTS.keys()
        assert not unknown, f"a subject has no optional part {sorted(unknown)}"
        for test, needs in TESTS.items():
            applies = (
                cls.starts in needs.starts
                and cls.lacks.isdisjoint(needs.parts)
                and (needs.capability is None or needs.capability in cls.capabilities - cls.untried)
            )
            is_overridden = getattr(cls, test.__name__, None) not in (test, None)
            is_concrete = "capabilities" in vars(cls)
            if is_overridden and (applies or test.__name__ in vars(cls) or not is_concrete):
                continue
            setattr(cls, test.__name__, test if applies else None)

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Return the only supported backend: asyncio."""
        return "asyncio"

    @pytest.fixture
    def subject(self) -> Subject:
        """Override: return the subject of the tests."""
        raise NotImplementedError("override the fixture `subject`")

    @pytest.fixture
    async def adapter(self, subject: Subject) -> AsyncIterator[Adapter]:
        """Yield one entered adapter."""
        async with subject.new_adapter() as adapter:
            yield adapter

    async def test_it_is_what_this_class_says(self, subject: Subject, adapter: Adapter) -> None:
        """Law: an adapter publishes two models, its guarantee and its capabilities; this class states the same."""
        assert issubclass(adapter.Settings, BaseModel)
        assert issubclass(adapter.Options, BaseModel)
        assert adapter.starts is self.starts, "state the guarantee of the adapter: `starts = ...`"
        assert isinstance(adapter, Finds) or self.starts is not StartGuarantee.FINDABLE, "FINDABLE: write find()"
        able = {each for each in CAPABILITIES if _has(adapter, each)}
        assert able == self.capabilities, f"state its capabilities: {sorted(each.__name__ for each in able)}"
        assert (subject.messages is not None) == (MessageRole in able - self.untried), "messages: see `MessageRole`"
        assert absent_parts(subject) == self.lacks, f"state the parts that it lacks: {sorted(absent_parts(subject))}"


def _has(adapter: Adapter, capability: type) -> bool:
    if capability is Exposes:
        return expose_every(adapter) is not None
    if capability is MessageRole:
        return adapter.ActionSettings is not None
    return isinstance(adapter, capability) or isinstance(adapter.tooling, capability)


# --- start


@Needs(starts=FINDABLE)
async def a_call_under_way_is_over_before_it_has_settled(subject: Subject, adapter: Adapter) -> None:
    """After `settling` the key is started again, so no earlier start can be under way then."""
    assert finder(adapter).settling.total_seconds() > subject.call_timeout, "shorter than one call may take"


# --- Terminates


@Needs(capability=Terminates)
async def a_running_execution_can_be_terminated(subject: Subject, adapter: Adapter) -> None:
    """An adapter that terminates ends an execution now, without asking; a no-op on an ended execution."""
    assert isinstance(adapter, Terminates)
    start = new_start(subject.endless)
    ref = ref_of(start, await adapter.start(start))
    await adapter.terminate(ref, "the contract's reason")
    ended = await until_ended(subject, adapter, ref)
    assert (ended.status, ended.output) == (Status.CANCELLED, None)
    await adapter.terminate(ref, "again")
    assert await adapter.describe(ref) == ended
    await expect_not_found(adapter.terminate(_nobodys(subject), "no reason"), "terminate")


# --- HasLogs


@Needs(capability=HasLogs)
async def a_log_is_a_text_that_tells_no_secret(subject: Subject, adapter: Adapter) -> None:
    """A log is the end of the log of a running or ended execution; empty: there is none yet."""
    assert isinstance(adapter, HasLogs)
    start = new_start(subject.finishes)
    ref = ref_of(start, await adapter.start(start))
    await adapter.log(ref)
    await until_ended(subject, adapter, ref)
    text = ""
    with anyio.move_on_after(subject.timeout):  # an engine may collect the lines after the end
        while not (text := await adapter.log(ref)):  # noqa: ASYNC110  # nothing reports new lines
            await anyio.sleep(0.2)
    assert len(text.encode()) <= MAX_LOG
    assert_clean(subject, text)
    await expect_not_found(adapter.log(_nobodys(subject)), "log")


# --- Routes


@Needs(capability=Routes)
async def a_route_has_an_address_and_trusts_somebody(subject: Subject, adapter: Adapter) -> None:
    """Paths are words, each once; all keys can be fetched, somebody is trusted; the same before it is open."""
    assert isinstance(adapter, Routes)
    routes = list(adapter.routes())
    paths = [route.path for route in routes]
    assert all(ROUTE.fullmatch(path) for path in paths)
    assert len(set(paths)) == len(paths)
    for trusted in {route.trusted for route in routes}:
        if isinstance(trusted, SharedSecret):
            assert trusted.secret
            continue
        assert trusted.keys_url.startswith(("https://", "http://"))
        assert trusted.issuer
        assert trusted.audience
        assert trusted.accounts
    closed = subject.new_adapter()
    assert isinstance(closed, Routes)
    assert [(route.path, route.trusted) for route in closed.routes()] == [
        (route.path, route.trusted) for route in routes
    ]


# --- Adopts


@Needs(capability=Adopts)
async def an_adopted_execution_is_the_one_its_id_names(subject: Subject, adapter: Adapter) -> None:
    """The `execution_id` that people see leads to the same execution, running or ended."""
    assert isinstance(adapter, Adopts)
    async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
        seen = await adapter.describe(ref)
        assert seen.execution_id
        adopted = await adapter.adopt(seen.execution_id)
        assert (adopted.workflow, dict(adopted.options)) == (ref.workflow, {})
        assert (await adapter.describe(adopted)).execution_id == seen.execution_id
    ended = await adapter.adopt(seen.execution_id)
    assert (await adapter.describe(ended)).status is Status.CANCELLED
    await expect_not_found(adapter.adopt(subject.unknown_handle), "adopt")


# --- ListsEnded


@Needs(capability=ListsEnded)
async def what_has_ended_is_listed_once_with_its_status(subject: Subject, adapter: Adapter) -> None:
    """Executions that ended at a time or later are listed, the earliest first; no others are."""
    assert isinstance(adapter, ListsEnded)
    since = datetime.now(UTC) - timedelta(minutes=1)  # the engine's clock may differ from ours
    async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as running:
        starts = [new_start(role) for role in (subject.fails, subject.finishes, subject.finishes)]
        refs = (ref_of(start, await adapter.start(start)) for start in starts)  # one after the other
        _, before, last = [await _see_listed(subject, adapter, ref, since) async for ref in refs]
        assert running.handle not in {each.handle for each in await adapter.list_ended(running.workflow, since)}
    await _see_listed(subject, adapter, running, since)
    later = await adapter.list_ended(subject.finishes.workflow, last.ended)
    assert last in later
    assert before not in later or before.ended == last.ended


async def _see_listed(subject: Subject, adapter: Adapter, ref: Ref, since: datetime) -> EndedExecution:
    """Return the execution once it has ended and is listed, as a list may lag behind."""
    assert isinstance(adapter, ListsEnded)
    ended, found = await until_ended(subject, adapter, ref), list[EndedExecution]()
    with anyio.fail_after(subject.timeout):
        while not found:
            page = await adapter.list_ended(ref.workflow, since)
            assert [each.ended for each in page] == sorted(each.ended for each in page if each.ended >= since)
            found = [each for each in page if each.handle == ref.handle]
            await anyio.sleep(0.05)
    assert [(each.status, each.execution_id) for each in found] == [(ended.status, ended.execution_id)]
    return found[0]


# --- Explains


@Needs(capability=Explains)
async def an_explanation_has_a_reason_in_a_sentence(subject: Subject, adapter: Adapter) -> None:
    """There is a reason, running or ended, and no stack trace in it."""
    tooling = adapter.tooling
    assert isinstance(tooling, Explains)
    async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
        running = await tooling.explain(ref)
    ended = await tooling.explain(ref)
    for found in (running, ended):
        assert found.reason
        assert "\n" not in found.reason
        assert not [trace for trace in STACK_TRACES if trace in str(found)]
    await expect_not_found(tooling.explain(_nobodys(subject)), "explain")


# --- DescribesMany


@Needs(capability=DescribesMany)
async def describe_many_sees_what_describe_sees(subject: Subject, adapter: Adapter) -> None:
    """A batch is a hint by handle: it may lag behind, and leaves out unknown ones."""
    assert isinstance(adapter, DescribesMany)
    ending = new_start(subject.finishes)
    async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as running:
        ended = ref_of(ending, await adapter.start(ending))
        await until_ended(subject, adapter, ended)
        refs = [running, ended, _nobodys(subject)]
        wanted = {running.handle: Status.RUNNING, ended.handle: Status.SUCCEEDED}
        seen = await _described_many(subject, adapter, refs, wanted)
        assert {handle: each.status for handle, each in seen.items()} == wanted
    assert await adapter.describe_many([]) == {}


@Needs(capability=DescribesMany, parts=("asks",))
async def describe_many_shows_questions(subject: Subject, adapter: Adapter) -> None:
    """A difference from the batch before is a reason to describe, so questions have to differ."""
    assert isinstance(adapter, DescribesMany)
    ref, seen = await see_questions(subject, adapter, subject.asks)
    found = await _described_many(subject, adapter, [ref], {ref.handle: Status.INPUT_REQUIRED})
    assert set(found[ref.handle].requests) == set(seen.requests)
    await adapter.cancel(ref)


async def _described_many(
    subject: Subject, adapter: DescribesMany, refs: Sequence[Ref], wanted: dict[str, Status]
) -> dict[str, Execution]:
    """Return the batch that shows these statuses, or the last one."""
    seen: dict[str, Execution] = {}
    with anyio.move_on_after(subject.timeout):
        while any(handle not in seen or seen[handle].status is not status for handle, status in wanted.items()):
            seen = dict(await adapter.describe_many(refs))
            await anyio.sleep(0.05)  # a list may lag behind
    return seen


# --- Waits


@Needs(capability=Waits)
async def a_wait_is_over_when_the_execution_has_ended(subject: Subject, adapter: Adapter) -> None:
    """A wait returns when the execution may have ended, before and after it has."""
    assert isinstance(adapter, Waits)
    over = anyio.Event()
    start = new_start(subject.endless)
    ref = ref_of(start, await adapter.start(start))

    async def wait(waiting: Waits) -> None:
        await waiting.wait(ref)
        over.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait, adapter)
        await adapter.describe(ref)
        assert not over.is_set()
        await adapter.cancel(ref)
        with anyio.fail_after(subject.timeout):
            await over.wait()
    assert (await until_ended(subject, adapter, ref)).status is Status.CANCELLED
    with anyio.fail_after(subject.timeout):
        await adapter.wait(ref)


@Needs(capability=Waits)
async def a_wait_can_be_given_up_at_once(subject: Subject, adapter: Adapter) -> None:
    """A wait ends when it is cancelled, and the adapter still works."""
    assert isinstance(adapter, Waits)
    async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
        with anyio.fail_after(subject.call_timeout):
            with anyio.move_on_after(0.3):
                await adapter.wait(ref)
            assert (await adapter.describe(ref)).status is Status.RUNNING


# --- Exposes


@Needs(capability=Exposes)
async def a_marked_workflow_can_be_offered(subject: Subject, adapter: Adapter) -> None:
    """A marked workflow has a name for a tool, a source for people, a JSON Schema of an object, and options."""
    tooling = adapter.tooling
    assert isinstance(tooling, Exposes)
    assert (tooling.expose_every or 0) > 0
    for each in await tooling.exposed():
        assert TOOL_NAME.fullmatch(each.name)
        assert each.workflow
        assert each.source
        assert each.input.get("type") == "object"
        Draft202012Validator(dict(each.input), offline=True)  # raises if it is not a JSON Schema
        adapter.Options.model_validate(each.options)


# --- Limited


@Needs(capability=Limited)
async def an_allowance_leaves_something(subject: Subject, adapter: Adapter) -> None:
    """An allowance can be read at any time, without asking the engine, and lets us ask now and then."""
    assert isinstance(adapter, Limited)
    allowance = adapter.allowance
    assert isinstance(allowance, Allowance)
    assert min(allowance.polls_per_second, allowance.batch_every, allowance.batch) > 0
    assert allowance.burst >= 0


# --- Hints


@Needs(capability=Hints)
async def an_execution_that_ends_is_hinted_at_by_its_handle(subject: Subject, adapter: Adapter) -> None:
    """A listener gets the handle that `start` returned, until it stops listening."""
    assert isinstance(adapter, Hints)
    listening, over = anyio.Event(), anyio.Event()

    async def listen(hinting: Hints, wanted: str) -> None:
        listening.set()

        def changed(handle: str) -> None:
            anyio.get_current_task()  # fails in a callback of the event loop
            if handle == wanted:
                over.set()

        await hinting.hints(changed)

    async with anyio.create_task_group() as group:
        async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
            group.start_soon(listen, adapter, ref.handle)
            await listening.wait()
        with anyio.move_on_after(subject.timeout):
            await over.wait()
        group.cancel_scope.cancel()
    assert over.is_set()


# --- when the engine is unreachable


@Needs(parts=("unreachable",))
async def an_engine_that_is_not_there_is_unavailable(subject: Subject, adapter: Adapter) -> None:
    """Entering needs no engine; only `EngineUnavailable` crosses, soon, and no secret with it."""
    assert subject.unreachable is not None
    async with subject.unreachable() as nobody:
        start, ref = new_start(subject.finishes), _nobodys(subject)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "start": lambda: nobody.start(start),
            "describe": lambda: nobody.describe(ref),
            "answer": lambda: nobody.answer(ref, {"question": accepted(subject)}),
            "cancel": lambda: nobody.cancel(ref),
            **_calls_of_capabilities(nobody, subject),
        }
        for verb, call in calls.items():
            try:
                with anyio.fail_after(subject.call_timeout):
                    await call()
            except EngineUnavailable as unavailable:
                assert_clean(subject, str(unavailable))
            else:
                pytest.fail(f"{verb}() returned: it must ask the engine, even when there seems to be nothing to do")


def _calls_of_capabilities(nobody: Adapter, subject: Subject) -> Mapping[str, Callable[[], Awaitable[object]]]:
    ref, tooling = _nobodys(subject), nobody.tooling
    calls: dict[str, Callable[[], Awaitable[object]]] = {}
    if isinstance(nobody, Finds):
        calls["find"] = partial(nobody.find, new_start(subject.finishes))
    if isinstance(nobody, Terminates):
        calls["terminate"] = partial(nobody.terminate, ref, "no reason")
    if isinstance(nobody, HasLogs):
        calls["log"] = partial(nobody.log, ref)
    if isinstance(nobody, Adopts):
        calls["adopt"] = partial(nobody.adopt, subject.unknown_handle)
    if isinstance(nobody, ListsEnded):
        calls["list_ended"] = partial(nobody.list_ended, subject.finishes.workflow, datetime.now(UTC))
    if isinstance(nobody, DescribesMany):
        calls["describe_many"] = partial(nobody.describe_many, [ref])
    if isinstance(nobody, Waits):
        calls["wait"] = partial(nobody.wait, ref)
    if isinstance(tooling, Explains):
        calls["explain"] = partial(tooling.explain, ref)
    if isinstance(tooling, Exposes) and tooling.expose_every is not None:
        calls["exposed"] = tooling.exposed
    return calls


@Needs(capability=Checks, parts=("unreachable",))
async def checks_find_out_what_is_there(subject: Subject, adapter: Adapter) -> None:
    """A check says in a sentence if it is fine, not fine or unknown, and never raises an EngineError."""
    tooling = adapter.tooling
    assert isinstance(tooling, Checks)
    assert (await tooling.check_engine()).ok
    there = await tooling.check(subject.finishes.workflow, subject.finishes.options)
    assert there.ok is not False, there.text
    assert there.text
    assert subject.unreachable is not None
    async with subject.unreachable() as nobody:
        tooling = nobody.tooling
        assert isinstance(tooling, Checks)
        for finding in (await tooling.check_engine(), await tooling.check(subject.finishes.workflow, {})):
            assert not finding.ok, "an engine that is not there is not fine; what nothing can say is ok=None"
            assert_clean(subject, f"{finding.text} {finding.hint}")


def _nobodys(subject: Subject) -> Ref:
    return Ref(workflow=subject.endless.workflow, handle=subject.unknown_handle, options=subject.endless.options)


CAPABILITIES: Final = frozenset(needs.capability for needs in NEEDS.values() if needs.capability is not None)


def _test_of(law: Law) -> FunctionType:
    """Return the test method of a law; pytest passes it the two fixtures."""

    async def test(self: object, subject: Subject, adapter: Adapter) -> None:
        await law(subject, adapter)

    assert isinstance(test, FunctionType)
    test.__name__ = f"test_{getattr(law, '__name__', '')}"
    test.__doc__ = law.__doc__
    return test


TESTS: Final[Mapping[FunctionType, Needs]] = {_test_of(law): needs for law, needs in NEEDS.items()}
