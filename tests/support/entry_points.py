"""`importlib.metadata.entry_points`, remembered: each call reads a file of each package that is installed.

Whoever opens a store or loads a configuration makes several calls, which cost more than all else that a test does.
"""

from __future__ import annotations

import importlib.metadata
import sys
from functools import cache
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any, Final

_NAME: Final = "entry_points"
_READ: Final[Any] = importlib.metadata.entry_points  # Any: what it returns differs by version


@cache
def _has_packages(folder: str) -> bool:
    return any(Path(folder).glob("*.*-info"))


@cache
def _found_in(_: tuple[str, ...], group: str) -> EntryPoints:
    return _READ(group=group)


def remembered(*, group: str = "", **params: Any) -> Any:
    """Return the entry points of a group that `importlib.metadata` has found in these folders of `sys.path`."""
    if not group:
        return _READ(**params)
    return _found_in(tuple(filter(_has_packages, sys.path)), group).select(**params)


def remember_entry_points() -> None:
    """Have all modules of this process ask here."""
    for module in (importlib.metadata, *sys.modules.values()):
        if getattr(module, "__dict__", {}).get(_NAME) is _READ:
            setattr(module, _NAME, remembered)
