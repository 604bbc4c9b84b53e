"""Refusals of API calls: a gRPC status, and Google's own text if known."""

from __future__ import annotations

import grpc


class RefusedError(Exception):
    """A call that gets this status."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class LocalEngineError(Exception):
    """The local engine cannot start; the message gives the reason and the remedy."""


def invalid(text: str) -> RefusedError:
    """Return INVALID_ARGUMENT."""
    return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, text)


def not_found(name: str) -> RefusedError:
    """Return NOT_FOUND."""
    return RefusedError(grpc.StatusCode.NOT_FOUND, f"Resource '{name}' was not found")


def denied(permission: str, name: str) -> RefusedError:
    """Return PERMISSION_DENIED, as for any other project."""
    return RefusedError(
        grpc.StatusCode.PERMISSION_DENIED,
        f"Permission '{permission}' denied on resource '{name}' (or it may not exist).",
    )
