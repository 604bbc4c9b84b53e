"""Gates on Google Workflows: steps that wait for a callback without `mcp_elicit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mcp_workflows.adapter import JSON, Gate, InputRequest
from mcp_workflows.errors import EngineRefused
from mcp_workflows_google.resources import Callback, Step

_MODEL: Final = ConfigDict(extra="forbid", frozen=True)


class Method(StrEnum):
    """The HTTP methods that `http_callback_method` of events.create_callback_endpoint permits."""

    POST = "POST"
    PUT = "PUT"
    PATCH = "PATCH"
    GET = "GET"
    DELETE = "DELETE"
    HEAD = "HEAD"
    OPTIONS = "OPTIONS"


WITH_BODY: Final = frozenset({Method.POST, Method.PUT, Method.PATCH})


class WaitingStep(BaseModel):
    """The step that waits for a person."""

    model_config = _MODEL

    step: str = Field(
        min_length=1, max_length=128, description="The name of the step that calls events.await_callback."
    )
    routine: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="The subworkflow with the step, or main. Required if other routines have a step of that name.",
    )
    method: Method | None = Field(
        default=None,
        description="The HTTP method of the callback (http_callback_method). Required if several steps wait at once.",
    )

    def matches(self, steps: Sequence[Step]) -> bool:
        """Return whether an execution at these steps is at this step."""
        return any(each.step == self.step and self.routine in {None, each.routine} for each in steps)

    def may_wait_for(self, callback: Callback) -> bool:
        """Return whether this step may be the one that waits for this callback."""
        return self.method is None or callback.method == self.method


class GateAnswer(BaseModel):
    """The request to the callback; the workflow reads it as `.http_request.body` in the result of await_callback."""

    model_config = _MODEL

    body: Any = Field(default=None, description="Any JSON value; none for GET, DELETE, HEAD and OPTIONS.")  # any JSON


def _as_mapping(when: object) -> object:
    return {"step": when} if isinstance(when, str) else when


class GateSettings(BaseModel):
    """A gate on Google Workflows; texts may contain {{placeholders}}."""

    model_config = _MODEL

    when: Annotated[WaitingStep, BeforeValidator(_as_mapping, json_schema_input_type=WaitingStep | str)] = Field(
        description="The step that waits for a person: its name, or {step: name, routine: name, method: POST}."
    )
    send: GateAnswer = Field(description="How the answer reaches the step: {body: any JSON value}.")
    decline: GateAnswer | None = Field(default=None, description="How a refusal reaches the execution.")

    @model_validator(mode="after")
    def _has_room_for_a_body(self) -> GateSettings:
        method = self.when.method
        for part, sending in (("send", self.send), ("decline", self.decline)):
            given = sending is not None and "body" in sending.model_fields_set
            if sending is not None and method is not None and given != (method in WITH_BODY):
                raise ValueError(f"{part}: {_body_words(method)}")
        if method is None and "body" not in self.send.model_fields_set:
            raise ValueError("send: write {body: value}; only callbacks of GET, DELETE, HEAD or OPTIONS take none")
        return self


def _body_words(method: str) -> str:
    if method in WITH_BODY:
        return f"a callback of method {method} needs a body: write {{body: value}}"
    return f"a callback of method {method} takes no body: write {{}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRule:
    """A validated gate."""

    name: str
    when: WaitingStep
    request: InputRequest


def gate_step(when: JSON) -> str:
    """Return the name of the step in a `when`, without validation."""
    found = cast("Mapping[str, JSON]", when).get("step") if isinstance(when, dict) else when
    return found if isinstance(found, str) else ""


def read_rules(gates: Mapping[str, Gate]) -> tuple[Mapping[str, GateRule], Sequence[str]]:
    """Return the gates of a task by name, and the problems of gates that are invalid after placeholders are filled
    in."""
    rules: dict[str, GateRule] = {}
    wrong: list[str] = []
    for name, gate in gates.items():
        try:
            when = WaitingStep.model_validate(_as_mapping(gate.when))
        except ValidationError as error:
            wrong.append(f"gate {name}: {_problem(error, 'when')}")
            continue
        first = next((rule for rule in rules.values() if rule.when == when), None)
        if first is None:
            rules[name] = GateRule(name=name, when=when, request=gate.request)
        else:
            wrong.append(f"gate {name}: step {when.step} already belongs to gate {first.name}")
    return rules, wrong


def read_gate_answer(name: str, send: JSON, written: JSON, method: str) -> JSON:
    """Return the body of an answer to a callback of this method; `written` is the gate's template of it.

    Raises:
        EngineRefused: the body does not fit the gate or the method.
    """
    filled: Mapping[str, JSON] = cast("Mapping[str, JSON]", send) if isinstance(send, dict) else {}
    if isinstance(written, dict) and "body" in written:
        filled = {"body": None, **filled}  # filling in the template drops empty values
    try:
        sending = GateAnswer.model_validate(filled)
    except ValidationError as error:
        raise EngineRefused(f"gate {name}: {_problem(error, 'send')}") from None
    if ("body" in sending.model_fields_set) != (method in WITH_BODY):
        raise EngineRefused(f"gate {name}: {_body_words(method)}")
    return sending.body


def _problem(error: ValidationError, part: str) -> str:
    wrong = error.errors(include_input=False, include_url=False)[0]
    where = ".".join([part, *map(str, wrong["loc"])])
    return f"{where}: {wrong['msg'].removeprefix('Value error, ')}"
