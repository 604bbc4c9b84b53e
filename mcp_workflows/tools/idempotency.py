"""Idempotency of calls: by the key that a client or its host sent, or by the same arguments within a window.

See `mcp-workflows docs retries`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON, digest
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.tools.dialogue import Dialogue
from mcp_workflows.tools.tool import AnyTool

SHORTEST_SECRET: Final = 32  # characters of a key that is all that tells its caller from others
_RESERVED: Final = "mcp-workflows:"  # prefix of keys that are made here, so that they never equal a client's key


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """The key of a call among those of the same owner and tool; without a key each call is its own."""

    key: str | None = None
    window: timedelta | None = None  # the key is of the arguments: it counts for that long
    since: datetime | None = None  # with a window: the time of the call's first question, before any task it started
    holds_at_engine: bool = True  # a call repeated with its key is the same order to an engine that dedupes by key


def key_of(own: str | None, host: Sequence[str] | None, arguments: JSON, principal: Principal) -> str | None:
    """Return the key of a call as it is stored: the key of its `host` with its place in `_meta`, or else its `own`.

    Raises:
        RequestError: the caller is anonymous, and the key is too short to be a secret.
    """
    if not principal.identified:
        return _escaped(_secret(own))
    return _escaped(own) if host is None else _of_host(host, arguments)


def with_key(dialogue: Dialogue, tool: AnyTool, principal: Principal, now: datetime) -> Dialogue:
    """Return the dialogue with a key or a start time, so that all its rounds are one call and start one execution."""
    if dialogue.key is not None or dialogue.since is not None:
        return dialogue
    if tool.dedupe is not None and principal.identified:
        return replace(dialogue, since=now)
    return replace(dialogue, key=secrets.token_hex(16))


def idempotency_of(
    tool: AnyTool, dialogue: Dialogue, arguments: Mapping[str, JSON], principal: Principal
) -> Idempotency:
    """Return the idempotency of a call whose arguments are complete."""
    if dialogue.key is not None:
        return Idempotency(key=dialogue.key, holds_at_engine=not tool.names_task)
    if tool.dedupe is None or not principal.identified:
        return Idempotency()
    key = f"{_RESERVED}same:{digest(arguments)}"
    return Idempotency(key=key, window=tool.dedupe, since=dialogue.since, holds_at_engine=False)


def _escaped(key: str | None) -> str | None:
    """Return the key, escaped if it begins with our own prefix."""
    return f"{_RESERVED}own:{key}" if key is not None and key.startswith(_RESERVED) else key


def _of_host(key: Sequence[str], arguments: JSON) -> str:
    """Return a host's key together with the arguments.

    The key was not made for us: a host that sends one number with several calls must be able to make them.
    """
    return f"{_RESERVED}host:{json.dumps([*key, digest(arguments)], separators=(',', ':'))}"


def _secret(key: str | None) -> str | None:
    if key is None or len(key) >= SHORTEST_SECRET:
        return key
    raise RequestError(
        INVALID_PARAMS,
        f"the idempotency key is too short: you are anonymous here, so whoever guesses the key gets the task; "
        f"send at least {SHORTEST_SECRET} characters that nobody can guess, or log in; nothing was started",
    )
