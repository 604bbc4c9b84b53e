"""Questions that were noted, gates, and the requests that answer them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import pytest
from mcp_workflows_google.gates import GateSettings, gate_step
from mcp_workflows_google.input_requests import answer_calls, open_requests, problems, with_questions
from mcp_workflows_google.resources import Callback
from pydantic import ValidationError

from adapters.google.tests.tell import EXECUTION, FORM, GOOGLE, NOW, callback, noted, seen, url
from mcp_workflows.adapter import Execution, Gate, InputRequest, Status
from mcp_workflows.errors import EngineRefused

ASK: Final = InputRequest(method="elicitation/create", params={"message": "Sure?"})
YES: Final[Mapping[str, Any]] = {"action": "accept", "content": {"ok": True}}
UNCLEAR: Final = (
    "and nothing tells which is whose: give each callback another http_callback_method, and name it in when.method"
)


def gate(when: Any = "approve", send: Any = None, decline: Any = None) -> Gate:
    send = {"body": {"ok": "{{answer.ok}}"}} if send is None else send
    return Gate(when=when, request=ASK, send=send, decline=decline)


def open_keys(
    gates: Mapping[str, Gate], *callbacks: Callback, steps: str = "approve", questions: Any = None
) -> list[str]:
    found = seen(1, *steps.split())
    return list(open_requests(questions or {}, found, callbacks, gates, now=NOW))


def said(gates: Mapping[str, Gate], *callbacks: Callback, steps: str = "approve") -> list[str]:
    return list(problems({}, seen(1, *steps.split()), callbacks, gates))


# questions of the execution


def test_noted_questions_are_asked_by_the_id_of_their_callback() -> None:
    found = open_requests({"cb-1": noted(), "cb-2": noted(message="Again?")}, None, (), {}, now=NOW)
    params = {"mode": "form", "message": "Refund 40 EUR?", "requestedSchema": FORM}
    assert list(found) == ["cb-1", "cb-2"]
    assert found["cb-1"] == InputRequest(method="elicitation/create", params=params)


@pytest.mark.parametrize(
    ("question", "after", "asked"),
    [
        (noted(), 0, True),
        (noted(), 3599, True),
        (noted(), 3600, False),
        (noted(timeout=0.5), 1, False),
        (noted(answered=True), 0, False),
        ({**noted(), "doubted": True}, 0, True),
        (None, 0, False),
        ({"message": "of another version"}, 0, False),
    ],
)
def test_what_is_answered_or_has_expired_is_not_asked(question: Any, after: int, asked: bool) -> None:
    assert bool(open_requests({"cb-1": question}, None, (), {}, now=NOW + timedelta(seconds=after))) == asked


def test_parallel_questions_are_answered_one_by_one() -> None:
    questions = {"cb-1": noted(), "cb-2": noted(callback_url=url("cb-2")), "cb-3": noted(answered=True)}
    sent = answer_calls(
        EXECUTION,
        questions,
        (),
        {},
        {"cb-2": YES, "cb-3": YES, "unknown": YES, "cb-1": "no answer"},
        rest_url=GOOGLE,
    )
    assert [(each.key, each.callback, each.url, each.method) for each in sent] == [
        ("cb-2", "cb-2", url("cb-2"), "POST")
    ]


@pytest.mark.parametrize(
    ("response", "body"),
    [
        (YES, YES),
        ({"action": "accept"}, {"action": "accept", "content": {}}),
        ({"action": "decline"}, {"action": "decline", "content": {}}),
        ({"action": "cancel", "content": {"ok": True}}, {"action": "cancel", "content": {}}),
        ({**YES, "send": {"body": 1}, "_meta": {}}, YES),
    ],
)
def test_what_is_sent_is_action_and_content(response: Any, body: Any) -> None:
    [sent] = answer_calls(EXECUTION, {"cb-1": noted()}, (), {}, {"cb-1": response}, rest_url=GOOGLE)
    assert sent.body == body


def test_where_an_answer_goes_and_what_it_says_are_in_no_text() -> None:
    [sent] = answer_calls(EXECUTION, {"cb-1": noted()}, (), {}, {"cb-1": YES}, rest_url=GOOGLE)
    assert "googleapis" not in repr(sent)
    assert "True" not in repr(sent)


def test_a_sweep_adds_what_is_asked_to_what_runs() -> None:
    running, done = Execution(status=Status.RUNNING), Execution(status=Status.SUCCEEDED)
    questions = {"cb-1": noted()}
    found = with_questions(running, questions, now=NOW)
    assert (found.status, list(found.requests)) == (Status.INPUT_REQUIRED, ["cb-1"])
    assert with_questions(done, questions, now=NOW) is done
    assert with_questions(running, {"cb-1": noted(answered=True)}, now=NOW) is running
    assert with_questions(running, questions) is running  # long expired, by the clock


# gates


def test_a_gate_asks_while_its_step_waits_for_a_callback() -> None:
    found = open_requests({}, seen(1, "approve"), [callback("c")], {"ok": gate()}, now=NOW)
    assert found == {"ok/c": InputRequest(method="elicitation/create", params=ASK.params, gate="ok")}


@pytest.mark.parametrize(
    ("when", "steps", "opens"),
    [
        ("approve", "approve", True),
        ("approve", "ship", False),
        ("approve", "", False),
        ("approve", "sub.approve", True),
        ({"step": "approve", "routine": "main"}, "approve", True),
        ({"step": "approve", "routine": "main"}, "sub.approve", False),
        ({"step": "approve", "routine": "sub"}, "sub.approve", True),
        ({"step": "approve", "method": "POST"}, "approve", True),
        ({"step": "approve", "method": "PUT"}, "approve", False),
        ("approve", "call_it sub.approve", True),
        ("approve", "other approve", True),
    ],
)
def test_a_gate_is_known_by_its_step(when: Any, steps: str, opens: bool) -> None:
    assert bool(open_keys({"ok": gate(when)}, callback("c"), steps=steps)) == opens
    assert said({"ok": gate(when)}, callback("c"), steps=steps) == []


@pytest.mark.parametrize(("waiters", "payloads", "opens"), [(0, 0, False), (1, 0, True), (1, 1, False), (0, 1, False)])
def test_a_callback_that_nobody_waits_for_or_that_has_its_answer_opens_nothing(
    waiters: int, payloads: int, opens: bool
) -> None:
    found = callback("c", waiters=waiters, payloads=payloads)
    assert bool(open_keys({"ok": gate()}, found)) == opens
    assert said({"ok": gate()}, found) == []


def test_callbacks_of_noted_questions_are_never_taken_for_gates() -> None:
    questions = {"q": noted(), "old": noted(answered=True)}
    assert open_keys({"ok": gate()}, callback("q"), callback("old"), questions=questions) == ["q"]
    assert open_keys({"ok": gate()}, callback("q"), callback("c"), questions=questions) == ["q", "ok/c"]


def test_a_gate_that_cannot_be_told_apart_is_told_and_not_asked() -> None:
    one, two = {"ok": gate()}, {"a": gate("first"), "b": gate("second")}
    assert open_keys(one, callback("c"), callback("d"), steps="approve other") == []
    assert said(one, callback("c"), callback("d")) == [
        f"gate ok: step approve waits, but 2 callbacks are waited for, {UNCLEAR}"
    ]
    assert open_keys(two, callback("c"), steps="first second") == []
    assert said(two, callback("c"), steps="first second") == [
        f"gate a: step first waits, but gate b may wait for it too, {UNCLEAR}",
        f"gate b: step second waits, but gate a may wait for it too, {UNCLEAR}",
    ]


def test_methods_tell_gates_apart() -> None:
    gates = {"a": gate({"step": "first", "method": "POST"}), "b": gate({"step": "second", "method": "PUT"})}
    both = [callback("c", "POST"), callback("d", "PUT")]
    assert open_keys(gates, *both, steps="first second") == ["a/c", "b/d"]
    assert open_keys({"a": gates["a"], "b": gate("second")}, *both, steps="first second") == []
    assert said(gates, *both, steps="first second") == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"when": {"step": ""}}, "gate ok: when.step: String should have at least 1 character"),
        ({"when": {"step": "a", "method": "TRACE"}}, "gate ok: when.method: Input should be"),
        ({"when": 7}, "gate ok: when: Input should be"),
        ({"send": {}}, "gate ok: send: the callback of step approve has method POST, which needs a body"),
        ({"decline": {}}, "gate ok: decline: the callback of step approve has method POST, which needs a body"),
    ],
)
def test_a_gate_that_is_wrong_once_it_is_filled_in_is_told(change: Any, complaint: str) -> None:
    gates = {"ok": gate(**{"when": "approve", **change})}
    assert open_keys(gates, callback("c")) == []
    assert said(gates, callback("c"))[0].startswith(complaint)


def test_two_gates_of_one_step_are_told() -> None:
    gates = {"a": gate(), "b": gate()}
    assert open_keys(gates, callback("c")) == ["a/c"]
    assert said(gates, callback("c")) == ["gate b: step approve already belongs to gate a"]


def sent(gates: Mapping[str, Gate], key: str, response: Any, *callbacks: Callback, steps: str = "approve") -> Any:
    found = seen(1, *steps.split())
    return answer_calls(EXECUTION, {}, callbacks, gates, {key: response}, rest_url=GOOGLE, resource=found)


@pytest.mark.parametrize(
    ("response", "body"),
    [
        ({**YES, "send": {"body": {"ok": True}}}, {"ok": True}),
        ({**YES, "send": {"body": "yes"}}, "yes"),
        ({**YES, "send": {}}, None),  # what the answer left empty
        ({"action": "decline", "send": {"body": {"ok": False}}}, {"ok": False}),
    ],
)
def test_an_answer_at_a_gate_goes_to_its_callback(response: Any, body: Any) -> None:
    [found] = sent({"ok": gate(decline={"body": {"ok": False}})}, "ok/c", response, callback("c", "PUT"))
    assert (found.key, found.callback, found.url, found.method, found.body) == ("ok/c", "c", url("c"), "PUT", body)


def test_a_method_without_a_body_is_sent_none() -> None:
    [found] = sent({"ok": gate(send={})}, "ok/c", {**YES, "send": {}}, callback("c", "GET"))
    assert (found.method, found.body) == ("GET", None)
    assert said({"ok": gate()}, callback("c", "GET")) == [
        "gate ok: send: the callback of step approve has method GET, which takes no body: write {}"
    ]


def test_an_answer_never_goes_to_another_gates_callback() -> None:
    gates = {"a": gate("first"), "b": gate("second")}
    answer = {**YES, "send": {"body": {"ok": True}}}
    assert sent(gates, "a/c", answer, callback("c"), steps="second") == []
    assert sent(gates, "a/c", answer, callback("d"), steps="first") == []
    assert sent(gates, "a/c", answer, callback("c", waiters=0), steps="first") == []
    assert sent(gates, "c", answer, callback("c"), steps="first") == []
    assert answer_calls(EXECUTION, {}, [callback("c")], gates, {"a/c": answer}, rest_url=GOOGLE) == []


def test_a_callback_that_is_not_this_executions_is_sent_nothing() -> None:
    foreign = Callback(name="projects/p-12345/locations/us-east1/callback/c", method="POST", waiters=1, payloads=0)
    assert sent({"ok": gate()}, "ok/c", {**YES, "send": {"body": 1}}, foreign) == []


@pytest.mark.parametrize("send", [{"text": 1}, {"body": 1, "more": 1}])
def test_what_is_no_way_to_send_is_refused(send: Any) -> None:
    with pytest.raises(EngineRefused, match=r"gate ok: send\."):
        sent({"ok": gate()}, "ok/c", {**YES, "send": send}, callback("c"))


# the configuration


@pytest.mark.parametrize(
    "settings",
    [
        {"when": "approve", "send": {"body": {"ok": "{{answer.ok}}"}}},
        {"when": "approve", "send": {"body": None}, "decline": {"body": "no"}},
        {"when": {"step": "approve", "routine": "sub", "method": "PUT"}, "send": {"body": 1}},
        {"when": {"step": "approve", "method": "GET"}, "send": {}, "decline": {}},
    ],
)
def test_a_gate_may_be_written_so(settings: Any) -> None:
    assert GateSettings.model_validate(settings).when.step == "approve"
    assert gate_step(settings["when"]) == "approve"


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"when": "approve"}, "send"),
        ({"when": "", "send": {"body": 1}}, "step"),
        ({"when": {"routine": "main"}, "send": {"body": 1}}, "step"),
        ({"when": {"step": "a", "state": "b"}, "send": {"body": 1}}, "state"),
        ({"when": {"step": "a", "method": "post"}, "send": {"body": 1}}, "method"),
        ({"when": "a", "send": {}}, "write {body: value}"),
        ({"when": "a", "send": "yes"}, "send"),
        ({"when": "a", "send": {"output": 1}}, "output"),
        ({"when": {"step": "a", "method": "GET"}, "send": {"body": 1}}, "send: a callback of method GET takes no body"),
        ({"when": {"step": "a", "method": "PUT"}, "send": {"body": 1}, "decline": {}}, "decline: .* needs a body"),
    ],
)
def test_a_gate_may_not_be_written_otherwise(settings: Any, wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        GateSettings.model_validate(settings)


@pytest.mark.parametrize("when", [None, 7, [], {}, {"step": 7}])
def test_what_names_no_step_names_none(when: Any) -> None:
    assert gate_step(when) == ""
