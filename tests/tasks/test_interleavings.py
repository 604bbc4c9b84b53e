"""Two creators of one key, step by step: every order of their calls to the store and the engine, every fault, a crash.

And a call without a key whose caller leaves at any step, and the same call again, twice, in another process.

Each of them is stopped before each call to the store or the engine. A run is a list of decisions: who goes on, and
what its call meets. All runs are tried one after the other, from the first decision that has another choice left.
Then time passes, the engine works, and a new process heals what is left.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Final

import anyio
import anyio.lowlevel
import pytest

from mcp_workflows.adapter import Ref, Start, StartGuarantee, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from mcp_workflows.store.protocol import NO_CAPS, Caps
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import Task, engine_key
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.repeated_calls import OpenCall
from mcp_workflows.tasks.start import NOT_STARTED, OUTCOME_UNKNOWN, TaskCreation
from mcp_workflows.testing import FindableMemoryAdapter, FindableMemorySettings, make_task

pytestmark = pytest.mark.anyio

LATER: Final = timedelta(minutes=1)  # whatever was under way is over, and has settled
FIRST: Final = frozenset({"create", "unbound"})  # steps before which a crash leaves nothing behind
ARRIVE: Final = "arrive"
PASS: Final = "a minute passes"
START: Final = "start"
CONNECT: Final = "connect"
UNDER_WAY: Final = frozenset({START, ARRIVE, CONNECT})  # nothing of this takes a minute
HEALED_AFTER: Final = 5  # rounds


class Fate(StrEnum):
    """What becomes of one call."""

    WORKS = "works"
    CRASH = "crash"  # its process dies before the call
    LEAVES = "leaves"  # its caller leaves, and the call is made
    REFUSED = "refused"
    UNREACHABLE = "unreachable"  # nothing arrives
    LOST = "lost"  # it takes effect, and its reply is lost
    DELAYED = "delayed"  # nobody waits for it any more when it takes effect


SAFE: Final = (Fate.WORKS,)
STARTS: Final = (Fate.WORKS, Fate.REFUSED, Fate.UNREACHABLE, Fate.LOST, Fate.DELAYED)
FINDS: Final = (Fate.WORKS, Fate.UNREACHABLE)


class Crashed(BaseException):
    """The process is gone: no handler of errors of ours runs on."""


@dataclass(slots=True, kw_only=True, eq=False)
class Actor:
    """One call, or one look, of one process."""

    name: str
    process: str
    step: str = ""
    fates: Sequence[Fate] = ()  # of the call that it is about to make; none: it is not at a call
    fate: Fate = Fate.WORKS
    go_on: anyio.Event = field(default_factory=anyio.Event)
    done: bool = False
    caller: anyio.CancelScope | None = None  # cancelled if its caller leaves; None: it never does
    is_safe: bool = False  # all its calls work, and its process goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far a search goes: all there is would take days."""

    switches: int  # from one that could go on to another
    crashes: int = 1
    finds: Sequence[Fate] = SAFE
    held_up: bool = False  # a minute may pass between any two steps


ACTOR: ContextVar[Actor | None] = ContextVar("actor", default=None)  # None: all goes on as it comes


class World:
    """One run: who waits at which call, and what the decisions so far let happen."""

    def __init__(self, decisions: Sequence[int], bounds: Bounds) -> None:
        self.actors: list[Actor] = []
        self.taken: list[tuple[int, int]] = []  # which of how many choices
        self.story: list[str] = []
        self.dead: set[str] = set()
        self.refused = self.doubtful = 0  # starts
        self.held_up = False
        self._decisions = decisions
        self._bounds = bounds
        self._last: Actor | None = None
        self._switches = 0

    async def turn(self, step: str, fates: Sequence[Fate] = SAFE) -> Fate:
        """Wait until this call is to be made; what becomes of it."""
        actor = ACTOR.get()
        if actor is None:
            return Fate.WORKS
        if actor.process not in self.dead:
            actor.step, actor.fates, actor.go_on = step, fates, anyio.Event()
            await actor.go_on.wait()
        if actor.process in self.dead:
            raise Crashed
        return actor.fate

    async def play(self) -> None:
        """Let one after the other go on, as decided, until all are done."""
        while True:
            await self._settle()
            choices = list(self._choices())[: None if self._last else 1]  # whoever is first is A
            if not choices:
                assert all(actor.done for actor in self.actors), self.story
                return
            actor, fate = choices[self._decided(len(choices))]
            self._switches += self._last is not None and actor is not self._last and bool(self._last.fates)
            self._last = actor
            self.story.append(f"{actor.name}: {actor.step} {fate}")
            if fate is Fate.CRASH:
                self.dead.add(actor.process)
                self.doubtful += actor.step != CONNECT
            if fate is Fate.LEAVES and actor.caller is not None:
                actor.caller.cancel()
                fate = Fate.WORKS
            going = [each for each in self.actors if each is actor or (each.fates and each.process in self.dead)]
            for each in going:
                each.fate, each.fates = fate, ()
                each.go_on.set()

    def _choices(self) -> Iterator[tuple[Actor, Fate]]:
        ready = [actor for actor in self.actors if actor.fates]
        if any(actor.step in UNDER_WAY for actor in ready):
            ready = [actor for actor in ready if actor.step != PASS]
        if self._last in ready and self._switches >= self._bounds.switches:
            ready = [self._last]
        for actor in sorted(ready, key=lambda each: each is not self._last):
            if actor.is_safe:
                yield actor, Fate.WORKS
                continue
            for fate in actor.fates:
                yield actor, fate
            if len(self.dead) < self._bounds.crashes and actor.process and actor.step not in FIRST:
                yield actor, Fate.CRASH
            if actor.caller is not None and not actor.caller.cancel_called:
                yield actor, Fate.LEAVES

    def _decided(self, many: int) -> int:
        chosen = self._decisions[len(self.taken)] if len(self.taken) < len(self._decisions) else 0
        self.taken.append((chosen, many))
        return chosen

    async def _settle(self) -> None:
        """Until all are at a call, done, or wait for each other."""
        for _ in range(12):
            if all(actor.fates or actor.done for actor in self.actors):
                return
            await anyio.lowlevel.checkpoint()


class Stepwise(SQLiteStore):
    """One store of all replicas, where nobody goes on before its turn."""

    world: World

    async def create(self, task: Task, caps: Caps = NO_CAPS, *, durable: bool = True) -> Task:
        """In its turn."""
        await self.world.turn("create")
        return await super().create(task, caps, durable=durable)

    async def unanswered(self, match: str, now: datetime) -> Sequence[Task]:
        """In its turn."""
        await self.world.turn("unanswered")
        return await super().unanswered(match, now)

    async def unbound(self, engine: str, before: datetime, limit: int) -> Sequence[Task]:
        """In its turn."""
        await self.world.turn("unbound")
        return await super().unbound(engine, before, limit)

    async def get(self, task_id: str, owner: str) -> Task | None:
        """In its turn."""
        await self.world.turn("get")
        return await super().get(task_id, owner)

    async def change(
        self, task_id: str, owner: str, change: Callable[[Task], Task | None], *, durable: bool = True
    ) -> Task | None:
        """In its turn."""
        await self.world.turn("change")
        return await super().change(task_id, owner, change, durable=durable)


class Faulty(MemoryAdapter):
    """An engine that works, refuses, loses, delays or is not there, as decided for each start."""

    stage: Stage

    async def start(self, start: Start) -> str:
        """As decided."""
        world = self.stage.world
        fate = await world.turn(START, STARTS)
        handle = ""
        if fate in {Fate.WORKS, Fate.LOST}:
            handle = await super().start(start)
        if fate is Fate.DELAYED:
            self.stage.later(super().start, start)
        world.refused += fate is Fate.REFUSED
        world.doubtful += fate in {Fate.LOST, Fate.DELAYED}
        match fate:
            case Fate.WORKS:
                return handle
            case Fate.REFUSED:
                raise EngineRefused("it does not want to")
            case Fate.UNREACHABLE:
                raise EngineUnavailable("nothing listens there", sent=False)
            case _:
                raise EngineUnavailable("no answer")


class Findable(Faulty, FindableMemoryAdapter):
    """Each start is an execution of its own, which can be looked for."""

    async def find(self, start: Start) -> str | None:
        """As decided."""
        world = self.stage.world
        if await world.turn("find", self.stage.bounds.finds) is Fate.UNREACHABLE:
            raise EngineUnavailable("nothing listens there", sent=False)
        return await super().find(start)


class Blind(Faulty, FindableMemoryAdapter):
    """Each start is an execution of its own, which nobody finds again."""

    starts = StartGuarantee.ONCE


class Late(Blind):
    """The same, connected to when it is first used."""

    async def connect_engine(self) -> None:
        """As decided."""
        match await self.stage.world.turn(CONNECT, (Fate.WORKS, Fate.REFUSED, Fate.UNREACHABLE)):
            case Fate.REFUSED:
                self.stage.world.refused += 1
                raise EngineRefused("wrong credentials")
            case Fate.UNREACHABLE:
                raise EngineUnavailable("it does not boot")
            case _:
                pass


LATE: Final = "once, connected late"
ENGINES: Final[dict[str, type[Faulty]]] = {
    StartGuarantee.KEYED: Faulty,
    StartGuarantee.FINDABLE: Findable,
    StartGuarantee.ONCE: Blind,
    LATE: Late,
}


class Stage:
    """What all runs of one search share, so that each takes a millisecond; each has a key of its own."""

    def __init__(self, store: Stepwise, engine: Faulty, engines: Engines, bounds: Bounds) -> None:
        self.bounds = bounds
        self.world = World((), bounds)
        self.store = store
        self.engine = engine
        self.rows = engine_key("memory", engine.identity)
        self.engines = engines
        self.time = datetime.now(UTC)
        self.key = ""
        self.tasks = anyio.create_task_group()

    def clock(self) -> datetime:
        """A microsecond later each time."""
        self.time += timedelta(microseconds=1)
        return self.time

    def process(self) -> TaskCreation:
        """One more of those that share the store."""
        return TaskCreation(self.store, self.engines, self.clock)

    def replica(self) -> Executions:
        """One more, with the calls that it serves."""
        return Executions(store=self.store, engines=self.engines, clock=self.clock)

    def new_task(self, *, key: str | None = None) -> Task:
        """What each call of this key wants to make; or one call with a key of its own for the engine."""
        now = self.clock()
        return make_task(
            owner=self.key,
            engine="memory",
            workflow="forever",
            key=key or self.key,
            idempotency_key=None if key else self.key,
            created=now,
            updated=now,
            expires=now + timedelta(days=1),
        )

    def later(self, act: Callable[[Start], Awaitable[str]], start: Start) -> None:
        """What is under way takes effect whenever it is decided; it cannot crash."""

        async def arrive() -> None:
            await self.world.turn(ARRIVE)
            await act(start)

        self.act(Actor(name="network", process=""), arrive)

    async def hold_up(self) -> None:
        """Let a minute pass."""
        await self.world.turn(PASS)
        self.time += LATER
        self.world.held_up = True

    def act(self, actor: Actor, act: Callable[[], Awaitable[object]]) -> None:
        """Let that actor begin."""
        self.world.actors.append(actor)

        async def run() -> None:
            ACTOR.set(actor)
            try:
                await act()
            except Crashed:
                pass
            finally:
                actor.fates, actor.done = (), True

        self.tasks.start_soon(run)


@dataclass(slots=True, kw_only=True)
class Heard:
    """What became of one call, as its client knows."""

    task: Task | None = None
    error: EngineError | None = None


async def call(stage: Stage, creation: TaskCreation, heard: Heard) -> None:
    """One `tools/call` up to its answer, which may never leave."""
    task: Task | None = None
    error: EngineError | None = None
    try:
        task = await creation.create(stage.new_task())
    except EngineError as raised:
        error = raised
    await stage.world.turn("answer")
    heard.task, heard.error = task, error


async def call_without_key(stage: Stage, replica: Executions, heard: Heard, actor: Actor) -> None:
    """One `tools/call` without a key; its caller leaves or is answered."""
    with anyio.CancelScope() as caller:
        actor.caller = None if actor.is_safe else caller
        calls = replica.repeated_calls
        async with OpenCall(calls=calls, arrived=anyio.current_time(), host=None, match=stage.key) as served:
            try:
                if (task := await replica.resume(served)) is None:
                    new = stage.new_task(key=f"{stage.key}-{next(_NUMBERS)}")
                    served.about(new)
                    task = await replica.create(new)
                served.about(task)
            except EngineError as raised:
                heard.error = raised
                return
            await stage.world.turn("answer")
            await anyio.lowlevel.checkpoint_if_cancelled()
            heard.task = task


async def run_repeats(stage: Stage, decisions: Sequence[int]) -> World:
    """A call, and once it is over the same call from two replicas at once."""
    stage.world = stage.store.world = world = World(decisions, stage.bounds)
    stage.key = f"key-{next(_NUMBERS)}"
    for handle in stage.engine.handles:
        stage.engine.forget(handle)
    first, *repeats = heard = [Heard(), Heard(), Heard()]
    async with anyio.create_task_group() as stage.tasks:
        actor = Actor(name="A", process="one")
        stage.act(actor, lambda: call_without_key(stage, stage.replica(), first, actor))
        await world.play()
    rows = await stage.store.list_of_owner(stage.key, now=stage.time, limit=10)
    marked = [row for row in rows if row.unanswered is not None and not failed_with(row, NOT_STARTED)]
    is_open = first.task is None and bool(marked)
    async with anyio.create_task_group() as stage.tasks:
        for number, each in enumerate(repeats):
            other = Actor(name="BC"[number], process=f"other {number}", is_safe=True)
            stage.act(other, partial(call_without_key, stage, stage.replica(), each, other))
        await world.play()
    stage.time += LATER
    for _ in range(HEALED_AFTER):
        if not await heal(stage, stage.process()):
            break
        stage.time += LATER
    try:
        await check_repeats(stage, heard, marked[0] if is_open else None)
    except AssertionError as failed:
        raise AssertionError(f"{failed}\nafter: " + "; ".join(world.story)) from failed
    return world


async def check_repeats(stage: Stage, heard: Sequence[Heard], abandoned: Task | None) -> None:
    """An abandoned call is continued by one of its repeats, and each call is answered with a task of its own."""
    assert await stage.store.unbound(stage.rows, stage.time, 10) == [], "a row is never decided"
    answered = [each.task.id for each in heard if each.task is not None]
    assert len(set(answered)) == len(answered), "two calls were answered with one task"
    for each in heard:
        if each.task is not None:
            await check_kept(stage, each.task)
    assert len(stage.engine.handles) <= (3 if abandoned is None else 2), "both repeats of an abandoned call started it"
    if abandoned is not None and heard[1].task and heard[2].task:
        row = await stage.store.get(abandoned.id, abandoned.owner)
        assert row is None or failed_with(row, NOT_STARTED) or abandoned.id in answered, "an abandoned call is lost"


async def heal(stage: Stage, creation: TaskCreation) -> bool:
    """One round of the background, of one process; whether there was something to do."""
    rows = await stage.store.unbound(stage.rows, stage.clock(), 100)
    for row in rows:
        with suppress(EngineUnavailable, EngineRefused):
            await creation.ensure_started(row)
    return bool(rows)


async def run(stage: Stage, cast: str, decisions: Sequence[int]) -> World:
    """One run from its first step to what all know in the end."""
    stage.world = stage.store.world = world = World(decisions, stage.bounds)
    stage.key = f"key-{next(_NUMBERS)}"
    for handle in stage.engine.handles:
        stage.engine.forget(handle)
    heard = [Heard(), Heard()]
    one = stage.process()
    other = one if cast == "one process" else stage.process()
    async with anyio.create_task_group() as stage.tasks:
        stage.act(Actor(name="A", process="one"), lambda: call(stage, one, heard[0]))
        process = "one" if other is one else "other"
        if cast == "a look":
            stage.act(Actor(name="H", process=process), lambda: heal(stage, other))
        else:
            stage.act(Actor(name="B", process=process), lambda: call(stage, other, heard[1]))
        if stage.bounds.held_up:
            stage.act(Actor(name="time", process=""), stage.hold_up)
        await world.play()
    stage.time += LATER
    for _ in range(HEALED_AFTER):
        if not await heal(stage, stage.process()):
            break
        stage.time += LATER
    try:
        await check(stage, heard)
    except AssertionError as failed:
        raise AssertionError(f"{failed}\nafter: " + "; ".join(world.story)) from failed
    return world


_NUMBERS = itertools.count()


async def check(stage: Stage, heard: Sequence[Heard]) -> None:
    """What has to be true of every run."""
    world, starts = stage.world, stage.engine.starts
    rows = await stage.store.list_of_owner(stage.key, now=stage.time, limit=10)
    started = stage.engine.handles
    assert len(started) <= 1, "a key was started twice"
    assert await stage.store.unbound(stage.rows, stage.time, 10) == [], "a row is never decided"
    for each in heard:
        if each.task is not None:
            await check_kept(stage, each.task)
    answered = [each.task.id for each in heard if each.task is not None]
    alive = {row.id for row in rows if not failed_with(row, NOT_STARTED)}
    assert len(alive) <= 1, "a key has two tasks"
    if not answered and not world.dead:
        assert not alive, "a call that was told that nothing was started left a task"
        assert rows == [] or world.held_up, "a call that was told that nothing was started left a row"
        assert started == [], "a call that was told that nothing was started was started"
    again = await stage.process().create(stage.new_task())
    assert not alive or {again.id} == alive, "the same key again is another task"
    assert again.handle is not None or starts is StartGuarantee.ONCE, "the same key again is not started"
    assert len(stage.engine.handles) <= 1, "the same key again was started again"


async def check_kept(stage: Stage, task: Task) -> None:
    """A call was answered with this task: it was started, or the engine itself refused it, or nobody can know."""
    row = await stage.store.get(task.id, task.owner)
    assert row is not None, "an acknowledged task is gone"
    if failed_with(row, NOT_STARTED):
        assert stage.world.refused, "an acknowledged task was never started"
    elif failed_with(row, OUTCOME_UNKNOWN.kind):
        assert stage.engine.starts is StartGuarantee.ONCE
        assert stage.world.doubtful or stage.world.held_up, "the outcome is said to be unknown, and is not"
    else:
        assert row.handle is not None
        seen = await stage.engine.describe(Ref(workflow=row.workflow, handle=row.handle))
        assert seen.status is Status.RUNNING


def failed_with(row: Task, kind: str | None) -> bool:
    failure = row.execution.failure
    return failure is not None and failure.kind == kind


@asynccontextmanager
async def staged(engine: str, bounds: Bounds) -> AsyncGenerator[Stage]:
    """An empty store and an engine of that kind."""
    name = f"stepwise-{next(_NUMBERS)}"
    kind = ENGINES[engine]
    adapter = kind(
        FindableMemorySettings(name=name) if issubclass(kind, FindableMemoryAdapter) else MemorySettings(name=name)
    )
    store = Stepwise("sqlite:///:memory:")
    async with store, Engines({"memory": adapter}) as engines:
        adapter.stage = Stage(store, adapter, engines, bounds)
        yield adapter.stage


async def search(engine: str, cast: str, bounds: Bounds) -> int:
    """All runs within these bounds; how many they were."""
    runs, decisions = 0, list[int]()
    async with staged(engine, bounds) as stage:
        while True:
            world = run_repeats(stage, decisions) if cast == REPEATS else run(stage, cast, decisions)
            taken = (await world).taken
            runs += 1
            while taken and taken[-1][0] + 1 == taken[-1][1]:
                taken.pop()
            if not taken:
                return runs
            decisions = [chosen for chosen, _ in taken]
            decisions[-1] += 1


REPEATS: Final = "two repeats of a call without a key"
QUICKEST: Final = (StartGuarantee.KEYED, StartGuarantee.ONCE)
CASTS: Final = ("two replicas", "one process", "a look")


@pytest.fixture(autouse=True)
def searched_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests look again at once."""
    monkeypatch.setattr("mcp_workflows.tasks.start.FIND_EVERY", 0.0)


QUICK: Final[dict[str, str]] = {
    StartGuarantee.KEYED: "a look",
    StartGuarantee.FINDABLE: "two replicas",
    StartGuarantee.ONCE: "one process",
    LATE: "two replicas",
}
"""Those of `make test`: each kind of engine once, and each cast."""


@pytest.mark.parametrize(
    ("engine", "cast"),
    [
        pytest.param(engine, cast, marks=[] if QUICK[engine] == cast else [pytest.mark.slow])
        for engine, cast in itertools.product(ENGINES, CASTS)
    ],
)
async def test_no_acknowledged_task_is_lost_and_no_key_starts_twice(engine: str, cast: str) -> None:
    assert await search(engine, cast, Bounds(switches=1)) > 50


@pytest.mark.slow
@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("engine", ENGINES)
async def test_nor_with_more_switches_failing_searches_and_time_that_passes(engine: str, cast: str) -> None:
    assert await search(engine, cast, Bounds(switches=2, finds=FINDS, held_up=True)) > 500


@pytest.mark.parametrize(
    "engine",
    [pytest.param(engine, marks=[] if engine in QUICKEST else [pytest.mark.slow]) for engine in ENGINES],
)
async def test_a_call_without_a_key_that_is_abandoned_is_continued_once(engine: str) -> None:
    assert await search(engine, REPEATS, Bounds(switches=1)) > 50
