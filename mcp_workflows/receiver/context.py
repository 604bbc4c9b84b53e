"""Who asks: the principal of a request, what its client can do, and what it is therefore shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, principal_components
from mcp.server.context import ServerRequestContext
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from pydantic import Field, PrivateAttr
from starlette.requests import Request

from mcp_workflows.access import ANONYMOUS, Principal, is_loopback, owner_id
from mcp_workflows.access.authn.identity import Identity, moment
from mcp_workflows.access.authn.settings import Owner
from mcp_workflows.adapter import JSON
from mcp_workflows.receiver.tool_list import Viewer
from mcp_workflows.receiver.v2025_11_25.session import session_of
from mcp_workflows.wire import v2025_11_25, v2026_07_28
from mcp_workflows.wire.params import KEY_PATHS, KeyPath

_NAME_HEADER: Final = MCP_NAME_HEADER.encode()
_PASSED_ON: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})  # headers that proxies add

Context: TypeAlias = ServerRequestContext[Any, Any]  # Any: the lifespan and the transport are the user's


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """Who is who on one server."""

    local: Principal  # where there is no network in between
    single_user: bool  # whoever comes over loopback is the local one too
    owner: Owner = Owner.CLIENT  # whose a task is, where a server has let them in by itself
    key_paths: Sequence[KeyPath] = KEY_PATHS  # where in `_meta` calls may have an idempotency key

    def principal(self, ctx: Context) -> Principal:
        """The owner of what this request creates, and of all it may see."""
        return self.sender(ctx.request)

    def sender(self, request: Request | None) -> Principal:
        """Who sent this over HTTP; None: there is no network in between."""
        if (token := get_access_token()) is not None:
            return principal_of(token, self.owner)
        if request is None or (self.single_user and _from_here(request)):
            return self.local
        client = request.scope.get("client")  # host and port
        return ANONYMOUS if client is None else _stranger(client[0])

    def viewer(self, ctx: Context) -> Viewer:
        """The same as one who lists tools."""
        identified = self.principal(ctx).identified
        if is_modern(ctx):
            return Viewer(identified=identified, takes_tasks=client_of(ctx).takes_tasks)
        return Viewer(identified=identified, takes_tasks=session_of(ctx).augmented, in_core=is_in_core(ctx))


class Admitted(AccessToken):
    """A caller whom our verifier let in, as the SDK keeps it; it does not hold the token itself."""

    token: str = Field(default="", repr=False)
    _principal: Principal = PrivateAttr()

    @classmethod
    def of(cls, identity: Identity, principal: Principal) -> Admitted:
        """Return what the SDK must know of a caller: whose session it is, until when, and its scopes."""
        found = cls(
            client_id=identity.client or "",
            scopes=sorted(identity.scopes),
            expires_at=None if identity.expires is None else math.ceil(identity.expires.timestamp()),
            subject=identity.subject,
            claims={**identity.claims, "iss": identity.issuer},
        )
        found._principal = principal
        return found

    @property
    def principal(self) -> Principal:
        """The caller."""
        return self._principal


def principal_of(token: AccessToken, owner: Owner) -> Principal:
    """Return the principal of a token, also of one that a verifier of the server's own accepted."""
    if isinstance(token, Admitted):
        return token.principal
    client, issuer, subject = principal_components(token)
    everywhere = owner is Owner.SUBJECT and subject is not None
    return Principal(
        id=owner_id(client=None if everywhere else client, issuer=issuer, subject=subject),
        issuer=issuer,
        subject=subject,
        client=client,
        scopes=frozenset(token.scopes),
        claims=token.claims or {},
        expires=None if token.expires_at is None else moment(token.expires_at),
    )


@lru_cache(maxsize=1024)
def _stranger(address: str) -> Principal:
    """Somebody from there: each poll asks who that is."""
    return replace(ANONYMOUS, peer=address)


def is_modern(ctx: Context) -> bool:
    """Whether the request speaks 2026-07-28."""
    return ctx.protocol_version == v2026_07_28.PROTOCOL_VERSION


def is_in_core(ctx: Context) -> bool:
    """Whether the request speaks 2025-11-25, which has tasks in core."""
    return ctx.protocol_version == v2025_11_25.PROTOCOL_VERSION


def client_of(ctx: Context) -> v2026_07_28.Client:
    """What the client declared on this request; an older protocol knows no tasks of this kind and no rounds."""
    if not is_modern(ctx):
        return v2026_07_28.Client(takes_tasks=False, takes_questions=False)
    return v2026_07_28.client_of(ctx.params or {})


def name_of(ctx: Context) -> JSON:
    """The tool that is called."""
    name = (ctx.params or {}).get("name")
    return name if isinstance(name, str) else None


def name_header(ctx: Context) -> str | None:
    """The `Mcp-Name` header; None on stdio or when it was not sent, empty when it cannot be decoded."""
    if ctx.request is None:
        return None
    for name, value in ctx.request.scope["headers"]:  # not by Starlette's mapping, as each poll asks
        if name == _NAME_HEADER:
            return decode_header_value(value.decode("latin-1")) or ""
    return None


def _from_here(request: Request) -> bool:
    """Whether the request came over loopback, and says of itself that no proxy on this machine passed it on.

    Who is behind a proxy is somebody else, whatever it says: those headers can be made up. The sidecar's uvicorn does
    not read them; another one may, by `FORWARDED_ALLOW_IPS`.
    """
    client = request.scope.get("client")  # host and port
    if client is None or any(name in _PASSED_ON for name, _ in request.scope["headers"]):
        return False
    return _of_this_machine(client[0])


@lru_cache(maxsize=1024)
def _of_this_machine(address: str) -> bool:
    """Whether nobody else can come from there: each poll of a single user asks."""
    return is_loopback(address)
