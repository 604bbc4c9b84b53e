"""The preparation of a call, in one pass and without side effects: answers, sizes, schema, templates and keys."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from mcp_workflows.access import Principal
from mcp_workflows.access.limit_settings import MAX_JSON_VALUES, Limits
from mcp_workflows.adapter import JSON, Gate, InputRequest, digest
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.tools.dialogue import Confirmation, Declined, Dialogue, confirmation, questions, still_to_ask, take
from mcp_workflows.tools.json_schema import check_size
from mcp_workflows.tools.tool import AnyTool, all_labels

SHORTEST_SECRET: Final = 32  # characters of a key that alone identifies its caller
_RESERVED: Final = "mcp-workflows:"  # prefix of keys made here, so that they never equal a client's key


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """The key of a call, unique per owner and tool; without a key each call is separate."""

    key: str | None = None
    window: timedelta | None = None  # the arguments are the key, valid for this time
    since: datetime | None = None  # with a window: the time of the call's first question, before any task it started
    holds_at_engine: bool = True  # a repeated call with its key is the same request for an engine that dedupes by key


def key_of(own: str | None, host: Sequence[str] | None, arguments: JSON, principal: Principal) -> str | None:
    """Return the key of a call as stored: the `host` key with its place in `_meta`, or else the call's `own` key.

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
    if tool.dedupe_window is not None and principal.identified:
        return replace(dialogue, since=now)
    return replace(dialogue, key=secrets.token_hex(16))


def idempotency_of(
    tool: AnyTool, dialogue: Dialogue, arguments: Mapping[str, JSON], principal: Principal
) -> Idempotency:
    """Return the idempotency of a call whose arguments are complete."""
    if dialogue.key is not None:
        return Idempotency(key=dialogue.key, holds_at_engine=not tool.names_task)
    if tool.dedupe_window is None or not principal.identified:
        return Idempotency()
    key = f"{_RESERVED}same:{digest(arguments)}"
    return Idempotency(key=key, window=tool.dedupe_window, since=dialogue.since, holds_at_engine=False)


def _escaped(key: str | None) -> str | None:
    """Return the key, escaped if it begins with our prefix."""
    return f"{_RESERVED}own:{key}" if key is not None and key.startswith(_RESERVED) else key


def _of_host(key: Sequence[str], arguments: JSON) -> str:
    """Return a host's key together with the arguments.

    The key was not made for us: a host may send one number with several calls.
    """
    return f"{_RESERVED}host:{json.dumps([*key, digest(arguments)], separators=(',', ':'))}"


def _secret(key: str | None) -> str | None:
    if key is None or len(key) >= SHORTEST_SECRET:
        return key
    raise RequestError(
        INVALID_PARAMS,
        "the idempotency key is too short: you are anonymous here, so anybody who guesses the key gets the task; send "
        f"at least {SHORTEST_SECRET} characters that nobody can guess, or log in; nothing was started",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReady:
    """A call that cannot start, and the reason; if there are questions, their answers are missing."""

    reason: str  # with questions: the names of the missing arguments
    dialogue: Dialogue
    requests: Mapping[str, InputRequest] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The templates of a tool, filled in for one call."""

    input: Any  # any JSON value
    options: Mapping[str, Any]  # any JSON values
    gates: Mapping[str, Gate]
    context: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A call that is ready to start, once it is authorized and confirmed."""

    arguments: Mapping[str, JSON]
    fingerprint: str  # of the arguments
    filled: Filled
    same: Idempotency
    dialogue: Dialogue
    confirmation: Confirmation | None
    approval: InputRequest | None  # required from another person before the start


Preparation: TypeAlias = Prepared | NotReady


def prepare(
    tool: AnyTool,
    given: Mapping[str, JSON],
    responses: Mapping[str, JSON],
    dialogue: Dialogue,
    *,
    principal: Principal,
    limits: Limits,
    task_id: str,
) -> Preparation:
    """Prepare a call from its arguments and the responses to its dialogue so far.

    Raises:
        LimitReached: the arguments are too large.
        MappingError: a template does not work on these arguments.
        RequestError: a response does not fit its question.
    """
    taken = take(tool, responses, dialogue)
    if isinstance(taken, Declined):
        return NotReady(reason=f"{taken.name}: answered with {taken.action}; nothing was started", dialogue=dialogue)
    arguments = {**given, **taken.arguments}
    asking = still_to_ask(tool, arguments, taken)
    check_size(f"Arguments of {tool.name}", arguments, limits.max_arguments, MAX_JSON_VALUES)
    to_come: frozenset[str] = frozenset()
    if asking:
        to_come = frozenset(name for question in asking for name in tool.ask[question].answers(question))
    if wrong := tool.complaints(arguments, to_be_asked=to_come):
        return NotReady(reason=f"Wrong arguments for {tool.name}: " + "; ".join(wrong), dialogue=taken)
    scope: Mapping[str, JSON] = {"args": arguments, **principal.scope}
    if asking:
        missing = ", ".join(sorted(to_come))
        return NotReady(reason=missing, requests=questions(tool, asking, scope), dialogue=taken)
    task_scope = {**scope, "task": {"id": task_id}}
    return Prepared(
        arguments=arguments,
        fingerprint=digest(arguments),
        same=idempotency_of(tool, taken, arguments, principal),
        filled=fill_templates(tool, task_scope, principal),
        dialogue=taken,
        confirmation=confirmation(tool, scope),
        approval=None if tool.approval is None else tool.approval.request(scope, tool.name),
    )


def fill_templates(tool: AnyTool, scope: Mapping[str, JSON], principal: Principal) -> Filled:
    """Return the templates of a tool, filled in for one task.

    Raises:
        MappingError: a template does not work on these arguments.
    """
    return Filled(
        input=tool.map(scope),
        options=tool.frozen_options(scope),
        gates=tool.frozen_gates(scope),
        context=all_labels(tool, principal, scope),
    )
