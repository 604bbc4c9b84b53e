"""The current time, and durations as the configuration writes them: 500ms, 30s, 15m, 12h, 7d or 2w."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue

utc_now = partial(datetime.now, UTC)
"""The current time, in UTC."""

MAX_TTL = timedelta(days=3650)

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*$", re.ASCII)
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}


def parse_duration(value: object) -> object:
    """Convert `30s`, `15m`, `12h`, `7d`, `2w` to a timedelta; leave anything else for pydantic to check."""
    if not isinstance(value, str):
        return value
    match = _DURATION.match(value)
    if not match:
        raise ValueError("a duration is a number and a unit: 500ms, 30s, 15m, 12h, 7d or 2w")
    try:
        return float(match[1]) * _UNITS[match[2]]
    except OverflowError:
        raise ValueError(f"at most {MAX_TTL.days}d") from None


def write_duration(value: timedelta) -> str:
    """Write a duration as people do: 90d, 500ms."""
    unit = next(unit for unit in ("d", "h", "m", "s", "ms") if not value % _UNITS[unit] or unit == "ms")
    return f"{value // _UNITS[unit]}{unit}"


def _write_duration(value: timedelta) -> str:
    return f"{value.total_seconds():f}".rstrip("0").rstrip(".") + "s"


def _only_sensible(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be longer than 0")
    if value > MAX_TTL:
        raise ValueError(f"at most {MAX_TTL.days}d")
    return value


DURATION_SCHEMA: JsonSchemaValue = {
    "type": "string",
    "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d|w)\s*$",
    "examples": ["30s", "7d"],
}
Duration = Annotated[
    timedelta,
    Field(strict=True),
    BeforeValidator(lambda value: _only_sensible(value) if isinstance(value, timedelta) else value),
    BeforeValidator(parse_duration),  # the last validator runs first
    PlainSerializer(_write_duration),
    WithJsonSchema(DURATION_SCHEMA),
]
