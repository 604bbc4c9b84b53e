"""Input requests of an execution, and answers to them: questions that it posted, and the gates of its tool.

The key of a posted question is the id of its callback. The key of a gate also contains the gate's name: steps and
callbacks are read in two calls, and a change between them must not turn the key of one gate into that of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, cast

from mcp_workflows.adapter import JSON, Execution, Gate, InputRequest, Status
from mcp_workflows_google.callback import listed_callback
from mcp_workflows_google.gates import WITH_BODY, GateRule, read_gate_answer, read_rules
from mcp_workflows_google.names import ExecutionName
from mcp_workflows_google.questions import METHOD, Question, read_question
from mcp_workflows_google.resources import Callback, ExecutionResource

_ACCEPT: Final = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCall:
    """One answer, as a request to a callback."""

    key: str
    callback: str  # the id of the callback
    url: str = field(repr=False)
    method: str
    body: JSON = field(repr=False)  # None for methods without a body


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenGate:
    """A gate that the execution waits at."""

    rule: GateRule
    callback: Callback

    @property
    def key(self) -> str:
        return f"{self.rule.name}/{self.callback.id}"


def open_requests(
    questions: Mapping[str, JSON],
    resource: ExecutionResource | None,
    callbacks: Sequence[Callback],
    gates: Mapping[str, Gate],
    *,
    now: datetime,
) -> Mapping[str, InputRequest]:
    """Return the open input requests by key; `questions` are the recorded ones by callback."""
    own = {callback: question.request for callback, question in _noted(questions, now)}
    opened, _ = _gates(questions, resource, callbacks, gates)
    return own | {each.key: replace(each.rule.request, gate=each.rule.name) for each in opened}


def problems(
    questions: Mapping[str, JSON],
    resource: ExecutionResource | None,
    callbacks: Sequence[Callback],
    gates: Mapping[str, Gate],
) -> Sequence[str]:
    """Return the reasons why gates cannot be offered, for the author of the configuration."""
    return [*dict.fromkeys([*read_rules(gates)[1], *_gates(questions, resource, callbacks, gates)[1]])]


def is_at_gate(resource: ExecutionResource, gates: Mapping[str, Gate]) -> bool:
    """Return whether the execution is at a step of a gate; only then its callbacks are listed."""
    return any(rule.when.matches(resource.steps) for rule in read_rules(gates)[0].values())


def with_questions(execution: Execution, questions: Mapping[str, JSON], *, now: datetime | None = None) -> Execution:
    """Return the execution with its open questions, unless it has ended."""
    own = {callback: question.request for callback, question in _noted(questions, now or datetime.now(UTC))}
    if not own or execution.terminal:
        return execution
    return replace(execution, status=Status.INPUT_REQUIRED, requests={**execution.requests, **own})


def answer_calls(
    name: ExecutionName,
    questions: Mapping[str, JSON],
    callbacks: Sequence[Callback],
    gates: Mapping[str, Gate],
    responses: Mapping[str, JSON],
    *,
    rest_url: str,
    resource: ExecutionResource | None = None,
) -> Sequence[AnswerCall]:
    """Return the requests that answer open questions; ignore responses to all others.

    A question that has expired by our clock is answered too: by Google's clock it may still be open.

    Raises:
        EngineRefused: the gate does not define such an answer.
    """
    opened = {each.key: each for each in _gates(questions, resource, callbacks, gates)[0]}
    found: list[AnswerCall | None] = []
    for key, response in responses.items():
        if isinstance(response, Mapping):
            given = cast("Mapping[str, JSON]", response)
            question = read_question(questions.get(key))
            if question is not None and not question.answered:
                found.append(_answer(key, question, given))
            elif key in opened:
                found.append(_passed(name, opened[key], gates, given, rest_url))
    return [each for each in found if each is not None]


def _noted(questions: Mapping[str, JSON], now: datetime) -> Iterator[tuple[str, Question]]:
    for callback, value in questions.items():
        question = read_question(value)
        if question is not None and question.open(now):
            yield callback, question


def _answer(callback: str, question: Question, response: Mapping[str, JSON]) -> AnswerCall:
    """Return the reply of `mcp_elicit`: the content is empty unless the person accepted."""
    action, content = response.get("action"), response.get("content")
    body: Mapping[str, JSON] = {"action": action, "content": content if action == _ACCEPT and content else {}}
    return AnswerCall(key=callback, callback=callback, url=question.url, method=METHOD, body=body)


def _passed(
    name: ExecutionName, gate: _OpenGate, gates: Mapping[str, Gate], response: Mapping[str, JSON], rest_url: str
) -> AnswerCall | None:
    path = listed_callback(gate.callback.name, name, rest_url=rest_url)
    if path is None:
        return None
    rule, method = gate.rule, gate.callback.method
    written = gates[rule.name].send if response.get("action") == _ACCEPT else gates[rule.name].decline
    body = read_gate_answer(rule.name, response.get("send"), written, method)
    return AnswerCall(key=gate.key, callback=gate.callback.id, url=path.url, method=method, body=body)


def _gates(
    questions: Mapping[str, JSON],
    resource: ExecutionResource | None,
    callbacks: Sequence[Callback],
    gates: Mapping[str, Gate],
) -> tuple[Sequence[_OpenGate], Sequence[str]]:
    """Return the gates that the execution waits at, and the problems of gates that it may wait at."""
    if resource is None or not gates:
        return (), ()
    here = [rule for rule in read_rules(gates)[0].values() if rule.when.matches(resource.steps)]
    waiting = [each for each in callbacks if each.waiters and not each.payloads and each.id not in questions]
    opened: list[_OpenGate] = []
    wrong: list[str] = []
    for rule in here:
        if (found := _one(rule, here, waiting)) is None:
            wrong += _unclear(rule, here, waiting)
        elif (complaint := _wrong_method(rule, found, gates[rule.name])) is not None:
            wrong.append(complaint)
        else:
            opened.append(_OpenGate(rule=rule, callback=found))
    return opened, wrong


def _one(rule: GateRule, here: Sequence[GateRule], waiting: Sequence[Callback]) -> Callback | None:
    """Return the callback of this gate's step, if it cannot belong to another gate."""
    mine = [each for each in waiting if rule.when.may_wait_for(each)]
    rivals = [other for other in here if other is not rule and any(other.when.may_wait_for(each) for each in mine)]
    return mine[0] if len(mine) == 1 and not rivals else None


def _unclear(rule: GateRule, here: Sequence[GateRule], waiting: Sequence[Callback]) -> Iterator[str]:
    """Yield the reason why the gate's callback is ambiguous; nothing if its step does not wait yet."""
    mine = [each for each in waiting if rule.when.may_wait_for(each)]
    if not mine:
        return
    others = [other.name for other in here if other is not rule and any(other.when.may_wait_for(each) for each in mine)]
    what = f"{len(mine)} callbacks are waited for" if len(mine) > 1 else f"gate {', '.join(others)} may wait for it too"
    yield (
        f"gate {rule.name}: step {rule.when.step} waits, but {what}, and nothing tells which is whose: give each "
        "callback another http_callback_method, and name it in when.method"
    )


def _wrong_method(rule: GateRule, callback: Callback, gate: Gate) -> str | None:
    takes, method = callback.method in WITH_BODY, callback.method
    for part, written in (("send", gate.send), ("decline", gate.decline)):
        if isinstance(written, dict) and ("body" in written) != takes:
            words = "needs a body: write {body: value}" if takes else "takes no body: write {}"
            return f"gate {rule.name}: {part}: the callback of step {rule.when.step} has method {method}, which {words}"
    return None
