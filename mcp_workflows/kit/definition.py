"""Parts of a definition in YAML that tell an adapter how to read an engine's replies: statuses, results, questions.

`expressions` has the expressions in them, `reply_reader` what is read with them. How an engine is asked (an HTTP
request, a tool of an MCP server) is for the adapter to add.
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
_LONGEST_CALL: Final = timedelta(seconds=9)  # the core gives up after ten
MODEL: Final = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)


def in_order(values: tuple[T, ...]) -> tuple[T, ...]:
    """Return them in one order: two processes make the same digest of one definition."""
    return tuple(sorted(set(values)))  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def word_of(value: object) -> str:
    """Return a value of a reply as the word that a map compares."""
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _words(written: object) -> object:
    """Read one word as a list, and numbers and booleans as the texts they are compared with."""
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
"""The time limit of one verb, with all its requests."""


def promise_of(starts: StartGuarantee) -> str:
    """Return what a repeated start does, for people."""
    return {
        StartGuarantee.KEYED: "a repeated start is deduplicated by its key",
        StartGuarantee.FINDABLE: "a start whose reply is lost is searched for by its key",
        StartGuarantee.ONCE: "a start whose reply is lost stays unknown",
    }[starts]


Sends: TypeAlias = Literal[StartGuarantee.KEYED, StartGuarantee.ONCE]
SENDS: Final = "What a repeated message does: keyed (the key prevents a second delivery), once (it is never repeated)."


def action_settings(model: type[ActionSettings], name: str, known: Iterable[str]) -> type[ActionSettings] | None:
    """Return the model of an action that takes only these names in the field `name`; None: there are none.

    `known` are the actions of an engine's definition.
    """
    names = tuple(known)
    fields: Any = {name: (Literal[names], ...)}  # Any: a type made of values
    return create_model(model.__name__, __base__=model, **fields) if names else None


class StatusMap(BaseModel):
    """The words of the API by what they mean; a word that is not here means that it still runs."""

    model_config = MODEL

    running: Words = Field(default=(), description="It runs, or waits to.")
    succeeded: Words = Field(default=(), description="It has ended well.")
    failed: Words = Field(default=(), description="It has failed.")
    cancelled: Words = Field(default=(), description="It was cancelled.")

    @model_validator(mode="after")
    def _says_one_thing(self) -> StatusMap:
        seen: set[str] = set()
        for words in (self.running, self.succeeded, self.failed, self.cancelled):
            if twice := seen.intersection(words):
                raise ValueError(f"{', '.join(sorted(twice))}: a word can mean one thing only")
            seen.update(words)
        return self

    def status(self, word: str) -> Status | None:
        """Return the meaning of a word; None: it is not in the map."""
        by_status = {
            Status.RUNNING: self.running,
            Status.SUCCEEDED: self.succeeded,
            Status.FAILED: self.failed,
            Status.CANCELLED: self.cancelled,
        }
        return next((status for status, words in by_status.items() if word in words), None)


class ProgressPart(BaseModel):
    """The progress of an execution."""

    model_config = MODEL

    value: Text = Field(description="How much is done.")
    total: Text | None = Field(default=None, description="Of how much.")


class Steps(BaseModel):
    """The steps of an execution: stages, jobs, tasks."""

    model_config = MODEL

    each: Text = Field(description="The items in the reply, a list.")
    name: Text = Field(description="The name of an `item`.")
    status: Text = Field(description="The word for its status.")
    map: StatusMap | None = Field(default=None, description="What the words mean; default: as for the execution.")
    at: Text | None = Field(default=None, description="When it began or ended, as the API writes it.")
    now: Text | None = Field(
        default=None, description="The names of those that run now, a list: `message` is `stage 3 of 5: NAME` then."
    )


class Entry(BaseModel):
    """The execution in a list that `describe` returns."""

    model_config = MODEL

    each: Text = Field(description="The items in the reply, a list.")
    where: Text = Field(description="True if the `entry` is the execution.")


class Reading(BaseModel):
    """Where the state of an execution stands in the replies of a poll."""

    model_config = MODEL

    entry: Entry | None = Field(
        default=None, description="Its place in the reply, if that is a list; expressions have it as `entry`."
    )
    status: Text | None = Field(default=None, description="The word for its status.")
    map: StatusMap = Field(default=StatusMap(), description="What the words mean.")
    message: Text | None = Field(
        default=None, description="What people are told while it runs; default: the steps that run now."
    )
    progress: ProgressPart | None = Field(default=None, description="How much is done.")
    steps: Steps | None = Field(default=None, description="Its steps.")
    output: Value = Field(default=None, description="Its result, once it has succeeded.")
    failure: Text | None = Field(default=None, description="Why it failed: the step, the message.")
    url: Text | None = Field(default=None, description="The page of it in the engine's own UI.")
    execution_id: Text | None = Field(default=None, description="Its id as people type it; default: the handle.")


class Inputs(BaseModel):
    """Inputs that the API lists, one by one."""

    model_config = MODEL

    each: Text = Field(description="The inputs: a list, or an object by name.")
    when: Text | None = Field(default=None, description="True if callers give the `input`; default: all.")
    name: Text = Field(default="{{input.name}}", description="The name of an `input`.")
    json_schema: Value = Field(
        default=None, alias="schema", description="Its JSON Schema, as far as the API has one; the rest adds to it."
    )
    type: Text | None = Field(default=None, description="The word for its type; default: a text.")
    types: Mapping[str, str] = Field(default={}, description="What these words are in JSON Schema; default: string.")
    description: Text | None = Field(default=None, description="What people read about it.")
    default: Value = Field(default=None, description="Its default.")
    choices: Text | None = Field(default=None, description="The values that it may have, a list.")
    required: Text | None = Field(default=None, description="True if it must be given.")


class EnginePage(BaseModel):
    """The engine's page for a question, if it is another one than that of the execution."""

    model_config = MODEL

    engine: Text = Field(description="The address of the page, if it is not `describe.url`.")


class EngineQuestion(BaseModel):
    """A question that an execution asks people."""

    model_config = MODEL

    when: Text | None = Field(default=None, description="Only if this is true, of the `item` if there is `each`.")
    each: Text | None = Field(default=None, description="A list: one question for each `item`. Default: one question.")
    asked: Text | None = Field(
        default=None,
        description="When it was asked, for an API that may lose an answer which comes at once: it is shown once "
        "`settling` has passed since then.",
    )
    key: Text = Field(default="1", description="What tells this question from others of the same execution, for ever.")
    message: Text = Field(description="What people are asked.")
    answer_in: Literal["chat", "page", "engine"] | EnginePage = Field(
        default="chat",
        description="Where people answer: `chat`; `page`, on our page (`server.web`), so that no model can; `engine`, "
        "on the engine's page `describe.url`, or `{engine: URL}`: the question is a link, and a poll notices the "
        "answer.",
    )
    form: Value = Field(
        default=None,
        description="The JSON Schema of the answer, an object; also as a JSON text. Default: yes or no (`approved`) if "
        "`send` uses the answer; otherwise the person only accepts or declines.",
    )
    fields: Inputs | None = Field(
        default=None,
        description="Further fields of the form, as the API lists them. In `send` they are `fields`, with defaults.",
    )

    @property
    def sent(self) -> JSON:
        """`send` of the adapter's own model: what delivers an answer."""
        return self.model_dump(include={"send"}).get("send")

    @property
    def is_on_engine_page(self) -> bool:
        """True if a page of the engine takes the answer."""
        return self.answer_in == "engine" or isinstance(self.answer_in, EnginePage)

    @model_validator(mode="after")
    def _can_be_answered(self) -> Self:
        if not self.is_on_engine_page and self.sent is None:
            raise ValueError("a question that is answered in the chat or on our page needs send")
        form = as_object(self.form) or {}
        if self.sent is not None and (unused := unused_fields(form, self.sent)):
            raise ValueError(f"the person answers {unused[0]!r}, and send does not use it: a no would be sent as a yes")
        return self
