"""A host that does with Events what OpenAI documents of ChatGPT, and no more: webhooks, no tasks, no poll, no stream.

It takes `initialize` of 2025-11-25 or `server/discover`, looks at `capabilities.events` alone, and offers its model the
types that have a webhook. Its receiver echoes a challenge, tells events apart by subscription and `eventId`, and takes
other bodies without a look.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.clients.client_matrix import MODERN
from tests.support.client_2025 import session
from tests.support.endpoint import Endpoint
from tests.support.served import Reply, peer

DAY: Final = 86_400_000  # ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host, connected to one server."""

    capabilities: Mapping[str, Any]
    send: Callable[[str, Mapping[str, Any]], Awaitable[Reply]]

    async def offered(self) -> Sequence[str]:
        """Return the types of events that the model is told of."""
        assert "events" in self.capabilities, self.capabilities
        listed = (await self.send("events/list", {})).result["events"]
        return [each["name"] for each in listed if "webhook" in each["delivery"]]

    async def call(self, tool: str, **arguments: Any) -> Mapping[str, Any]:
        """Call a tool as a host without tasks does."""
        return (await self.send("tools/call", {"name": tool, "arguments": arguments})).result

    async def watch(self, receiver: Endpoint, name: str, **arguments: Any) -> Mapping[str, Any]:
        """Subscribe, or refresh what was subscribed to."""
        delivery = {"mode": "webhook", "url": receiver.url, "secret": receiver.secret}
        wanted = {"name": name, "arguments": arguments, "delivery": delivery, "cursor": None, "ttlMs": DAY}
        return (await self.send("events/subscribe", wanted)).result

    async def forget(self, receiver: Endpoint, name: str, **arguments: Any) -> Reply:
        """End a subscription."""
        wanted = {"name": name, "arguments": arguments, "delivery": {"mode": "webhook", "url": receiver.url}}
        return await self.send("events/unsubscribe", wanted)


@asynccontextmanager
async def host(url: str, era: str) -> AsyncGenerator[Host]:
    """Connect to a server in this revision."""
    if era == MODERN:
        async with peer(url, capabilities={}) as client:
            found = (await client.send("server/discover")).result
            yield Host(capabilities=found["capabilities"], send=client.send)
    else:
        async with session(url, capabilities={}) as client:
            yield Host(capabilities=client.capabilities, send=client.request)
