"""Payments: the tasks of a queue as MCP tasks."""
