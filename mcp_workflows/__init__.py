"""Your workflow engine's executions as MCP tasks, in every MCP host."""

from mcp_workflows.access import Allow, Authorizer, Rule, Verb, Wish
from mcp_workflows.client import TasksClient
from mcp_workflows.duration import Duration
from mcp_workflows.functions import from_functions
from mcp_workflows.gate import ToolGate
from mcp_workflows.limits import Limits, ToolLimits
from mcp_workflows.question import Ask, Question
from mcp_workflows.receiver import Workflows, attach
from mcp_workflows.tool import Annotations, Fallback, Kind, TaskSupport, Tool

__all__ = [
    "Allow",
    "Annotations",
    "Ask",
    "Authorizer",
    "Duration",
    "Fallback",
    "Kind",
    "Limits",
    "Question",
    "Rule",
    "TaskSupport",
    "TasksClient",
    "Tool",
    "ToolGate",
    "ToolLimits",
    "Verb",
    "Wish",
    "Workflows",
    "attach",
    "from_functions",
]
