"""The tool: one workflow of one engine as one MCP tool."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    WrapSerializer,
    field_validator,
    model_validator,
)

from mcp_workflows.access import ANONYMOUS, LOCAL, PRINCIPAL_FIELDS, Allow, Principal, Rule
from mcp_workflows.access.limit_settings import ToolLimits
from mcp_workflows.adapter import JSON, Gate, Message
from mcp_workflows.adapter.templates import Template
from mcp_workflows.errors import MappingError
from mcp_workflows.task import START_GATE, Terms
from mcp_workflows.tools.json_schema import (
    MAX_COMPLAINTS,
    Checker,
    Schema,
    check_schema,
    did_you_mean,
    violations,
    without_formats,
)
from mcp_workflows.tools.questions import (
    AnyQuestion,
    Approval,
    GateQuestion,
    Question,
    StartApproval,
    Templated,
    Visible,
    check_template,
)
from mcp_workflows.units import DURATION_SCHEMA, Duration


class Then(StrEnum):
    """The action on an execution that does not end after a cancellation."""

    TERMINATE = "terminate"


class OnExpire(StrEnum):
    """The action on an execution that is still running when its task expires."""

    KEEP = "keep"
    CANCEL = "cancel"


class AfterCancel(BaseModel):
    """The time that an execution has to end after a cancellation, and the action after it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grace: Duration = Field(
        description="How long the execution may take to end after its engine accepts the cancellation.",
        examples=["30s"],
    )
    then: Then = Field(
        default=Then.TERMINATE,
        description="The action after `grace`: `terminate`, which ends the execution without cleanup.",
    )


MAX_RESULT_BYTES = 1_000_000


class TaskSupport(StrEnum):
    """The task support of a tool: whether its calls become tasks, and what a client without tasks gets."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    WAIT = "wait"
    FORBIDDEN = "forbidden"


class Card(StrEnum):
    """The run card of a tool's tasks, in hosts that show pages of MCP Apps."""

    ON = "on"
    OFF = "off"
    ANSWERS_ONLY = "answers_only"


def _from_boolean(value: object) -> object:
    """Return `on` or `off` for a boolean, because YAML 1.1 reads these words as booleans."""
    return (Card.ON if value else Card.OFF) if isinstance(value, bool) else value


CardSetting = Annotated[
    Card,
    BeforeValidator(_from_boolean),
    WithJsonSchema({"anyOf": [{"enum": [card.value for card in Card]}, {"type": "boolean"}]}),
]
"""`card` as a configuration may write it."""

DedupeSetting = Annotated[
    Duration | Literal["off"],
    BeforeValidator(lambda value: "off" if value is False else value),  # YAML 1.1 reads `off` as false
    WithJsonSchema({"anyOf": [DURATION_SCHEMA, {"enum": ["off", False]}]}),
]
"""`dedupe` as a configuration may write it."""


ObjectSchema = Annotated[Schema, AfterValidator(check_schema)]
ActionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
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
    """The kind of a call: it starts an execution, or watches one that was started elsewhere."""

    START = "start"
    WATCH = "watch"


class Annotations(BaseModel):
    """Hints for hosts about what a tool does (MCP `ToolAnnotations`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: Visible | None = Field(default=None, description="The name that people see, unless the tool has a title.")
    readOnlyHint: bool | None = Field(default=None, description="The tool changes nothing.")
    destructiveHint: bool | None = Field(default=None, description="The tool may destroy or overwrite something.")
    idempotentHint: bool | None = Field(default=None, description="A repeated call has no further effect.")
    openWorldHint: bool | None = Field(default=None, description="The tool reaches systems outside your own.")


class TaskAction(BaseModel):
    """A message to the execution of a task; the engine's adapter reads its content from the other keys."""

    model_config = ConfigDict(extra="allow", frozen=True)

    title: Visible | None = Field(default=None, description="The name that people see.")
    description: str | None = Field(
        default=None, description="The description by which the model decides when to use the action."
    )
    input: ObjectSchema = Field(
        default_factory=lambda: {"type": "object", "additionalProperties": False},
        description="JSON Schema of the action's `content` (an object). Default: no content.",
    )
    args: Templated = Field(default=None, description="How the content reaches the workflow: see `args` of a tool.")

    @property
    def settings(self) -> Mapping[str, Any]:
        """The keys for the engine's adapter."""
        return self.model_extra or {}

    def tool(self, name: str, starter: AnyTool) -> Tool:
        """Return the action as a tool, which no client sees; its calls have a target."""
        made = Tool(
            name="action",
            engine=starter.engine,
            title=self.title,
            description=self.description,
            input=self.input,
            args=self.args,
            options=dict(self.settings),
            tasks=TaskSupport.OPTIONAL if starter.needs_tasks else starter.tasks,
            listed=False,
        )
        return made.model_copy(update={"name": action_name(starter.name, name)})


def action_name(tool: str, action: str) -> str:
    """Return the name of an action's tool; names of other tools have no slash."""
    return f"{tool}/{action}"


def is_action(name: str) -> bool:
    """Return True if this is the name of an action's tool."""
    return "/" in name


def repetition(name: str) -> str:
    """Return the text for a second call of this tool."""
    return "take the action" if is_action(name) else f"call {name}"


UNFILLED: Final = frozenset({"progress"})
"""Options whose placeholders the adapter fills in later, from the engine's reports."""
EXECUTION_ID = "execution_id"
RESERVED_LABELS: Final = frozenset({"tool", "owner", "principal", "issuer", "client", "traceparent", "tracestate"})
"""The labels that each execution always gets."""
_LABEL_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
WATCH_INPUT: Schema = {
    "type": "object",
    "properties": {
        EXECUTION_ID: {"type": "string", "minLength": 1, "maxLength": 2000, "description": "Its id in the engine."}
    },
    "required": [EXECUTION_ID],
    "additionalProperties": False,
}
_OPENING = frozenset({"patternProperties", "allOf", "anyOf", "oneOf", "$ref"})  # may add further properties

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


class _Need(NamedTuple):
    """The condition on other settings of a tool under which a setting has an effect."""

    words: str
    is_met: Callable[[Mapping[str, Any]], bool]  # receives the settings as written


def _hands_over(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("tasks", "optional") == "optional")


def _makes_tasks(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("tasks") != "forbidden")


def _gives_handles(settings: Mapping[str, Any]) -> bool:
    return settings.get("tasks", "optional") in {"optional", "required"}


def _may_cancel(settings: Mapping[str, Any]) -> bool:
    return settings.get("kind") != "watch" or settings.get("allow_cancel") is True


_CANCELS: Final = _Need("allow_cancel: true", _may_cancel)
_NEEDS: Final[Mapping[str, _Need]] = {
    **dict.fromkeys(("wait", "card"), _Need("tasks: optional", _hands_over)),
    "approval": _Need("tasks: optional or required", _gives_handles),
    "adaptive": _Need("tasks that are not forbidden", _makes_tasks),
    **dict.fromkeys(("cancel", "cancel_on_disconnect", "on_expire"), _CANCELS),
}


def missing_need(setting: str, settings: Mapping[str, Any]) -> str | None:  # as written
    """Return the missing condition for a setting to have an effect in a tool with these settings; None: it has one.

    In a tool itself such a setting is an error; a default for many tools does not apply.
    """
    kind = Kind.WATCH if settings.get("kind") == Kind.WATCH else Kind.START
    if setting not in MODELS[kind].model_fields and setting in MODELS[_OTHER[kind]].model_fields:
        return f"kind: {_OTHER[kind]}"
    need = _NEEDS.get(setting)
    return None if need is None or need.is_met(settings) else need.words


class _Offered(BaseModel):
    """The settings of all kinds of tools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="The tool's name for clients.")
    engine: str = Field(description="The name of the engine that runs the workflow.")
    workflow: str = Field(
        default="",
        description="The workflow, as the engine names it. A tool that sends a message has the message instead, "
        "such as Temporal's `signal`, `update` or `query`: see `docs/use/messages.md`.",
    )
    title: Visible | None = Field(default=None, description="The name that people see.")
    description: str | None = Field(
        default=None, description="The description by which the model decides when to call the tool."
    )
    output: ObjectSchema | None = Field(default=None, description="JSON Schema of the result (an object).")
    annotations: Annotations | None = Field(
        default=None,
        description="Hints for hosts, MCP's `ToolAnnotations`: `readOnlyHint`, `destructiveHint`, "
        "`idempotentHint`, `openWorldHint`, `title`.",
    )
    tasks: TaskSupport = Field(
        default=TaskSupport.OPTIONAL,
        description="Whether a call becomes a task. Clients without tasks get a handle for the task tools after "
        "`wait` (`optional`), the result, however long it takes (`wait`), or an error (`required`). "
        "With `forbidden`, every client waits for the result.",
    )
    wait: Wait = Field(
        default=None,
        description="With `tasks: optional`: how long a client without tasks waits before it gets a handle. "
        "`auto`, the default, is as long as the host allows, or 4s for an unknown host: see "
        "`docs/use/clients-without-tasks.md`.",
        examples=["auto", "30s"],
    )
    card: CardSetting = Field(
        default=Card.ON,
        description="With `tasks: optional`: show the task view in hosts with MCP Apps: `on`, `off`, or "
        "`answers_only`, where only the view answers and cancels, not the model. See "
        "`docs/use/task-view.md`.",
    )
    adaptive: Duration | None = Field(
        default=None,
        description="How long a call that can become a task waits for its result first. If the execution ends in "
        "time, the call returns the result and no task. Not for clients of 2025-11-25.",
        examples=["2s"],
    )
    model_may_answer: bool = Field(
        default=True, description="Whether `task_answer` may answer the tool's questions: see `docs/use/approvals.md`."
    )
    cancel_on_disconnect: bool = Field(
        default=False,
        description="Whether the workflow is cancelled when a client disconnects from a waiting call or cancels it.",
    )
    cancel: AfterCancel | None = Field(
        default=None,
        description="The action if the execution does not end after a cancellation: see "
        "`docs/use/lifetimes.md`. Default: nothing.",
    )
    ttl: Duration | None = Field(
        default=None,
        description="How long a task can be read after its creation. Default: `limits.default_ttl`, else the "
        "store's `retention`.",
    )
    on_expire: OnExpire = Field(
        default=OnExpire.KEEP,
        description="The action on an execution that still runs when its task expires: `keep` it running, or "
        "`cancel` it.",
    )
    allow: Allow | None = Field(
        default=None,
        description="Access rules for the tool and its tasks: see `docs/secure/access.md`. "
        "Default: every admitted caller may call it, and only the owner reaches a task.",
    )
    questions: Mapping[str, AnyQuestion] = Field(
        default_factory=dict,
        description="Questions to a person, by name. With `when`, a gate on which an unmodified workflow waits: "
        "see `docs/use/gates.md`. Otherwise asked before the start: the answer joins the arguments, "
        "or, without a schema, the person confirms the call. Clients that cannot ask are refused. "
        "See `docs/use/retries.md`.",
    )
    listed: bool = Field(
        default=True,
        description="Whether clients see the tool. Unlisted tools are for your own functions, see "
        "`Workflows.hand_over`.",
    )
    message: Message | None = Field(
        default=None,
        exclude=True,
        description="The message that the tool sends instead of a start, as the engine's adapter defines it.",
    )
    limits: ToolLimits = Field(default_factory=ToolLimits, description="Limits on the tool's tasks.")
    max_result: int = Field(
        default=MAX_RESULT_BYTES,
        gt=0,
        description="The size above which a result becomes a resource link, in bytes of JSON.",
    )
    options: Annotated[dict[str, Any], AfterValidator(check_template)] = Field(
        default_factory=dict,
        description="Settings of this tool for its engine's adapter (task queue, ...), with {{placeholders}}.",
    )
    input: ObjectSchema = Field(
        default_factory=lambda: {"type": "object"}, description="JSON Schema of the arguments (an object)."
    )

    fixed: ClassVar[Mapping[str, Any]] = {}
    """The settings that all tools of this kind have; they cannot be written."""

    @model_validator(mode="before")
    @classmethod
    def _has_settings_of_its_kind(cls, values: Any) -> Any:  # Any: pydantic refuses what is not a mapping
        if not isinstance(values, dict):
            return cast("object", values)
        written, other = cast("dict[str, Any]", values), _OTHER[cls.model_fields["kind"].default]
        if useless := sorted(written.keys() & ({*MODELS[other].model_fields} - {*cls.model_fields} | {*cls.fixed})):
            raise ValueError(f"{', '.join(useless)}: only with kind: {other}; remove it")
        return {**written, **cls.fixed}

    @model_validator(mode="after")
    def _has_only_what_counts(self) -> Self:
        for setting in sorted(self.model_fields_set):
            if need := missing_need(setting, dict(self)):
                raise ValueError(f"{setting}: only with {need}; remove it")
        if self.allow and self.allow.call and not self.allow.see and self.tasks is not TaskSupport.FORBIDDEN:
            raise ValueError("allow: nobody could see its tasks: add `see: {}` for the owner, or say who may")
        if START_GATE in self.questions:
            raise ValueError(f"questions: {START_GATE}: this name is reserved for the approval before the start")
        if len(confirmations := [name for name, each in self._before.items() if each.schema_ is None]) > 1:
            raise ValueError(f"questions: {', '.join(confirmations)}: only one yes or no can be asked before the start")
        return self

    @field_validator("output")
    @classmethod
    def _has_no_formats(cls, schema: Schema | None) -> Schema | None:
        formatless: Schema | None = without_formats(schema)
        return formatless

    @property
    def grace(self) -> float | None:
        """Seconds that an execution may take to end after a cancellation; None: unlimited."""
        return None if self.cancel is None else self.cancel.grace.total_seconds()

    @property
    def cancels_on_expiry(self) -> bool:
        """True if an execution that is still running when its task expires is cancelled."""
        return self.on_expire is OnExpire.CANCEL

    @cached_property
    def _options_template(self) -> Template:
        return Template({name: value for name, value in self.options.items() if name not in UNFILLED})

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
        return self.tasks is TaskSupport.OPTIONAL

    @property
    def effective_card(self) -> Card:
        """`card`, or `off` if the tool never hands a task over: then a task view has nothing to follow."""
        return self.card if self.hands_over else Card.OFF

    @property
    def needs_tasks(self) -> bool:
        """True if a client without tasks is refused."""
        return self.tasks is TaskSupport.REQUIRED

    @property
    def advertised_support(self) -> Literal["required", "optional", "forbidden"]:
        """The task support in the terms of 2025-11-25 (`execution.taskSupport`)."""
        if self.tasks is TaskSupport.REQUIRED:
            return "required"
        return "forbidden" if self.tasks is TaskSupport.FORBIDDEN else "optional"

    @cached_property
    def _before(self) -> Mapping[str, Question]:
        return {name: each for name, each in self.questions.items() if isinstance(each, Question)}

    @cached_property
    def ask(self) -> Mapping[str, Question]:
        """The questions before the start whose answers join the arguments, by name."""
        return {name: each for name, each in self._before.items() if each.schema_ is not None}

    @cached_property
    def confirmation(self) -> tuple[str, Question] | None:
        """The name and the question that a person must confirm before each start; None: no confirmation."""
        return next(((name, each) for name, each in self._before.items() if each.schema_ is None), None)

    @cached_property
    def gates(self) -> Mapping[str, GateQuestion]:
        """The questions of gates, by name."""
        return {name: each for name, each in self.questions.items() if isinstance(each, GateQuestion)}

    @cached_property
    def approvals(self) -> Mapping[str, Approval]:
        """The approvals by the gate of their question."""
        return {name: each.approval for name, each in self.gates.items() if each.approval is not None}

    @cached_property
    def approval_rules(self) -> Sequence[Rule]:
        """All rules for people who may ever approve; each request checks them."""
        return [rule for each in self.approvals.values() for rule in each.rules(escalated=True)]

    @cached_property
    def terms(self) -> Mapping[str, Terms]:
        """The terms of its approvals, by the gate of the question."""
        return {name: each.terms() for name, each in self.approvals.items()}

    @property
    def asks(self) -> Mapping[str, frozenset[str]]:
        """The fields of the questions in the configuration, by name; the workflow may ask others."""
        return {name: each.answers(name) for name, each in self.questions.items()}

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the tool as a whole: the path of a setting, and the text."""
        properties = self.input.get("properties", {})
        is_open = self.input.get("additionalProperties") is not False or "patternProperties" in self.input
        brought = [(name, key) for name, each in self.ask.items() for key in sorted(each.answers(name))]
        for place, source in self._templates():
            template = Template(source)
            if properties and not self.input.keys() & _OPENING:  # otherwise other arguments are allowed
                for argument in sorted(template.arguments - properties.keys() - {key for _, key in brought}):
                    yield place, f"there is no argument {argument!r}{did_you_mean(argument, properties)}"
            for field in sorted(template.begun_with("principal") - PRINCIPAL_FIELDS):
                yield place, f"there is no principal.{field}{did_you_mean(field, PRINCIPAL_FIELDS)}"
        for name, gate in self.gates.items():
            yield from ((f"questions.{name}.{part}", text) for part, text in gate.problems(name))
        for name, key in brought:
            if not is_open and key not in properties:
                text = f"the tool's input takes no {key!r}: it has additionalProperties: false"
                yield f"questions.{name}.schema", text

    @cached_property
    def names_task(self) -> bool:
        """True if a placeholder may use the id of the task, so that no two calls are the same to the engine."""
        return any(Template(source).mentions("task") for _, source in self._templates())

    @cached_property
    def names_principal(self) -> bool:
        """True if a placeholder may use a value of the caller, so that claims lead to another execution."""
        return any(Template(source).mentions("principal") for _, source in self._templates())

    def _templates(self) -> Iterator[tuple[str, Any]]:  # any JSON value
        """Yield all values that may hold placeholders, with their place."""
        yield from ((name, value) for name, value in self.options.items() if name not in UNFILLED)
        for name, question in self.questions.items():
            parts = ("message", "when", "send", "decline") if isinstance(question, GateQuestion) else ("message",)
            yield from ((f"questions.{name}.{part}", getattr(question, part)) for part in parts)

    def complaints(self, arguments: Mapping[str, Any], *, to_be_asked: Set[str] = frozenset()) -> Sequence[str]:
        """Return the errors in the arguments, one per line; arguments that will be asked for may still be missing."""
        required = self.input.get("required", [])
        needed = [name for name in required if name not in to_be_asked or name in arguments]
        checker = self.checker if needed == required else Checker({**self.input, "required": needed})
        found = checker.violations(arguments)
        return [*found, "and perhaps more"] if len(found) == MAX_COMPLAINTS else found

    def map(self, scope: Mapping[str, Any]) -> Any:  # any JSON value
        """Return the arguments as the engine receives them; a list is positional."""
        return [scope["args"]]

    def render_labels(self, scope: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the labels of an execution beyond the reserved ones."""
        return {}

    def frozen_options(self, scope: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fill in the settings for the engine's adapter, which a task keeps from its start.

        Raises:
            MappingError: a text would have a gap: calls without the argument must not share a workflow id.
        """
        if self._options_template.is_constant:
            return self.options
        if self.message is not None and self.message.address is not None:
            _check_address(Template(self.message.address), scope)
        if gaps := self._options_template.gaps(scope):
            raise MappingError(f"{', '.join(gaps)} must be given here: a setting of this tool needs it")
        filled: Mapping[str, Any] = self._options_template.settings(scope)
        return {**filled, **{name: value for name, value in self.options.items() if name in UNFILLED}}

    def frozen_gates(self, scope: Mapping[str, Any]) -> Mapping[str, Gate]:
        """Fill in the gates and their questions.

        Raises:
            MappingError: a template does not work on these values.
        """
        return {name: gate.freeze(name, scope) for name, gate in self.gates.items()}


def _check_address(address: Template, scope: Mapping[str, Any]) -> None:
    """Check that an id names one execution for one caller: callers without a subject must not share one.

    Raises:
        MappingError: a part of the id would be empty, or the caller is anonymous and the id depends on the caller.
    """
    caller = scope["principal"]["id"]
    if caller == ANONYMOUS.id and address.mentions("principal"):
        raise MappingError("the execution belongs to the caller, and you are anonymous")
    if empty := [each for each in address.empty(scope) if caller != LOCAL.id or not each.startswith("principal.")]:
        raise MappingError(f"{', '.join(empty)} must be given here: the id of the execution needs it")


class Tool(_Offered):
    """One workflow as one MCP tool: a call starts an execution.

    Raises:
        pydantic.ValidationError: a schema, a template, a name or a duration is wrong.
    """

    kind: Annotated[Literal[Kind.START], WithJsonSchema({"enum": [*Kind]})] = Field(
        default=Kind.START,
        description="The action of a call: `start` an execution, or `watch` a running one of this workflow by its id "
        "in the engine. Watching needs an identified caller.",
    )
    args: Templated = Field(
        default=None,
        description="The template of the workflow's input; a list for positional arguments. Default: all "
        "arguments as one object, or no argument if there are none and `input` declares none.",
    )
    dedupe: DedupeSetting | None = Field(
        default=None,
        description="How long equal calls of one principal, without an idempotency key, are one task. Default: a "
        "repeated call continues only a call that got no reply. `off`: each call is a separate task. "
        "See `docs/use/retries.md`.",
        examples=["10m", "off"],
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        max_length=16,
        description="Labels of executions, as texts with {{placeholders}}: a memo (Temporal) or labels (Google). "
        '`{email: "{{principal.claims.email}}"}`.',
    )
    actions: dict[ActionName, TaskAction] = Field(
        default_factory=dict,
        description="Messages to a running execution of the tool, by name: see `docs/use/messages.md`.",
    )
    approval: StartApproval | None = Field(
        default=None, description="An approval by somebody else before the start: see `docs/use/approvals.md`."
    )
    may_answer: ClassVar = True  # the tasks of a start belong to the caller
    may_cancel: ClassVar = True

    @field_validator("labels")
    @classmethod
    def _has_names_and_templates(cls, texts: dict[str, str]) -> dict[str, str]:
        if wrong := sorted(name for name in texts if not _LABEL_NAME.fullmatch(name)):
            raise ValueError(f"{wrong[0]!r} is not a label name: up to 32 of a-z, 0-9, _ and -, a-z first")
        if taken := sorted(texts.keys() & RESERVED_LABELS):
            raise ValueError(f"executions have the labels {', '.join(taken)} already: choose another name")
        return check_template(texts)

    @cached_property
    def approvals(self) -> Mapping[str, Approval]:
        """The approvals by the gate of their question, including that of the start."""
        return {**super().approvals, **({} if self.approval is None else {START_GATE: self.approval})}

    @property
    def dedupe_window(self) -> timedelta | None:
        """`dedupe` as a time; None: the arguments are not the key."""
        return self.dedupe if isinstance(self.dedupe, timedelta) else None

    @property
    def continues_calls(self) -> bool:
        """True if a repeated call without a key continues one that got no reply: see docs/decisions/0032."""
        return self.dedupe is None and not self.cancel_on_disconnect

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with the tool as a whole, including its actions."""
        yield from super().problems()
        for name, action in self.actions.items():
            yield from ((f"actions.{name}.{at}", text) for at, text in action.tool(name, self).problems())

    @cached_property
    def _args_template(self) -> Template | None:
        return None if self.args is None else Template(self.args)

    @cached_property
    def _labels_templates(self) -> Mapping[str, Template]:
        return {name: Template(text) for name, text in self.labels.items()}

    def _templates(self) -> Iterator[tuple[str, Any]]:  # any JSON value
        yield "args", self.args
        yield from super()._templates()
        if self.approval is not None:
            yield "approval.message", self.approval.message
        yield from ((f"labels.{name}", text) for name, text in self.labels.items())

    def map(self, scope: Mapping[str, Any]) -> Any:  # any JSON value
        """Return the arguments as the engine receives them; a list is positional.

        Without `args` they are one object, which may be empty if the input declares any. A workflow that declares no
        arguments may have no parameter for it.
        """
        if self._args_template is not None:
            return self._args_template.render(scope)
        declared = self.input.get("properties") or self.input.get("additionalProperties") not in (None, True, False)
        return [scope["args"]] if scope["args"] or declared or self.input.keys() & _OPENING else []

    def render_labels(self, scope: Mapping[str, Any]) -> Mapping[str, str]:
        """Fill in `labels`; texts without a value are left out.

        Raises:
            MappingError: a text would have a gap.
        """
        if gaps := {gap for template in self._labels_templates.values() for gap in template.gaps(scope)}:
            raise MappingError(f"{', '.join(sorted(gaps))} must be given: a label of this tool needs it")
        texts = {name: template.text(scope) for name, template in self._labels_templates.items()}
        return {name: text for name, text in texts.items() if text}


class WatchTool(_Offered):
    """One workflow as one MCP tool: a call watches an execution that was started elsewhere, by its id in the engine.

    Raises:
        pydantic.ValidationError: see `Tool`; or a setting applies only when a workflow is started.
    """

    kind: Literal[Kind.WATCH] = Kind.WATCH
    allow_answer: bool = Field(
        default=False, description="With `kind: watch`: let the caller answer the execution's questions, or cancel it."
    )
    allow_cancel: bool = Field(
        default=False, description="With `kind: watch`: let the caller answer the execution's questions, or cancel it."
    )
    approval: ClassVar = None
    actions: ClassVar[Mapping[str, TaskAction]] = {}
    dedupe_window: ClassVar = None
    continues_calls: ClassVar = False
    fixed: ClassVar[Mapping[str, Any]] = {"input": WATCH_INPUT}

    @model_validator(mode="after")
    def _is_answered_by_its_caller(self) -> Self:
        if self.approvals:
            text = "kind: watch has no approval: the watcher owns the task, and may have started the execution"
            raise ValueError(f"questions: {', '.join(self.approvals)}: {text}; put it on the tool that starts")
        return self

    @model_validator(mode="after")
    def _asks_nothing_before(self) -> Self:
        if self.ask:
            raise ValueError(f"questions: {', '.join(self.ask)}: kind: watch starts nothing; add `when`")
        return self

    @property
    def may_answer(self) -> bool:
        """True if the caller may answer the execution's questions."""
        return self.allow_answer

    @property
    def may_cancel(self) -> bool:
        """True if the caller may cancel the execution."""
        return self.allow_cancel


AnyTool: TypeAlias = Tool | WatchTool
"""A tool of any kind, given by `kind`."""

MODELS: Final[Mapping[Kind, type[Tool] | type[WatchTool]]] = {Kind.START: Tool, Kind.WATCH: WatchTool}
_OTHER: Final = {Kind.START: Kind.WATCH, Kind.WATCH: Kind.START}


def all_labels(tool: AnyTool, principal: Principal, scope: Mapping[str, JSON]) -> Mapping[str, str]:
    """Return the labels of an execution: the tool, the task's owner, and the tool's labels, with no other claims.

    Raises:
        MappingError: see `Tool.render_labels`.
    """
    exactly = principal.id if principal.subject is not None else None  # two issuers may know the same subject
    who = {"principal": exactly, "issuer": principal.issuer, "client": principal.client}
    known = {name: value for name, value in who.items() if value is not None}
    return {"tool": tool.name, "owner": principal.subject or principal.id, **known, **tool.render_labels(scope)}
