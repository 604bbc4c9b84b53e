"""Bounded reading of JSON from issuers: no reply can fill our memory or block us."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio import to_thread

from mcp_workflows.access.principal import is_loopback
from mcp_workflows.errors import IssuerUnavailable

ANSWER_WITHIN: Final = 4.0  # seconds
MOST_BYTES: Final = 256 * 1024  # of one reply

_OK: Final = 200
_PLAIN: Final = {"accept": "application/json", "accept-encoding": "identity"}


def https_url(text: str) -> str:
    """Return the URL if secrets may be sent to it.

    Raises:
        ValueError: it is neither https nor on this machine, or not the URL of a server.
    """
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("is not a URL") from None
    if not host or parts.scheme not in {"https", "http"} or any(sign.isspace() for sign in text):
        raise ValueError("must be a URL, https://...")
    if parts.scheme == "http" and not is_loopback(host):
        raise ValueError("must be https://...; http is for this machine only (localhost, 127.0.0.1)")
    if parts.username is not None or parts.fragment:
        raise ValueError("must be a URL without user, password and #fragment")
    return text


class JsonFetcher:
    """Reads JSON from servers within limits of time and size; follows no redirect."""

    def __init__(self) -> None:
        self._trusting: ssl.SSLContext | None = None  # cached, as loading the certificates is slow

    async def get(self, url: str) -> Any:  # Any: a JSON value
        """Return the JSON at this URL.

        Raises:
            IssuerUnavailable: it could not be read.
        """
        return await self._json(httpx2.Request("GET", url, headers=_PLAIN))

    async def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> Any:  # Any: a JSON value
        """Post a form and return the JSON of the reply.

        Raises:
            IssuerUnavailable: it could not be read.
        """
        return await self._json(httpx2.Request("POST", url, data=dict(form), headers={**_PLAIN, **headers}))

    async def _json(self, request: httpx2.Request) -> Any:  # Any: a JSON value
        try:
            with anyio.fail_after(ANSWER_WITHIN):
                body = await self._body(request)
        except TimeoutError:
            raise IssuerUnavailable(f"no answer within {ANSWER_WITHIN:g} s") from None
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise IssuerUnavailable(str(error) or type(error).__name__) from None
        try:
            return await to_thread.run_sync(partial(json.loads, body))
        except (ValueError, RecursionError):
            raise IssuerUnavailable("its answer is not JSON") from None

    async def _body(self, request: httpx2.Request) -> bytes:
        if self._trusting is None:
            self._trusting = await to_thread.run_sync(ssl.create_default_context)
        async with httpx2.AsyncClient(verify=self._trusting, timeout=ANSWER_WITHIN, follow_redirects=False) as client:
            response = await client.send(request, stream=True)
            try:
                return await _bounded(response)
            finally:
                await response.aclose()


async def _bounded(response: httpx2.Response) -> bytes:
    """Return the body. Refuse one that is larger than any valid reply, to protect our memory."""
    if response.status_code != _OK:
        raise IssuerUnavailable(f"it answers {response.status_code}")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MOST_BYTES:
            raise IssuerUnavailable(f"it answers more than {MOST_BYTES} bytes")
    return bytes(body)
