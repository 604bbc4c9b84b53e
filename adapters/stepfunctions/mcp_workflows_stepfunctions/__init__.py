"""AWS Step Functions executions as MCP tasks: the Step Functions adapter of mcp-workflows."""

from __future__ import annotations

from mcp_workflows_stepfunctions.adapter import StepFunctionsAdapter
from mcp_workflows_stepfunctions.settings import StepFunctionsOptions, StepFunctionsSettings

__all__ = ["StepFunctionsAdapter", "StepFunctionsOptions", "StepFunctionsSettings"]
