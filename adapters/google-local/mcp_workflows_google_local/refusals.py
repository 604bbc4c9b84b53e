"""Refusals of API calls: a gRPC status, and Google's own words where they are known."""

from __future__ import annotations

import grpc


class RefusedError(Exception):
    """The call is answered with this status."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class LocalEngineError(Exception):
    """The local engine cannot start; the message says why and what to do."""


def invalid(text: str) -> RefusedError:
    """INVALID_ARGUMENT."""
    return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, text)


def not_found(name: str) -> RefusedError:
    """NOT_FOUND."""
    return RefusedError(grpc.StatusCode.NOT_FOUND, f"Resource '{name}' was not found")


def denied(permission: str, name: str) -> RefusedError:
    """PERMISSION_DENIED, as of all that belongs to another project."""
    return RefusedError(
        grpc.StatusCode.PERMISSION_DENIED,
        f"Permission '{permission}' denied on resource '{name}' (or it may not exist).",
    )
