"""Webhooks, `POST /engines/ENGINE/PATH`: workflows and engines call over HTTP with JSON, with a token or a signature.

An untrusted caller learns nothing, not even the names of engines: unknown addresses refuse like known ones. See
docs/decisions/0015.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import quote

import anyio
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from mcp_workflows.access import ALGORITHMS, Issuer, KeySet, account_of, check_signature
from mcp_workflows.adapter import JSON, Route, SharedSecret, Trusted
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import (
    AccessError,
    AdapterBroke,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    ExecutionNotFound,
    KeysUnavailable,
    NotAllowed,
    TokenRefused,
)

logger = logging.getLogger(__name__)

MOUNTED_AT: Final = "/engines"
MAX_BODY: Final = 256 * 1024  # bytes
READ_WITHIN: Final = 20.0  # seconds for the whole body
_LATER: Final = {"Retry-After": "5"}
_SOON: Final = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """The HTTP response to a failed call."""

    status: int
    text: str | None = None  # None: the error's text
    headers: Mapping[str, str] | None = None

    def response(self, error: Exception | None = None) -> Response:
        """Return the response for Starlette."""
        return JSONResponse({"error": self.text or str(error)}, status_code=self.status, headers=self.headers)


_NOT_LET_IN: Final[Mapping[type[AccessError], ErrorReply]] = {
    KeysUnavailable: ErrorReply(status=503, text="try again later", headers=_LATER),
    NotAllowed: ErrorReply(status=403, text="not allowed"),
    TokenRefused: ErrorReply(status=401, text="a valid token is needed", headers={"WWW-Authenticate": "Bearer"}),
}
"""The responses to untrusted callers; of several reasons, the first in this order applies."""

_FAILED: Final[Mapping[type[EngineError], ErrorReply]] = {
    AdapterBroke: ErrorReply(status=500, text="internal error"),
    EngineRefused: ErrorReply(status=400),
    ExecutionNotFound: ErrorReply(status=404),
    EngineUnavailable: ErrorReply(status=503, headers=_SOON),
    EngineError: ErrorReply(status=500, text="internal error"),
}
"""The responses to trusted callers after an error."""

_CLOSED: Final = ErrorReply(status=503, text="try again later", headers=_LATER)
_NOWHERE: Final = ErrorReply(status=404, text="there is nothing here")
_TOO_LARGE: Final = ErrorReply(status=413, text=f"the body is larger than {MAX_BODY} bytes")
_NOT_JSON: Final = ErrorReply(status=415, text="the body must be application/json, not compressed")
_WRONG_JSON: Final = ErrorReply(status=400, text="the body is not JSON")
_TOO_SLOW: Final = ErrorReply(status=503, text="the body did not arrive in time", headers=_LATER)  # workflows retry
_GONE: Final = ErrorReply(status=400, text="the caller disconnected")


class BodyRefused(Exception):  # noqa: N818  # a response, not a defect
    """The body of a call was refused."""

    def __init__(self, answer: ErrorReply) -> None:
        super().__init__(answer.text)
        self.answer = answer


class Webhooks:
    """The ASGI application `POST /ENGINE/PATH`, to be mounted at `/engines`; it follows every change of the engines."""

    def __init__(self, engines: Callable[[], Engines | None]) -> None:
        """`engines` returns the current engines; None means that none are open, and callers retry later."""
        self._engines = engines
        self._issuers: dict[tuple[str, str], Issuer] = {}
        paths = ("/{engine}/{path:path}", "/{engine}")  # the second is never valid, but is logged
        served = [Path(path, self._serve, methods=["POST"]) for path in paths]
        self._router = Router(served, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._router(scope, receive, send)

    async def _serve(self, request: Request) -> Response:
        engines, engine, path = self._engines(), request.path_params["engine"], request.path_params.get("path", "")
        if engines is None:
            return _CLOSED.response()
        routes = engines.routes
        if not routes:
            return _NOWHERE.response()
        called = f"a call of {f'{engine}/{path}'[:100]!r}"
        route = routes.get(engine, {}).get(path)
        labels = {"engine": engine if engine in routes else "", "api": "receive"}
        refused = partial(engines.telemetry.engine_called, labels, "refused", None)
        try:
            account, body = await self._admitted(request, route, routes)
        except AccessError as error:
            logger.warning("%s was refused: %s", called, error)
            refused()
            return _NOT_LET_IN[type(error)].response()
        if route is None:
            logger.warning("%s by %s was refused: there is no such address", called, account)
            refused()
            return _NOWHERE.response()
        try:
            body = await _read(request) if body is None else body
            return await _received(engines, engine, route, _json(body), account)
        except BodyRefused as error:
            logger.warning("%s by %s was refused: %s", called, account, error)
            refused()
            return error.answer.response()
        except EngineError as error:
            logger.warning("%s by %s failed: %s", called, account, error)
            return next(answer for kind, answer in _FAILED.items() if isinstance(error, kind)).response(error)

    async def _admitted(
        self, request: Request, route: Route | None, routes: Mapping[str, Mapping[str, Route]]
    ) -> tuple[str, bytes | None]:
        """Return the account of the caller, and the body if it was read for that.

        Raises:
            AccessError: the caller may not call this route or, for an unknown route, any route.
        """
        if route is not None and isinstance(route.trusted, SharedSecret):
            try:
                body = await _read(request)
            except BodyRefused as error:  # a stranger gets the same refusal as for any other address
                raise TokenRefused(str(error)) from None
            check_signature(route.trusted, request.headers, body)
            return route.trusted.signature.value, body
        known = [route] if route else [each for paths in routes.values() for each in paths.values()]
        return await self._admit(request, [each.trusted for each in known if isinstance(each.trusted, Trusted)]), None

    async def _admit(self, request: Request, trusting: Sequence[Trusted]) -> str:
        """Return the account of the caller, if one of these routes trusts it."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise TokenRefused("the request has no token")
        refused: list[AccessError] = []
        for trusted in trusting:
            try:
                return await self._account(token.strip(), trusted)
            except AccessError as error:
                refused.append(error)
        if not refused:
            raise TokenRefused("no token is accepted here")
        raise min(refused, key=lambda error: list(_NOT_LET_IN).index(type(error)))

    async def _account(self, token: str, trusted: Trusted) -> str:
        known = (trusted.issuer, trusted.keys_url)
        issuer = self._issuers.get(known)
        if issuer is None:
            issuer = self._issuers[known] = Issuer(trusted.issuer, KeySet(trusted.keys_url, ALGORITHMS))
        account = account_of(await issuer.claims(token, trusted.audience))
        if account not in trusted.accounts:
            raise NotAllowed(f"the account {account[:100]!r} is not one of those that may call")
        return account


async def _received(engines: Engines, engine: str, route: Route, body: JSON, account: str) -> Response:
    """Return the response of the route, unless it was replaced while the token was verified."""
    async with engines.calling(engine, api="receive"):
        if engines.routes.get(engine, {}).get(route.path) is not route:
            raise EngineUnavailable("the configuration has just changed", sent=False)
        answered = json.dumps(await route.receive(body, account), allow_nan=False).encode()
    return Response(answered, media_type="application/json")


async def _read(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY:
        raise BodyRefused(_TOO_LARGE)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or request.headers.get("content-encoding", "identity").lower() != "identity":
        raise BodyRefused(_NOT_JSON)
    try:
        with anyio.fail_after(READ_WITHIN):
            return await _bounded(request)
    except TimeoutError:
        raise BodyRefused(_TOO_SLOW) from None


def _json(body: bytes) -> JSON:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError:
        raise BodyRefused(_WRONG_JSON) from None


async def _bounded(request: Request) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                raise BodyRefused(_TOO_LARGE)
    except ClientDisconnect:
        raise BodyRefused(_GONE) from None
    return bytes(body)


def addresses(engine: str, routes: Mapping[str, Route]) -> Sequence[str]:
    """Return the URL paths of an engine's routes, as mounted at `/engines`."""
    return [f"{MOUNTED_AT}/{quote(engine, safe='')}/{quote(path, safe='')}" for path in routes]
