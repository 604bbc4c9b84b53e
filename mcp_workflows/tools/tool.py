"""The tool: one workflow of one engine as one MCP tool."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Final, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    WithJsonSchema,
    WrapSerializer,
    field_validator,
    model_validator,
)

from mcp_workflows.access import PRINCIPAL_FIELDS, Allow, Principal
from mcp_workflows.access.limit_settings import ToolLimits
from mcp_workflows.adapter import JSON, Gate
from mcp_workflows.adapter.templates import Template
from mcp_workflows.errors import MappingError
from mcp_workflows.tools.gates import ToolGate
from mcp_workflows.tools.json_schema import MAX_COMPLAINTS, Checker, Schema, check_schema, violations, without_formats
from mcp_workflows.tools.questions import Ask, Message, Visible, check_template
from mcp_workflows.units import DURATION_SCHEMA, Duration


class Then(StrEnum):
    """The action on an execution that does not end although it was asked to."""

    TERMINATE = "terminate"


class OnExpire(StrEnum):
    """The fate of an execution that still runs when its task expires."""

    KEEP = "keep"
    CANCEL = "cancel"


class AfterCancel(BaseModel):
    """The time that an execution has to end after a cancellation, and the action then."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grace: Duration = Field(
        description="How long it may take to end, from when its engine has taken the cancellation.", examples=["30s"]
    )
    then: Then = Field(
        default=Then.TERMINATE,
        description="What is done if it has not ended by then: `terminate`, which asks nobody and cleans nothing up.",
    )


MAX_RESULT_BYTES = 1_000_000


class TaskSupport(StrEnum):
    """The task support of a tool, in the words of 2025-11-25 (`execution.taskSupport`)."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    FORBIDDEN = "forbidden"


class Fallback(StrEnum):
    """The result for a client without tasks, from a tool whose tasks are optional."""

    TOOLS = "tools"
    WAIT = "wait"
    REFUSE = "refuse"


class Card(StrEnum):
    """The run card of a tool's tasks, in hosts that show pages of MCP Apps."""

    ON = "on"
    OFF = "off"
    ANSWERS_ONLY = "answers_only"


def _from_boolean(value: object) -> object:
    """Return `on` or `off` for a boolean: a reader of YAML 1.1 makes booleans of these words."""
    return (Card.ON if value else Card.OFF) if isinstance(value, bool) else value


CardSetting = Annotated[
    Card,
    BeforeValidator(_from_boolean),
    WithJsonSchema({"anyOf": [{"enum": [card.value for card in Card]}, {"type": "boolean"}]}),
]
"""`card` as a configuration may write it."""


AUTO = "auto"


def _read_wait(value: object) -> object:
    return None if value == AUTO else value


def _write_wait(value: timedelta | None, write: SerializerFunctionWrapHandler) -> object:
    return AUTO if value is None else write(value)


Wait = Annotated[
    Duration | None,
    BeforeValidator(_read_wait),
    WrapSerializer(_write_wait),
    WithJsonSchema({"anyOf": [{"enum": [AUTO]}, DURATION_SCHEMA]}),
]
"""`wait` as a configuration may write it; None: as long as the caller's host allows."""


class Kind(StrEnum):
    """The kind of a call: it starts an execution, or watches one that somebody else started."""

    START = "start"
    WATCH = "watch"


class Annotations(BaseModel):
    """Hints for hosts about what a tool does (MCP `ToolAnnotations`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: Visible | None = Field(default=None, description="The name people see, if the tool's own title is not set.")
    readOnlyHint: bool | None = Field(default=None, description="It changes nothing.")
    destructiveHint: bool | None = Field(default=None, description="It may destroy or overwrite something.")
    idempotentHint: bool | None = Field(default=None, description="Doing it twice is like doing it once.")
    openWorldHint: bool | None = Field(default=None, description="It reaches things outside your own systems.")


EXECUTION_ID = "execution_id"
CONFIRM = "confirm"  # the name of that question, and of the box in it
TOLD = frozenset({"tool", "owner", "principal", "issuer", "client", "traceparent", "tracestate"})
"""The names of what engines are told in any case."""
_TOLD_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")  # of labels too
WATCH_INPUT: Schema = {
    "type": "object",
    "properties": {
        EXECUTION_ID: {"type": "string", "minLength": 1, "maxLength": 2000, "description": "Its id in the engine."}
    },
    "required": [EXECUTION_ID],
    "additionalProperties": False,
}
_OPENING = frozenset({"patternProperties", "allOf", "anyOf", "oneOf", "$ref"})  # more properties may come of these

UNCHECKED: Final = "unchecked_result"
"""The only member of the structured content for a result that does not match its schema; the value is JSON text."""
_UNCHECKED_FIELD: Final = {
    "type": "string",
    "description": "Replaces the rest if the result is of another form: as JSON text.",
}
_ASSERTED_OF_OBJECTS: Final = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"}
    | {"required", "minProperties", "maxProperties", "propertyNames", "const", "enum"}
)


class Tool(BaseModel):
    """One workflow as one MCP tool.

    Raises:
        pydantic.ValidationError: a schema, a template, a name or a duration is wrong.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="The tool's name, as clients call it.")
    engine: str = Field(description="Which of the engines runs it.")
    workflow: str = Field(min_length=1, description="The workflow in the engine's own naming.")
    title: Visible | None = Field(default=None, description="The name people see.")
    description: str | None = Field(default=None, description="What the model reads to decide when to call it.")
    input: Schema = Field(
        default_factory=lambda: {"type": "object"}, description="JSON Schema of the arguments (an object)."
    )
    args: Any = Field(  # any JSON value with {{placeholders}}
        default=None,
        description="How arguments reach the workflow: a template, a list for positional arguments. "
        "Default: the whole object as the one argument; none if it is empty and `input` declares none.",
    )
    send: Any = Field(  # likewise
        default=None,
        description="The one input of the workflow, as a template: `send: X` is the same as `args: [X]`.",
    )
    output: Schema | None = Field(default=None, description="JSON Schema of the result (an object).")
    annotations: Annotations | None = Field(default=None, description="Hints for hosts (MCP ToolAnnotations).")
    tasks: TaskSupport = Field(default=TaskSupport.OPTIONAL, description="Whether a call becomes a task.")
    kind: Kind = Field(
        default=Kind.START,
        description="What a call does: `start` an execution, or `watch` a running one of this workflow, by its id in "
        "the engine. Watching needs a caller who is identified.",
    )
    allow_answer: bool = Field(
        default=False, description="With `kind: watch`: the caller may answer the execution's questions."
    )
    allow_cancel: bool = Field(default=False, description="With `kind: watch`: the caller may cancel the execution.")
    fallback: Fallback = Field(
        default=Fallback.TOOLS,
        description="What clients without tasks get when tasks are optional: after `wait`, a handle for the task_tool "
        "tools (`tools`); the result, however long it takes (`wait`); or an error (`refuse`).",
    )
    wait: Wait = Field(
        default=None,
        description="With `fallback: tools`: how long a call waits for the workflow. `auto`, the default, is as long "
        "as the host allows, and 4s for an unknown host: see `mcp-workflows docs clients-without-tasks`.",
        examples=["auto", "30s"],
    )
    card: CardSetting = Field(
        default=Card.ON,
        description="With `fallback: tools`: whether hosts that show pages (MCP Apps) show the task as a card, with "
        "steps, questions and result: `on`; `off`; or `answers_only`, where only the card answers and cancels, and the "
        "model does not. See `mcp-workflows docs card`.",
    )
    adaptive: Duration | None = Field(
        default=None,
        description="How long a call that may become a task waits first: what ends by then is no task, but its result. "
        "Not for clients of 2025-11-25, who get what they ask for.",
        examples=["2s"],
    )
    cancel_on_disconnect: bool = Field(
        default=False, description="Whether a client that leaves or cancels a waiting call cancels the workflow."
    )
    cancel: AfterCancel | None = Field(
        default=None,
        description="What is done if it does not end when it is asked to cancel: see `mcp-workflows docs lifetimes`. "
        "Default: nothing, it ends when it likes.",
    )
    ttl: Duration | None = Field(
        default=None, description="How long a task can be read after its creation. Default: the store's retention."
    )
    on_expire: OnExpire = Field(
        default=OnExpire.KEEP,
        description="What becomes of an execution that still runs when its task cannot be read any more: `keep` it "
        "running, or `cancel` it.",
    )
    allow: Allow | None = Field(
        default=None,
        description="Who may call it, and see, answer and cancel its tasks: see `mcp-workflows docs access`. Default: "
        "whoever is let in may call it, and a task is its owner's alone.",
    )
    ask: dict[str, Ask] = Field(default_factory=dict, description="Questions before the start, by name.")
    confirm: Message | None = Field(
        default=None,
        description="What a person must say yes to before each start, after all other questions; may hold "
        "{{placeholders}}, whose values stand between « and ». Clients that cannot ask are refused. See "
        "`mcp-workflows docs retries`.",
        examples=["Charge {{amount}}?"],
    )
    dedupe: Duration | None = Field(
        default=None,
        description="For how long after a call without an idempotency key the same arguments, from the same principal, "
        "are the same task. Default: such calls are two. See `mcp-workflows docs retries`.",
        examples=["10m"],
    )
    on_behalf_of: dict[str, str] = Field(
        default_factory=dict,
        max_length=16,
        description="More that the engine is told of who calls, as texts with {{placeholders}}: in a memo (Temporal) "
        'or labels (Google). `{email: "{{principal.claims.email}}"}`.',
    )
    gates: dict[str, ToolGate] = Field(
        default_factory=dict,
        description="Human steps of a workflow that was not written for us, by name: see `mcp-workflows docs gates`.",
    )
    listed: bool = Field(
        default=True,
        description="Whether clients see it. Others are for functions of your own, see `Workflows.hand_over`.",
    )
    limits: ToolLimits = Field(default_factory=ToolLimits, description="How many of its tasks there may be.")
    max_result: int = Field(
        default=MAX_RESULT_BYTES, gt=0, description="Bytes of JSON above which a result becomes a resource link."
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Settings of this tool for its engine's adapter (task queue, ...); may hold {{placeholders}}.",
    )

    @model_validator(mode="before")
    @classmethod
    def _watches_by_id(cls, values: Any) -> Any:  # any: what is not a mapping is pydantic's to refuse
        if not isinstance(values, dict) or cast("dict[str, Any]", values).get("kind") != Kind.WATCH:
            return values  # pyright: ignore[reportUnknownVariableType]
        written = cast("dict[str, Any]", values)
        if useless := sorted(written.keys() & {"input", "args", "send", "ask", "dedupe", "on_behalf_of"}):
            raise ValueError(f"kind: watch takes an execution id and starts nothing: leave out {', '.join(useless)}")
        return {**written, "input": WATCH_INPUT}

    @model_validator(mode="after")
    def _has_only_what_counts(self) -> Self:
        given, optional = self.model_fields_set, self.tasks is TaskSupport.OPTIONAL
        useless = {
            "kind: watch": {"allow_answer", "allow_cancel"} if self.kind is Kind.START else set[str](),
            "tasks: optional": set[str]() if optional else {"fallback", "wait", "card"},
            "fallback: tools": {"wait", "card"} if optional and self.fallback is not Fallback.TOOLS else set[str](),
            "tasks that are not forbidden": {"adaptive"} if self.tasks is TaskSupport.FORBIDDEN else set[str](),
        }
        for without, names in useless.items():
            if wrong := sorted(names & given):
                raise ValueError(f"{', '.join(wrong)}: only with {without}; leave it out")
        if self.allow and self.allow.call and not self.allow.see and self.tasks is not TaskSupport.FORBIDDEN:
            raise ValueError("allow: nobody could see what comes of it: say `see: {}` for the owner, or say who")
        if self.confirm is not None and CONFIRM in self.ask:
            raise ValueError("confirm: there is a question of that name in ask: rename it")
        if wrong := sorted(name for name in self.on_behalf_of if not _TOLD_NAME.fullmatch(name)):
            raise ValueError(f"on_behalf_of: {wrong[0]!r} is no name for it: up to 32 of a-z, 0-9, _ and -, a-z first")
        if taken := sorted(self.on_behalf_of.keys() & TOLD):
            raise ValueError(f"on_behalf_of: the engine is told {', '.join(taken)} anyway: choose another name")
        if self.kind is Kind.WATCH and not self.allow_cancel and (name := self._cancels_by()):
            raise ValueError(f"{name}: with kind: watch only together with allow_cancel: true")
        return self

    @field_validator("input", "output")
    @classmethod
    def _is_object_schema(cls, schema: Schema | None, info: ValidationInfo) -> Schema | None:
        if schema is None:
            return None
        return without_formats(check_schema(schema)) if info.field_name == "output" else check_schema(schema)

    @field_validator("args", "send")
    @classmethod
    def _is_template(cls, value: Any) -> Any:  # any JSON value
        check_template(value)
        return value

    @field_validator("send")
    @classmethod
    def _instead_of_args(cls, send: Any, info: ValidationInfo) -> Any:  # any JSON value
        if send is not None and info.data.get("args") is not None:
            raise ValueError("is another way to write args: [...]; leave one of the two out")
        return send

    @field_validator("on_behalf_of")
    @classmethod
    def _texts_are_templates(cls, texts: dict[str, str]) -> dict[str, str]:
        check_template(texts)
        return texts

    @field_validator("options")
    @classmethod
    def _options_are_templates(cls, options: dict[str, Any]) -> dict[str, Any]:
        check_template(options)
        return options

    def _cancels_by(self) -> str | None:
        """Return a setting that only matters where executions may be cancelled."""
        by = {
            "cancel_on_disconnect": self.cancel_on_disconnect,
            "cancel": self.cancel is not None,
            "on_expire": self.on_expire is OnExpire.CANCEL,
        }
        return next((name for name, cancels in by.items() if cancels), None)

    @property
    def grace(self) -> float | None:
        """Seconds that an execution may take to end after a cancellation; None: as long as it likes."""
        return None if self.cancel is None else self.cancel.grace.total_seconds()

    @property
    def cancels_on_expiry(self) -> bool:
        """True if an execution that still runs when its task expires is cancelled."""
        return self.on_expire is OnExpire.CANCEL

    @cached_property
    def _args_template(self) -> Template | None:
        args = self.args if self.send is None else [self.send]
        return None if args is None else Template(args)

    @cached_property
    def _options_template(self) -> Template:
        return Template(self.options)

    @cached_property
    def _labels_templates(self) -> Mapping[str, Template]:
        return {name: Template(text) for name, text in self.on_behalf_of.items()}

    @cached_property
    def checker(self) -> Checker:
        """The checker of the arguments."""
        return Checker(self.input)

    @cached_property
    def promised_output(self) -> Schema | None:
        """The output schema for `tools/list`: `output`, and the stand-in for a result that does not match it.

        SDK clients raise an error for any other structured content, and for a result without any.
        """
        output = self.output
        if output is None or not violations(output, {UNCHECKED: ""}):
            return output
        moved = {word: said for word, said in output.items() if word in _ASSERTED_OF_OBJECTS}
        stays = {word: said for word, said in output.items() if word not in moved}
        either = {"anyOf": [moved, {"required": [UNCHECKED]}]} if moved else {}
        return {**stays, "properties": {**output.get("properties", {}), UNCHECKED: _UNCHECKED_FIELD}, **either}

    @cached_property
    def names_headers(self) -> bool:
        """True if the input schema names HTTP headers that repeat arguments (`x-mcp-header`)."""
        return "x-mcp-header" in json.dumps(self.input)

    @property
    def hands_over(self) -> bool:
        """True if a client without tasks may get a handle for the task tools instead of the result."""
        return self.tasks is TaskSupport.OPTIONAL and self.fallback is Fallback.TOOLS

    @property
    def effective_card(self) -> Card:
        """`card`, or `off` if the tool never hands a task over: then there is nothing for a card to follow."""
        return self.card if self.hands_over else Card.OFF

    @property
    def needs_tasks(self) -> bool:
        """True if a client without tasks is refused."""
        optional = self.tasks is TaskSupport.OPTIONAL
        return self.tasks is TaskSupport.REQUIRED or (optional and self.fallback is Fallback.REFUSE)

    @property
    def asks(self) -> Mapping[str, frozenset[str]]:
        """The fields of the questions in the configuration, by name; the workflow may have its own."""
        confirm = {CONFIRM: frozenset({CONFIRM})} if self.confirm is not None else {}
        gates = {name: gate.ask.answers(name) for name, gate in self.gates.items()}
        before = {name: ask.answers(name) for name, ask in self.ask.items()}
        return {**confirm, **gates, **{name: fields | gates.get(name, frozenset()) for name, fields in before.items()}}

    def unanswerable(self) -> Sequence[tuple[str, str]]:
        """Return the questions (by name) and their fields that the tool's input does not take."""
        closed = self.input.get("additionalProperties") is False and "patternProperties" not in self.input
        taken = self.input.get("properties", {})
        brought = [(name, key) for name, ask in self.ask.items() for key in sorted(ask.answers(name))]
        return [(name, key) for name, key in brought if closed and key not in taken]

    def unknown_arguments(self) -> Mapping[str, Sequence[str]]:
        """Return the arguments in templates that neither the input nor a question has, by their place."""
        properties = self.input.get("properties", {})
        if not properties or self.input.keys() & _OPENING:
            return {}  # any argument may be there
        known = frozenset(properties).union(*(ask.answers(name) for name, ask in self.ask.items()))
        templates = {where: Template(source).arguments for where, source in self._templates()}
        found = {where: sorted(names - known) for where, names in templates.items()}
        return {where: names for where, names in found.items() if names}

    def unanswered(self) -> Iterator[tuple[str, str, frozenset[str]]]:
        """Yield each place where a gate takes a field that its answer lacks, that field, and the fields there are."""
        for name, gate in self.gates.items():
            brought = gate.ask.answers(name)
            yield from ((f"gates.{name}.{part}", field, brought) for part, field in gate.unknown_fields(name))

    def unused_answers(self) -> Iterator[tuple[str, str, str]]:
        """Yield each gate that asks for a field and does not send it, the part at fault, and what to do."""
        for name, gate in self.gates.items():
            for field in gate.unused_fields(name):
                text = f"the person answers {field!r}, and send does not use it, so a no would be sent as a yes: "
                yield name, "send", f"{text}put {{{{answer.{field}}}}} in it, or leave the field out of ask"

    @cached_property
    def names_task(self) -> bool:
        """True if a placeholder may have the id of the task, so that no two calls are the same to the engine."""
        return any(Template(source).mentions("task") for _, source in self._templates())

    def unknown_principal_fields(self) -> Iterator[tuple[str, str]]:
        """Yield each place where a placeholder names a field that no principal has, and that field."""
        for where, source in self._templates():
            strange = Template(source).begun_with("principal") - PRINCIPAL_FIELDS
            yield from ((where, field) for field in sorted(strange))

    def _templates(self) -> Iterator[tuple[str, Any]]:  # any JSON value
        """Yield all values that may hold placeholders, with their place."""
        yield "args", self.args
        yield "send", self.send
        yield from self.options.items()
        yield from ((f"ask.{name}.message", ask.message) for name, ask in self.ask.items())
        yield "confirm", self.confirm
        yield from ((f"on_behalf_of.{name}", text) for name, text in self.on_behalf_of.items())
        for name, gate in self.gates.items():
            yield f"gates.{name}.ask.message", gate.ask.message
            yield from ((f"gates.{name}.{part}", getattr(gate, part)) for part in ("when", "send", "decline"))

    def complaints(self, arguments: Mapping[str, Any], *, to_be_asked: frozenset[str] = frozenset()) -> Sequence[str]:
        """Return the errors in the arguments, a line each; arguments that will be asked for may still be missing."""
        required = self.input.get("required", [])
        needed = [name for name in required if name not in to_be_asked or name in arguments]
        checker = self.checker if needed == required else Checker({**self.input, "required": needed})
        found = checker.violations(arguments)
        return [*found, "and perhaps more"] if len(found) == MAX_COMPLAINTS else found

    def map(self, scope: Mapping[str, Any]) -> Any:  # any JSON value
        """Return the arguments as the engine gets them: a list is positional.

        Without `args` they are one object, which may be empty if the input declares any. A workflow that declares none
        may have no parameter for it.
        """
        if self._args_template is not None:
            return self._args_template.render(scope)
        declared = self.input.get("properties") or self.input.get("additionalProperties") not in (None, True, False)
        return [scope["args"]] if scope["args"] or declared or self.input.keys() & _OPENING else []

    def question(self, name: str, scope: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the params of `elicitation/create` for one of the questions."""
        return self.ask[name].params(name, scope)

    def frozen_options(self, scope: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fill in the settings for the engine's adapter: a task keeps them as they were at its start.

        Raises:
            MappingError: a text would have a gap: calls without the argument must not share a workflow id.
        """
        if self._options_template.is_constant:
            return self.options
        if gaps := self._options_template.gaps(scope):
            raise MappingError(f"{', '.join(gaps)} must be given here: a setting of this tool is made of it")
        filled: Mapping[str, Any] = self._options_template.settings(scope)
        return filled

    def labels(self, scope: Mapping[str, Any]) -> Mapping[str, str]:
        """Fill in `on_behalf_of`; texts without a value are left out.

        Raises:
            MappingError: a text would have a gap.
        """
        if gaps := {gap for template in self._labels_templates.values() for gap in template.gaps(scope)}:
            raise MappingError(f"{', '.join(sorted(gaps))} must be there: on_behalf_of of this tool is made of it")
        texts = {name: template.text(scope) for name, template in self._labels_templates.items()}
        return {name: text for name, text in texts.items() if text}

    def frozen_gates(self, scope: Mapping[str, Any]) -> Mapping[str, Gate]:
        """Fill in the gates and their questions.

        Raises:
            MappingError: a template does not work on these values.
        """
        return {name: gate.freeze(name, scope) for name, gate in self.gates.items()}


def on_behalf_of(tool: Tool, principal: Principal, scope: Mapping[str, JSON]) -> Mapping[str, str]:
    """Return the tool, the owner of the task, and the tool's `on_behalf_of`, with no other claims.

    Raises:
        MappingError: see `Tool.labels`.
    """
    exactly = principal.id if principal.subject is not None else None  # two issuers may know one subject
    who = {"principal": exactly, "issuer": principal.issuer, "client": principal.client}
    known = {name: value for name, value in who.items() if value is not None}
    return {"tool": tool.name, "owner": principal.subject or principal.id, **known, **tool.labels(scope)}
