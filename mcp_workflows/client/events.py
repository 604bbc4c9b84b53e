"""Events of a server, polled and streamed, and the verifier for webhook receivers.

Source: MCP Events, see `wire.events`; https://www.standardwebhooks.com for signatures.
"""

from __future__ import annotations

import hmac
import json
import math
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

from mcp_workflows.client.requests import TaskRequests
from mcp_workflows.errors import ClientError, ForgedDelivery, StaleDelivery
from mcp_workflows.wire import events as wire
from mcp_workflows.wire.params import object_of

_SECONDS: Final = re.compile("[0-9]{1,15}")
SILENCE_SECONDS: Final = 60.0  # of a stream; the server sends keep-alives more often


class _Request(types.Request[dict[str, Any], str]):  # Any: JSON
    method: str
    params: dict[str, Any]


class _Answer(types.Result):
    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvents:
    """The events of one server, in every revision; `docs/use/events.md` lists their names and arguments.

    Every method raises `MCPError` for a refusal by the server, and `ServerUnreachable` if the server does not reply.
    """

    requests: TaskRequests = field(repr=False)
    waiting: set[anyio.Event] = field(repr=False)  # each is set when the server announces an event

    async def list(self) -> Sequence[Mapping[str, Any]]:
        """Return the available types of events."""
        found: Sequence[Mapping[str, Any]] = (await self._send(wire.Method.LIST, {}))["events"]
        return found

    async def poll(
        self, name: str, arguments: Mapping[str, Any] | None = None, cursor: str | None = None
    ) -> Mapping[str, Any]:
        """Return the `events` after a cursor and the next `cursor`; the first poll, without a cursor, returns no
        events.

        `hasMore`: poll again at once, otherwise after `nextPollMs`. `truncated`: earlier events are lost.
        """
        return await self._send(wire.Method.POLL, _wanted(name, arguments, cursor=cursor))

    async def stream(
        self, name: str, arguments: Mapping[str, Any] | None = None, cursor: str | None = None
    ) -> AsyncGenerator[Mapping[str, Any]]:
        """Yield each event after a cursor, or from now on; reconnect when the connection is lost.

        A later stream can continue from the `cursor` of an event; it may repeat events, with the same `eventId`. If an
        event is `truncated`, events before it are lost.
        """
        truncated = False
        while True:
            page = await self.poll(name, arguments, cursor)
            truncated |= page["truncated"]
            for left, event in zip(reversed(range(len(page["events"]))), page["events"], strict=True):
                yield {**event, "cursor": cursor if left else page["cursor"], "truncated": truncated}
                truncated = False
            cursor = page["cursor"]
            if not page["hasMore"]:
                await self._news(_wanted(name, arguments, cursor=cursor), page["nextPollMs"] / 1000)

    async def subscribe(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, url: str, secret: str
    ) -> Mapping[str, Any]:
        """Have events posted to a URL, signed with a secret (`whsec_...`); repeat this before `refreshBefore`."""
        delivery = {"mode": "webhook", "url": url, "secret": secret}
        return await self._send(wire.Method.SUBSCRIBE, _wanted(name, arguments, delivery=delivery))

    async def _news(self, wanted: dict[str, Any], pause: float) -> None:
        """Wait until the next poll is due. The stream only signals; no event is read from it."""
        told = anyio.Event()
        self.waiting.add(told)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._listen, wanted, pause, told)
                with anyio.move_on_after(SILENCE_SECONDS):
                    await told.wait()
                group.cancel_scope.cancel()
        finally:
            self.waiting.discard(told)

    async def _listen(self, wanted: dict[str, Any], pause: float, told: anyio.Event) -> None:
        request = _Request(method=wire.Method.STREAM.value, params=wanted)
        with suppress(MCPError):  # the next poll reports the error, or works without a stream
            await self.requests.session.send_request(request, _Answer)
        await anyio.sleep(pause)
        told.set()

    async def _send(self, method: wire.Method, params: dict[str, Any]) -> Mapping[str, Any]:
        answer = await self.requests.send(_Request(method=method.value, params=params), _Answer)
        return answer.model_extra or {}


def _wanted(name: str, arguments: Mapping[str, Any] | None, **more: Any) -> dict[str, Any]:  # Any: JSON
    return {"name": name, "arguments": dict(arguments or {}), **more}


def verify_webhook(secret: str, headers: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
    """Return the body of a delivery if it was recently signed with this secret.

    A receiver replies to the challenge, and stores the `eventId` of events, as an event can arrive twice:

    ```python
    async def hook(request: Request) -> Response:
        content = verify_webhook(SECRET, request.headers, await request.body())
        if content.get("type") == "verification":
            return JSONResponse({"challenge": content["challenge"]})
        return Response(status_code=204)
    ```

    Raises:
        ForgedDelivery: it was not signed with this secret.
        StaleDelivery: it was signed too long ago.
        ClientError: the secret is malformed, or the body is not JSON.
    """
    if wire.secret_bytes(secret) is None:
        raise ClientError(f"the secret is not {wire.SECRET_PREFIX} and base64 of 24 to 64 bytes")
    given = {name.lower(): value for name, value in headers.items()}
    name, seconds, signatures = (given.get(f"webhook-{each}", "") for each in ("id", "timestamp", "signature"))
    own = wire.signature(secret, name, seconds, body).encode()
    if True not in [hmac.compare_digest(own, each.encode(errors="replace")) for each in signatures.split()]:
        raise ForgedDelivery("the delivery is not signed with this secret")
    age = time.time() - float(seconds) if _SECONDS.fullmatch(seconds) else math.inf
    if abs(age) > wire.FRESH.total_seconds():
        raise StaleDelivery(f"the delivery is older than {wire.FRESH.total_seconds():g} s, or the clocks differ")
    try:
        content: Mapping[str, Any] = object_of(json.loads(body))
    except (ValueError, RecursionError):
        raise ClientError("the delivery is signed with this secret, but is not a JSON object") from None
    return content
