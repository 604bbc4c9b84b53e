"""The contract suite that proves an adapter, and an engine in memory.

The suite needs pytest; `laws` does not, as the program uses it. See `docs/extend/write-an-adapter.md`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_workflows.adapter import Role
    from mcp_workflows.adapter.memory import MemoryAdapter, MemoryOptions, MemorySettings
    from mcp_workflows.testing.adapter_contract import AdapterContract
    from mcp_workflows.testing.doubles import (
        FindableMemoryAdapter,
        FindableMemorySettings,
        LossyProxy,
        MemoryNotes,
        lossy_proxy,
    )
    from mcp_workflows.testing.laws import Subject
    from mcp_workflows.testing.tasks import make_task

__all__ = [
    "AdapterContract",
    "FindableMemoryAdapter",
    "FindableMemorySettings",
    "LossyProxy",
    "MemoryAdapter",
    "MemoryNotes",
    "MemoryOptions",
    "MemorySettings",
    "Role",
    "Subject",
    "lossy_proxy",
    "make_task",
]

_HOME = {
    "AdapterContract": "testing.adapter_contract",
    **dict.fromkeys(
        ["FindableMemoryAdapter", "FindableMemorySettings", "LossyProxy", "MemoryNotes", "lossy_proxy"],
        "testing.doubles",
    ),
    **dict.fromkeys(["MemoryAdapter", "MemoryOptions", "MemorySettings"], "adapter.memory"),
    "Role": "adapter",
    "Subject": "testing.laws",
    "make_task": "testing.tasks",
}


if pytest := sys.modules.get("pytest"):
    pytest.register_assert_rewrite(f"{__name__}.adapter_contract")


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"mcp_workflows.{_HOME[name]}"), name)
