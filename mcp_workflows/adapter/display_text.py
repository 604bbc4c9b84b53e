"""Texts, links, schemas and results from outside, made visible, bounded and harmless for people and models.

Engines, upstream servers and callers write these. The core passes all of them through this module: see
`engines.registry`. A value inside a sentence (an argument, an answer, a claim) is quoted, so that it cannot be mistaken
for part of the sentence. Sources: Unicode Standard Annex 9 (bidirectional text) and Technical Report 36 (security
considerations); MCP, elicitation, safe URL handling.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Any, Final, cast
from urllib.parse import urlsplit

MAX_VALUE: Final = 1000  # characters of one value; a longer one is cut, and its length is shown
MAX_TEXT: Final = 4000  # characters of a text with a trusted author: the configuration or a workflow
MAX_DESCRIPTION: Final = 10_000  # characters of a tool's description: every client gets it with every list
MAX_LINK: Final = 2048  # characters
MAX_DETAILS: Final = 8192  # characters of the details of a failure, as JSON
_MAX_META: Final = 16_384  # characters of the `_meta` of a result, as JSON
_MAX_DEPTH: Final = 100  # nested objects and lists
_MAX_NAME: Final = 200  # characters of a name or title
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))
_READ_AHEAD: Final = 4  # times the limit: so much of a text is read, because some characters may be removed
_MAX_MARKS: Final = 4  # combining marks on one letter; more would cover adjacent words

_IGNORABLE: Final = re.compile(  # invisible, but not in categories Cc and Cf: fillers, variation selectors
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
_JOINERS: Final = re.compile(  # Unicode Technical Standard 51 and Standard Annex 31: within other scripts, and in emoji
    "(?<=[^\x00-\x7f\u200b-\u200f])(?:[\u200c\u200d](?=[^\x00-\x7f\u200b-\u200f])|\ufe0f)"
)
_LINE_BREAKS: Final = re.compile("\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
_LINE_BREAK_SIGN: Final = " ⏎ "
_SPACES: Final = re.compile(r"\s+")
_MORE_THAN_A_LINE: Final = re.compile(r"\n{3,}")
_OPENING: Final = "\u00ab\u2039\u226a\u22d8\u2329\u276c\u276e\u2770\u27e8\u27ea\u2e1e\u3008\u300a\ufe3d\ufe64\uff1c"
_CLOSING: Final = "\u00bb\u203a\u226b\u22d9\u232a\u276d\u276f\u2771\u27e9\u27eb\u2e1f\u3009\u300b\ufe3e\ufe65\uff1e"
_ANGLES: Final = str.maketrans({**dict.fromkeys(_OPENING, "<"), **dict.fromkeys(_CLOSING, ">")})
_EXACT: Final = 2**53  # from here on a float represents several integers
_DOUBLED: Final = re.compile(r"([<>])(?=\1)")
_LINK: Final = re.compile(r"[!-~]+")
_NOT_IN_LINKS: Final = frozenset('\\<>"`')
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://[^/?#@]+([/?#].*)?", re.IGNORECASE)
_OPENED_BY_HOSTS: Final = frozenset(
    {"http", "https", "ws", "wss", "ftp", "file", "data", "javascript", "vbscript", "blob", "ui", "mcp-workflows"}
)
"""Schemes that a host or a browser would open, and our own; resources of an MCP server may use any others."""
_RESERVED: Final = ("mcp-workflows/", "io.modelcontextprotocol/", "ui/")  # in `_meta`: for us, MCP and pages
_EXACT_IN_SCHEMAS: Final = frozenset({"pattern", "$ref"})  # a cleaned text would change the rule
_TRACE: Final = re.compile(
    r"Traceback \(most recent call last\)"  # Python
    r"|\s+File \".*\", line \d+"
    r"|\s+at\s+\S"  # Java, JavaScript, .NET
    r"|\s*\.\.\. \d+ (?:more|common frames omitted)"
    r"|Caused by: "  # Java
    r"|\s+from \S+:\d+"  # Ruby
    r"|\S+\.rb:\d+:in "
    r"|goroutine \d+ \["  # Go
)
_TRACE_NAMES: Final = frozenset({"trace", "stack", "stacktrace", "traceback"})
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})
_ISOLATE, _END_OF_ISOLATE = "\u2068", "\u2069"  # FSI and PDI: they leave the order of the surrounding text unchanged


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
    """Return the known name that a misspelt one probably means, or None if none is close."""
    return next(iter(get_close_matches(name, list(known), n=1)), None)


def rough_duration(length: timedelta) -> str:
    """Return `45 s`, `12 min`, `3 h` or `4 d`, in the largest unit with a value of at least two."""
    seconds = max(0, round(length.total_seconds()))
    size, unit = next((each for each in _UNITS if seconds >= 2 * each[0]), (1, "s"))
    return f"{seconds // size} {unit}"


def is_blank(text: str) -> bool:
    """Return True if the text has no visible character."""
    return not cleaned(text).strip()


def quoted(value: Any, limit: int = MAX_VALUE) -> str:  # any JSON value
    """Return a value for use in a sentence: a number or boolean bare, anything else between « and ».

    The value itself never contains these signs or similar ones: `<` and `>` replace them. It is on one line (⏎ marks a
    break), and has at most `limit` characters; a longer one is cut, and its length is shown. Null is an empty text.
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
    """Return a JSON value with integral floats as integers: 12 instead of 12.0."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, Mapping):
        return {name: without_zero_fractions(each) for name, each in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [without_zero_fractions(each) for each in cast("list[object]", value)]
    return value


def number_text(value: float) -> str:
    """Return a number as people write it: 12, 2500000, 0.3."""
    whole = without_zero_fractions(value)
    return str(whole) if isinstance(whole, int) else f"{whole:g}"


def safe_link(url: object, *, local: bool = True) -> str | None:
    """Return a link that is safe to show people: https without credentials, or http on this machine if `local`.

    Return None for anything else, for a link longer than `MAX_LINK` characters, and for one with characters that
    browsers interpret differently.
    """
    if not isinstance(url, str) or len(url) > MAX_LINK or not _LINK.fullmatch(url) or _NOT_IN_LINKS & set(url):
        return None
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return None
    if not host or "@" in parts.netloc or "%" in parts.netloc:
        return None
    return url if parts.scheme == "https" or (parts.scheme == "http" and local and is_this_machine(host)) else None


def is_this_machine(host: str) -> bool:
    """Return True for `localhost` and loopback addresses."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def cleaned_schema(value: Any, name: str = "", depth: int = 0) -> Any:  # any JSON value
    """Return the schema of a tool or question with all texts and names cleaned, because models and people read them.

    Levels below `_MAX_DEPTH` are removed: `tools.json_schema` then refuses the schema.
    """
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, str):
        return value if name in _EXACT_IN_SCHEMAS else _as_visible(value)
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value).items()
        return {_as_visible(key, _MAX_NAME): cleaned_schema(each, key, depth + 1) for key, each in members}
    if isinstance(value, list):
        return [cleaned_schema(each, name, depth + 1) for each in cast("list[object]", value)]
    return value


def without_trace(text: str) -> str:
    """Return the text before a stack trace, or, for Python, where the error comes last, the text after it."""
    lines = text.strip().splitlines()
    begin = next((number for number, line in enumerate(lines) if _TRACE.match(line)), None)
    if begin is None:
        return text.strip()
    before = "\n".join(lines[:begin]).strip()
    after = [line for line in lines[begin:] if line.strip() and not line[0].isspace() and not _TRACE.match(line)]
    return before or (after[-1].strip() if after else "")


def cleaned_details(value: Any) -> Any:  # any JSON value
    """Return the details of a failure without stack traces and invisible characters; a note if they are too large."""
    found = _cleaned_detail(value)
    size = len(json.dumps(found, ensure_ascii=False, default=str))
    return found if size <= MAX_DETAILS else f"(left out: {size:,} characters, over the limit of {MAX_DETAILS:,})"


def _cleaned_detail(value: Any, depth: int = 0) -> Any:  # any JSON value
    if isinstance(value, str):
        return cleaned(without_trace(value), MAX_DETAILS)
    if isinstance(value, Mapping | list | tuple) and depth > _MAX_DEPTH:
        return None
    if isinstance(value, Mapping):
        return {
            cleaned(name, _MAX_NAME): _cleaned_detail(each, depth + 1)
            for name, each in cast("Mapping[str, Any]", value).items()
            if re.sub("[_-]", "", name).lower() not in _TRACE_NAMES
        }
    if isinstance(value, list | tuple):
        return [_cleaned_detail(each, depth + 1) for each in cast("Iterable[Any]", value)]
    return value


def _as_visible(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text unchanged if its only invisible characters are joiners of its script and emoji; else clean it."""
    plain = _JOINERS.sub("", text)
    return text if cleaned(plain, limit) == plain else cleaned(text, limit)


def cleaned_result(result: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """Return a `CallToolResult` without reserved `_meta` and unsafe links; its data and texts are unchanged."""
    return {**_without_reserved_meta(result), "content": [_cleaned_block(each) for each in result["content"]]}


def _cleaned_block(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a content block; an unsafe link becomes a text with its name."""
    found = _without_reserved_meta(block)
    if isinstance(icons := block.get("icons"), list):
        found["icons"] = [each for each in cast("Iterable[Any]", icons) if _is_icon(each)]
    if block.get("type") == "resource_link":
        found |= {key: cleaned(found[key]) for key in ("name", "title", "description") if found.get(key)}
        if not _is_resource_uri(block.get("uri")):
            return {"type": "text", "text": f"(left out: a link that is not https, {quoted(found.get('name'), 100)})"}
    if isinstance(resource := block.get("resource"), Mapping):
        found["resource"] = _without_reserved_meta(cast("Mapping[str, Any]", resource))
        if not _is_resource_uri(found["resource"].get("uri")):
            found["resource"]["uri"] = "urn:mcp-workflows:left-out"
    return found


def _is_icon(icon: object) -> bool:
    source = cast("Mapping[str, Any]", icon).get("src") if isinstance(icon, Mapping) else None
    return safe_link(source) is not None or (isinstance(source, str) and source.startswith("data:image/"))


def _is_resource_uri(uri: object) -> bool:
    """Return True for a safe link, or a resource name that no host opens by itself, such as `demo://report/1`."""
    if safe_link(uri) is not None:
        return True
    named = _SCHEME.fullmatch(uri) if isinstance(uri, str) and len(uri) <= MAX_LINK and _LINK.fullmatch(uri) else None
    return named is not None and named[1].lower() not in _OPENED_BY_HOSTS


def _without_reserved_meta(holder: Mapping[str, Any]) -> dict[str, Any]:
    meta = holder.get("_meta")
    if not isinstance(meta, Mapping):
        return dict(holder)
    members = cast("Mapping[str, Any]", meta).items()
    kept = {
        key: each
        for key, each in members
        if key != "ui" and not key.lower().startswith(_RESERVED) and key == cleaned(key, _MAX_NAME)
    }
    if len(json.dumps(kept)) > _MAX_META:
        kept = {}
    rest = {key: each for key, each in holder.items() if key != "_meta"}
    return {**rest, "_meta": kept} if kept else rest


def _on_one_line(text: str) -> str:
    marked = _LINE_BREAKS.sub(_LINE_BREAK_SIGN, text.strip())
    return _DOUBLED.sub(r"\1 ", _SPACES.sub(" ", _visible(marked).translate(_ANGLES))).strip()


def _isolated(text: str) -> str:
    """Return the text isolated in direction if it has right-to-left letters."""
    turned = any(unicodedata.bidirectional(letter) in _RIGHT_TO_LEFT for letter in text)
    return f"{_ISOLATE}{text}{_END_OF_ISOLATE}" if turned else text


def _visible(text: str) -> str:
    """Return the text without invisible characters, and with combining marks only on letters; line feeds stay."""
    found: list[str] = []
    marks = _MAX_MARKS  # on the previous letter; at the limit if there is none
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
