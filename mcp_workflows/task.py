"""The task as one row, and its lifecycle.

Every change of a row is a pure function here, `Task -> Task`; a store applies it in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Annotated, Any

from pydantic import Field

from mcp_workflows.adapter import JSON, TERMINAL, Execution, Failure, Gate, InputRequest, Status, asked

LIFECYCLE: Mapping[Status, frozenset[Status]] = {
    Status.RUNNING: frozenset(Status),
    Status.INPUT_REQUIRED: frozenset(Status),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELLED: frozenset(),
}
"""The statuses that may follow each status. A terminal status is final (spec)."""

STARTING = Execution(status=Status.RUNNING, message="starting")
DELIVERING = timedelta(seconds=15)  # until then the request itself delivers a cancellation, then maintenance
CLOCKS_DIFFER = timedelta(minutes=1)  # maximum between replicas; a time further ahead was written by a wrong clock
CREATING = timedelta(seconds=30)  # maximum duration of a start attempt: three times the longest call to an engine
SHORTEST_PAUSE = timedelta(seconds=30)  # until maintenance retries a failed step
LONGEST_PAUSE = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnansweredCall:
    """The mark of a call whose caller may not have its reply; the same call again claims the task.

    See docs/decisions/0032.
    """

    match: str  # a digest: equal for the same call
    holder: str  # the call that the task answers now
    called: datetime  # arrival of the call that started it
    open_from: datetime | None = None  # a matching call may claim the task from then on; None: at once
    open_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of an approval, frozen at the start: the approvers, and the steps without a decision (in seconds)."""

    approvers: str  # as text
    remind: float | None = None
    after: float | None = None
    escalates_to: str | None = None  # as text; None: it is declined then


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """An open question that needs an approval."""

    since: datetime
    reminded: datetime | None = None
    escalated: datetime | None = None
    notified: Mapping[str, datetime] = field(default_factory=dict[str, datetime])  # channels: first acceptance
    unreached: frozenset[str] = frozenset()  # channels that have not accepted it


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision on an approval."""

    by: str | None  # id of the principal; None: a deadline passed
    at: datetime
    is_approved: bool
    reason: str | None = None
    gate: str = ""  # of the question, which the task no longer has


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The mark of a task that waits for an approval before anything is started."""

    ttl: float  # seconds that it can be read after the decision
    requester: str  # the caller, sealed: its rights are checked again at the approval
    tool: str  # a digest of the tool, which must not change until then


class Step(StrEnum):
    """A maintenance step for an approval without a decision."""

    REMIND = "remind"
    ESCALATE = "escalate"
    DECLINE = "decline"


START_KEY = ".approval"  # key of the question about the start; `engines.registry` refuses executions that ask with it
START_GATE = START_KEY  # its gate among the terms; no question of a tool has this name


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row: the map from a task id to an execution, and its last observed state."""

    id: str
    owner: str
    tool: str
    engine: str
    workflow: str
    key: str  # one key, one execution: see `Start.key`
    input: Annotated[JSON, Field(alias="arguments")]  # of the workflow; kept until the start; alias: in stores
    created: datetime
    updated: datetime  # the last change of status, message, progress or questions
    expires: datetime | None  # created + ttl; None: never
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # the tool's, frozen at the start
    context: Mapping[str, str] = field(default_factory=dict[str, str])
    gates: Mapping[str, Gate] = field(default_factory=dict[str, Gate])  # the tool's, frozen at the start
    arguments: Annotated[JSON, Field(alias="given")] = None  # of the tool, kept while gates may need them
    max_result: int
    output_schema: Mapping[str, JSON] | None = None
    idempotency_key: str | None = None  # as the client sent it; unique per owner and tool
    fingerprint: str  # of the client's arguments: the same idempotency key must mean the same call
    host: str | None = None  # the calling program's own name
    target: str | None = None  # of an action: the handle of its execution
    attempts: int = 0  # starts that may have succeeded; each is recorded before it is made
    attempted: datetime | None = None  # beginning of the last attempt; None: none, or made by an older version
    acknowledged: bool = False  # a call returned it before it was known to be started
    unanswered: UnansweredCall | None = None
    handle: str | None = None  # None: not known to be started
    execution: Execution = STARTING
    ended: datetime | None = None
    answered: frozenset[str] = frozenset()  # keys of questions with an accepted answer
    asked_keys: frozenset[str] = frozenset()  # keys of the questions ever observed, at most two
    cancel_requested: datetime | None = None
    cancel_delivered: bool = False  # the engine has accepted it
    cancelled: datetime | None = None  # a client of 2025-11-25 was notified: in that revision it has ended, finally
    guarded: bool = False  # its tool had rules when it was created: see access.policy
    grace: float | None = None  # seconds from an accepted cancellation to termination; None: never
    terminated: datetime | None = None  # when the engine was asked to terminate it
    cancel_on_expiry: bool = False  # its execution is cancelled when its time to live ends
    not_before: datetime | None = None  # maintenance takes no step before this
    may_answer: bool = True  # False: its questions are for others
    may_cancel: bool = True
    tombstone: bool = False  # expired: its key starts nothing again, and its owner learns that it has expired
    identity: str = ""  # of its engine, see `Adapter.identity`; empty: the row predates identities
    held: Held | None = None  # None: no approval is needed before the start, or no longer
    terms: Mapping[str, Terms] = field(default_factory=dict[str, Terms])  # by the gate of the question
    waiting: Mapping[str, Waiting] = field(default_factory=dict[str, Waiting])  # by the key of the question
    decisions: Mapping[str, Decision] = field(default_factory=dict[str, Decision])  # by the key of the question
    channels: frozenset[str] = frozenset()  # channels notified of one of its questions, to be notified of its end

    @property
    def engine_key(self) -> str:
        """The engine's name and identity, by which stores search for rows; see `engine_key`."""
        return engine_key(self.engine, self.identity)

    @property
    def seen(self) -> Execution:
        """The execution as clients may see it: without answered questions, and waiting only if a question is open."""
        seen = _open(self) if self.may_answer else _watched(self)
        return seen if self.cancel_requested is None or self.grace is None else _announced(self, seen)

    @property
    def only_question(self) -> str | None:
        """The key of the open question, if the execution was never observed to ask another one."""
        known = self.asked_keys | self.answered | self.execution.requests.keys()
        return next(iter(self.seen.requests), None) if len(known) == 1 else None

    @property
    def shown(self) -> tuple[object, ...]:
        """The parts in which a client sees a change: status, message, progress, questions, steps, cancellation."""
        seen = self.seen
        return seen.status, seen.message, seen.progress, seen.requests, seen.steps, self.cancelled is not None

    @property
    def due(self) -> datetime | None:
        """The time at which maintenance must act: deliver a cancellation, terminate, remind; None: never.

        An unstarted task is recovered first.
        """
        owed = self.owed
        return owed if owed is None or self.not_before is None else max(owed, self.not_before)

    @property
    def owed(self) -> datetime | None:
        """The same time, ignoring maintenance's failed attempts."""
        if self.ended or self.tombstone or self.terminated or (self.handle is None and self.held is None):
            return None
        if self.cancel_requested is None:
            times = [at for at, _, _ in steps_of(self)]
            return min([*times, *([self.cancels_itself] if self.cancels_itself else [])], default=None)
        if not self.cancel_delivered:
            return self.cancel_requested
        return None if self.grace is None else self.cancel_requested + timedelta(seconds=self.grace)

    @property
    def cancels_itself(self) -> datetime | None:
        """The time at which its execution is cancelled because its time to live ends; None: it is not."""
        is_meant = self.cancel_on_expiry and self.handle is not None and self.cancel_requested is None
        return self.expires if is_meant else None

    @property
    def can_start(self) -> bool:
        """True if it is not known to be started, and needs no approval first."""
        return self.handle is None and self.ended is None and self.held is None

    def terms_of(self, key: str) -> Terms | None:
        """Return the terms of an open question; None: it needs no approval."""
        request = self.execution.requests.get(key)
        return None if request is None or request.gate is None else self.terms.get(request.gate)

    def pending(self, now: datetime) -> bool:
        """Return True if no client knows it yet: its first start is in progress, and no call has returned it."""
        if self.acknowledged or self.handle is not None or self.ended or self.attempts > 1:
            return False
        return self.attempted is not None and now < self.attempted + CREATING

    def expired(self, now: datetime) -> bool:
        """Return True if its time to live is over."""
        return self.tombstone or (self.expires is not None and self.expires <= now)


class EventName(StrEnum):
    """The kind of a row in the event log, and of the event that clients get."""

    ENDED = "task.ended"
    INPUT_REQUIRED = "task.input_required"
    PROGRESS = "task.progress"  # never in the log: it is read from the task
    EXECUTION_ENDED = "execution.ended"
    # internal, never for clients
    SUBSCRIPTION = ".subscription"  # a subscription was written or deleted
    REMINDED = ".reminded"  # a reminder of an approval is due
    ESCALATED = ".escalated"  # further people may approve
    ANSWERED = ".answered"  # an approval was given or refused


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """One row in the event log. It has no input, output or question, only names, ids, digests and times."""

    id: str  # the same for the same event, however often it is observed
    name: str  # an EventName, or one of a newer version
    at: datetime
    tool: str = ""
    owner: str = ""
    task_id: str = ""
    key: str = ""  # a digest of the question; for a subscription or an execution, its note key
    position: int = 0  # in the log, assigned by the store; 0: not in it yet


def event_id(name: EventName, *parts: str) -> str:
    """Return the id of an event, which does not reveal its parts."""
    return f"evt_{blake2b(repr((name.value, *parts)).encode(), digest_size=16).hexdigest()}"


def question_digest(task_id: str, key: str) -> str:
    """Return a name for a task's question, which does not reveal its key."""
    return blake2b(repr((task_id, key)).encode("utf-8", "replace"), digest_size=12).hexdigest()


def events_between(before: Task | None, after: Task) -> Sequence[LoggedEvent]:
    """Return the events of a change, or of a new row; a store writes them in the transaction that writes the row."""
    if before is None:  # other rows that start with a question were imported
        return [event_of(after, key) for key in after.execution.requests] if after.held else ()
    if after.tombstone:
        return ()
    found = [] if before.waiting is after.waiting else list(_events_of_steps(before.waiting, after))
    if before.decisions is not after.decisions:
        found += [
            event_of(after, key, EventName.ANSWERED, each.at)
            for key, each in after.decisions.items()
            if key not in before.decisions
        ]
    if before.execution is after.execution:
        return found
    if after.ended:
        return found if before.ended else [*found, event_of(after)]
    opened = after.execution.requests.keys() - before.execution.requests.keys()
    return [*found, *(event_of(after, key) for key in after.execution.requests if key in opened)]


def _events_of_steps(before: Mapping[str, Waiting], after: Task) -> Iterator[LoggedEvent]:
    """Yield the events of maintenance steps for open approvals; an escalation counts as a reminder."""
    for key, each in after.waiting.items():
        old = before.get(key)
        if old is not None and each.escalated and not old.escalated:
            yield event_of(after, key, EventName.ESCALATED, each.escalated)
        elif old and each.reminded and (old.reminded is None or each.reminded > old.reminded):  # else it was corrected
            yield event_of(after, key, EventName.REMINDED, each.reminded)


def event_of(
    task: Task, question: str | None = None, name: EventName = EventName.INPUT_REQUIRED, at: datetime | None = None
) -> LoggedEvent:
    """Return the event of the task's end, or of a question by its key; the same one always gets the same event.

    `at`: distinguishes repeated events of one question.
    """
    name = EventName.ENDED if question is None else name
    key = "" if question is None else question_digest(task.id, question)
    return LoggedEvent(
        id=event_id(name, task.id, key, *([] if at is None else [at.isoformat()])),
        name=name,
        at=at or task.ended or task.updated,
        tool=task.tool,
        owner=task.owner,
        task_id=task.id,
        key=key,
    )


def steps_of(task: Task) -> Iterator[tuple[datetime, str, Step]]:
    """Yield the maintenance steps for open approvals: time, key of the question, and step."""
    if task.cancel_requested is not None or not task.may_answer:
        return
    for key, waiting in task.waiting.items():
        terms = task.terms_of(key)
        if terms is not None and terms.remind is not None:
            yield (waiting.reminded or waiting.since) + timedelta(seconds=terms.remind), key, Step.REMIND
        if terms is not None and terms.after is not None and waiting.escalated is None:
            step = Step.ESCALATE if terms.escalates_to else Step.DECLINE
            yield waiting.since + timedelta(seconds=terms.after), key, step


def engine_key(name: str, identity: str) -> str:
    """Return the text that stores search by: a row belongs to one engine, not to every engine of that name."""
    return f"{name}\n{identity}" if identity else name


def split_engine_key(key: str) -> tuple[str, str]:
    """Return the name and the identity; the identity of a row that predates identities is empty."""
    name, _, identity = key.partition("\n")
    return name, identity


def _open(task: Task) -> Execution:
    """Return the execution without answered questions, for a caller who may answer the others."""
    execution = task.execution
    if execution.status is not Status.INPUT_REQUIRED:
        return replace(execution, requests={}) if execution.requests else execution
    open_requests: Mapping[str, InputRequest] = {
        key: request for key, request in execution.requests.items() if key not in task.answered
    }
    if not open_requests:
        return replace(execution, status=Status.RUNNING, message="answer delivered", requests={})
    message = "; ".join(filter(None, (execution.message, notices_of(task)))) or None
    return replace(execution, message=message, requests=open_requests)


def _watched(task: Task) -> Execution:
    """Return the execution for a caller who may not answer: it is running, and the message has the questions."""
    execution = task.execution
    if execution.status is not Status.INPUT_REQUIRED:
        return replace(execution, requests={}) if execution.requests else execution
    notices = f" ({said})" if (said := notices_of(task)) else ""
    message = f"{waits_for(task)}{notices}: {asked(execution.requests)}"
    return replace(execution, status=Status.RUNNING, message=message, requests={})


def waits_for(task: Task) -> str:
    """Return the people whom the open questions wait for, as a text for callers who may not answer."""
    found = [task.terms_of(key) for key in task.execution.requests]
    names = dict.fromkeys(name for terms in found if terms for name in (terms.approvers, terms.escalates_to) if name)
    escalated = any(each.escalated for each in task.waiting.values())
    if None in found or not names:
        return "waits for somebody else's answer"
    known = list(names) if escalated else [each.approvers for each in found if each]
    return f"waits for {' or '.join(dict.fromkeys(known))}"


def notices_of(task: Task) -> str:
    """Return which channels were notified of the open questions, and when; the text does not depend on the time."""
    open_ = [each for key, each in task.waiting.items() if key in task.execution.requests]
    notified: dict[str, datetime] = {}
    for each in open_:
        notified |= {name: max(at, notified.get(name, at)) for name, at in each.notified.items()}
    said = [f"{name} notified at {at:%Y-%m-%d %H:%M} UTC" for name, at in sorted(notified.items())]
    unreached = sorted(frozenset[str]().union(*(each.unreached for each in open_)))
    return "; ".join([*said, *(f"{name} could not be notified" for name in unreached)])


def _announced(task: Task, seen: Execution) -> Execution:
    """Return the execution with the state of its cancellation in the message; independent of the time."""
    if seen.terminal:
        return seen
    if task.terminated:
        said = "terminated, as it did not end in time after the request to cancel"
    elif task.cancel_delivered and (due := task.due):
        said = f"asked to cancel; will be terminated at {due:%H:%M:%S} UTC unless it ends before"
    else:
        said = "asked to cancel; its engine has not accepted that yet"
    return replace(seen, message=f"{said}; {seen.message}" if seen.message else said)


def attempt(task: Task, at: datetime, identity: str = "", *, is_sent: bool = True) -> Task:
    """Count an attempt to start it; a row without an identity gets the engine's.

    With `is_sent` false the attempt has begun but does not count yet, because its engine is still being connected.
    """
    if not task.can_start or task.tombstone:
        return task
    return replace(task, attempts=task.attempts + is_sent, attempted=at, identity=task.identity or identity)


def identify(task: Task, identity: str) -> Task:
    """Set the identity of a row without one; an existing identity stays."""
    return task if task.identity else replace(task, identity=identity)


def bind(task: Task, handle: str, at: datetime) -> Task:
    """Store the handle; the first one stays, because one key means one execution."""
    if task.handle is not None or task.tombstone:
        return task
    execution = task.execution if task.execution != STARTING else Execution(status=Status.RUNNING)
    return _touched(task, at, handle=handle, execution=execution, input=None)


def observe(task: Task, execution: Execution, at: datetime) -> Task:
    """Apply an observed execution: the first terminal outcome stays, and only visible changes move `updated`."""
    if task.tombstone or execution.status not in LIFECYCLE[task.execution.status] or execution == task.execution:
        return task
    ended = at if execution.status in TERMINAL else None
    waiting = {
        key: task.waiting.get(key) or Waiting(since=at)
        for key, request in execution.requests.items()
        if request.gate in task.terms and key not in task.answered
    }
    keys = sorted(task.asked_keys | task.execution.requests.keys() | execution.requests.keys())[:2]
    return _touched(task, at, execution=execution, ended=ended, asked_keys=frozenset(keys), waiting=waiting)


def accept(task: Task, keys: Iterable[str], at: datetime, decisions: Mapping[str, Decision] | None = None) -> Task:
    """Record that answers to these questions were delivered, and approvals decided: they are never shown again."""
    answered = task.answered | frozenset(keys)
    if answered == task.answered:
        return task
    waiting = {key: each for key, each in task.waiting.items() if key not in answered}
    return _touched(task, at, answered=answered, waiting=waiting, decisions={**(decisions or {}), **task.decisions})


def hold(task: Task, held: Held, request: InputRequest) -> Task:
    """Make a new task wait for an approval before anything is started for it."""
    terms = task.terms[START_GATE]
    after = None if terms.escalates_to else terms.after
    return replace(
        task,
        held=held,
        acknowledged=True,  # it is not given up, but started later
        waiting={START_KEY: Waiting(since=task.created)},
        execution=Execution(status=Status.INPUT_REQUIRED, requests={START_KEY: request}),
        asked_keys=frozenset({START_KEY}),
        expires=None if after is None else task.created + timedelta(seconds=after + held.ttl),
    )


def decide(task: Task, decision: Decision, declined: str) -> Task:
    """Apply the decision on a held start; the first one counts. `declined`: the failure's text after a refusal."""
    if task.held is None or task.ended or task.tombstone:
        return task
    at = decision.at
    known = replace(task, decisions={**task.decisions, START_KEY: decision}, answered=task.answered | {START_KEY})
    if not decision.is_approved:
        failure = Failure(text=declined, kind="Declined")
        return replace(_let_go(known, Execution(status=Status.FAILED, failure=failure), at), ended=at, input=None)
    return _let_go(known, STARTING, at)


def _let_go(task: Task, execution: Execution, at: datetime) -> Task:
    """End the wait for the approval of the start."""
    ttl = timedelta(seconds=task.held.ttl if task.held else 0)
    return _touched(task, at, held=None, waiting={}, execution=execution, expires=at + ttl)


def note_step(task: Task, key: str, step: Step, at: datetime) -> Task:
    """Record that people were reminded of an approval, or that it was escalated."""
    waiting = task.waiting.get(key)
    if waiting is None or task.ended:
        return task
    done = replace(waiting, reminded=at) if step is Step.REMIND else replace(waiting, reminded=at, escalated=at)
    return _touched(task, at, waiting={**task.waiting, key: done})


def note_delivery(task: Task, key: str, channel: str, at: datetime | None) -> Task:
    """Record when a channel accepted a notification about a question; None: it did not, or its reply was lost."""
    if task.tombstone:
        return task
    known = task if channel in task.channels else replace(task, channels=task.channels | {channel})
    waiting = task.waiting.get(key)
    if waiting is None or (
        (channel in waiting.unreached) == (at is None) and (at is None or channel in waiting.notified)
    ):
        return known
    if at is None:
        done = replace(waiting, unreached=waiting.unreached | {channel})
    else:
        done = replace(waiting, notified={channel: at, **waiting.notified}, unreached=waiting.unreached - {channel})
    return _touched(known, at or task.updated, waiting={**task.waiting, key: done})


def mark_unanswered(task: Task, call: UnansweredCall, *, again: bool) -> Task:
    """Mark the task as unanswered; `again`: this call has marked it before, and may have lost it since."""
    holder = None if task.unanswered is None else task.unanswered.holder
    is_ours = holder == call.holder or (holder is None and not again)
    return replace(task, unanswered=call) if is_ours and not task.tombstone else task


def take_over(task: Task, former: str, call: UnansweredCall) -> Task:
    """Give the task to a repeated call if the `former` holder still has it."""
    if task.unanswered is None or task.unanswered.holder != former:
        return task
    return replace(task, unanswered=call)


def mark_answered(task: Task, holder: str) -> Task:
    """Delete the mark if this call still holds the task."""
    if task.unanswered is None or task.unanswered.holder != holder:
        return task
    return replace(task, unanswered=None)


def request_cancel(task: Task, at: datetime) -> Task:
    """Record a client's request to cancel; the engine decides the outcome."""
    if task.ended or task.cancel_requested or task.tombstone:
        return task
    if task.held is not None:
        cancelled = Execution(status=Status.CANCELLED, message="cancelled before it was approved")
        return replace(_let_go(task, cancelled, at), cancel_requested=at, ended=at, input=None)
    return _touched(task, at, cancel_requested=at, not_before=at + DELIVERING)


def mark_cancelled(task: Task, at: datetime) -> Task:
    """Record the request, and that the client was notified of the cancellation, which is final in its revision."""
    if task.ended or task.cancelled:
        return task
    return _touched(request_cancel(task, at), at, cancelled=at)


def deliver_cancel(task: Task, at: datetime) -> Task:
    """Record that the engine has accepted the request to cancel; the grace begins."""
    if task.cancel_delivered or task.tombstone:
        return task
    until = None if task.grace is None else at + timedelta(seconds=task.grace)
    return _touched(task, at, cancel_delivered=True, not_before=until)


def mark_terminated(task: Task, at: datetime) -> Task:
    """Record that the engine was asked to terminate it; a later poll shows when it has ended."""
    if task.terminated or task.ended or task.tombstone:
        return task
    return _touched(task, at, terminated=at, not_before=None)


def postpone(task: Task, at: datetime) -> Task:
    """Postpone a failed step, longer each time, but not beyond the end of its time to live."""
    if task.owed is None:
        return task
    until = at + min(max(at - task.owed, SHORTEST_PAUSE), LONGEST_PAUSE)
    over = task.cancels_itself
    return _touched(task, at, not_before=until if over is None or over <= at else min(until, over))


def is_ahead(time: datetime, now: datetime) -> bool:
    """Return True if only a clock that was ahead can have written this time."""
    return time > now + CLOCKS_DIFFER


def set_back(task: Task, now: datetime) -> Task:
    """Correct times written before the clock was set back: steps that would wait too long are due at once.

    An execution that was asked to cancel gets its full grace again. A start attempt gets its full time to settle again,
    if its creation time can be right: an older one is not found. An approval waits from now on. All other times stay.
    """
    latest = now + CLOCKS_DIFFER
    if task.attempted and task.attempted > latest and task.created <= latest and task.handle is None:
        task = replace(task, attempted=now)
    if any(is_ahead(time, now) for each in task.waiting.values() for time in _times(each)):
        task = replace(task, waiting={key: _waiting_by(each, now) for key, each in task.waiting.items()})
    if task.cancel_requested is None and task.not_before and task.not_before > latest + LONGEST_PAUSE:
        task = replace(task, not_before=None)
    over = task.ended or task.tombstone or task.terminated or (task.cancel_delivered and task.grace is None)
    if over or task.cancel_requested is None:
        return task
    grace = timedelta(seconds=task.grace or 0) if task.cancel_delivered else timedelta()
    if task.cancel_requested <= latest and (task.not_before or now) <= latest + max(grace, LONGEST_PAUSE):
        return task
    until = now + grace if task.cancel_delivered else None
    return _touched(task, now, cancel_requested=min(task.cancel_requested, now), not_before=until)


def _times(waiting: Waiting) -> Sequence[datetime]:
    return [each for each in (waiting.since, waiting.reminded, waiting.escalated) if each is not None]


def _waiting_by(waiting: Waiting, now: datetime) -> Waiting:
    """Return a waiting question without times after now."""
    reminded, escalated = (each and min(each, now) for each in (waiting.reminded, waiting.escalated))
    return replace(waiting, since=min(waiting.since, now), reminded=reminded, escalated=escalated)


def acknowledge(task: Task) -> Task:
    """Record that a call returns it before it is known to be started: from now on it is not given up."""
    if task.handle is not None or task.ended or task.tombstone or task.acknowledged:
        return task
    return replace(task, acknowledged=True)


def refuse(task: Task, failure: Failure, at: datetime, *, final: bool = False) -> Task:
    """Close it after the engine refused to start it; its idempotency key is free again.

    If another attempt may have started it, only this attempt is dropped, unless the refusal is final for all attempts.
    """
    if task.handle is not None or task.ended:
        return task
    if task.attempts > 1 and not final:
        return replace(task, attempts=task.attempts - 1)
    closed = observe(task, Execution(status=Status.FAILED, failure=failure), at)
    return replace(closed, idempotency_key=None, input=None)


def retract(task: Task) -> Task:
    """Take back an attempt that never reached the engine: keep the task, and start it later as if for the first time.

    If another attempt may have started it, it is unchanged.
    """
    if task.handle is not None or task.ended or task.attempts != 1:
        return task
    return replace(task, attempts=0, acknowledged=True)


def mark_outcome_unknown(task: Task, failure: Failure, at: datetime) -> Task:
    """End it with an unknown outcome. Its idempotency key stays, or it could start again."""
    if task.handle is not None or task.ended:
        return task
    return replace(observe(task, Execution(status=Status.FAILED, failure=failure), at), input=None)


def release(task: Task, now: datetime) -> Task:
    """Free the idempotency key of an expired task. Only for adopted tasks, for which nothing is ever started."""
    return replace(task, idempotency_key=None) if task.expired(now) else task


def release_key(task: Task) -> Task:
    """Free an idempotency key derived from the arguments, which may recur and mean another call."""
    return task if task.idempotency_key is None else replace(task, idempotency_key=None)


def expire(task: Task) -> Task:
    """Drop all content of an expired task; its idempotency key and its owner stay."""
    return replace(
        task,
        tombstone=True,
        input=None,
        execution=STARTING,
        options={},
        context={},
        gates={},
        arguments=None,
        output_schema=None,
        answered=frozenset(),
        asked_keys=frozenset(),
        not_before=None,
        unanswered=None,
        held=None,
        terms={},
        waiting={},
        decisions={},
        channels=frozenset(),
    )


def _touched(before: Task, at: datetime, **changes: Any) -> Task:  # Any: values of the fields
    """Return the task with these changes; it counts as updated if a client can see one of them.

    The time of a change never goes back, although replicas' clocks differ: the latest row is the latest state.
    """
    updated = at if at >= before.updated else before.updated + timedelta.resolution
    after = replace(before, **changes, updated=updated)
    return after if after.shown != before.shown else replace(after, updated=before.updated)
