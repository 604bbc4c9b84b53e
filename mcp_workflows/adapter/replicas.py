"""The number of live replicas of this server, for adapters that use a share of an engine's quota."""

from __future__ import annotations

_live: list[int] = []  # the latest number; empty: the store does not count them


def set_live_replicas(replicas: int | None) -> None:
    """Note how many replicas share the store now; None: this process has left."""
    _live[:] = [] if replicas is None else [replicas]


def replica_count(configured: int) -> int:
    """Return how many processes share a quota: the live replicas, or as many as configured if nothing counts them."""
    return _live[0] if _live else configured
