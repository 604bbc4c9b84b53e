"""Gates as the configuration declares them: human steps of workflows that were not written for us."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mcp_workflows.adapter import JSON, Gate, InputRequest
from mcp_workflows.adapter.templates import Template
from mcp_workflows.tools.questions import Question, check_template

ELICIT = "elicitation/create"


class ToolGate(BaseModel):
    """One gate of a tool. Its adapter checks `when`, `send` and `decline`, which are in the engine's own words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: Any = Field(description="When the execution waits for a person, in the engine's words.")  # any JSON value
    ask: Question = Field(description="What the person is asked then.")
    send: Any = Field(  # any JSON value
        description="How the answer reaches the workflow; {{answer.NAME}} and {{principal.subject}} may be in it."
    )
    decline: Any = Field(  # any JSON value
        default=None, description="How a refusal does. Without it the question cannot be declined."
    )

    @field_validator("when", "send", "decline")
    @classmethod
    def _is_template(cls, value: Any) -> Any:  # any JSON value
        check_template(value)
        return value

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
        request = InputRequest(method=ELICIT, params=self.ask.params(name, scope), gate=name)
        return Gate(when=Template(self.when).render(scope), request=request, send=self.send, decline=self.decline)
