"""Messages about problems in workflows.yaml: one line for each, all reported together.

Errors of pydantic become plain sentences. A value from the environment or a file is never shown, only its `${NAME}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_args

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.config.yaml import Problem, Source, Substitution, Where
from mcp_workflows.tools.json_schema import did_you_mean

M = TypeVar("M", bound=BaseModel)
_ANY: Final = "*"
_SETTINGS: Final[tuple[Where, ...]] = (("tools", _ANY), ("rules", _ANY), ("defaults",))
_OF_TOOLS: Final[Mapping[Where, str]] = {
    ("allow",): "every caller may call it; `{}` allows nobody",
    ("allow", _ANY, "issuer"): "any issuer is accepted",
    ("allow", _ANY, _ANY, "issuer"): "any issuer is accepted",
    ("questions",): "no question is asked",
    ("questions", _ANY): "no question is asked",
}
_OTHERS: Final[Mapping[Where, str]] = {
    ("server", "auth"): "anybody who reaches the server is let in",
    ("server", "auth", _ANY, _ANY, "may_grant"): "all scopes of its tokens count; `[]` allows none",
    ("server", "authorizer"): "only the rules of the tools decide",
    ("store", "encryption"): "arguments and results are stored unencrypted",
    ("audit",): "nothing is recorded",
    ("rules",): "no rule applies",
    ("rules", _ANY): "no rule applies",
}
GUARDS: Final[Mapping[Where, str]] = {
    **_OTHERS,
    **{(*place, *setting): without for place in _SETTINGS for setting, without in _OF_TOOLS.items()},
}
"""Settings that protect nothing if left empty, with the consequence of each."""

_MAX_SHOWN = 6  # characters: a message may contain fewer consecutive characters of a substituted value

_DURATION = "a duration is a number and a unit: 500ms, 30s, 15m, 12h, 7d or 2w"
_MAPPING = "must be a mapping"
_LIST = "must be a list"

_SENTENCES: Mapping[str, str] = {
    "missing": "is missing",
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dict_type": _MAPPING,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "string_type": "must be text",
    "time_delta_type": _DURATION,
    "time_delta_parsing": _DURATION,
}


_OF_EMPTY = frozenset({"dict_type", "model_type", "model_attributes_type"})  # an empty guard has a better message


def names(items: Iterable[str]) -> str:
    """Return a list of names for people."""
    return ", ".join(sorted(items)) or "none"


def no_engine(name: str, known: Iterable[str]) -> str:
    """Return a message about an unknown engine."""
    return f"no engine named {name!r}{did_you_mean(name, known)} (engines: {names(known)})"


def known_keys(model: type[BaseModel]) -> frozenset[str]:
    """Return the keys of a model in the file."""
    return frozenset(key for name in model.model_fields for key in _written(model, name))


def _written(model: type[BaseModel], name: str) -> Iterator[str]:
    field = model.model_fields[name]
    alias = field.validation_alias
    if isinstance(alias, str):
        yield alias
    elif isinstance(alias, AliasChoices):
        yield from (choice for choice in alias.choices if isinstance(choice, str))
    else:
        yield name


class Report:
    """Collects problems and raises them as one `ConfigError`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._problems = list(source.problems)

    def add(self, where: Where, text: str) -> None:
        """Add a problem, unless it follows from an unreadable value."""
        where = self._setting(where, text)
        if not self.source.is_unreadable(where):
            self._problems.append(self.source.problem(where, _redact(text, self.source.related(where))))

    def _setting(self, where: Where, text: str) -> Where:
        """Return the place of the setting with which the text begins, if that is in another file."""
        inside = (*where, re.split(r"[:,]", text, maxsplit=1)[0])
        elsewhere = self.source.origin(inside)[0] is not self.source.origin(where)[0]
        return inside if elsewhere else where

    def by_default(self, where: Where) -> bool:
        """True if a setting of a tool comes from `defaults`, which need not apply to every tool."""
        _, at = self.source.origin(where)
        return at != where and at[-2:-1] == ("defaults",)

    def unknown(self, where: Where, known: Iterable[str]) -> None:
        """Report that the last key of `where` is unknown, unless it already has a problem, such as an outdated key."""
        known = sorted(known)
        key = str(where[-1])
        if not self._has_problem(where):
            self.add(where, f"unknown key{did_you_mean(key, known)} (known: {names(known)})")

    def _has_problem(self, where: Where) -> bool:
        source, at = self.source.origin(where)
        return any((each.path, each.where) == (source.path, at) for each in self._problems)

    def validate(
        self, model: type[M], value: object, where: Where, *, reported: Collection[str] = frozenset()
    ) -> M | None:
        """Return the value as an instance of a model; None after adding its problems.

        The validation context contains the folder of the file, which relative paths start from.

        Unknown keys in `reported` are not reported again.
        """
        try:
            return model.model_validate(value, context={"folder": self.source.origin(where)[0].path.parent})
        except ValidationError as error:
            known = {("extra_forbidden", (key,)) for key in reported}
            wrong = [each for each in error.errors(include_url=False) if (each["type"], each["loc"]) not in known]
            found = [(self._locate(details, where), details) for details in wrong]
            for at, details in found:
                if any(len(other) > len(at) and other[: len(at)] == at for other, _ in found):
                    continue  # the error of another member of a union is more precise
                if details["type"] == "extra_forbidden":
                    self.unknown(at, known_keys(_model_at(model, details["loc"][:-1])))
                elif details["type"] not in _OF_EMPTY or not self._has_problem(at):
                    self.add(at, _sentence(details))
            return None

    def _locate(self, details: ErrorDetails, where: Where) -> Where:
        """Return the place in the file; pydantic's location also contains the names of union members."""
        for part in details["loc"]:
            if self.source.has((*where, part)):
                where = (*where, part)
        return (*where, details["loc"][-1]) if details["type"] == "missing" else where

    def raise_if_any(self) -> None:
        """Raise the collected problems, if any.

        Raises:
            ConfigError: one line for each problem, sorted by line; those of included files come last.
        """
        if not self._problems:
            return
        main = self.source.path
        found = {(each.path != main, each.path, each.line, path_of(each.where), each.text) for each in self._problems}
        raise ConfigError("\n".join(f"{file}:{line}: {at}{text}" for _, file, line, at, text in sorted(found)))

    @property
    def path(self) -> Path:
        """The file."""
        return self.source.path

    @property
    def problems(self) -> Sequence[Problem]:
        """The problems so far."""
        return self._problems


def path_of(where: Where) -> str:
    """Return the path of a value in the format of messages."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in where]
    return f"{''.join(steps).removeprefix('.')}: " if steps else ""


def _sentence(details: ErrorDetails) -> str:
    """Return a plain sentence for an error of pydantic, without the value."""
    kind = details["type"]
    if kind in _SENTENCES:
        return _SENTENCES[kind]
    text = details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    text = re.sub(r"^(Input|String|Value|Tuple|List|Dict\w*) should ", "must ", text).replace(" after validation", "")
    if kind in {"enum", "literal_error"}:
        choices = re.findall(r"'([^']*)'", text)
        text += did_you_mean(str(details["input"]), choices)
    return text


def _model_at(model: type[BaseModel], loc: Sequence[str | int]) -> type[BaseModel]:
    """Return the model at a path of keys, for suggestions; a part may be the name of a union member."""
    inner: Sequence[type[BaseModel]] = ()
    for part in loc:
        fields = [field for name, field in model.model_fields.items() if part in {name, *_written(model, name)}]
        inner = [each for field in fields for each in models_in(field.annotation)] or inner
        model = next((each for each in inner if each.__name__ == part), inner[0] if fields and inner else model)
    return model


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:  # Any: any annotation
    """Yield the models in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def _redact(text: str, substitutions: Iterable[Substitution]) -> str:
    """Replace longer parts of substituted values in a text by their placeholders."""
    for item in substitutions:
        for value in {item.value, repr(item.value)[1:-1], json.dumps(item.value)[1:-1]}:
            text = _replace(text, value, item.written)
    return text


def _replace(text: str, value: str, written: str) -> str:
    """Replace a value, and each part of it that is longer than messages may contain."""
    if len(value) < _MAX_SHOWN:
        return re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: written, text) if value else text
    starts = (at for at in range(len(text) - _MAX_SHOWN + 1) if text[at : at + _MAX_SHOWN] in value)
    hidden = {at + more for at in starts for more in range(_MAX_SHOWN)}
    runs = groupby(range(len(text)), key=hidden.__contains__)
    return "".join(written if is_hidden else "".join(text[at] for at in run) for is_hidden, run in runs)


def find_mistakes(data: Mapping[str, Any]) -> Iterator[tuple[Where, str]]:
    """Yield guards without a value, each with a message.

    `data` is the content of workflows.yaml or of an included file.
    """
    for pattern, without in GUARDS.items():
        for where, value in _matches(data, pattern, ()):
            if value is None:
                yield where, f"is empty, and without it {without}: give it a value, or remove it"


def _matches(value: object, pattern: Where, where: Where) -> Iterator[tuple[Where, object]]:
    if not pattern:
        yield where, value
        return
    for key, inner in _members(value):
        if pattern[0] in (_ANY, key):
            yield from _matches(inner, pattern[1:], (*where, key))


def _members(value: object) -> Iterable[tuple[str | int, object]]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).items()
    return enumerate(cast("list[object]", value)) if isinstance(value, list) else ()
