"""The sidecar: configuration, command line, HTTP application, and observability."""

DISTRIBUTION = "mcp-workflows"
"""The name of the distribution and of its command."""
