"""Expressions: text inside ${...} -> nodes. Tokens and a parser by precedence, without evaluation.

Source: https://cloud.google.com/workflows/docs/reference/syntax/expressions and .../datatypes (order of operations)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language.nodes import (
    Binary,
    Called,
    Expression,
    Listed,
    Literal,
    Name,
    Part,
    Unary,
    dotted,
)
from mcp_workflows_google_local.language.values import is_finite

LENGTH_LIMIT: Final = 400  # characters of an expression
DEPTH_LIMIT: Final = 60  # of nested parentheses and the like: our limit, against overflows


class Malformed(Exception):  # noqa: N818  # it says what happened
    """The reason why a text is not an expression."""


_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<double>[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)
      | (?P<integer>[0-9]+)
      | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<sign>==|!=|<=|>=|//|[-+*/%<>()\[\],.])""",
    re.VERBOSE | re.DOTALL,
)
_WORDS: Mapping[str, str] = {word: word.lower() for name in ("and", "or", "not") for word in (name, name.upper())} | {
    "in": "in"
}
_CONSTANTS: Mapping[str, JSON] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL"), None),
}
_SAME = "\"'\\/"  # stand for themselves after a backslash
_ESCAPES: Mapping[str, str] = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    **dict(zip(_SAME, _SAME, strict=True)),
}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)

_LEVELS: Sequence[frozenset[str]] = (  # loosest first; all are left-associative
    frozenset({"or"}),
    frozenset({"and"}),
    frozenset({"<", "<=", ">", ">=", "==", "!=", "in"}),
    frozenset({"+", "-"}),
    frozenset({"*", "/", "//", "%"}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token: its kind (double, integer, string, name, sign, end) and its text."""

    kind: str
    text: str


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of an expression, and an end.

    Raises:
        Malformed: a character belongs to no token.
    """
    index = 0
    while index < len(text):
        found = _TOKEN.match(text, index)
        if not found or not found.lastgroup:
            raise Malformed(f"unexpected {text[index]!r} at character {index + 1}")
        index = found.end()
        if found.lastgroup != "space":
            word = _WORDS.get(found[0]) if found.lastgroup == "name" else None
            yield Token(kind="sign" if word else found.lastgroup, text=word or found[0])
    yield Token(kind="end", text="its end")


def parse(text: str) -> Expression:
    """Return the expression of a text without its ${}.

    Raises:
        Malformed: it is not an expression, or too long.
    """
    if len(text) > LENGTH_LIMIT:
        raise Malformed(f"longer than {LENGTH_LIMIT} characters: assign parts of it to variables")
    parser = _Parser(tokens=list(tokens(text)))
    found = parser.level(0)
    parser.expect("end")
    return found


def _number(token: Token) -> int | float:
    value = int(token.text) if token.kind == "integer" else float(token.text)
    if not is_finite(value):
        raise Malformed("a number does not fit 64 bits")
    return value


def unescaped(text: str) -> str:
    """Return the text of a quoted string."""

    def one(found: re.Match[str]) -> str:
        escape = found[1]
        if len(escape) == len("uXXXX"):
            return chr(int(escape[1:], 16))
        if escape not in _ESCAPES:
            raise Malformed(f"unknown escape \\{escape} in a string: write \\\\ for a backslash")
        return _ESCAPES[escape]

    return _ESCAPE.sub(one, text[1:-1])


@dataclass(slots=True, kw_only=True)
class _Parser:
    """The state of the parser."""

    tokens: Sequence[Token]
    index: int = 0
    depth: int = field(default=0)

    @property
    def next(self) -> Token:
        return self.tokens[self.index]

    def take(self) -> Token:
        self.index += 1
        return self.tokens[self.index - 1]

    def sign(self, *texts: str) -> str | None:
        """Take and return the next token if it is one of these signs."""
        return self.take().text if self.next.kind == "sign" and self.next.text in texts else None

    def expect(self, kind: str, text: str = "") -> Token:
        if self.next.kind != kind or (text and self.next.text != text):
            raise Malformed(f"expected {text or kind}, found {self.next.text}")
        return self.take()

    def level(self, level: int) -> Expression:
        if level == len(_LEVELS):
            return self.unary()
        left = self.level(level + 1)
        while operator := self.sign(*_LEVELS[level]):
            left = Binary(operator=operator, left=left, right=self.level(level + 1))
        return left

    def unary(self) -> Expression:
        self.depth += 1
        if self.depth > DEPTH_LIMIT:
            raise Malformed(f"nested more than {DEPTH_LIMIT} levels deep: assign parts of it to variables")
        operator = self.sign("-", "not")
        found = Unary(operator=operator, operand=self.unary()) if operator else self.postfix()
        self.depth -= 1
        return found

    def postfix(self) -> Expression:
        found = self.primary()
        while sign := self.sign(".", "[", "("):
            if sign == ".":
                key = Literal(value=self.key())
                found = Part(of=found, key=key, dotted=True)
            elif sign == "[":
                found = Part(of=found, key=self.level(0), dotted=False)
                self.expect("sign", "]")
            else:
                found = self.call(found)
        return found

    def key(self) -> str:
        """Return a word after a dot, where words like `in` are keys."""
        if self.next.kind == "name" or self.next.text in _WORDS.values():
            return self.take().text
        raise Malformed(f"expected a name after '.', found {self.next.text}")

    def call(self, function: Expression) -> Expression:
        name = dotted(function)
        if name is None:
            raise Malformed("only a function or subworkflow can be called, by its name")
        return Called(name=name, arguments=self.listed(")"))

    def listed(self, end: str) -> Sequence[Expression]:
        items: list[Expression] = []
        while not self.sign(end):
            if items:
                self.expect("sign", ",")
            items.append(self.level(0))
        return items

    def primary(self) -> Expression:
        if self.sign("("):
            found = self.level(0)
            self.expect("sign", ")")
            return found
        if self.sign("["):
            return Listed(items=self.listed("]"))
        token = self.take()
        if token.kind == "name":
            return Literal(value=_CONSTANTS[token.text]) if token.text in _CONSTANTS else Name(name=token.text)
        if token.kind == "string":
            return Literal(value=unescaped(token.text))
        if token.kind in ("integer", "double"):
            return Literal(value=_number(token))
        raise Malformed(f"expected a value, found {token.text}")
