"""Replicas that share the polling, on a clock that jumps from event to event; the store's part is a small network."""

from __future__ import annotations

import math
import random
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest
from anyio import CancelScope
from anyio.abc import TaskGroup, TaskStatus
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from trio.testing import MockClock

from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.access.principal import Principal
from mcp_workflows.access.rate_limits import RateLimits
from mcp_workflows.adapter import TERMINAL, Execution, Ref, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.engines.polling.poller import Poller
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineUnavailable, LimitReached, StoreUnavailable
from mcp_workflows.store.protocol import Replica
from mcp_workflows.store.replicas import (
    BEAT_REST,
    DEAF_AFTER,
    RECONCILE_EVERY,
    RENEW_EVERY,
    SEND_EVERY,
    TRUST,
    Replicas,
)
from mcp_workflows.task import Task, mark_cancelled
from mcp_workflows.testing import make_task
from tests.engines.polling.test_promises import BEGIN, Clock, now

ENGINE = "engine"
POLLS = 50.0
TRIP = 0.005  # seconds of a message
BROKEN = "broken"  # the id of a row that cannot be read
SECRET = bytes(range(32))
STRANGE = [
    *("", "hello", "[]", '["x", 1, [], 2]', '["x", 1, [["b", ""]]]', '["x", 1, [["p", "t0", 1.0, null]]]'),
    '["x", 1e18, [["p", "t0", 1.0, 5.0], ["c", "t1", 1e300, 1.0]]]',
    '["x", 1, [["w", "nobody", 0, 0], ["n", "t\\u0000", 0, 0], ["h", "0", 0, "no engine"], ["z", "t0", 0, 0]]]',
    f'["x", 1, [["w", "{BROKEN}", 0, 0]]]',
]


def sealed(text: str) -> str:
    """A message as a replica of another version may send it."""
    return b64encode(bytes(12) + AESGCM(SECRET).encrypt(bytes(12), text.encode(), b"1")).decode()


@dataclass(kw_only=True)
class Cluster:
    """An engine whose calls are noted, the rows of its executions, and the network of the replicas."""

    ends: Sequence[float]
    batches: bool = False
    age: timedelta = timedelta()
    ahead: float = BEGIN.timestamp()  # of the server's clock
    rows: dict[str, Task] = field(default_factory=dict[str, Task])
    versions: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    calls: list[tuple[float, str, str]] = field(default_factory=list[tuple[float, str, str]])
    batch_calls: int = 0
    waits: bool = False
    wait_calls: int = 0
    open_waits: int = 0
    beats: int = 0
    heard: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    seen: dict[str, float] = field(default_factory=dict[str, float])
    members: dict[str, tuple[Replica, float]] = field(default_factory=dict[str, tuple[Replica, float]])
    ears: dict[str, Callable[[str], None]] = field(default_factory=dict[str, Callable[[str], None]])
    cut_off: set[str] = field(default_factory=set[str])  # from the store
    deaf: set[str] = field(default_factory=set[str])
    refused: set[str] = field(default_factory=set[str])  # as listeners
    silent: set[str] = field(default_factory=set[str])  # replicas that the engine does not answer

    def add(self, number: int) -> Task:
        """The row of an execution that has started."""
        started = Execution(status=Status.RUNNING)
        task = make_task(
            id=f"t{number}",
            engine=ENGINE,
            handle=str(number),
            created=BEGIN - self.age,
            updated=BEGIN,
            execution=started,
        )
        self.rows[task.id], self.versions[task.id] = task, (1, now())
        return task

    def status(self, handle: str) -> Status:
        """The truth."""
        return Status.SUCCEEDED if now() >= self.ends[int(handle)] else Status.RUNNING

    async def poll(self, replica: str, task: Task, _: Task | None, asks: Callable[[], None]) -> tuple[Task, None]:
        """One poll of a replica; the first that sees the end writes it."""
        assert task.handle is not None
        if replica in self.cut_off:
            raise StoreUnavailable("it is cut off")
        if replica in self.silent:
            raise EngineUnavailable("it does not answer")
        asks()
        self.calls.append((now(), replica, task.id))
        status = self.status(task.handle)
        await anyio.sleep(0.01)
        row = self.rows[task.id]
        if status in TERMINAL and not row.ended:
            at = Clock.now()
            row = replace(row, execution=Execution(status=status), ended=at, updated=at)
            self.rows[task.id], self.versions[task.id] = row, (self.versions[task.id][0] + 1, now())
            self.seen[task.id] = now()
        return row, None


@dataclass(kw_only=True)
class Network:
    """The channel of one replica."""

    cluster: Cluster
    name: str
    lost: float = 0.0  # of the messages to it

    def _reach(self) -> None:
        if self.name in self.cluster.cut_off:
            raise StoreUnavailable("it is cut off")

    async def beat(self, replica: Replica, *, lasting: timedelta) -> tuple[Sequence[Replica], float]:
        """Note the heartbeat."""
        self.cluster.beats += 1
        await anyio.sleep(TRIP)
        self._reach()
        self.cluster.members[replica.id] = replica, now() + lasting.total_seconds()
        live = [each for each, until in self.cluster.members.values() if until > now() and each.id != replica.id]
        return live, now() + self.cluster.ahead

    async def send(self, texts: Sequence[str]) -> None:
        """Deliver, to this replica as well."""
        await anyio.sleep(TRIP)
        self._reach()
        for name, hear in list(self.cluster.ears.items()):
            if not {name, self.name} & (self.cluster.deaf | self.cluster.cut_off) and random.random() >= self.lost:
                for text in texts:
                    hear(text)

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Listen until cancelled."""
        self._reach()
        if self.name in self.cluster.refused:
            raise StoreUnavailable("it refuses the password")
        self.cluster.ears[self.name] = hear
        try:
            await anyio.sleep_forever()
        finally:
            self.cluster.ears.pop(self.name, None)

    async def changed(self, within: timedelta) -> Mapping[str, int]:
        """Rows that changed lately."""
        self._reach()
        since = now() - within.total_seconds()
        return {name: version for name, (version, at) in self.cluster.versions.items() if at > since}

    async def read(self, task_ids: Sequence[str]) -> Sequence[Task]:
        """Rows."""
        await anyio.sleep(TRIP)
        self._reach()
        if BROKEN in task_ids:
            raise RuntimeError(BROKEN)
        return [self.cluster.rows[name] for name in task_ids if name in self.cluster.rows]


class Engine(MemoryAdapter):
    """An engine that may describe many."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(MemorySettings())
        self._cluster, self._name = cluster, name

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """One call for many."""
        if self._name in self._cluster.silent:
            raise EngineUnavailable("it does not answer")
        self._cluster.batch_calls += 1
        await anyio.sleep(0.01)
        return {ref.handle: Execution(status=self._cluster.status(ref.handle)) for ref in refs}


class TrioEngines(Engines):
    """Engines whose waits can be cancelled on trio, too."""

    async def wait(self, task: Task) -> None:
        """Wait, without the translation of errors."""
        adapter = self.adapters[task.engine]
        assert isinstance(adapter, Waiter)
        await adapter.wait(Ref(handle=task.handle or "", workflow=task.workflow))


class Waiter(MemoryAdapter):
    """An engine whose executions can be waited for."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(MemorySettings())
        self._cluster, self._name = cluster, name

    async def wait(self, ref: Ref) -> None:
        """Wait for the end, or for a minute."""
        self._cluster.wait_calls += 1
        self._cluster.open_waits += 1
        try:
            await anyio.sleep(max(0.0, min(60.0, self._cluster.ends[int(ref.handle)] - now())))
        finally:
            self._cluster.open_waits -= 1


@asynccontextmanager
async def replica(cluster: Cluster, name: str, lost: float = 0.0) -> AsyncGenerator[Poller]:
    """A replica that has joined, until its body ends; then it leaves."""
    peers = Replicas(Network(cluster=cluster, name=name, lost=lost), clock=Clock.now)
    kind = Engine if cluster.batches else Waiter
    engine = kind(cluster, name) if cluster.batches or cluster.waits else MemoryAdapter(MemorySettings())
    rates = PollingPolicy(polls_per_second=POLLS, clock=Clock.now)
    poll = partial(cluster.poll, name)
    async with TrioEngines({ENGINE: engine}) as engines, Poller(poll, engines, rates, peers=peers) as poller:
        await peers.join(SECRET)
        async with anyio.create_task_group() as group:
            group.start_soon(peers.run, poller)
            await anyio.sleep(0.2)
            yield poller
            group.cancel_scope.cancel()


async def follow(cluster: Cluster, name: str, poller: Poller, task: Task) -> None:
    """A listener on a replica; when it heard of the end is noted."""

    async def hear(task: Task) -> None:
        if task.ended:
            cluster.heard[name, task.id] = now()

    await poller.follow(task, hear)


async def serve(cluster: Cluster, name: str, tasks: Sequence[Task], lost: float = 0.0) -> None:
    """A replica with a listener for each of these executions."""
    async with replica(cluster, name, lost) as poller, anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(follow, cluster, name, poller, task)
        await anyio.sleep_forever()


@asynccontextmanager
async def served(
    cluster: Cluster, names: Sequence[str], lost: float = 0.0, apart: float = 0.0
) -> AsyncGenerator[dict[str, CancelScope]]:
    """Replicas with listeners, each for its part of the executions; cancel a scope to end its replica."""
    tasks = [cluster.add(number) for number in range(len(cluster.ends))]
    scopes = {name: CancelScope() for name in names}

    async def run_one(name: str, mine: Sequence[Task]) -> None:
        with scopes[name]:
            await serve(cluster, name, mine, lost)

    async with anyio.create_task_group() as group:
        for number, name in enumerate(names):
            group.start_soon(run_one, name, tasks[number :: len(names)])
            await anyio.sleep(apart)
        yield scopes
        group.cancel_scope.cancel()


def run(body: Callable[[], Any]) -> None:
    """Run to the end on the clock that jumps."""
    ended: list[bool] = []

    async def whole() -> None:
        await body()
        ended.append(True)

    anyio.run(whole, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
    assert ended, "something has cancelled it"


def lived_through(cluster: Cluster, names: Sequence[str], seconds: float, lost: float = 0.0) -> None:
    """Serve for so long."""

    async def body() -> None:
        async with served(cluster, names, lost):
            await anyio.sleep(seconds)

    run(body)


def random_ends(many: int, first: float, last: float) -> Sequence[float]:
    return [random.Random(number).uniform(first, last) for number in range(many)]


@pytest.mark.parametrize("replicas", [3, 5])
def test_replicas_make_no_more_calls_than_one_process_and_tell_each_other_at_once(replicas: int) -> None:
    ends = random_ends(300, 5, 90)
    one, several = Cluster(ends=ends), Cluster(ends=ends)
    lived_through(one, ["a"], 60)
    lived_through(several, [f"r{number}" for number in range(replicas)], 60)
    assert len(several.calls) <= 1.1 * len(one.calls)
    assert len(several.heard) >= 0.95 * len(one.heard) > 100
    late = sorted(at - several.seen[task] for (_, task), at in several.heard.items())
    assert late[len(late) // 2] <= SEND_EVERY + 3 * TRIP
    assert late[-1] <= 0.15
    settled = [(name, task) for at, name, task in several.calls if at > 20]
    owners = Counter(task for _, task in set(settled))
    assert set(owners.values()) == {1}, "one replica polls an execution"
    assert len({name for name, _ in settled}) == replicas


def test_batches_are_shared_too() -> None:
    ends = random_ends(1000, 5, 200)
    one, several = Cluster(ends=ends, batches=True), Cluster(ends=ends, batches=True)
    lived_through(one, ["a"], 60)
    lived_through(several, ["r0", "r1", "r2"], 60)
    assert several.batch_calls <= 3 * one.batch_calls
    calls = [sum(at > 20 for at, *_ in cluster.calls) for cluster in (one, several)]
    assert calls[1] <= 1.1 * calls[0]
    assert len(several.heard) >= 0.9 * len(one.heard) > 50


@pytest.mark.parametrize("graceful", [False, True])
def test_the_others_take_over_the_executions_of_a_replica_that_ends(graceful: bool) -> None:
    cluster = Cluster(ends=[math.inf] * 60)
    gone = 10.0

    async def body() -> None:
        async with served(cluster, ["a", "b", "c"]) as scopes:
            await anyio.sleep(gone - now())
            if not graceful:
                cluster.cut_off.add("c")
            scopes["c"].cancel()
            await anyio.sleep(20)

    run(body)
    its = {task for at, name, task in cluster.calls if name == "c" and at > 5}
    assert its
    assert not [at for at, name, _ in cluster.calls if name == "c" and at > gone + 0.02]
    later: dict[str, float] = {}
    for at, name, task in cluster.calls:
        if name != "c" and at > gone and task in its:
            later.setdefault(task, at)
    followed_here = {f"t{number}" for number in range(60) if number % 3 != 2}
    assert set(later) == its & followed_here
    interval = 1.5 * 30 / 20  # at that age of an execution
    assert max(later.values()) - gone <= (0.5 if graceful else 4.1) + interval


@pytest.mark.parametrize("many", [20, 100])
def test_a_replica_whose_engine_is_silent_loses_no_news_for_others(many: int) -> None:
    cluster = Cluster(ends=[20.0] * many, batches=True, silent={"a"})

    async def body() -> None:
        tasks = [cluster.add(number) for number in range(many)]
        async with replica(cluster, "a"), replica(cluster, "b") as other, anyio.create_task_group() as group:
            for task in tasks:
                group.start_soon(follow, cluster, "b", other, task)
            await anyio.sleep(60)
            group.cancel_scope.cancel()

    run(body)
    assert len(cluster.heard) == many
    assert cluster.batch_calls <= 60 / 0.4


def test_old_executions_are_taken_over_in_time_whichever_replica_notices_first() -> None:
    gone, interval, takeover = 30.0, 5.0, 4.1
    for seed in range(4):
        random.seed(seed)
        cluster = Cluster(ends=[math.inf] * 60, age=timedelta(hours=1))

        async def body(cluster: Cluster = cluster) -> None:
            async with served(cluster, ["a", "b", "c"], apart=random.uniform(0.003, 0.3)) as scopes:
                await anyio.sleep(gone - now())
                cluster.cut_off.add("c")
                scopes["c"].cancel()
                await anyio.sleep(30)

        run(body)
        for number in range(60):
            at = [at for at, _, task in cluster.calls if task == f"t{number}" and at > 15]
            if number % 3 != 2:
                assert max(b - a for a, b in pairwise(at)) <= interval + takeover + 1.5, (seed, number)


def test_clients_of_any_replica_make_no_more_calls_than_those_of_one_process() -> None:
    calls: list[int] = []
    for replicas in (1, 3):
        random.seed(0)
        cluster = Cluster(ends=[math.inf] * 200, batches=True, age=timedelta(hours=1))

        async def body(cluster: Cluster = cluster, replicas: int = replicas) -> None:
            tasks = [cluster.add(number) for number in range(200)]
            async with AsyncExitStack() as stack:
                found = [await stack.enter_async_context(replica(cluster, f"r{each}")) for each in range(replicas)]
                group = await stack.enter_async_context(anyio.create_task_group())
                stack.callback(group.cancel_scope.cancel)

                async def ask(task: Task) -> None:
                    while True:
                        one = random.choice(found)
                        await one.poll(task)
                        await anyio.sleep(one.interval(task))

                for task in tasks:
                    group.start_soon(ask, task)
                await anyio.sleep(80)

        run(body)
        calls.append(sum(at > 20 for at, *_ in cluster.calls))
    assert calls[1] <= 1.2 * calls[0], calls


def test_a_listener_that_is_refused_is_deaf_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(ends=[15.0] * 30, refused={"c"})
    lived_through(cluster, ["a", "b", "c"], 30)
    assert not next(each for each, _ in cluster.members.values() if not each.hears).open
    assert len(cluster.heard) == 30
    assert "it refuses the password" in caplog.text


def test_a_replica_that_is_cut_off_polls_no_more_before_the_others_take_over() -> None:
    cluster = Cluster(ends=[math.inf] * 60)

    async def body() -> None:
        async with served(cluster, ["a", "b", "c"]):
            await anyio.sleep(10 - now())
            cluster.cut_off.add("c")
            await anyio.sleep(60 - now())
            cluster.cut_off.clear()
            await anyio.sleep(20)

    run(body)
    assert not [at for at, name, _ in cluster.calls if name == "c" and 10 + TRUST <= at < 60]
    polled = {task for at, _, task in cluster.calls if 45 < at < 60}
    assert polled == {f"t{number}" for number in range(60) if number % 3 != 2}, "its own listeners must wait"
    settled = {(name, task) for at, name, task in cluster.calls if at > 70}
    assert len(settled) == 60
    assert {name for name, _ in settled} == {"a", "b", "c"}


def test_a_replica_that_hears_nothing_polls_for_itself_and_owns_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(ends=[*[12.0] * 30, *[math.inf] * 30])
    cluster.deaf.add("c")
    lived_through(cluster, ["a", "b", "c"], 40)
    settled = {(name, task) for at, name, task in cluster.calls if at > DEAF_AFTER + 10}
    assert {task for name, task in settled if name == "c"} == {f"t{number}" for number in range(32, 60, 3)}
    assert len([task for name, task in settled if name != "c"]) == 20
    assert len(cluster.heard) == 30
    assert "set store.listen_url" in caplog.text


def test_every_listener_hears_of_the_end_although_messages_are_lost() -> None:
    cluster = Cluster(ends=random_ends(60, 5, 30))
    lived_through(cluster, ["a", "b", "c"], 60, lost=0.5)
    assert len(cluster.heard) == 60
    late = [at - cluster.seen[task] for (_, task), at in cluster.heard.items()]
    assert max(late) <= RECONCILE_EVERY + 3 * TRIP


def test_a_poll_of_a_client_is_answered_from_that_of_another_replica() -> None:
    cluster = Cluster(ends=[math.inf])

    async def body() -> None:
        task = cluster.add(0)
        async with replica(cluster, "a") as one, replica(cluster, "b") as other:
            await anyio.sleep(5)  # an execution of this age is polled every 0.25 s and more
            await one.poll(task)
            await anyio.sleep(0.1)
            await other.poll(task)
            assert len(cluster.calls) == 1
            await anyio.sleep(5)
            await other.poll(task)

    run(body)
    assert len(cluster.calls) == 2


def test_a_message_that_was_stuck_is_not_taken_for_a_fresh_poll() -> None:
    cluster = Cluster(ends=[math.inf])

    async def body() -> None:
        task = cluster.add(0)
        stuck: list[str] = []
        async with replica(cluster, "a") as one, replica(cluster, "b") as other:
            hear = cluster.ears["b"]
            cluster.ears["b"] = stuck.append
            await one.poll(task)
            await anyio.sleep(10)
            for text in stuck:
                hear(text)
            await other.poll(task)

    run(body)
    assert [name for _, name, _ in cluster.calls] == ["a", "b"]


def test_a_message_that_no_replica_has_sent_is_ignored() -> None:
    cluster = Cluster(ends=[math.inf])

    async def body() -> None:
        task = cluster.add(0)
        sent: list[str] = []
        async with replica(cluster, "a") as one, replica(cluster, "b") as other:
            hear = cluster.ears["b"]
            cluster.ears["b"] = sent.append
            await one.poll(task)
            await anyio.sleep(0.1)
            forged = [f"{'B' if text[0] == 'A' else 'A'}{text[1:]}" for text in sent]
            for text in (*forged, *(text[:-8] for text in sent), "", "hello", "é"):
                hear(text)
            await other.poll(task)

    run(body)
    assert [name for _, name, _ in cluster.calls] == ["a", "b"]


def test_a_hint_that_reaches_another_replica_is_passed_on_to_the_owner() -> None:
    cluster = Cluster(ends=[math.inf])

    async def body() -> None:
        task = cluster.add(0)
        async with replica(cluster, "a") as one, replica(cluster, "b") as other, anyio.create_task_group() as group:
            group.start_soon(follow, cluster, "a", one, task)
            await anyio.sleep(120)  # an execution of this age is polled every 5 s
            (owner,) = {name for at, name, _ in cluster.calls if at > 60}
            last = cluster.calls[-1][0]
            await anyio.sleep(last + 2 - now())
            (other if owner == "a" else one).hint(ENGINE, "0")
            await anyio.sleep(0.5)
            assert [name for at, name, _ in cluster.calls if at > last] == [owner]
            group.cancel_scope.cancel()

    run(body)


def test_a_cancellation_on_one_replica_is_seen_by_the_listeners_of_another_one() -> None:
    cluster = Cluster(ends=[math.inf])
    heard: list[float] = []

    async def body() -> None:
        task, began = cluster.add(0), math.inf

        async def hear(task: Task) -> None:
            if task.cancelled:
                heard.append(now())

        async with replica(cluster, "a") as one, replica(cluster, "b") as other:
            async with anyio.create_task_group() as group:
                group.start_soon(one.follow, task, hear)
                await anyio.sleep(3.14)
                cluster.rows[task.id] = mark_cancelled(cluster.rows[task.id], Clock.now())
                other.refresh_now(task.id)
                began = now()
                await anyio.sleep(1)
                group.cancel_scope.cancel()
            assert heard
            assert heard[0] - began <= SEND_EVERY + 3 * TRIP

    run(body)


def test_caps_on_open_requests_count_on_all_replicas() -> None:
    cluster = Cluster(ends=[])
    limits = Limits(open_listens_per_principal=2, open_listens=3, sessions_per_principal=1)
    anna, ben = Principal(id="anna", identified=True), Principal(id="ben", identified=True)

    async def body() -> None:
        meters = RateLimits(limits), RateLimits(limits)
        async with anyio.create_task_group() as group:
            for name, meter in zip("ab", meters, strict=True):
                engines = await enter(group, Engines({ENGINE: MemoryAdapter(MemorySettings())}))
                peers = Replicas(Network(cluster=cluster, name=name), meter)
                poller = await enter(group, Poller(partial(cluster.poll, name), engines, peers=peers))
                group.start_soon(peers.run, poller)
            meters[0].sessions = lambda: {"anna": 1}
            with meters[0].listening(anna):
                await anyio.sleep(3)
                with meters[1].listening(anna):
                    with pytest.raises(LimitReached, match="one caller"), meters[1].listening(anna):
                        pass
                    with pytest.raises(LimitReached, match="sessions of one caller"):
                        meters[1].open_session(anna, 0)
                    meters[1].open_session(ben, 0)
                    with meters[1].listening(ben), pytest.raises(LimitReached, match="all callers"):  # noqa: SIM117
                        with meters[1].listening(ben):
                            pass
            await anyio.sleep(3)
            with meters[1].listening(anna), meters[1].listening(anna):
                pass
            group.cancel_scope.cancel()

    run(body)


def test_messages_that_no_replica_of_this_version_sends_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(ends=[12.0] * 6)

    async def body() -> None:
        async with served(cluster, ["a", "b"]):
            await anyio.sleep(3)
            before = cluster.beats
            for _ in range(400):
                for hear in list(cluster.ears.values()):
                    for text in STRANGE:
                        hear(sealed(text))
                await anyio.sleep(0.01)
            assert cluster.beats - before <= 2 * 4 / BEAT_REST + 2
            await anyio.sleep(20 - now())

    run(body)
    assert len(cluster.heard) == 6
    assert max(cluster.heard.values()) <= 12 + 2, "the poll interval at that age is less than a second"
    assert "RuntimeError: broken" in caplog.text


def test_an_owner_waits_for_executions_only_as_long_as_another_replica_has_followers() -> None:
    cluster = Cluster(ends=[*[12.0] * 20, *[math.inf] * 20], waits=True)

    async def body() -> None:
        tasks = [cluster.add(number) for number in range(40)]
        async with replica(cluster, "a"), replica(cluster, "b") as other:
            async with anyio.create_task_group() as group:
                for task in tasks:
                    group.start_soon(follow, cluster, "b", other, task)
                await anyio.sleep(20)
                assert len(cluster.heard) == 20
                assert cluster.open_waits == 20
                group.cancel_scope.cancel()
            await anyio.sleep(0.1)
            assert 0 < cluster.open_waits < 20, "those that the other replica waits for"
            await anyio.sleep(PollingPolicy().wanted_for + RENEW_EVERY)
            assert cluster.open_waits == 0
            calls = cluster.wait_calls
            await anyio.sleep(120)
            assert cluster.wait_calls == calls <= 2 * len(tasks)

    run(body)


def test_clients_of_a_replica_that_hears_only_old_news_are_answered() -> None:
    cluster = Cluster(ends=[math.inf] * 300)
    answered: list[str] = []

    async def body() -> None:
        tasks = [cluster.add(number) for number in range(300)]
        async with replica(cluster, "a"), replica(cluster, "b") as other:
            await anyio.sleep(3)
            hear = cluster.ears["b"]
            cluster.ears["b"] = list[str]().append

            async def ask(task: Task) -> None:
                await other.poll(task)
                answered.append(task.id)

            async with anyio.create_task_group() as group:
                for task in tasks:
                    group.start_soon(ask, task)
                await anyio.sleep(0.1)
                for task in tasks:
                    sent = now() + cluster.ahead
                    hear(sealed(f'["a", {sent}, [["p", "{task.id}", 1000.0, 5.0]]]'))
                await anyio.sleep(30)
                group.cancel_scope.cancel()

    run(body)
    assert len(answered) == 300


async def enter(group: TaskGroup, context: Any) -> Any:
    """Enter a context for as long as the group lasts."""

    async def hold(*, task_status: TaskStatus[Any]) -> None:
        async with context as entered:
            task_status.started(entered)
            await anyio.sleep_forever()

    return await group.start(hold)
