"""The meaning of exceptions of HTTP clients: urllib, requests, httpx, aiohttp. None is imported.

They are recognized by their class names. Sources: RFC 9110, section 15.5; RFC 6585, section 4; RFC 8470, section 5.2;
for bodies, RFC 9457 and the error formats of common frameworks.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final, cast

from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound

MAX_BODY: Final = 8192  # bytes to read from the body of a refusal
READ_SECONDS: Final = 1.0  # for the whole body
MAX_REASON: Final = 500  # characters of the reason to show

_LATER: Final = frozenset({408, 425, 429})  # outcome unknown, or nothing done yet: the same request may succeed
_THROTTLED: Final = 429
_GONE: Final = frozenset({404, 410})
CONFLICT: Final = 409
_ABOUT_THE_INPUT: Final = frozenset({413, 422})  # not 400, which some APIs also send for throttling and expired tokens
_CREDENTIALS: Final = frozenset({401, 407})  # such a reply may repeat the secret from the request
_FIRST: Final = 5  # maximum number of errors to show

_STACK_TRACE: Final = re.compile(r"Traceback \(most recent call last\)|^\s+at \S+\(|^\s+File \"", re.MULTILINE)
_CREDENTIAL: Final = re.compile(r"\b(Bearer|Basic) +\S+", re.IGNORECASE)
_REASONS: Final = (
    "detail",
    "error_description",
    "message",
    "msg",
    "error",
    "errors",
    "title",
    "reason",
    "details",
    "exception_message",
)


class AdapterVerb(StrEnum):
    """The verb of the call to the engine."""

    START = "start"
    DESCRIBE = "describe"
    ANSWER = "answer"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    """Functions that read an exception's response: its status, and at most `MAX_BODY` bytes of its body."""

    status: Callable[[Any], int]  # Any: an exception of a library that is not imported
    body: Callable[[Any], object]


def _read_urllib(error: Any) -> object:  # Any: urllib.error.HTTPError
    with error:
        return _gathered(iter(lambda: error.read1(MAX_BODY), b""))


def _read_requests(error: Any) -> object:  # Any: requests.HTTPError
    with error.response as response:
        return _gathered(response.iter_content(1))


def _gathered(pieces: Iterator[bytes]) -> bytes:
    """Return the pieces that arrive in time. A socket's time-out applies to each piece, and a slow server sends
    many."""
    body, until = b"", time.monotonic() + READ_SECONDS
    while len(body) < MAX_BODY and time.monotonic() < until and (piece := next(pieces, b"")):
        body += piece
    return body


_HTTPX: Final = _Response(status=lambda error: error.response.status_code, body=lambda error: error.response.content)

_RESPONSES: Final[Mapping[str, _Response | None]] = {
    "urllib.HTTPError": _Response(status=lambda error: error.code, body=_read_urllib),
    "requests.HTTPError": _Response(
        status=lambda error: getattr(error.response, "status_code", 0), body=_read_requests
    ),
    "httpx.HTTPStatusError": _HTTPX,
    "httpx2.HTTPStatusError": _HTTPX,
    "aiohttp.ClientResponseError": _Response(
        status=lambda error: error.status, body=lambda error: str(error.message).encode()
    ),
    # no response of the engine
    "aiohttp.ClientHttpProxyError": None,
    "aiohttp.ClientConnectionError": None,
    "aiohttp.ClientPayloadError": None,
    "httpx.RequestError": None,
    "httpx2.RequestError": None,
    "http.HTTPException": None,
}
"""The readers by package and class; the most derived class of an exception applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """The response of a server, from the exception of an HTTP client."""

    status: int  # 0: no response
    text: str  # for clients: the status and the reason in the body


def http_answer(error: Exception) -> HttpAnswer | None:
    """Return the response in an exception; None if no HTTP client raised it. Reading the body may block."""
    found = next((name for name in map(_name, type(error).__mro__) if name in _RESPONSES), None)
    if found is None:
        return None
    response = _RESPONSES[found]
    status = response.status(error) if response else 0
    if response is None or not status:
        return HttpAnswer(status=0, text=f"its adapter met a {type(error).__name__}")
    return HttpAnswer(status=status, text=f"it answered {status}{_reason_of(error, response, status)}")


def engine_error(answer: HttpAnswer, verb: AdapterVerb, *, once: bool) -> EngineError:
    """Return the engine error for a response without an entry in a table.

    `once`: the engine guarantees nothing about repeated starts.
    """
    status, text = answer.status, answer.text
    if not status:
        return EngineUnavailable(text)
    if status in _LATER or not 400 <= status < 500:
        return EngineUnavailable(text, throttled=status == _THROTTLED)
    if verb is AdapterVerb.DESCRIBE:
        return ExecutionNotFound(text) if status in _GONE else EngineUnavailable(text, silent=False)
    if status == CONFLICT and verb is AdapterVerb.START and not once:
        unsaid = "its adapter does not say whether that means that it has been started already"
        return EngineUnavailable(f"{text}; {unsaid}", silent=False)
    return EngineRefused(text, final=status in _ABOUT_THE_INPUT)


def _name(kind: type) -> str:
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _reason_of(error: Exception, response: _Response, status: int) -> str:
    try:
        body = response.body(error)  # for any status: reading closes the response
    except (
        OSError,
        ValueError,
        RuntimeError,
        AttributeError,
        HTTPException,
    ):  # lost, closed, or never there
        body = b""
    if status in _CREDENTIALS:
        return ": it does not accept our credentials"
    refused = 400 <= status < 500  # a failing server often sends a stack trace
    reason = reason_in(body[:MAX_BODY]) if refused and isinstance(body, bytes) else ""
    phrase = HTTPStatus(status).phrase if status in _PHRASES else ""
    return f": {reason}" if reason else f" {phrase}".rstrip()


_PHRASES: Final = frozenset(HTTPStatus)


def reason_in(body: bytes) -> str:
    """Return the message of a body on one line, without HTML pages and stack traces."""
    text = body.decode("utf-8", "replace").strip("\ufeff \r\n\t")
    if text.startswith(("{", "[", '"')):  # JSON: other fields may repeat the request, with its credentials
        try:
            text = _stated_reason(json.loads(text))
        except (ValueError, RecursionError):
            return ""
    text = _CREDENTIAL.sub(r"\1 ...", text)
    return "" if text.startswith("<") or _STACK_TRACE.search(text) else " ".join(cleaned(text, MAX_REASON).split())


def _stated_reason(found: object) -> str:
    """Return the text of the usual reason fields; empty if there are none."""
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        return "; ".join(filter(None, map(_stated_reason, cast("list[object]", found)[:_FIRST])))
    if not isinstance(found, dict):
        return ""
    fields = cast("dict[str, object]", found)
    reason = next(filter(None, (_stated_reason(fields.get(name)) for name in _REASONS)), "")
    if not reason and fields and all(_is_complaint(value) for value in fields.values()):  # the format of Django REST
        return "; ".join(f"{name}: {_stated_reason(value)}" for name, value in list(fields.items())[:_FIRST])
    place = fields.get("loc")  # the format of FastAPI and pydantic
    at = ".".join(map(str, cast("list[object]", place))) + ": " if isinstance(place, list) else ""
    return f"{at}{reason}" if reason else ""


def _is_complaint(value: object) -> bool:
    """True if it is a list of errors of one field."""
    return isinstance(value, list) and all(isinstance(item, str) for item in cast("list[object]", value))
