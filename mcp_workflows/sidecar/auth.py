"""Authentication over HTTP: the token verifier of `access` in the hooks of the SDK.

The SDK calls `Authenticator.verify_token` for each bearer token, replies with 401 and 403, and binds sessions to
identities. `AuthMiddleware` adds trusted proxies, 503 for an unavailable issuer, and complete challenges.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, TokenVerifier
from mcp.server.auth.routes import cors_middleware
from mcp.server.auth.settings import AuthSettings as SdkSettings
from pydantic import AnyHttpUrl
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_workflows.access import Principal
from mcp_workflows.access.audit import Audit, Event, record_of, silent
from mcp_workflows.access.authn.identity import Identity
from mcp_workflows.access.authn.settings import AuthSettings, Owner
from mcp_workflows.access.authn.verifier import Verifier, verifier
from mcp_workflows.access.rate_limits import network_of
from mcp_workflows.errors import AccessError, IssuerUnavailable, TokenRefused
from mcp_workflows.receiver.context import Admitted, principal_of

_RETRY_LATER: Final = {"Retry-After": "5"}

logger = logging.getLogger(__name__)

_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"

_proxied_identity: ContextVar[Identity | None] = ContextVar("mcp_workflows_proxied", default=None)
_peer: ContextVar[str | None] = ContextVar("mcp_workflows_peer", default=None)


class Authenticator(TokenVerifier):
    """Verifies callers with the current settings, which `reload` replaces."""

    def __init__(self, settings: AuthSettings, *, audit: Audit = silent) -> None:
        """Accept no token until `serve_at` has set the URL of the server."""
        self._settings = settings
        self._verifier: Verifier = verifier(settings, "", asker=_asker)
        self.audit = audit  # records refusals
        self._marker = secrets.token_urlsafe(32)  # a token for requests that a trusted proxy has authenticated

    def serve_at(self, resource: str) -> None:
        """Set the URL of the server, which is the audience of tokens."""
        self._verifier = verifier(self._settings, resource, asker=_asker)

    @property
    def resource(self) -> str:
        """The URL of the server."""
        return self._verifier.resource

    @property
    def sdk_settings(self) -> SdkSettings:
        """The settings for the SDK's own middleware."""
        url = AnyHttpUrl(self.resource)
        known = bool(self._verifier.authorization_servers)
        return SdkSettings(
            issuer_url=url,  # unused: `routes` lists all issuers
            required_scopes=list(self._settings.required_scopes),
            resource_server_url=url if known else None,
            validate_token_resource=False,  # our verifier checks the audience
        )

    @property
    def routes(self) -> Sequence[Route]:
        """The routes of the resource metadata (RFC 9728), which take precedence over the SDK's.

        They also exist at the root, and without the path of `public_url`, which a proxy may strip.
        """
        if not self._verifier.authorization_servers:
            return []
        path = urlsplit(self.resource).path
        last = f"/{path.rpartition('/')[2]}"
        paths = dict.fromkeys(f"{_WELL_KNOWN}{suffix}" for suffix in (path, last, ""))
        served = cors_middleware(self._metadata, ["GET", "OPTIONS"])
        return [Route(each, served, methods=["GET", "OPTIONS"]) for each in paths]

    async def _metadata(self, _: Request) -> Response:
        body: dict[str, Any] = {
            "resource": self.resource,
            "authorization_servers": list(self._verifier.authorization_servers),
            "bearer_methods_supported": ["header"],
        }
        if self._settings.required_scopes:
            body["scopes_supported"] = list(self._settings.required_scopes)
        return JSONResponse(body, headers={"Cache-Control": "public, max-age=300"})

    def reload(self, settings: AuthSettings) -> None:
        """Use these settings from now on; `required_scopes` and `owner` keep their first values."""
        lasting = {"required_scopes": self._settings.required_scopes, "owner": self._settings.owner}
        self._verifier = verifier(settings, self.resource, self._verifier, _asker)
        self._settings = settings.model_copy(update=lasting)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the identity of a token; None if it is refused.

        Raises:
            IssuerUnavailable: the issuer does not reply; `AuthMiddleware` then replies with 503.
        """
        passed = _proxied_identity.get()
        if passed is not None and secrets.compare_digest(token.encode("utf-8", "replace"), self._marker.encode()):
            return self._admitted(passed, None)
        try:
            return self._admitted(await self._verifier.verify(token), token)
        except AccessError as error:
            self.deny(str(error))
            if isinstance(error, IssuerUnavailable):
                raise
            return None

    def _admitted(self, identity: Identity, token: str | None) -> Admitted:
        recheck = None if token is None else self._recheck(identity, token)
        return Admitted.of(identity, identity.principal(self._settings.owner, recheck))

    def _recheck(self, identity: Identity, token: str) -> Callable[[], Awaitable[Principal | None]]:
        """Return a function that verifies the token again. Only this function keeps the token longer than its
        request."""

        async def again() -> Principal | None:
            try:
                now = await self._verifier.verify(token)
            except AccessError as error:
                self.deny(f"a caller admitted before is now refused: {error}")
                return None
            return now.principal(self._settings.owner, again) if now.still_covers(identity) else None

        return again

    def proxied(self, scope: Scope) -> Identity | None:
        """Return the identity that a trusted proxy put into the headers; None without a proxy or an identity.

        Raises:
            TokenRefused: the headers are invalid.
        """
        proxy = self._verifier.proxied
        if proxy is None:
            return None
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            try:
                text = value.decode("utf-8")  # the encoding that proxies use for names
            except UnicodeDecodeError:
                text = value.decode("latin-1")
            headers.setdefault(name.decode("latin-1").lower(), []).append(text)
        if any(value.lower().startswith("bearer ") for value in headers.get("authorization", ())):
            return None  # a token takes precedence
        if not proxy.claims_to_say(headers):
            return None
        peer = (scope.get("client") or (None,))[0]
        if not proxy.trusts(peer):
            logger.warning("identity headers were ignored: %s is not one of server.auth.proxy.peers", peer)
            return None
        return proxy.identity(headers)

    def with_marker(self, scope: Scope) -> Scope:
        """Return the request with the marker token, which represents the proxy's identity in the SDK."""
        headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"authorization"]
        return {**scope, "headers": [*headers, (b"authorization", f"Bearer {self._marker}".encode())]}

    def deny(self, reason: str, principal: Principal | None = None) -> None:
        """Record a refusal in the log, within its limits, and in the audit. The caller does not learn the reason."""
        logger.warning("a caller was refused: %s", reason)
        record = record_of(Event.DENY, principal, outcome="refused", reason=reason)
        self.audit(replace(record, peer=_peer.get()))

    def challenge(self, found: str) -> str:
        """Return the SDK's `WWW-Authenticate` with the required scopes (RFC 6750, section 3)."""
        scopes = self._settings.required_scopes
        return f'{found}, scope="{" ".join(scopes)}"' if scopes and "scope=" not in found else found


def _asker() -> str | None:
    """Return the address of the current request; for IPv6 the network, as a caller has many addresses in it."""
    peer = _peer.get()
    return None if peer is None else network_of(peer)


class AuthMiddleware:
    """ASGI middleware around the SDK's authentication: trusted proxies, 503 and challenges.

    Both serve `/mcp` only, so a token sent to another path is never checked.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        peer = scope.get("client")
        came_from = _peer.set(peer[0] if peer else None)
        try:
            await self._serve(scope, receive, send)
        finally:
            _peer.reset(came_from)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            identity = self._authenticator.proxied(scope)
        except TokenRefused as error:
            self._authenticator.deny(str(error))
            identity = None
        passed = scope if identity is None else self._authenticator.with_marker(scope)
        set_to = _proxied_identity.set(identity)
        try:
            await self._app(passed, receive, self._with_challenge(passed, send))
        except IssuerUnavailable:
            body = {"error": "temporarily_unavailable", "error_description": "try again later"}
            await JSONResponse(body, status_code=503, headers=_RETRY_LATER)(scope, receive, send)
        finally:
            _proxied_identity.reset(set_to)

    def _with_challenge(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that adds scopes to the challenge of a 401 or 403, and audits a 403."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in {401, 403}:
                headers = MutableHeaders(scope=message)
                if (found := headers.get("www-authenticate")) is not None:
                    headers["www-authenticate"] = self._authenticator.challenge(found)
                    user = scope.get("user")
                    if message["status"] == 403 and isinstance(user, AuthenticatedUser):
                        principal = principal_of(user.access_token, Owner.CLIENT)
                        self._authenticator.deny("a required scope is missing", principal)
            await send(message)

        return sent
