"""The standard library: one table of all functions, their parameters, and where they may be called.

Source: https://cloud.google.com/workflows/docs/reference/stdlib/overview
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mcp_workflows_google_local.language.functions import Function
from mcp_workflows_google_local.language.library_data import DATA
from mcp_workflows_google_local.language.library_http import HTTP
from mcp_workflows_google_local.language.library_retry import POLICIES, PREDICATES
from mcp_workflows_google_local.language.library_sys import SYS
from mcp_workflows_google_local.language.library_text import TEXT

FUNCTIONS: Final[Mapping[str, Function]] = {
    function.name: function for functions in (DATA, HTTP, SYS, TEXT) for function in functions
}

MISSING: Final[Mapping[str, str]] = {
    "googleapis.": "connectors are not here: call the service's REST API with http.request instead",
    "experimental.": "it is experimental at Google and not here: start executions with http.post instead",
}
"""Prefixes of Google's functions that this engine lacks, and the remedy."""


_SHIPPED: Final = ("mcp_elicit", "mcp_claim", "mcp_retry")


def why_unknown(name: str) -> str:
    """Return the reason why there is no function of this name."""
    advice = next((text for prefix, text in MISSING.items() if name.startswith(prefix)), None)
    if name in _SHIPPED:
        return f"There is no subworkflow {name!r}: append what `mcp-workflows print helper google` prints"
    return f"{name} is not supported: {advice}" if advice else f"There is no function or subworkflow {name!r}"


def supported() -> Sequence[tuple[str, str, str]]:
    """Return all functions, for docs: name, parameters (`?`: optional), and where they may be called."""
    rows = [(name, function.signature, function.where) for name, function in FUNCTIONS.items()]
    rows += [(name, "error", "retry predicate") for name in PREDICATES]
    rows += [(name, "", "retry policy") for name in POLICIES]
    return sorted(rows)
