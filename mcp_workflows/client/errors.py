"""Errors of one task that are the MCP SDK's `MCPError` too; `mcp_workflows.errors` draws the tree of all errors."""

from __future__ import annotations

from typing import Any

from mcp.shared.exceptions import MCPError

from mcp_workflows.errors import ClientError


class TaskError(ClientError, MCPError):
    """A JSON-RPC error about one task; code that catches the SDK's `MCPError` of plain calls catches it, too."""

    def __init__(self, task_id: str, code: int, message: str, data: Any = None) -> None:  # Any: any JSON value
        MCPError.__init__(self, code, message, data)
        self.task_id = task_id


class TaskFailed(TaskError):
    """The task that was followed ended with a JSON-RPC error: `code`, `message`, `data`."""


class TaskNotFound(TaskError):
    """The server does not know the task: the id is wrong, another owner's (they look alike), or long gone."""


class TaskExpired(TaskNotFound):
    """The server knew the task, and its time to live is over; other servers may raise `TaskNotFound` instead."""


class AnswerRejected(TaskError):
    """The server refused an answer that does not fit its question; the task goes on and still asks."""
