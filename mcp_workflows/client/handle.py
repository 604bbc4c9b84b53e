"""TaskHandle: one task by its id, in this process or in another."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.client import ClientSession

from mcp_workflows.client.messages import TaskState, as_json, visible
from mcp_workflows.client.polling import Following, Ways


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHandle:
    """A task, for who wants to decide what to do with it; keep its `id` and any later client has it again.

    Every method raises `TaskNotFound` (or `TaskExpired`) if the server does not know the task, and `ServerUnreachable`
    if it gives no answer for too long.
    """

    id: str
    begun: TaskState | None = None
    """What the server said when it made the task; None of a handle that was made from an id."""
    session: ClientSession = field(repr=False)
    ways: Ways = field(repr=False)

    async def status(self) -> TaskState:
        """One look."""
        return await self.ways.sending(self.session).look(self.id)

    async def updates(self) -> AsyncGenerator[TaskState]:
        """Its state now, and each that a person could tell from the one before, up to its end; nothing is answered."""
        seen = await self.status()
        yield seen
        while not seen.ended:
            seen = await self._after(seen)
            yield seen

    async def _after(self, seen: TaskState) -> TaskState:
        """Opened for each update: nothing may stay open while the caller has it, who may never come back."""
        async with self.ways.listening.to(self.session, self.id) as changes:
            while True:
                changes.forget()
                state = await self.status()
                if state.ended or visible(state) != visible(seen):
                    return state
                await changes.wait(state)

    async def answer(self, responses: Mapping[str, types.InputResponse]) -> None:
        """Answer questions by their keys (all of `input_requests`, or some); those answered before are ignored.

        Raises:
            AnswerRejected: an answer does not fit its question.
        """
        told: dict[str, Any] = {key: as_json(response) for key, response in responses.items()}  # Any: JSON
        await self.ways.sending(self.session).answer(self.id, told)

    async def result(self) -> types.CallToolResult:
        """Wait for its end as `client.call_tool` does: its questions are asked, `on_status` hears its states.

        Raises:
            TaskCancelled: it was.
            TaskFailed: it ended with a JSON-RPC error.
            AnswerRejected: an answer does not fit its question.
            MCPError: a question was refused by its callback.
        """
        return await Following(self.ways, self.session, self.id, seen=self.begun).result()

    async def cancel(self) -> None:
        """Ask to cancel; what comes of it shows in the state."""
        await self.ways.sending(self.session).cancel(self.id)
