"""The history of an execution for a recording, and what no recording may tell of an engine."""

from __future__ import annotations

import json
from collections.abc import Mapping

from mcp_workflows.adapter import JSON
from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.connection import Place
from mcp_workflows_temporal.settings import LOCAL, TemporalSettings


async def record(frontend: Frontend, handle: Handle) -> JSON:
    """Return the history of the current run as `temporal workflow show --output json` prints it."""
    history = await frontend.client.get_workflow_handle(handle.workflow_id).fetch_history()
    return json.loads(history.to_json())


def private(settings: TemporalSettings, place: Place) -> Mapping[str, str]:
    """Return the address, the namespace and the credentials; see `Records.private`."""
    host = place.address.rpartition(":")[0]
    secrets = [settings.api_key, *settings.grpc_meta.values()]
    return {
        **({} if host in LOCAL else {place.address: "address", host: "host"}),
        **({} if place.namespace == "default" else {place.namespace: "namespace"}),
        **{secret.get_secret_value(): "secret" for secret in secrets if secret is not None},
    }
