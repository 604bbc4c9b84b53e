"""New rows: for a tool and its caller, or for an execution that was started elsewhere (adoption)."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import anyio

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON, Adopts, Execution, Ref, Status, digest
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows.store.protocol import NO_CAPS, Caps, Store, changed
from mcp_workflows.task import Task, release
from mcp_workflows.tools.tool import EXECUTION_ID, AnyTool, Kind

logger = logging.getLogger(__name__)

_REFUSED_AFTER = 0.25  # seconds before any refusal: timing must not reveal that an execution exists
NO_CONTEXT: Final[Mapping[str, str]] = {}
_FROZEN = frozenset({"engine", "questions", "options", "allow_answer", "allow_cancel", "output", "max_result"})


class Adoption:
    """Finds executions by the id that the engine shows to people, and creates tasks for them."""

    def __init__(self, store: Store, engines: Engines, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._engines = engines
        self._clock = clock

    async def find(self, tool: AnyTool, execution_id: str) -> Ref:
        """Return the execution of this id, whatever its workflow; only for operators.

        Raises:
            EngineError: it does not exist or cannot become a task, or the engine does not answer.
        """
        if execution_id != execution_id.encode("utf-8", "replace").decode():
            raise ExecutionNotFound("this text cannot be an id")  # an unpaired surrogate cannot be sent
        adapter = self._engines.get(tool.engine)
        if not isinstance(adapter, Adopts):
            raise EngineRefused("it cannot adopt executions")
        async with self._engines.calling(tool.engine, api="adopt"):
            return await adapter.adopt(execution_id)

    async def find_own(self, tool: AnyTool, execution_id: str) -> Ref:
        """Return the execution of this id if it belongs to the tool's workflow.

        Raises:
            ExecutionNotFound: it does not exist, belongs to another workflow, or cannot become a task; always with
                the same text.
            EngineUnavailable: no answer.
        """
        began = anyio.current_time()
        try:
            ref = await self.find(tool, execution_id)
        except EngineUnavailable:
            raise
        except (EngineRefused, ExecutionNotFound) as error:
            logger.info("tool %s cannot watch %r: engine %r: %s", tool.name, execution_id, tool.engine, error)
        else:
            if self.runs(tool, ref):
                return ref
            logger.info("tool %s cannot watch %r: it runs workflow %r", tool.name, execution_id, ref.workflow)
        await anyio.sleep_until(began + _REFUSED_AFTER)
        raise ExecutionNotFound(
            f"Engine {tool.engine} shows no execution {execution_id!r} of workflow {tool.workflow} that can be watched"
        )

    def runs(self, tool: AnyTool, ref: Ref) -> bool:
        """Return True if the execution runs the tool's workflow."""
        adapter = self._engines.get(tool.engine)
        return tool.workflow == ref.workflow if adapter is None else adapter.same_workflow(tool.workflow, ref.workflow)

    def new_task(
        self,
        tool: AnyTool,
        ref: Ref,
        owner: Principal,
        arguments: Mapping[str, JSON],
        *,
        ttl: timedelta,
        context: Mapping[str, str] = NO_CONTEXT,
    ) -> Task:
        """Return a row that has its handle from the beginning, so that nothing is ever started for it.

        `arguments` are for the templates of the tool.

        Raises:
            MappingError: a template of the tool does not work on these arguments.
        """
        identity, task_id = self._engines.identity(tool.engine), secrets.token_hex(20)
        frozen = tool.model_dump(mode="json", include=set(_FROZEN))
        frozen |= tool.model_dump(mode="json", include={"cancel", "on_expire"}, exclude_defaults=True)
        name = digest([identity, ref.handle, frozen])
        scope = {"args": arguments, **owner.scope, "task": {"id": task_id}}
        options = {key: value for key, value in tool.frozen_options(scope).items() if value is not None}
        return task_of(
            tool,
            owner,
            now=self._clock(),
            ttl=ttl,
            id=task_id,
            workflow=ref.workflow,
            key=f"adopted-{name}",
            input=None,
            options={**options, **ref.options},
            gates=tool.frozen_gates(scope),
            arguments=arguments if tool.gates else None,
            context={"tool": tool.name, "owner": owner.subject or owner.id, **context},
            idempotency_key=f"adopted:{name}",
            fingerprint=digest(["adopted", ref.handle]),
            handle=ref.handle,
            execution=Execution(status=Status.RUNNING),
            identity=identity,
        )

    async def create(self, task: Task, caps: Caps = NO_CAPS) -> Task:
        """Store the task, or return this owner's existing task for the execution and the unchanged tool.

        Raises:
            CapReached: a quota is reached.
        """
        now = self._clock()
        while (row := await self._store.create(task, caps)).expired(now):
            await changed(self._store, row, lambda old: release(old, now))
        return row


def task_of(tool: AnyTool, owner: Principal, *, now: datetime, ttl: timedelta, **fields: Any) -> Task:  # Any: values
    """Return a row with everything that follows from its tool, owner and time; `fields` are the rest."""
    return Task(
        owner=owner.id,
        tool=tool.name,
        engine=tool.engine,
        created=now,
        updated=now,
        expires=now + ttl,
        max_result=tool.max_result,
        terms=tool.terms,
        output_schema=tool.output,
        guarded=tool.allow is not None or not tool.model_may_answer,
        grace=tool.grace,
        cancel_on_expiry=tool.cancels_on_expiry,
        may_answer=tool.may_answer,
        may_cancel=tool.may_cancel and tool.message is None,  # a message may already be delivered
        **fields,
    )


def watched_arguments(tool: AnyTool, execution_id: str, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the arguments for the tool's templates; a tool that watches also gets the execution's id."""
    return {**arguments, EXECUTION_ID: execution_id} if tool.kind is Kind.WATCH else arguments
