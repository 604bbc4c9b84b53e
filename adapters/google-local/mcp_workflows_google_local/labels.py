"""Google's rules for labels of workflows and executions.

Source: google/cloud/workflows/executions/v1/executions.proto, Execution.labels
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_workflows_google_local.refusals import invalid

MOST: Final = 64
LONGEST: Final = 63


def check_labels(labels: Mapping[str, str]) -> None:
    """Refuse labels that Google would refuse."""
    if len(labels) > MOST:
        raise invalid(f"{len(labels)} labels are more than {MOST}")
    for key, value in labels.items():
        if not key or not key[0].isalpha() or not _fits(key):
            raise invalid(f"label key {key!r} is invalid: {_RULE}, and it must start with a letter")
        if not _fits(value):
            raise invalid(f"value {value!r} of label {key!r} is invalid: {_RULE}")


_RULE = f"at most {LONGEST} characters, only lowercase letters, digits, underscores and dashes"


def _fits(text: str) -> bool:
    return len(text) <= LONGEST and all(char in "_-" or (char.isalnum() and not char.isupper()) for char in text)
