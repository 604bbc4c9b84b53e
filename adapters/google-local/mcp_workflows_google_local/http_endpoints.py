"""The plain HTTP endpoints: callbacks of executions, and the keys that sign identity tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import grpc
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.callbacks import METHODS, Delivery, Endpoint
from mcp_workflows_google_local.engine import Engine
from mcp_workflows_google_local.identity_tokens import Signer
from mcp_workflows_google_local.pages import page
from mcp_workflows_google_local.project import Home
from mcp_workflows_google_local.refusals import RefusedError, invalid

KEYS_PATH: Final = "/oauth2/v3/certs"
_EXECUTION: Final = "/v1/projects/{project}/locations/{location}/workflows/{workflow}/executions/{execution}"
_MOST: Final = 100  # callbacks on a page
_CODES: Final[Mapping[grpc.StatusCode, int]] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
}
_STATUS: Final[Mapping[int, str]] = {
    **{status: code.name for code, status in _CODES.items()},
    405: "METHOD_NOT_ALLOWED",
    429: "RESOURCE_EXHAUSTED",
}
_SAID: Final[Mapping[int, str]] = {
    Delivery.GONE: "Requested entity was not found.",
    Delivery.WRONG_METHOD: "The callback endpoint was created for another HTTP method.",
    Delivery.BUSY: "The workflow has not processed an earlier request to this callback yet.",
}


class Rest:
    """The handlers of the requests."""

    def __init__(self, home: Home, engine: Engine, signer: Signer) -> None:
        self._home = home
        self._engine = engine
        self._signer = signer

    def app(self) -> Starlette:
        """Return the application."""
        callback = Route(f"{_EXECUTION}/callbacks/{{callback}}", self.deliver, methods=[*METHODS])
        listed = Route(f"{_EXECUTION}/callbacks", self.list, methods=["GET"])
        return Starlette(routes=[listed, callback, Route(KEYS_PATH, self.keys, methods=["GET"])])

    async def keys(self, _request: Request) -> Response:
        """Return the public key as a JSON Web Key Set."""
        return JSONResponse(self._signer.keys, headers={"Cache-Control": "public, max-age=3600"})

    async def list(self, request: Request) -> Response:
        """Return the callbacks of an execution in the order of their ids; an ended one has none."""
        try:
            workflow, execution = self._named(request, "workflows.callbacks.list")
            name = self._engine.get(workflow, execution).kept.name
            callbacks = self._engine.callbacks(workflow, execution)
            rows: Sequence[Endpoint] = callbacks.listed() if callbacks else ()
            shown, token = page(rows, _size(request), request.query_params.get("pageToken", ""), name)
        except RefusedError as refused:
            return _refused(refused)
        answer: dict[str, JSON] = {"callbacks": [_shown(name, endpoint) for endpoint in shown]}
        return JSONResponse({**answer, "nextPageToken": token} if token else answer)

    async def deliver(self, request: Request) -> Response:
        """Handle a request to a callback endpoint: store it if the execution accepts it."""
        try:
            callbacks = self._engine.callbacks(*self._named(request, "workflows.callbacks.send"))
        except RefusedError as refused:
            return _refused(refused)
        payload = await _payload(request)
        callback = request.path_params["callback"]
        done = callbacks.deliver(callback, request.method, payload) if callbacks else Delivery.GONE
        return JSONResponse({}) if done is Delivery.TAKEN else _failed(done, _SAID[done])

    def _named(self, request: Request, permission: str) -> tuple[str, str]:
        """Return the workflow and execution, if the caller presents any token."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise RefusedError(
                grpc.StatusCode.UNAUTHENTICATED, "Request is missing required authentication credential."
            )
        return self._home.execution(_EXECUTION.removeprefix("/v1/").format(**request.path_params), permission)


async def _payload(request: Request) -> JSON:
    """Return a request in the form for a workflow, without its token."""
    headers = {name.title(): value for name, value in request.headers.items() if name != "authorization"}
    url = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return {
        "http_request": {
            "body": _body(await request.body(), request.headers.get("content-type", "")),
            "headers": headers,
            "method": request.method,
            "query": dict(request.query_params),
            "url": url,
        },
        "received_time": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "type": "HTTP",
    }


def _body(content: bytes, kind: str) -> JSON:
    """Return JSON if the content is declared as JSON and is valid, otherwise text; None without content."""
    if not content:
        return None
    if "json" in kind:
        with suppress(ValueError):
            return json.loads(content)
    return content.decode(errors="replace")


def _shown(execution: str, endpoint: Endpoint) -> JSON:
    return {
        "name": f"{execution}/callback/{endpoint.callback}",
        "method": endpoint.method,
        "waiters": str(endpoint.waiters),
        "availablePayloads": [json.dumps(payload["http_request"]["body"]) for payload in endpoint.payloads],
    }


def _size(request: Request) -> int:
    text = request.query_params.get("pageSize", "0")
    if not text.isdecimal():
        raise invalid(f"pageSize must be a number from 0: {text!r}")
    return min(int(text) or _MOST, _MOST)


def _refused(refused: RefusedError) -> Response:
    return _failed(_CODES[refused.code], refused.text)


def _failed(status: int, text: str) -> Response:
    error = {"code": int(status), "message": text, "status": _STATUS[status]}
    return JSONResponse({"error": error}, status_code=int(status))
