"""What a history says about gates, whichever way and in whatever pieces it is read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from mcp_workflows_temporal.gate_rules import (
    CLOSED,
    EventFilter,
    GateSettings,
    HistorySummary,
    Message,
    MessageKind,
    Rule,
    Sending,
    When,
    join,
    key_of,
    summarize,
)
from mcp_workflows_temporal.gates import is_same
from pydantic import ValidationError
from temporalio.api.history.v1 import HistoryEvent

from mcp_workflows.adapter import JSON, InputRequest

APPROVE = Message(kind=MessageKind.SIGNAL, name="approve")
TAKE = Message(kind=MessageKind.UPDATE, name="take")
WANTED = EventFilter(activities=frozenset({"Notify"}), messages=frozenset({APPROVE, TAKE}))


def rule(**when: JSON) -> Rule:
    request = InputRequest(method="elicitation/create", params={})
    return Rule(name="gate", when=When.model_validate(when), messages=WANTED.messages, request=request)


AFTER = rule(after="Notify")
ASKING = rule(query="status", equals="waits")


def events(text: str) -> Sequence[HistoryEvent]:
    """`start n c2 a`: by what happens; `c2` is the completion of what event 2 scheduled, `f2` its failure."""
    return [_event(number, word) for number, word in enumerate(text.split(), 1)]


def _event(number: int, word: str) -> HistoryEvent:
    event, of = HistoryEvent(event_id=number), int(word[1:]) if word[1:].isdigit() else 0
    if word in {"notify", "other"}:
        name = "Notify" if word == "notify" else "Other"
        event.activity_task_scheduled_event_attributes.activity_type.name = name
    elif word[0] == "c":
        event.activity_task_completed_event_attributes.scheduled_event_id = of
    elif word[0] == "f":
        event.activity_task_failed_event_attributes.scheduled_event_id = of
    elif word in {"approve", "noise"}:
        event.workflow_execution_signaled_event_attributes.signal_name = word
    elif word == "take":
        event.workflow_execution_update_accepted_event_attributes.accepted_request.input.name = word
    elif word == "task":
        event.workflow_task_completed_event_attributes.scheduled_event_id = 1
    return event


def whole(text: str) -> HistorySummary:
    summary = summarize(events(text), WANTED)
    assert summary is not None
    return summary


HISTORIES = {
    "start": CLOSED,
    "start notify": CLOSED,
    "start notify f2": CLOSED,
    "start notify c2": 3,
    "start notify c2 task noise": 3,
    "start notify c2 approve": CLOSED,
    "start notify c2 take": CLOSED,
    "start approve notify c3": 4,
    "start notify approve c2": 4,
    "start notify c2 approve notify c5": 6,
    "start notify c2 approve notify f5": CLOSED,
    "start notify notify c3 approve c2": 6,
    "start other c2 notify c4 other c6": 5,
    "start notify other c3 c2 approve other c7 noise": CLOSED,
}


@pytest.mark.parametrize(("text", "opened"), HISTORIES.items())
def test_a_gate_is_open_after_its_activity_until_an_answer(text: str, opened: int) -> None:
    assert AFTER.opening_event(whole(text)) == opened


@pytest.mark.parametrize("text", HISTORIES)
def test_pieces_of_a_history_come_to_the_same_however_they_are_joined(text: str) -> None:
    found, summary = events(text), whole(text)
    for first, second in itertools.combinations_with_replacement(range(1, len(found)), 2):
        pieces = [
            piece for part in (found[:first], found[first:second], found[second:]) if (piece := summarize(part, WANTED))
        ]
        forwards, backwards = pieces[0], pieces[-1]
        for piece in pieces[1:]:
            forwards = join(forwards, piece)
        for piece in reversed(pieces[:-1]):
            backwards = join(piece, backwards)
        assert forwards == backwards == summary


@pytest.mark.parametrize("text", HISTORIES)
def test_the_end_of_a_history_tells_the_truth_or_that_more_is_needed(text: str) -> None:
    found = events(text)
    ends = [summarize(found[number:], WANTED) for number in range(len(found))]
    assert {AFTER.opening_event(end) for end in ends if end} <= {HISTORIES[text], None}


@pytest.mark.parametrize(
    ("text", "round_"),
    [
        ("start task", 1),
        ("start task approve", CLOSED),
        ("start task approve task", 3),
        ("start task approve task take", 5),
        ("start task approve task approve", CLOSED),
    ],
)
def test_a_query_is_asked_about_the_round_after_the_latest_answer(text: str, round_: int) -> None:
    assert ASKING.opening_event(whole(text)) == round_


def test_without_an_answer_the_round_of_a_query_begins_with_the_run_which_must_be_seen() -> None:
    end = summarize(events("start task noise")[1:], WANTED)
    assert end is not None
    assert ASKING.opening_event(end) is None


def test_later_runs_of_a_chain_have_keys_of_their_own() -> None:
    assert key_of("approve", 7, "run-1", "run-1") == "approve.7"
    assert key_of("approve", 7, "run-2", "run-1") == "approve.7.run-2"


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (None, False, False),
        ("a", "a", True),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1], [1, 2], False),
        ([True], [1], False),
    ],
)
def test_json_values_are_compared_as_json(one: JSON, other: JSON, equal: bool) -> None:
    assert is_same(one, other) is equal


FINE = {"when": {"after": "Notify"}, "send": {"signal": "approve"}}


@pytest.mark.parametrize(
    "given",
    [
        FINE,
        {**FINE, "decline": {"update": "reject", "args": ["{{answer.why}}"]}},
        {**FINE, "decline": None},
        {**FINE, "when": {"query": "status", "equals": None}},
        {**FINE, "when": {"query": "status", "args": [1], "equals": {"a": "{{order_id}}"}}},
    ],
)
def test_what_a_gate_may_be(given: JSON) -> None:
    assert isinstance(GateSettings.model_validate(given).send, Sending)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({**FINE, "when": {}}, "write either {after: ActivityType} or {query: name, equals: value}"),
        ({**FINE, "when": {"after": "A", "query": "q", "equals": 1}}, "write either {after: ActivityType}"),
        ({**FINE, "when": {"after": "A", "equals": 1}}, "args and equals belong to a query"),
        ({**FINE, "when": {"query": "status"}}, "say what the query 'status' gives while it waits: equals"),
        ({**FINE, "when": {"after": ""}}, "when.after"),
        ({**FINE, "when": {"afterwards": "A"}}, "when.afterwards"),
        ({**FINE, "send": {}}, "write either {signal: name} or {update: name}"),
        ({**FINE, "send": {"signal": "a", "update": "b"}}, "write either {signal: name}"),
        ({**FINE, "send": {"signal": "{{answer.name}}"}}, "the name must be plain"),
        ({**FINE, "send": {"signal": "a", "args": "one"}}, "send.args"),
        ({**FINE, "decline": {"args": []}}, "write either {signal: name}"),
        ({"when": {"after": "A"}}, "send"),
    ],
)
def test_what_a_gate_may_not_be(given: JSON, complaint: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GateSettings.model_validate(given)
    assert any(complaint in f"{'.'.join(map(str, wrong['loc']))} {wrong['msg']}" for wrong in caught.value.errors())
