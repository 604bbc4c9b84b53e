"""The command line: one module per command.

Standard output belongs to what was asked for (MCP on stdio, a snippet, JSON); everything else goes to standard
error. Exit code 0: fine, 1: a clear message says what is wrong, 2: wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from mcp_workflows.errors import WorkflowsError
from mcp_workflows.sidecar.cli import call as calling
from mcp_workflows.sidecar.cli import check as checking
from mcp_workflows.sidecar.cli import config as showing
from mcp_workflows.sidecar.cli import connect as connecting
from mcp_workflows.sidecar.cli import dev as developing
from mcp_workflows.sidecar.cli import docs, init, new_adapter, tasks
from mcp_workflows.sidecar.cli import helper as embedding
from mcp_workflows.sidecar.cli import iam as permitting
from mcp_workflows.sidecar.cli import import_ as importing
from mcp_workflows.sidecar.cli import replay as replaying
from mcp_workflows.sidecar.cli import serve as serving
from mcp_workflows.sidecar.cli import store as storing
from mcp_workflows.sidecar.cli import token as handing_out
from mcp_workflows.sidecar.cli.app import command_line
from mcp_workflows.sidecar.cli.progress import say
from mcp_workflows.sidecar.config.models import DISTRIBUTION

__all__ = ["COMMANDS", "main"]

# importing them hangs them on the application, in this order
COMMANDS = (
    serving,
    developing,
    checking,
    showing,
    calling,
    tasks,
    storing,
    replaying,
    importing,
    init,
    permitting,
    handing_out,
    connecting,
    embedding,
    new_adapter,
    docs,
)


def main() -> None:
    """The entry point: what we raise on purpose is a message, and never a stack trace."""
    failures: list[str] = []
    try:
        command_line()(prog_name=DISTRIBUTION)
    except* WorkflowsError as group:
        failures.extend(_messages(group))
    for failure in failures:
        say(failure, err=True)
    sys.exit(1 if failures else 0)


def _messages(group: BaseExceptionGroup[WorkflowsError]) -> Iterator[str]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _messages(error)
        else:
            yield str(error)
