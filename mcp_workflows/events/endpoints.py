"""Requests to client endpoints: to public addresses only, without redirects, and limited in time and size.

The host name is resolved and checked for each request, and the connection uses the checked address, because a name may
resolve differently the next time. The client that named the endpoint never sees any part of a reply.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import ssl
from collections.abc import Mapping, Sequence
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from types import TracebackType
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio import to_thread
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mcp_workflows.access import is_loopback
from mcp_workflows.adapter import JSON
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.wire import events as wire
from mcp_workflows.wire.events import Trouble

ANSWER_WITHIN: Final = 10.0  # seconds, including the address look-up
MOST_LOOK_UPS: Final = 64  # concurrent address look-ups
_MOST_READ: Final = 16 * 1024  # bytes of a reply
_HOST: Final = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f]*:[0-9a-f]*:[0-9a-f:.]*")
_PORTS: Final = {"https": 443, "http": 80}
_OK: Final = range(200, 300)
_SERVER_ERROR: Final = 500
_NAT64: Final = IPv6Network("64:ff9b::/96")
_UNICAST: Final = IPv6Network("2000::/3")  # everything IANA has assigned for global unicast


def _host(text: str) -> str:
    host = text.lower()
    if not _HOST.fullmatch(host):
        raise ValueError(
            "name a host, such as hooks.example.com, or *.example.com for all its subdomains, without URL or port"
        )
    return host


class EventSettings(BaseModel):
    """MCP Events: the webhook endpoints that clients may name, and their limits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: list[Annotated[str, AfterValidator(_host)]] | None = Field(
        default=None,
        description="The allowed hosts of webhook endpoints: `hooks.example.com`, or `*.example.com` for its "
        "subdomains, without scheme or port. Default: any host with a public address. `[]` disables "
        "webhooks.",
    )
    allow_private: bool = Field(
        default=False,
        description="Also allow private addresses, and `http://` on this machine. For company networks (with "
        "`allow`) and development.",
    )
    subscriptions_per_principal: int = Field(
        default=100, gt=0, description="Maximum number of webhook subscriptions of one principal."
    )
    deliveries_per_minute: int = Field(
        default=600, gt=0, description="Maximum number of requests per minute to one host. Further deliveries wait."
    )

    def allows(self, host: str) -> bool:
        """Return True if endpoints may be on this host."""
        if self.allow is None:
            return True
        return any(host.endswith(each[1:]) if each.startswith("*.") else host == each for each in self.allow)


class EndpointFailed(Exception):  # noqa: N818  # an outcome with a name in the protocol
    """The endpoint did not accept a request. `status` is set if it answered; `detail` is only for the operator."""

    def __init__(self, trouble: Trouble, status: int | None = None, *, detail: str = "") -> None:
        super().__init__(trouble if status is None else f"{trouble} ({status})")
        self.trouble = trouble
        self.status = status
        self.detail = detail


def host_of(url: str) -> str:
    """Return the host in a URL, as its certificate names it."""
    return (urlsplit(url).hostname or "").rstrip(".")


class Endpoints:
    """The endpoints that the settings allow."""

    def __init__(self, settings: EventSettings) -> None:
        self.settings = settings
        self._transport: httpx2.AsyncHTTPTransport | None = None
        self._look_ups = anyio.CapacityLimiter(MOST_LOOK_UPS)  # a slow name server delays only its own look-ups

    async def __aenter__(self) -> Self:
        trusted = await to_thread.run_sync(ssl.create_default_context)  # it reads the certificates
        # use a bare transport: a client would keep cookies, log URLs and read the environment; keep no connection,
        # since two names at one address would share it
        limits = httpx2.Limits(max_keepalive_connections=0)
        self._transport = httpx2.AsyncHTTPTransport(verify=trusted, trust_env=False, limits=limits)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._transport is not None:
            await self._transport.aclose()

    def check(self, url: str) -> None:
        """Check that a client may name this endpoint.

        Raises:
            RequestError: the client may not.
        """
        parts, host = urlsplit(url), host_of(url)
        if parts.scheme != "https" and not (self.settings.allow_private and is_loopback(host)):
            raise RequestError(INVALID_PARAMS, "delivery.url must begin with https://")
        if not self.settings.allows(host):
            raise RequestError(INVALID_PARAMS, "delivery.url: this server sends no events to that host")

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Send a request and return the beginning of the reply.

        Raises:
            EndpointFailed: the reply is not 2xx, or there is none.
        """
        try:
            with anyio.fail_after(ANSWER_WITHIN):
                return await self._post(url, body, headers)
        except (TimeoutError, httpx2.TimeoutException):
            raise EndpointFailed(Trouble.TIMEOUT) from None
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise EndpointFailed(Trouble.TLS if _is_tls(error) else Trouble.REFUSED, detail=str(error)) from None

    async def verify(self, url: str, signing: Sequence[str], *, subscription_id: str, now: datetime) -> None:
        """Ask an endpoint to confirm that it wants deliveries; the request is signed with these secrets.

        Raises:
            EndpointFailed: it does not confirm.
        """
        challenge = secrets.token_urlsafe(24)
        body = wire.body_of(wire.verification(challenge))
        name = f"msg_verification_{secrets.token_hex(12)}"
        headers = wire.headers_of(signing, message_id=name, subscription_id=subscription_id, sent=now, body=body)
        if not wire.is_echo(_json(await self.post(url, body, headers)), challenge):
            raise EndpointFailed(Trouble.CHALLENGE)

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        parts, host = urlsplit(url), host_of(url)
        if not self.settings.allows(host):  # the settings may have changed
            raise EndpointFailed(Trouble.REFUSED, detail="server.events.allow does not name this host")
        address = await self._address(host, parts.port or _PORTS[parts.scheme])
        place = f"[{address}]" if ":" in address else address
        target = parts._replace(netloc=place if parts.port is None else f"{place}:{parts.port}").geturl()
        request = httpx2.Request(
            "POST",
            target,
            content=body,
            headers={**headers, "host": parts.netloc, "accept-encoding": "identity"},
            extensions={"sni_hostname": host, "timeout": httpx2.Timeout(ANSWER_WITHIN).as_dict()},
        )
        assert self._transport is not None, "it is entered first"
        response = await self._transport.handle_async_request(request)
        try:
            if response.status_code not in _OK:
                is_theirs = response.status_code >= _SERVER_ERROR
                raise EndpointFailed(Trouble.HTTP_5XX if is_theirs else Trouble.HTTP_4XX, response.status_code)
            reply = b""
            async for chunk in response.aiter_raw():
                reply += chunk
                if len(reply) > _MOST_READ:
                    break
            return reply[:_MOST_READ]
        finally:
            await response.aclose()

    async def _address(self, host: str, port: int) -> str:
        """Return an address of the host that is allowed.

        Raises:
            OSError: there is none.
        """
        found = await to_thread.run_sync(look_up, host, port, abandon_on_cancel=True, limiter=self._look_ups)
        for address in found:
            if self.settings.allow_private or is_public(address):
                return address
        raise OSError(f"its address is not public: {', '.join(found)}")


def look_up(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host in the system's order of preference; blocks."""
    return [str(place[0]) for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_public(address: str) -> bool:
    """Return True for a global unicast address. IPv4 in NAT64 notation also counts; other notations are refused."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and found in _NAT64:
        found = IPv4Address(int(found) & 0xFFFFFFFF)
    if isinstance(found, IPv6Address) and (found not in _UNICAST or found.sixtofour or found.teredo):
        return False
    return found.is_global and not found.is_multicast


def _json(text: bytes) -> JSON:
    try:
        found: JSON = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
