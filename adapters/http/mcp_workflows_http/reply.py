"""Replies of the API: their status, body, and the times in their headers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from mcp_workflows.adapter import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply of the API; `body` is None if it is not JSON."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    content: bytes
    is_throttled: bool = False  # by the definition

    @property
    def ok(self) -> bool:
        """True for a status of success."""
        return 200 <= self.status < 300  # the class of HTTP status

    @property
    def is_unauthorized(self) -> bool:
        """True if our credentials are not accepted."""
        return self.status == 401  # RFC 9110, section 15.5.2

    @property
    def is_client_error(self) -> bool:
        """True if the API, or a proxy in front of it, refuses the request."""
        return 400 <= self.status < 500

    @property
    def is_server_error(self) -> bool:
        """True if the API failed."""
        return self.status >= 500  # including codes over 599, which some gateways invent

    @property
    def text(self) -> str:
        """The body as a text."""
        return self.content.decode("utf-8", "replace")

    @property
    def body(self) -> JSON:
        """The body as JSON, or None."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            return None

    @property
    def is_json(self) -> bool:
        """True if the body is JSON or empty: then the API wrote it, not a proxy."""
        return not self.content or self.body is not None or self.content.strip() == b"null"

    @property
    def date(self) -> float | None:
        """The time of the API's clock in seconds since 1970, if the reply has it."""
        return _seconds_of(self.headers.get("date"))

    def as_json(self) -> Mapping[str, JSON]:
        """Return the reply for expressions."""
        body = self.body
        return {
            "status": self.status,
            "headers": dict(self.headers),
            "body": body,
            "text": self.text if body is None else None,
        }


def retry_after(reply: Reply, now: float) -> float | None:
    """Return the seconds in the header Retry-After, which is a number or a date by the API's clock."""
    written = reply.headers.get("retry-after")
    if written is None:
        return None
    if written.strip().isdecimal():
        return float(written)
    until = _seconds_of(written)
    return None if until is None else max(0.0, until - (reply.date or now))


def _seconds_of(date: str | None) -> float | None:
    """Return an HTTP date in seconds since 1970, or None for another text."""
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
