"""The lifecycle of a task, as truth tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from mcp_workflows.adapter import Execution, Failure, InputRequest, Progress, Status
from mcp_workflows.task import (
    CREATING,
    STARTING,
    Task,
    accept,
    acknowledge,
    attempt,
    bind,
    expire,
    observe,
    refuse,
    request_cancel,
    retract,
)
from mcp_workflows.testing import make_task

NOON = datetime(2026, 7, 28, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)
LATEST = NOON + timedelta(minutes=10)

QUESTION = InputRequest(method="elicitation/create", params={"message": "Sure?", "requestedSchema": {}})
LOOKS: Mapping[Status, Execution] = {
    Status.RUNNING: Execution(status=Status.RUNNING, message="step 1"),
    Status.INPUT_REQUIRED: Execution(status=Status.INPUT_REQUIRED, requests={"a": QUESTION, "b": QUESTION}),
    Status.SUCCEEDED: Execution(status=Status.SUCCEEDED, output={"n": 1}),
    Status.FAILED: Execution(status=Status.FAILED, failure=Failure(text="declined")),
    Status.CANCELLED: Execution(status=Status.CANCELLED, message="terminated by ben"),
}
ENDED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})


def bound_task(status: Status = Status.RUNNING) -> Task:
    """A started task that was seen in this state at noon."""
    return observe(bind(make_task(created=NOON, updated=NOON), "handle", NOON), LOOKS[status], NOON)


def other_look(status: Status) -> Execution:
    """A look with that status that differs from the first one."""
    return replace(LOOKS[status], message="seen again")


@pytest.mark.parametrize(("before", "after"), list(product(Status, Status)))
def test_from_every_status_to_every_status(before: Status, after: Status) -> None:
    task = bound_task(before)
    seen = observe(task, other_look(after), LATER)
    if before in ENDED:
        assert seen is task
    else:
        assert (seen.execution, seen.updated) == (other_look(after), LATER)
        assert seen.ended == (LATER if after in ENDED else None)


@pytest.mark.parametrize("status", Status)
def test_the_same_look_again_changes_nothing(status: Status) -> None:
    task = bound_task(status)
    assert observe(task, replace(LOOKS[status]), LATER) is task


VISIBLE: Mapping[str, Callable[[Execution], Execution]] = {
    "message": lambda look: replace(look, message="step 2"),
    "progress": lambda look: replace(look, progress=Progress(value=1, total=2)),
    "status": lambda _: LOOKS[Status.SUCCEEDED],
    "questions": lambda _: LOOKS[Status.INPUT_REQUIRED],
}


@pytest.mark.parametrize("change", VISIBLE.values(), ids=VISIBLE)
def test_updated_moves_with_what_can_be_seen(change: Callable[[Execution], Execution]) -> None:
    task = bound_task()
    assert observe(task, change(task.execution), LATER).updated == LATER


def test_updated_never_goes_back_for_a_change_by_a_clock_that_is_behind() -> None:
    ahead = observe(bound_task(), VISIBLE["message"](bound_task().execution), LATER)
    behind = observe(ahead, LOOKS[Status.INPUT_REQUIRED], NOON)
    assert behind.updated > ahead.updated


def test_updated_stays_when_only_a_hidden_question_changed() -> None:
    task = accept(bound_task(Status.INPUT_REQUIRED), ["a"], LATER)
    without = replace(task.execution, requests={"b": QUESTION})
    seen = observe(task, without, LATEST)
    assert (seen.execution, seen.updated) == (without, LATER)


def test_it_never_waits_for_input_without_an_open_question() -> None:
    task = accept(bound_task(Status.INPUT_REQUIRED), ["a", "b"], LATER)
    assert (task.seen.status, dict(task.seen.requests)) == (Status.RUNNING, {})
    nothing_asked = observe(bound_task(), Execution(status=Status.INPUT_REQUIRED), LATER)
    assert nothing_asked.seen.status is Status.RUNNING


def test_an_answered_key_stays_hidden_when_the_engine_shows_it_again() -> None:
    task = observe(accept(bound_task(Status.INPUT_REQUIRED), ["a", "b"], LATER), LOOKS[Status.RUNNING], LATER)
    assert observe(task, LOOKS[Status.INPUT_REQUIRED], LATEST).seen.status is Status.RUNNING


def asks(*keys: str) -> Execution:
    return Execution(status=Status.INPUT_REQUIRED, requests=dict.fromkeys(keys, QUESTION))


@pytest.mark.parametrize(
    ("looks", "only"),
    [
        ([asks("a")], "a"),
        ([asks("a"), LOOKS[Status.RUNNING], asks("a")], "a"),
        ([asks("a"), LOOKS[Status.RUNNING], asks("b")], None),  # the first was over without an answer of ours
        ([asks("a"), asks("a", "b"), asks("a")], None),
        ([asks("b"), asks("c"), asks("d"), asks("a")], None),
        ([asks("a"), LOOKS[Status.RUNNING]], None),
    ],
)
def test_a_question_is_the_only_one_if_no_other_was_ever_seen(looks: Sequence[Execution], only: str | None) -> None:
    task = bound_task()
    for look in looks:
        task = observe(task, look, LATER)
    assert task.only_question == only
    assert len(task.asked_keys) <= 2, "a task that asks for ever keeps no list of it"
    assert accept(task, ["earlier"], LATEST).only_question is None


@pytest.mark.parametrize("status", sorted(ENDED))
def test_an_ended_task_asks_nothing(status: Status) -> None:
    task = observe(bound_task(), replace(LOOKS[status], requests={"a": QUESTION}), LATER)
    assert (task.seen.status, dict(task.seen.requests)) == (status, {})


def test_accepting_the_same_answer_again_changes_nothing() -> None:
    task = accept(bound_task(Status.INPUT_REQUIRED), ["a"], LATER)
    assert accept(task, ["a"], LATEST) is task
    assert accept(task, [], LATEST) is task


def test_each_attempt_is_counted_with_its_time() -> None:
    first = attempt(make_task(), NOON)
    assert (first.attempts, first.attempted) == (1, NOON)
    second = attempt(first, LATER)
    assert (second.attempts, second.attempted) == (2, LATER)
    assert (second.shown, second.updated) == (first.shown, first.updated)


@pytest.mark.parametrize(
    "task",
    [bound_task(), refuse(make_task(), Failure(text="no"), NOON), expire(make_task())],
    ids=["started", "closed", "expired"],
)
def test_what_cannot_be_started_any_more_is_not_attempted(task: Task) -> None:
    assert attempt(task, LATER) is task


@pytest.mark.parametrize(
    ("task", "pending"),
    [
        (attempt(make_task(), NOON), True),
        (attempt(make_task(), NOON - CREATING), False),
        (acknowledge(attempt(make_task(), NOON)), False),
        (attempt(attempt(make_task(), NOON), NOON), False),
        (bind(attempt(make_task(), NOON), "handle", NOON), False),
        (refuse(attempt(make_task(), NOON), Failure(text="no"), NOON), False),
        (make_task(), False),
    ],
    ids=["first attempt", "long ago", "acknowledged", "second attempt", "started", "closed", "never tried"],
)
def test_a_task_is_pending_while_its_first_start_is_under_way_and_nobody_knows_of_it(task: Task, pending: bool) -> None:
    assert task.pending(NOON) is pending


def test_an_attempt_that_never_reached_the_engine_is_taken_back_and_the_task_stays() -> None:
    task = retract(attempt(make_task(), NOON))
    assert (task.attempts, task.acknowledged, task.ended) == (0, True, None)
    assert attempt(task, LATER).attempts == 1


def test_an_attempt_is_not_taken_back_while_another_may_have_started_it() -> None:
    for task in (attempt(attempt(make_task(), NOON), LATER), bound_task(Status.SUCCEEDED), retract(make_task())):
        assert retract(task) is task


def test_binding_keeps_the_handle_and_lets_the_arguments_go() -> None:
    task = bind(make_task(), "first", NOON)
    assert (task.handle, task.input, task.execution.status) == ("first", None, Status.RUNNING)
    assert task.execution.message != STARTING.message


def test_the_first_handle_wins() -> None:
    task = bind(make_task(), "first", NOON)
    assert bind(task, "second", NOON) is task


def test_a_refused_start_ends_the_task_and_frees_its_key() -> None:
    task = refuse(make_task(idempotency_key="once"), Failure(text="no such workflow"), LATER)
    assert (task.execution.status, task.ended, task.updated) == (Status.FAILED, LATER, LATER)
    assert (task.idempotency_key, task.input) == (None, None)
    assert task.execution.failure == Failure(text="no such workflow")


@pytest.mark.parametrize("status", Status)
def test_a_bound_task_cannot_be_refused(status: Status) -> None:
    task = bound_task(status)
    assert refuse(task, Failure(text="no"), LATER) is task


def test_of_several_attempts_the_last_one_that_is_refused_closes_the_task() -> None:
    task = attempt(attempt(make_task(), NOON), NOON)
    first = refuse(task, Failure(text="first"), NOON)
    assert (first.attempts, first.ended) == (1, None)
    last = refuse(first, Failure(text="last"), LATER)
    assert (last.ended, last.execution.failure) == (LATER, Failure(text="last"))


def test_a_refused_attempt_says_nothing_of_one_whose_outcome_is_unknown() -> None:
    task = attempt(make_task(), NOON)  # lost
    for at in (NOON, LATER, LATEST):
        task = refuse(attempt(task, at), Failure(text="no"), at)
        assert (task.attempts, task.ended) == (1, None)


@pytest.mark.parametrize("status", Status)
def test_asking_to_cancel_is_kept_unless_it_has_ended(status: Status) -> None:
    task = bound_task(status)
    asked = request_cancel(task, LATER)
    assert asked.cancel_requested == (None if status in ENDED else LATER)
    assert (asked.seen, asked.updated) == (task.seen, task.updated)
    assert request_cancel(asked, LATEST) is asked


def test_burying_keeps_the_key_and_lets_the_content_go() -> None:
    private = make_task(
        idempotency_key="once", options={"queue": "x"}, context={"user": "anna"}, arguments=[{"card": "4111"}]
    )
    task = expire(observe(private, LOOKS[Status.SUCCEEDED], NOON))
    assert (task.id, task.owner, task.tool, task.key) == (private.id, private.owner, private.tool, private.key)
    assert (task.tombstone, task.idempotency_key, task.fingerprint) == (True, "once", private.fingerprint)
    assert (task.input, task.options, task.context, task.execution.output) == (None, {}, {}, None)


@pytest.mark.parametrize(
    ("expires", "tombstone", "expired"),
    [
        (None, False, False),
        (LATER, False, False),
        (NOON, False, True),
        (NOON - timedelta(days=1), False, True),
        (None, True, True),
        (LATER, True, True),
    ],
)
def test_when_a_task_has_expired(expires: datetime | None, tombstone: bool, expired: bool) -> None:
    assert make_task(expires=expires, tombstone=tombstone).expired(NOON) is expired


def test_a_task_is_never_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        make_task().handle = "x"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # the point
