"""The removal of what a recording must not tell: secrets, accounts, projects, hosts, people.

Each text is replaced by a placeholder of its kind, the same one everywhere. JSON inside texts and base64 is read as
well. A value that its surroundings give away in one place is replaced in all others, so everything is read again.
A text that is known to be private is also looked for percent-encoded, escaped, in base64 and in hex.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, cast

from mcp_workflows.adapter import JSON
from mcp_workflows.adapter.redaction import SECRET_KEY, TextRule
from mcp_workflows.errors import OperatorError
from mcp_workflows.sidecar.verify.forms import Forms, replace_decoded, unwrapped
from mcp_workflows.sidecar.verify.rules import (
    NAME_KEYS,
    PUBLIC,
    RULES,
    SECRET_LEAF,
    VALUE_KEYS,
    fits,
    placeholder,
    placeholders_with,
)

_DROPPED_KEY: Final = re.compile(r"stack_?trace", re.IGNORECASE)  # places in files of this machine
_ENCODED: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?|[A-Za-z0-9+/]{2}==")
_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_WORD: Final = r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"
_ACCOUNT: Final = re.compile(r"\d{12}")
_SHORTEST: Final = 4  # characters of a private text that is looked for everywhere
_LONG: Final = 6  # characters of one that is looked for also next to letters and digits
_DISTINCT: Final = re.compile(r"(?=.*[\d._@:-]).{6,}", re.DOTALL)  # texts that are no words of a language
_DEPTH: Final = 8  # levels of JSON in texts and base64
_INSIDE: Final = 20  # places in one text where JSON is looked for
_NAME: Final = re.compile(r"[\w.-]{1,60}")
_NUMBERED: Final = re.compile(r" \(\d+\)$")  # the end of a key that would stand twice in one object
_PASSES: Final = 3  # in search of what earlier ones have found
_PAIR: Final = 2  # items of a list that is a name and a value


class NotSanitizedError(OperatorError):
    """A private text is still in the recording, which is not written."""


@dataclass(frozen=True, slots=True)
class _Private:
    """A text that is known to be private, with its placeholder; `kept` are placeholders in which it occurs as well."""

    kind: str
    placeholder: str
    forms: Forms
    kept: re.Pattern[str] | None

    def replace(self, text: str) -> str:
        if self.kept is None:
            return self.forms.plain.sub(lambda _: self.placeholder, text)
        either = re.compile(f"(?P<kept>{self.kept.pattern})|{self.forms.plain.pattern}", re.IGNORECASE)
        return either.sub(lambda found: found["kept"] or self.placeholder, text)

    def is_in(self, written: str) -> bool:
        return self.forms.search(self.kept.sub("", written) if self.kept else written)


@dataclass(slots=True)
class Sanitizer:
    """Replaces private texts in JSON; `private` are texts that are known to be, each with its kind."""

    private: Mapping[str, str]
    _known: dict[str, str] = field(default_factory=dict[str, str])  # the placeholder of each text found so far
    _everywhere: dict[str, str] = field(default_factory=dict[str, str])  # of those that are looked for in all texts
    _found: re.Pattern[str] | None = None  # for these
    _private: list[_Private] = field(default_factory=list[_Private])
    _placeholders: set[str] = field(default_factory=set[str])
    _counts: Counter[str] = field(default_factory=Counter[str])

    def sanitize(self, value: object) -> JSON:
        """Return the value without anything private; what is no JSON becomes a text that says so.

        Raises:
            NotSanitizedError: something known to be private is left.
        """
        named = sorted(self.private.items(), key=lambda item: -len(item[0]))
        self._private = [self._named(text, kind) for text, kind in named if len(text) >= _SHORTEST]
        found = self._value(_as_json(value))
        for _ in range(_PASSES):
            size, self._found = len(self._everywhere), _pattern(self._everywhere)
            found = self._value(found)
            if len(self._everywhere) == size:
                break
        written = unwrapped(json.dumps(found, ensure_ascii=False))
        if left := [each.kind for each in self._private if any(map(each.is_in, written))]:
            raise NotSanitizedError(f"not written: the recording still has what is private ({', '.join(left)})")
        return found

    def _named(self, text: str, kind: str) -> _Private:
        is_word = len(text) < _LONG or not (kind == "secret" or _DISTINCT.fullmatch(text))
        kept = placeholders_with(text, [*self.private.values()])
        forms = Forms.of(text, is_word=is_word, is_encoded=kept is None)
        return _Private(kind, self._placeholder(text, kind), forms, kept)

    def _value(self, value: JSON, *, is_secret: bool = False) -> JSON:
        if isinstance(value, Mapping):
            return self._object(cast("Mapping[str, JSON]", value), is_secret=is_secret)
        if isinstance(value, list):
            return self._list(cast("list[object]", value), is_secret=is_secret)
        if isinstance(value, str):
            return self._secret(value) if is_secret else self._text(value, 0)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._number(value, is_secret=is_secret)
        return value

    def _number(self, value: float, *, is_secret: bool) -> JSON:
        text = str(value)
        is_private = is_secret or text in self._everywhere or any(each.is_in(text) for each in self._private)
        if is_private or (isinstance(value, int) and _ACCOUNT.fullmatch(text)):
            return 0
        return value

    def _list(self, values: list[JSON], *, is_secret: bool) -> JSON:
        """Sanitize a list; in a list of pairs, and before something that is no word, a name may say: secret."""
        are_pairs = all(_is_pair(each) for each in values)
        found: list[JSON] = []
        for each in values:
            if are_pairs and _is_secret(each[0], each[1]):
                found.append([self._value(each[0]), self._value(each[1], is_secret=True)])
            else:
                found.append(self._value(each, is_secret=is_secret))
        if _is_pair(values) and _is_secret(values[0], None) and _DISTINCT.fullmatch(str(values[1])):
            found[1] = self._value(values[1], is_secret=True)
        return found

    def _object(self, value: Mapping[str, JSON], *, is_secret: bool) -> JSON:
        found: dict[str, JSON] = {}
        names = [each for key, each in value.items() if key.casefold() in NAME_KEYS and isinstance(each, str)]
        is_named = any(_is_secret(name, None) for name in names)
        for key, each in value.items():
            own = name = self._text(key, 0)
            for number in count(2):
                if name not in found:
                    break
                name = f"{own} ({number})"
            if _DROPPED_KEY.fullmatch(key) and isinstance(each, str | list):
                found[name] = "" if isinstance(each, str) else []
            else:
                is_key = _NUMBERED.sub("", key) not in self._placeholders and _is_secret(key, each)
                inside = is_secret or is_key or (is_named and key.casefold() in VALUE_KEYS)
                found[name] = self._value(each, is_secret=inside)
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
            text = self._json_inside(text)
        for private in self._private:
            text = private.replace(text)
        if depth < _DEPTH:
            text = replace_decoded(text, lambda inner: self._text(inner, depth + 1))
        for private in self._private:
            text = private.forms.replace_encoded(text, self._instead(private.placeholder, text))
        if self._everywhere and self._found:
            text = self._found.sub(lambda found: self._everywhere[found[0].casefold()], text)
        for rule in RULES:
            text = rule.pattern.sub(self._replace(rule), text)
        return text

    def _json(self, text: str, depth: int) -> str | None:
        """Return a text that is JSON of more than one value or a text, sanitized inside; None: it is none."""
        bare = text.strip()
        if bare[:1] not in {"{", "[", '"'}:
            return None
        try:
            value: JSON = json.loads(bare)
        except (ValueError, RecursionError):
            return None
        if isinstance(value, str):
            cleaned: JSON = self._text(value, depth + 1)
        else:
            cleaned = self._value(value)
        return text if cleaned == value else text.replace(bare, _written(cleaned, bare))

    def _json_inside(self, text: str) -> str:
        """Sanitize the objects and lists in JSON that stand in the middle of a text."""
        parts, done = list[str](), 0
        for begin in [found.start() for found in re.finditer(r"\{\s*\"|\[\s*[\[{\"]", text)][:_INSIDE]:
            if begin < done:
                continue
            try:
                value, end = json.JSONDecoder().raw_decode(text, begin)
            except (ValueError, RecursionError):
                continue
            if (cleaned := self._value(value)) != value:
                parts += text[done:begin], _written(cleaned, text[begin:end])
                done = end
        return "".join([*parts, text[done:]])

    def _replace(self, rule: TextRule) -> Callable[[re.Match[str]], str]:
        def replace(found: re.Match[str]) -> str:
            group = "it" if "it" in rule.pattern.groupindex else 0
            text, (begin, end) = found[group], found.span(group)
            if text in self._placeholders or text in PUBLIC or not fits(rule.kind, text):
                return found[0]
            instead = self._placeholder(text, rule.kind)
            if text == found.string:
                instead = self._instead(instead, text)
            if _DISTINCT.fullmatch(text):
                self._everywhere[text.casefold()] = instead
            return found.string[found.start() : begin] + instead + found.string[end : found.end()]

        return replace

    def _instead(self, placeholder: str, text: str) -> str:
        """Return the placeholder for a whole text: in base64 if that is, for a reader may decode it."""
        if not _ENCODED.fullmatch(text) or _HEX.fullmatch(text):
            return placeholder
        encoded = base64.b64encode(placeholder.encode()).decode()
        self._placeholders.add(encoded)
        return encoded

    def _placeholder(self, text: str, kind: str) -> str:
        if text not in self._known:
            self._counts[kind] += 1
            self._known[text] = placeholder(kind, self._counts[kind])
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


def _written(value: JSON, before: str) -> str:
    return json.dumps(value, separators=None if '": ' in before else (",", ":"), ensure_ascii=False)


def _is_pair(value: JSON) -> bool:
    """Return whether a value is a list of a name and something else."""
    if not isinstance(value, list):
        return False
    items = cast("list[object]", value)
    return len(items) == _PAIR and isinstance(items[0], str) and _NAME.fullmatch(items[0]) is not None


def _is_secret(key: str, value: JSON) -> bool:
    return bool(SECRET_KEY.search(key) or (SECRET_LEAF.search(key) and not isinstance(value, Mapping)))


def _as_json(value: object) -> JSON:
    """Return a value as JSON; what is none becomes a text that says so, and bytes may hold what is private."""
    if isinstance(value, str):
        written = value.encode("utf-8", "backslashreplace").decode()
        return str(value) if written == value else f"(not valid Unicode) {written}"
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        found: dict[str, JSON] = {}
        for key, each in cast("Mapping[object, object]", value).items():
            found[_as_json(key if isinstance(key, str) else str(key))] = _as_json(each)
        return found
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in cast("Sequence[object]", value)]
    if isinstance(value, bytes):
        return f"(not JSON: {len(value)} bytes)"
    return f"(not JSON: {type(value).__name__})"
