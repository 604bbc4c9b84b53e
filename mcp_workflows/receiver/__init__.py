"""The MCP side: the only contact with the SDK's server."""
