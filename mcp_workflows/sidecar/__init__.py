"""The sidecar: configuration, command line, HTTP application, and what operators see of it."""

DISTRIBUTION = "mcp-workflows"
"""The name of the distribution, and of its command."""
