"""Answers to questions of workflows on the command line: by flags, or by a person at the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio
import mcp_types as types
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.sidecar.cli.arguments import Pair, Schema, WrongUsage, read_pair, typed
from mcp_workflows.sidecar.cli.options import command_line
from mcp_workflows.sidecar.cli.progress import Screen
from mcp_workflows.task import Task
from mcp_workflows.tools.json_schema import did_you_mean, violations
from mcp_workflows.tools.questions import NAME_META, is_called, name_of

ElicitResult = types.ElicitResult

_PARAMS: TypeAdapter[types.ElicitRequestParams] = TypeAdapter(types.ElicitRequestParams)
_ELICIT = "elicitation/create"

MAX_SAME_ANSWERS = 20  # to questions of one name, so that a flag cannot answer for ever
DECLINE, CANCEL = "!decline", "!cancel"
_AGREEMENT: Schema = {  # for a question without fields, which needs an explicit consent
    "type": "object",
    "properties": {"accept": {"type": "boolean", "title": "Accept"}},
    "required": ["accept"],
}
_REFUSALS: Mapping[str, ElicitResult] = {DECLINE: ElicitResult(action="decline"), CANCEL: ElicitResult(action="cancel")}


@dataclass(frozen=True, slots=True)
class QuestionName:
    """The key of a question (None where the protocol has none), and its configured name if it has one."""

    text: str | None
    name: str | None = None

    @property
    def stem(self) -> str:
        """The readable name (`approve` of `approve.17`); empty if the key is only unique."""
        stem = self.name or (self.text or "").partition(".")[0]
        return stem if self.name or stem.isidentifier() else ""

    def is_called(self, word: str) -> bool:
        """Return whether a word in a flag names the question."""
        return is_called(word, self.text, {"_meta": {NAME_META: self.name}})


@dataclass(frozen=True, slots=True)
class AnswerFlag:
    """`--answer NAME.FIELD=VALUE`, or `FIELD=VALUE` for any question with that field."""

    pair: Pair

    def field(self, key: QuestionName, form: Schema) -> str | None:
        """Return the field of this question that the flag answers; None if there is none."""
        properties: Schema = form.get("properties", {})
        path = self.pair.path
        name, dot, field = path.rpartition(".")
        if dot and field in properties and key.is_called(name):
            return field
        return path if path in properties else None


class Answers:
    """Answers questions one at a time, from the flags first, and then by asking at the terminal."""

    def __init__(self, answers: Sequence[AnswerFlag], declined: Sequence[str], screen: Screen) -> None:
        self._answers = answers
        self._declined = declined
        self._screen = screen
        self._turn = anyio.Lock()
        self._used: set[str] = set()
        self._known: set[str] = set()  # all that flags could have named in the questions so far
        self._counts: dict[str, int] = {}

    @property
    def unused(self) -> Sequence[str]:
        """The flags that answered nothing, each with a suggestion."""
        flags = [answer.pair.path for answer in self._answers] + list(self._declined)
        return [flag + did_you_mean(flag, self._known) for flag in flags if flag not in self._used]

    def check(self, asks: Mapping[str, frozenset[str]]) -> None:
        """Check the flags against the questions that a tool is known to ask, given by name with their fields.

        Its workflow may ask more than that. So a flag is wrong only if it names one of these questions and none of its
        fields, or if it is close to one that no other flag names.

        Raises:
            WrongUsage: a flag is wrong; the message suggests another.
        """
        fields = frozenset[str]().union(*asks.values())
        answers = fields | {f"{name}.{field}" for name, there in asks.items() for field in there}
        flags = [("--answer", answer.pair.path, answers) for answer in self._answers]
        flags += [("--decline", name, fields | asks.keys()) for name in self._declined]
        given = {flag.rpartition(".")[2] for _, flag, known in flags if flag in known}
        for option, flag, known in flags:
            name, _, field = flag.rpartition(".")
            if flag in known or not asks:
                continue
            if name in asks:
                slip, there = did_you_mean(field, asks[name]), ", ".join(sorted(asks[name]))
                raise WrongUsage(f"{option} {flag}: question {name} has no field {field!r}{slip} (there are: {there})")
            if slip := did_you_mean(flag, sorted(each for each in known if each.rpartition(".")[2] not in given)):
                raise WrongUsage(f"{option} {flag}: this tool asks for nothing of that name{slip}")

    async def __call__(self, key: str | None, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Answer one question.

        Raises:
            WrongUsage: no flag answers it and nobody can be asked, or a flag does not fit it.
        """
        asked = QuestionName(key, name_of({"_meta": params.meta}))
        async with self._turn:
            self._known |= set(fields_of(params))
            if asked.stem:
                self._known |= {asked.stem, *(f"{asked.stem}.{field}" for field in fields_of(params))}
            for name in self._declined:
                if asked.is_called(name) or name in fields_of(params):
                    self._used.add(name)
                    return self._reported(asked, params.message, ElicitResult(action="decline"))
            if isinstance(params, types.ElicitRequestURLParams):
                return await self._visit(asked, params)
            if params.requested_schema.get("properties"):
                return await self._fill_in(asked, params.message, params.requested_schema)
            return _agreed(await self._fill_in(asked, params.message, _AGREEMENT))

    async def _fill_in(self, key: QuestionName, message: str, form: Schema) -> ElicitResult:
        content = self.from_flags(key, form)
        missing = [name for name in form.get("required", ()) if name not in content]
        if not content or missing:
            if not self._screen.asks:
                raise WrongUsage(_unanswered(key, message, form, missing) + self._unused_flags(form))
            for flag in (flag for flag in self.unused if "did you mean" in flag):
                self._screen.note(f"not asked here: {flag}")
            with self._screen.still():
                return await _Form(self._screen, key, message, form).fill_in(content)
        if wrong := violations(form, content):
            raise WrongUsage(f"the answer to {_titled_message(key, message)} does not fit: {wrong[0]}")
        self._counts[message] = self._counts.get(message, 0) + 1
        if self._counts[message] > MAX_SAME_ANSWERS:
            raise WrongUsage(
                f"{_titled_message(key, message)} was answered {MAX_SAME_ANSWERS} times by flag and is asked again"
            )
        return self._reported(key, message, ElicitResult(action="accept", content=content))

    def from_flags(self, key: QuestionName, form: Schema) -> dict[str, Any]:  # Any: JSON
        """Return the answers of flags to this question, with the form's defaults; empty if no flag answers it.

        Raises:
            WrongUsage: a value is not of the field's type.
        """
        found: dict[str, Any] = {}
        properties: Schema = form.get("properties", {})
        for answer in self._answers:
            if (field := answer.field(key, form)) is not None:
                found[field] = typed(answer.pair, properties[field], form)
                self._used.add(answer.pair.path)
        defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
        return {**defaults, **found} if found else {}

    def _unused_flags(self, form: Schema) -> str:
        """Return a line about the flags that answered nothing so far, and the fields they could have named."""
        fields = ", ".join(form.get("properties", {}))
        return f"\nnot asked here: {', '.join(self.unused)} (fields: {fields})" if self.unused else ""

    def _reported(self, key: QuestionName, message: str, result: ElicitResult) -> ElicitResult:
        said = ", ".join(f"{name}: {_plain(value)}" for name, value in (result.content or {}).items())
        self._screen.note(f"? {_titled_message(key, message)}\n> {said or result.action} (by flag)")
        return result

    async def _visit(self, key: QuestionName, params: types.ElicitRequestURLParams) -> ElicitResult:
        if not self._screen.asks:
            raise WrongUsage(
                f"{_titled_message(key, params.message)} wants somebody to open {params.url}: call it at a terminal"
            )
        with self._screen.still():
            self._screen.note(f"? {params.message}\n  {params.url}")
            typed_in = await self._screen.line("  opened it? [y/n] ")
        return ElicitResult(action="accept" if (typed_in or "n").lower().startswith("y") else "decline")


def fields_of(params: types.ElicitRequestParams) -> Schema:
    """Return the schemas of a question's fields; of one without fields, that of `accept`."""
    if isinstance(params, types.ElicitRequestURLParams):
        return {}
    properties: Schema = params.requested_schema.get("properties") or _AGREEMENT["properties"]
    return properties


def _agreed(filled: ElicitResult) -> ElicitResult:
    """Return the answer to a question without fields, without the consent that was asked for instead."""
    if filled.action != "accept" or filled.content is None:
        return filled
    return ElicitResult(action="accept", content={}) if filled.content["accept"] else ElicitResult(action="decline")


def _plain(value: Any) -> str:  # Any: JSON
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _titled_message(key: QuestionName, message: str) -> str:
    return f"[{key.name or key.text}] {message}" if key.stem else message


def _unanswered(key: QuestionName, message: str, form: Schema, missing: Sequence[str]) -> str:
    properties: Schema = form.get("properties", {})
    fields = missing or list(properties)[:1]
    stem = key.stem
    names = {field: f"{stem}.{field}" if stem and stem != field else field for field in fields}
    flags = " ".join(f"--answer {name}={_example(properties[field])}" for field, name in names.items())
    refusal = stem or next(iter(properties), None)
    refused = f"\nor refuse it with: --decline {refusal}" if refusal else ""
    return f"nobody can be asked here: {_titled_message(key, message)}\nanswer it with: {flags}{refused}"


def _example(field: Schema) -> str:
    return {"boolean": "true", "integer": "1", "number": "1.5"}.get(str(field.get("type")), "...")


@dataclass(frozen=True, slots=True)
class _Form:
    """A form at the terminal, one field after the other."""

    screen: Screen
    key: QuestionName
    message: str
    form: Schema

    async def fill_in(self, known: Mapping[str, Any]) -> ElicitResult:  # Any: JSON
        """Return the answer that the person gives."""
        self.screen.note(f"? {_titled_message(self.key, self.message)}\n  ({DECLINE} or {CANCEL} to refuse)")
        content = dict(known)
        properties: Schema = self.form.get("properties", {})
        for name, field in properties.items():
            if name in known:
                continue
            value = await self._field(name, field)
            if isinstance(value, ElicitResult):
                return value
            if value is not None:
                content[name] = value
        return ElicitResult(action="accept", content=content)

    async def _field(self, name: str, field: Schema) -> Any:  # Any: JSON; None: left out
        """Return the value of a field; ask again until it is valid."""
        choices = list(_titled(field))
        for number, (value, title) in enumerate(choices, 1):
            self.screen.note(f"    {number}. {title}" + (f" ({value})" if title != str(value) else ""))
        while True:
            text = await self.screen.line(f"  {_label(name, field, required=self._required(name))}: ")
            if text is None or text.strip() in _REFUSALS:
                return _REFUSALS[CANCEL if text is None else text.strip()]
            if not text and (not self._required(name) or "default" in field):
                return field.get("default")
            if not text:
                self.screen.note("    it needs an answer")
                continue
            try:
                value = _value(name, text, field, [value for value, _ in choices])
            except WrongUsage as error:
                self.screen.note(f"    {error}")
                continue
            wrong = violations({"type": "object", "properties": {name: field}}, {name: value})
            if not wrong:
                return value
            self.screen.note(f"    {wrong[0]}")

    def _required(self, name: str) -> bool:
        return name in self.form.get("required", ())


def _value(name: str, text: str, field: Schema, choices: Sequence[Any]) -> Any:  # Any: JSON
    """Return the typed text as the field's type; a choice may be given by its number, several with commas."""
    if field.get("type") == "array":
        return [_picked(word.strip(), choices) for word in text.split(",") if word.strip()]
    picked = _picked(text.strip(), choices) if choices else text
    return typed(Pair(path=name, text=str(picked), raw=False), field, field)


def _picked(text: str, choices: Sequence[Any]) -> Any:  # Any: JSON
    number = int(text) if text.isdecimal() else 0
    return choices[number - 1] if text not in choices and 0 < number <= len(choices) else text


def _titled(field: Schema) -> Iterator[tuple[Any, str]]:  # Any: JSON
    """Yield the choices of a field with their titles (`enum`, `enumNames`, titled `oneOf` and `anyOf`)."""
    source = cast("Schema", field.get("items", field) if field.get("type") == "array" else field)
    values: Sequence[Any] = source.get("enum", ())
    names: Sequence[str] = source.get("enumNames", ())
    yield from ((value, names[at] if at < len(names) else str(value)) for at, value in enumerate(values))
    titled: Sequence[Schema] = [*source.get("oneOf", ()), *source.get("anyOf", ())]
    yield from ((option["const"], str(option.get("title", option["const"]))) for option in titled if "const" in option)


def _label(name: str, field: Schema, *, required: bool) -> str:
    about = field.get("title") or field.get("description") or name
    kind = "y/n" if field.get("type") == "boolean" else field.get("type", "text")
    kind = {"string": "text", "array": "several, by commas"}.get(str(kind), kind)
    rest = f", default {field['default']}" if "default" in field else "" if required else ", may be empty"
    return f"{about}{f' ({name})' if about != name else ''} [{kind}{rest}]"


# --- the open questions of a task


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerableQuestion:
    """One question that a person can answer; `name` is its gate, or the readable part of its key."""

    task_id: str
    called: QuestionName
    name: str
    params: types.ElicitRequestParams

    @property
    def key(self) -> str:
        """The key, which is unique in the task."""
        return self.called.text or ""

    @property
    def message(self) -> str:
        """The text of the question, after its name."""
        return f"[{self.name}] {self.params.message}"

    @property
    def fields(self) -> Schema:
        """The schemas of its fields by name."""
        return fields_of(self.params)

    @property
    def needed(self) -> Sequence[str]:
        """The required fields."""
        if isinstance(self.params, types.ElicitRequestURLParams):
            return ()
        needed: Sequence[str] = self.params.requested_schema.get("required", ())
        return needed

    def is_named(self, name: str) -> bool:
        """Return whether this is its name, its key, or the beginning of the key up to a dot."""
        return name == self.name or self.called.is_called(name)

    def field_of(self, answer: AnswerFlag) -> str | None:
        """Return the field that `NAME.FIELD=VALUE` or `FIELD=VALUE` answers here; None if there is none."""
        form = {"properties": self.fields}
        return answer.field(self.called, form) or answer.field(QuestionName(self.name), form)

    def command(self, config: Path) -> str:
        """Return the command that answers it, with VALUE in the place of each required value."""
        fields = self.needed or list(self.fields)[:1]
        pairs = [f"{field if field == self.name else f'{self.name}.{field}'}=VALUE" for field in fields]
        return command_line("tasks", "answer", self.task_id, *(pairs or [self.name]), config=config)


def open_questions(task: Task) -> Sequence[AnswerableQuestion]:
    """Return the open questions of a task that a person can answer; others are for a model."""
    requests = {key: request for key, request in task.seen.requests.items() if request.method == _ELICIT}
    called = {key: QuestionName(key, request.gate or name_of(request.params)) for key, request in requests.items()}
    names = {key: each.stem or key for key, each in called.items()}
    taken = list(names.values())
    return [
        AnswerableQuestion(
            task_id=task.id,
            called=called[key],
            name=names[key] if taken.count(names[key]) == 1 else key,
            params=params,
        )
        for key, request in requests.items()
        if (params := _params_of(request.params)) is not None
    ]


def _params_of(params: Any) -> types.ElicitRequestParams | None:  # Any: JSON
    """Return the question in the protocol's format; None if it has another one, and no client can answer it."""
    try:
        return _PARAMS.validate_python(params)
    except ValidationError:
        return None


async def answer_to(
    questions: Sequence[AnswerableQuestion], words: Sequence[str], *, decline: bool, screen: Screen, config: Path
) -> tuple[AnswerableQuestion, types.ElicitResult]:
    """Return the question that the words name, and the answer in them or from the terminal.

    Raises:
        WrongUsage: they fit none or more than one, or nobody can be asked for the rest.
    """
    names = [word for word in words if "=" not in word]
    answers = [AnswerFlag(read_pair(word)) for word in words if "=" in word]
    if decline and answers:
        raise WrongUsage("--decline comes without values: name the question alone")
    question = _one_question(questions, names, answers, config)
    pairs = [AnswerFlag(answer.pair.renamed(question.field_of(answer) or "")) for answer in answers]
    asking = Answers(pairs, [question.name] if decline else [], screen)
    is_form = not isinstance(question.params, types.ElicitRequestURLParams)
    if is_form and not (decline or screen.asks):
        content = asking.from_flags(QuestionName(question.name), {"properties": question.fields})
        if not content or any(name not in content for name in question.needed):
            refusal = command_line("tasks", "answer", question.task_id, question.name, "--decline", config=config)
            raise WrongUsage(
                f"nobody can be asked here: {question.message}\nanswer it with: {question.command(config)}\n"
                f"or decline it with: {refusal}"
            )
    return question, await asking(question.name, question.params)


def _one_question(
    questions: Sequence[AnswerableQuestion], names: Sequence[str], answers: Sequence[AnswerFlag], config: Path
) -> AnswerableQuestion:
    left = list(questions)
    for name in names:
        left = [question for question in left if question.is_named(name)]
        if not left:
            there = [question.name for question in questions]
            raise WrongUsage(f"no open question is named {name!r}{did_you_mean(name, there)}\n{_listed(questions)}")
    for answer in answers:
        left = [question for question in left if question.field_of(answer) is not None]
        if not left:
            there = [name for question in questions for name in (*question.fields, *_dotted(question))]
            path = answer.pair.path
            raise WrongUsage(f"{path} fits no open question{did_you_mean(path, there)}\n{_listed(questions)}")
    if len(left) > 1:
        commands = "\n".join(f"  {question.command(config)}" for question in left)
        raise WrongUsage(f"more than one question is open: name one\n{commands}")
    return left[0]


def _dotted(question: AnswerableQuestion) -> Sequence[str]:
    return [f"{question.name}.{field}" for field in question.fields]


def _listed(questions: Sequence[AnswerableQuestion]) -> str:
    listed = (f"  {question.message} (fields: {', '.join(question.fields)})" for question in questions)
    return "open:\n" + "\n".join(listed)
