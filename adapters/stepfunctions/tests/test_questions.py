"""Questions in the parameters of states, gates, and the calls that answer them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from mcp_workflows_stepfunctions.definition import TokenPlace
from mcp_workflows_stepfunctions.gates import (
    AnswerCall,
    GateSettings,
    answer_calls,
    find_token,
    gate_state,
    problems,
    requests,
)
from mcp_workflows_stepfunctions.history import History
from mcp_workflows_stepfunctions.questions import find_mcp_input, read_parameters
from mcp_workflows_stepfunctions.start import MAX_PAYLOAD
from pydantic import ValidationError

from adapters.stepfunctions.tests.events import ENVELOPE, FORM, TOKEN, Telling
from mcp_workflows.adapter import Gate, InputRequest
from mcp_workflows.errors import EngineRefused

NO_NAME = (
    "nothing in them is named like a task token, and the definition puts it into no field of its own; "
    "say where it is in when.token"
)
ACCEPT: Mapping[str, Any] = {"action": "accept", "content": {"ok": True}}
NO_FIELDS: Mapping[str, Any] = {"type": "object", "properties": {}}
PARAMS: Mapping[str, Any] = {"mode": "form", "message": "Ship it?", "requestedSchema": FORM}


def asked(parameters: Any, name: str = "Ask") -> History:
    """An execution that waits in a state with these parameters; the key is 3."""
    told, found = Telling(), History()
    told.ask(0, name, parameters)
    found.feed(told.events)
    return found


def with_question(question: Any) -> Mapping[str, Any]:
    return {"Entries": [{"Detail": {"mcpInput": question, "taskToken": TOKEN}}]}


def with_schema(schema: Any) -> Mapping[str, Any]:
    return {"message": "Ship it?", "requestedSchema": schema}


def gate(when: Any = "Approve", send: Any = None, decline: Any = None) -> Mapping[str, Gate]:
    request = InputRequest(method="elicitation/create", params={"message": "Sure?"})
    send = {"output": {"ok": "{{answer.ok}}"}} if send is None else send
    return {"approve": Gate(when=when, request=request, send=send, decline=decline)}


# where a question is


@pytest.mark.parametrize(
    "parameters",
    [
        ENVELOPE,
        {"QueueUrl": "q", "MessageBody": json.dumps(ENVELOPE)},
        {"Entries": [{"Source": "s"}, {"Detail": json.dumps(ENVELOPE)}]},
        {"Message": json.dumps({"body": json.dumps(ENVELOPE)})},
        {"Payload": {**ENVELOPE, "mcpInput": json.dumps(ENVELOPE["mcpInput"])}},
        {"first": {"mcpInput": "without a token"}, "then": ENVELOPE},
        {"Payload": {**ENVELOPE, "picture": "x" * 200_000}},
    ],
)
def test_a_question_is_found_wherever_it_is(parameters: Any) -> None:
    found = requests(asked(parameters), {})
    assert found == {"3": InputRequest(method="elicitation/create", params=PARAMS)}


@pytest.mark.parametrize(
    ("question", "params"),
    [
        ({"message": "Ship it?", "requestedSchema": FORM}, PARAMS),
        ({"method": "elicitation/create", "params": {"message": "Ship it?", "requestedSchema": FORM}}, PARAMS),
        ({"message": "Ship it?"}, {**PARAMS, "requestedSchema": NO_FIELDS}),
        (
            {"message": "Ship it?", "requestedSchema": {"properties": {}}, "_meta": {"a": 1}},
            {**PARAMS, "requestedSchema": NO_FIELDS, "_meta": {"a": 1}},
        ),
    ],
)
def test_a_question_may_be_written_long_or_short(question: Any, params: Any) -> None:
    [found] = requests(asked(with_question(question)), {}).values()
    assert (found.method, found.params, found.gate) == ("elicitation/create", params, None)


@pytest.mark.parametrize(
    ("question", "complaint"),
    [
        (None, "it is not an object"),
        ({}, "it has no message"),
        ({"message": 1}, "it has no message"),
        ({"method": "elicitation/create"}, "its params are not an object"),
        ({"method": "sampling/createMessage", "params": {}}, "its method is not elicitation/create"),
        ({"params": {"message": "Go there", "mode": "url", "url": "https://x"}}, "its mode is not form"),
        ({"message": "Ship it?", "more": json.loads("[" * 60 + "]" * 60)}, "it is nested too deeply"),
        (with_schema("s"), "its requestedSchema is not the schema of an object"),
        (with_schema({"properties": []}), "properties of its requestedSchema are not an object"),
        (with_schema({"properties": {"a": {"type": "object"}}}), "property 'a' must have one type"),
        (with_schema({"required": "a"}), "required of its requestedSchema is not a list of names"),
    ],
)
def test_a_malformed_question_is_told_and_not_asked(question: Any, complaint: str) -> None:
    fold = asked(with_question(question))
    assert requests(fold, {}) == {}
    [said] = problems(fold, {})
    assert said.startswith(f"state Ask asks with a malformed mcpInput: {complaint}")


def test_a_question_without_a_token_is_told() -> None:
    for token in (None, 7, "x" * 2049):
        fold = asked({"Payload": {**ENVELOPE, "taskToken": token}})
        assert requests(fold, {}) == {}
        assert problems(fold, {}) == ["state Ask asks with mcpInput, but has no taskToken beside it"]


@pytest.mark.parametrize(
    "parameters", ["", "no JSON", 1, [], {}, {"taskToken": TOKEN}, "[" * 100_000, {"a": "{" * 20}, {"a": "[1, 2"}]
)
def test_parameters_of_any_shape_ask_nothing(parameters: Any) -> None:
    fold = asked(parameters)
    assert (len(fold.waiting), requests(fold, {}), problems(fold, {})) == (1, {}, [])


def test_the_parameters_of_an_event_may_be_missing_unreadable_large_or_nested_without_end() -> None:
    told, fold = Telling(), History()
    scheduled = told.schedule(told.enter(0, "Ask"))
    del told.events[scheduled - 1]["taskScheduledEventDetails"]["parameters"]
    fold.feed(told.events)
    assert (list(fold.waiting), requests(fold, {})) == ([scheduled], {})
    assert read_parameters("{not JSON") == "{not JSON"
    kept = read_parameters(json.dumps({"big": "x" * 200_000, "Body": json.dumps({"big": "x" * 3_000, "token": TOKEN})}))
    assert kept == {"big": None, "Body": {"big": None, "token": TOKEN}}
    deep: Any = ENVELOPE
    for _ in range(400):
        deep = {"a": [deep]}
    assert find_mcp_input(read_parameters(json.dumps(deep))) is None


# answers to a state's own question


@pytest.mark.parametrize(
    ("response", "output"),
    [
        (ACCEPT, '{"action":"accept","content":{"ok":true}}'),
        ({"action": "accept", "content": {"name": "Zoë"}}, '{"action":"accept","content":{"name":"Zoë"}}'),
        ({"action": "decline", "content": {"ok": True}}, '{"action":"decline","content":{}}'),
    ],
)
def test_any_answer_goes_to_the_state_as_its_result(response: Any, output: str) -> None:
    [delivery] = answer_calls(asked(ENVELOPE), {}, {"3": response})
    params = {"taskToken": TOKEN, "output": output}
    assert delivery == AnswerCall(key="3", operation="send_task_success", params=params)
    assert TOKEN not in repr(delivery)


def test_answers_to_what_is_not_open_are_passed_over() -> None:
    told, fold = Telling(), History()
    _, latest = told.ask(0)
    latest = told.answered(latest)
    started = told.add("ParallelStateStarted", told.enter(latest, "Both", "Parallel"))
    told.ask(started, "No question", {"a": 1})
    told.ask(started, "Malformed", with_question(1))
    fold.feed(told.events)
    strangers = {str(event): ACCEPT for event in (*fold.waiting, 3, 99)} | {"x": ACCEPT, "": ACCEPT}
    assert (len(fold.waiting), answer_calls(fold, {}, strangers)) == (2, [])


@pytest.mark.parametrize(("length", "fits"), [(MAX_PAYLOAD - 38, True), (MAX_PAYLOAD - 37, False)])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_an_answer_that_is_too_large_is_refused_before_it_is_sent(length: int, fits: bool, letter: str) -> None:
    text = letter * (length // len(letter.encode())) + "x" * (length % len(letter.encode()))
    responses = {"3": {"action": "accept", "content": {"a": text}}}
    if fits:
        [delivery] = answer_calls(asked(ENVELOPE), {}, responses)
        assert len(delivery.params["output"].encode()) == MAX_PAYLOAD
    else:
        with pytest.raises(EngineRefused, match="the answer is 262145 bytes of JSON, Step Functions takes 262144"):
            answer_calls(asked(ENVELOPE), {}, responses)
    for value in (float("nan"), "\ud800"):
        with pytest.raises(EngineRefused, match="cannot be written as JSON"):
            answer_calls(asked(ENVELOPE), {}, {"3": {"action": "accept", "content": {"a": value}}})


# gates


TOKENS = [
    {"TaskToken": TOKEN},
    {"taskToken": TOKEN, "token": "of something else"},
    {"token": "of something else", "deep": [{"task_token": TOKEN}]},
    {"MessageBody": {"callbackToken": TOKEN, "order": 1}},
    {"MessageBody": json.dumps({"task-token": TOKEN})},
    {"MessageAttributes": {"TaskToken": {"DataType": "String", "StringValue": TOKEN}}},  # SQS, SNS
    {"Headers": {"TaskToken": [TOKEN]}, "RequestBody": {}},  # API Gateway
    {
        "Overrides": {"ContainerOverrides": [{"Name": "c", "Environment": [{"Name": "TASK_TOKEN", "Value": TOKEN}]}]}
    },  # ECS
]


@pytest.mark.parametrize("parameters", TOKENS)
def test_a_gate_finds_the_token_by_its_name(parameters: Any) -> None:
    assert find_token(read_parameters(json.dumps(parameters))) == TOKEN


@pytest.mark.parametrize("when", ["Approve", {"state": "Approve"}, {"state": "Approve", "token": "Body.callback.id"}])
def test_a_gate_asks_while_its_state_waits(when: Any) -> None:
    fold = asked({"Body": json.dumps({"callback": {"id": TOKEN}, "token": TOKEN})}, "Approve")
    [(key, found)] = requests(fold, gate(when)).items()
    assert (key, found.params, found.gate) == ("3", {"message": "Sure?"}, "approve")
    assert requests(asked({"taskToken": TOKEN}, "Other"), gate(when)) == {}
    [delivery] = answer_calls(fold, gate(when), {"3": {**ACCEPT, "send": {"output": {"ok": True}}}})
    assert delivery.params == {"taskToken": TOKEN, "output": '{"ok":true}'}


def test_a_gate_goes_before_the_question_of_its_state() -> None:
    [found] = requests(asked(ENVELOPE, "Approve"), gate()).values()
    assert (found.params, found.gate) == ({"message": "Sure?"}, "approve")


@pytest.mark.parametrize(
    ("parameters", "when", "complaint"),
    [
        ({"id": TOKEN}, "Approve", NO_NAME),
        ({"id": TOKEN}, {"state": "Approve", "token": "elsewhere"}, "there is no task token at elsewhere"),
        ({"id": TOKEN}, {"state": "Approve", "token": "abs(id)"}, "there is no task token at abs(id)"),
    ],
)
def test_a_token_that_is_not_found_is_told(parameters: Any, when: Any, complaint: str) -> None:
    fold = asked(parameters, "Approve")
    fold.token_places = {}
    assert requests(fold, gate(when)) == {}
    assert problems(fold, gate(when)) == [f"gate approve: the parameters of state Approve were read, and {complaint}"]


def test_a_history_alone_shows_a_gate_whose_token_only_the_definition_can_tell() -> None:
    fold = asked({"id": TOKEN}, "Approve")
    assert (list(requests(fold, gate())), problems(fold, gate())) == (["3"], [])
    assert answer_calls(fold, gate(), {"3": ACCEPT}) == []
    fold.token_places = {"Approve": [TokenPlace(path=("id",))]}
    [delivery] = answer_calls(fold, gate(), {"3": {**ACCEPT, "send": {"output": 1}}})
    assert delivery.params["taskToken"] == TOKEN


def test_a_gate_that_is_none_once_it_is_filled_in_is_told() -> None:
    fold = asked({"taskToken": TOKEN}, "Approve")
    for when in (None, "", {"token": "x"}, {"state": "Approve", "token": "a["}):
        assert requests(fold, gate(when)) == {}
        [said] = problems(fold, gate(when))
        assert said.startswith("gate approve: when")


def test_two_gates_of_one_state_are_told() -> None:
    fold, one = asked({"taskToken": TOKEN}, "Approve"), gate()["approve"]
    gates = {"approve": one, "again": one}
    [found] = requests(fold, gates).values()
    assert found.gate == "approve"
    assert problems(fold, gates) == ["gate again: state Approve already belongs to gate approve"]


@pytest.mark.parametrize(
    ("written", "send", "operation", "params"),
    [
        ({"output": "{{answer.ok}}"}, {"output": False}, "send_task_success", {"output": "false"}),
        ({"output": "{{answer.comment}}"}, {}, "send_task_success", {"output": "null"}),
        ({"error": "Rejected"}, {"error": "Rejected"}, "send_task_failure", {"error": "Rejected"}),
        (
            {"error": "Rejected", "cause": "{{answer}}"},
            {"error": "Rejected", "cause": {"why": "late"}},
            "send_task_failure",
            {"error": "Rejected", "cause": '{"why": "late"}'},
        ),
    ],
)
def test_a_gate_sends_what_it_says(written: Any, send: Any, operation: str, params: Mapping[str, str]) -> None:
    fold = asked({"taskToken": TOKEN}, "Approve")
    [delivery] = answer_calls(fold, gate(send=written), {"3": {**ACCEPT, "send": send}})
    assert (delivery.operation, delivery.params) == (operation, {"taskToken": TOKEN, **params})
    declined = {"action": "decline", "send": send}
    [delivery] = answer_calls(fold, gate(decline=written), {"3": declined})
    assert (delivery.operation, delivery.params) == (operation, {"taskToken": TOKEN, **params})


@pytest.mark.parametrize("send", [None, {}, {"error": ""}, {"error": "x" * 257}, {"signal": "approve"}, 7])
def test_what_cannot_be_sent_is_refused(send: Any) -> None:
    with pytest.raises(EngineRefused, match=r"^gate approve: send"):
        answer_calls(asked({"taskToken": TOKEN}, "Approve"), gate(send={"error": "E"}), {"3": {**ACCEPT, "send": send}})


@pytest.mark.parametrize(
    "wrong",
    [
        {"when": {}},
        {"when": "x" * 81},
        {"when": {"state": "A", "token": "not[jmes"}},
        {"when": {"after": "A"}},
        {"send": {}},
        {"send": {"cause": "x"}},
        {"send": {"output": 1, "error": "x"}},
        {"send": {"output": 1, "cause": "x"}},
    ],
)
def test_a_gate_that_is_none_is_refused_in_the_configuration(wrong: Mapping[str, Any]) -> None:
    for when in ("A", {"state": "A"}):
        settings = GateSettings.model_validate({"when": when, "send": {"output": 1}, "decline": {"error": "No"}})
        assert (settings.when.state, gate_state(when)) == ("A", "A")
    with pytest.raises(ValidationError):
        GateSettings.model_validate({"when": "A", "send": {"output": 1}, **wrong})


def test_a_token_in_the_text_of_a_question_is_hidden_from_clients() -> None:
    token = "AQCEAAAAKgAAAAMAAAAAAAAAAb"  # as AWS's begin
    question = {"message": f"Answer with {token}", "taskToken": token, token: [f"<{token}>"]}
    fold = asked({"mcpInput": question, "taskToken": token})
    [request] = requests(fold, {}).values()
    assert token not in json.dumps(request.params)
    assert request.params["message"] == "Answer with [task token]"
    [delivery] = answer_calls(fold, {}, {"3": ACCEPT})
    assert delivery.params["taskToken"] == token
