"""Your workflow engine's executions as MCP tasks, in every MCP host.

The names below are imported when they are first used: the command line and adapters need few of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_workflows.access import AccessRequest, Allow, Authorizer, Rule, Verb
    from mcp_workflows.access.limit_settings import Limits, ToolLimits
    from mcp_workflows.client import TasksClient
    from mcp_workflows.kit.functions import from_functions
    from mcp_workflows.receiver.attach import Workflows, attach
    from mcp_workflows.tools.questions import GateQuestion, Question
    from mcp_workflows.tools.tool import Annotations, Card, Kind, TaskSupport, Tool, WatchTool
    from mcp_workflows.units import Duration

__all__ = [
    "AccessRequest",
    "Allow",
    "Annotations",
    "Authorizer",
    "Card",
    "Duration",
    "GateQuestion",
    "Kind",
    "Limits",
    "Question",
    "Rule",
    "TaskSupport",
    "TasksClient",
    "Tool",
    "ToolLimits",
    "Verb",
    "WatchTool",
    "Workflows",
    "attach",
    "from_functions",
]

_HOME = {
    **dict.fromkeys(["Allow", "Authorizer", "Rule", "Verb", "AccessRequest"], "access"),
    "TasksClient": "client",
    "Duration": "units",
    "from_functions": "kit.functions",
    **dict.fromkeys(["Limits", "ToolLimits"], "access.limit_settings"),
    **dict.fromkeys(["GateQuestion", "Question"], "tools.questions"),
    **dict.fromkeys(["Workflows", "attach"], "receiver.attach"),
    **dict.fromkeys(["Annotations", "Card", "Kind", "TaskSupport", "Tool", "WatchTool"], "tools.tool"),
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
