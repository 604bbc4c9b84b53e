"""http.*: requests are encoded here, responses decoded, and a status of 400 or more becomes an HttpError.

Source: https://cloud.google.com/workflows/docs/reference/stdlib/http/request and .../docs/http-requests
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlencode

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language.errors import Tag, WorkflowError, failure
from mcp_workflows_google_local.language.functions import Acting, Effect, Function, need
from mcp_workflows_google_local.language.library_text import decoded, encoded
from mcp_workflows_google_local.language.operators import as_text
from mcp_workflows_google_local.language.values import is_list, is_map

DEFAULT_TIMEOUT: Final = 300  # seconds
MAX_TIMEOUT: Final = 1800  # seconds
RESPONSE_LIMIT: Final = 2 * 1024 * 1024  # bytes
FAILED: Final = 400  # the lowest status of an error
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
_URL: Final = re.compile(r"https?://[^/?#\s]+(?:[/?#]\S*)?\Z")
_FORM: Final = "application/x-www-form-urlencoded"
_AUTH: Final[Mapping[str, frozenset[str]]] = {
    "OIDC": frozenset({"type", "audience"}),
    "OAuth2": frozenset({"type", "scope", "scopes"}),
}


def _url(arguments: Mapping[str, JSON]) -> str:
    url, query = arguments["url"], arguments.get("query")
    need("http", "string", url=url)
    if not _URL.match(url):
        raise failure(Tag.VALUE, "http: url must start with http:// or https:// and a host")
    if not query:
        return str(url)
    return f"{url}{'&' if '?' in url else '?'}{_pairs('query', query)}"


def _pairs(name: str, values: JSON) -> str:
    """Return a map of texts, numbers, booleans or lists of them, URL-encoded."""
    need("http", "map", **{name: values})
    pairs = ((key, item) for key, value in values.items() for item in (value if is_list(value) else [value]))
    return urlencode([(key, as_text(item)) for key, item in pairs], quote_via=quote)


def _headers(headers: JSON) -> dict[str, str]:
    if headers is None:
        return {}
    need("http", "map", headers=headers)
    return {str(name): as_text(value) for name, value in headers.items()}


def _body(body: JSON, headers: dict[str, str]) -> bytes | None:
    """Return the bytes to send; set their type in the headers, unless the workflow did."""
    if body is None:
        return None
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), None)
    if isinstance(body, bytes):
        if kind is None:
            headers["Content-Type"] = "application/octet-stream"
        return body
    if kind is None:
        headers["Content-Type"] = "application/json; charset=utf-8"
        return encoded(body).encode()
    if kind.startswith(_FORM) and is_map(body):
        return _pairs("body", body).encode()
    return body.encode() if isinstance(body, str) and not _is_json(kind) else encoded(body).encode()


def _is_json(kind: str) -> bool:
    media = kind.partition(";")[0].strip().lower()
    return media == "application/json" or media.endswith("+json")


def _auth(auth: JSON) -> JSON:
    if auth is None:
        return None
    need("http", "map", auth=auth)
    allowed = _AUTH.get(auth.get("type", ""))
    if allowed is None:
        raise failure(Tag.VALUE, "http: auth.type must be OIDC or OAuth2")
    if unknown := auth.keys() - allowed:
        raise failure(Tag.VALUE, f"http: auth has the unknown key {min(unknown)!r}")
    return auth


def _timeout(timeout: JSON) -> int | float:
    need("http", "number", timeout=timeout)
    if not 0 < timeout <= MAX_TIMEOUT:
        raise failure(Tag.VALUE, f"http: timeout must be more than 0 and at most {MAX_TIMEOUT} seconds")
    return timeout if isinstance(timeout, int) else float(timeout)


async def _request(effect: Effect, method: str, arguments: Mapping[str, JSON]) -> JSON:
    if method not in METHODS:
        raise failure(Tag.VALUE, f"http.request: method must be one of {', '.join(METHODS)}")
    headers = _headers(arguments.get("headers"))
    body = _body(arguments.get("body"), headers)
    order: Mapping[str, JSON] = {
        "method": method,
        "url": _url(arguments),
        "headers": headers,
        "body": None if body is None else base64.b64encode(body).decode(),
        "timeout": _timeout(arguments.get("timeout", DEFAULT_TIMEOUT)),
        "auth": _auth(arguments.get("auth")),
    }
    return _response(await effect("http.request", order))


def _response(answer: JSON) -> JSON:
    """Return a response in the form for the workflow.

    Raises:
        WorkflowError: HttpError for a status of 400 or more; ResourceLimitError for more than 2 MB.
    """
    content = base64.b64decode(answer["body"] or "")
    if len(content) > RESPONSE_LIMIT:
        raise failure(Tag.RESOURCE_LIMIT, "the HTTP response is larger than 2 MB")
    response = {"body": _content(content, answer["headers"]), "code": answer["code"], "headers": answer["headers"]}
    if answer["code"] < FAILED:
        return response
    if isinstance(response["body"], bytes):  # bytes cannot be JSON, and an error may become JSON
        response["body"] = base64.b64encode(response["body"]).decode()
    raise failure(Tag.HTTP, f"HTTP server responded with error code {answer['code']}", **response)


def _content(content: bytes, headers: Mapping[str, str]) -> JSON:
    kind = headers.get("content-type", "")
    if _is_json(kind) and content:
        try:
            return decoded(content)
        except WorkflowError:
            return content.decode(errors="replace")
    if kind.startswith("text/") or not content:
        return content.decode(errors="replace") if content else None
    return content


def _fixed(method: str) -> Acting:
    async def acting(effect: Effect, arguments: Mapping[str, JSON]) -> JSON:
        return await _request(effect, method, arguments)

    return acting


async def _any_method(effect: Effect, arguments: Mapping[str, JSON]) -> JSON:
    need("http.request", "string", method=arguments["method"])
    return await _request(effect, arguments["method"].upper(), arguments)


_OPTIONAL: Final = ("timeout", "body", "headers", "query", "auth")

HTTP: Final[Sequence[Function]] = (
    *(
        Function(
            name=f"http.{method.lower()}", required=("url",), optional=_OPTIONAL, acting=_fixed(method), blocking=True
        )
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    ),
    Function(name="http.request", required=("method", "url"), optional=_OPTIONAL, acting=_any_method, blocking=True),
)
