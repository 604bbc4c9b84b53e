"""Replacing parts of moto, which fails loudly when moto has changed inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp_workflows_stepfunctions.local.release import LocalEngineError, moto_changed


def required(owner: Any, *names: str) -> None:
    """Check that a module or class of moto still has these parts.

    Raises:
        LocalEngineError: one is gone.
    """
    annotated = getattr(owner, "__annotations__", {})
    gone = [name for name in names if not hasattr(owner, name) and name not in annotated]
    if gone:
        raise LocalEngineError(
            moto_changed(f"{getattr(owner, '__name__', type(owner).__name__)} has no {', '.join(gone)}")
        )


def replace(owner: Any, name: str, part: Any) -> None:
    """Put a part of ours in the place of moto's."""
    required(owner, name)
    setattr(owner, name, part)


def wrap(owner: type, name: str, around: Callable[[Any], Any]) -> None:
    """Put a function of ours around a method that moto's class itself or a parent of it has."""
    required(owner, name)
    setattr(owner, name, around(getattr(owner, name)))
