"""An endpoint of a client for webhooks: a real HTTP server that keeps what it gets and answers as the test says."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcp_workflows.units import utc_now
from tests.support.served import serving
from tests.support.waiting import TIMEOUT

Replies = Callable[[Mapping[str, Any]], Awaitable[Response]]


class _Verifier(Webhook):
    """The verifier of the library, with a clock that a test moves."""

    def __init__(self, secret: str, clock: Callable[[], datetime]) -> None:
        super().__init__(secret)
        self._clock = clock

    def _Webhook__verify_timestamp(self, timestamp_header: str) -> datetime:  # noqa: N802  # the library's private name
        sent = datetime.fromtimestamp(int(timestamp_header), UTC)
        if abs(self._clock() - sent) > timedelta(minutes=5):
            raise WebhookVerificationError("not fresh")
        return sent


def new_secret(size: int = 32) -> str:
    """Return a secret as clients make them."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(size)).decode()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """One request that the endpoint got; its signature was good."""

    headers: Mapping[str, str]
    body: Mapping[str, Any]
    answered: int


@dataclass(slots=True, kw_only=True)
class Endpoint:
    """What the endpoint got, and its answers from now on: a status, or a function."""

    url: str = ""
    secret: str = field(default_factory=new_secret)
    status: int = 200
    reply: Replies | None = None
    echoes: bool = True
    clock: Callable[[], datetime] = utc_now
    got: list[Got] = field(default_factory=list[Got])
    forged: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    _news: anyio.Event = field(default_factory=anyio.Event)

    async def take(self, request: Request) -> Response:
        """Take a request, as a receiver of Standard Webhooks does."""
        body, headers = await request.body(), dict(request.headers)
        try:
            content = _Verifier(self.secret, self.clock).verify(body, headers)
        except WebhookVerificationError:
            self.forged.append(headers)
            return Response(status_code=401)
        answer = await self._answer(content)
        self.got.append(Got(headers=headers, body=content, answered=answer.status_code))
        news, self._news = self._news, anyio.Event()
        news.set()
        return answer

    async def _answer(self, content: Mapping[str, Any]) -> Response:
        if content.get("type") == "verification":
            return JSONResponse({"challenge": content["challenge"] if self.echoes else "no"})
        return Response(status_code=self.status) if self.reply is None else await self.reply(content)

    def events(self, *answered: int) -> list[Mapping[str, Any]]:
        """Return the events that were answered with one of these statuses, by default 200."""
        return [each.body for each in self.got if "eventId" in each.body and each.answered in (answered or (200,))]

    async def until(self, is_so: Callable[[], bool], within: float = TIMEOUT) -> None:
        """Wait until the endpoint has got what makes this true."""
        with anyio.fail_after(within):
            while not is_so():
                await self._news.wait()


@asynccontextmanager
async def endpoint(**settings: Any) -> AsyncGenerator[Endpoint]:
    """Serve an endpoint on a free port of this machine."""
    found = Endpoint(**settings)
    async with serving(Starlette(routes=[Route("/{path:path}", found.take, methods=["POST"])])) as url:
        found.url = url.removesuffix("/mcp") + "/hook"
        yield found


def body_text(got: Got) -> str:
    """Return all that a request said, to search for what it must not say."""
    return json.dumps([got.body, dict(got.headers)])
