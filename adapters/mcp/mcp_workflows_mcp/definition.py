"""The definition of split tools: the tools of a server that start, describe, answer and cancel an execution.

Expressions see `reply` (the structured content of a result, else the JSON or the named parts of its text) and `error`
(the text of a result with `isError`). See `mcp_workflows.kit.definition` for how a reply is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator

from mcp_workflows import Duration
from mcp_workflows.adapter import StartGuarantee
from mcp_workflows.kit.definition import MODEL, SENDS, EngineQuestion, Reading, Sends
from mcp_workflows.kit.expressions import Text, Value, names_in
from mcp_workflows_mcp.reply import checked_pattern

Pattern = Annotated[str, AfterValidator(checked_pattern)]


class ToolCall(BaseModel):
    """A call of one tool of the server."""

    model_config = MODEL

    tool: Text = Field(description="The name of the tool.")
    args: Value = Field(default_factory=dict[str, Any], description="The arguments, an object.")
    extract: Mapping[str, Pattern] = Field(
        default={},
        description=r"Named parts of a plain text, as regular expressions with one group: `{pid: 'PID: (\d+)'}`.",
    )


class StartCall(ToolCall):
    """The start of an execution."""

    tool: Text = Field(
        default="{{workflow}}", description="The name of the upstream tool. Default: this tool's `workflow`."
    )
    args: Value = Field(default="{{arguments}}", description="The arguments. Default: those of the task.")
    handle: Value = Field(
        default=None, description="The handle of the execution in the reply: a text, or an object of several parts."
    )
    finished: Text | None = Field(
        default=None, description="True if the execution has already ended and the reply is equivalent to a poll's."
    )
    same: Text | None = Field(
        default=None,
        description="True if the execution of a key, in the reply of `describe`, is the same order. Otherwise "
        "the start is refused.",
    )
    conflict_if: Text | None = Field(default=None, description="True if the key belongs to another order.")
    refused_if: Text | None = Field(
        default=None,
        description="True if the reply is a definite refusal. Default: an error whose text has a 4xx status, invalid "
        "arguments, an unknown tool or a lack of permission; any other error leaves the start unknown.",
    )

    @model_validator(mode="after")
    def _names_one(self) -> StartCall:
        if self.handle is not None and not names_in(self.handle):
            raise ValueError("handle: it is the same for all; say where it is in the reply, {{reply.id}}")
        return self


class FurtherCall(ToolCall):
    """A further call of a poll."""

    when: Text | None = Field(default=None, description="A condition. `status` is the mapped status.")


class DescribeCall(Reading, ToolCall):
    """A poll of an execution."""

    output: Value = Field(
        default="{{reply}}", description="The result of a successful execution. Default: the whole reply."
    )
    more: Mapping[str, FurtherCall] = Field(default={}, description="Further calls. Their replies are more.NAME.")
    id: Text | None = Field(
        default=None, description="The execution's id in the reply. Replies about another execution are rejected."
    )
    gone_if: Text | None = Field(
        default=None,
        description="True if the execution does not exist. Default: true if its list lacks `entry`.",
    )


class Cancel(ToolCall):
    """The cancellation of an execution. It is polled first; nothing is called if it has ended."""

    late_if: Text | None = Field(
        default=None,
        description="True if a result with `isError` says it is too late: answered already, or ended.",
    )


class Ask(EngineQuestion):
    """A question of an execution to people, in the terms of the server's tools."""

    send: ToolCall | None = Field(default=None, description="The call that delivers an answer, `answer.NAME`.")
    decline: ToolCall | None = Field(
        default=None, description="The call that delivers a refusal. Without it, the question cannot be declined."
    )
    late_if: Text | None = Field(
        default=None,
        description="True if a result with `isError` says it is too late: answered already, or ended.",
    )


class Action(ToolCall):
    """A message to a running execution; a tool sends it in its `actions`, as `{tool: NAME}`."""

    tool: Text = Field(default="", description="The name of the tool. Default: the name of the message.")
    sends: Sends = Field(default=StartGuarantee.ONCE, description=SENDS)


class Search(ToolCall):
    """The search for the execution of a key."""

    each: Text = Field(description="The list of items in the reply.")
    where: Text = Field(description="True if the `item` is the execution of the key.")
    handle: Value = Field(description="The handle of the execution, in the form of `start.handle`.")
    next: Mapping[str, Any] = Field(
        default={}, description="The arguments of the next page, taken from the reply. Default: one page."
    )


class ToolsDefinition(BaseModel):
    """The tools of a server for one execution; without `describe`, tools that themselves return tasks or results."""

    model_config = MODEL

    starts: StartGuarantee = Field(
        default=StartGuarantee.ONCE,
        description="The guarantee for a repeated start: keyed (the key prevents a second execution), findable "
        "(`find` searches first) or once (no repeat).",
    )
    start: StartCall = Field(default=StartCall(), description="How to start an execution.")
    find: Search | None = Field(
        default=None,
        description="With `starts: findable`: how to find the execution of a key, in a list with the newest first.",
    )
    describe: DescribeCall | None = Field(
        default=None,
        description="How to poll an execution. Default: the server's tools return MCP tasks or results themselves.",
    )
    asks: Mapping[str, Ask] = Field(default={}, description="Questions of executions to people, by name.")
    cancel: Cancel | None = Field(
        default=None, description="How to cancel an execution. Default: possible only for MCP tasks of the server."
    )
    actions: Mapping[str, Action] = Field(default={}, description="Messages to a running execution, by name.")
    settling: Duration = Field(
        default=timedelta(seconds=30), description="The longest time until a poll or a list shows a new execution."
    )

    @field_validator("actions")
    @classmethod
    def _actions_name_a_tool(cls, actions: Mapping[str, Action]) -> Mapping[str, Action]:
        return {name: each if each.tool else each.model_copy(update={"tool": name}) for name, each in actions.items()}

    @model_validator(mode="after")
    def _is_whole(self) -> ToolsDefinition:
        if self.starts is StartGuarantee.FINDABLE and self.find is None:
            raise ValueError("starts: findable needs find, which searches for the execution of a key")
        if (self.describe is None) != (self.start.handle is None):
            raise ValueError("start.handle and describe belong together: set both, or neither")
        if self.describe is not None and self.describe.status is None:
            raise ValueError("describe needs status, and map")
        if self.describe is None and (self.asks or self.find or self.cancel):
            raise ValueError("asks, find and cancel need describe")
        return self
