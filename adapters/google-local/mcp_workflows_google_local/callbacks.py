"""Callback endpoints of one execution, which receive requests for steps that wait."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language.errors import Tag, failure
from mcp_workflows_google_local.language.values import is_map
from mcp_workflows_google_local.store import Store

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")


class Delivery(IntEnum):
    """The HTTP status that answers a request to an endpoint."""

    TAKEN = 200
    GONE = 404  # no such endpoint, or the execution has ended
    WRONG_METHOD = 405
    BUSY = 429  # an earlier request is not processed yet


@dataclass(slots=True, kw_only=True)
class Endpoint:
    """One endpoint."""

    callback: str
    method: str
    payloads: list[JSON] = field(default_factory=list[JSON])
    waiters: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class Callbacks:
    """The endpoints of one execution; `url` is the URL of the execution on this server."""

    def __init__(self, store: Store, execution: str, url: str) -> None:
        self._store = store
        self._execution = execution
        self._url = f"{url}/callbacks"
        self._endpoints: dict[str, Endpoint] = {}
        for callback, method, payloads in store.callbacks(execution):
            self._endpoints[callback] = Endpoint(callback=callback, method=method, payloads=json.loads(payloads))

    def listed(self) -> Sequence[Endpoint]:
        """All endpoints in the order of their ids."""
        return [self._endpoints[callback] for callback in sorted(self._endpoints)]

    def create(self, method: str) -> Mapping[str, JSON]:
        """Return a new endpoint in the form for the workflow."""
        if method not in METHODS:
            raise failure(Tag.VALUE, f"http_callback_method must be one of {', '.join(METHODS)}, not {method!r}")
        endpoint = Endpoint(callback=f"{self._execution}_{uuid.uuid4()}", method=method)
        self._endpoints[endpoint.callback] = endpoint
        self._keep(endpoint, commit=False)  # stored with the journal's entry
        return {"url": f"{self._url}/{endpoint.callback}"}

    def deliver(self, callback: str, method: str, request: JSON) -> Delivery:
        """Store a request for an endpoint, durably."""
        endpoint = self._endpoints.get(callback)
        if endpoint is None:
            return Delivery.GONE
        if endpoint.method != method:
            return Delivery.WRONG_METHOD
        if endpoint.payloads:
            return Delivery.BUSY
        endpoint.payloads.append(request)
        self._keep(endpoint)
        endpoint.arrived.set()
        return Delivery.TAKEN

    async def take(self, callback: JSON, seconds: float) -> JSON:
        """Wait for the first unprocessed request at the endpoint; the next write marks it as processed."""
        endpoint = self._endpoint(callback)
        endpoint.waiters += 1
        try:
            async with asyncio.timeout(seconds):
                while not endpoint.payloads:
                    endpoint.arrived.clear()
                    await endpoint.arrived.wait()
        except TimeoutError:
            raise failure(Tag.TIMEOUT, "Timeout while waiting for callback") from None
        finally:
            endpoint.waiters -= 1
        request = endpoint.payloads.pop(0)
        self._keep(endpoint, commit=False)
        return request

    def _endpoint(self, callback: Any) -> Endpoint:
        url = callback.get("url") if is_map(callback) else None
        prefix, _, last = str(url).rpartition("/")
        if _path(prefix) != _path(self._url) or last not in self._endpoints:
            raise failure(Tag.VALUE, "callback is not a callback endpoint that this execution created")
        return self._endpoints[last]

    def _keep(self, endpoint: Endpoint, *, commit: bool = True) -> None:
        payloads = json.dumps(endpoint.payloads)
        self._store.put_callback(self._execution, endpoint.callback, endpoint.method, payloads, commit=commit)


def _path(url: str) -> str:
    """Return the URL without the host, which may change at a restart."""
    return url.partition("://")[2].partition("/")[2]
