"""Who may do what, asked anew at every request and every push: the rules of the tools, then the user's own authorizer.

Nobody is told what they may not see: a task that is not theirs to see is not found, and a tool they may not call is no
tool. The reason is for the record.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import anyio

from mcp_workflows.access import Authorizer, Principal, Verb, Wish, permits, reaches_others
from mcp_workflows.access.audit import Audit, Event, record_of, silent, task_hash
from mcp_workflows.adapter import JSON, Status
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.task import Task
from mcp_workflows.tools.tool import Tool

logger = logging.getLogger(__name__)

PATIENCE: Final = 5.0  # seconds for an authorizer to say yes
NOT_FOUND: Final = "Task not found"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What one principal may do with one task."""

    see: bool
    answer: bool
    cancel: bool

    def reads(self, task: Task) -> bool:
        """Whether they may look at it now: who is to answer sees what it asks, for as long as it does."""
        return self.see or (self.answer and task.execution.status is Status.INPUT_REQUIRED)


_ALL: Final = Rights(see=True, answer=True, cancel=True)
NO_RIGHTS: Final = Rights(see=False, answer=False, cancel=False)


def not_found() -> RequestError:
    """What they all hear who may not see a task, whether it is there or not."""
    return RequestError(INVALID_PARAMS, NOT_FOUND)


class Guard:
    """The rules of these tools, and whoever else has a say; one for as long as the server lives.

    New rules count at once, also for streams that were opened before.
    """

    def __init__(
        self, tools: Mapping[str, Tool], *, authorizer: Authorizer | None = None, audit: Audit = silent
    ) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self.use(tools)

    def use(self, tools: Mapping[str, Tool]) -> None:
        """These are the tools from now on."""
        self._tools = tools
        self._ruled = self._authorizer is not None or any(tool.allow is not None for tool in tools.values())

    # --- tools

    async def offers(self, name: str, principal: Principal) -> bool:
        """Whether they may call a tool of this name at all; if not, that is put on record."""
        if await self._may(Wish(principal=principal, verb=Verb.CALL, tool=name)):
            return True
        self.denied(principal, tool=name, reason="may not call it")
        return False

    async def offered(self, principal: Principal) -> frozenset[str]:
        """The tools they may call."""
        if not self._ruled:
            return frozenset(self._tools)
        wishes = [Wish(principal=principal, verb=Verb.CALL, tool=name) for name in self._tools]
        return frozenset([wish.tool for wish in wishes if await self._may(wish)])

    async def starts(self, tool: Tool, arguments: Mapping[str, JSON], principal: Principal) -> bool:
        """Whether they may call it with these arguments; only an authorizer looks at them."""
        wish = Wish(principal=principal, verb=Verb.CALL, tool=tool.name, arguments=arguments)
        if await self._may(wish):
            return True
        self.denied(principal, tool=tool.name, reason="may not call it with these arguments")
        return False

    # --- tasks

    def beyond(self, principal: Principal) -> Sequence[str]:
        """The tools whose tasks of other owners may be this principal's business."""
        if not self._ruled:
            return ()
        return [name for name, tool in self._tools.items() if reaches_others(tool.allow, principal)]

    async def rights(self, task: Task, principal: Principal) -> Rights:
        """What they may do with this task now."""
        tool = self._tools.get(task.tool)
        mine = principal.id == task.owner
        if tool is None and task.guarded:  # its rules are gone: the owner sees what comes of it, and that is all
            return Rights(see=mine, answer=False, cancel=False)
        if self._authorizer is None and (tool is None or tool.allow is None):
            return _ALL if mine else NO_RIGHTS
        see, answer, cancel = [
            await self._may(Wish(principal=principal, verb=verb, tool=task.tool, owner=task.owner, task_id=task.id))
            for verb in (Verb.SEE, Verb.ANSWER, Verb.CANCEL)
        ]
        return Rights(see=see, answer=answer, cancel=cancel)

    async def sees_own(self, tool: str, task_id: str, principal: Principal) -> bool:
        """Whether they may see a task of their own of this tool, which is there."""
        if not self._ruled:
            return True
        return await self._may(Wish(principal=principal, verb=Verb.SEE, tool=tool, owner=principal.id, task_id=task_id))

    # --- both

    async def _may(self, wish: Wish) -> bool:
        tool = self._tools.get(wish.tool)
        allow = None if tool is None else tool.allow
        if not permits(allow, wish.verb, wish.principal, wish.owner):
            return False
        if self._authorizer is None:
            return True
        try:
            with anyio.fail_after(PATIENCE):
                return await self._authorizer(wish) is True
        except Exception:  # a stranger's code, and a no: see docs/decisions/0002
            logger.exception("the authorizer failed on %s of tool %r: denied", wish.verb, wish.tool)
            return False

    def denied(
        self,
        principal: Principal,
        *,
        task: Task | None = None,
        task_id: str | None = None,
        tool: str | None = None,
        reason: str,
    ) -> None:
        """Put on record that they may not do that."""
        record = record_of(Event.DENY, principal, task, tool=tool, outcome="refused", reason=reason)
        self._audit(record if task_id is None else replace(record, task=task_hash(task_id)))
