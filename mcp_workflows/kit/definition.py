"""Parts of a YAML definition for reading an engine's replies: statuses, results, questions.

`kit.expressions` evaluates its expressions, `kit.reply_reader` applies it to replies. The adapter adds the request (an
HTTP call, a tool of an MCP server).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from mcp_workflows.adapter.boundary import JSON, StartGuarantee, Status
from mcp_workflows.adapter.templates import unused_fields
from mcp_workflows.kit.expressions import Text, Value, as_list, as_object
from mcp_workflows.units import Duration

T = TypeVar("T")
ActionSettings = TypeVar("ActionSettings", bound=BaseModel)
_LONGEST_CALL: Final = timedelta(seconds=9)  # the core's limit is ten
MODEL: Final = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)


def in_order(values: tuple[T, ...]) -> tuple[T, ...]:
    """Sort and deduplicate, so that every process computes the same digest."""
    return tuple(sorted(set(values)))  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def word_of(value: object) -> str:
    """Return a value of a reply as the text that a map compares."""
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _words(written: object) -> object:
    """Wrap a single word in a list, and convert numbers and booleans to the texts that they are compared with."""
    listed = as_list(written)
    return tuple(word_of(each) for each in ([written] if listed is None else listed))


_Word: TypeAlias = str | int | bool
Words = Annotated[
    tuple[str, ...], BeforeValidator(_words, json_schema_input_type=list[_Word] | _Word), AfterValidator(in_order)
]


ENDS_OR_RUNS: Final = (Status.RUNNING, Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)


def _short(timeout: timedelta) -> timedelta:
    if timeout > _LONGEST_CALL:
        raise ValueError(f"at most {_LONGEST_CALL.total_seconds():g}s: a call to an engine ends after 10 s")
    return timeout


CallTimeout = Annotated[Duration, AfterValidator(_short)]
"""The time limit of one verb, over all its requests."""


def promise_of(starts: StartGuarantee) -> str:
    """Return the effect of a repeated start, for people."""
    return {
        StartGuarantee.KEYED: "a repeated start is deduplicated by its key",
        StartGuarantee.FINDABLE: "a start whose reply is lost is searched for by its key",
        StartGuarantee.ONCE: "a start whose reply is lost stays unknown",
    }[starts]


def _written_out(name: str) -> str:
    if "{{" in name:
        raise ValueError("write the name itself: with a placeholder, arguments would choose the message")
    return name


MessageName = Annotated[str, Field(coerce_numbers_to_str=True, min_length=1), AfterValidator(_written_out)]
"""The engine's name of a message, such as a signal."""


Sends: TypeAlias = Literal[StartGuarantee.KEYED, StartGuarantee.ONCE]
SENDS: Final = (
    "The guarantee for a repeated message: keyed (the key prevents a second delivery) or once (the message is never "
    "repeated)."
)


def action_settings(model: type[ActionSettings], name: str, known: Iterable[str]) -> type[ActionSettings] | None:
    """Return the model of an action whose field `name` accepts only these names; None if there are none.

    `known` are the actions of an engine's definition.
    """
    names = tuple(known)
    fields: Any = {name: (Literal[names], ...)}  # Any: a type made of values
    return create_model(model.__name__, __base__=model, **fields) if names else None


class StatusMap(BaseModel):
    """The API's status words by meaning. An unlisted word means that the execution still runs."""

    model_config = MODEL

    running: Words = Field(default=(), description="Status words of a running or queued execution.")
    succeeded: Words = Field(default=(), description="Status words of a successful end.")
    failed: Words = Field(default=(), description="Status words of a failure.")
    cancelled: Words = Field(default=(), description="Status words of a cancellation.")

    @model_validator(mode="after")
    def _says_one_thing(self) -> StatusMap:
        seen: set[str] = set()
        for status in ENDS_OR_RUNS:
            words: Words = getattr(self, status)
            if twice := seen.intersection(words):
                raise ValueError(f"{', '.join(sorted(twice))}: a word can mean one thing only")
            seen.update(words)
        return self

    def status(self, word: str) -> Status | None:
        """Return the status that a word means; None if the map does not list it."""
        return next((status for status in ENDS_OR_RUNS if word in getattr(self, status)), None)


class ProgressPart(BaseModel):
    """The progress of an execution."""

    model_config = MODEL

    value: Text = Field(description="The progress so far.")
    total: Text | None = Field(default=None, description="The total.")


class Steps(BaseModel):
    """The steps of an execution: stages, jobs, tasks."""

    model_config = MODEL

    each: Text = Field(description="The list of items in the reply.")
    name: Text = Field(description="The name of an `item`.")
    status: Text = Field(description="The status word in the reply.")
    map: StatusMap | None = Field(
        default=None, description="The meaning of the status words. Default: as for the execution."
    )
    at: Text | None = Field(default=None, description="The time of its start or end, as the API writes it.")
    now: Text | None = Field(
        default=None, description="The list of names of running steps. Sets `message` to `stage 3 of 5: NAME`."
    )


class Entry(BaseModel):
    """The execution's entry in a list that `describe` returns."""

    model_config = MODEL

    each: Text = Field(description="The list of items in the reply.")
    where: Text = Field(description="True if the `entry` is the execution.")


class Reading(BaseModel):
    """The expressions that read an execution's state from the replies of a poll."""

    model_config = MODEL

    entry: Entry | None = Field(
        default=None, description="The execution's entry, if the reply is a list. Expressions see it as `entry`."
    )
    status: Text | None = Field(default=None, description="The status word in the reply.")
    map: StatusMap = Field(default=StatusMap(), description="The meaning of the status words.")
    message: Text | None = Field(
        default=None, description="The status message while the execution runs. Default: the running steps."
    )
    progress: ProgressPart | None = Field(default=None, description="The progress so far.")
    steps: Steps | None = Field(default=None, description="The steps of the execution.")
    output: Value = Field(default=None, description="The result of a successful execution.")
    failure: Text | None = Field(default=None, description="The reason for a failure: the step, the message.")
    url: Text | None = Field(default=None, description="The URL of the execution in the engine's UI.")
    execution_id: Text | None = Field(
        default=None, description="The execution's id as people type it. Default: the handle."
    )


class Inputs(BaseModel):
    """Inputs that the API lists individually."""

    model_config = MODEL

    each: Text = Field(description="The inputs: a list, or an object by name.")
    when: Text | None = Field(default=None, description="True if callers provide the `input`. Default: all.")
    name: Text = Field(default="{{input.name}}", description="The name of an `input`.")
    json_schema: Value = Field(
        default=None,
        alias="schema",
        description="The input's JSON Schema, if the API has one. The other settings add to it.",
    )
    type: Text | None = Field(default=None, description="The word for the input's type. Default: a text.")
    types: Mapping[str, str] = Field(default={}, description="The JSON Schema types of these words. Default: string.")
    description: Text | None = Field(default=None, description="The description for people.")
    default: Value = Field(default=None, description="The default value.")
    choices: Text | None = Field(default=None, description="The list of allowed values.")
    required: Text | None = Field(default=None, description="True if the input is required.")


class EnginePage(BaseModel):
    """The engine's page for a question, if it is not the page of the execution."""

    model_config = MODEL

    engine: Text = Field(description="The URL of the page, if it is not `describe.url`.")


class EngineQuestion(BaseModel):
    """A question of an execution to people."""

    model_config = MODEL

    when: Text | None = Field(default=None, description="The condition of the question. With `each`, it sees `item`.")
    each: Text | None = Field(default=None, description="A list with one question per `item`. Default: one question.")
    asked: Text | None = Field(
        default=None,
        description="The time of the question, for an API that can lose an immediate answer. The question is "
        "shown after `settling` has passed since then.",
    )
    key: Text = Field(default="1", description="A key that is unique among all questions of the execution.")
    message: Text = Field(description="The text of the question.")
    answer_in: Literal["chat", "page", "engine"] | EnginePage = Field(
        default="chat",
        description="Where people answer: `chat`; `page`, only on the server's page (`server.web`), so that no "
        "model can; `engine`, on the engine's page `describe.url`, or `{engine: URL}`. With "
        "`engine`, the question is a link, and a poll notices the answer.",
    )
    form: Value = Field(
        default=None,
        description="The JSON Schema of the answer (an object), also as JSON text. Default: yes or no "
        "(`approved`) if `send` uses the answer; otherwise the person only accepts or declines.",
    )
    fields: Inputs | None = Field(
        default=None,
        description="Further fields of the form, as the API lists them. In `send` they are `fields`, with defaults.",
    )

    @property
    def sent(self) -> JSON:
        """The adapter's `send`, which delivers an answer."""
        return self.model_dump(include={"send"}).get("send")

    @property
    def is_on_engine_page(self) -> bool:
        """True if people answer on a page of the engine."""
        return self.answer_in == "engine" or isinstance(self.answer_in, EnginePage)

    @model_validator(mode="after")
    def _can_be_answered(self) -> Self:
        if not self.is_on_engine_page and self.sent is None:
            raise ValueError("a question that is answered in the chat or on our page needs send")
        form = as_object(self.form) or {}
        if self.sent is not None and (unused := unused_fields(form, self.sent)):
            raise ValueError(f"the person answers {unused[0]!r}, and send does not use it: a no would be sent as a yes")
        return self
