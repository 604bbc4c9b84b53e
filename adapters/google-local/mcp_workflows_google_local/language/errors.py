"""Errors: at deployment (DeployError), in a run that may catch it (WorkflowError), uncaught (Raised).

Source: https://cloud.google.com/workflows/docs/reference/syntax/error-types
"""

from __future__ import annotations

from enum import StrEnum

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language.values import is_list, is_map


class Tag(StrEnum):
    """The tags that identify an error for a workflow."""

    AUTH = "AuthError"
    CONNECTION = "ConnectionError"
    CONNECTION_FAILED = "ConnectionFailedError"
    HTTP = "HttpError"
    INDEX = "IndexError"
    KEY = "KeyError"
    NOT_FOUND = "NotFound"
    PARALLEL_NESTING = "ParallelNestingError"
    RECURSION = "RecursionError"
    RESOURCE_LIMIT = "ResourceLimitError"
    SYSTEM = "SystemError"
    TIMEOUT = "TimeoutError"
    TYPE = "TypeError"
    UNHANDLED_BRANCH = "UnhandledBranchError"
    VALUE = "ValueError"
    ZERO_DIVISION = "ZeroDivisionError"


class DeployError(Exception):
    """The source cannot be deployed: the problem, its place (1-based line and column), and the remedy."""

    def __init__(self, text: str, *, line: int = 1, column: int = 1) -> None:
        super().__init__(text)
        self.text = text
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.text}"


class WorkflowError(Exception):
    """An error that `except` and `retry` may catch; they see `payload`: a map with tags, or what was raised."""

    def __init__(self, payload: JSON) -> None:
        super().__init__("an error of the workflow")  # the payload may contain secrets, so the message omits it
        self.payload: JSON = payload
        self.origin: tuple[str, str, int] | None = None  # routine, step and line of its origin, once known

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags; empty unless it is a map with tags."""
        tags = self.payload.get("tags") if is_map(self.payload) else None
        return tuple(str(tag) for tag in tags) if is_list(tags) else ()


class Exhausted(WorkflowError):  # noqa: N818  # it says what happened
    """The execution exceeded a limit; nothing catches this."""


class Raised(Exception):  # noqa: N818  # it says what happened
    """The execution failed with an uncaught error in this step of this routine, at this line."""

    def __init__(self, payload: JSON, routine: str, step: str, line: int = 0) -> None:
        super().__init__(f"in step {step!r}, routine {routine!r}, line: {line}")
        self.payload: JSON = payload
        self.routine = routine
        self.step = step
        self.line = line


def failure(tag: Tag, message: str, **more: JSON) -> WorkflowError:
    """Return the engine's own error with this tag."""
    return WorkflowError({"message": message, "tags": [tag.value], **more})
