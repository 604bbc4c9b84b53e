"""The rules by which the sanitizer recognizes a private text that nobody has named to it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Final

from mcp_workflows.adapter.redaction import SECRET_RULES, TextRule

SECRET_LEAF: Final = re.compile(
    r"(?:^|[^A-Za-z])(?i:auth|bearer|pin|pass)(?![A-Za-z])|[a-z0-9](?:Auth|Bearer|Pin|Pass)(?![a-z])"
)
"""Keys whose own value is secret, but not what is below an object there."""

NAME_KEYS: Final = frozenset({"name", "key", "header", "parameter", "variable", "field"})
VALUE_KEYS: Final = frozenset({"value", "values", "val", "default"})
"""The keys, in lower case, of an object that is a name and a value."""


def _rule(kind: str, pattern: str) -> TextRule:
    return TextRule(kind, re.compile(pattern))


_HOSTS: Final = r"internal|local|corp|lan|intranet|amazonaws\.com|windows\.net|azure\.com|tmprl\.cloud|temporal\.io"
_DOMAINS: Final = r"(?:co|com|org|ac|gov)\.(?:uk|jp|au|nz|za|br|in)|com|net|org|gov|edu"  # of hosts of two labels
_COUNTRIES: Final = (
    r"io|dev|cloud|app|ai|eu|de|uk|fr|ch|nl|se|es|pl|jp|cn|au|ca|us|tech|systems"  # of three, or a digit
)
_FOLDERS: Final = r"tmp|var|root|opt|srv|mnt|data|work|private|usr|etc|run|Volumes|Library|app(?!/rest\b)"
RULES: Final[Sequence[TextRule]] = (
    *SECRET_RULES,
    _rule(
        "email", r"(?<![\w.+/-])[\w.+-]+(?:@|%(?:25)*40|\\+u0040)[\w-]+(?:\.[\w-]+)*"
    ),  # also PID@HOST, the identity of a Temporal worker
    _rule("host", r"(?<=://)(?:[^/\s@\"'<>]+@)?(?P<it>\[[0-9a-fA-F:.]+\]|[\w.-]+)"),
    _rule("host", r"(?<![\w.@/-])(?P<it>(?:[\w-]+\.)+[a-zA-Z]{2,}):\d{2,5}\b"),
    _rule("host", rf"(?<![\w.@/-])(?:[\w-]+\.)+(?:{_HOSTS})\b"),
    _rule(
        "host",
        rf"(?<![\w.@/\\${{-])(?:(?:[\w-]+\.)+(?:{_DOMAINS})|(?:[\w-]+\.){{2,}}(?:{_COUNTRIES})"
        rf"|(?=[\w-]*\d)[\w-]+\.(?:{_COUNTRIES}))(?![\w(\[-]|\.\w|\s*\}}\}})",
    ),
    _rule("account", r"\barn:[\w-]+:[\w-]*:[\w-]*:(?P<it>\d{12})\b"),
    _rule("account", r"(?<![A-Za-z0-9.])(?<![0-9a-fA-F]{4}-)\d{12}(?![A-Za-z0-9]|\.\d)"),  # not the end of a UUID
    _rule("subscription", r"(?i:/subscriptions/)(?P<it>[0-9a-fA-F-]{36})"),
    _rule("project", r"\bprojects/(?P<it>(?!-(?![\w:.-]))[\w:.-]*\w)(?![\w{$])"),
    _rule("path", rf"(?<![\w.-])/(?:{_FOLDERS})/[\w.@+/-]*[\w@+-]"),
    _rule("path", r"(?<![\w])[A-Za-z]:(?:\\|/(?!/))(?!\\*[Uu]sers[\\/])[^\s\"'<>|:*?,;]+"),
    _rule("user", r"(?:/Users/|\\Users\\+)(?P<it>[\w.-]+(?: [\w.-]+){1,2})(?=[/\\\"']|$)"),
    _rule("user", r"(?i:/home/|/users/|\\users\\+)(?P<it>[\w.-]+)"),
    _rule("user", r"(?i:[?&](?:user(?:_?name)?|login|e?mail|owner|uid)=)(?P<it>[^&\s#\"'<>{}$]+)"),
    _rule("ip", r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"),
    _rule("ip", r"(?<![\w:.])(?=[0-9a-fA-F]*:[0-9a-fA-F]*:)[0-9a-fA-F:]{3,39}(?![\w:.])"),
    _rule("opaque", r"(?<![\w+-])(?=[\w+-]*[a-z])(?=[\w+-]*[A-Z])(?=[\w+-]*\d)[\w+-]{32,}={0,2}"),
    _rule("opaque", r"(?<![\w+/])(?=[\w+/]*[a-z])(?=[\w+/]*[A-Z])(?=[\w+/]*\d)[A-Za-z0-9+/]{40,}={0,2}"),
    _rule("opaque", r"(?<![A-Za-z0-9])(?:[0-9a-f]{32,}|[0-9A-F]{32,})(?![A-Za-z0-9])"),
)
"""The rules, in the order in which they are applied; what one has replaced, a later one leaves alone."""

PUBLIC: Final = frozenset(
    {
        "json-schema.org",
        "example.com",
        "type.googleapis.com",
        "127.0.0.1",
        "localhost",
        "0.0.0.0",  # noqa: S104  # not bound to
        "[::1]",
        "::1",
    }
)
FORMS: Final[Mapping[str, str]] = {
    "account": "{:012d}",
    "email": "user-{}@example.com",
    "host": "host-{}.example",
    "path": "/path-{}",
    "ip": "192.0.2.{}",
    "subscription": "00000000-0000-0000-0000-{:012d}",
}
"""The placeholder of a kind, by the number of the text; others are `kind-1`."""


def placeholder(kind: str, number: int) -> str:
    """Return the placeholder of a text, the one with this number among those of its kind."""
    return FORMS.get(kind, f"{kind}-{{}}").format(number)


def placeholders_with(text: str, kinds: Sequence[str]) -> re.Pattern[str] | None:
    """Return a pattern for the placeholders in which this text occurs by itself; None: there are none."""
    found = list[str]()
    for kind in sorted({*kinds, *(rule.kind for rule in RULES)}):
        shape = placeholder(kind, 0)
        if text.casefold() in shape.casefold():
            start, _, end = shape.rpartition("0")
            found.append(rf"{re.escape(start)}\d+{re.escape(end)}")
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(found)})(?![A-Za-z0-9])", re.IGNORECASE) if found else None


def fits(kind: str, text: str) -> bool:
    """Return whether a match is what its pattern takes it for."""
    if kind != "ip":
        return True
    try:
        return not ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False
