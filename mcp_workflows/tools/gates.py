"""Gates as the configuration declares them: human steps of workflows that were not written for us."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mcp_workflows.adapter import DECLINE_META, JSON, Gate, InputRequest
from mcp_workflows.adapter.templates import Template, unused_fields
from mcp_workflows.tools.json_schema import Schema
from mcp_workflows.tools.questions import Question, check_template

ELICIT = "elicitation/create"


class GateQuestion(Question):
    """The question of a gate. Without a schema the person only accepts or declines."""

    schema_: Schema = Field(
        alias="schema",
        default_factory=lambda: {"type": "object", "properties": {}},
        description="A primitive schema (wrapped as one property named like the gate) or a flat object schema. Without "
        "it the person only accepts or declines.",
    )


class ToolGate(BaseModel):
    """One gate of a tool. Its adapter checks `when`, `send` and `decline`, which are in the engine's own words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: Any = Field(description="When the execution waits for a person, in the engine's words.")  # any JSON value
    ask: GateQuestion = Field(description="What the person is asked then.")
    send: Any = Field(  # any JSON value
        description="How the answer reaches the workflow; {{answer.NAME}} and {{principal.subject}} may be in it."
    )
    decline: Any = Field(  # any JSON value
        default=None, description="How a refusal does. Without it the question cannot be declined."
    )

    @field_validator("ask", mode="before")
    @classmethod
    def _is_gate_question(cls, value: Any) -> Any:  # any input
        return value.model_dump(by_alias=True) if isinstance(value, Question) else value

    @field_validator("when", "send", "decline")
    @classmethod
    def _is_template(cls, value: Any) -> Any:  # any JSON value
        check_template(value)
        return value

    def unused_fields(self, name: str) -> Sequence[str]:
        """Return the fields whose answer `send` does not pass on: see `templates.unused_fields`."""
        return unused_fields(self.ask.form(name), self.send)

    def unknown_fields(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield the fields that `send` and `decline` take from an answer without them: the part, and the field."""
        for part, known in (
            ("send", self.ask.answers(name)),
            ("decline", frozenset[str]()),
        ):
            named = Template(getattr(self, part)).fields("answer")
            yield from ((part, field) for field in sorted(named - known))

    def freeze(self, name: str, scope: Mapping[str, JSON]) -> Gate:
        """Return the gate of one task, with its question filled in.

        Raises:
            MappingError: a template does not work on these values.
        """
        params = dict(self.ask.params(name, scope))
        if self.decline is None:
            params["_meta"] = {**params["_meta"], DECLINE_META: False}
        request = InputRequest(method=ELICIT, params=params, gate=name)
        return Gate(when=Template(self.when).render(scope), request=request, send=self.send, decline=self.decline)
