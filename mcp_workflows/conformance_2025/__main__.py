"""python -m mcp_workflows.conformance_2025 URL."""

from __future__ import annotations

import sys

from mcp_workflows.conformance_2025.command import main

if __name__ == "__main__":
    sys.exit(main())
