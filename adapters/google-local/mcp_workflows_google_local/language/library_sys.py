"""sys.*, time.*, uuid.*, events.*: the clock, the log, waiting, and callbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language.errors import Tag, failure
from mcp_workflows_google_local.language.functions import Effect, Function, need

YEAR: Final = 366 * 24 * 3600  # seconds: the longest possible wait of an execution
CALLBACK_TIMEOUT: Final = 43_200  # seconds
SEVERITIES: Final = ("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY")
CALLBACK_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")


def _seconds(function: str, name: str, value: JSON) -> JSON:
    need(function, "number", **{name: value})
    if not 0 <= value <= YEAR:
        raise failure(Tag.VALUE, f"{function}: {name} must be from 0 seconds to a year")
    return value


def _parsed(function: str, value: JSON) -> datetime:
    need(function, "string", value=value)
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise failure(Tag.VALUE, f"{function}: the time is not ISO 8601, as 2026-01-31T12:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _parse(value: JSON) -> JSON:
    return _parsed("time.parse", value).timestamp()


def _format(seconds: JSON, timezone: JSON = "UTC") -> JSON:
    need("time.format", "number", seconds=seconds)
    need("time.format", "string", timezone=timezone)
    try:
        text = datetime.fromtimestamp(seconds, ZoneInfo(timezone)).isoformat()
    except (ZoneInfoNotFoundError, ValueError, OverflowError, OSError):
        raise failure(Tag.VALUE, "time.format: unknown time zone, or a time that no calendar has") from None
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


async def _now(effect: Effect, arguments: Mapping[str, JSON]) -> JSON:
    return await effect("sys.now", {})


async def _uuid(effect: Effect, arguments: Mapping[str, JSON]) -> JSON:
    return await effect("uuid.generate", {})


async def _sleep(effect: Effect, arguments: Mapping[str, JSON]) -> JSON:
    return await effect("sys.sleep", {"seconds": _seconds("sys.sleep", "seconds", arguments["seconds"])})


async def _sleep_until(effect: Effect, arguments: Mapping[str, JSON]) -> JSON:
    until = _parsed("sys.sleep_until", arguments["time"]).timestamp()
    left = max(0.0, until - await effect("sys.now", {}))
    return await effect("sys.sleep", {"seconds": _seconds("sys.sleep_until", "time", left)})


async def _log(effect: Effect, arguments: Mapping[str, JSON]) -> JSON:
    severity = arguments.get("severity", "DEFAULT")
    if severity not in SEVERITIES:
        raise failure(Tag.VALUE, f"sys.log: severity must be one of {', '.join(SEVERITIES)}")
    given = {name: arguments[name] for name in ("text", "json", "data") if name in arguments}
    if len(given) != 1:
        raise failure(Tag.VALUE, "sys.log: give one of data, text and json")
    need("sys.log", "string", **{"text": given["text"]} if "text" in given else {})
    await effect("sys.log", {**given, "severity": severity})


async def _create(effect: Effect, arguments: Mapping[str, JSON]) -> JSON:
    method = arguments.get("http_callback_method", "POST")
    if method not in CALLBACK_METHODS:
        raise failure(Tag.VALUE, f"http_callback_method must be one of {', '.join(CALLBACK_METHODS)}")
    return await effect("events.create_callback_endpoint", {"http_callback_method": method})


async def _await(effect: Effect, arguments: Mapping[str, JSON]) -> JSON:
    need("events.await_callback", "map", callback=arguments["callback"])
    timeout = _seconds("events.await_callback", "timeout", arguments.get("timeout", CALLBACK_TIMEOUT))
    return await effect("events.await_callback", {"callback": arguments["callback"], "timeout": timeout})


GET_ENV: Final = "sys.get_env"  # the only one that reads the host's environment: the interpreter answers it

SYS: Final[Sequence[Function]] = (
    Function(name="events.await_callback", required=("callback",), optional=("timeout",), acting=_await, blocking=True),
    Function(name="events.create_callback_endpoint", optional=("http_callback_method",), acting=_create, blocking=True),
    Function(name=GET_ENV, required=("name",), optional=("default",)),
    Function(name="sys.log", optional=("data", "severity", "text", "json"), acting=_log, blocking=True),
    Function(name="sys.now", acting=_now),
    Function(name="sys.sleep", required=("seconds",), acting=_sleep, blocking=True),
    Function(name="sys.sleep_until", required=("time",), acting=_sleep_until, blocking=True),
    Function(name="time.format", required=("seconds",), optional=("timezone",), pure=_format),
    Function(name="time.parse", required=("value",), pure=_parse),
    Function(name="uuid.generate", acting=_uuid),
)


def environment(env: Mapping[str, str], arguments: Mapping[str, JSON]) -> JSON:
    """Return a variable of the environment, or the default, for sys.get_env.

    Raises:
        WorkflowError: KeyError, there is neither.
    """
    name = arguments["name"]
    need(GET_ENV, "string", name=name)
    if name not in env and "default" not in arguments:
        raise failure(Tag.KEY, f"sys.get_env: there is no environment variable {name}")
    return env.get(name, arguments.get("default"))
