"""AcmeAdapter: an order of the workshop is an execution; its product is the workflow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import httpx2
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mcp_workflows.adapter import (
    JSON,
    Adapter,
    Execution,
    Failure,
    Finding,
    InputRequest,
    Progress,
    Ref,
    Start,
    StartGuarantee,
    Status,
)
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound, StartConflict


class AcmeSettings(BaseModel):
    """What `engines:` may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str = Field(description="The workshop's URL.")
    api_key: str = Field(repr=False, description="Its key for us.")
    timeout_seconds: float = Field(default=3, gt=0, description="How long one call may take.")


class AcmeOptions(BaseModel):
    """What a tool may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    proofs: list[str] = Field(default_factory=list[str], description="Sides of which a person approves the proof.")


STATES: Mapping[str, Status] = {
    "proofing": Status.INPUT_REQUIRED,
    "engraving": Status.RUNNING,
    "ready": Status.SUCCEEDED,
    "rejected": Status.FAILED,
    "withdrawn": Status.CANCELLED,
}
ERRORS: Mapping[int, Callable[[str], EngineError]] = {
    401: EngineRefused,
    403: EngineRefused,
    404: ExecutionNotFound,
    409: StartConflict,
    422: partial(EngineRefused, final=True),
}
"""What the workshop's answers mean. All others (429, 500, 502, ...) say nothing about what was done."""

ONE_OBJECT = TypeAdapter(tuple[dict[str, Any]])  # what a tool without `args` of its own sends
SCHEMA = {"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]}


class AcmeTooling:
    """Checks that the workshop makes what the tools order."""

    def __init__(self, products: Callable[[], Awaitable[Sequence[str]]]) -> None:
        self._products = products

    async def check_engine(self) -> Finding:
        """Whether the workshop answers and knows our key."""
        try:
            return Finding(ok=True, text=f"it makes {', '.join(await self._products())}")
        except EngineError as error:
            return Finding(ok=False, text=str(error), hint="check address and api_key")

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Whether it makes this product."""
        found = await self.check_engine()
        if found.ok and workflow not in await self._products():
            return Finding(ok=False, text=f"it does not make {workflow!r}", hint=found.text)
        return found


class AcmeAdapter(Adapter):
    """Acme's workshop over HTTP."""

    Settings: ClassVar[type[BaseModel]] = AcmeSettings
    Options: ClassVar[type[BaseModel]] = AcmeOptions
    starts: ClassVar[StartGuarantee] = StartGuarantee.KEYED  # POST /orders heeds Idempotency-Key, for ever

    def __init__(self, settings: AcmeSettings) -> None:
        self._settings = settings
        self.tooling = AcmeTooling(self._products)

    async def __aenter__(self) -> Self:
        """Open the client; it connects with the first call."""
        headers = {"authorization": f"Bearer {self._settings.api_key}"}
        self._client = httpx2.AsyncClient(headers=headers, timeout=self._settings.timeout_seconds)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self._client.aclose()

    async def start(self, start: Start) -> str:
        """Place the order; its number is the handle."""
        try:
            (details,) = ONE_OBJECT.validate_python(start.arguments)
        except ValidationError:
            raise EngineRefused("an order takes one argument, an object: see the tool's args", final=True) from None
        order = {"product": start.workflow, "details": {**start.options, **details}}
        taken = await self._call("POST", "/orders", order, {"idempotency-key": start.key})
        return str(taken["id"])

    async def describe(self, ref: Ref) -> Execution:
        """One GET."""
        return _execution(await self._call("GET", f"/orders/{ref.handle}"), self._settings.address)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Count a declined question as not approved; the workshop ignores what it did not ask."""
        decisions = {
            key: response.get("content", {}) if response.get("action") == "accept" else {"approved": False}
            for key, response in responses.items()
        }
        await self._call("POST", f"/orders/{ref.handle}/decisions", decisions)

    async def cancel(self, ref: Ref) -> None:
        """Withdraw it; the workshop leaves what has ended as it is."""
        await self._call("POST", f"/orders/{ref.handle}/withdrawal", {})

    async def _products(self) -> Sequence[str]:
        products: Sequence[str] = await self._call("GET", "/products")
        return products

    async def _call(
        self, method: str, path: str, body: JSON = None, headers: Mapping[str, str] | None = None
    ) -> Any:  # Any: the JSON that the workshop documents
        try:
            reply = await self._client.request(method, self._settings.address + path, json=body, headers=headers)
        except httpx2.ConnectError:
            raise EngineUnavailable(f"the workshop at {self._settings.address} cannot be reached", sent=False) from None
        except httpx2.TransportError as error:
            raise EngineUnavailable(f"the workshop gave no answer ({type(error).__name__})") from None
        if reply.is_success:
            return reply.json()
        if reply.status_code not in ERRORS:
            raise EngineUnavailable(f"the workshop answered {reply.status_code}")
        raise ERRORS[reply.status_code](f"the workshop says: {reply.json()['error']}")


def _execution(order: Any, address: str) -> Execution:  # Any: see `_call`
    status, (value, total) = STATES[order["state"]], order["progress"]
    return Execution(
        status=status,
        message=order.get("reason", order["state"]),
        progress=Progress(value=value, total=total) if status is Status.RUNNING and total else None,
        requests={
            key: InputRequest(method="elicitation/create", params={"message": text, "requestedSchema": SCHEMA})
            for key, text in order["questions"].items()
        },
        output=order.get("made"),
        failure=Failure(text=order["reason"], kind="Rejected") if status is Status.FAILED else None,
        execution_id=order["id"],
        url=f"{address}/orders/{order['id']}",
    )
