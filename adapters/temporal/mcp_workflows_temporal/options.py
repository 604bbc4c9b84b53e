"""The options of one tool; texts may hold {{placeholders}} until a task is made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import CoreSchema, SchemaSerializer, core_schema

from mcp_workflows import Duration
from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineRefused

OPEN = "{{"
FINAL = "final"  # the validation context once all templates are filled in
MAX_ID_BYTES = 1000  # `limit.maxIDLength`
OWN_IDS = "mcp-"  # the beginning of default workflow ids
MAX_FAIRNESS_KEY_BYTES = 64


@dataclass(frozen=True, slots=True)
class Templated:
    """Marks a value that is no text but may be written as a template; it is validated once that is filled in."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # Any: a type
        inner = handler(source)
        written = SchemaSerializer(inner)

        def write(value: Any) -> Any:  # Any: of the marked type
            return value if isinstance(value, str) else written.to_python(value, mode="json")

        return core_schema.with_info_wrap_validator_function(
            _unless_template, inner, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string", "pattern": r"\{\{"}]}


def _unless_template(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Return a template as it is, and validate any other value; Any: of the marked type."""
    return value if is_template(value) and info.context != FINAL else handler(value)


def is_template(value: object) -> bool:
    """Return whether a value has placeholders to fill in."""
    return isinstance(value, str) and OPEN in value


Text = Annotated[str, Field(coerce_numbers_to_str=True)]
Time = Annotated[Duration, Templated()]


class OnExisting(StrEnum):
    """The reaction to an existing execution with the workflow id."""

    REFUSE = "refuse"
    ADOPT = "adopt"


class AttributeType(StrEnum):
    """The types of search attributes, in Temporal's words."""

    TEXT = "Text"
    KEYWORD = "Keyword"
    INT = "Int"
    DOUBLE = "Double"
    BOOL = "Bool"
    DATETIME = "Datetime"
    KEYWORD_LIST = "KeywordList"


class TypedAttribute(BaseModel):
    """A search attribute with its type, for values that could be of several."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: AttributeType = Field(description="The type it is registered with.")
    value: str | bool | int | float | list[str] | None = Field(
        default=None, description="The value; a Datetime as text with its zone, 2026-07-28T12:00:00Z."
    )


AttributeValue = TypedAttribute | str | bool | int | float | list[str] | None


class TemporalPriority(BaseModel):
    """The order on a task queue with a backlog."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: Annotated[Annotated[int, Field(ge=1)], Templated()] | None = Field(
        default=None, description="1 is the most urgent; the server's default is 3 of 5."
    )
    fairness_key: Text | None = Field(default=None, description="Whose share it is, a tenant's for example; 64 bytes.")
    fairness_weight: Annotated[Annotated[float, Field(gt=0)], Templated()] | None = Field(
        default=None, description="How large that share is; 1."
    )


class DeploymentVersion(BaseModel):
    """One version of a worker deployment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    deployment: Annotated[Text, Field(min_length=1)] = Field(description="The name of the worker deployment.")
    build_id: Annotated[Text, Field(min_length=1)] = Field(description="The build id of that version.")


class Pinned(BaseModel):
    """The execution stays on one version."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pinned: DeploymentVersion = Field(description="The version it is pinned to.")


class CancelSignal(BaseModel):
    """Cancellation by a signal, for workflows with that convention."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    signal: Annotated[Text, Field(min_length=1)] = Field(description="The signal that asks the workflow to stop.")
    args: list[JSON] = Field(default_factory=list, description="Its arguments, positional.")


class TemporalOptions(BaseModel):
    """The options of one tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task_queue: Annotated[Text, Field(min_length=1)] | None = Field(
        default=None, description="Where this workflow starts."
    )
    workflow_id: Text | None = Field(
        default=None, description="The workflow id, fulfil-{{order_id}}. Default: mcp- and the key of the task."
    )
    on_existing: OnExisting = Field(
        default=OnExisting.REFUSE,
        description="If that id is taken: refuse, or adopt the execution if the same owner started it here.",
    )
    execution_timeout: Time | None = Field(
        default=None, description="Longest time of the whole chain of runs. Default: no limit."
    )
    run_timeout: Time | None = Field(default=None, description="Longest time of one run.")
    task_timeout: Time | None = Field(default=None, description="Longest time of one workflow task. Default: 10s.")
    search_attributes: dict[str, AttributeValue] = Field(
        default_factory=dict, description="Search attributes, by name: a value, or its type and value."
    )
    priority: TemporalPriority | None = Field(default=None, description="Who comes first on a busy task queue.")
    versioning_override: Literal["auto_upgrade"] | Pinned | None = Field(
        default=None, description="auto_upgrade, or the version of the worker deployment to be pinned to."
    )
    cancel: CancelSignal | None = Field(
        default=None, description="A signal that cancels, for workflows that want one. Default: Temporal's own cancel."
    )
    summary: Text | None = Field(default=None, description="One line about the execution, for the Web UI.")
    details: Text | None = Field(default=None, description="More about it, for the Web UI (Markdown).")

    @classmethod
    def final(cls, options: Mapping[str, JSON]) -> Self:
        """Read the options of a task, with all templates filled in.

        Raises:
            EngineRefused: an option is invalid; the message has nothing of its value.
        """
        found = cls._read(options, FINAL)
        if complaint := next(found.complaints(), None):
            raise EngineRefused(complaint, final=True)
        return found

    @classmethod
    def written(cls, options: Mapping[str, JSON]) -> Self:
        """Read the options of a tool, which may have placeholders.

        Raises:
            EngineRefused: an option is invalid; the message has nothing of its value.
        """
        return cls._read(options, None)

    @classmethod
    def _read(cls, options: Mapping[str, JSON], context: str | None) -> Self:
        try:
            return cls.model_validate(dict(options), context=context)
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, wrong["loc"]))
            raise EngineRefused(f"options of the tool: {where}: {wrong['msg']}") from None

    def complaints(self) -> Iterator[str]:
        """Yield the errors that can be found only once all templates are filled in."""
        if self.workflow_id is not None:
            yield from _complaints_about_id(self.workflow_id)
        key = self.priority.fairness_key if self.priority else None
        if key is not None and len(key.encode(errors="replace")) > MAX_FAIRNESS_KEY_BYTES:
            yield f"the fairness key of the tool is longer than {MAX_FAIRNESS_KEY_BYTES} bytes"


START_OPTIONS = frozenset(TemporalOptions.model_fields) - {"cancel"}  # of no use for a running execution


def _complaints_about_id(workflow_id: str) -> Iterator[str]:
    if not workflow_id.strip():
        yield "the workflow id of the tool is empty once it is filled in"
    if len(workflow_id.encode(errors="replace")) > MAX_ID_BYTES:
        yield f"the workflow id is longer than {MAX_ID_BYTES} bytes"
    if not workflow_id.isprintable():
        yield "the workflow id has characters in it that cannot be printed"
    if workflow_id.startswith(OWN_IDS):
        yield f"workflow ids that begin with {OWN_IDS} are those of tasks without an id of their own"
