"""The states in the definition of a state machine (Amazon States Language).

Source: https://states-language.net/spec.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

from mcp_workflows.adapter import JSON
from mcp_workflows_stepfunctions.questions import MCP_INPUT, is_token, opened

WAITS_FOR_TOKEN: Final = ".waitForTaskToken"  # noqa: S105  # the end of a Resource, no password
_WITHIN: Final = ("ItemProcessor", "Iterator")  # of a Map


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One state, at any depth."""

    name: str
    fields: Mapping[str, Any]  # Any: JSON
    limited: bool = False  # the whole machine has a TimeoutSeconds

    @property
    def waits_for_token(self) -> bool:
        """True if the state waits for an answer with its task token."""
        return str(self.fields.get("Resource", "")).endswith(WAITS_FOR_TOKEN)

    @property
    def asks(self) -> bool:
        """True if the state asks people with `mcpInput`."""
        return self.waits_for_token and MCP_INPUT in json.dumps(self._parameters)

    @property
    def token_places(self) -> Sequence[TokenPlace]:
        """The places of its task token in the parameters it sends."""
        path = self.fields.get("InputPath")
        input_path = path if isinstance(path, str) else None
        sent = {".$": "$"} if self._parameters is None else self._parameters  # without parameters: its input
        return token_places(sent, input_path)

    @property
    def sent(self) -> Any:  # Any: JSON
        """The parameters it sends, with null for values that are filled in at run time."""
        return _written(self._parameters)

    @property
    def jsonata(self) -> bool:
        """True if the state is written in JSONata."""
        return "Arguments" in self.fields

    @property
    def bounded(self) -> bool:
        """True if the state ends although it gets no answer."""
        own = (f"{name}Seconds{path}" for name in ("Timeout", "Heartbeat") for path in ("", "Path"))
        return self.limited or any(name in self.fields for name in own)

    @property
    def caught(self) -> frozenset[str]:
        """The errors that its own `Catch` and `Retry` name."""
        takers = [*self.fields.get("Catch", ()), *self.fields.get("Retry", ())]
        return frozenset(str(error) for taker in takers for error in taker.get("ErrorEquals", ()))

    @property
    def _parameters(self) -> Any:  # Any: JSON
        return self.fields.get("Parameters", self.fields.get("Arguments"))


def _written(value: object) -> object:
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {key.removesuffix(".$"): None if key.endswith(".$") else _written(item) for key, item in fields.items()}
    if isinstance(value, list):
        return [_written(item) for item in cast("list[object]", value)]
    return None if isinstance(value, str) and value.lstrip().startswith("{%") else value


def states(definition: str) -> Mapping[str, State]:
    """Return the states by name, at any depth; none if the definition cannot be read."""
    try:
        machine = json.loads(definition)
    except (ValueError, RecursionError):
        return {}
    whole = cast("dict[str, Any]", machine) if isinstance(machine, dict) else {}
    return {state.name: state for state in _states(whole, limited="TimeoutSeconds" in whole)}


def _states(machine: object, *, limited: bool) -> Iterator[State]:
    found = cast("dict[str, Any]", machine).get("States") if isinstance(machine, dict) else None
    for name, fields in cast("dict[str, Any]", found if isinstance(found, dict) else {}).items():
        if isinstance(fields, dict):
            state = cast("dict[str, Any]", fields)
            yield State(name=name, fields=state, limited=limited)
            for nested in (*state.get("Branches", ()), *(state.get(each) for each in _WITHIN)):
                yield from _states(nested, limited=limited)


Path: TypeAlias = tuple[str | int, ...]

_CONTEXT: Final[Mapping[str, Path]] = {  # objects with the token, and its path inside
    "$$.Task.Token": (),
    "$$.Task": ("Token",),
    "$$": ("Task", "Token"),
    "$states.context.Task.Token": (),
    "$states.context.Task": ("Token",),
    "$states.context": ("Task", "Token"),
    "$states": ("context", "Task", "Token"),
}
_LEXEMES: Final = re.compile(
    r"""\s+ | /\*.*?\*/
    | (?P<text>'(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*")
    | (?P<name>\$\$(?:\.\w+|\['\w+'\]|\["\w+"\])* | [\w$]+(?:\.[\w$]+)*)
    | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_STEP: Final = re.compile(r"""\[['"](\w+)['"]\]""")
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_JSONATA: Final = re.compile(r"\s*\{%(.*)%\}\s*", re.DOTALL)
_CHOOSES: Final = frozenset("?:")  # signs that separate alternatives
_OPENS: Final[Mapping[str, str]] = {"(": ")", "[": "]", "{": "}"}
_TOKEN: Final = "[A-Za-z0-9+/=_-]+"  # noqa: S105  # what tokens are made of, no password
MARK: Final = "<task token>"
_CERTAIN: Final = 6  # characters; a longer text beside the token delimits it, even of token characters


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlace:
    """The place of a token in the parameters of a state."""

    path: Path
    before: str | None = None  # the text before the token in a larger text; None: the text begins with the token
    after: str | None = None
    readable: bool = True  # False: the token cannot be read back from the value

    def read(self, parameters: JSON) -> str | None:
        """Return the token at this place, or None."""
        found = parameters
        for step in self.path:
            found = _item(opened(found), step)
        if self.readable and isinstance(found, str) and self.is_embedded:
            pattern = f"{_literal(self.before, 'A')}({_TOKEN}?){_literal(self.after, 'Z')}"
            there = {match[1] for match in re.finditer(f"(?={pattern})", found)}
            found = there.pop() if len(there) == 1 else None  # another match came from a value filled in beside it
        return found if self.readable and isinstance(found, str) and is_token(found) else None

    @property
    def is_embedded(self) -> bool:
        """True if the token is in a larger text."""
        return self.before is not None or self.after is not None

    def mark_in(self, sent: JSON) -> JSON:
        """Return the parameters that a state sends, with a mark at this place."""
        return _put(sent, self.path)

    @property
    def expression(self) -> str:
        """The place as JMESPath, for `when.token` of a gate."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{_name(step)}" for step in self.path)
        return "".join(steps).removeprefix(".")


def token_places(parameters: JSON, input_path: str | None = None) -> Sequence[TokenPlace]:
    """Return all places of the token in the `Parameters` or `Arguments` of a definition."""
    return list(_places(parameters, (), input_path))


def _places(value: JSON, path: Path, input_path: str | None) -> Iterator[TokenPlace]:
    if isinstance(value, dict):
        for key, item in cast("Mapping[str, JSON]", value).items():
            if key.endswith(".$") and isinstance(item, str):
                yield from _within(item, (*path, key.removesuffix(".$")), input_path)
            else:
                yield from _places(item, (*path, key), input_path)
    elif isinstance(value, list):
        for index, item in enumerate(cast("Sequence[JSON]", value)):
            yield from _places(item, (*path, index), input_path)
    elif isinstance(value, str) and (expression := _JSONATA.fullmatch(value)):
        yield from _within(expression[1], path, None)


def _within(expression: str, path: Path, input_path: str | None) -> Iterator[TokenPlace]:
    """Return the places in the result of an expression."""
    try:
        places = _Expression(expression, input_path).places()
    except RecursionError:
        places = [TokenPlace(path=(), readable=False)]
    for found in places:
        yield replace(found, path=(*path, *found.path))


@dataclass(frozen=True, slots=True)
class _Operand:
    """The value of one operand: the places of the token in it, and its text if it is a literal."""

    places: Sequence[TokenPlace] = ()
    text: str | None = None


def _evaluated(parts: Sequence[_Operand | str]) -> _Operand:
    """Return the value of operands with operators between them: a single operand, or joined texts."""
    operands = [part for part in parts if isinstance(part, _Operand)]
    if len(operands) == len(parts) == 1:
        return operands[0]
    if operands and parts == [part for operand in operands for part in ("&", operand)][1:]:
        return _Operand(_joined(operands))
    return _Operand(_unreadable(place for operand in operands for place in operand.places))


def _unreadable(places: Iterable[TokenPlace]) -> Sequence[TokenPlace]:
    return [replace(place, readable=False) for place in places]


class _Expression:
    """A recursive-descent reader of one expression, for all that puts a token into another value."""

    def __init__(self, source: str, input_path: str | None) -> None:
        self._lexemes = [(str(found.lastgroup), found[0]) for found in _LEXEMES.finditer(source) if found.lastgroup]
        self._at = 0
        self._input = input_path

    def places(self) -> Sequence[TokenPlace]:
        found = [*self._expression(frozenset()).places]
        while self._at < len(self._lexemes):  # a closing bracket without an opening one
            self._at += 1
            found = [*_unreadable([*found, *self._expression(frozenset()).places])]
        return found

    @property
    def _next(self) -> str:
        return self._lexemes[self._at][1] if self._at < len(self._lexemes) else ""

    def _expression(self, ends: frozenset[str]) -> _Operand:
        """Read operands and the operators between them, up to one of the ends or a closing bracket."""
        branches: list[list[_Operand | str]] = [[]]
        while self._next and self._next not in ends and self._next not in _OPENS.values():
            kind, lexeme = self._lexemes[self._at]
            if kind != "sign" or lexeme in _OPENS:
                branches[-1].append(self._operand(kind, lexeme))
                continue
            self._at += 1
            if lexeme in _CHOOSES:
                branches.append([])
            else:
                branches[-1].append(lexeme)
        condition, *chosen = map(_evaluated, branches)
        if not chosen:
            return condition
        return _Operand([*_unreadable(condition.places), *(place for each in chosen for place in each.places)])

    def _operand(self, kind: str, lexeme: str) -> _Operand:
        self._at += 1
        if kind == "text":
            return _Operand(text=re.sub(r"\\(.)", r"\1", lexeme[1:-1]))
        if kind == "name":
            if self._next == "(":
                return self._call(lexeme)
            path = _CONTEXT.get(self._named(lexeme))
            return _Operand([] if path is None else [TokenPlace(path=path)])
        if lexeme == "{":
            return _Operand(self._object())
        items = self._items(";" if lexeme == "(" else ",", _OPENS[lexeme])
        if lexeme == "[":
            return _Operand(_listed(items))
        early = [place for item in items[:-1] for place in item.places]
        return _Operand(
            [*_unreadable(early), *items[-1].places] if items else [], items[0].text if len(items) == 1 else None
        )

    def _named(self, lexeme: str) -> str:
        name = _STEP.sub(r".\1", lexeme)
        if self._input is not None and (name == "$" or name.startswith("$.")):
            return self._input + name[1:]
        return name

    def _items(self, separator: str, end: str) -> Sequence[_Operand]:
        """Read the items between brackets; the opening bracket has been read."""
        found: list[_Operand] = []
        while self._next and self._next != end:
            if self._next in {separator, *_OPENS.values()}:
                self._at += 1
            else:
                found.append(self._expression(frozenset({separator})))
        self._at += 1
        return found

    def _object(self) -> Sequence[TokenPlace]:
        """Read the fields of an object; the places under computed names cannot be told."""
        found: list[TokenPlace] = []
        while self._next and self._next != "}":
            key = self._expression(frozenset({":", ","}))
            found += _unreadable(key.places)
            if self._next == ":":
                self._at += 1
                item = self._expression(frozenset({","})).places
                found += _unreadable(item) if key.text is None else _under(key.text, item)
            if self._next in {",", ")", "]"}:
                self._at += 1
        self._at += 1
        return found

    def _call(self, function: str) -> _Operand:
        self._at += 1
        arguments = self._items(",", ")")
        places = [place for argument in arguments for place in argument.places]
        if function == "States.Format" and arguments and arguments[0].text is not None:
            return _Operand(_formatted(arguments[0].text, arguments[1:]))
        if function == "States.Array":
            return _Operand(_listed(arguments))
        if function == "States.JsonToString":  # of a text: the text in quotes
            return _Operand([place if place.path else replace(place, before='"', after='"') for place in places])
        if function == "$string":
            return _Operand(places)
        if function in {"States.StringToJson", "$parse"}:
            return _Operand([place if place.path else replace(place, readable=False) for place in places])
        if function == "$merge":  # a list of objects becomes one object
            return _Operand([replace(place, path=place.path[1:]) for place in places if len(place.path) > 1])
        return _Operand(_unreadable(places))


def _under(step: str | int, places: Iterable[TokenPlace]) -> Sequence[TokenPlace]:
    return [replace(place, path=(step, *place.path)) for place in places]


def _listed(items: Sequence[_Operand]) -> Sequence[TokenPlace]:
    return [place for index, item in enumerate(items) for place in _under(index, item.places)]


def _formatted(template: str, arguments: Sequence[_Operand]) -> Sequence[TokenPlace]:
    """Return the places in `States.Format`: each `{}` of the template stands for the next argument."""
    pieces = template.split("{}")
    operands = [_Operand(text=pieces[0])]
    for argument, piece in zip(arguments, pieces[1:], strict=False):
        operands += [argument, _Operand(text=piece)]
    return _joined([operand for operand in operands if operand.text != ""])


def _joined(operands: Sequence[_Operand]) -> Sequence[TokenPlace]:
    """Return the places in joined texts: the token is found by the texts directly before and after it."""
    found: list[TokenPlace] = []
    for index, operand in enumerate(operands):
        before = operands[index - 1].text or "" if index else None
        after = operands[index + 1].text or "" if index + 1 < len(operands) else None
        if operand.places and (inside := _in_json(operands, index)) is not None:
            found += inside
            continue
        for place in operand.places:
            around = (
                replace(place, before=before + (place.before or ""), after=place.after) if before is not None else place
            )
            around = replace(around, after=(place.after or "") + after) if after is not None else around
            found.append(around if not place.path and _is_delimited(around) else replace(around, readable=False))
    return found


def _in_json(operands: Sequence[_Operand], index: int) -> Sequence[TokenPlace] | None:
    """Return the places of one operand in a text that is a JSON object or list, as places in its value."""
    text = "".join(
        MARK if number == index else "0" if operand.text is None else operand.text
        for number, operand in enumerate(operands)
    )
    if (value := opened(text)) is text:
        return None
    found = [TokenPlace(path=path, readable=leaf == MARK) for path, leaf in _leaves(value, ()) if MARK in leaf]
    return found if all(place == TokenPlace(path=()) for place in operands[index].places) else _unreadable(found)


def _leaves(value: JSON, path: Path) -> Iterator[tuple[Path, str]]:
    """Return the texts in a value, with their paths."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in cast("Mapping[str, JSON]", value).items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("Sequence[JSON]", value)):
            yield from _leaves(item, (*path, index))


def _is_delimited(place: TokenPlace) -> bool:
    """Return True if the text around the token cannot be a part of it."""
    return all(
        text is None or len(text) >= _CERTAIN or re.search("[^A-Za-z0-9+/=_-]", text) is not None
        for text in (place.before, place.after)
    )


def _literal(text: str | None, end: str) -> str:
    return rf"\{end}" if text is None else re.escape(text)


def _item(value: JSON, step: str | int) -> JSON:
    if isinstance(step, str):
        return cast("Mapping[str, Any]", value).get(step) if isinstance(value, dict) else None
    items = cast("Sequence[JSON]", value) if isinstance(value, list) else ()
    return items[step] if step < len(items) else None


def _put(value: JSON, path: Path) -> JSON:
    """Return the value with a mark at the end of the path, and with any missing parts of the path."""
    if not path:
        return MARK
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        fields: Mapping[str, JSON] = cast("Mapping[str, JSON]", value) if isinstance(value, dict) else {}
        return {**fields, step: _put(fields.get(step), rest)}
    items = list(cast("Sequence[JSON]", value)) if isinstance(value, list) else []
    items += [None] * (step + 1 - len(items))
    return [*items[:step], _put(items[step], rest), *items[step + 1 :]]


def _name(step: str) -> str:
    return step if _PLAIN.fullmatch(step) else '"' + step.replace("\\", "\\\\").replace('"', '\\"') + '"'
