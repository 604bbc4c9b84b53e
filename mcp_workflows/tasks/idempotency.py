"""Which calls are one call: the key that a client or its host sent, or the same arguments within a while.

See `mcp-workflows docs retries`.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON, digest
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.tasks.start import Window
from mcp_workflows.tools.dialogue import Dialogue
from mcp_workflows.tools.tool import Tool
from mcp_workflows.wire.commands import Call

logger = logging.getLogger(__name__)

SHORTEST_SECRET: Final = 32  # characters of a key that is all that tells its caller from others
_RESERVED: Final = "mcp-workflows:"  # what begins so is made here, so that keys from different places never meet


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """What makes a call the same as another one of the same owner and tool; nothing: each call is its own."""

    key: str | None = None
    window: Window | None = None  # the key is of the arguments: it counts for that long

    @property
    def start_key(self) -> str | None:
        """What names the execution too; an argument's digest does not, as it may come again after its window."""
        return None if self.window else self.key


def key_of(call: Call, principal: Principal) -> str | None:
    """The key of a call, as it is kept.

    Raises:
        RequestError: the caller is anonymous, and the key is too short to be a secret.
    """
    if not principal.identified:
        return _own(_secret(call.idempotency_key))
    if call.unusable_keys:
        logger.debug("a call of %s: no key can be made of %s in _meta", call.tool, ", ".join(call.unusable_keys))
    if call.host_key is not None:
        return _of_host(call)
    return _own(call.idempotency_key)


def opened(dialogue: Dialogue, tool: Tool, principal: Principal, now: datetime) -> Dialogue:
    """The dialogue as its first question goes out: from then on it is one call, and starts one execution."""
    if dialogue.key is not None or dialogue.since is not None:
        return dialogue
    if tool.dedupe is not None and principal.identified:
        return replace(dialogue, since=now)
    return replace(dialogue, key=secrets.token_hex(16))


def sameness(tool: Tool, dialogue: Dialogue, arguments: Mapping[str, JSON], principal: Principal) -> Same:
    """What counts for a call whose arguments are complete."""
    if dialogue.key is not None:
        return Same(key=dialogue.key)
    if tool.dedupe is None or not principal.identified:
        return Same()
    window = Window(length=tool.dedupe, since=dialogue.since)
    return Same(key=f"{_RESERVED}same:{digest(arguments)}", window=window)


def _own(key: str | None) -> str | None:
    """As it is; but for those that begin as the keys that are made here."""
    return f"{_RESERVED}own:{key}" if key is not None and key.startswith(_RESERVED) else key


def _of_host(call: Call) -> str:
    """A host's key with where it was found, and with the arguments.

    It was not made for us: a host that sends one number with several calls must be able to make them.
    """
    found = json.dumps([*(call.host_key or ()), digest(call.arguments)], separators=(",", ":"))
    return f"{_RESERVED}host:{found}"


def _secret(key: str | None) -> str | None:
    if key is None or len(key) >= SHORTEST_SECRET:
        return key
    raise RequestError(
        INVALID_PARAMS,
        f"the idempotency key is too short: you are anonymous here, so whoever guesses the key gets the task; "
        f"send at least {SHORTEST_SECRET} characters that nobody can guess, or log in; nothing was started",
    )
