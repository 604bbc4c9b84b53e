"""The MCP side: the only part that uses the SDK's server."""
