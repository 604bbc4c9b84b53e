"""The outcome of a call: the result on standard output, errors on standard error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import mcp_types as types
import typer
from mcp.shared.exceptions import MCPError

from mcp_workflows.client import TaskState
from mcp_workflows.errors import TaskCancelled
from mcp_workflows.sidecar.cli.app import harmless


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One of: a result, a JSON-RPC error, a cancelled task, a task that was only begun."""

    result: types.CallToolResult | None = None
    error: types.ErrorData | None = None
    cancelled: str | None = None
    begun: TaskState | None = None
    no_task: bool = False  # the result is that of a call without a task

    @classmethod
    def of(cls, error: MCPError | TaskCancelled) -> Self:
        """Return the outcome for an error."""
        return cls(cancelled=str(error)) if isinstance(error, TaskCancelled) else cls(error=error.error)

    @property
    def status(self) -> str:
        """The status, in the words of the tasks extension."""
        if self.begun:
            return self.begun.status
        if self.cancelled:
            return "cancelled"
        if self.handle:
            return str(self.handle["status"])
        return "completed" if self.result else "failed"

    @property
    def handle(self) -> Mapping[str, Any] | None:  # Any: JSON
        """The `taskId` and `status` of a task that goes on, which a client without tasks gets instead of a result."""
        found: Mapping[str, Any] = (self.result and self.no_task and self.result.structured_content) or {}
        goes_on = found.get("status") in ("working", "input_required") and {"taskId", "next"} <= found.keys()
        return found if goes_on else None

    def tell(self, task_id: str | None, *, as_json: bool) -> int:
        """Print the outcome and return the exit code."""
        if as_json:
            _echo(json.dumps(self._as_json(task_id), indent=2, ensure_ascii=False))
        elif self.result:
            _echo("\n".join(_shown(self.result)), err=bool(self.result.is_error))
        else:
            self._tell_what_else()
        return 0 if self.begun or (self.result and not self.result.is_error) else 1

    def _tell_what_else(self) -> None:
        if self.begun:
            typer.echo(self.begun.task_id)
        elif self.error:
            _echo(f"error {self.error.code}: {self.error.message}", err=True)
        else:
            _echo(self.cancelled or "", err=True)

    def _as_json(self, task_id: str | None) -> dict[str, Any]:  # Any: JSON
        told: dict[str, Any] = {"taskId": task_id, "status": self.status, "message": self.cancelled}
        if self.handle:
            told["taskId"] = self.handle["taskId"]
        if self.result:
            told["result"] = self.result.model_dump(by_alias=True, mode="json", exclude_none=True)
        if self.error:
            told["error"] = self.error.model_dump(by_alias=True, mode="json", exclude_none=True)
        return {key: value for key, value in told.items() if value is not None}


def _echo(text: str, *, err: bool = False) -> None:
    """Print text without control characters: what is piped may be shown on a terminal later."""
    typer.echo(harmless(text), err=err, color=True)  # color: strip nothing


def _shown(result: types.CallToolResult) -> Iterator[str]:
    """Yield structured content as JSON, or else all text and the places of other content."""
    if result.structured_content is not None:
        yield json.dumps(result.structured_content, indent=2, ensure_ascii=False)
        return
    for block in result.content:
        if isinstance(block, types.TextContent):
            yield block.text
        elif isinstance(block, types.ResourceLink):
            yield f"{block.uri} ({block.name})"
        else:
            yield f"({block.type}: use --json)"
