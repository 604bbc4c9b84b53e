"""The open questions of one task, as an operator names and answers them on the command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as types
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.cli.arguments import Schema, WrongUsage, read_pair
from mcp_workflows.sidecar.cli.config_file import DEFAULT_CONFIG
from mcp_workflows.sidecar.cli.progress import Screen
from mcp_workflows.sidecar.cli.prompts import Answer, Answers, Key, fields_of
from mcp_workflows.sidecar.config.problems import did_you_mean
from mcp_workflows.task import Task
from mcp_workflows.tools.questions import name_of

_PARAMS: TypeAdapter[types.ElicitRequestParams] = TypeAdapter(types.ElicitRequestParams)
_ELICIT = "elicitation/create"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """One question that a person can answer. `name` is that of its gate, or what of its key a person can read."""

    task_id: str
    called: Key
    name: str
    params: types.ElicitRequestParams

    @property
    def key(self) -> str:
        """Its key, which no other question of the task has."""
        return self.called.text or ""

    @property
    def message(self) -> str:
        """The question itself, behind its name."""
        return f"[{self.name}] {self.params.message}"

    @property
    def fields(self) -> Schema:
        """The schemas of its fields by name."""
        return fields_of(self.params)

    @property
    def needed(self) -> Sequence[str]:
        """The fields that have to have a value."""
        if isinstance(self.params, types.ElicitRequestURLParams):
            return ()
        needed: Sequence[str] = self.params.requested_schema.get("required", ())
        return needed

    def is_named(self, name: str) -> bool:
        """Whether this names it: its name, its key, or the beginning of the key up to a dot."""
        return name == self.name or self.called.is_called(name)

    def field_of(self, answer: Answer) -> str | None:
        """The field that `NAME.FIELD=VALUE` or `FIELD=VALUE` fills in here, if it does."""
        form = {"properties": self.fields}
        return answer.field(self.called, form) or answer.field(Key(self.name), form)

    def command(self, config: Path) -> str:
        """Return the command that answers it, with VALUE in the place of each value that is needed."""
        fields = self.needed or list(self.fields)[:1]
        pairs = [f"{field if field == self.name else f'{self.name}.{field}'}=VALUE" for field in fields]
        return command(["answer", self.task_id, *(pairs or [self.name])], config)


def open_questions(task: Task) -> Sequence[OpenQuestion]:
    """The questions of the task that are open and for a person; what only a model can answer is left out."""
    requests = {key: request for key, request in task.seen.requests.items() if request.method == _ELICIT}
    called = {key: Key(key, request.gate or name_of(request.params)) for key, request in requests.items()}
    names = {key: each.stem or key for key, each in called.items()}
    taken = list(names.values())
    return [
        OpenQuestion(
            task_id=task.id,
            called=called[key],
            name=names[key] if taken.count(names[key]) == 1 else key,
            params=params,
        )
        for key, request in requests.items()
        if (params := _params_of(request.params)) is not None
    ]


def _params_of(params: Any) -> types.ElicitRequestParams | None:  # Any: JSON
    """The question as the protocol has it; None: a workflow asks what is no question, and no client can answer."""
    try:
        return _PARAMS.validate_python(params)
    except ValidationError:
        return None


async def answer_to(
    questions: Sequence[OpenQuestion], words: Sequence[str], *, decline: bool, screen: Screen, config: Path
) -> tuple[OpenQuestion, types.ElicitResult]:
    """The one question that the words are about, with the answer in them, or as given at the terminal.

    Raises:
        WrongUsage: they fit none or more than one, or there is nobody to ask for the rest.
    """
    names = [word for word in words if "=" not in word]
    answers = [Answer(read_pair(word)) for word in words if "=" in word]
    if decline and answers:
        raise WrongUsage("--decline comes without values: name the question alone")
    question = _one_question(questions, names, answers, config)
    pairs = [Answer(answer.pair.renamed(question.field_of(answer) or "")) for answer in answers]
    asking = Answers(pairs, [question.name] if decline else [], screen)
    is_form = not isinstance(question.params, types.ElicitRequestURLParams)
    if is_form and not (decline or screen.asks):
        content = asking.by_flag(Key(question.name), {"properties": question.fields})
        if not content or any(name not in content for name in question.needed):
            raise WrongUsage(
                f"nobody can be asked here: {question.message}\nanswer it with: {question.command(config)}\n"
                f"or decline it with: {command(['answer', question.task_id, question.name, '--decline'], config)}"
            )
    return question, await asking(question.name, question.params)


def _one_question(
    questions: Sequence[OpenQuestion], names: Sequence[str], answers: Sequence[Answer], config: Path
) -> OpenQuestion:
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


def _dotted(question: OpenQuestion) -> Sequence[str]:
    return [f"{question.name}.{field}" for field in question.fields]


def _listed(questions: Sequence[OpenQuestion]) -> str:
    listed = (f"  {question.message} (fields: {', '.join(question.fields)})" for question in questions)
    return "open:\n" + "\n".join(listed)


def command(words: Sequence[str], config: Path) -> str:
    """Return a command line of `mcp-workflows tasks` that can be pasted into a shell."""
    place = [] if config == DEFAULT_CONFIG else ["-c", str(config)]
    return shlex.join([DISTRIBUTION, "tasks", *words, *place])
