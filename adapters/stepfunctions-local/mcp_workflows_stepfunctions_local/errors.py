"""The errors of the API."""

from __future__ import annotations

from moto.core.exceptions import AWSError


class RefusedError(AWSError):
    """A refused call, with AWS's error code, and AWS's message if known."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code)
