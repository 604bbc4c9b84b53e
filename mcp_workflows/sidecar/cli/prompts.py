"""Answers to workflows' questions on the command line: from flags, or from a person at the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeGuard

import anyio
from rich.prompt import InvalidResponse, PromptBase
from rich.text import Text

from mcp_workflows.sidecar.cli.app import WrongUsage, harmless
from mcp_workflows.sidecar.cli.arguments import Pair, Schema, read_pair, typed
from mcp_workflows.sidecar.cli.progress import Screen
from mcp_workflows.task import Task
from mcp_workflows.tools.json_schema import check_schema, did_you_mean, is_object, violations
from mcp_workflows.tools.questions import (
    ELICIT,
    NAME_META,
    REASON,
    can_decline,
    choices_of,
    is_called,
    name_of,
    yes_no_field,
)

MAX_SAME_ANSWERS: Final = 20  # to questions with one text, so that a flag cannot answer endlessly
_ACCEPT: Final = "accept"  # the field for consent to a question without fields other than a reason
_DECISIONS: Final = ("Approve", "Decline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response to a question, with the fields of MCP's `ElicitResult`, whose import takes half a second."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, Any] | None = None  # Any: JSON

    @property
    def sent(self) -> Mapping[str, Any]:
        """The response in MCP's format."""
        return {"action": self.action} | ({} if self.content is None else {"content": dict(self.content)})


_REFUSALS: Mapping[str, Response] = {"!decline": Response(action="decline"), "!cancel": Response(action="cancel")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuestion:
    """A question that a person can answer."""

    message: str = ""
    schema: Schema | None = None  # None: the question is a page to open
    url: str = ""
    key: str | None = None  # None where the protocol has no keys
    name: str | None = None  # in the configuration
    can_decline: bool = True
    label: str = ""  # among the open questions of a task; empty: asked alone

    @property
    def stem(self) -> str:
        """The readable name (`approve` of `approve.17`); empty if the key is merely unique."""
        stem = self.name or (self.key or "").partition(".")[0]
        return stem if self.name or stem.isidentifier() else ""

    @property
    def title(self) -> str:
        """The text of the question, after its name."""
        name = self.label or (self.stem and (self.name or self.key))
        return f"[{name}] {self.message}" if name else self.message

    @property
    def form(self) -> Schema:
        """The schema of the answer. Without fields, or with a reason only, it also has a field for consent."""
        if self.schema is None or not self.is_agreement:
            return self.schema or {}
        properties = {_ACCEPT: {"type": "boolean", "title": "Accept"}, **self.schema.get("properties", {})}
        return {**self.schema, "properties": properties, "required": [_ACCEPT, *self.schema.get("required", ())]}

    @property
    def is_agreement(self) -> bool:
        """True if its only possible field is a reason: the person just accepts or declines."""
        return self.schema is not None and not self.schema.get("properties", {}).keys() - {REASON}

    @property
    def decision(self) -> str | None:
        """The yes-or-no field, if the question has no other field than a reason."""
        lone = yes_no_field(self.form)
        return lone if lone in self.form.get("required", ()) else None

    @property
    def fields(self) -> Schema:
        """The schemas of the fields by name."""
        found: Schema = self.form.get("properties", {})
        return found

    def is_called(self, word: str) -> bool:
        """True if a word names the question: its label, its name, or its key up to a dot."""
        return word in {self.label, self.stem} - {""} or is_called(word, self.key, {"_meta": {NAME_META: self.name}})

    def field_of(self, path: str) -> str | None:
        """Return the field that `NAME.FIELD=VALUE` or `FIELD=VALUE` answers here; None if there is none."""
        name, dot, field = path.rpartition(".")
        if dot and field in self.fields and self.is_called(name):
            return field
        return path if path in self.fields else None

    def paths(self, missing: Sequence[str] = ()) -> Sequence[str]:
        """Return the words that answer the missing fields, or the required ones, or the first one."""
        name = self.label or self.stem
        wanted = missing or self.form.get("required") or list(self.fields)[:1]
        return [f"{name}.{field}" if name and name != field else field for field in wanted]


Hint = Callable[[PendingQuestion, Sequence[str]], str]
"""Returns what to type for the missing fields, if there is no terminal to ask at."""


class Answers:
    """Answers questions one at a time: from the flags first, then by asking at the terminal."""

    def __init__(
        self, flags: Sequence[Pair], declined: Sequence[str], screen: Screen, hint: Hint | None = None
    ) -> None:
        self._flags = flags
        self._declined = declined
        self._screen = screen
        self._hint = hint or self._flags_for
        self._turn = anyio.Lock()
        self._used: set[str] = set()
        self._known: set[str] = set()  # all names that flags could have used in the questions so far
        self._counts: dict[str, int] = {}

    @property
    def unused(self) -> Sequence[str]:
        """The flags that answered nothing, each with a suggestion."""
        flags = [flag.path for flag in self._flags] + list(self._declined)
        return [flag + did_you_mean(flag, self._known) for flag in flags if flag not in self._used]

    def check(self, asks: Mapping[str, frozenset[str]]) -> None:
        """Check the flags against a tool's known questions, given by name with their fields.

        The workflow may ask more questions. So a flag is wrong only if it names one of these questions but none of its
        fields, or if it is close to a field that no other flag names.

        Raises:
            WrongUsage: a flag is wrong; the message suggests another.
        """
        fields = frozenset[str]().union(*asks.values())
        answers = fields | {f"{name}.{field}" for name, there in asks.items() for field in there}
        flags = [("--answer", flag.path, answers) for flag in self._flags]
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
                raise WrongUsage(f"{option} {flag}: this tool has no question of that name{slip}")

    async def answer(self, question: PendingQuestion) -> Response:
        """Answer one question.

        Raises:
            WrongUsage: no flag answers it and there is no terminal, or a flag does not fit it.
        """
        async with self._turn:
            self._known |= set(question.fields)
            if question.stem:
                self._known |= {question.stem, *(f"{question.stem}.{field}" for field in question.fields)}
            for name in self._declined:
                if question.is_called(name) or name in question.fields:
                    self._used.add(name)
                    return self._reported(question, Response(action="decline"))
            if question.schema is None:
                return await self._visit(question)
            result = await self._fill_in(question)
            if question.is_agreement and result.action == "accept" and result.content is not None:
                rest = {name: value for name, value in result.content.items() if name != _ACCEPT}
                return Response(action="accept", content=rest) if result.content[_ACCEPT] else _declined(rest)
            return result

    async def _fill_in(self, question: PendingQuestion) -> Response:
        content = self.from_flags(question)
        missing = [name for name in question.form.get("required", ()) if name not in content]
        if not content or missing:
            if not self._screen.asks:
                raise WrongUsage(f"no terminal to ask at: {question.title}\n{self._hint(question, missing)}")
            for flag in (flag for flag in self.unused if "did you mean" in flag):
                self._screen.note(f"not a question here: {flag}")
            with self._screen.still():
                return await _ask(question, content, self._screen)
        if wrong := violations(question.form, content):
            raise WrongUsage(f"the answer to {question.title} is not valid: {wrong[0]}")
        self._counts[question.message] = self._counts.get(question.message, 0) + 1
        if self._counts[question.message] > MAX_SAME_ANSWERS:
            raise WrongUsage(f"{question.title} was answered {MAX_SAME_ANSWERS} times by flag and is asked again")
        return self._reported(question, Response(action="accept", content=content))

    def from_flags(self, question: PendingQuestion) -> dict[str, Any]:  # Any: JSON
        """Return the flags' answers to this question, with the form's defaults; empty if no flag answers it.

        Raises:
            WrongUsage: a value does not have the field's type.
        """
        found: dict[str, Any] = {}
        for flag in self._flags:
            if (field := question.field_of(flag.path)) is not None:
                found[field] = typed(replace(flag, path=field), question.fields[field], question.form)
                self._used.add(flag.path)
        defaults = {name: field["default"] for name, field in question.fields.items() if "default" in field}
        return {**defaults, **found} if found else {}

    def _flags_for(self, question: PendingQuestion, missing: Sequence[str]) -> str:
        paths = question.paths(missing)
        examples = {"boolean": "true", "integer": "1", "number": "1.5"}
        kinds = [str(question.fields[path.rpartition(".")[2]].get("type")) for path in paths]
        flags = " ".join(
            f"--answer {path}={examples.get(kind, '...')}" for path, kind in zip(paths, kinds, strict=True)
        )
        refusal = question.stem or next(iter(question.fields), None)
        refused = f"\nor refuse it with: --decline {refusal}" if refusal else ""
        there = ", ".join(question.fields)
        slips = f"\nnot a question here: {', '.join(self.unused)} (fields: {there})" if self.unused else ""
        return f"answer it with: {flags}{refused}{slips}"

    def _reported(self, question: PendingQuestion, result: Response) -> Response:
        content = result.content or {}
        plain = {name: value if isinstance(value, str) else json.dumps(value) for name, value in content.items()}
        said = ", ".join(f"{name}: {value}" for name, value in plain.items())
        self._screen.note(f"? {question.title}\n> {said or result.action} (by flag)")
        return result

    async def _visit(self, question: PendingQuestion) -> Response:
        if not self._screen.asks:
            raise WrongUsage(f"{question.title} asks somebody to open {question.url}: call it at a terminal")
        with self._screen.still():
            self._screen.note(f"? {question.message}\n  {question.url}")
            line = await self._screen.line("  opened it? [y/n] ")
        return Response(action="accept" if (line or "n").lower().startswith("y") else "decline")


# --- a form at the terminal


async def _ask(question: PendingQuestion, known: Mapping[str, Any], screen: Screen) -> Response:
    """Ask for each unknown field, and return the person's answer."""
    content, decision = dict(known), question.decision
    others = "!cancel to leave it open" if decision else f"{' or '.join(_REFUSALS)} to refuse"
    screen.note(f"? {question.title}\n  ({others})")
    for name, schema in sorted(question.fields.items(), key=lambda field: field[0] != decision):
        if name in known:
            continue
        field = _Field(name, schema, required=name in question.form.get("required", ()))
        if name == decision:
            field = _Decision(name, schema, required=True, has_no=question.can_decline or not question.is_agreement)
        elif decision is not None and content.get(decision) is False:
            field = _Field(name, schema, required=False)  # only an approval may need a reason
        for number, (value, title) in enumerate(field.choices_with_titles, 1):
            screen.note(f"    {number}. {title}" + (f" ({value})" if title != str(value) else ""))
        while True:
            line = await screen.line(field.make_prompt(...))
            if line is None or line.strip() in _REFUSALS:
                return _REFUSALS["!cancel" if line is None else line.strip()]
            try:
                value = field.process_response(line)
            except InvalidResponse as error:
                screen.note(f"    {error.message}")
                continue
            break
        if value is not None:
            content[name] = value
    if decision is not None and content[decision] is False and question.can_decline:
        return _declined({name: value for name, value in content.items() if name != decision})
    return Response(action="accept", content=content)


def _declined(content: Mapping[str, Any]) -> Response:  # Any: JSON
    """Return the refusal, with its reason if given."""
    return Response(action="decline", content=content or None)


class _Field(PromptBase[Any]):  # Any: JSON; None: omitted
    """One field of a form: rich renders it, and its schema converts and validates the input."""

    def __init__(self, name: str, schema: Schema, *, required: bool) -> None:
        self.name, self.schema = name, schema
        self.may_be_empty = not required or "default" in schema
        self.choices_with_titles = choices_of(schema)
        about = schema.get("title") or schema.get("description") or name
        kinds = {"boolean": "y/n", "string": "text", "array": "several, separated by commas"}
        kind = kinds.get(str(schema.get("type", "string")), schema.get("type"))
        rest = f", default {schema['default']}" if "default" in schema else "" if required else ", may be empty"
        super().__init__(Text(harmless(f"  {about}{f' ({name})' if about != name else ''} [{kind}{rest}]")))

    def process_response(self, value: str) -> Any:  # Any: see above
        """Return the value. A choice may be given by its number; several are separated by commas."""
        if not value and self.may_be_empty:
            return self.schema.get("default")
        if not value:
            raise InvalidResponse("an answer is required")
        if self.schema.get("type") == "array":
            found: Any = [self._picked(word.strip()) for word in value.split(",") if word.strip()]
        else:
            text = str(self._picked(value.strip()) if self.choices_with_titles else value)
            try:
                found = typed(Pair(path=self.name, text=text, raw=False), self.schema, self.schema)
            except WrongUsage as error:
                raise InvalidResponse(str(error)) from None
        if wrong := violations({"type": "object", "properties": {self.name: self.schema}}, {self.name: found}):
            raise InvalidResponse(wrong[0])
        return found

    def _picked(self, text: str) -> Any:  # Any: JSON
        values = [value for value, _ in self.choices_with_titles]
        number = int(text) if text.isdecimal() else 0
        return values[number - 1] if text not in values and 0 < number <= len(values) else text


class _Decision(_Field):
    """A single yes or no: two choices named like the buttons of the task view."""

    def __init__(self, name: str, schema: Schema, *, required: bool, has_no: bool) -> None:
        super().__init__(name, schema, required=required)
        choices = _DECISIONS if has_no else _DECISIONS[:1]
        self.may_be_empty, self.choices_with_titles = False, [(choice, choice) for choice in choices]
        self.prompt = Text(f"  {' or '.join(choices)} [{' or '.join(str(at) for at, _ in enumerate(choices, 1))}]")

    def process_response(self, value: str) -> bool:
        """Return True for an approval; a choice may be given by its number, its name, or as y and n."""
        chosen = str(self._picked(value.strip())).capitalize()
        words = {_DECISIONS[0]: "true", _DECISIONS[1]: "false"}
        return bool(super().process_response(words.get(chosen, value)))


# --- questions in MCP's format


def question_of(key: str | None, params: Mapping[str, Any], name: str | None = None) -> PendingQuestion | None:
    """Return the question in the params of an elicitation; None for another format, which no client can answer."""
    message, url, schema = params.get("message"), params.get("url"), params.get("requestedSchema")
    if not isinstance(message, str):
        return None
    question = PendingQuestion(key=key, name=name or name_of(params), message=message, can_decline=can_decline(params))
    if params.get("mode") == "url":
        return replace(question, url=url) if isinstance(url, str) else None
    return replace(question, schema=schema) if _is_form(schema) else None


def _is_form(schema: Any) -> TypeGuard[Schema]:  # Any: untrusted JSON
    try:
        form = check_schema(schema) if is_object(schema) else {}
    except ValueError:
        return False
    return bool(form) and form.get("properties", {}).keys() >= set(form.get("required", ()))


def open_questions(task: Task) -> Sequence[PendingQuestion]:
    """Return the open questions of a task that a person can answer; others are for a model."""
    found: list[PendingQuestion] = []
    for key, request in task.seen.requests.items():
        question = question_of(key, request.params, request.gate) if request.method == ELICIT else None
        if question is not None:
            found.append(replace(question, label=question.stem or key))
    labels = [each.label for each in found]
    return [each if labels.count(each.label) == 1 else replace(each, label=each.key or "") for each in found]


def named_question(
    questions: Sequence[PendingQuestion], words: Sequence[str], command: Callable[[PendingQuestion], str]
) -> PendingQuestion:
    """Return the open question that the words name: by its names, and by `NAME.FIELD=VALUE` of its fields.

    Raises:
        WrongUsage: they match none, or several.
    """
    left = list(questions)
    for word in words:
        name = word if "=" not in word else read_pair(word).path
        if "=" not in word:
            left, said = [each for each in left if each.is_called(name)], f"no open question is named {name!r}"
            there = [each.label for each in questions]
        else:
            left, said = [each for each in left if each.field_of(name)], f"{name} matches no open question"
            there = [path for each in questions for field in each.fields for path in (field, f"{each.label}.{field}")]
        if not left:
            listed = [f"  {each.title} (fields: {', '.join(each.fields)})" for each in questions]
            raise WrongUsage("\n".join([f"{said}{did_you_mean(name, there)}", "open:", *listed]))
    if len(left) > 1:
        raise WrongUsage(
            "\n".join(["more than one question is open: name one", *(f"  {command(each)}" for each in left)])
        )
    return left[0]
