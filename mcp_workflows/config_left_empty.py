"""Settings that keep somebody out or something safe, and were left empty.

What is left empty in YAML is left out. Of these that would open something, and nobody would see it: all that stood
below was commented out, perhaps. So it is a mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

from mcp_workflows.config_source import Where

_ANY: Final = "*"
_SETTINGS: Final[tuple[Where, ...]] = (("tools", _ANY), ("rules", _ANY), ("defaults",), ("include", _ANY, "defaults"))
_OF_TOOLS: Final[Mapping[Where, str]] = {
    ("allow",): "whoever is let in may call it; `{}` is nobody",
    ("allow", _ANY, "issuer"): "any issuer will do",
    ("allow", _ANY, _ANY, "issuer"): "any issuer will do",
    ("confirm",): "nobody is asked",
}
_OTHERS: Final[Mapping[Where, str]] = {
    ("server", "auth"): "whoever reaches the server is let in",
    ("server", "auth", _ANY, _ANY, "may_grant"): "all scopes of its tokens count; `[]` is none",
    ("server", "authorizer"): "only the rules of the tools are asked",
    ("store", "encryption"): "arguments and results are in the file as they are",
    ("audit",): "nothing is put on record",
    ("rules",): "there are none",
    ("rules", _ANY): "there is none",
}
GUARDS: Final[Mapping[Where, str]] = {
    **_OTHERS,
    **{(*place, *setting): without for place in _SETTINGS for setting, without in _OF_TOOLS.items()},
}


def left_empty(data: Mapping[str, Any]) -> Iterator[tuple[Where, str]]:
    """Where one of them is written with nothing behind it, and what is wrong with that.

    `data` is workflows.yaml, or a file that it includes.
    """
    for pattern, without in GUARDS.items():
        for where in _nulls(data, pattern, ()):
            yield where, f"is left empty, and without it {without}: say what it shall be, or take it out"


def _nulls(value: object, pattern: Where, where: Where) -> Iterator[Where]:
    if not pattern:
        yield from () if value is not None else (where,)
        return
    for key, inner in _members(value):
        if pattern[0] in (_ANY, key):
            yield from _nulls(inner, pattern[1:], (*where, key))


def _members(value: object) -> Iterable[tuple[str | int, object]]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).items()
    return enumerate(cast("list[object]", value)) if isinstance(value, list) else ()
