"""Texts that people read: without invisible characters, bounded, and with values set apart from the words around.

A person decides by such a text. A value in it (an argument, an answer, a claim) may come from a model or a stranger, so
it must not look like a part of the sentence. Source: Unicode Standard Annex 9 (bidirectional text) and Technical Report
36 (security considerations).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final, cast

MAX_VALUE: Final = 1000  # characters of one value; a longer one is cut, with its length
MAX_TEXT: Final = 4000  # characters of a text whose author is trusted: of the configuration, or of a workflow
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))
_READ_AHEAD: Final = 4  # times the bound: so much of a text is read, since some of it may be left out
_MAX_MARKS: Final = 4  # combining marks on one letter; more would cover the words around it

_IGNORABLE: Final = re.compile(  # invisible, though of other categories than Cc and Cf: fillers, variation selectors
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
_LINE_BREAKS: Final = re.compile("\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
_LINE_BREAK_SIGN: Final = " ⏎ "
_SPACES: Final = re.compile(r"\s+")
_MORE_THAN_A_LINE: Final = re.compile(r"\n{3,}")
_OPENING: Final = "\u00ab\u2039\u226a\u22d8\u2329\u276c\u276e\u2770\u27e8\u27ea\u2e1e\u3008\u300a\ufe3d\ufe64\uff1c"
_CLOSING: Final = "\u00bb\u203a\u226b\u22d9\u232a\u276d\u276f\u2771\u27e9\u27eb\u2e1f\u3009\u300b\ufe3e\ufe65\uff1e"
_ANGLES: Final = str.maketrans({**dict.fromkeys(_OPENING, "<"), **dict.fromkeys(_CLOSING, ">")})
_EXACT: Final = 2**53  # from there on a float stands for several whole numbers
_DOUBLED: Final = re.compile(r"([<>])(?=\1)")
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})
_ISOLATE, _END_OF_ISOLATE = "\u2068", "\u2069"  # FSI and PDI: the order of the text outside stays as it is


def cleaned(text: str, limit: int = MAX_TEXT) -> str:
    """Return a trusted text without control, format and other invisible characters; line breaks stay.

    At most `limit` characters are kept; a longer text ends with an ellipsis.
    """
    if text.isascii() and text.isprintable() and len(text) <= limit:
        return text
    lines = _LINE_BREAKS.sub("\n", text[: _READ_AHEAD * limit])
    found = _MORE_THAN_A_LINE.sub("\n\n", _visible(lines))
    return found if len(found) <= limit and len(text) <= _READ_AHEAD * limit else f"{found[: limit - 1]}…"


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one probably means; None if none is close."""
    return next(iter(get_close_matches(name, list(known), n=1)), None)


def rough_duration(length: timedelta) -> str:
    """Return `45 s`, `12 min`, `3 h` or `4 d`: in the largest unit of which there are at least two."""
    seconds = max(0, round(length.total_seconds()))
    size, unit = next((each for each in _UNITS if seconds >= 2 * each[0]), (1, "s"))
    return f"{seconds // size} {unit}"


def is_blank(text: str) -> bool:
    """True if nothing of it can be seen."""
    return not cleaned(text).strip()


def quoted(value: Any, limit: int = MAX_VALUE) -> str:  # any JSON value
    """Return a value as it stands in a sentence: a number or boolean bare, anything else between « and ».

    No value holds these signs or signs that look like them: `<` and `>` stand in their place. A value is on one line (⏎
    marks a break), and has at most `limit` characters; a longer one is cut, with its length. Null is nothing.
    """
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(without_zero_fractions(value), ensure_ascii=False)
    shown = _on_one_line(text[: _READ_AHEAD * limit])
    cut = len(shown) > limit or len(text) > _READ_AHEAD * limit
    shown = f"{shown[:limit]}…" if cut else shown
    if isinstance(value, str | list | dict):
        shown = f"«{_isolated(shown)}»"
    return f"{shown} (cut: {len(text):,} characters)" if cut else shown


def without_zero_fractions(value: Any) -> Any:  # any JSON values
    """Return a JSON value with each whole number written as one: 12 in the place of 12.0."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, Mapping):
        return {name: without_zero_fractions(each) for name, each in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [without_zero_fractions(each) for each in cast("list[object]", value)]
    return value


def number_text(value: float) -> str:
    """Return a number as a person writes it: 12, 2500000, 0.3."""
    whole = without_zero_fractions(value)
    return str(whole) if isinstance(whole, int) else f"{whole:g}"


def _on_one_line(text: str) -> str:
    marked = _LINE_BREAKS.sub(_LINE_BREAK_SIGN, text.strip())
    return _DOUBLED.sub(r"\1 ", _SPACES.sub(" ", _visible(marked).translate(_ANGLES))).strip()


def _isolated(text: str) -> str:
    """Return the text in a direction of its own, if it has letters that are read from right to left."""
    turned = any(unicodedata.bidirectional(letter) in _RIGHT_TO_LEFT for letter in text)
    return f"{_ISOLATE}{text}{_END_OF_ISOLATE}" if turned else text


def _visible(text: str) -> str:
    """Return the text without invisible characters, and with combining marks only on letters; line feeds stay."""
    found: list[str] = []
    marks = _MAX_MARKS  # on the letter before; none is kept where there is no letter
    for letter in _IGNORABLE.sub("", text):
        category = unicodedata.category(letter)
        if category in ("Mn", "Me"):
            marks += 1
            if marks <= _MAX_MARKS:
                found.append(letter)
            continue
        if letter == "\n" or category == "Zs" or letter == "\t":
            found.append("\n" if letter == "\n" else " ")
        elif category in ("Cs", "Co"):
            found.append("\ufffd")
        elif category not in ("Cc", "Cf", "Zl", "Zp"):
            found.append(letter)
        else:
            continue
        marks = 0 if category[0] in "LNM" else _MAX_MARKS
    return "".join(found)
