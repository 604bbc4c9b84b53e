"""The supported releases of moto, and the error for all others."""

from __future__ import annotations

from typing import Final

MOTO: Final = "moto>=5.2.5,<5.3"  # as in pyproject.toml
_FIRST, _AFTER = (5, 2, 5), (5, 3)
_INSTALL: Final = "pip install 'mcp-workflows[stepfunctions-local]'"


class LocalEngineError(Exception):
    """The local engine cannot start; the message gives the reason and the remedy."""


def is_known(version: str) -> bool:
    """Return True if our patches were made for this version of moto."""
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    return _FIRST <= numbers < _AFTER


def describe_misfit(reason: str) -> str:
    """Return the message for an unsupported moto."""
    return f"the local engine is made for {MOTO} and does not fit the moto that is installed ({reason}): {_INSTALL}"
