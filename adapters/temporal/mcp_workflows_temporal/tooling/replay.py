"""What clients would have seen of an execution, from its exported history alone: no engine, no worker.

The gates are decided by the same rules as in a look (`gates.Rule.opened`), event by event.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from google.protobuf.json_format import ParseError
from mcp_workflows_temporal_worker.contract import MEMO_INPUT, MEMO_STATUS
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import default as default_converter

from mcp_workflows.adapter import JSON, Execution, Failure, Gate, InputRequest, Replayed, Status
from mcp_workflows.errors import ConfigError, EngineRefused
from mcp_workflows_temporal.gate_history import Names, Trail, join, trail
from mcp_workflows_temporal.gate_rules import CLOSED, Rule, key_of, names_of, read_rules
from mcp_workflows_temporal.labels import mapping, progress, questions, text
from mcp_workflows_temporal.status import failure

EXPORT = "export one with: temporal workflow show --workflow-id ID --output json > history.json"
ENCODINGS: Mapping[str, Callable[[bytes], JSON]] = {"json/plain": json.loads, "binary/null": lambda _: None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Where the execution stands after some events."""

    trail: Trail | None = None
    run_id: str = ""
    original_run_id: str = ""  # the run it goes back to over resets
    first_run_id: str = ""
    memo: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    encrypted: str | None = None  # the encoding of what cannot be read in the memo
    cancel_requested: bool = False
    paused: str | None = None
    end: Execution | None = None


def replay(history: JSON, gates: Mapping[str, Gate]) -> Sequence[Replayed]:
    """Each change a client would have seen.

    Raises:
        ConfigError: this is no history of a Temporal execution, or a gate is none.
    """
    try:
        rules = read_rules(gates)
    except EngineRefused as error:
        raise ConfigError(str(error)) from None
    return list(_changes(_events(history), rules))


def _events(history: JSON) -> Sequence[HistoryEvent]:
    if not isinstance(history, dict):
        raise ConfigError(f"this is not a Temporal history, an object with a list of events; {EXPORT}")
    try:
        events = WorkflowHistory.from_json("", cast("dict[str, JSON]", history)).events
    except (ParseError, AttributeError, TypeError, KeyError, ValueError) as error:  # whatever a strange shape leads to
        raise ConfigError(f"this is not a Temporal history ({type(error).__name__}); {EXPORT}") from None
    if not events or events[0].event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        raise ConfigError(f"this is not a whole Temporal history: it does not begin with its start; {EXPORT}")
    return events


def _changes(events: Sequence[HistoryEvent], rules: Sequence[Rule]) -> Iterator[Replayed]:
    names, stand, last = names_of(rules), Stand(), None
    for event in events:
        stand = _step(stand, event, names)
        seen = _seen(stand, rules)
        if seen != last:
            yield Replayed(event=str(event.event_id), execution=seen)
        last = seen


def _step(stand: Stand, event: HistoryEvent, names: Names) -> Stand:
    stretch = trail(event, names)
    stand = replace(stand, trail=join(stand.trail, stretch) if stand.trail else stretch)
    effect = EFFECTS.get(event.WhichOneof("attributes") or "")
    return effect(stand, event) if effect else stand


def _seen(stand: Stand, rules: Sequence[Rule]) -> Execution:
    if stand.end is not None:
        return stand.end
    words = mapping(stand.memo.get(MEMO_STATUS))
    requests = {} if stand.paused is not None else {**_asked(stand), **_gates(stand, rules)}
    return Execution(
        status=Status.INPUT_REQUIRED if requests else Status.RUNNING,
        message="; ".join(_messages(stand, rules, text(words.get("message")))) or None,
        progress=progress(words),
        requests=requests,
        cancel_requested=stand.cancel_requested,
    )


def _messages(stand: Stand, rules: Sequence[Rule], words: str | None) -> Iterator[str]:
    said = stand.paused if stand.paused is not None else words
    if stand.cancel_requested:
        said = f"cancellation requested: {said}" if said else "cancellation requested"
    if said:
        yield said
    if stand.encrypted:
        yield f"its memo is encrypted ({stand.encrypted}): what it says and asks itself cannot be told here"
    for rule in rules:
        if rule.when.query is not None:
            yield f"gate {rule.name} is told by the query {rule.when.query}, which is not in a history"


def _asked(stand: Stand) -> Mapping[str, InputRequest]:
    asked = mapping(stand.memo.get(MEMO_INPUT))
    own = asked.get("run") in {stand.run_id, stand.original_run_id}
    return questions(asked) if own else {}


def _gates(stand: Stand, rules: Sequence[Rule]) -> Mapping[str, InputRequest]:
    found: dict[str, InputRequest] = {}
    for rule in rules:
        event = rule.opened(stand.trail) if stand.trail and rule.when.query is None else CLOSED
        if event:
            found[key_of(rule.name, event, stand.run_id, stand.first_run_id)] = replace(rule.request, gate=rule.name)
    return found


def _started(stand: Stand, event: HistoryEvent) -> Stand:
    started = event.workflow_execution_started_event_attributes
    original = started.original_execution_run_id
    first = started.first_execution_run_id or original
    stand = replace(stand, run_id=original, original_run_id=original, first_run_id=first)
    return _remembering(stand, started.memo.fields)


def _modified(stand: Stand, event: HistoryEvent) -> Stand:
    return _remembering(stand, event.workflow_properties_modified_event_attributes.upserted_memo.fields)


def _remembering(stand: Stand, fields: Mapping[str, Payload]) -> Stand:
    memo, encrypted = dict(stand.memo), stand.encrypted
    for name in fields.keys() & {MEMO_INPUT, MEMO_STATUS}:
        try:
            memo[name] = _plain(fields[name])
        except ValueError as error:
            encrypted = str(error)
    return replace(stand, memo=memo, encrypted=encrypted)


def _plain(payload: Payload) -> JSON:
    """The JSON value in a payload.

    Raises:
        ValueError: there is no codec here; the message is the encoding.
    """
    encoding = payload.metadata.get("encoding", b"none").decode("ascii", "replace")
    if encoding not in ENCODINGS:
        raise ValueError(encoding)
    return ENCODINGS[encoding](payload.data)


def _task_failed(stand: Stand, event: HistoryEvent) -> Stand:
    """A reset leaves a failed workflow task that names the run it made."""
    run = event.workflow_task_failed_event_attributes.new_run_id
    return replace(stand, run_id=run) if run else stand


def _cancel_requested(stand: Stand, _event: HistoryEvent) -> Stand:
    return replace(stand, cancel_requested=True)


def _paused(stand: Stand, event: HistoryEvent) -> Stand:
    reason = event.workflow_execution_paused_event_attributes.reason
    return replace(stand, paused=f"paused: {reason}" if reason else "paused")


def _unpaused(stand: Stand, _event: HistoryEvent) -> Stand:
    return replace(stand, paused=None)


def _goes_on(stand: Stand, run: str) -> Stand:
    said = f"it goes on as another run, with a history of its own: {run}"
    return replace(stand, end=Execution(status=Status.RUNNING, message=said))


def _completed(stand: Stand, event: HistoryEvent) -> Stand:
    completed = event.workflow_execution_completed_event_attributes
    if completed.new_execution_run_id:
        return _goes_on(stand, completed.new_execution_run_id)
    end = Execution(status=Status.SUCCEEDED, cancel_requested=stand.cancel_requested)
    try:
        output = _plain(completed.result.payloads[0]) if completed.result.payloads else None
        return replace(stand, end=replace(end, output=output))
    except ValueError as error:
        return replace(stand, end=replace(end, message=f"its result is encrypted ({error})"))


def _failed(stand: Stand, event: HistoryEvent) -> Stand:
    failed = event.workflow_execution_failed_event_attributes
    if failed.new_execution_run_id:
        return _goes_on(stand, failed.new_execution_run_id)
    converter = default_converter()
    error = converter.failure_converter.from_failure(failed.failure, converter.payload_converter)
    return replace(stand, end=Execution(status=Status.FAILED, failure=failure(error)))


def _timed_out(stand: Stand, event: HistoryEvent) -> Stand:
    run = event.workflow_execution_timed_out_event_attributes.new_execution_run_id
    said = Failure(text="the workflow timed out", kind="TimedOut")
    return _goes_on(stand, run) if run else replace(stand, end=Execution(status=Status.FAILED, failure=said))


def _cancelled(stand: Stand, _event: HistoryEvent) -> Stand:
    return replace(stand, end=Execution(status=Status.CANCELLED, message="cancelled"))


def _terminated(stand: Stand, event: HistoryEvent) -> Stand:
    reason = event.workflow_execution_terminated_event_attributes.reason
    said = f"terminated: {reason}" if reason else "terminated"
    return replace(stand, end=Execution(status=Status.CANCELLED, message=said))


def _continued(stand: Stand, event: HistoryEvent) -> Stand:
    return _goes_on(stand, event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id)


EFFECTS: Mapping[str, Callable[[Stand, HistoryEvent], Stand]] = {
    "workflow_execution_started_event_attributes": _started,
    "workflow_properties_modified_event_attributes": _modified,
    "workflow_task_failed_event_attributes": _task_failed,
    "workflow_execution_cancel_requested_event_attributes": _cancel_requested,
    "workflow_execution_paused_event_attributes": _paused,
    "workflow_execution_unpaused_event_attributes": _unpaused,
    "workflow_execution_completed_event_attributes": _completed,
    "workflow_execution_failed_event_attributes": _failed,
    "workflow_execution_timed_out_event_attributes": _timed_out,
    "workflow_execution_canceled_event_attributes": _cancelled,
    "workflow_execution_terminated_event_attributes": _terminated,
    "workflow_execution_continued_as_new_event_attributes": _continued,
}
