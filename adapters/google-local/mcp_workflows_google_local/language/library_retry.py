"""retry.* and http.default_retry*: ready predicates, delays and policies for `retry`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language.errors import Tag, WorkflowError
from mcp_workflows_google_local.language.values import is_map

Predicate: TypeAlias = Callable[[WorkflowError], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The delays between attempts, in seconds."""

    initial_delay: float
    max_delay: float
    multiplier: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When to retry, and the maximum number of times."""

    predicate: str
    max_retries: int
    backoff: Backoff


def _http(codes: frozenset[int], tags: frozenset[str]) -> Predicate:
    def retries(error: WorkflowError) -> bool:
        code: JSON = error.payload.get("code") if is_map(error.payload) else None
        return bool(tags.intersection(error.tags)) or (Tag.HTTP in error.tags and code in codes)

    return retries


PREDICATES: Final[Mapping[str, Predicate]] = {
    "http.default_retry_predicate": _http(
        frozenset({429, 502, 503, 504}), frozenset({Tag.CONNECTION, Tag.CONNECTION_FAILED, Tag.TIMEOUT})
    ),
    "http.default_retry_predicate_non_idempotent": _http(frozenset({429, 503}), frozenset({Tag.CONNECTION_FAILED})),
    "retry.always": lambda error: True,
    "retry.never": lambda error: False,
}

BACKOFFS: Final[Mapping[str, Backoff]] = {
    "retry.default_backoff": Backoff(initial_delay=1, max_delay=60, multiplier=1.25)
}

POLICIES: Final[Mapping[str, Policy]] = {
    name: Policy(predicate=predicate, max_retries=5, backoff=BACKOFFS["retry.default_backoff"])
    for name, predicate in (
        ("http.default_retry", "http.default_retry_predicate"),
        ("http.default_retry_non_idempotent", "http.default_retry_predicate_non_idempotent"),
    )
}
