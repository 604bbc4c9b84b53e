"""A black-box suite for receivers of MCP tasks as of 2025-11-25: python -m mcp_workflows.conformance_2025 URL.

It speaks raw JSON-RPC over Streamable HTTP, with no MCP SDK in between, and imports nothing else of this project.
"""
