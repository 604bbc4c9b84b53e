"""Brings the order workflows into a project of Google's, or up to date, with the official client.

You would do it with Terraform, or with `gcloud workflows deploy`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc.aio
from google.api_core.exceptions import AlreadyExists
from google.cloud.workflows.executions_v1 import ExecutionsAsyncClient
from google.cloud.workflows.executions_v1.services.executions.transports import ExecutionsGrpcAsyncIOTransport
from google.cloud.workflows_v1 import Workflow, WorkflowsAsyncClient
from google.cloud.workflows_v1.services.workflows.transports import WorkflowsGrpcAsyncIOTransport
from google.protobuf.field_mask_pb2 import FieldMask
from mcp_workflows_google.tooling.subworkflows import add_subworkflows

FOLDER = Path(__file__).parent
EMULATOR = os.environ.get("GOOGLE_WORKFLOWS_EMULATOR")  # a local engine instead of Google
PROJECT = os.environ.get("GOOGLE_CLOUD_PROJECT", "demo")
LOCATION = os.environ.get("GOOGLE_CLOUD_LOCATION", "us-central1")
ACCOUNT = os.environ.get("WORKFLOWS_SERVICE_ACCOUNT", f"local@{PROJECT}.iam.gserviceaccount.com")
SECONDS = 30.0  # of a call; what is deployed may take four times as long to be there


def workflows() -> Any:  # Any: its methods are typed in part only
    """A client for workflows; on Google with the credentials that are found."""
    if not EMULATOR:
        return WorkflowsAsyncClient()
    return WorkflowsAsyncClient(transport=WorkflowsGrpcAsyncIOTransport(channel=grpc.aio.insecure_channel(EMULATOR)))


def executions() -> Any:
    """Likewise, for their executions."""
    if not EMULATOR:
        return ExecutionsAsyncClient()
    return ExecutionsAsyncClient(transport=ExecutionsGrpcAsyncIOTransport(channel=grpc.aio.insecure_channel(EMULATOR)))


async def deploy(client: Any, environment: Mapping[str, str]) -> None:
    """Every workflow of this folder, with this in its environment; running executions go on as they began."""
    for file in sorted(FOLDER.glob("*.workflow.yaml")):
        name = file.name.removesuffix(".workflow.yaml")
        workflow = Workflow(
            name=client.workflow_path(PROJECT, LOCATION, name),
            source_contents=add_subworkflows(file.read_text()),
            service_account=ACCOUNT,
            user_env_vars=dict(environment),
        )
        await _put(client, workflow, name)


async def _put(client: Any, workflow: Workflow, name: str) -> None:
    """Create it, or update it if it is there."""
    try:
        operation = await client.create_workflow(
            parent=client.common_location_path(PROJECT, LOCATION), workflow=workflow, workflow_id=name, timeout=SECONDS
        )
    except AlreadyExists:
        mask = FieldMask(paths=["source_contents", "service_account", "user_env_vars"])
        operation = await client.update_workflow(workflow=workflow, update_mask=mask, timeout=SECONDS)
    await operation.result(timeout=4 * SECONDS)
