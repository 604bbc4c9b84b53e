"""`mcp-workflows verify`: the laws of the boundary on a real engine."""
