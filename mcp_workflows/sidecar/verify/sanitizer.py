"""The removal of what a recording must not tell: secrets, accounts, projects, hosts, people.

Each text is replaced by a placeholder of its kind, the same one everywhere. JSON inside texts and base64 is read as
well. A value that its surroundings give away in one place is replaced in all others, so everything is read twice.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import OperatorError

_SECRET_KEY: Final = re.compile(
    r"pass(word|wd|phrase)|secret|token|api[_-]?key|authorization|cookie|credential|private[_-]?key|signature|session",
    re.IGNORECASE,
)
_DROPPED_KEY: Final = re.compile(r"stack_?trace", re.IGNORECASE)  # places in files of this machine
_ENCODED: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?|[A-Za-z0-9+/]{2}==")
_HEX: Final = re.compile(r"[0-9a-f]+")
_WORD: Final = r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"
_SHORTEST: Final = 4  # characters of a private text that is looked for everywhere
_DISTINCT: Final = re.compile(r"(?=.*[\d._@:-]).{6,}", re.DOTALL)  # texts that are no words of a language
_DEPTH: Final = 8  # levels of JSON in texts and base64


class NotSanitizedError(OperatorError):
    """A private text is still in the recording, which is not written."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern for one kind of private text; the group `it`, or the whole match, is replaced."""

    kind: str
    pattern: re.Pattern[str]


def _rule(kind: str, pattern: str) -> _Rule:
    return _Rule(kind, re.compile(pattern))


_HOSTS: Final = r"internal|local|corp|lan|intranet|amazonaws\.com|windows\.net|azure\.com|tmprl\.cloud|temporal\.io"
_RULES: Final[Sequence[_Rule]] = (
    _rule("secret", r"-----BEGIN [A-Z ]+-----[\s\S]*?-----END [A-Z ]+-----"),
    _rule("secret", r"\beyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"),  # a JWT
    _rule("secret", r"(?i:\b(?:bearer|basic))\s+(?P<it>(?=\S*[\d=._-])[\w.~+/=-]{6,})"),
    _rule("secret", r"\bA(?:KIA|SIA|ROA|IDA|GPA|NPA)[0-9A-Z]{12,}\b"),  # AWS: access keys, ids of people and roles
    _rule("secret", r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[a-z]-|sk-|ya29\.|AIza|npm_|hf_|dop_v1_)[\w.-]{12,}"),
    _rule("secret", r"(?<=://)(?P<it>[^/\s@\"'<>]+)@"),  # credentials in a URL
    _rule(
        "secret",
        r"(?i:[\w-]*(?:password|passwd|secret|token|api[_-]?key|signature|credential|cookie|\bsig)[\w-]*)"
        r"[\"']?\s*[=:]\s*[\"']?(?P<it>[^\s\"'&,;{}<>]{4,})",
    ),
    _rule(
        "email", r"(?<![\w.+/-])[\w.+-]+(?:@|%40)[\w-]+(?:\.[\w-]+)*"
    ),  # also PID@HOST, the identity of a Temporal worker
    _rule("host", r"(?<=://)(?:[^/\s@\"'<>]+@)?(?P<it>\[[0-9a-fA-F:.]+\]|[\w.-]+)"),
    _rule("host", r"(?<![\w.@/-])(?P<it>(?:[\w-]+\.)+[a-zA-Z]{2,}):\d{2,5}\b"),
    _rule("host", rf"(?<![\w.@/-])(?:[\w-]+\.)+(?:{_HOSTS})\b"),
    _rule("account", r"\barn:[\w-]+:[\w-]*:[\w-]*:(?P<it>\d{12})\b"),
    _rule("account", r"(?<![\w.])\d{12}(?![\w.])"),
    _rule("subscription", r"(?i:/subscriptions/)(?P<it>[0-9a-fA-F-]{36})"),
    _rule("project", r"\bprojects/(?P<it>(?!-/)[\w:.-]+)/"),
    _rule("path", r"(?<![\w.-])/(?:tmp|var|root|opt|srv|mnt|data|work|private|usr/local)/[\w.@+/-]*[\w@+-]"),
    _rule("user", r"(?i:/home/|/users/|\\users\\)(?P<it>[\w.-]+)"),
    _rule("ip", r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"),
    _rule("ip", r"(?<![\w:.])(?=[0-9a-fA-F]*:[0-9a-fA-F]*:)[0-9a-fA-F:]{3,39}(?![\w:.])"),
    _rule("opaque", r"(?<![\w+-])(?=[\w+-]*[a-z])(?=[\w+-]*[A-Z])(?=[\w+-]*\d)[\w+-]{32,}={0,2}"),
    _rule("opaque", r"(?<![\w+/])(?=[\w+/]*[a-z])(?=[\w+/]*[A-Z])(?=[\w+/]*\d)[A-Za-z0-9+/]{40,}={0,2}"),
    _rule("opaque", r"\b[0-9a-f]{40,}\b"),
)
"""The rules, in the order in which they are applied; what one has replaced, a later one leaves alone."""

_PUBLIC: Final = frozenset({"json-schema.org", "example.com", "127.0.0.1", "localhost", "0.0.0.0", "[::1]", "::1"})  # noqa: S104  # not bound to
_FORMS: Final[Mapping[str, str]] = {
    "account": "{:012d}",
    "email": "user-{}@example.com",
    "host": "host-{}.example",
    "path": "/path-{}",
    "ip": "192.0.2.{}",
    "subscription": "00000000-0000-0000-0000-{:012d}",
}
"""The placeholder of a kind, by the number of the text; others are `kind-1`."""


@dataclass(slots=True)
class Sanitizer:
    """Replaces private texts in JSON; `private` are texts that are known to be, each with its kind."""

    private: Mapping[str, str]
    _known: dict[str, str] = field(default_factory=dict[str, str])  # the placeholder of each text found so far
    _everywhere: dict[str, str] = field(default_factory=dict[str, str])  # of those that are looked for in all texts
    _placeholders: set[str] = field(default_factory=set[str])
    _counts: Counter[str] = field(default_factory=Counter[str])

    def sanitize(self, value: JSON) -> JSON:
        """Return the value without anything private.

        Raises:
            NotSanitizedError: something known to be private is left.
        """
        for text, kind in sorted(self.private.items(), key=lambda item: -len(item[0])):
            if len(text) >= _SHORTEST:
                self._everywhere[text.casefold()] = self._placeholder(text, kind)
        found = self._value(self._value(value))
        written = json.dumps(found, ensure_ascii=False)
        left = [
            kind for text, kind in self.private.items() if len(text) >= _SHORTEST and _pattern([text]).search(written)
        ]
        if left:
            raise NotSanitizedError(f"not written: the recording still has what is private ({', '.join(left)})")
        return found

    def _value(self, value: JSON, *, is_secret: bool = False) -> JSON:
        if isinstance(value, Mapping):
            return self._object(cast("Mapping[str, JSON]", value), is_secret=is_secret)
        if isinstance(value, list):
            return [self._value(each, is_secret=is_secret) for each in cast("list[object]", value)]
        if isinstance(value, str):
            return self._secret(value) if is_secret else self._text(value, 0)
        if isinstance(value, int) and not isinstance(value, bool) and str(value) in self._everywhere:
            return 0
        return value

    def _object(self, value: Mapping[str, JSON], *, is_secret: bool) -> JSON:
        found: dict[str, JSON] = {}
        for key, each in value.items():
            name = self._text(key, 0)
            if _DROPPED_KEY.fullmatch(key) and isinstance(each, str | list):
                found[name] = "" if isinstance(each, str) else []
            else:
                found[name] = self._value(each, is_secret=is_secret or _SECRET_KEY.search(key) is not None)
        return found

    def _secret(self, text: str) -> str:
        """Replace a whole text whose key says that it is secret, unless that is plain prose of a definition."""
        if not text or text in self._placeholders or text.startswith(("$", "{{")):
            return text
        found = self._placeholder(text, "secret")
        if _DISTINCT.fullmatch(text):
            self._everywhere[text.casefold()] = found
        return found

    def _text(self, text: str, depth: int) -> str:
        if text in self._placeholders:
            return text
        if depth < _DEPTH:
            inner = self._json(text, depth)
            if inner is not None:
                return inner
            if (decoded := _decoded(text)) is not None:
                cleaned = self._text(decoded, depth + 1)
                return text if cleaned == decoded else base64.b64encode(cleaned.encode()).decode()
        if self._everywhere:
            text = _pattern(self._everywhere).sub(lambda found: self._everywhere[found[0].casefold()], text)
        for rule in _RULES:
            text = rule.pattern.sub(self._replace(rule), text)
        return text

    def _json(self, text: str, depth: int) -> str | None:
        """Return a text that is JSON of more than one value or a text, sanitized inside; None: it is none."""
        if text[:1] not in {"{", "[", '"'}:
            return None
        try:
            value: JSON = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if isinstance(value, str):
            cleaned: JSON = self._text(value, depth + 1)
        else:
            cleaned = self._value(value)
        if cleaned == value:
            return text
        spaced = '": ' in text
        return json.dumps(cleaned, separators=None if spaced else (",", ":"), ensure_ascii=False)

    def _replace(self, rule: _Rule) -> Callable[[re.Match[str]], str]:
        def replace(found: re.Match[str]) -> str:
            group = "it" if "it" in rule.pattern.groupindex else 0
            text, (begin, end) = found[group], found.span(group)
            if text in self._placeholders or text in _PUBLIC or not _fits(rule.kind, text):
                return found[0]
            placeholder = self._placeholder(text, rule.kind)
            if text == found.string and _ENCODED.fullmatch(text) and not _HEX.fullmatch(text):
                placeholder = base64.b64encode(placeholder.encode()).decode()  # a reader may decode it
                self._placeholders.add(placeholder)
            if _DISTINCT.fullmatch(text):
                self._everywhere[text.casefold()] = placeholder
            return found.string[found.start() : begin] + placeholder + found.string[end : found.end()]

        return replace

    def _placeholder(self, text: str, kind: str) -> str:
        if text not in self._known:
            self._counts[kind] += 1
            self._known[text] = _FORMS.get(kind, f"{kind}-{{}}").format(self._counts[kind])
            self._placeholders.add(self._known[text])
        return self._known[text]


def _pattern(texts: Mapping[str, str] | Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile(_WORD.format(f"(?:{'|'.join(map(re.escape, longest_first))})"), re.IGNORECASE)


def _decoded(text: str) -> str | None:
    """Return the JSON, or the name of an encoding, that a text is in base64; None: it is none."""
    if len(text) < 4 or not _ENCODED.fullmatch(text):  # the shortest base64
        return None
    try:
        found = base64.b64decode(text, validate=True).decode()
        if not re.fullmatch(r"[a-z]+/[a-z-]+", found):
            json.loads(found)
    except (binascii.Error, ValueError, RecursionError):
        return None
    return found


def _fits(kind: str, text: str) -> bool:
    """Return whether a match is what its pattern takes it for."""
    if kind != "ip":
        return True
    try:
        return not ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False
