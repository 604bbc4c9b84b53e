"""The same adapter as functions, without capabilities."""

from collections.abc import Mapping
from typing import Any

import httpx2
from pydantic import BaseModel, ConfigDict, Field

from mcp_workflows import from_functions
from mcp_workflows.adapter import Execution, Failure, InputRequest, Ref, Start, StartGuarantee, Status
from mcp_workflows.errors import ExecutionNotFound, StartConflict

APPROVAL = {"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]}


class WorkshopSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str = Field(description="The workshop's URL.")
    api_key: str = Field(repr=False, description="Its key for us.")


def connect(settings: WorkshopSettings) -> httpx2.Client:
    headers = {"authorization": f"Bearer {settings.api_key}"}
    return httpx2.Client(base_url=settings.address, headers=headers, timeout=5)


def start(workshop: httpx2.Client, start: Start) -> str:
    order: dict[str, Any] = {"product": start.workflow, "details": start.arguments[0] if start.arguments else {}}
    reply = workshop.post("/orders", json=order, headers={"idempotency-key": start.key})
    return reply.raise_for_status().json()["id"]


def describe(workshop: httpx2.Client, ref: Ref) -> Execution | Status:
    order = workshop.get(f"/orders/{ref.handle}").raise_for_status().json()
    match order["state"]:
        case "ready":
            return Execution(status=Status.SUCCEEDED, output=order["made"])
        case "rejected":
            return Execution(status=Status.FAILED, failure=Failure(text=order["reason"]))
        case "proofing":
            return Execution(status=Status.INPUT_REQUIRED, requests=dict(map(question, order["questions"].items())))
        case "withdrawn":
            return Status.CANCELLED
        case _:
            return Status.RUNNING


def question(asked: tuple[str, str]) -> tuple[str, InputRequest]:
    key, text = asked
    return key, InputRequest(method="elicitation/create", params={"message": text, "requestedSchema": APPROVAL})


def answer(workshop: httpx2.Client, ref: Ref, responses: Mapping[str, Any]) -> None:
    declined = {"approved": False}
    decisions = {key: response.get("content", declined) for key, response in responses.items()}
    workshop.post(f"/orders/{ref.handle}/decisions", json=decisions).raise_for_status()


def cancel(workshop: httpx2.Client, ref: Ref) -> None:
    workshop.post(f"/orders/{ref.handle}/withdrawal").raise_for_status()


WorkshopAdapter = from_functions(
    settings=WorkshopSettings,
    connect=connect,
    start=start,
    describe=describe,
    answer=answer,
    cancel=cancel,
    starts=StartGuarantee.KEYED,
    errors={409: StartConflict, 404: ExecutionNotFound},
)
