"""Questions to people from the configuration: asked before the start, or opened by a gate while the workflow runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from itertools import combinations
from math import ceil, floor
from typing import Annotated, Any, Final, Literal, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from mcp_workflows.access import Rule, one_or_more
from mcp_workflows.adapter import DECLINE_META, GATE_WORDS, JSON, Gate, InputRequest
from mcp_workflows.adapter.display_text import cleaned, is_blank
from mcp_workflows.adapter.forms import FIELD_TYPES, field_problem
from mcp_workflows.adapter.templates import Template, unused_fields
from mcp_workflows.errors import ConfigError, MappingError
from mcp_workflows.task import START_GATE, Terms
from mcp_workflows.tools.json_schema import (
    Schema,
    check_schema,
    did_you_mean,
    is_object,
    list_at,
    object_at,
    violations,
)
from mcp_workflows.units import Duration

T = TypeVar("T")
ELICIT: Final = "elicitation/create"
REASON: Final = "reason"  # the field of an approval
START_NAME: Final = "approval"  # the name that people see for the question about the start
LONGEST_REASON: Final = 1000  # characters
LONGEST_REQUEST: Final = 3900  # characters: the part of a message that each view shows
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]+")
NAME_META: Final = "mcp-workflows/question"  # in `_meta` of an elicitation: the name of the question
_LONGEST_KEY: Final = 24  # characters that a model repeats without errors: `approve.17`; a UUID has 36
_DIGITS: Final = 10  # of the digest of a longer key, 40 bits: unique among the questions of a task
_TEXTS: Final = {
    "email": "name@example.com",
    "uri": "https://example.com",
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
}
"""Example texts by format (source: MCP 2026-07-28, elicitation, `StringSchema`)."""
_DOTS: Final = 3  # characters of the example for any other text
_FAR: Final = 2.0**53  # bounds beyond this are ignored, including infinity
_LONGEST_TEXT: Final = 200  # characters; there is no example for a text that must be longer


def check_template(value: T) -> T:
    """Return a template, any JSON value, unchanged if its placeholders are valid.

    Raises:
        ValueError: they are not (pydantic needs this error).
    """
    try:
        Template(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value


Templated = Annotated[Any, AfterValidator(check_template)]
"""Any JSON value with {{placeholders}}."""


def check_visible(text: str) -> str:
    """Return a text for people unchanged.

    Raises:
        ValueError: it has no visible character (pydantic needs this error).
    """
    if is_blank(text):
        raise ValueError("must have visible text")
    return text


def check_message(text: str) -> str:
    """Return a text for people with placeholders unchanged.

    Raises:
        ValueError: it has no visible character, or its placeholders are wrong.
    """
    return check_template(check_visible(text))


_ANSWER_IN: Final = "Where people answer. `page`: only on the server's page, see `docs/use/approvals.md`."
ChatOrPage = Annotated[Literal["chat", "page"], Field(description=_ANSWER_IN)]
"""`answer_in` of a question that we ask."""

Visible = Annotated[str, AfterValidator(check_visible)]
"""A text for people."""

Prompt = Annotated[str, AfterValidator(check_message)]
"""A text for people with placeholders."""


class _Asked(BaseModel):
    """A question to a person, and the form for the answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    message: Prompt = Field(
        description="The text for the person, with {{placeholders}} for arguments, which appear between « and ».",
    )
    schema_: Schema | None = Field(
        alias="schema",
        default=None,
        description="A primitive schema (one field named like the question) or a flat object schema. Without it, "
        "the person confirms or declines.",
    )

    @field_validator("schema_")
    @classmethod
    def _schema_is_form(cls, schema: Schema | None) -> Schema | None:
        if schema is None:
            return None
        is_field = schema.get("type") in FIELD_TYPES
        form = check_schema({"type": "object", "properties": {"value": schema}} if is_field else schema)
        fields: Schema = form.get("properties", {})
        if not fields:
            raise ValueError("asks for nothing: an object schema needs properties")
        for name, field in fields.items():
            if problem := field_problem(field, only_choices=True):
                raise ValueError(f"{'it' if is_field else repr(name)} {problem}")
        return schema

    def form(self, name: str) -> Schema:
        """Return the object schema that a client shows as a form: `requestedSchema` of `elicitation/create`."""
        schema = self.schema_
        if schema is None:
            return {"type": "object", "properties": {}}
        if schema.get("type") == "object":
            return schema
        return {"type": "object", "properties": {name: schema}, "required": [name]}

    def params(self, name: str, scope: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the params of `elicitation/create`; a message with only values begins with the question's name."""
        template = Template(self.message)
        message = f"{cleaned(name)}: " if template.wordless else ""
        message += template.message(scope)
        return {"mode": "form", "message": message, "requestedSchema": self.form(name), "_meta": {NAME_META: name}}

    def answers(self, name: str) -> frozenset[str]:
        """Return the names of the fields in an answer."""
        return frozenset(self.form(name).get("properties", {}))


class Question(_Asked):
    """A question to the person before anything starts; the answer joins the arguments.

    Without a schema it is a confirmation: nothing starts before a person answers yes. Source: MCP 2026-07-28, multi
    round-trip requests (`inputRequests` on `tools/call`).
    """

    when_missing: bool = Field(
        default=False, description="Before the start: ask only if the arguments lack the answer."
    )

    @model_validator(mode="after")
    def _has_what_it_misses(self) -> Question:
        if self.when_missing and self.schema_ is None:
            raise ValueError("when_missing: a yes or no is always asked for; remove it, or add a schema")
        return self

    def form(self, name: str) -> Schema:
        """Return the form; a confirmation has one box to tick.

        Clients may answer an empty form without a person, but not this one.
        """
        if self.schema_ is not None:
            return super().form(name)
        box = {"type": "boolean", "title": "Yes, go ahead"}
        return {"type": "object", "properties": {name: box}, "required": [name]}

    def due(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Return True if the question must still be asked, given the arguments so far."""
        wanted = self.form(name).get("required") or list(self.answers(name))
        return not self.when_missing or any(key not in arguments for key in wanted)


class Reason(StrEnum):
    """The need for an approver's reason."""

    OPTIONAL = "optional"
    REQUIRED = "required"


Approvers = Annotated[
    list[Rule], BeforeValidator(one_or_more, json_schema_input_type=Rule | list[Rule]), Field(min_length=1)
]


class Escalation(BaseModel):
    """Further people who may approve after a time without a decision."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    escalate: Approvers = Field(description="Further approvers from then on, besides `approvers`.")


class AfterSilence(BaseModel):
    """The action if nobody decides; silence never approves."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    in_: Duration = Field(alias="in", description="The time since the question opened.", examples=["2d"])
    then: Literal["decline"] | Escalation = Field(description="`decline`, or `{escalate: RULE}`.")


class Approval(BaseModel):
    """A question that another person decides: see `docs/use/approvals.md`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    approvers: Approvers = Field(description="The people who may approve: `{claims: {groups: release-managers}}`.")
    requester_may_approve: bool = Field(
        default=False, description="Whether an approver may approve a task that they started."
    )
    reason: Reason = Field(default=Reason.OPTIONAL, description="Whether the approver must give a reason.")
    remind: Duration | None = Field(
        default=None, description="How often approvers are reminded. Default: never.", examples=["4h"]
    )
    after: AfterSilence | None = Field(
        default=None, description="The action if nobody decides. Default: the question stays open."
    )
    notify: list[str] = Field(
        default_factory=list[str],
        description="The channels of `notify` that get a message when the question opens, is reminded, escalates "
        "and is decided, and when the task ends.",
        examples=[["releases"]],
    )

    @field_validator("approvers")
    @classmethod
    def _say_nothing_of_owners(cls, rules: list[Rule]) -> list[Rule]:
        if any(rule.not_owner or rule.any_owner for rule in rules):
            raise ValueError("remove not_owner and any_owner: use `requester_may_approve`")
        return rules

    def rules(self, *, escalated: bool) -> Sequence[Rule]:
        """Return the rules for people who may decide."""
        more = self.after.then.escalate if escalated and self.after and isinstance(self.after.then, Escalation) else []
        whose = {"any_owner": self.requester_may_approve, "not_owner": not self.requester_may_approve}
        return [rule.model_copy(update=whose) for rule in (*self.approvers, *more)]

    def terms(self) -> Terms:
        """Return the terms that a task keeps."""
        after = self.after
        return Terms(
            approvers=_named(self.approvers),
            remind=None if self.remind is None else self.remind.total_seconds(),
            after=None if after is None else after.in_.total_seconds(),
            escalates_to=_named(after.then.escalate) if after and isinstance(after.then, Escalation) else None,
        )

    def with_reason(self, form: Schema) -> Schema:
        """Return the form with a field for the reason. A single yes-or-no field becomes required."""
        fields: Mapping[str, Mapping[str, JSON]] = form.get("properties", {})
        if len(fields) == 1 and all(each.get("type") == "boolean" for each in fields.values()):
            form = {**form, "required": list(fields)}
        field = {"type": "string", "title": "Reason", "maxLength": LONGEST_REASON}
        if self.reason is Reason.OPTIONAL:
            return {**form, "properties": {**form.get("properties", {}), REASON: field}}
        required = [*form.get("required", []), REASON]
        return {
            **form,
            "properties": {**form.get("properties", {}), REASON: {**field, "minLength": 1}},
            "required": required,
        }


def _named(rules: Sequence[Rule]) -> str:
    """Return the people in the rules as text."""
    names = [value for rule in rules for wanted in rule.claims.values() for value in _list(wanted)]
    names += [name for rule in rules for whom in rule.principals for name in (whom.subject or whom.client,)]
    names += [scope for rule in rules for scope in rule.scopes]
    return cleaned(", ".join(dict.fromkeys(map(str, names)))) or "somebody else"


def _list(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list) else [value]


class StartApproval(Approval):
    """An approval before anything is started."""

    before_start: Literal[True] = Field(
        description="`true`: nothing starts before the approval. For an approval while the workflow runs, use a "
        "question with `when`."
    )
    message: Prompt = Field(
        description="The text for the approver, with {{placeholders}} for arguments. The approver also sees all "
        "arguments."
    )
    answer_in: ChatOrPage = "chat"

    def request(self, scope: Mapping[str, Any], tool: str) -> InputRequest:
        """Return the question whether to start, with all arguments.

        Raises:
            MappingError: the message would have a gap, or is too long.
        """
        template = Template(self.message)
        if gaps := template.gaps(scope):
            raise MappingError(f"{', '.join(gaps)} must be given: a person is asked to approve it")
        message = template.message(scope)
        message = f"Start {tool}? {message}" if template.wordless else message
        text = "\n".join([message, *argument_lines(scope["args"])])
        if len(text) > LONGEST_REQUEST:
            raise MappingError(
                f"the arguments are too long to be approved: {len(text)} characters of {LONGEST_REQUEST}"
            )
        form = self.with_reason({"type": "object", "properties": {}})
        params = {
            "mode": "form",
            "message": text,
            "requestedSchema": form,
            "_meta": {NAME_META: START_NAME},
        }
        is_on_page = self.answer_in == "page"
        return InputRequest(method=ELICIT, params=params, gate=START_GATE, declinable=True, on_page=is_on_page)


def argument_lines(arguments: Mapping[str, JSON]) -> Sequence[str]:
    """Return the arguments for people, one per line."""
    return [f"- {_name(name)}: {_exact(value)}" for name, value in arguments.items()]


def _exact(value: JSON) -> str:
    """Return a value as JSON on one line, in which no character is invisible or looks like a line break."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() and cleaned(text, len(text) + 1) == text else json.dumps(value)


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else _exact(name)


class GateQuestion(_Asked):
    """A question while the workflow waits at a gate, a human step of an unmodified workflow.

    The engine's adapter checks `when`, `send` and `decline`, which are in the engine's terms.
    """

    when: Templated = Field(
        description="The condition on which the execution waits for a person, in the engine's terms."
    )
    send: Templated = Field(
        description="How the answer reaches the workflow, with {{answer.NAME}} and {{principal.subject}}."
    )
    decline: Templated = Field(
        default=None, description="How a refusal reaches the workflow. Without it, the question cannot be declined."
    )
    answer_in: ChatOrPage = "chat"
    approval: Approval | None = Field(
        default=None,
        description="Let somebody else decide: see `docs/use/approvals.md`. The reason is `{{answer.reason}}`.",
    )

    @model_validator(mode="after")
    def _can_be_declined(self) -> GateQuestion:
        after = self.approval.after if self.approval else None
        if after and after.then == "decline" and self.decline is None:
            raise ValueError("approval.after: then: decline needs `decline`, which says how a refusal is sent")
        return self

    def form(self, name: str) -> Schema:
        """Return the form, with a field for the reason if it needs an approval."""
        form = super().form(name)
        return form if self.approval is None else self.approval.with_reason(form)

    def problems(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield wrong references to answer fields: the setting at fault, and the text."""
        if self.approval is not None and REASON in super().form(name).get("properties", {}):
            yield "schema", f"the field {REASON!r} is the approver's reason, which `approval` adds: remove it"
        for part, known in (("send", self.answers(name)), ("decline", frozenset[str]())):
            unknown = Template(getattr(self, part)).fields("answer") - known
            yield from ((part, f"the answer has no {field!r}{did_you_mean(field, known)}") for field in sorted(unknown))
        for field in unused_fields(super().form(name), self.send):
            text = f"the person answers {field!r}, but `send` does not use it, so a no would be sent as a yes: "
            yield "send", f"{text}put {{{{answer.{field}}}}} in it, or remove the field from the schema"

    def freeze(self, name: str, scope: Mapping[str, JSON]) -> Gate:
        """Return the gate of one task, with its question filled in.

        Raises:
            MappingError: a template does not work on these values.
        """
        params = dict(self.params(name, scope))
        if self.decline is None:
            params["_meta"] = {**params["_meta"], DECLINE_META: False}
        request = InputRequest(method=ELICIT, params=params, gate=name, on_page=self.answer_in == "page")
        return Gate(when=Template(self.when).render(scope), request=request, send=self.send, decline=self.decline)


def _kind_of_question(value: object) -> str:
    """Return the name of the model: a question with the settings of a gate belongs to a gate."""
    if isinstance(value, _Asked):
        return type(value).__name__
    is_gate = isinstance(value, dict) and not GATE_WORDS.isdisjoint(cast("dict[str, object]", value))
    return (GateQuestion if is_gate else Question).__name__


AnyQuestion = Annotated[
    Annotated[Question, Tag(Question.__name__)] | Annotated[GateQuestion, Tag(GateQuestion.__name__)],
    Discriminator(_kind_of_question),
]
"""A question before the start, or of a gate if it has `when`."""


def name_of(params: Mapping[str, Any]) -> str | None:  # Any: JSON
    """Return the question's name in the configuration, from the params of its `elicitation/create`."""
    meta = params.get("_meta")
    name = cast("Mapping[str, object]", meta).get(NAME_META) if isinstance(meta, Mapping) else None
    return name if isinstance(name, str) else None


def can_decline(params: Mapping[str, Any]) -> bool:  # Any: JSON
    """Return True unless the params of an `elicitation/create` forbid declining."""
    meta = params.get("_meta")
    return not isinstance(meta, Mapping) or cast("Mapping[str, object]", meta).get(DECLINE_META) is not False


def yes_no_field(form: Any) -> str | None:  # Any: JSON; schemas of workflows were not checked
    """Return the field of a form that asks only for yes or no and, optionally, a reason; None for any other form.

    `form` is a `requestedSchema`.
    """
    properties = cast("Schema", form).get("properties") if isinstance(form, Mapping) else None
    fields = cast("Schema", properties) if isinstance(properties, Mapping) else {}
    names = [name for name in fields if name != REASON]
    field = fields[names[0]] if len(names) == 1 else None
    is_yes_or_no = isinstance(field, Mapping) and cast("Schema", field).get("type") == "boolean"
    return names[0] if is_yes_or_no else None


def choices_of(field: Mapping[str, Any]) -> Sequence[tuple[Any, str]]:  # Any: JSON; schemas were not checked
    """Return the choices of a field, or of the items of a list, with their labels; empty: any value is accepted."""
    source = object_at(dict(field), "items") if field.get("type") == "array" else dict(field)
    titled = [each for each in (*list_at(source, "oneOf"), *list_at(source, "anyOf")) if is_object(each)]
    choices = [(each["const"], each.get("title", each["const"])) for each in titled if "const" in each]
    values, names = list_at(source, "enum"), list_at(source, "enumNames")
    choices = choices or list(zip(values, names if len(names) == len(values) else values, strict=True))
    return [(value, label if isinstance(label, str) else json.dumps(label)) for value, label in choices]


def short_key(key: str, params: Mapping[str, Any]) -> str:  # Any: JSON
    """Return a key that a person or a model can repeat: the key itself, or a digest of it if it is long.

    Like the key it belongs to one question permanently, and all replicas return the same.
    """
    if len(key) <= _LONGEST_KEY:
        return key
    digest, name = sha256(key.encode("utf-8", "replace")).hexdigest()[:_DIGITS], name_of(params)
    return min(f"{name}.{digest}" if name else digest, key, key=len)


def find_key(asked: Mapping[str, Mapping[str, Any]], word: str) -> str | None:  # Any: JSON
    """Return the key of the question (params by key) with this key or short key."""
    if word in asked:
        return word
    return next((key for key, params in asked.items() if short_key(key, params) == word), None)


def is_called(word: str, key: str | None, params: Mapping[str, Any]) -> bool:  # Any: JSON
    """Return True if a person's `word` means this question: its name, its key, or its short key.

    The name recurs with each round of a gate. In a task started by an older version, a gate's question has no name in
    its params; its name is the part of the key before the dot.
    """
    name = name_of(params)
    if key is None:
        return word == name
    return word in {name, key, short_key(key, params)} or (name is None and key.startswith(f"{word}."))


def example_of(schema: Any) -> Mapping[str, Any] | None:  # Any: JSON; schemas of workflows were not checked
    """Return an answer that fits the form: its required fields, or the first field if none is required.

    None: no answer fits for certain, for example for a text with a `pattern`, or it is not a schema.
    """
    if not isinstance(schema, dict):
        return None
    form = cast("Schema", schema)
    named, required = form.get("properties"), form.get("required")
    properties: Mapping[str, Any] = cast("Schema", named) if isinstance(named, dict) else {}
    names: list[str] = cast("list[str]", required) if isinstance(required, list) else []
    wanted = [name for name in properties if name in names] or list(properties)[:1]
    found = {name: _example(properties[name]) for name in wanted}
    return None if violations(form, found) else found


def _example(field: Any) -> Any:  # Any: JSON; `example_of` checks the whole
    if not isinstance(field, dict):
        return None
    rules = cast("Schema", field)
    return next((value for value in _candidates(rules) if not violations(rules, value)), None)


def _candidates(field: Schema) -> Iterator[Any]:  # Any: JSON
    yield from (field[word] for word in ("const", "default") if word in field)
    yield from _choices(field)[:1]
    match field.get("type"):
        case "boolean":
            yield True
        case "integer" | "number":
            yield from _numbers(field)
        case "string":
            yield _TEXTS.get(str(field.get("format")), "...")
            yield _of_length(field)
        case "array":
            items = field.get("items")
            choices: Sequence[Any] = _choices(cast("Schema", items)) if isinstance(items, dict) else ()
            least = field.get("minItems", 0)
            yield list(choices[: max(1, least) if isinstance(least, int) else 1])
        case _:
            return


def _choices(field: Schema) -> Sequence[Any]:  # Any: JSON
    """Return the values of a field with choices, plain or with titles."""
    plain = field.get("enum")
    if isinstance(plain, list):
        return cast("list[object]", plain)
    titled = field.get("oneOf", field.get("anyOf"))
    options = cast("list[object]", titled) if isinstance(titled, list) else []
    return [option["const"] for option in options if isinstance(option, dict) and "const" in option]


def _numbers(field: Schema) -> Iterator[float]:
    """Yield 1, and the nearest numbers to it within the bounds."""
    words = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
    bounds = [field[word] for word in words if isinstance(field.get(word), int | float) and abs(field[word]) < _FAR]
    yield 1
    for bound in bounds:
        yield from (bound, floor(bound), ceil(bound), floor(bound) + 1, ceil(bound) - 1)
    yield from (sum(pair) / 2 for pair in combinations(bounds, 2))


def _of_length(field: Schema) -> str:
    """Return dots of the minimum length."""
    least, most = field.get("minLength", 0), field.get("maxLength", _DOTS)
    length = max(least, min(most, _DOTS)) if isinstance(least, int) and isinstance(most, int) else _DOTS
    return "." * min(length, _LONGEST_TEXT)
