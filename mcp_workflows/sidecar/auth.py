"""Who is let in over HTTP: the verifier of `access` behind the SDK's own hooks, and what who is not let in hears.

The SDK asks `Admission.verify_token` about each bearer token, answers 401 and 403, and binds sessions to whom they are.
What it does not do is done around it: see `admitting`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
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

logger = logging.getLogger(__name__)

_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"

proxied_now: ContextVar[Identity | None] = ContextVar("mcp_workflows_proxied", default=None)
peer_now: ContextVar[str | None] = ContextVar("mcp_workflows_peer", default=None)


class Admission(TokenVerifier):
    """Lets in who proves who they are, by the settings there are now; see `take`."""

    def __init__(self, settings: AuthSettings, *, audit: Audit = silent) -> None:
        """Nobody's token is for it yet: see `serve_at`."""
        self._settings = settings
        self._verifier: Verifier = verifier(settings, "", asker=_address_now)
        self.audit = audit  # who is told of whom was not let in
        self._proxy_word = secrets.token_urlsafe(32)  # stands for a token where a proxy has told who it is

    def serve_at(self, resource: str) -> None:
        """The URL of the server, for which tokens must be."""
        self._verifier = verifier(self._settings, resource, asker=_address_now)

    @property
    def resource(self) -> str:
        """The URL of the server."""
        return self._verifier.resource

    @property
    def sdk_settings(self) -> SdkSettings:
        """What the SDK must know."""
        url = AnyHttpUrl(self.resource)
        known = bool(self._verifier.authorization_servers)
        return SdkSettings(
            issuer_url=url,  # goes nowhere: `routes` tell of the issuers, all of them
            required_scopes=list(self._settings.required_scopes),
            resource_server_url=url if known else None,
            validate_token_resource=False,  # our verifier checks the audience, of every token that has one
        )

    @property
    def routes(self) -> Sequence[Route]:
        """The metadata of the resource (RFC 9728), where clients look for them; they come before the SDK's own.

        Also at the root, and without the path of `public_url`, which a proxy may have cut off.
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

    def take(self, settings: AuthSettings) -> None:
        """Let in by these from now on; `required_scopes` and `owner` stay as they were at the start."""
        lasting = {"required_scopes": self._settings.required_scopes, "owner": self._settings.owner}
        self._verifier = verifier(settings, self.resource, self._verifier, _address_now)
        self._settings = settings.model_copy(update=lasting)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Who came with it; None: nobody who is let in.

        Raises:
            IssuerUnavailable: that cannot be told now, see `admitting`.
        """
        passed = proxied_now.get()
        if passed is not None and secrets.compare_digest(token.encode("utf-8", "replace"), self._proxy_word.encode()):
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
        """Who they would be let in as. The token lives in it, and nowhere else, as long as their request."""

        async def again() -> Principal | None:
            try:
                now = await self._verifier.verify(token)
            except AccessError as error:
                self.deny(f"what was let in before is not any more: {error}")
                return None
            return now.principal(self._settings.owner, again) if now.still_covers(identity) else None

        return again

    def proxied(self, scope: Scope) -> Identity | None:
        """Who the proxy says it is; None: it is not the proxy, or it says nothing.

        Raises:
            TokenRefused: what it says cannot be taken.
        """
        proxy = self._verifier.proxied
        if proxy is None:
            return None
        headers = _by_name(scope)
        if not proxy.claims_to_say(headers) or _has_token(headers):
            return None
        peer = (scope.get("client") or (None,))[0]
        if not proxy.trusts(peer):
            logger.warning("headers that say who it is were ignored: %s is none of server.auth.proxy.peers", peer)
            return None
        return proxy.identity(headers)

    def with_word(self, scope: Scope) -> Scope:
        """The request as if it came with a token, for the SDK to ask us about."""
        headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"authorization"]
        return {**scope, "headers": [*headers, (b"authorization", f"Bearer {self._proxy_word}".encode())]}

    def deny(self, reason: str, principal: Principal | None = None) -> None:
        """Tell the log, within its limits, and the audit, always; who asked hears nothing of the reason."""
        logger.warning("somebody was not let in: %s", reason)
        record = record_of(Event.DENY, principal, outcome="refused", reason=reason)
        self.audit(replace(record, peer=peer_now.get()))

    def challenge(self, found: str) -> str:
        """The SDK's `WWW-Authenticate` with the scopes that are needed (RFC 6750, section 3)."""
        scopes = self._settings.required_scopes
        return f'{found}, scope="{" ".join(scopes)}"' if scopes and "scope=" not in found else found


def _address_now() -> str | None:
    """Where the request at hand comes from; of IPv6 the network, of which anybody has many addresses."""
    peer = peer_now.get()
    return None if peer is None else network_of(peer)


def _by_name(scope: Scope) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(_text(value))
    return found


def _text(value: bytes) -> str:
    """Proxies send names as UTF-8, whatever the standard says."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _has_token(headers: Mapping[str, Sequence[str]]) -> bool:
    """Whoever comes with a token is taken at that, and nothing else said of them counts."""
    return any(value.lower().startswith("bearer ") for value in headers.get("authorization", ()))


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
