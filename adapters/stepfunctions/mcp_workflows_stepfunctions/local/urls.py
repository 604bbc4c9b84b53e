"""Where moto's server finds our answers: it looks for a module of this name beside the class of a store."""

from __future__ import annotations

from typing import Final

from moto.stepfunctions.urls import url_bases as url_bases

from mcp_workflows_stepfunctions.local.calls_executions import ExecutionCalls
from mcp_workflows_stepfunctions.local.calls_tokens import TokenCalls
from mcp_workflows_stepfunctions.local.calls_versions import VersionCalls


class Answers(ExecutionCalls, TokenCalls, VersionCalls):
    """All calls of the API."""


url_paths: Final = {"{0}/$": Answers.dispatch}
