"""Waits of tests: each is for a condition, with one timeout that holds on a machine under load, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

TIMEOUT: Final = 120.0  # seconds after which a condition that does not come true fails the test


async def until(condition: Callable[[], bool], within: float = TIMEOUT) -> None:
    """Wait until the condition is true."""
    with anyio.fail_after(within):
        while not condition():
            await anyio.sleep(0.01)
