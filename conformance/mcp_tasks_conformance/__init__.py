"""A black-box conformance suite for MCP servers with tasks of 2025-11-25 and Events: `mcp-tasks-conformance URL`.

The suite speaks raw JSON-RPC over Streamable HTTP. It uses no MCP SDK and no other package of this project.
"""
