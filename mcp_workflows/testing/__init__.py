"""The contract suite that proves an adapter, and an engine in memory.

Needs pytest. See `docs/write-an-adapter.md`.
"""

from __future__ import annotations

import pytest

from mcp_workflows.adapter import Role
from mcp_workflows.adapter.memory import MemoryAdapter, MemoryOptions, MemorySettings
from mcp_workflows.testing.laws import Subject

pytest.register_assert_rewrite("mcp_workflows.testing.adapter_contract")

from mcp_workflows.testing.adapter_contract import AdapterContract  # noqa: E402  # after registering
from mcp_workflows.testing.doubles import (  # noqa: E402  # after registering
    FindableMemoryAdapter,
    FindableMemorySettings,
    LossyProxy,
    MemoryNotes,
    lossy_proxy,
)
from mcp_workflows.testing.tasks import make_task  # noqa: E402  # after registering

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
