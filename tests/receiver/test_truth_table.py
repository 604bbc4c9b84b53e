"""What every client gets of every tool: the whole table, written down here and tried, row by row, on a real server."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from mcp_workflows import Tool
from mcp_workflows.engines.polling.policy import PollingPolicy
from tests.support.in_memory import Line, entered, line

pytestmark = pytest.mark.anyio

# `asks`: whether the client asks for tasks (2026-07-28: declares the extension; before: sends `params.task`).
# What the workflow does: it ends at once (quick), later than `wait` and `adaptive` (slow), or asks a question (ask).
CALLS = """
era         asks  tasks      adaptive   quick    slow     ask
2026-07-28  yes   required   no         task     task     task
2026-07-28  yes   required   yes        result   task     task
2026-07-28  yes   optional   no         task     task     task
2026-07-28  yes   optional   yes        result   task     task
2026-07-28  yes   wait       no         task     task     task
2026-07-28  yes   wait       yes        result   task     task
2026-07-28  yes   forbidden  *          result   result   stuck
2026-07-28  no    required   *          -32021   -32021   -32021
2026-07-28  no    optional   *          result   handle   handle
2026-07-28  no    wait       *          result   result   stuck
2026-07-28  no    forbidden  *          result   result   stuck
2025-11-25  yes   required   *          task     task     task
2025-11-25  yes   optional   *          task     task     task
2025-11-25  yes   wait       *          task     task     task
2025-11-25  yes   forbidden  *          -32601   -32601   -32601
2025-11-25  no    required   *          -32601   -32601   -32601
2025-11-25  no    optional   *          result   handle   handle
2025-11-25  no    wait       *          result   result   stuck
2025-11-25  no    forbidden  *          result   result   stuck
2025-06-18  *     required   *          -32601   -32601   -32601
2025-06-18  *     optional   *          result   handle   handle
2025-06-18  *     wait       *          result   result   stuck
2025-06-18  *     forbidden  *          result   result   stuck
"""

# Which settings of a tool go together; the others are refused when they are read.
TOOLS = """
tasks      adaptive  is
required   *         fine
optional   *         fine
wait       *         fine
forbidden  no        fine
forbidden  yes       wrong
"""

# What `tools/list` shows: task tools, and of a tool its output schema and `execution.taskSupport`.
LISTS = """
era         asks  tasks      task_tools  output  support
2026-07-28  yes   required   no          yes     -
2026-07-28  yes   optional   no          yes     -
2026-07-28  yes   wait       no          yes     -
2026-07-28  yes   forbidden  no          yes     -
2026-07-28  no    required   yes         yes     -
2026-07-28  no    optional   yes         no      -
2026-07-28  no    wait       yes         yes     -
2026-07-28  no    forbidden  yes         yes     -
2025-11-25  yes   required   no          yes     required
2025-11-25  yes   optional   no          no      optional
2025-11-25  yes   wait       no          yes     optional
2025-11-25  yes   forbidden  no          yes     forbidden
2025-11-25  no    required   yes         yes     required
2025-11-25  no    optional   yes         no      optional
2025-11-25  no    wait       yes         yes     optional
2025-11-25  no    forbidden  yes         yes     forbidden
2025-06-18  *     required   yes         yes     -
2025-06-18  *     optional   yes         no      -
2025-06-18  *     wait       yes         yes     -
2025-06-18  *     forbidden  yes         yes     -
"""

ERAS = ("2026-07-28", "2025-11-25", "2025-06-18")
YES_NO = ("yes", "no")
DOES = ("quick", "slow", "ask")
CONFIGURED = list(itertools.product(("required", "optional", "wait", "forbidden"), YES_NO))
OUTPUT = {"type": "object"}
TASK_TOOLS = {"task_status", "task_wait", "task_answer", "task_cancel", "my_tasks"}

WORKFLOW = {"quick": "echo", "slow": "sleep", "ask": "ask"}
SOON, LATE = "100ms", "1h"  # bounds: what is slow is slower than the one, what is quick needs none of the other
SLOW = {"seconds": 5}  # a busy machine may be late with the shorter bound


def rows(table: str, conditions: int) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
    """The lines of a table: so many words of conditions, and what follows from them, by column."""
    head, *lines = (text.split() for text in table.strip().splitlines())
    for words in lines:
        yield words[:conditions], dict(zip(head[conditions:], words[conditions:], strict=True))


def look_up(table: str, *found: str) -> Mapping[str, str]:
    """What the table says of these: exactly one of its lines must be about them."""
    fitting = [
        follows
        for conditions, follows in rows(table, len(found))
        if all(word in {"*", said} for word, said in zip(conditions, found, strict=True))
    ]
    assert len(fitting) == 1, (found, fitting)
    return fitting[0]


def settings(tasks: str, adaptive: str, bound: str) -> Mapping[str, Any]:
    """A tool's settings as they would be written."""
    said: dict[str, Any] = {"tasks": tasks, "output": OUTPUT}
    if tasks == "optional":
        said["wait"] = bound
    if adaptive == "yes":
        said["adaptive"] = bound
    return said


@dataclass(frozen=True, slots=True)
class Case:
    """One tool as it is configured, and what its workflow does."""

    tasks: str
    adaptive: str
    does: str

    @property
    def name(self) -> str:
        """The tool's name."""
        return f"{self.tasks}.{self.adaptive}.{self.does}"

    @property
    def tool(self) -> Tool:
        """The tool."""
        bound = SOON if self.does == "slow" else LATE
        said = settings(self.tasks, self.adaptive, bound)
        return Tool(name=self.name, engine="memory", workflow=WORKFLOW[self.does], **said)


CASES = [
    Case(*configured, does)
    for configured, does in itertools.product(CONFIGURED, DOES)
    if look_up(TOOLS, *configured)["is"] == "fine"
]


def kind_of(reply: Mapping[str, Any]) -> str:
    """The one word for what came back."""
    if "error" in reply:
        return str(reply["error"]["code"])
    result = reply["result"]
    if result.get("resultType") == "task" or "task" in result:
        return "task"
    content, text = result.get("structuredContent"), result["content"][0]["text"]
    if result["isError"]:
        return "stuck" if "waits for an answer this client cannot give" in text else text
    return "handle" if "taskId" in content and "task_" in content["next"] else "result"


def capabilities(era: str, asks: str) -> Mapping[str, Any]:
    """What such a client declares; none of them can ask a person."""
    declares = era == "2026-07-28" and asks == "yes"
    return {"extensions": {"io.modelcontextprotocol/tasks": {}}} if declares else {}


def params(era: str, asks: str) -> Mapping[str, Any]:
    """What its calls have in addition."""
    return {"task": {}} if era != "2026-07-28" and asks == "yes" else {}


@pytest.mark.parametrize(("tasks", "adaptive"), CONFIGURED)
def test_settings_that_do_not_go_together_are_refused(tasks: str, adaptive: str) -> None:
    said = settings(tasks, adaptive, "1s")
    if look_up(TOOLS, tasks, adaptive)["is"] == "fine":
        assert Tool(name="tool", engine="memory", workflow="echo", **said).name == "tool"
    else:
        with pytest.raises(ValidationError, match="remove it"):
            Tool(name="tool", engine="memory", workflow="echo", **said)


@asynccontextmanager
async def clients(folder: Path, tools: Sequence[Tool]) -> AsyncGenerator[Mapping[tuple[str, str], Line]]:
    """One client of each kind, by its era and whether it asks for tasks, of one server with these tools."""
    polling = PollingPolicy(polls_per_second=float("inf"))
    store = f"sqlite:///{folder}/tasks.db"
    async with AsyncExitStack() as stack:
        server, _ = await stack.enter_async_context(entered(tools, store=store, engine=str(folder), polling=polling))
        yield {
            (era, asks): await stack.enter_async_context(line(server, era, capabilities(era, asks)))
            for era, asks in itertools.product(ERAS, YES_NO)
        }


async def test_every_client_gets_what_the_table_says(tmp_path: Path) -> None:
    wrong: list[str] = []

    async def call(client: Line, era: str, asks: str, case: Case) -> None:
        expected = look_up(CALLS, era, asks, case.tasks, case.adaptive)[case.does]
        found = kind_of(await client.call(case.name, SLOW, **params(era, asks)))
        if found != expected:
            wrong.append(f"{era} {asks} {case.name}: {found}, not {expected}")

    async with clients(tmp_path, [case.tool for case in CASES]) as found, anyio.create_task_group() as group:
        for (era, asks), client in found.items():
            for case in CASES:
                group.start_soon(call, client, era, asks, case)
    assert wrong == []


async def test_every_client_is_shown_what_the_table_says(tmp_path: Path) -> None:
    wrong: list[str] = []
    first = Case("optional", "no", "quick")
    async with clients(tmp_path, [case.tool for case in CASES]) as found:
        for (era, asks), client in found.items():
            await client.call(first.name, **params(era, asks))
            tools = await client.tools()
            task_tools = "yes" if tools.keys() >= TASK_TOOLS else "no" if not TASK_TOOLS & tools.keys() else "some"
            for case in CASES:
                tool = tools[case.name]
                support = tool.get("execution", {}).get("taskSupport", "-")
                output = "yes" if "outputSchema" in tool else "no"
                shown = {"task_tools": task_tools, "output": output, "support": support}
                if shown != (expected := look_up(LISTS, era, asks, case.tasks)):
                    wrong.append(f"{era} {asks} {case.name}: {shown}, not {expected}")
    assert wrong == []
