"""Definitions of the task tools, with which clients without tasks continue a task that they got as text; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final

from mcp_workflows.adapter import JSON
from mcp_workflows.tools.json_schema import Checker, Schema
from mcp_workflows.tools.tool import AnyTool


class Name(StrEnum):
    """The names reserved for task tools; no other tool may use them where task tools are offered."""

    STATUS = "task_status"
    WAIT = "task_wait"
    ANSWER = "task_answer"
    CANCEL = "task_cancel"
    ACTION = "task_action"
    LIST = "my_tasks"
    QUESTIONS = "open_questions"
    FIND = "task_find"


FOR_OWN: Final = frozenset({Name.STATUS, Name.WAIT, Name.ANSWER, Name.CANCEL, Name.LIST})  # for the caller's own tasks
FOR_CARDS: Final = frozenset(
    {Name.STATUS, Name.ANSWER, Name.CANCEL, Name.ACTION, Name.FIND}
)  # the only ones that cards call
DECISIONS: Final = frozenset({Name.ANSWER, Name.CANCEL, Name.ACTION})  # not the model's with `card: answers_only`
FOR_APPROVERS: Final = frozenset({Name.QUESTIONS, Name.STATUS, Name.ANSWER})  # for others' tasks


TASK_TOOL_NAMES: Final = frozenset(name.value for name in Name)
TAKEN: Final = (
    "this name is reserved for a task tool: rename the tool, or turn the task tools off with `tasks: wait` or "
    "`required` on every tool with optional tasks, no `my_tasks`, approvals or actions, and no rules for others than "
    "owners"
)


@dataclass(frozen=True, kw_only=True)
class TaskTool:
    """One of the task tools."""

    name: Name
    title: str
    description: str  # for the model: when to use it, and what it returns
    properties: Schema
    required: Sequence[str] = ()
    annotations: Mapping[str, bool] = field(default_factory=dict[str, bool])
    lists: bool = False  # lists the caller's tasks or questions: for identified callers only

    @cached_property
    def input(self) -> Schema:
        """The JSON Schema of its arguments."""
        required = {"required": list(self.required)} if self.required else {}
        return {"type": "object", "properties": self.properties, **required, "additionalProperties": False}

    @cached_property
    def listed(self) -> Mapping[str, JSON]:
        """The definition for `tools/list`."""
        return {
            "name": self.name.value,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input,
            "annotations": dict(self.annotations),
        }

    @cached_property
    def checker(self) -> Checker:
        """The checker of its arguments."""
        return Checker(self.input)


def task_tools() -> Sequence[TaskTool]:
    """Return all task tools, in the order of the list."""
    return _ALL


def task_tool(name: object) -> TaskTool | None:
    """Return the task tool with that name; None if there is none."""
    return _BY_NAME.get(name) if isinstance(name, str) else None


def offered(tools: Iterable[AnyTool], *, my_tasks: bool) -> bool:
    """True if task tools are offered with these tools.

    That is when a client may get a task id in text, tasks are listed, or others' tasks may wait for an answer.
    """
    return my_tasks or any(
        tool.hands_over or tool.approvals or tool.actions or (tool.allow and tool.allow.asks_others) for tool in tools
    )


def clashes(tools: Iterable[AnyTool], *, my_tasks: bool) -> Iterator[tuple[str, str]]:
    """Yield the tools with a reserved name, with advice, if task tools are offered."""
    known = list(tools)
    if not offered(known, my_tasks=my_tasks):
        return
    for tool in known:
        if tool.name in TASK_TOOL_NAMES:
            yield tool.name, TAKEN


_TASK_ID: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 200,
    "description": "The taskId that the tool returned.",
}
_READ_ONLY: Final = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}

_ALL: Final[Sequence[TaskTool]] = (
    TaskTool(
        name=Name.STATUS,
        title="Status of a task",
        description="Get the status of a task: long-running work that a tool started, returning a taskId. Returns at "
        "once: the current step, open questions or, once the task has ended, the result. To wait for the result use "
        f"{Name.WAIT.value}.",
        properties={"taskId": _TASK_ID},
        required=["taskId"],
        annotations=_READ_ONLY,
    ),
    TaskTool(
        name=Name.WAIT,
        title="Wait for a task",
        description="Wait for a task. Returns its result as soon as it ends, or its question as soon as it asks one. "
        "If neither happens for a while, it returns the status: call it again then. Do not call the tool that started "
        "the task again: that starts the work twice.",
        properties={
            "taskId": _TASK_ID,
            "seconds": {
                "type": "number",
                "minimum": 0,
                "description": "The longest wait. The server may return the status earlier.",
            },
        },
        required=["taskId"],
        annotations=_READ_ONLY,
    ),
    TaskTool(
        name=Name.ANSWER,
        title="Answer a task's question",
        description="Answer a question of a task whose status is input_required. The status has the question and the "
        "JSON Schema of its answer. Ask the user and pass on their answer: never answer for them. Returns the new "
        "status.",
        properties={
            "taskId": _TASK_ID,
            "key": {
                "type": "string",
                "description": "The key of the question in the status. Optional if the task has asked only this "
                "question.",
            },
            "action": {
                "type": "string",
                "enum": ["accept", "decline", "cancel"],
                "default": "accept",
                "description": "accept: the user answers with `content`, even if the answer is no; decline: the user "
                "refuses, if the question can be declined; cancel: the user makes no choice.",
            },
            "content": {
                "type": "object",
                "description": "With accept: the answer, an object that matches the question's schema. With decline: "
                "the user's reason, if the schema has the field `reason`.",
            },
        },
        required=["taskId"],
        annotations={
            "readOnlyHint": False,
            "destructiveHint": True,  # an approval may be what makes a workflow destroy something
            "idempotentHint": False,
            "openWorldHint": True,
        },
    ),
    TaskTool(
        name=Name.CANCEL,
        title="Cancel a task",
        description="Cancel a task, if the user wants that. The workflow may take a while to stop, clean up first, or "
        "complete anyway: the status shows the outcome.",
        properties={"taskId": _TASK_ID},
        required=["taskId"],
        annotations={"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": True},
    ),
    TaskTool(
        name=Name.ACTION,
        title="Act on a task",
        description="Take one of the actions in the status of a working task, such as a change of plan, a pause or a "
        "question about its state. Returns the result of the action.",
        properties={
            "taskId": _TASK_ID,
            "action": {"type": "string", "minLength": 1, "maxLength": 64, "description": "The name of the action."},
            "content": {
                "type": "object",
                "description": "The input of the action, an object that matches its schema. Omit it if it takes none.",
            },
        },
        required=["taskId", "action"],
        annotations={"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
    ),
    TaskTool(
        name=Name.LIST,
        title="My tasks",
        description="List the user's own tasks, newest first, including those of earlier conversations. Use it if you "
        "lack a taskId. Returns a page of them, each with its taskId, tool, status and time.",
        properties={
            "cursor": {"type": "string", "description": "The nextCursor of the previous page. Omit it at first."}
        },
        annotations=_READ_ONLY,
        lists=True,
    ),
    TaskTool(
        name=Name.QUESTIONS,
        title="Open questions",
        description="List other people's tasks with questions the user may answer, such as approvals, newest first. "
        "Returns a page of them, each with its taskId, tool, questions and who started it. The user decides; answer "
        "with task_answer.",
        properties={
            "cursor": {"type": "string", "description": "The nextCursor of the previous page. Omit it at first."}
        },
        annotations=_READ_ONLY,
        lists=True,
    ),
    TaskTool(
        name=Name.FIND,
        title="Find a task",
        description="Find the user's newest task by the call that started it, for a card that has lost its taskId. "
        "Returns its status.",
        properties={
            "tool": {"type": "string", "minLength": 1, "maxLength": 64, "description": "The tool that was called."},
            "arguments": {"type": "object", "description": "All arguments of that call."},
        },
        required=["tool", "arguments"],
        annotations=_READ_ONLY,
        lists=True,
    ),
)
_BY_NAME: Final[Mapping[str, TaskTool]] = {found.name.value: found for found in _ALL}
