"""Redaction of texts from workflows: clients must see neither callback URLs nor tokens."""

from __future__ import annotations

import re
from typing import Any, Final, cast

from mcp_workflows.adapter import JSON

LONGEST: Final = 500  # characters of a text of unknown content
_WORD: Final = re.compile(r"[^\s\"'<>]+")  # a word that may contain a URL; matching takes linear time
_CALLBACK: Final = re.compile(r"/executions/[^/]+/callbacks?/")
_TOKEN: Final = re.compile(
    r"\bBearer\s+\S+|\bya29\.[\w.-]+|\beyJ[\w-]{8,512}\.[\w-]{1,8192}\.[\w-]*",  # the last one: a JWT
    re.IGNORECASE,
)


def redact(text: str | None) -> str:
    """Replace callback URLs and tokens in a text."""
    return _TOKEN.sub("[token]", _WORD.sub(_without_callback, text or ""))


def _without_callback(word: re.Match[str]) -> str:
    return "[callback URL]" if _CALLBACK.search(word[0]) else word[0]


def redact_json(value: JSON) -> JSON:
    """Redact all texts and names in JSON."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(name): redact_json(item) for name, item in cast("dict[str, Any]", value).items()}  # Any: JSON
    if isinstance(value, list):
        return [redact_json(item) for item in cast("list[object]", value)]
    return value


def shorten(text: str) -> str:
    """Truncate a long text."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
