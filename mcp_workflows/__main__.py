"""The command `mcp-workflows`: completes a line of a shell, or runs the command line."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Final

ASKED_BY_SHELL: Final = "_MCP_WORKFLOWS_COMPLETE"  # the variable that Typer's scripts for shells set
_SERVER: Final = ("httptools", "rich", "ruamel.yaml", "typer", "watchfiles")  # of the extra `server`


def main() -> None:
    """Run what this process was started for.

    Raises:
        SystemExit: always, with the exit code.
    """
    if missing := [name for name in _SERVER if not _is_installed(name)]:
        sys.exit(f"mcp-workflows: {', '.join(missing)} not installed; pip install 'mcp-workflows[server]'")
    if ASKED_BY_SHELL in os.environ:
        import_module("mcp_workflows.sidecar.cli.completion").complete()
    import_module("mcp_workflows.sidecar.cli.main").main()


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # nor is its parent
        return False


if __name__ == "__main__":
    main()
