"""Reading an engine's replies by a definition: the state of an execution, its questions, lists of inputs."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

import anyio

from mcp_workflows.adapter.boundary import (
    JSON,
    MAX_STEPS,
    Execution,
    ExecutionStep,
    Failure,
    InputRequest,
    Progress,
    Status,
)
from mcp_workflows.adapter.templates import unused_fields
from mcp_workflows.errors import EngineError, EngineUnavailable, MappingError, ResultUnavailable
from mcp_workflows.kit.definition import EnginePage, EngineQuestion, Inputs, Reading, word_of
from mcp_workflows.kit.expressions import Scope, as_list, as_object, lenient, moment_of, number_of

LONGEST_WORD: Final = 100  # characters of a status word to show

_OF_THE_TIME: Final = 0.8  # fraction of the time left for a poll
_METHOD: Final = "elicitation/create"
_NOTHING: Final[Mapping[str, JSON]] = {"type": "object", "properties": {}}
_YES_OR_NO: Final[Mapping[str, JSON]] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}},
    "required": ["approved"],
}

Asking = TypeVar("Asking", bound=EngineQuestion)


def status_of(how: Reading, expression: str, scope: Scope) -> tuple[Status, str | None]:
    """Return the status, and the engine's word for it if the map does not list it; it then counts as running.

    Raises:
        EngineUnavailable: the reply has no status.
    """
    try:
        word = scope.value(expression)
    except MappingError as error:
        raise EngineUnavailable(f"its status cannot be read: {error}", silent=False) from None
    if word is None:
        raise EngineUnavailable(f"it answered with nothing at {expression}: its status is not known", silent=False)
    status = how.map.status(word_of(word))
    return (Status.RUNNING, word_of(word)[:LONGEST_WORD]) if status is None else (status, None)


def entry_of(how: Reading, scope: Scope) -> JSON:
    """Return the execution's entry in a list; None if there is none.

    Raises:
        MappingError: the list cannot be read.
    """
    entry = how.entry
    if entry is None:
        return None
    found = as_list(scope.value(entry.each)) or ()
    return next((each for each in found if (scope | {"entry": each}).is_true(entry.where)), None)


def execution_of(
    how: Reading, status: Status, unmapped: str | None, scope: Scope, *, name: str, has_log: bool = False
) -> Execution:
    """Return the execution. `unmapped` is a status word that the map does not list, `name` is the default id."""
    progress = _progress(how, scope)
    message = text_of(how.message, scope) or (_stage(how, progress, scope) if status is Status.RUNNING else None)
    if unmapped is not None:
        message = f"the engine says {unmapped!r}, which the map of statuses does not name"
    output, failure = None, _failure(how, scope) if status is Status.FAILED else None
    if status is Status.SUCCEEDED:
        try:
            output = scope.value(how.output)
        except MappingError as error:
            text = f"it succeeded, but its result cannot be read: {error}"
            status, failure = Status.FAILED, Failure(text=text, kind="UndecodableResult")
    return Execution(
        status=status,
        message=message,
        progress=progress,
        output=output,
        failure=failure,
        execution_id=text_of(how.execution_id, scope) or name,
        url=text_of(how.url, scope),
        steps=_steps(how, scope),
        has_log=has_log,
        is_unmapped=unmapped is not None,
    )


@contextmanager
def reading_result(status: Status) -> Generator[None]:
    """Translate errors of the follow-up requests for a succeeded execution's result into `ResultUnavailable`.

    They get most of the remaining time, so that enough is left to report the state.
    """
    if status is not Status.SUCCEEDED:
        yield
        return
    try:
        left = anyio.current_effective_deadline() - anyio.current_time()
    except anyio.NoEventLoopError:  # a replay of recorded replies, which needs no time limit
        yield
        return
    try:
        with anyio.fail_after(left * _OF_THE_TIME):
            yield
    except TimeoutError:
        raise ResultUnavailable("no answer in time") from None
    except EngineError as error:
        if isinstance(error, EngineUnavailable) and error.throttled:
            raise
        raise ResultUnavailable(str(error)) from None


def is_empty(value: JSON) -> bool:
    """True if a JSON value is empty: null, an empty text, or a list or object of empty values."""
    if isinstance(value, str | bool | int | float):
        return value == ""
    parts = as_object(value)
    return all(map(is_empty, as_list(value) or () if parts is None else parts.values()))


def _stage(how: Reading, progress: Progress | None, scope: Scope) -> str | None:
    """Return the message about the running steps: `stage 3 of 5: integration tests`."""
    now = None if how.steps is None or how.steps.now is None else how.steps.now
    running = [str(name) for name in as_list(lenient(partial(scope.value, now))) or ()]
    if not running or progress is None:
        return ", ".join(running) or None
    first, last = int(progress.value) + 1, int(progress.value) + len(running)
    which = f"stage {first}" if first == last else f"stages {first} to {last}"
    of = "" if progress.total is None else f" of {progress.total:g}"
    return f"{which}{of}: {', '.join(running)}"


def _steps(how: Reading, scope: Scope) -> tuple[ExecutionStep, ...]:
    """Return the steps; skip those whose name cannot be read."""
    steps = how.steps
    if steps is None:
        return ()
    found: list[ExecutionStep] = []
    for item in (as_list(lenient(partial(scope.value, steps.each))) or ())[-MAX_STEPS:]:
        each = scope | {"item": item}
        name, word = text_of(steps.name, each), lenient(partial(each.value, steps.status))
        status = (steps.map or how.map).status(word_of(word)) or Status.RUNNING
        if name:
            found.append(ExecutionStep(name=name, status=status, at=moment_of(text_of(steps.at, each))))
    return tuple(found)


def _failure(how: Reading, scope: Scope) -> Failure:
    return Failure(text=text_of(how.failure, scope) or "it failed; the engine does not say why")


def _progress(how: Reading, scope: Scope) -> Progress | None:
    if how.progress is None:
        return None
    part = how.progress
    value = number_of(lenient(lambda: scope.value(part.value)))
    total = None if part.total is None else number_of(lenient(lambda: scope.value(str(part.total))))
    return None if value is None else Progress(value=value, total=total)


def text_of(source: str | None, scope: Scope) -> str | None:
    """Return a text for people; None without an expression, or if it fails on this reply."""
    return None if source is None else lenient(lambda: scope.text(source)) or None


# --- questions


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedQuestion(Generic[Asking]):
    """An open question with the scope of its expressions."""

    how: Asking
    scope: Scope
    request: InputRequest


def open_questions(
    asks: Mapping[str, Asking], execution: Execution, scope: Scope, settling: timedelta
) -> Mapping[str, AskedQuestion[Asking]]:
    """Return the open questions of a running execution by key; before `settling`, an engine may lose an answer."""
    if execution.status is not Status.RUNNING:
        return {}
    return {
        key: AskedQuestion(
            how=how,
            scope=each,
            request=InputRequest(
                method=_METHOD,
                params=_params(how, each, execution.url, key),
                declinable=_is_declinable(how),
                on_page=how.answer_in == "page",
            ),
        )
        for name, how in asks.items()
        for key, each in _items(name, how, scope)
        if _is_settled(how, each, settling)
    }


def with_questions(execution: Execution, questions: Mapping[str, AskedQuestion[Asking]]) -> Execution:
    """Return the execution, waiting for input if a question is open."""
    if not questions:
        return execution
    requests = {key: question.request for key, question in questions.items()}
    return replace(execution, status=Status.INPUT_REQUIRED, requests=requests)


def _items(name: str, how: EngineQuestion, scope: Scope) -> Iterator[tuple[str, Scope]]:
    """Yield the key and scope of each question; stop if an expression fails on this reply."""
    try:
        found = [None] if how.each is None else scope.value(how.each)
        for item in as_list(found) or ():
            each = scope | {"item": item}
            if how.when is None or each.is_true(how.when):
                yield f"{name}.{each.text(how.key)}", each
    except MappingError:
        return


def _is_settled(how: EngineQuestion, scope: Scope, settling: timedelta) -> bool:
    """True if the API accepts an answer by now, measured by its clock if the reply has a date."""
    asked = None if how.asked is None else moment_of(lenient(partial(scope.text, how.asked)))
    if asked is None:
        return True
    try:
        now = parsedate_to_datetime(scope.text("{{reply.headers.date}}")).astimezone(UTC)
    except ValueError:
        now = datetime.now(UTC)
    return now - asked >= settling


def _is_declinable(how: EngineQuestion) -> bool | None:
    return None if how.is_on_engine_page else how.model_dump(include={"decline"}).get("decline") is not None


def _params(how: EngineQuestion, scope: Scope, page: str | None, key: str) -> Mapping[str, JSON]:
    message = text_of(how.message, scope) or "It waits for an answer."
    if how.is_on_engine_page:
        own = how.answer_in.engine if isinstance(how.answer_in, EnginePage) else None
        return {"mode": "url", "message": message, "url": text_of(own, scope) or page or "", "elicitationId": key}
    return {"mode": "form", "message": message, "requestedSchema": _schema(how, scope)}


def _schema(how: EngineQuestion, scope: Scope) -> Mapping[str, JSON]:
    """Return the form; some APIs return it as JSON text."""
    found: Any = None if how.form is None else lenient(partial(scope.value, how.form))
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            found = None
    form = as_object(found) or (_NOTHING if how.fields or unused_fields(_YES_OR_NO, how.sent) else _YES_OR_NO)
    fields = _fields(how, scope)
    return {**form, "properties": {**(as_object(form.get("properties")) or {}), **fields}} if fields else form


def _fields(how: EngineQuestion, scope: Scope) -> Mapping[str, Mapping[str, JSON]]:
    """Return the additional fields of the form: their JSON Schema by name."""
    found: Any = None if how.fields is None else form_of(how.fields, scope)
    return {} if found is None else found["properties"]


def answer_scope(how: EngineQuestion, scope: Scope, content: Mapping[str, JSON], principal: JSON) -> Scope:
    """Return the scope of an answer: the question's, with `answer`, `fields` and `principal`."""
    fields = {name: content.get(name, field.get("default")) for name, field in _fields(how, scope).items()}
    return Scope(names={**scope.names, "fields": fields}, own={"answer": content, "principal": principal})


# --- inputs


def form_of(how: Inputs, scope: Scope) -> Mapping[str, JSON] | None:
    """Return the JSON Schema of an object with these inputs; None if the API does not list any."""
    found = lenient(partial(scope.value, how.each))
    by_name = as_object(found)
    listed = (
        as_list(found) if by_name is None else [{**(as_object(each) or {}), "name": n} for n, each in by_name.items()]
    )
    if listed is None:
        return None
    properties, required = dict[str, JSON](), list[JSON]()
    for each in (scope | {"input": entry} for entry in listed):
        if how.when is not None and not lenient(partial(each.is_true, how.when)):
            continue
        if name := lenient(partial(each.text, how.name)):
            properties[name] = _property(how, each)
            if how.required is not None and lenient(partial(each.is_true, how.required)):
                required.append(name)
    schema: Mapping[str, JSON] = {"type": "object", "properties": properties}
    return {**schema, "required": required} if required else schema


def _property(how: Inputs, scope: Scope) -> Mapping[str, JSON]:
    def value(source: JSON) -> JSON:
        return None if source is None else lenient(partial(scope.value, source))

    given = as_object(value(how.json_schema)) or {}
    written: Mapping[str, JSON] = {
        "type": None if "type" in given else how.types.get(text_of(how.type, scope) or "", "string"),
        "description": text_of(how.description, scope),
        "enum": cast("JSON", as_list(value(how.choices))) or None,
        "default": value(how.default),
    }
    return {**given, **{name: found for name, found in written.items() if found is not None}}
