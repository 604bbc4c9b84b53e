"""Real requests for the http library."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import httpx2

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.identity_tokens import ACCESS_TOKEN, Signer
from mcp_workflows_google_local.language.errors import Tag, WorkflowError, failure

AGENT: Final = "GoogleCloudWorkflows; (+https://cloud.google.com/workflows/docs)"
LARGEST: Final = 2 * 1024 * 1024  # bytes of a response


class Requests:
    """Makes requests, with tokens as `auth` requires; redirects are not followed, proxies not used."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        self._client = httpx2.AsyncClient(trust_env=False, limits=limits, headers={"User-Agent": AGENT})

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def make(self, arguments: Mapping[str, JSON], account: str) -> JSON:
        """Return the response to a request, with any status, on behalf of a service account.

        Raises:
            WorkflowError: there was no response, or it is too large.
        """
        headers: dict[str, str] = {**(arguments.get("headers") or {}), **self._authorization(arguments, account)}
        body: str | None = arguments.get("body")
        request: dict[str, Any] = {"content": base64.b64decode(body) if body is not None else None, "headers": headers}
        try:
            reply = await self._client.request(
                arguments["method"], arguments["url"], **request, timeout=arguments.get("timeout")
            )
        except (httpx2.RequestError, httpx2.InvalidURL, UnicodeError) as error:
            raise _failed(error) from error
        return _answer(reply)

    def _authorization(self, arguments: Mapping[str, JSON], account: str) -> Mapping[str, str]:
        auth = arguments.get("auth")
        if not auth:
            return {}
        if auth["type"] == "OAuth2":
            return {"Authorization": f"Bearer {ACCESS_TOKEN}"}
        audience = auth.get("audience") or str(arguments["url"]).partition("?")[0]
        return {"Authorization": f"Bearer {self._signer.identity_token(audience, account)}"}


def _answer(reply: httpx2.Response) -> JSON:
    if len(reply.content) > LARGEST:
        raise failure(Tag.RESOURCE_LIMIT, f"the response is larger than {LARGEST} bytes")
    headers: dict[str, str] = {}
    for name, value in reply.headers.multi_items():
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return {"code": reply.status_code, "headers": headers, "body": base64.b64encode(reply.content).decode()}


def _failed(error: Exception) -> WorkflowError:
    return next(failure(tag, f"{text}: {error}") for kind, tag, text in _FAILURES if isinstance(error, kind))


_FAILURES: Final = (
    (httpx2.ConnectTimeout, Tag.CONNECTION_FAILED, "failed to connect"),
    (httpx2.TimeoutException, Tag.TIMEOUT, "the request timed out"),
    (httpx2.ConnectError, Tag.CONNECTION_FAILED, "failed to connect"),
    (httpx2.UnsupportedProtocol, Tag.VALUE, "invalid url"),
    (httpx2.InvalidURL, Tag.VALUE, "invalid url"),
    (UnicodeError, Tag.VALUE, "invalid url"),
    (httpx2.RequestError, Tag.CONNECTION, "the connection broke"),
)
