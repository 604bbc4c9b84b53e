"""The CreateExecution request, labelled with the key. Google does not deduplicate, so it is never sent twice.

Source:
https://cloud.google.com/workflows/docs/reference/executions/rest/v1/projects.locations.workflows.executions/create
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.errors import EngineRefused
from mcp_workflows_google.names import (
    KEY_LABEL,
    MORE_LABEL,
    OWNER_LABEL,
    TOOL_LABEL,
    TRACE_LABEL,
    Place,
    WorkflowName,
    label,
)

MAX_ARGUMENT: Final = 32 * 1024  # bytes of UTF-8
_LABEL: Final = re.compile(r"[a-z0-9_-]{1,63}")
_KNOWN: Final = frozenset({"tool", "owner", "principal", "issuer", "client", "traceparent", "tracestate", "baggage"})
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_LABEL: Final = re.compile(r"[^a-z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """A start as a request of the API."""

    workflow: WorkflowName
    argument: str = field(repr=False)  # canonical JSON
    labels: Mapping[str, str]


def build_request(start: Start, place: Place) -> StartRequest:
    """Return the request of a start.

    Raises:
        EngineRefused: the name of the workflow or the argument is invalid.
    """
    return StartRequest(
        workflow=WorkflowName.parse(start.workflow, place),
        argument=encode_argument(start.arguments),
        labels=labels(start),
    )


def labels(start: Start) -> Mapping[str, str]:
    """Return the labels: the key; for people also the tool, the owner, the trace and the tool's `on_behalf_of`.

    Characters that labels do not permit become dashes.
    """
    tool, owner = start.context.get("tool"), start.context.get("owner")
    named = {TOOL_LABEL: _NO_LABEL.sub("-", tool.lower())[:63]} if tool else {}
    owned = {OWNER_LABEL: label_value(owner)} if owner else {}
    more = {f"{MORE_LABEL}{key}": label_value(text) for key, text in start.context.items() if key not in _KNOWN}
    trace = start.context.get("traceparent", "")
    traced = {TRACE_LABEL: trace} if _TRACE.fullmatch(trace) else {}
    return {KEY_LABEL: label(start.key), **named, **owned, **more, **traced}


def label_value(text: str) -> str:
    """Return a text as the value of a label; an invalid one gets a digest, so that no two are the same."""
    if _LABEL.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{_NO_LABEL.sub('-', text.lower())[: 63 - 9]}-{digest}"


def encode_argument(arguments: JSON) -> str:
    """Return the argument of an execution as canonical JSON: an empty object if there is none, as null is no map.

    Raises:
        EngineRefused: there are several arguments, they are not JSON, or too large.
    """
    positional = cast("Sequence[JSON]", arguments) if isinstance(arguments, list) else [arguments]
    if len(positional) > 1:
        raise EngineRefused("a workflow takes one argument: write send: {...} instead of a list in args", final=True)
    try:
        text = json.dumps(
            positional[0] if positional else {},
            ensure_ascii=False,
            allow_nan=False,
            sort_keys=True,
            separators=(",", ":"),
        )
        size = len(text.encode())
    except (ValueError, TypeError, RecursionError) as error:  # half a surrogate pair is a ValueError too
        raise EngineRefused(f"the argument is no JSON that can be sent ({type(error).__name__})", final=True) from None
    if size > MAX_ARGUMENT:
        raise EngineRefused(
            f"the argument has {size:,} bytes, and Google Cloud Workflows takes at most {MAX_ARGUMENT:,}: pass a "
            "reference to it, such as the name of an object in Cloud Storage",
            final=True,
        )
    return text
