"""The context of a request: its principal, its client's capabilities, its view of the tool list, its progress."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

from mcp.server.apps import client_supports_apps
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, principal_components
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value, validate_mcp_param_headers
from pydantic import Field, PrivateAttr
from starlette.requests import Request

from mcp_workflows.access import ANONYMOUS, Principal, is_loopback, owner_id
from mcp_workflows.access.authn.identity import Identity, moment
from mcp_workflows.access.authn.settings import Owner
from mcp_workflows.adapter import JSON, Execution, Progress
from mcp_workflows.errors import RequestError
from mcp_workflows.receiver.tool_list import Viewer
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.wire import v2025_11_25, v2026_07_28
from mcp_workflows.wire.params import KEY_PATHS, KeyPath, object_of

_NAME_HEADER: Final = MCP_NAME_HEADER.encode()
_PASSED_ON: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})  # headers that proxies add

_RISE: Final = 0.001  # progress must increase with each notification, even if only the message changed

AnyServer: TypeAlias = Server[Any] | MCPServer[Any]  # Any: the lifespan is the user's
Context: TypeAlias = ServerRequestContext[Any, Any]  # Any: the lifespan and the transport are the user's
Send: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None]]  # a value, its total, a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """The rules by which one server identifies callers."""

    local: Principal  # the principal on stdio
    single_user: bool  # callers over loopback are the local principal, too
    owner: Owner | None = Owner.SUBJECT  # the owner of tasks, for tokens that the server itself accepted
    key_paths: Sequence[KeyPath] = KEY_PATHS  # places of idempotency keys in `_meta`

    def principal(self, ctx: Context) -> Principal:
        """Return the principal of a request, the owner of all tasks that it creates."""
        return self.sender(ctx.request)

    def sender(self, request: Request | None) -> Principal:
        """Return the principal of an HTTP request; None means stdio."""
        if (token := get_access_token()) is not None:
            return principal_of(token, self.owner or Owner.SUBJECT)
        if request is None or (self.single_user and _from_here(request)):
            return self.local
        client = request.scope.get("client")  # host and port
        return ANONYMOUS if client is None else _stranger(client[0])

    def viewer(self, ctx: Context, *, augmented: bool) -> Viewer:
        """Return the caller as a viewer of the tool list; `augmented`: it has requested a task in this session."""
        identified = self.principal(ctx).identified
        if is_modern(ctx):
            return Viewer(identified=identified, takes_tasks=client_of(ctx).takes_tasks, shows_cards=shows_cards(ctx))
        return Viewer(
            identified=identified, takes_tasks=augmented, in_core=is_in_core(ctx), shows_cards=shows_cards(ctx)
        )


class Admitted(AccessToken):
    """A caller that our verifier admitted, in the SDK's form, without the token itself."""

    token: str = Field(default="", repr=False)
    _principal: Principal = PrivateAttr()

    @classmethod
    def of(cls, identity: Identity, principal: Principal) -> Admitted:
        """Return the token for the SDK, with the session's owner, the expiry and the scopes."""
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
    """Return the principal of a token, whether our verifier or another one of the server accepted it."""
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
    """Return an anonymous principal for this address; cached, as each poll needs it."""
    return replace(ANONYMOUS, peer=address)


def is_modern(ctx: Context) -> bool:
    """True if the request uses 2026-07-28."""
    return ctx.protocol_version == v2026_07_28.PROTOCOL_VERSION


def is_in_core(ctx: Context) -> bool:
    """True if the request uses 2025-11-25, which has tasks in its core."""
    return ctx.protocol_version == v2025_11_25.PROTOCOL_VERSION


def client_of(ctx: Context) -> v2026_07_28.Client:
    """Return the capabilities declared in this request; older revisions have neither these tasks nor rounds."""
    if not is_modern(ctx):
        return v2026_07_28.Client(takes_tasks=False, takes_questions=False)
    return v2026_07_28.client_of(ctx.params or {})


def host_of(ctx: Context) -> str | None:
    """Return the client's name for itself, from its handshake or, since 2026-07-28, from this request."""
    params = ctx.session.client_params
    return None if params is None else params.client_info.name


def shows_cards(ctx: Context) -> bool:
    """True if the client declared that it shows pages, in its handshake or, since 2026-07-28, in this request."""
    return client_supports_apps(ctx)


def name_of(ctx: Context) -> JSON:
    """Return the name of the called tool."""
    name = (ctx.params or {}).get("name")
    return name if isinstance(name, str) else None


def name_header(ctx: Context) -> str | None:
    """Return the `Mcp-Name` header; None on stdio or if it is absent, empty if it cannot be decoded."""
    if ctx.request is None:
        return None
    for name, value in ctx.request.scope["headers"]:  # without Starlette's mapping, as each poll runs this
        if name == _NAME_HEADER:
            return decode_header_value(value.decode("latin-1")) or ""
    return None


def check_param_headers(ctx: Context, tool: AnyTool) -> None:
    """Check that the `Mcp-Param-*` headers of a call match its arguments, if the tool's schema names such headers.

    The SDK checks them before the caller is identified, and so would reveal to strangers that a tool exists.

    Raises:
        RequestError: a header is missing, unexpected or different.
    """
    if ctx.request is None or not tool.names_headers or not is_modern(ctx):
        return
    arguments = object_of((ctx.params or {}).get("arguments"))
    if rejection := validate_mcp_param_headers(tool.input, arguments, ctx.request.headers):
        raise RequestError(rejection.code, rejection.message)


def _from_here(request: Request) -> bool:
    """True if the request came over loopback and has no header of a proxy that forwarded it.

    A client behind a proxy is remote, whatever its headers contain: they can be forged. The sidecar's uvicorn ignores
    those headers; another server may read them, with `FORWARDED_ALLOW_IPS`.
    """
    client = request.scope.get("client")  # host and port
    if client is None or any(name in _PASSED_ON for name, _ in request.scope["headers"]):
        return False
    return _of_this_machine(client[0])


@lru_cache(maxsize=1024)
def _of_this_machine(address: str) -> bool:
    """True for loopback addresses; cached, as each poll of a single user needs it."""
    return is_loopback(address)


class ProgressReports:
    """Progress of a call, sent with its progress token; it increases with each notification (spec: progress)."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._last: float | None = None

    async def report(self, execution: Execution) -> None:
        """Send the progress of an execution that has not ended."""
        if not execution.terminal:
            await self.send(execution.message, execution.progress)

    async def send(self, message: str | None, progress: Progress | None) -> None:
        """Send a message and a progress, if either is set."""
        if not (message or progress):
            return
        value = progress.value if progress else 0.0
        self._last = value if self._last is None else max(value, self._last + _RISE)
        await self._send(self._last, progress.total if progress else None, message)
