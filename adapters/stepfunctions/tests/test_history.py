"""What a history comes to: who waits, where it is, how far; event by event, as AWS and the local engine tell them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import process_time
from typing import Any, cast

import pytest
from mcp_workflows_stepfunctions import describe
from mcp_workflows_stepfunctions.client import Client
from mcp_workflows_stepfunctions.describe import HistoryReader
from mcp_workflows_stepfunctions.history import History

from adapters.stepfunctions.tests.cloud import asking, one_state
from adapters.stepfunctions.tests.events import TOKEN, Telling
from adapters.stepfunctions.tests.executions import Runs
from mcp_workflows.adapter import Progress, Status

pytestmark = pytest.mark.anyio


def fold(told: Telling, upto: int | None = None) -> History:
    found = History()
    found.feed(told.events[:upto])
    return found


def waiting(told: Telling) -> list[int]:
    return list(fold(told).waiting)


def both(told: Telling, before: int = 0) -> tuple[tuple[int, int], tuple[int, int], int]:
    """A Parallel whose two branches ask: the question and the latest event of each, and the Parallel's start."""
    started = told.add("ParallelStateStarted", told.enter(before, "Both", "Parallel"))
    first = told.enter(started, "First")
    second = told.enter(started, "Second")
    one = told.schedule(first)
    two = told.schedule(second)
    return (one, told.submit(one)), (two, told.submit(two)), started


# one state


def test_a_state_waits_from_the_scheduled_task_on() -> None:
    told = Telling()
    asked, _ = told.ask(0)
    [found] = fold(told, asked).waiting.values()
    assert (found.event, found.state, found.resource) == (asked, "Ask", "sqs:sendMessage.waitForTaskToken")
    assert waiting(told) == [asked]


@pytest.mark.parametrize(
    "end",
    [
        *("TaskSucceeded", "TaskFailed", "TaskTimedOut", "TaskStateAborted", "TaskSubmitFailed", "TaskStartFailed"),
        *("TaskStateExited", "EvaluationFailed"),
    ],
)
@pytest.mark.parametrize("named", ["the scheduled task", "the latest event"])
def test_it_waits_no_more_after_any_end_of_the_task(end: str, named: str) -> None:
    told = Telling()
    asked, latest = told.ask(0)
    told.add(end, asked if named == "the scheduled task" else latest)
    assert waiting(told) == []


@pytest.mark.parametrize("end", ["ExecutionSucceeded", "ExecutionFailed", "ExecutionAborted", "ExecutionTimedOut"])
@pytest.mark.parametrize("before", [0, 5])
def test_nothing_waits_once_the_execution_has_ended(end: str, before: int) -> None:
    told = Telling()
    told.ask(0)
    told.add(end, before)
    assert (waiting(told), fold(told).ended) == ([], True)


def test_a_task_that_waits_for_nobody_is_no_wait() -> None:
    told = Telling()
    told.add("TaskScheduled", told.enter(0, "Send"), resource="sendMessage", resourceType="sqs", parameters="{}")
    assert waiting(told) == []


def test_another_attempt_and_another_visit_is_another_wait() -> None:
    told = Telling()
    first, latest = told.ask(0)
    second = told.schedule(told.add("TaskTimedOut", latest))
    assert (waiting(told), fold(told).waiting[second].state) == ([second], "Ask")
    latest = told.submit(second)
    visit, _ = told.ask(told.answered(latest))
    assert (waiting(told), first) == ([visit], 3)


def test_a_redriven_execution_waits_again() -> None:
    for before in (0, 2, 3):  # where the new attempt hangs on is not known: all of these are read
        told = Telling()
        _, latest = told.ask(0)
        failed = told.add("ExecutionFailed", told.add("TaskFailed", latest))
        redriven = told.add("ExecutionRedriven", failed)
        again = told.schedule(before or redriven)
        assert (waiting(told), fold(told).ended) == ([again], False)
        assert fold(told).waiting[again].state == "Ask"


def test_a_redriven_execution_is_looked_at_from_its_failed_branches_on() -> None:
    told = Telling()
    (_, one), (_, two), _ = both(told)
    told.answered(one, "First")
    failed = told.add("ParallelStateFailed", told.add("TaskFailed", two))
    told.add("ExecutionRedriven", told.add("ExecutionFailed", failed))
    again = told.schedule(failed - 1)
    assert (waiting(told), fold(told).waiting[again].state) == ([again], "Second")


# Parallel


def test_branches_wait_side_by_side() -> None:
    told = Telling()
    (one, one_latest), (two, _), _ = both(told)
    assert {event: it.state for event, it in fold(told).waiting.items()} == {one: "First", two: "Second"}
    told.answered(one_latest, "First")
    assert waiting(told) == [two]


@pytest.mark.parametrize("named", ["its start", "the branch that failed", "the other branch"])
@pytest.mark.parametrize("end", ["ParallelStateFailed", "ParallelStateAborted"])
def test_a_branch_that_fails_ends_the_waits_of_the_others(named: str, end: str) -> None:
    told = Telling()
    (_, one), (_, two), started = both(told)
    failed = told.add("TaskFailed", one)
    told.add(end, {"its start": started, "the branch that failed": failed, "the other branch": two}[named])
    assert waiting(told) == []


@pytest.mark.parametrize("from_branch", [True, False])
def test_a_parallel_that_is_left_ends_the_waits_in_it(from_branch: bool) -> None:
    told = Telling()
    (_, one), _, started = both(told)
    told.leave(told.add("TaskFailed", one) if from_branch else started, "Both", "Parallel")
    assert waiting(told) == []


def test_a_parallel_that_fails_and_is_caught_is_asked_about_further_on() -> None:
    for with_exit in (True, False):
        told = Telling()
        (_, one), _, _ = both(told)
        failed = told.add("ParallelStateFailed", told.add("TaskFailed", one))
        asked, _ = told.ask(told.leave(failed, "Both", "Parallel") if with_exit else failed, "Rescue")
        assert waiting(told) == [asked]
        assert fold(told).waiting[asked].state == "Rescue"


@pytest.mark.parametrize("told_as", ["ParallelStateFailed", "nothing"])
def test_a_parallel_that_is_tried_again_asks_again(told_as: str) -> None:
    """The local engine tells nothing of a pass that failed if another follows."""
    told = Telling()
    (_, one), _, _ = both(told)
    failed = told.add("TaskFailed", one)
    before = told.add(told_as, failed) if told_as != "nothing" else failed
    asked, latest = told.ask(told.add("ParallelStateStarted", before), "First")
    assert waiting(told) == [asked]
    told.leave(told.answered(latest, "First"), "Both", "Parallel")
    assert waiting(told) == []


def test_a_parallel_in_a_parallel_ends_alone() -> None:
    told = Telling()
    outer = told.add("ParallelStateStarted", told.enter(0, "Outer", "Parallel"))
    asked, _ = told.ask(outer, "Beside")
    inner = told.add("ParallelStateStarted", told.enter(outer, "Inner", "Parallel"))
    one, latest = told.ask(inner, "One")
    two, _ = told.ask(inner, "Two")
    assert waiting(told) == [asked, one, two]
    failed = told.add("ParallelStateFailed", told.add("TaskFailed", latest))
    assert waiting(told) == [asked]
    left = told.leave(failed, "Inner", "Parallel")
    after, _ = told.ask(left, "After")
    assert waiting(told) == [asked, after]
    told.add("ParallelStateFailed", after)
    assert waiting(told) == []


def test_a_parallel_that_succeeded_and_is_left_does_not_end_the_one_around_it() -> None:
    told = Telling()
    outer = told.add("ParallelStateStarted", told.enter(0, "Outer", "Parallel"))
    asked, _ = told.ask(outer, "Beside")
    inner = told.add("ParallelStateStarted", told.enter(outer, "Inner", "Parallel"))
    last = told.leave(told.enter(inner, "Only", "Pass"), "Only", "Pass")
    for before in (last, told.add("ParallelStateSucceeded", last)):
        told.leave(before, "Inner", "Parallel")
        assert waiting(told) == [asked]


# Map


def items(told: Telling, length: int) -> int:
    return told.add("MapStateStarted", told.enter(0, "Each", "Map"), length=length)


def iteration(told: Telling, before: int, index: int, ends: str | None = "Succeeded") -> int:
    begun = told.add("MapIterationStarted", before, name="Each", index=index)
    last = told.leave(told.enter(begun, "Pack", "Pass"), "Pack", "Pass")
    if ends:
        told.add(f"MapIteration{ends}", last, name="Each", index=index)
    return last


def test_a_map_tells_how_far_it_is() -> None:
    told = Telling()
    started = items(told, 3)
    assert fold(told).progress == Progress(value=0, total=3)
    iteration(told, started, 0)
    assert fold(told).progress == Progress(value=1, total=3)
    last = iteration(told, started, 1)
    iteration(told, last, 2, ends=None)  # an iteration may name the last event of the one whose place it takes
    assert (fold(told).progress, fold(told).state) == (Progress(value=2, total=3), "Pack")


def test_a_map_that_goes_on_after_a_redrive_counts_on() -> None:
    told = Telling()
    started = items(told, 3)
    iteration(told, started, 0)
    failed = told.add("MapStateFailed", iteration(told, started, 1, ends="Failed"))
    told.add("ExecutionRedriven", told.add("ExecutionFailed", failed))
    iteration(told, started, 1)
    assert fold(told).progress == Progress(value=2, total=3)


def test_a_map_that_is_left_or_empty_or_distributed_tells_nothing() -> None:
    left, empty, distributed = Telling(), Telling(), Telling()
    left.leave(iteration(left, items(left, 1), 0), "Each", "Map")
    items(empty, 0)
    distributed.add("MapRunStarted", items(distributed, 1000), mapRunArn="arn:aws:states:...")
    assert [fold(told).progress for told in (left, empty, distributed)] == [None, None, None]


def test_of_maps_in_each_other_the_outer_one_tells() -> None:
    told = Telling()
    started = items(told, 2)
    iteration(told, started, 0)
    begun = told.add("MapIterationStarted", started, name="Each", index=1)
    told.add("MapStateStarted", told.enter(begun, "Parts", "Map"), length=50)
    assert fold(told).progress == Progress(value=1, total=2)


def test_iterations_wait_side_by_side() -> None:
    told = Telling()
    started = items(told, 2)
    one, latest = told.ask(told.add("MapIterationStarted", started, name="Each", index=0))
    two, _ = told.ask(told.add("MapIterationStarted", started, name="Each", index=1))
    assert waiting(told) == [one, two]
    told.add("MapIterationSucceeded", told.answered(latest), name="Each", index=0)
    assert (waiting(told), fold(told).progress) == ([two], Progress(value=1, total=2))


@pytest.mark.parametrize("end", ["Failed", "Aborted"])
def test_an_iteration_that_ends_ends_the_waits_in_it(end: str) -> None:
    told = Telling()
    started = items(told, 2)
    begun = told.add("MapIterationStarted", started, name="Each", index=0)
    (_, one), _, _ = both(told, begun)
    other, _ = told.ask(told.add("MapIterationStarted", started, name="Each", index=1))
    told.add(f"MapIteration{end}", one, name="Each", index=0)
    assert waiting(told) == [other]
    told.add(f"MapState{end}", one)
    assert (waiting(told), fold(told).progress) == ([], None)


def test_a_map_is_read_as_aws_tells_it() -> None:
    """As it was recorded there: iterations one after the other hang on the last event of the one before."""
    told = Telling()
    started = items(told, 2)
    told.add("MapIterationStarted", iteration(told, started, 0), name="Each", index=1)
    asked, latest = told.ask(len(told.events))
    last = told.answered(latest)
    assert fold(told).waiting == {}
    succeeded = told.add("MapIterationSucceeded", last, name="Each", index=1)
    told.add("MapStateSucceeded", succeeded)
    left = told.leave(succeeded, "Each", "Map")
    assert (fold(told).progress, fold(told, asked).progress) == (None, Progress(value=1, total=2))
    after, _ = told.ask(left, "After")
    assert [(event, each.state) for event, each in fold(told).waiting.items()] == [(after, "After")]


def test_the_steps_are_the_states_that_were_entered() -> None:
    told = Telling()
    first = told.leave(told.enter(0, "First", "Pass"), "First", "Pass")
    _, latest = told.ask(first, "Ask")
    assert [(step.name, step.status) for step in fold(told).steps] == [
        ("First", Status.SUCCEEDED),
        ("Ask", Status.RUNNING),
    ]
    told.ask(told.add("TaskFailed", latest), "Again")
    assert [(step.name, step.status) for step in fold(told).steps] == [
        ("First", Status.SUCCEEDED),
        ("Ask", Status.FAILED),
        ("Again", Status.RUNNING),
    ]


# feeding


def everything() -> Telling:
    """A history with all of the above in it."""
    told = Telling()
    (_, one), (_, two), _ = both(told)
    left = told.leave(told.answered(two, "Second"), "Both", "Parallel")
    told.answered(one, "First")
    asked, latest = told.ask(left)
    retried = told.submit(told.schedule(told.add("TaskTimedOut", latest)))
    started = told.add("MapStateStarted", told.enter(told.answered(retried), "Each", "Map"), length=40)
    for index in range(40):
        begun = told.add("MapIterationStarted", started, name="Each", index=index)
        _, latest = told.ask(begun, "Pack")
        if index % 3:
            told.add("MapIterationSucceeded", told.answered(latest, "Pack"), name="Each", index=index)
    failed = told.add("MapStateFailed", told.add("TaskFailed", latest))
    told.ask(told.add("ExecutionRedriven", told.add("ExecutionFailed", failed)))
    assert asked
    return told


def pages(events: list[Any], cut: Callable[[], int]) -> Iterable[list[Any]]:
    while events:
        size = max(1, cut())
        yield events[:size]
        events = events[size:]


@pytest.mark.parametrize("seed", range(5))
def test_however_a_history_is_cut_into_pages_it_comes_to_the_same(seed: int) -> None:
    told, dice = everything(), random.Random(seed)
    upto = dice.randrange(1, len(told.events) + 1)
    whole, paged = fold(told, upto), History()
    for page in pages(told.events[:upto], lambda: dice.randrange(30)):
        paged.feed(page)
        paged.feed(page)  # what is known already counts as nothing
    for each in ("waiting", "state", "steps", "progress", "ended", "last_id"):
        assert getattr(paged, each) == getattr(whole, each)


def test_the_longest_history_is_read_at_once_and_not_kept() -> None:
    told = Telling()
    before = 0
    while len(told.events) < 24_990:
        _, latest = told.ask(before)
        before = told.answered(latest)
    begun = process_time()
    found = fold(told)
    assert process_time() - begun < 5  # it takes 0.1 s
    assert len(found.__dict__["_sequences"]) < 10


def test_an_event_that_names_one_we_never_saw_is_read_all_the_same() -> None:
    told = Telling()
    asked, _ = told.ask(99_999)
    told.add("ParallelStateFailed", 88_888)
    told.leave(77_777, "Nowhere", "Parallel")
    told.add("MapIterationStarted", 66_666, name="Nowhere", index=1)
    told.add("MapIterationSucceeded", 66_666, name="Nowhere", index=1)
    told.add("MapIterationFailed", 66_666, name="Nowhere", index=1)
    told.add("ANewTypeOfEvent", 55_555)
    assert waiting(told) == [asked]


def test_no_token_is_shown() -> None:
    told = Telling()
    told.ask(0)
    found = fold(told)
    assert TOKEN not in f"{found!r} {dict(found.waiting)!r} {found.__dict__!r}"


# --- the local engine


def test_a_redriven_execution_asks_again_under_another_key(run: Runs) -> None:
    each = {"Type": "Map", "ItemsPath": "$", "ItemProcessor": one_state("A", asking("A?")), "End": True}
    it = run(one_state("Each", each), [1, 2])
    first, second = it.asked(2)
    yes = {"action": "accept", "content": {"answer": "yes"}}
    assert it.fold().progress == Progress(value=0, total=2)
    it.answer(first, yes)
    it.until(lambda found: found.progress == Progress(value=1, total=2))
    it.fail(second, "Broken")
    it.end()
    assert (it.fold().waiting, it.fold().ended) == ({}, True)
    it.engine.client().redrive_execution(executionArn=it.arn)
    answered: set[int] = set()
    while not (found := it.until(lambda found: found.ended or bool(set(found.waiting) - answered))).ended:
        event = next(event for event in found.waiting if event not in answered)
        assert event > int(second)
        assert found.progress is not None
        it.answer(str(event), yes)
        answered.add(event)
    assert it.end()["status"] == "SUCCEEDED"


# --- the reader


class Shown:
    """What GetExecutionHistory shows at the moment, the newest first, in pages."""

    def __init__(self) -> None:
        self.ids: Sequence[int] = ()

    async def call(self, operation: str, **page: Any) -> Mapping[str, Any]:
        assert operation == "get_execution_history"
        begin, size = int(page.get("nextToken", 0)), page["maxResults"]
        events = [_event(number) for number in self.ids[begin : begin + size]]
        more = {"nextToken": str(begin + size)} if begin + size < len(self.ids) else {}
        return {"events": events, **more}


def _event(number: int) -> Mapping[str, Any]:
    details = {"stateEnteredEventDetails": {"name": f"State {number}"}}
    return {"id": number, "previousEventId": number - 1, "type": "PassStateEntered", **details}


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def histories(shown: Shown) -> HistoryReader:
    return HistoryReader(cast("Client", shown))


async def test_what_is_new_is_read_in_any_order_and_over_pages(shown: Shown, histories: HistoryReader) -> None:
    shown.ids = [3, 2, 1]
    assert (await histories.read("a")).state == "State 3"
    shown.ids = [*range(250, 5, -1), 4, 5, 3, 2, 1]
    assert (await histories.read("a")).last_id == 250


async def test_an_event_that_does_not_show_yet_is_waited_for(
    shown: Shown, histories: HistoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown.ids = [5, 4, 2, 1]
    assert (await histories.read("a")).last_id == 2
    shown.ids = [6, 5, 4, 3, 2, 1]
    assert (await histories.read("a")).last_id == 6
    shown.ids = [8, 6, 5, 4, 3, 2, 1]
    assert (await histories.read("a")).last_id == 6
    monkeypatch.setattr(describe, "_LATE_EVENT_SECONDS", -1.0)  # it has been long enough
    assert (await histories.read("a")).last_id == 8
