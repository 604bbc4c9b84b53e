"""The handle of one task by its id, in this process or in another."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.client import ClientSession

from mcp_workflows.client.follower import FollowOptions, TaskFollower
from mcp_workflows.client.messages import TaskState, as_json, visible


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHandle:
    """A task, for code that decides itself how to go on; any later client has it again by its `id`.

    Every method raises `TaskNotFound` (or `TaskExpired`) if the server does not know the task, and `ServerUnreachable`
    if it gives no answer for too long.
    """

    id: str
    begun: TaskState | None = None
    """The server's first state of the task; None of a handle that was made from an id."""
    session: ClientSession = field(repr=False)
    options: FollowOptions = field(repr=False)

    async def status(self) -> TaskState:
        """Look once."""
        return await self.options.requests(self.session).look(self.id)

    async def updates(self) -> AsyncGenerator[TaskState]:
        """Yield its state now, and each visible change up to its end; answer nothing."""
        seen = await self.status()
        yield seen
        while not seen.ended:
            seen = await self._after(seen)
            yield seen

    async def _after(self, seen: TaskState) -> TaskState:
        """Wait for a visible change. Each update opens a stream, as a caller may never come back for the next."""
        async with self.options.subscriptions.to(self.session, self.id) as changes:
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
        answers: dict[str, Any] = {key: as_json(response) for key, response in responses.items()}  # Any: JSON
        await self.options.requests(self.session).answer(self.id, answers)

    async def result(self) -> types.CallToolResult:
        """Wait for its end as `client.call_tool` does: ask its questions, and call `on_status` with its states.

        Raises:
            TaskCancelled: it was cancelled.
            TaskFailed: it ended with a JSON-RPC error.
            AnswerRejected: an answer does not fit its question.
            MCPError: a question was refused by its callback.
        """
        return await TaskFollower(self.options, self.session, self.id, seen=self.begun).result()

    async def cancel(self) -> None:
        """Ask to cancel; the state shows the outcome."""
        await self.options.requests(self.session).cancel(self.id)
