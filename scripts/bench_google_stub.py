"""A counting stub of Google's Executions API: `python -m scripts.bench_google_stub PORT`, on core 1.

It speaks gRPC as Google does, as far as who follows executions needs it. Beside that, `/bench.Control/Tell` says what
its executions do next, and `/bench.Control/Report` what was asked. It is fast, so that what is measured is who asks.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Reason: grpc and protobuf's classes have no types.

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.cloud.workflows.executions_v1 import types

from scripts.bench_rounds import pin

LATENCY: Final = 0.02  # seconds to Google and back
WORKFLOW: Final = "projects/demo/locations/us-central1/workflows/parked"
STEP: Final = "packing"
_STATE: Final = re.compile(r'state="(\w+)"')
_LABEL: Final = re.compile(r'labels\.([\w-]+)="([\w-]*)"')
_SERVICE: Final = "google.cloud.workflows.executions.v1.Executions"

Answer: TypeAlias = Callable[[bytes], Awaitable[bytes]]


class LostError(Exception):
    """The reply gets lost on its way; what was asked for is done."""


@dataclass(slots=True, kw_only=True)
class Held:
    """One execution."""

    row: Any  # a message, with what BASIC shows  # Any: protobuf's classes have no types
    listed: float = 0.0  # since when lists show it (monotonic)
    told: float = field(default_factory=time.monotonic)  # when anybody was last told that it runs
    argument: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def full(self) -> Any:
        """With all that is known of it."""
        found = types.Execution.pb()()
        found.CopyFrom(self.row)
        found.argument = self.argument
        found.labels.update(self.labels)
        found.status.current_steps.add(routine="main", step=STEP)
        if found.state == types.Execution.State.SUCCEEDED:
            found.result = '{"total": 1}'
        return found


class Stub:
    """Executions that run until they are told to end, and who asked what and when."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []  # API and time (monotonic)
        self._held: dict[str, Held] = {}
        self._lag = 0.0  # seconds until lists show what was created
        self._lose = 0  # replies to CreateExecution that get lost

    def answers(self) -> Mapping[str, Mapping[str, Answer]]:
        """By service and method."""
        return {
            _SERVICE: {"CreateExecution": self._create, "GetExecution": self._get, "ListExecutions": self._list},
            "bench.Control": {"Tell": self._tell, "Report": self._report},
        }

    async def _create(self, request: bytes) -> bytes:
        await self._asked("CreateExecution")
        asked = types.CreateExecutionRequest.pb().FromString(request)
        held = self._add(f"{asked.parent}/executions/{uuid.uuid4()}")
        held.argument, held.labels = asked.execution.argument, dict(asked.execution.labels)
        held.listed = time.monotonic() + self._lag
        if self._lose:
            self._lose -= 1
            raise LostError
        return _bytes(held.full)

    async def _get(self, request: bytes) -> bytes:
        await self._asked("GetExecution")
        asked = types.GetExecutionRequest.pb().FromString(request)
        held = self._held[asked.name]
        held.told = time.monotonic()
        return _bytes(held.row if asked.view == types.ExecutionView.BASIC else held.full)

    async def _list(self, request: bytes) -> bytes:
        """Newest first."""
        await self._asked("ListExecutions")
        asked = types.ListExecutionsRequest.pb().FromString(request)
        rows, first, now = self._matching(asked.filter), int(asked.page_token or 0), time.monotonic()
        page = rows[first : first + (asked.page_size or 100)]
        for held in page:
            held.told = now
        more = str(first + len(page)) if first + len(page) < len(rows) else ""
        full = asked.view == types.ExecutionView.FULL
        executions = [held.full if full else held.row for held in page]
        return _bytes(types.ListExecutionsResponse.pb()(executions=executions, next_page_token=more))

    def _matching(self, wanted: str) -> Sequence[Held]:
        state, label = _STATE.search(wanted), _LABEL.search(wanted)
        number = types.Execution.State[state[1]] if state else None
        now = time.monotonic()
        return [
            held
            for held in reversed(self._held.values())
            if (number is None or held.row.state == number)
            and (label is None or held.labels.get(label[1]) == label[2])
            and held.listed <= now
        ]

    async def _asked(self, what: str) -> None:
        self.calls.append((what, time.monotonic()))
        await asyncio.sleep(LATENCY)

    def _add(self, name: str) -> Held:
        row = types.Execution.pb()(name=name, state=types.Execution.State.ACTIVE)
        row.start_time.GetCurrentTime()
        held = self._held[name] = Held(row=row)
        return held

    async def _tell(self, request: bytes) -> bytes:
        orders = json.loads(request)
        for number in range(orders.get("seed", 0)):
            self._add(f"{WORKFLOW}/executions/order-{number}")
        for name in orders.get("end", ()):
            self._held[name].row.state = types.Execution.State.SUCCEEDED
            self._held[name].row.end_time.GetCurrentTime()
        if orders.get("forget"):
            self.calls.clear()
        self._lose, self._lag = orders.get("lose", self._lose), orders.get("lag", self._lag)
        return json.dumps(list(self._held)).encode()

    async def _report(self, _: bytes) -> bytes:
        now = time.monotonic()
        running = [held for held in self._held.values() if held.row.state == types.Execution.State.ACTIVE]
        return json.dumps({"calls": self.calls, "ages": [now - held.told for held in running]}).encode()


def _bytes(message: Any) -> bytes:
    found: bytes = message.SerializeToString()
    return found


def _handler(answer: Answer) -> Any:
    async def handle(request: bytes, context: Any) -> bytes:
        try:
            return await answer(request)
        except LostError:
            return await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")  # never returns

    return grpc.unary_unary_rpc_method_handler(handle)


async def serve(port: int) -> None:
    """For ever."""
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    for service, methods in Stub().answers().items():
        handlers = {name: _handler(answer) for name, answer in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    """Serve on core 1."""
    pin(1)
    asyncio.run(serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
