"""The changes of an execution visible to clients, from its exported history alone: no engine, no worker.

The gates are decided by the same rules as in a poll (`gate_rules.Rule`), event by event.
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

from mcp_workflows.adapter import JSON, Execution, Failure, Gate, InputRequest, Status
from mcp_workflows.errors import ConfigError, EngineRefused
from mcp_workflows.kit.tooling import Replayed
from mcp_workflows_temporal.gate_rules import (
    CLOSED,
    EventFilter,
    HistorySummary,
    Rule,
    event_filter,
    join,
    key_of,
    read_rules,
    summarize_event,
)
from mcp_workflows_temporal.payloads import as_mapping, as_text, failure_of, plain_failure
from mcp_workflows_temporal.questions import read_progress, read_questions

EXPORT = "export one with: temporal workflow show --workflow-id ID --output json > history.json"
ENCODINGS: Mapping[str, Callable[[bytes], JSON]] = {"json/plain": json.loads, "binary/null": lambda _: None}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of the execution after some events."""

    summary: HistorySummary | None = None
    run_id: str = ""
    original_run_id: str = ""  # the run that resets go back to
    first_run_id: str = ""
    memo: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    encrypted: str | None = None  # the encoding of unreadable memo fields
    cancel_requested: bool = False
    paused: str | None = None
    end: Execution | None = None


def replay(history: JSON, gates: Mapping[str, Gate]) -> Sequence[Replayed]:
    """Return each change that a client would have seen.

    Raises:
        ConfigError: not a history of a Temporal execution, or a gate is invalid.
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
    except (ParseError, AttributeError, TypeError, KeyError, ValueError) as error:  # raised for other shapes
        raise ConfigError(f"this is not a Temporal history ({type(error).__name__}); {EXPORT}") from None
    if not events or events[0].event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
        raise ConfigError(f"this is not a whole Temporal history: it does not begin with its start; {EXPORT}")
    return events


def _changes(events: Sequence[HistoryEvent], rules: Sequence[Rule]) -> Iterator[Replayed]:
    wanted, state, last = event_filter(rules), State(), None
    for event in events:
        state = _apply(state, event, wanted)
        execution = _execution(state, rules)
        if execution != last:
            yield Replayed(event=str(event.event_id), execution=execution)
        last = execution


def _apply(state: State, event: HistoryEvent, wanted: EventFilter) -> State:
    """Return the state after an event."""
    summary = summarize_event(event, wanted)
    state = replace(state, summary=join(state.summary, summary) if state.summary else summary)
    kind = event.WhichOneof("attributes") or ""
    attributes = getattr(event, kind, None)
    if run := str(getattr(attributes, "new_execution_run_id", "")):  # continue-as-new, a retry or a cron run
        message = f"it goes on as another run, with a history of its own: {run}"
        return replace(state, end=Execution(status=Status.RUNNING, message=message))
    match kind.removeprefix("workflow_").removesuffix("_event_attributes"):
        case "execution_started":
            started = event.workflow_execution_started_event_attributes
            original = started.original_execution_run_id
            first = started.first_execution_run_id or original
            state = replace(state, run_id=original, original_run_id=original, first_run_id=first)
            return _with_memo(state, started.memo.fields)
        case "properties_modified":
            return _with_memo(state, event.workflow_properties_modified_event_attributes.upserted_memo.fields)
        case "task_failed":  # after a reset, it names the new run
            return replace(state, run_id=event.workflow_task_failed_event_attributes.new_run_id or state.run_id)
        case "execution_cancel_requested":
            return replace(state, cancel_requested=True)
        case "execution_paused":
            reason = event.workflow_execution_paused_event_attributes.reason
            return replace(state, paused=f"paused: {reason}" if reason else "paused")
        case "execution_unpaused":
            return replace(state, paused=None)
        case end:
            return replace(state, end=_end(state, event, end))


def _end(state: State, event: HistoryEvent, end: str) -> Execution | None:
    """Return the execution after its last event; None after any other event."""
    match end:
        case "execution_completed":
            payloads = event.workflow_execution_completed_event_attributes.result.payloads
            done = Execution(status=Status.SUCCEEDED, cancel_requested=state.cancel_requested)
            try:
                return replace(done, output=_plain(payloads[0]) if payloads else None)
            except ValueError as error:
                return replace(done, message=f"its result is encrypted ({error})")
        case "execution_failed":
            failure = event.workflow_execution_failed_event_attributes.failure
            return Execution(status=Status.FAILED, failure=failure_of(plain_failure(failure)))
        case "execution_timed_out":
            return Execution(status=Status.FAILED, failure=Failure(text="the workflow timed out", kind="TimedOut"))
        case "execution_canceled":
            return Execution(status=Status.CANCELLED, message="cancelled")
        case "execution_terminated":
            reason = event.workflow_execution_terminated_event_attributes.reason
            return Execution(status=Status.CANCELLED, message=f"terminated: {reason}" if reason else "terminated")
        case _:
            return state.end


def _execution(state: State, rules: Sequence[Rule]) -> Execution:
    if state.end is not None:
        return state.end
    status = as_mapping(state.memo.get(MEMO_STATUS))
    requests = {} if state.paused is not None else {**_asked(state), **_gates(state, rules)}
    return Execution(
        status=Status.INPUT_REQUIRED if requests else Status.RUNNING,
        message="; ".join(_messages(state, rules, as_text(status.get("message")))) or None,
        progress=read_progress(status),
        requests=requests,
        cancel_requested=state.cancel_requested,
    )


def _messages(state: State, rules: Sequence[Rule], own: str | None) -> Iterator[str]:
    text = state.paused if state.paused is not None else own
    if state.cancel_requested:
        text = f"cancellation requested: {text}" if text else "cancellation requested"
    if text:
        yield text
    if state.encrypted:
        yield f"its memo is encrypted ({state.encrypted}): what it says and asks itself cannot be told here"
    for rule in rules:
        if rule.when.query is not None:
            yield f"gate {rule.name} is told by the query {rule.when.query}, which is not in a history"


def _asked(state: State) -> Mapping[str, InputRequest]:
    asked = as_mapping(state.memo.get(MEMO_INPUT))
    is_own = asked.get("run") in {state.run_id, state.original_run_id}
    return read_questions(asked) if is_own else {}


def _gates(state: State, rules: Sequence[Rule]) -> Mapping[str, InputRequest]:
    found: dict[str, InputRequest] = {}
    for rule in rules:
        event = rule.opening_event(state.summary) if state.summary and rule.when.query is None else CLOSED
        if event:
            found[key_of(rule.name, event, state.run_id, state.first_run_id)] = replace(rule.request, gate=rule.name)
    return found


def _with_memo(state: State, fields: Mapping[str, Payload]) -> State:
    memo, encrypted = dict(state.memo), state.encrypted
    for name in fields.keys() & {MEMO_INPUT, MEMO_STATUS}:
        try:
            memo[name] = _plain(fields[name])
        except ValueError as error:
            encrypted = str(error)
    return replace(state, memo=memo, encrypted=encrypted)


def _plain(payload: Payload) -> JSON:
    """Return the JSON value in a payload.

    Raises:
        ValueError: the payload needs a codec; the message is the encoding.
    """
    encoding = payload.metadata.get("encoding", b"none").decode("ascii", "replace")
    if encoding not in ENCODINGS:
        raise ValueError(encoding)
    return ENCODINGS[encoding](payload.data)
