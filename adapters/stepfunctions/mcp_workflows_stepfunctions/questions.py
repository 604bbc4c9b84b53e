"""The questions of an execution and the calls that answer them: its own questions, and the gates of its tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, cast

from mcp_workflows.adapter import JSON, Gate, InputRequest
from mcp_workflows_stepfunctions.gates import GateRule, read_gate_answer, read_rules
from mcp_workflows_stepfunctions.history import History, TokenWait
from mcp_workflows_stepfunctions.mcp_input import Question
from mcp_workflows_stepfunctions.payloads import payload

SUCCESS: Final = "send_task_success"
FAILURE: Final = "send_task_failure"
_ACCEPT: Final = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCall:
    """One answer, as a call of the API."""

    key: str
    operation: str
    params: Mapping[str, str] = field(repr=False)  # with the task token


def requests(history: History, gates: Mapping[str, Gate]) -> Mapping[str, InputRequest]:
    """Return the open questions. The key of each is the id of its event, which is never used again."""
    return {
        str(event): question.request
        for event, question in _open_questions(history, gates)
        if question.request is not None
    }


def problems(history: History, gates: Mapping[str, Gate]) -> Sequence[str]:
    """Return the problems of questions that cannot be asked, for the author of the machine or the configuration."""
    found = (question.problem for _, question in _open_questions(history, gates))
    return [*dict.fromkeys([*read_rules(gates)[1], *(text for text in found if text is not None)])]


def answer_calls(history: History, gates: Mapping[str, Gate], responses: Mapping[str, JSON]) -> Sequence[AnswerCall]:
    """Return the calls that answer open questions; ignore responses to others.

    Raises:
        EngineRefused: an answer is too large, or a gate does not say how to send it.
    """
    open_now = {str(event): question for event, question in _open_questions(history, gates)}
    return [
        _answer_call(key, open_now[key], gates, cast("Mapping[str, JSON]", response))
        for key, response in responses.items()
        if key in open_now and open_now[key].token is not None and isinstance(response, Mapping)
    ]


def _open_questions(history: History, gates: Mapping[str, Gate]) -> Iterator[tuple[int, Question]]:
    rules, _ = read_rules(gates)
    for event, waiting in history.waiting.items():
        rule = rules.get(waiting.state)
        yield event, waiting.question if rule is None else _gate_question(history, waiting, rule)


def needs_definition(history: History, gates: Mapping[str, Gate]) -> bool:
    """Return True if a gate is open whose token has no known name, so that only the definition can locate it."""
    rules, _ = read_rules(gates)
    found = ((waiting, rules.get(waiting.state)) for waiting in history.waiting.values())
    return any(rule and rule.when.token is None and rule.token(waiting.parameters) is None for waiting, rule in found)


def _gate_question(history: History, waiting: TokenWait, rule: GateRule) -> Question:
    places = None if history.token_places is None else history.token_places.get(waiting.state, ())
    token = rule.token(waiting.parameters, places or ())
    # an exported history comes without the definition
    exported = rule.when.token is None and places is None and history.unread is None
    if token is not None or exported:
        return Question(request=replace(rule.request, gate=rule.name), token=token)
    if rule.when.token is not None:
        where = f"there is no task token at {rule.when.token}"
    else:
        reason = history.unread or "the definition puts it into no field of its own"
        where = f"nothing in them is named like a task token, and {reason}; say where it is in when.token"
    return Question(problem=f"gate {rule.name}: the parameters of state {waiting.state} were read, and {where}")


def _answer_call(key: str, question: Question, gates: Mapping[str, Gate], response: Mapping[str, JSON]) -> AnswerCall:
    token, gate = question.token or "", question.request.gate if question.request else None
    if gate is None:
        return _success(key, token, _answer(response))
    action = response.get("action")
    written = gates[gate].send if action == _ACCEPT else gates[gate].decline
    sending = read_gate_answer(gate, response.get("send"), written)
    if sending.succeeds:
        return _success(key, token, sending.output)
    failing = {"error": sending.error or "", **({} if sending.cause is None else {"cause": sending.cause})}
    return AnswerCall(key=key, operation=FAILURE, params={"taskToken": token, **failing})


def _answer(response: Mapping[str, JSON]) -> JSON:
    """Return the answer of a person as the state gets it: content is empty unless the person accepted."""
    action, content = response.get("action"), response.get("content")
    return {"action": action, "content": content if action == _ACCEPT and content is not None else {}}


def _success(key: str, token: str, output: JSON) -> AnswerCall:
    return AnswerCall(
        key=key, operation=SUCCESS, params={"taskToken": token, "output": payload(output, "answer", "make it shorter")}
    )
