"""The command `mcp-workflows`: completes a line of a shell, or runs the command line, which takes seconds to import."""

from __future__ import annotations

import os
from importlib import import_module

from mcp_workflows.sidecar.cli.completion import ASKED_BY_SHELL, complete


def main() -> None:
    """Do what this process was started for.

    Raises:
        SystemExit: always, with the exit code.
    """
    if ASKED_BY_SHELL in os.environ:
        complete()
    import_module("mcp_workflows.sidecar.cli.main").main()


if __name__ == "__main__":
    main()
