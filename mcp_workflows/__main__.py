"""The command `mcp-workflows`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Final

_SERVER: Final = ("httptools", "rich", "ruamel.yaml", "typer", "watchfiles")  # of the extra `server`


def main() -> None:
    """Run the command line.

    Raises:
        SystemExit: always, with the exit code.
    """
    if missing := [name for name in _SERVER if not _is_installed(name)]:
        sys.exit(f"mcp-workflows: {', '.join(missing)} not installed; pip install 'mcp-workflows[server]'")
    import_module("mcp_workflows.sidecar.cli.app").main()


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # nor is its parent
        return False


if __name__ == "__main__":
    main()
