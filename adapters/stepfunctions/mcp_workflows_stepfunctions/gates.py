"""Gates for Step Functions: states that wait for a task token and were not written for MCP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Self, cast

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from mcp_workflows.adapter import JSON, Gate, InputRequest
from mcp_workflows.errors import EngineRefused
from mcp_workflows_stepfunctions.definition import TokenPlace, is_token_expression
from mcp_workflows_stepfunctions.history import History, TokenWait
from mcp_workflows_stepfunctions.questions import Question, is_token, objects
from mcp_workflows_stepfunctions.start import payload

MAX_ERROR: Final = 256  # characters, of SendTaskFailure
MAX_CAUSE: Final = 32_768  # characters, of SendTaskFailure
_TOKEN_NAMES: Final = ("tasktoken", "callbacktoken", "sfntoken", "token")  # only letters; the most specific first
_NO_LETTER: Final = re.compile(r"[^a-z]")


class WaitingState(BaseModel):
    """The state that waits for a person."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: str = Field(
        min_length=1, max_length=80, description="The name of the state; its Resource ends in .waitForTaskToken."
    )
    token: str | None = Field(
        default=None,
        min_length=1,
        description="The JMESPath of the task token in the state's resolved parameters. Default: a parameter "
        "with a usual name (taskToken, TaskToken, task_token, callbackToken, token, ...), else the "
        "place in the state machine's definition.",
    )

    @field_validator("token")
    @classmethod
    def _is_jmespath(cls, token: str | None) -> str | None:
        if token is not None:
            try:
                jmespath.compile(token)
            except JMESPathError as error:
                raise ValueError(f"not a JMESPath expression: {str(error).splitlines()[0]}") from None
        return token


def _as_text(value: object) -> object:
    """Return the value of an answer as a text; a text is unchanged."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


_Text = Annotated[str | None, BeforeValidator(_as_text)]


class GateAnswer(BaseModel):
    """An answer to the state: it succeeds with `output`, or fails with `error` and `cause`."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={"oneOf": [{"required": ["output"]}, {"required": ["error"]}]},
    )

    output: Any = Field(  # any JSON value
        default=None, description="The result with which the state succeeds (SendTaskSuccess)."
    )
    error: _Text = Field(
        default=None,
        min_length=1,
        max_length=MAX_ERROR,
        description="The error with which the state fails (SendTaskFailure), for its Catch or Retry.",
    )
    cause: _Text = Field(default=None, max_length=MAX_CAUSE, description="With `error`: the cause, a text.")

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        given = self.model_fields_set
        if ("output" in given) == (self.error is not None):
            raise ValueError("write either {output: value} or {error: name}; cause, a text, may stand beside error")
        if "output" in given and "cause" in given:
            raise ValueError("cause belongs to error, not to output")
        return self

    @property
    def succeeds(self) -> bool:
        """True if the state succeeds with this answer."""
        return self.error is None


def _long(when: object) -> object:
    return {"state": when} if isinstance(when, str) else when


class GateSettings(BaseModel):
    """The settings of a gate on Step Functions; texts may contain {{placeholders}}."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: Annotated[WaitingState, BeforeValidator(_long, json_schema_input_type=WaitingState | str)] = Field(
        description="The state that waits for a person: its name, or {state: name, token: JMESPath}."
    )
    send: GateAnswer = Field(description="How the answer reaches the execution.")
    decline: GateAnswer | None = Field(default=None, description="How a refusal reaches the execution.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    """One gate with its state and its question."""

    name: str
    when: WaitingState
    request: InputRequest

    def token(self, parameters: JSON, places: Sequence[TokenPlace] = ()) -> str | None:
        """Return the task token in the parameters of the state, or None.

        `places` are those in the definition, if it was read; they are more reliable than a name.
        """
        if self.when.token is None:
            there = (place.read(parameters) for place in places)
            return next((token for token in there if token is not None), None) or find_token(parameters)
        try:
            found: object = jmespath.search(self.when.token, parameters)
        except JMESPathError:
            return None
        return cast("str", found) if is_token(found) else None


def find_token(parameters: JSON) -> str | None:
    """Return the value with the name of a task token, depth first, with the most specific name first."""
    everything = list(objects(parameters))
    for wanted in _TOKEN_NAMES:
        for each in everything:
            for name, value in _fields(each):
                if _NO_LETTER.sub("", name.lower()) == wanted and is_token(found := _text(value)):
                    return str(found)
    return None


def _fields(found: Mapping[str, JSON]) -> Iterator[tuple[str, JSON]]:
    """Return the fields of an object, and a `Value` under its `Name`, as in an environment variable of an ECS task."""
    yield from found.items()
    name = found.get("Name")
    if isinstance(name, str):
        yield name, found.get("Value")


def _text(value: JSON) -> JSON:
    """Return the text in a header of API Gateway (a list of one) or an attribute of SQS and SNS."""
    if isinstance(value, list):
        several = cast("Sequence[JSON]", value)
        return several[0] if len(several) == 1 else None
    return cast("Mapping[str, JSON]", value).get("StringValue") if isinstance(value, dict) else value


def gate_state(when: JSON) -> str:
    """Return the name of the state in a `when`, unchecked."""
    return _text_in(_long(when), "state") or ""


def gate_token(when: JSON) -> str | None:
    """Return the JMESPath of the token in a `when`, unchecked, or None."""
    return _text_in(when, "token")


def _text_in(when: object, name: str) -> str | None:
    found = cast("Mapping[str, object]", when).get(name) if isinstance(when, dict) else None
    return found if isinstance(found, str) else None


def points_to_token(expression: str, sent: JSON) -> bool:
    """Return True if a JMESPath expression finds the token in the unevaluated parameters of a state."""
    try:
        return is_token_expression(jmespath.search(expression, sent))
    except JMESPathError:
        return False


def read_rules(gates: Mapping[str, Gate]) -> tuple[Mapping[str, GateRule], Sequence[str]]:
    """Return the gates of a task by state, and the problems of gates that are invalid after placeholders are filled
    in."""
    rules: dict[str, GateRule] = {}
    wrong: list[str] = []
    for name, gate in gates.items():
        try:
            when = WaitingState.model_validate(_long(gate.when))
        except ValidationError as error:
            wrong.append(f"gate {name}: {_complaint(error, 'when')}")
        else:
            if first := rules.get(when.state):
                wrong.append(f"gate {name}: state {when.state} already belongs to gate {first.name}")
            rules.setdefault(when.state, GateRule(name=name, when=when, request=gate.request))
    return rules, wrong


def read_gate_answer(name: str, send: JSON, written: JSON) -> GateAnswer:
    """Return one answer after its values are filled in; `written` is its form in the configuration.

    Raises:
        EngineRefused: the answer is neither an output nor an error.
    """
    filled: Mapping[str, JSON] = cast("Mapping[str, JSON]", send) if isinstance(send, dict) else {}
    if isinstance(written, dict) and "output" in written:
        filled = {"output": None, **filled}  # filling in placeholders omits empty values
    try:
        return GateAnswer.model_validate(filled)
    except ValidationError as error:
        raise EngineRefused(f"gate {name}: {_complaint(error, 'send')}") from None


def _complaint(error: ValidationError, part: str) -> str:
    wrong = error.errors(include_input=False, include_url=False)[0]
    where = ".".join([part, *map(str, wrong["loc"])])
    return f"{where}: {wrong['msg'].removeprefix('Value error, ')}"


SUCCESS: Final = "send_task_success"
FAILURE: Final = "send_task_failure"
_ACCEPT: Final = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCall:
    """One answer, as a call of the API."""

    key: str
    operation: str
    params: Mapping[str, str] = field(repr=False)  # includes the task token


def requests(history: History, gates: Mapping[str, Gate]) -> Mapping[str, InputRequest]:
    """Return the open questions. The key of each is the id of its event, which is never reused."""
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
    """Return the calls that answer open questions; other responses are ignored.

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
    """Return True if an open gate's token has no known name, so that only the definition can locate it."""
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
    """Return a person's answer in the form for the state; the content is empty unless the person accepted."""
    action, content = response.get("action"), response.get("content")
    return {"action": action, "content": content if action == _ACCEPT and content is not None else {}}


def _success(key: str, token: str, output: JSON) -> AnswerCall:
    return AnswerCall(
        key=key, operation=SUCCESS, params={"taskToken": token, "output": payload(output, "answer", "make it shorter")}
    )
