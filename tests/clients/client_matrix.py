"""Clients that we did not write, and what each is to see of each situation: the tables of docs/use/clients.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.support.environments import FASTMCP, MCP_1X

MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"
HTTP: Final = "http"
STDIO: Final = "stdio"


class Runtime(StrEnum):
    """What runs a client's script."""

    NODE = "node"
    INSPECTOR = "inspector"
    MCP_1X = "mcp-1x"
    FASTMCP = "fastmcp"
    OURS = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One call: of which tool, and what the client must have been told in the end."""

    title: str
    tool: str
    arguments: Mapping[str, object]
    says: str = ""


SITUATIONS: Mapping[str, Situation] = {
    "result": Situation(
        title="result", tool="slow_compute", arguments={"seconds": 1, "label": "x"}, says="computed x in 1 s"
    ),
    "handle": Situation(
        title="longer than `wait`",
        tool="slow_compute_handed_over",
        arguments={"seconds": 3, "label": "y"},
        says="computed y in 3 s",
    ),
    "question": Situation(
        title="question", tool="confirm_delete", arguments={"filename": "a.txt"}, says="a.txt was deleted"
    ),
    "questions": Situation(title="two questions", tool="multi_input", arguments={}, says="Ada is sure"),
    "unasked": Situation(
        title="question, no elicitation",
        tool="confirm_delete",
        arguments={"filename": "c.txt"},
        says="c.txt was deleted",
    ),
    "polls": Situation(
        title="only `tasks/get`", tool="confirm_delete", arguments={"filename": "b.txt"}, says="b.txt was deleted"
    ),
    "cancel": Situation(title="cancel", tool="slow_compute_handed_over", arguments={"seconds": 60}),
    "failure": Situation(title="failure", tool="test_error_handling", arguments={}, says="this one always fails"),
    "refusal": Situation(title="`isError`", tool="refusal", arguments={}, says="there is no such order"),
    "error": Situation(title="protocol error", tool="protocol_error_job", arguments={}, says="this one always breaks"),
    "required": Situation(title="tasks required", tool="failing_job", arguments={}, says="task"),
}

ANSWERED: Mapping[str, str] = {"result": "result", "question": "result", "questions": "result"}
"""How these end for every client: who knows no tasks is asked during the call."""

HANDED: Mapping[str, str] = {
    **ANSWERED,
    "handle": "handle, result",
    "unasked": "handle, result",
    "cancel": "handle, cancelled",
    "failure": "isError",
    "refusal": "isError",
    "error": "error",
    "required": "error",
}
"""What every client sees that knows no tasks: a handle where it takes longer, and the task tools from there."""


ENGINES: Mapping[str, str] = {
    "temporal": "Temporal",
    "stepfunctions": "AWS Step Functions",
    "google": "Google Cloud Workflows",
    "dbos": "DBOS",
}
"""What the clients run against, and its name on the page: all of them see the same of each situation on each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Where engines differ: what `mcp-workflows call` shows of a call on each."""

    title: str
    call: Sequence[str]
    shows: Mapping[str, str]


WORDS: Sequence[Words] = (
    Words(
        title="at work",
        call=("slow_compute", "seconds=2", "label=x"),
        shows={"temporal": "computing x", "stepfunctions": "Computing", "google": "computing", "dbos": "computing x"},
    ),
    Words(
        title="how far it is",
        call=("test_tool_with_progress",),
        shows={
            "temporal": "50 % (50 of 100)",
            "stepfunctions": "A third (1 of 3)",
            "google": "second_third",
            "dbos": "50 % (50 of 100)",
        },
    ),
    Words(
        title="a failure",
        call=("test_error_handling",),
        shows={
            "temporal": "this one always fails",
            "stepfunctions": "AlwaysFails: this one always fails",
            "google": "this one always fails",
            "dbos": "this one always fails",
        },
    ),
    Words(
        title="a protocol error",
        call=("protocol_error_job",),
        shows=dict.fromkeys(ENGINES, "error -32603: this one always breaks"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client in one era: its package, its script in tests/clients/programs, and what it sees of each situation."""

    title: str
    packages: Sequence[str]
    era: str
    runtime: Runtime
    script: str
    sees: Mapping[str, str]
    transports: Sequence[str] = (HTTP, STDIO)
    note: str = ""
    tasks: bool = True  # whether it knows them


SDK_1X: Final = ("@modelcontextprotocol/sdk@1.32.2",)
EXT_TASKS: Final = ("@modelcontextprotocol/ext-tasks@0.2.2", "@modelcontextprotocol/client@2.4.0")
INSPECTOR: Final = ("@modelcontextprotocol/inspector@2.12.0",)

CLIENTS: Mapping[str, Client] = {
    "sdk-1x": Client(
        title="TypeScript SDK 1.x, `experimental.tasks`",
        packages=SDK_1X,
        era=LEGACY,
        runtime=Runtime.NODE,
        script="sdk_1x.mjs",
        sees={
            **ANSWERED,
            "polls": "result",
            "cancel": "cancelled",
            "failure": "failed, isError",
            "refusal": "failed, isError",
            "error": "failed, error",
        },
        note='Reports only "Task X failed"; the text is in `statusMessage` and `tasks/result`. '
        "After a question it waits in one request, for 60 s unless the host sets a longer `timeout`.",
    ),
    "ext-tasks-legacy": Client(
        title="ext-tasks",
        packages=EXT_TASKS,
        era=LEGACY,
        runtime=Runtime.NODE,
        script="ext_tasks.mjs",
        sees={
            **ANSWERED,
            "polls": "result",
            "cancel": "cancelled",
            "failure": "failed",
            "refusal": "failed",
            "error": "failed",
        },
        note="Calls `tasks/result` only after a success. For a failure it shows `statusMessage`.",
    ),
    "ext-tasks": Client(
        title="ext-tasks",
        packages=EXT_TASKS,
        era=MODERN,
        runtime=Runtime.NODE,
        script="ext_tasks.mjs",
        sees={**ANSWERED, "cancel": "cancelled", "failure": "isError", "refusal": "isError", "error": "failed"},
    ),
    "inspector-legacy": Client(
        title="Inspector, `mcpdo`",
        packages=INSPECTOR,
        era=LEGACY,
        runtime=Runtime.INSPECTOR,
        script="inspector.mjs",
        sees={
            **ANSWERED,
            "polls": "result",
            "cancel": "cancelled",
            "failure": "error",
            "refusal": "error",
            "error": "error",
        },
        note="Uses ext-tasks. A connection is busy until its call has ended: cancel on another one.",
    ),
    "inspector": Client(
        title="Inspector, `mcpdo`",
        packages=INSPECTOR,
        era=MODERN,
        runtime=Runtime.INSPECTOR,
        script="inspector.mjs",
        sees={**ANSWERED, "cancel": "cancelled", "failure": "isError", "refusal": "isError", "error": "error"},
    ),
    "mcp-1x": Client(
        title="Python SDK 1.x, `experimental`",
        packages=MCP_1X,
        era=LEGACY,
        runtime=Runtime.MCP_1X,
        script="mcp_1x.py",
        sees={
            **ANSWERED,
            "polls": "result",
            "cancel": "cancelled",
            "failure": "failed, isError",
            "refusal": "failed, isError",
            "error": "failed, error",
        },
    ),
    "fastmcp": Client(
        title="FastMCP with fastmcp-tasks",
        packages=FASTMCP,
        era=MODERN,
        runtime=Runtime.FASTMCP,
        script="with_fastmcp.py",
        sees={**ANSWERED, "cancel": "cancelled", "failure": "isError", "refusal": "isError", "error": "isError"},
        note="Sends no `Mcp-Name` with `tasks/*`. Shows a protocol error as a result with `isError`.",
    ),
    "tasks-client": Client(
        title="`TasksClient`",
        packages=(),
        era=MODERN,
        runtime=Runtime.OURS,
        script="tasks_client.py",
        sees={**ANSWERED, "cancel": "cancelled", "failure": "isError", "refusal": "isError", "error": "error"},
    ),
    "plain-sdk-1x": Client(
        title="TypeScript SDK 1.x",
        packages=SDK_1X,
        era=LEGACY,
        runtime=Runtime.NODE,
        script="sdk_1x_plain.mjs",
        sees=HANDED,
        tasks=False,
    ),
    "plain-mcp-1x": Client(
        title="Python SDK 1.x",
        packages=MCP_1X,
        era=LEGACY,
        runtime=Runtime.MCP_1X,
        script="mcp_1x_plain.py",
        sees=HANDED,
        tasks=False,
    ),
    "plain-client": Client(
        title="TypeScript SDK 2.x",
        packages=EXT_TASKS[1:],
        era=MODERN,
        runtime=Runtime.NODE,
        script="client_plain.mjs",
        sees=HANDED,
        tasks=False,
    ),
}
