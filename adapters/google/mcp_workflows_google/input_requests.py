"""Input requests of an execution, and answers to them: posted questions, and the gates of its tool.

The key of a posted question is the id of its callback. The key of a gate also contains the gate's name: steps and
callbacks are read in two calls, and a change between them must not turn one gate's key into another's. Each answer is
sent once to the callback that waits for it.

Source: https://cloud.google.com/workflows/docs/creating-callback-endpoints
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, cast

from mcp_workflows.adapter import JSON, Execution, Gate, InputRequest, Ref, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows_google.client import Client
from mcp_workflows_google.connections import DeliveryOutcome
from mcp_workflows_google.gates import WITH_BODY, GateRule, read_gate_answer, read_rules
from mcp_workflows_google.notes import ExecutionNotes, ExecutionRecord, is_unconfirmed
from mcp_workflows_google.questions import METHOD, Question, check_callback, listed_callback, read_question
from mcp_workflows_google.resources import Callback, ExecutionName, ExecutionResource, awaited_ids, unanswered_ids

_ACCEPT: Final = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCall:
    """One answer, as a request to a callback."""

    key: str
    callback: str  # the id of the callback
    url: str = field(repr=False)
    method: str
    body: JSON = field(repr=False)  # None for methods without a body


def open_requests(
    questions: Mapping[str, JSON],
    resource: ExecutionResource | None,
    callbacks: Sequence[Callback],
    gates: Mapping[str, Gate],
    *,
    now: datetime,
) -> Mapping[str, InputRequest]:
    """Return the open input requests by key; `questions` are the recorded ones by callback."""
    own = {callback: question.request for callback, question in _open_questions(questions, now)}
    opened, _ = _gates(questions, resource, callbacks, gates)
    return own | {key: replace(rule.request, gate=rule.name) for key, (rule, _) in opened.items()}


def with_questions(execution: Execution, questions: Mapping[str, JSON], *, now: datetime | None = None) -> Execution:
    """Return the execution with its open questions, unless it has ended."""
    own = {callback: question.request for callback, question in _open_questions(questions, now or datetime.now(UTC))}
    if not own or execution.terminal:
        return execution
    return replace(execution, status=Status.INPUT_REQUIRED, requests={**execution.requests, **own})


def _open_questions(questions: Mapping[str, JSON], now: datetime) -> Iterator[tuple[str, Question]]:
    for callback, value in questions.items():
        question = read_question(value)
        if question is not None and question.open(now):
            yield callback, question


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


def _gates(
    questions: Mapping[str, JSON],
    resource: ExecutionResource | None,
    callbacks: Sequence[Callback],
    gates: Mapping[str, Gate],
) -> tuple[Mapping[str, tuple[GateRule, Callback]], Sequence[str]]:
    """Return the gates that the execution waits at, by key, and the problems of gates that it may wait at.

    A gate is offered only if exactly one callback can be its step's, and that callback cannot be another gate's.
    """
    if resource is None or not gates:
        return {}, ()
    here = [rule for rule in read_rules(gates)[0].values() if rule.when.matches(resource.steps)]
    waiting = [each for each in callbacks if each.waiters and not each.payloads and each.id not in questions]
    opened: dict[str, tuple[GateRule, Callback]] = {}
    wrong: list[str] = []
    for rule in here:
        mine = [each for each in waiting if rule.when.may_wait_for(each)]
        rivals = [each.name for each in here if each is not rule and any(map(each.when.may_wait_for, mine))]
        if not mine:
            continue  # its step does not wait yet
        if len(mine) > 1 or rivals:
            several = f"{len(mine)} callbacks are waited for"
            what = several if len(mine) > 1 else f"gate {', '.join(rivals)} may wait for it too"
            wrong.append(
                f"gate {rule.name}: step {rule.when.step} waits, but {what}, and nothing tells which is whose: give "
                "each callback another http_callback_method, and name it in when.method"
            )
        elif (complaint := _wrong_method(rule, mine[0], gates[rule.name])) is not None:
            wrong.append(complaint)
        else:
            opened[f"{rule.name}/{mine[0].id}"] = rule, mine[0]
    return opened, wrong


def _wrong_method(rule: GateRule, callback: Callback, gate: Gate) -> str | None:
    takes, method = callback.method in WITH_BODY, callback.method
    for part, written in (("send", gate.send), ("decline", gate.decline)):
        if isinstance(written, dict) and ("body" in written) != takes:
            words = "needs a body: write {body: value}" if takes else "takes no body: write {}"
            return f"gate {rule.name}: {part}: the callback of step {rule.when.step} has method {method}, which {words}"
    return None


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
    """Return the requests that answer open questions; other responses are ignored.

    The body for a posted question is the reply of `mcp_elicit`, whose content is empty unless the person accepted. A
    question that has expired by our clock is also answered, as it may still be open by Google's clock.

    Raises:
        EngineRefused: the gate does not define such an answer.
    """
    opened, _ = _gates(questions, resource, callbacks, gates)
    found: list[AnswerCall] = []
    for key, response in responses.items():
        if not isinstance(response, Mapping):
            continue
        given = cast("Mapping[str, JSON]", response)
        accepted, question = given.get("action") == _ACCEPT, read_question(questions.get(key))
        if question is not None and not question.answered:
            content = given.get("content") if accepted else None
            body: JSON = {"action": given.get("action"), "content": content or {}}
            found.append(AnswerCall(key=key, callback=key, url=question.url, method=METHOD, body=body))
        elif key in opened:
            rule, callback = opened[key]
            path = listed_callback(callback.name, name, rest_url=rest_url)
            if path is not None:
                written = gates[rule.name].send if accepted else gates[rule.name].decline
                body = read_gate_answer(rule.name, given.get("send"), written, callback.method)
                method, identifier = callback.method, callback.id
                found.append(AnswerCall(key=key, callback=identifier, url=path.url, method=method, body=body))
    return found


async def answer(client: Client, notes: ExecutionNotes, ref: Ref, responses: Mapping[str, JSON]) -> None:
    """Send the answers to open questions; others are ignored.

    Each callback is checked to be at Google and in this execution, as the access token is sent there.

    Raises:
        EngineRefused: the callback of a question does not belong to this execution.
        EngineUnavailable: an answer may not have arrived; others may have.
    """
    record, url = await notes.read(ref.handle), client.rest_url
    resource: ExecutionResource | None = None
    callbacks: Sequence[Callback] = ()
    if ref.gates and responses.keys() - record.questions.keys():
        resource, callbacks = await client.get(record.name, full=True), await client.callbacks(record.name)
    questions = record.questions
    found = answer_calls(record.name, questions, callbacks, ref.gates, responses, rest_url=url, resource=resource)
    if not found:
        await client.get(record.name, full=False)  # no question is open; raises if the execution does not exist
    refused: EngineRefused | None = None
    for each in found:
        try:
            path = check_callback(each.url, record.name, rest_url=url)
            if not await client.is_in_project(record.name, path.project):
                elsewhere = "the callback of the question is in another project than the execution: not answered"
                raise EngineRefused(elsewhere)
        except EngineRefused as error:
            refused = error  # raised after the other questions are answered
        else:
            await _deliver(client, notes, record, replace(each, url=path.url))
    if refused is not None:
        raise refused


async def _deliver(client: Client, notes: ExecutionNotes, record: ExecutionRecord, call: AnswerCall) -> None:
    """Send an answer, and first record that it was sent, so that it is sent again only if it is known to be lost.

    Some time after an answer was sent, it has arrived if no step waits for the callback. Right after sending, the
    absence of a waiting step proves nothing, as that step may not have started: then the answer has arrived if the
    callback no longer exists, or holds a request.

    Raises:
        EngineUnavailable: it may not have arrived.
    """
    question = record.questions.get(call.key)
    if not (is_unconfirmed(question) and not await _is_listed(client, record, call, awaited_ids)):
        if question is not None:
            await notes.mark_unconfirmed(record.name, call.key, question)
        outcome = await client.deliver(call.url, call.method, call.body)
        is_unclear = outcome in {DeliveryOutcome.BUSY, DeliveryOutcome.UNKNOWN}
        if is_unclear and await _is_listed(client, record, call, unanswered_ids):
            raise EngineUnavailable("it is not known whether the answer has arrived at the workflow")
    if question is not None:
        await notes.close_question(record.name, call.key, question)


async def _is_listed(
    client: Client,
    record: ExecutionRecord,
    call: AnswerCall,
    ids: Callable[[Sequence[Callback]], frozenset[str]],
) -> bool:
    """Return whether the answer's callback is among these ids of the execution's callbacks.

    Raises:
        EngineUnavailable: the callbacks cannot be listed.
    """
    try:
        return call.callback in ids(await client.callbacks(record.name))
    except ExecutionNotFound:
        return False
