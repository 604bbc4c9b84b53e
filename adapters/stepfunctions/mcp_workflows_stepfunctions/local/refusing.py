"""The errors of the API."""

from __future__ import annotations

from moto.core.exceptions import AWSError


class RefusedError(AWSError):
    """A call is refused: AWS's code for it, and AWS's words where they are known."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code)
