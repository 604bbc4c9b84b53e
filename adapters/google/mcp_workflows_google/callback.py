"""Validation of callback URLs: a workflow sends them, and our OAuth token goes there, so they are not trusted.

Source: https://cloud.google.com/workflows/docs/creating-callback-endpoints
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final

from mcp_workflows.errors import EngineRefused
from mcp_workflows_google.names import CALLBACK, ExecutionName

MAX_URL: Final = 2_048  # characters
GLOBAL: Final = "https://workflowexecutions.googleapis.com"
_URL: Final = re.compile(
    rf"(?P<origin>https?://[a-z0-9.-]+(?::[0-9]{{1,5}})?)/v1/(?P<execution>projects/[A-Za-z0-9._:/-]+)"
    rf"/callbacks?/(?P<id>{CALLBACK})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackPath:
    """A callback of an execution, and the project in its URL."""

    project: str  # from the URL; the caller checks that it is the execution's project
    id: str
    url: str = field(repr=False)


def check_callback(url: str, execution: ExecutionName, *, rest_url: str) -> CallbackPath:
    """Return the callback of a URL that is one of this execution, at Google or at the emulator.

    `rest_url` is the base URL of the API from the engine's settings, and is trusted. The project is not checked,
    because it has an id and a number.

    Raises:
        EngineRefused: it is not such a URL; the message does not contain it.
    """
    found = _URL.fullmatch(url) if len(url) <= MAX_URL else None
    if found is None:
        raise EngineRefused("callback_url is not the URL of a callback, as events.create_callback_endpoint makes them")
    emulator = rest_url.startswith("http://")
    if found["origin"] not in (_local(rest_url) if emulator else _googles(execution) | {rest_url}):
        raise EngineRefused(f"callback_url does not lead to {'the emulator' if emulator else 'Google'}")
    name = _named(found["execution"])
    if name is None or name.note_prefix != execution.note_prefix:
        raise EngineRefused("callback_url is a callback of another execution")
    known = url.replace(found["origin"], rest_url, 1) if emulator else url
    return CallbackPath(project=name.workflow.place.project, id=found["id"], url=known)


def _googles(execution: ExecutionName) -> frozenset[str]:
    return frozenset({GLOBAL, f"https://workflowexecutions.{execution.workflow.place.location}.rep.googleapis.com"})


def _local(rest_url: str) -> frozenset[str]:
    """Return the origins of the emulator; on this machine it has two names."""
    names = frozenset({"http://127.0.0.1", "http://localhost"})
    host, _, port = rest_url.rpartition(":")
    return frozenset({f"{name}:{port}" for name in names}) if host in names else frozenset({rest_url})


def _named(text: str) -> ExecutionName | None:
    try:
        return ExecutionName.parse(text)
    except EngineRefused:
        return None


def listed_callback(name: str, execution: ExecutionName, *, rest_url: str) -> CallbackPath | None:
    """Return the callback that `callbacks.list` names `.../callback/ID`; None if it is not this execution's.

    The form of the URL is documented; that its id is the one of the name is not.

    Source:
    https://cloud.google.com/workflows/docs/reference/executions/rest/v1/projects.locations.workflows.executions.callbacks/sendHttpCallback
    """
    parent, _, identifier = name.rpartition("/")
    found = _named(parent.removesuffix("/callback").removesuffix("/callbacks"))
    if found is None or found.note_prefix != execution.note_prefix or not re.fullmatch(CALLBACK, identifier, re.ASCII):
        return None
    place = replace(found.workflow.place, project=execution.workflow.place.project)
    own = replace(found, workflow=replace(found.workflow, place=place))
    return CallbackPath(project=place.project, id=identifier, url=f"{rest_url}/v1/{own.name}/callbacks/{identifier}")
