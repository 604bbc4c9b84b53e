"""The entry point of the command line.

Standard output holds only the answer to a command (MCP on stdio, a snippet, JSON); everything else goes to standard
error. Exit code 0: success, 1: a clear message says what is wrong, 2: wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from mcp_workflows.adapter.redaction import mask
from mcp_workflows.errors import WorkflowsError
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.cli.app import app, say


def main() -> None:
    """Run the command; print errors that this package raises on purpose as messages, without a stack trace."""
    failures: list[str] = []
    try:
        app(prog_name=DISTRIBUTION)
    except* WorkflowsError as group:
        failures.extend(_messages(group))
    for failure in failures:
        say(mask(failure), err=True)
    sys.exit(1 if failures else 0)


def _messages(group: BaseExceptionGroup[WorkflowsError]) -> Iterator[str]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _messages(error)
        else:
            yield str(error)
