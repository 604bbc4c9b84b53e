"""A question to a person, as the configuration writes it: before the start (`ask`), or while it works (`gates`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from mcp_workflows.display_text import cleaned, is_blank
from mcp_workflows.errors import ConfigError
from mcp_workflows.mapping import Template
from mcp_workflows.schema import PRIMITIVES, Schema, check_field, check_form, check_schema


def check_template(value: Any) -> None:  # any JSON value
    """Whether its placeholders are right.

    Raises:
        ValueError: they are not (pydantic wants one of these).
    """
    try:
        Template(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def check_visible(text: str) -> str:
    """Return a text that a person is to read.

    Raises:
        ValueError: nothing of it can be seen (pydantic wants one of these).
    """
    if is_blank(text):
        raise ValueError("must say something: nothing of this can be seen")
    return text


def check_message(text: str) -> str:
    """Return a text that a person is to read, with its placeholders.

    Raises:
        ValueError: nothing of it can be seen, or its placeholders are wrong.
    """
    check_template(check_visible(text))
    return text


Visible = Annotated[str, AfterValidator(check_visible)]
"""A text that a person reads."""

Message = Annotated[str, AfterValidator(check_message)]
"""A text with placeholders that a person reads."""


class Question(BaseModel):
    """What a person is asked, and the form they fill in."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    message: Message = Field(
        description="What the person reads; may hold {{placeholders}} over the arguments, which stand between « and »."
    )
    schema_: Schema = Field(
        alias="schema",
        description="A primitive schema (wrapped as one property named like the question) or a flat object schema.",
    )

    @field_validator("schema_")
    @classmethod
    def _schema_is_form(cls, schema: Schema) -> Schema:
        if schema.get("type") in PRIMITIVES:
            check_schema({"type": "object", "properties": {"value": schema}})
            check_field("it", schema)
            return schema
        check_form(check_schema(schema))
        return schema

    def form(self, name: str) -> Schema:
        """The object schema a client shows as a form: `requestedSchema` of `elicitation/create`."""
        if self.schema_.get("type") == "object":
            return self.schema_
        return {"type": "object", "properties": {name: self.schema_}, "required": [name]}

    def params(self, name: str, scope: Mapping[str, Any]) -> Mapping[str, Any]:
        """The params of `elicitation/create`; a message that is nothing but values begins with the question's name."""
        template = Template(self.message)
        lead = f"{cleaned(name)}: " if template.wordless else ""
        return {"mode": "form", "message": lead + template.message(scope), "requestedSchema": self.form(name)}

    def answers(self, name: str) -> frozenset[str]:
        """The names an answer can fill."""
        return frozenset(self.form(name).get("properties", {}))


class Ask(Question):
    """A question to the person before anything starts; the answer joins the arguments.

    Source: MCP 2026-07-28, multi round-trip requests (`inputRequests` on `tools/call`).
    """

    when_missing: bool = Field(default=False, description="Ask only if the arguments do not have it already.")

    def due(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Whether the question is still to be asked, given the arguments so far."""
        wanted = self.form(name).get("required") or list(self.answers(name))
        return not self.when_missing or any(key not in arguments for key in wanted)
