"""Filters of lists: comparisons joined by AND, a part of https://google.aip.dev/160; others are refused."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeAlias, TypeVar

from mcp_workflows_google_local.refusals import invalid

T = TypeVar("T")
Value: TypeAlias = str | datetime | None  # None: no value, which matches only !=
Test: TypeAlias = Callable[[T], bool]

_TERM = re.compile(
    r"""(?P<field>[A-Za-z_]+)(?:\.(?P<key>"[^"]*"|[^\s"=!<>:()]+))?\s*"""
    r"""(?P<sign><=|>=|!=|=|<|>|:)\s*(?P<value>"(?:[^"\\]|\\.)*"|[^\s"()]+)"""
)
_AND = re.compile(r"\s+AND\s+")
_SIGNS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    ":": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_LABELS: Final = frozenset({"labels", "label"})
_EXACT: Final = frozenset({"=", ":", "!="})


class Filters(Generic[T]):
    """The fields and labels by which a list can be filtered."""

    def __init__(self, fields: Mapping[str, Callable[[T], Value]], labels: Callable[[T], Mapping[str, str]]) -> None:
        self._fields = fields
        self._labels = labels

    def read(self, text: str) -> Sequence[Test[T]]:
        """Return the tests that must all hold; an empty text has none.

        Raises:
            RefusedError: the text is not understood.
        """
        tests: list[Test[T]] = []
        rest = text.strip()
        while rest:
            found = _TERM.match(rest)
            if found is None:
                raise invalid(f"invalid filter {text!r} at {rest!r}: this engine knows comparisons joined by AND")
            tests.append(self._test(found))
            joint = _AND.match(rest, found.end())
            if joint is None and rest[found.end() :].strip():
                raise invalid(f"invalid filter {text!r}: AND is expected before {rest[found.end() :].strip()!r}")
            rest = rest[joint.end() :] if joint else ""
        return tests

    def _test(self, term: re.Match[str]) -> Test[T]:
        field, key, sign, value = term["field"], term["key"], term["sign"], _plain(term["value"])
        if field in _LABELS and sign in _EXACT:
            return self._label(_plain(key) if key else None, sign, value)
        if field not in self._fields or key:
            known = ", ".join([*self._fields, "labels.KEY"])
            raise invalid(f"invalid filter: unknown field {term['field']!r}; these are known: {known}")
        return _compared(self._fields[field], _SIGNS[sign], value)

    def _label(self, key: str | None, sign: str, value: str) -> Test[T]:
        labels = self._labels
        if key is None:
            if sign != ":":
                raise invalid('invalid filter: write labels.KEY="VALUE"')
            return lambda item: value in labels(item)
        if sign == ":" and value == "*":
            return lambda item: key in labels(item)
        compare = _SIGNS[sign]

        def test(item: T) -> bool:
            found: Any = labels(item).get(key)
            return compare(found, value)

        return test


def _compared(read: Callable[[T], Value], compare: Callable[[Any, Any], bool], value: str) -> Test[T]:
    def test(item: T) -> bool:
        found: Any = read(item)
        if found is None:
            return compare is operator.ne
        return compare(found, _moment(value) if isinstance(found, datetime) else value)

    return test


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid(f"invalid filter: {text!r} is no time such as 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
