"""Acme's engraving orders as MCP tasks."""

from mcp_workflows_acme.adapter import AcmeAdapter, AcmeOptions, AcmeSettings

__all__ = ["AcmeAdapter", "AcmeOptions", "AcmeSettings"]
