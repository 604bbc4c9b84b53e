"""`{{JMESPath}}` templates: the one rule for arguments, messages, ids and answers.

A string that is only one placeholder keeps the type of its value; in a longer string the value is written as text. Bare
names mean `args`: `{{order_id}}` is `{{args.order_id}}`. In a message to a person each value is set apart from the
words around it: see `display_text`.

See https://jmespath.org/specification.html for the expressions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, cast

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions, signature
from jmespath.visitor import Options, TreeInterpreter

from mcp_workflows.adapter.display_text import cleaned, is_blank, quoted
from mcp_workflows.errors import ConfigError, MappingError


class _Functions(Functions):
    """The functions of JMESPath, and `split` from JMESPath Community, the inverse of `join`."""

    @signature({"types": ["string"]}, {"types": ["string"]})
    def _func_split(self, text: str, separator: str) -> list[str]:
        return text.split(separator) if separator else list(text)


_INTERPRETER: Final = TreeInterpreter(
    Options(custom_functions=_Functions())
)  # caches methods; `jmespath.search` does not
_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_ARGUMENT = re.compile(r"(?:args\.)?([A-Za-z_][A-Za-z0-9_]*)")
_CALLERS: Final = re.compile(r"principal\.[A-Za-z0-9_.]+")
_NAMES: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_FUNCTIONS = frozenset(_Functions.FUNCTION_TABLE)

SCOPES = frozenset({"args", "principal", "task", "answer", "output"})
_NOTHING: Final = dict.fromkeys(SCOPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Absent:
    """The result of a placeholder without a value: left out of an object and at the end of a list, otherwise null."""

    known: bool = False  # known to have no value: null everywhere, such as `principal.subject` of an anonymous caller


_ABSENT = _Absent()
_NULL = _Absent(known=True)


@dataclass(frozen=True)
class Template:
    """A JSON value with placeholders in its strings, checked on construction.

    Raises:
        ConfigError: a placeholder is not a JMESPath expression, or braces are not closed.
    """

    source: Any  # any JSON value

    def __post_init__(self) -> None:
        problems = [problem for text in _strings(self.source) for problem in _problems(text)]
        if problems:
            raise ConfigError("; ".join(problems))

    @cached_property
    def is_constant(self) -> bool:
        """True if no string has a placeholder."""
        return not any("{{" in text for text in _strings(self.source))

    @property
    def arguments(self) -> frozenset[str]:
        """The arguments that placeholders name directly: `{{order_id}}`, `{{args.order_id}}`."""
        found = (_PLACEHOLDER.findall(text) for text in _strings(self.source))
        names = (_ARGUMENT.fullmatch(expression.strip()) for expressions in found for expression in expressions)
        return frozenset(match[1] for match in names if match and match[0] not in SCOPES)

    @property
    def is_plain(self) -> bool:
        """True if each placeholder directly names an argument or an attribute of the caller."""
        found = (each.strip() for text in _strings(self.source) for each in _PLACEHOLDER.findall(text))
        return all((_ARGUMENT.fullmatch(each) and each not in SCOPES) or _CALLERS.fullmatch(each) for each in found)

    def fields(self, scope: str) -> frozenset[str]:
        """Return the fields of a scope that placeholders name directly: `ok` for `answer` in `{{answer.ok}}`."""
        plain = re.compile(rf"{scope}\.([A-Za-z_][A-Za-z0-9_]*)")
        found = (_PLACEHOLDER.findall(text) for text in _strings(self.source))
        names = (plain.fullmatch(expression.strip()) for expressions in found for expression in expressions)
        return frozenset(match[1] for match in names if match)

    def begun_with(self, scope: str) -> frozenset[str]:
        """Return the fields of a scope at the start of placeholders: `claims` in `{{principal.claims.x}}`."""
        first = re.compile(rf"{scope}\.([A-Za-z_][A-Za-z0-9_]*)")
        found = (_PLACEHOLDER.findall(text) for text in _strings(self.source))
        names = (first.match(expression.strip()) for expressions in found for expression in expressions)
        return frozenset(match[1] for match in names if match)

    def mentions(self, scope: str) -> bool:
        """Return True if a placeholder may use this scope."""
        expressions = (each for text in _strings(self.source) for each in _PLACEHOLDER.findall(text))
        return any(re.search(rf"\b{scope}\b", each) for each in expressions)

    def render(self, scope: Mapping[str, Any], *, all_keys: bool = False) -> Any:  # any JSON value
        """Fill in the placeholders from `scope` (`args`, `principal`, `task`, `answer`, `output`).

        With `all_keys`, objects keep all keys, and missing values are null.

        Raises:
            MappingError: an expression does not work on these values (`length` of a number).
        """
        value = _render(self.source, _data(scope), nulls={_NULL, _ABSENT} if all_keys else {_NULL})
        return None if isinstance(value, _Absent) else value

    def settings(self, scope: Mapping[str, Any]) -> Any:  # any JSON value
        """Fill in settings. Fields without a value are left out of objects, so that defaults apply.

        Raises:
            MappingError: an expression does not work on these values.
        """
        value = _render(self.source, _data(scope), nulls=frozenset())
        return None if isinstance(value, _Absent) else value

    def gaps(self, scope: Mapping[str, Any]) -> Sequence[str]:
        """Return the missing arguments and claims that longer texts name: `x-{{id}}` would be `x-`."""
        arguments, claims = self._named_in_texts
        missing = {name for name in arguments if _as_text(scope.get("args", {}).get(name)) == ""}
        data = _data(scope)
        return sorted(missing | {each for each in claims if _is_gap(each, data)})

    def empty(self, scope: Mapping[str, Any]) -> Sequence[str]:
        """Return the placeholders whose text is empty, for any reason."""
        data = _data(scope)
        found = {each.strip() for text in _strings(self.source) for each in _PLACEHOLDER.findall(text)}
        return sorted(each for each in found if _as_text(_expression(each).find(data)) == "")

    @cached_property
    def _named_in_texts(self) -> tuple[frozenset[str], frozenset[str]]:
        """The arguments, and the expressions for claims, in texts that are more than one placeholder."""
        texts = [text for text in _strings(self.source) if not _is_placeholder(text)]
        said = (expression.strip() for text in texts for expression in _PLACEHOLDER.findall(text))
        claims = frozenset(each for each in said if each.startswith("principal."))
        return Template(texts).arguments, claims

    def text(self, scope: Mapping[str, Any]) -> str:
        """Fill in a text for engines, with values unchanged."""
        return _as_text(self.render(scope))

    @property
    def wordless(self) -> bool:
        """True if it consists only of placeholders, so the values are its whole content."""
        return all(is_blank(_PLACEHOLDER.sub("", text)) for text in _strings(self.source))

    def message(self, scope: Mapping[str, Any]) -> str:
        """Fill in a message to a person: its own words are cleaned, and each value is set apart from them.

        Raises:
            MappingError: an expression does not work on these values.
        """
        data = _data(scope)
        return "".join(
            cleaned(each) if isinstance(each, str) else _quoted(each.find(data)) for each in _pieces(self.source)
        )


def _data(scope: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the data that expressions search; bare names mean arguments."""
    return {**scope.get("args", {}), **_NOTHING, **scope}


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in cast("Mapping[str, Any]", value).values() for text in _strings(item)]
    if isinstance(value, list):
        return [text for item in cast("Sequence[Any]", value) for text in _strings(item)]
    return []


def _problems(text: str) -> Iterator[str]:
    for expression in _PLACEHOLDER.findall(text):
        try:
            parsed = jmespath.compile(expression.strip()).parsed
        except JMESPathError as error:
            reason = str(error).splitlines()[0].removeprefix("Invalid jmespath expression: ").rstrip(":")
            yield f"{{{{{expression}}}}} is not a JMESPath expression: {reason}"
        else:
            for name in sorted(_functions(parsed) - _FUNCTIONS):
                yield f"{{{{{expression}}}}} calls {name}(), which JMESPath does not have"
    rest = _PLACEHOLDER.sub("", text)
    if "{{" in rest or "}}" in rest:
        yield f"{text!r} has braces that are not closed: write {{{{name}}}}"


def _functions(node: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the functions that a parsed expression calls."""
    own = frozenset({str(node["value"])}) if node["type"] == "function_expression" else frozenset[str]()
    children = (cast("Mapping[str, Any]", child) for child in node["children"] if isinstance(child, Mapping))
    return own.union(*(_functions(child) for child in children))


def _render(value: Any, data: Mapping[str, Any], *, nulls: Set[_Absent]) -> Any:
    if isinstance(value, str):
        return _render_string(value, data)
    if isinstance(value, Mapping):
        items = {key: _render(item, data, nulls=nulls) for key, item in cast("Mapping[str, Any]", value).items()}
        return _render_object(items, nulls=nulls)
    if isinstance(value, list):
        return _render_list([_render(item, data, nulls=nulls) for item in cast("Sequence[Any]", value)])
    return value


def _render_object(items: Mapping[str, Any], *, nulls: Set[_Absent]) -> dict[str, Any]:
    kept = {key: item for key, item in items.items() if not isinstance(item, _Absent) or item in nulls}
    return {key: None if isinstance(item, _Absent) else item for key, item in kept.items()}


def _render_list(items: list[Any]) -> list[Any]:
    """Render positional arguments. Missing ones at the end are left out, so that the callee's defaults apply."""
    while items and items[-1] == _ABSENT:
        items.pop()
    return [None if isinstance(item, _Absent) else item for item in items]


def _render_string(text: str, data: Mapping[str, Any]) -> Any:
    pieces = _pieces(text)
    if len(pieces) == 1 and isinstance(pieces[0], _Expression):
        return pieces[0].find(data)
    return "".join(each if isinstance(each, str) else _as_text(each.find(data)) for each in pieces)


@dataclass(frozen=True, slots=True)
class _Expression:
    """The expression of a placeholder, parsed once."""

    source: str
    argument: str | None  # the argument that it names directly
    names: Sequence[str] | None  # if it is only names and dots, so that no interpreter is needed
    tree: Any  # of JMESPath

    def find(self, data: Mapping[str, Any]) -> Any:
        """Return its value.

        Raises:
            MappingError: it does not work on these values.
        """
        if self.argument is not None:
            return data["args"].get(self.argument, _ABSENT) if data["args"] else _ABSENT
        found = self._searched(data) if self.names is None else self._followed(data)
        if found is not None:
            return found
        scope, _, name = self.source.partition(".")
        known = data.get(scope) if scope in SCOPES else None
        return _NULL if scope == "principal" or (isinstance(known, Mapping) and name in known) else _ABSENT

    def _followed(self, found: Any) -> Any:
        try:
            for name in self.names or ():
                found = found.get(name)
        except AttributeError:  # null or not an object: JMESPath gives null there
            return None
        return found

    def _searched(self, data: Mapping[str, Any]) -> Any:
        try:
            return _INTERPRETER.visit(self.tree, data)
        except JMESPathError as error:
            raise MappingError(f"{{{{{self.source}}}}}: {str(error).splitlines()[0]}") from None


@lru_cache(maxsize=4096)
def _expression(source: str) -> _Expression:
    source = source.strip()
    argument = _ARGUMENT.fullmatch(source)
    return _Expression(
        source=source,
        argument=argument[1] if argument and source not in SCOPES else None,
        names=source.split(".") if _NAMES.fullmatch(source) else None,
        tree=jmespath.compile(source).parsed,
    )


@lru_cache(maxsize=4096)
def _pieces(text: str) -> Sequence[str | _Expression]:
    """Return the texts and expressions of a text in order."""
    found = [_expression(each) if number % 2 else each for number, each in enumerate(_PLACEHOLDER.split(text))]
    return tuple(each for each in found if each != "")


def _is_placeholder(text: str) -> bool:
    """Return True if the text is a single placeholder."""
    pieces = _pieces(text)
    return len(pieces) == 1 and isinstance(pieces[0], _Expression)


def _is_gap(expression: str, data: Mapping[str, Any]) -> bool:
    """Return True if a claim is missing or empty, so that a text has a gap. An anonymous caller's null is no gap."""
    found = _expression(expression).find(data)
    fields: Mapping[str, Any] = data["principal"] or {}
    return _as_text(found) == "" and not (found is _NULL and expression.partition(".")[2] in fields)


def _quoted(value: Any) -> str:
    return "" if isinstance(value, _Absent) else quoted(value)


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, _Absent):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def unused_fields(form: Mapping[str, Any], send: Any) -> Sequence[str]:  # any JSON values
    """Return the form fields that are required or boolean, and that `send` does not use.

    A person may refuse through such a field, but the workflow still gets `send`.
    """
    expressions = [each for text in _strings(send) for each in _PLACEHOLDER.findall(text)]

    def is_used(field: str) -> bool:
        # the field, or the whole answer: `answer` without a name after it
        used = re.compile(rf"\b(answer|fields)\b\s*(\.\s*\"?{re.escape(field)}\b|(?!\s*\.\s*[\"A-Za-z_]))")
        return any(map(used.search, expressions))

    fields: Any = form.get("properties")
    if not isinstance(fields, Mapping):  # a template, known only once it is filled in
        return []
    required = form.get("required") or ()
    known = cast("Mapping[str, Any]", fields)
    asked = (name for name, rules in known.items() if name in required or rules.get("type") == "boolean")
    return [name for name in asked if not is_used(name)]
