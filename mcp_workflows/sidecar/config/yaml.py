"""The text of workflows.yaml: YAML 1.2 as plain values with their lines, with `${...}` filled in.

This module does not interpret the values. It collects problems, so that one message can list them all; only a file that
cannot be read or parsed raises an error at once.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (ruamel.yaml annotates hardly any attribute of its nodes and errors; mypy treats them as Any)

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from mcp_workflows.errors import ConfigError

MAX_VALUES = 200_000  # in one file; aliases count at each use
MAX_MERGED = 100  # mappings merged by one `<<`, directly or indirectly

Where: TypeAlias = tuple[str | int, ...]  # the keys and indexes that lead to a value

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_TEXT = frozenset({f"{_TAG}str", f"{_TAG}timestamp"})  # JSON has no dates, so they remain text
_CONSTRUCTED = frozenset({f"{_TAG}null", f"{_TAG}bool", f"{_TAG}int", f"{_TAG}float"})

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{(?!\{)(?:([^}]*)\})?")  # `${{` is a dollar before a {{template}}
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)

_UNREADABLE: Mapping[type[OSError], str] = {
    FileNotFoundError: "no such file",
    IsADirectoryError: "this is a folder; a file is needed",
    NotADirectoryError: "no such file",
    PermissionError: "not allowed to read it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem and its place."""

    path: Path
    line: int
    where: Where
    text: str

    @property
    def place(self) -> str:
        """The file and line, in the format of editors."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitution:
    """A placeholder (`${NAME}`) and its value, which messages must not contain."""

    where: Where
    written: str
    around: str  # the original text around it
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The file as plain values with their places; composing may add values from other files."""

    path: Path
    data: Mapping[str, Any] = field(repr=False)  # Any: any JSON value, validated by the models
    lines: Mapping[Where, int]  # of the key, or of the item of a list; from 1
    substitutions: Sequence[Substitution]
    problems: Sequence[Problem]
    unreadable: frozenset[Where]  # values that could not be read; further problems with them are not reported
    variables: Sequence[tuple[str, str | None]] = ()  # environment variables: each mention with its default
    moved: Mapping[Where, tuple[Source, Where]] = field(default_factory=dict[Where, "tuple[Source, Where]"], repr=False)

    def line(self, where: Where) -> int:
        """Return the line of a value, or of the nearest enclosing part in the file."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def origin(self, where: Where) -> tuple[Source, Where]:
        """Return the file that a value comes from and its place there; by default, this file."""
        for length in range(len(where), 0, -1):
            if found := self.moved.get(where[:length]):
                return found[0], (*found[1], *where[length:])
        return self, where

    def has(self, where: Where) -> bool:
        """True if one of the files has this value."""
        source, at = self.origin(where)
        return at in source.lines

    def place(self, where: Where) -> str | None:
        """Return the file and line of a value, in the format of editors; None if no file has it."""
        return self.problem(where, "").place if self.has(where) else None

    def is_unreadable(self, where: Where) -> bool:
        """True if a value, or one that encloses it, could not be read."""
        source, at = self.origin(where)
        return any(at[: len(unreadable)] == unreadable for unreadable in source.unreadable)

    def problem(self, where: Where, text: str) -> Problem:
        """Return a problem with its place in the file that has the value."""
        source, at = self.origin(where)
        return Problem(path=source.path, line=source.line(at), where=at, text=text)

    def related(self, where: Where) -> Iterator[Substitution]:
        """Yield the substitutions in a value, in its parts, and in the values that enclose it."""
        inside = [origin for moved, origin in self.moved.items() if moved[: len(where)] == where]
        for source, at in (self.origin(where), *inside):
            yield from (each for each in source.substitutions if _related(each.where, at))


def _related(one: Where, other: Where) -> bool:
    """True if two places are the same, or one is inside the other."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def mapping_in(value: object) -> Mapping[str, Any]:
    """Return a mapping unchanged; for any other value, an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def list_in(value: object) -> Sequence[Any]:  # Any: any JSON value
    """Return a list unchanged; for any other value, an empty one."""
    return cast("Sequence[Any]", value) if isinstance(value, list) else []


def variables_in(path: Path) -> Mapping[str, str | None]:
    """Return the environment variables that the file mentions, with their defaults.

    The default is None if one of the mentions has none, and empty if they differ: an empty variable uses the default of
    each mention.

    Raises:
        ConfigError: the file cannot be read, or is not YAML.
    """
    found: dict[str, str | None] = {}
    for name, default in read_source(path, {}).variables:
        known = found.setdefault(name, default)
        if known != default:
            found[name] = None if None in (known, default) else ""
    return found


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file.

    Raises:
        ConfigError: it does not exist, is not a file, or is not readable or not UTF-8.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {_UNREADABLE.get(type(error), error.strerror)}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8: byte 0x{raw[error.start]:02x}") from None


def read_source(
    path: Path, environ: Mapping[str, str] | None, *, holds: str = "engines and tools", text: str | None = None
) -> Source:
    """Read workflows.yaml, or parse `text` instead, and fill in `${...}`; without `environ`, these are errors.

    Raises:
        ConfigError: the file cannot be read, is empty, is not a YAML mapping, or is far too large.
    """
    yaml = YAML(typ="safe", pure=True)
    root = _compose(yaml, path, read_text(path) if text is None else text)
    if root is None:
        raise ConfigError(f"{path}:1: the file is empty; it needs {holds}")
    if not isinstance(root, MappingNode):
        raise ConfigError(f"{path}:{_line(root)}: this must be a mapping with {holds}")
    reading = _Reader(yaml, path, environ)
    try:
        data = cast("Mapping[str, Any]", reading.value(root, ()))
    except RecursionError:
        raise ConfigError(f"{path}:1: nested too deeply; are there aliases of aliases?") from None
    return Source(
        path=path,
        data=data,
        lines=reading.lines,
        substitutions=reading.substitutions,
        problems=reading.problems,
        unreadable=frozenset(reading.unreadable),
        variables=reading.variables,
    )


def _compose(yaml: YAML, path: Path, text: str) -> Node | None:
    try:
        return cast("Node | None", yaml.compose(text))  # pyright: ignore[reportArgumentType]  # it takes text, too
    except ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise ConfigError(f"{path}:{line}: not YAML: a control character ({error.reason})") from None
    except MarkedYAMLError as error:
        raise ConfigError(_syntax_error(path, text, error)) from None
    except RecursionError:
        raise ConfigError(f"{path}:1: not YAML that can be read: nested too deeply") from None
    except YAMLError as error:
        raise ConfigError(f"{path}:1: not YAML: {str(error).splitlines()[0]}") from None


def _syntax_error(path: Path, text: str, error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    what = ", ".join(part for part in (error.context, error.problem) if part)
    in_flow = "flow" in (error.context or "") and "${" in "".join(text.splitlines()[line : line + 1])
    hint = '; inside { } and [ ] it needs quotes: "${NAME}"' if in_flow else ""
    return f"{path}:{line + 1}:{column + 1}: not YAML: {what}{hint}"


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """One pass over the nodes of a file."""

    def __init__(self, yaml: YAML, path: Path, environ: Mapping[str, str] | None) -> None:
        self._yaml = yaml
        self._path = path
        self._environ = environ
        self._around: list[Node] = []
        self._values = 0
        self.lines: dict[Where, int] = {(): 1}
        self.substitutions: list[Substitution] = []
        self.problems: list[Problem] = []
        self.unreadable: set[Where] = set()
        self.variables: list[tuple[str, str | None]] = []

    def value(self, node: Node, where: Where) -> Any:  # any JSON value
        self._values += 1
        if self._values > MAX_VALUES:
            wrong = f"more than {MAX_VALUES} values; are there aliases of aliases?"
            raise ConfigError(f"{self._path}:{_line(node)}: {wrong}")
        if isinstance(node, ScalarNode):
            if node.tag in _TEXT:
                return _PLACEHOLDER.sub(lambda match: self._fill(match, _line(node), where), str(node.value))
            if node.tag in _CONSTRUCTED:
                return self._yaml.constructor.construct_object(node)
            return self._mark_unreadable(_line(node), where, f"the tag {node.tag} is not known here")
        if any(node is outer for outer in self._around):
            return self._mark_unreadable(_line(node), where, f"*{node.anchor} refers to itself")
        self._around.append(node)
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, where)
            items = cast("Sequence[Node]", node.value) if isinstance(node, SequenceNode) else ()
            self.lines |= {(*where, index): _line(item) for index, item in enumerate(items)}
            return [self.value(item, (*where, index)) for index, item in enumerate(items)]
        finally:
            self._around.pop()

    def _report_problem(self, line: int, where: Where, text: str) -> None:
        self.problems.append(Problem(path=self._path, line=line, where=where, text=text))

    def _mark_unreadable(self, line: int, where: Where, text: str) -> None:
        self.unreadable.add(where)
        self._report_problem(line, where, text)

    def _mapping(self, node: MappingNode, where: Where) -> dict[str, Any]:
        pairs: dict[str, Node] = {}
        for key, value, line in self._own(node, where):
            if key in pairs:
                first = self.lines[(*where, key)]
                self._report_problem(line, (*where, key), f"{key!r} is a duplicate key; the first is on line {first}")
                continue
            pairs[key] = value
            self.lines[(*where, key)] = line
        for key, value, line in self._merged(node, where):
            if key not in pairs:
                pairs[key] = value
                self.lines[(*where, key)] = line
        return {key: self.value(value, (*where, key)) for key, value in pairs.items()}

    def _own(self, node: MappingNode, where: Where) -> Iterator[tuple[str, Node, int]]:
        for key, value in cast("Sequence[tuple[Node, Node]]", node.value):
            if not isinstance(key, ScalarNode):
                self._report_problem(_line(key), where, 'a key must be plain text; a template needs quotes: "{{name}}"')
            elif key.tag != _MERGE:
                yield str(key.value), value, _line(key)

    def _merged(
        self, node: MappingNode, where: Where, outer: tuple[Node, ...] = (), seen: dict[int, Node] | None = None
    ) -> Iterator[tuple[str, Node, int]]:
        """Yield the entries that `<<: *anchor` merges, directly or indirectly; the mapping's own entries take
        precedence.

        Each mapping is visited once, so that nested aliases cannot multiply the work.
        """
        seen = {} if seen is None else seen
        for line, source in self._sources(node):
            if not isinstance(source, MappingNode) or any(source is each for each in (*outer, node)):
                self._report_problem(line, where, "<< needs a mapping, or a list of mappings")
            elif id(source) not in seen:
                seen[id(source)] = source
                if len(seen) > MAX_MERGED:
                    first = _line((*outer, node)[0])
                    raise ConfigError(f"{self._path}:{first}: << brings in more than {MAX_MERGED} mappings")
                yield from self._own(source, where)
                yield from self._merged(source, where, (*outer, node), seen)

    @staticmethod
    def _sources(node: MappingNode) -> Iterator[tuple[int, Node]]:
        """Yield the value of each `<<`, with its line."""
        for key, value in cast("Sequence[tuple[Node, Node]]", node.value):
            if key.tag == _MERGE:
                sources = cast("Sequence[Node]", value.value) if isinstance(value, SequenceNode) else (value,)
                yield from ((_line(key), source) for source in sources)

    def _fill(self, match: re.Match[str], line: int, where: Where) -> str:
        """Return the text for one placeholder, or the placeholder itself if it is invalid."""
        written, inside = match[0], cast("str | None", match[1])
        if written == "$${":
            return "${"
        if inside is None:
            self._mark_unreadable(line, where, f"{written} is not closed; for a plain ${{ write $${{")
            return written
        try:
            value = self._find(inside)
        except ConfigError as error:
            self._mark_unreadable(line, where, f"{written}: {error}")
            return written
        if value is None:
            return cast("str", cast("re.Match[str]", _VARIABLE.fullmatch(inside))[2])
        self.substitutions.append(Substitution(where=where, written=written, around=match.string, value=value))
        return value

    def _find(self, inside: str) -> str | None:
        """Return the value of a placeholder; None for its default."""
        if self._environ is None:
            raise ConfigError("an included file cannot use ${...}: write the value, or set it in `rules`")
        if inside.startswith("file:"):
            text = read_text(self._path.parent / inside.removeprefix("file:"))
            return text.removesuffix("\n").removesuffix("\r")
        variable = _VARIABLE.fullmatch(inside)
        if not variable or "${" in inside:
            raise ConfigError("write ${NAME}, ${NAME:-default} or ${file:path}, or $${ for a plain ${")
        name, default = variable.groups()
        self.variables.append((name, default))
        value = self._environ.get(name)
        if not value and default is not None:
            return None
        if value is None:
            raise ConfigError(f"{name} is not set in the environment and has no default (${{{name}:-default}})")
        return value
