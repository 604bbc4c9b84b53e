"""Deploys the workflows of the conformance fixtures; they do all their work themselves.

You would deploy with Terraform or `gcloud workflows deploy`: this is the same with the official client alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc.aio
from google.api_core.exceptions import AlreadyExists
from google.cloud.workflows_v1 import Workflow, WorkflowsAsyncClient
from google.cloud.workflows_v1.services.workflows.transports import WorkflowsGrpcAsyncIOTransport
from google.protobuf.field_mask_pb2 import FieldMask
from mcp_workflows_google.tooling.subworkflows import add_subworkflows

FOLDER = Path(__file__).parent
SUFFIX = ".workflow.yaml"
EMULATOR = os.environ.get("GOOGLE_WORKFLOWS_EMULATOR")  # a local engine instead of Google
PROJECT = os.environ.get("GOOGLE_CLOUD_PROJECT", "demo")
LOCATION = os.environ.get("GOOGLE_CLOUD_LOCATION", "us-central1")
ACCOUNT = os.environ.get("WORKFLOWS_SERVICE_ACCOUNT", f"local@{PROJECT}.iam.gserviceaccount.com")
SIDECAR = {
    "MCP_WORKFLOWS_URL": os.environ.get("MCP_WORKFLOWS_URL", "http://127.0.0.1:8931/engines/google"),
    "MCP_WORKFLOWS_AUDIENCE": os.environ.get("MCP_WORKFLOWS_AUDIENCE", "http://127.0.0.1:8931"),
}
SECONDS = 30.0  # of a call; what is deployed may take four times as long to be there


def client() -> Any:  # Any: its methods are typed in part only
    """On Google with the credentials that are found."""
    if not EMULATOR:
        return WorkflowsAsyncClient()
    return WorkflowsAsyncClient(transport=WorkflowsGrpcAsyncIOTransport(channel=grpc.aio.insecure_channel(EMULATOR)))


def sources() -> Mapping[str, str]:
    """The workflows of this folder, by name."""
    return {file.name.removesuffix(SUFFIX): file.read_text() for file in sorted(FOLDER.glob(f"*{SUFFIX}"))}


async def deploy(workflows: Any, name: str, source: str) -> None:
    """Create this workflow, or bring it up to date."""
    workflow = Workflow(
        name=workflows.workflow_path(PROJECT, LOCATION, name),
        source_contents=add_subworkflows(source),
        service_account=ACCOUNT,
        user_env_vars=SIDECAR,
    )
    try:
        parent = workflows.common_location_path(PROJECT, LOCATION)
        operation = await workflows.create_workflow(parent=parent, workflow=workflow, workflow_id=name, timeout=SECONDS)
    except AlreadyExists:
        mask = FieldMask(paths=["source_contents", "service_account", "user_env_vars"])
        operation = await workflows.update_workflow(workflow=workflow, update_mask=mask, timeout=SECONDS)
    await operation.result(timeout=4 * SECONDS)


async def main() -> None:
    """Deploy, then wait for SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with client() as workflows:
        for name, source in sources().items():
            await deploy(workflows, name, source)
    print("deployed; there is nothing else to do", flush=True)
    await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main())
