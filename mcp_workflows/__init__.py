"""Your workflow engine's executions as MCP tasks, in every MCP host."""

from mcp_workflows.receiver import Workflows, attach
from mcp_workflows.tool import Annotations, Ask, TaskSupport, Tool

__all__ = ["Annotations", "Ask", "TaskSupport", "Tool", "Workflows", "attach"]
