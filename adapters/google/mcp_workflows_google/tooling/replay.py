"""Looks at an execution as a recording has them, and the statuses that clients would have seen.

Google has no history of an execution, so each look keeps what GetExecution and ListCallbacks answered.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# Reason: the official client is typed in parts.

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from google.cloud.workflows.executions_v1 import Execution as Message
from google.protobuf.json_format import ParseError

from mcp_workflows.adapter import JSON, TERMINAL, Execution, Gate, Replayed, Status
from mcp_workflows.errors import ConfigError
from mcp_workflows_google.client import Client
from mcp_workflows_google.gates import read_rules
from mcp_workflows_google.input_requests import open_requests
from mcp_workflows_google.names import ExecutionName
from mcp_workflows_google.notes import utc_now
from mcp_workflows_google.outcome import ended_execution, running_execution, status_of
from mcp_workflows_google.resources import Callback, ExecutionResource, read_callback, read_execution
from mcp_workflows_google.settings import GoogleSettings

_EXPECTED: Final = "an object with a list of looks, as `mcp-workflows verify --record` writes it"
_Looks = Mapping[str, Any]  # Any: JSON


async def record(client: Client, name: ExecutionName, earlier: JSON) -> JSON:
    """Return the looks so far, and one more."""
    message = await client.message(name, full=True)
    execution = json.loads(Message.to_json(message, use_integers_for_enums=False))
    running = status_of(read_execution(message).state) not in TERMINAL
    callbacks = [_written(each) for each in await client.callbacks(name)] if running else []
    before = [] if earlier is None else cast("_Looks", earlier)["looks"]
    return {"looks": [*before, {"execution": execution, "callbacks": callbacks}]}


def _written(callback: Callback) -> JSON:
    """Return a callback as ListCallbacks answers it, without what has arrived there."""
    arrived: list[JSON] = [{} for _ in range(callback.payloads)]
    return {
        "name": callback.name,
        "method": callback.method,
        "waiters": str(callback.waiters),
        "availablePayloads": arrived,
    }


def private(settings: GoogleSettings) -> Mapping[str, str]:
    """Return the project and what else names a company; see `Records.private`."""
    texts = {
        settings.project: "project",
        settings.impersonate: "email",
        settings.credentials_file: "file",
        settings.endpoint: "host",
    }
    return {text: kind for text, kind in texts.items() if text}


def replay(history: JSON, gates: Mapping[str, Gate]) -> Sequence[Replayed]:
    """Return each change that a client would have seen. Questions that the workflow posted are not in a recording.

    Raises:
        ConfigError: this is no history of this adapter, or a gate is not valid.
    """
    if wrong := read_rules(gates)[1]:
        raise ConfigError("\n".join(wrong))
    return list(_changes(_looks(history), gates))


def _looks(history: JSON) -> Iterator[tuple[ExecutionResource, Sequence[Callback]]]:
    looks = cast("_Looks", history).get("looks") if isinstance(history, Mapping) else None
    if not isinstance(looks, list) or not looks:
        raise ConfigError(f"this is not a history of Google Workflows, {_EXPECTED}")
    for look in cast("list[_Looks]", looks):
        try:
            message: Any = Message.from_json(json.dumps(look["execution"]), ignore_unknown_fields=True)
            resource = read_execution(message)
            callbacks = [read_callback(each) for each in look.get("callbacks", ())]
        except (ParseError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"this is not a history of Google Workflows ({type(error).__name__})") from None
        yield resource, [each for each in callbacks if each is not None]


def _changes(
    looks: Iterator[tuple[ExecutionResource, Sequence[Callback]]], gates: Mapping[str, Gate]
) -> Iterator[Replayed]:
    last: Execution | None = None
    for number, (resource, callbacks) in enumerate(looks, 1):
        seen = _seen(resource, callbacks, gates)
        if seen != last:
            yield Replayed(event=str(number), execution=seen)
        if seen.terminal:
            return
        last = seen


def _seen(resource: ExecutionResource, callbacks: Sequence[Callback], gates: Mapping[str, Gate]) -> Execution:
    if status_of(resource.state) in TERMINAL:
        return ended_execution(resource)
    found, asked = running_execution(resource), open_requests({}, resource, callbacks, gates, now=utc_now())
    return replace(found, status=Status.INPUT_REQUIRED, requests=asked) if asked else found
