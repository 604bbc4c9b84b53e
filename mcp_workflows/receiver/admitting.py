"""Around the SDK's own look at tokens: what a proxy says of people, "try again later", and which scopes are needed."""

from __future__ import annotations

from typing import Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_workflows.access.authn.settings import Owner
from mcp_workflows.errors import IssuerUnavailable, TokenRefused
from mcp_workflows.receiver.admission import Admission, peer_now, principal_of, proxied_now

_LATER: Final = {"Retry-After": "5"}


class Admitting:
    """ASGI middleware right outside the SDK's authentication: proxies, 503 and challenges.

    Both serve `/mcp` alone, so a token that is sent to another path is never examined.
    """

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        peer = scope.get("client")
        came_from = peer_now.set(peer[0] if peer else None)
        try:
            await self._serve(scope, receive, send)
        finally:
            peer_now.reset(came_from)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            identity = self._admission.proxied(scope)
        except TokenRefused as error:
            self._admission.deny(str(error))
            identity = None
        passed = scope if identity is None else self._admission.with_word(scope)
        set_to = proxied_now.set(identity)
        try:
            await self._app(passed, receive, _Challenging(self._admission, passed, send))
        except IssuerUnavailable:
            body = {"error": "temporarily_unavailable", "error_description": "try again later"}
            await JSONResponse(body, status_code=503, headers=_LATER)(scope, receive, send)
        finally:
            proxied_now.reset(set_to)


class _Challenging:
    """`send`, which completes the challenge of a 401 or 403, and tells of the latter."""

    def __init__(self, admission: Admission, scope: Scope, send: Send) -> None:
        self._admission, self._scope, self._send = admission, scope, send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] in {401, 403}:
            headers = MutableHeaders(scope=message)
            if (found := headers.get("www-authenticate")) is not None:
                headers["www-authenticate"] = self._admission.challenge(found)
                user = self._scope.get("user")
                if message["status"] == 403 and isinstance(user, AuthenticatedUser):
                    self._admission.deny("a required scope is missing", principal_of(user.access_token, Owner.CLIENT))
        await self._send(message)
