"""The engines by name, every call to them bounded in total time, and no adapter's defect anybody else's."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from types import TracebackType
from typing import Self

import anyio
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from mcp_workflows.adapter import Adapter, Execution, Failure, Status
from mcp_workflows.capabilities import Checks, Finding
from mcp_workflows.errors import EngineError, EngineUnavailable

logger = logging.getLogger(__name__)

CHECK_PATIENCE = 2.0  # seconds for a look at an engine's health
PATIENCE = 10.0  # seconds for one call to an engine, its own retries included


_EXECUTION = TypeAdapter(Execution)


def sound(execution: Execution) -> Execution:
    """The look as it can be kept: JSON all the way down. A result that is not ends the task with that reason.

    Raises:
        EngineUnavailable: it is no look at all; nothing is known.
    """
    try:
        return _EXECUTION.validate_json(_as_json(execution))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        if getattr(execution, "status", None) is not Status.SUCCEEDED:
            raise EngineUnavailable(
                f"its adapter failed: it told what cannot be kept ({type(error).__name__})"
            ) from None
        text = "the workflow completed, but its result cannot be kept: it is nested too deeply, or is no JSON"
        failure = Failure(text=text, kind="UndecodableResult")
        return replace(execution, status=Status.FAILED, output=None, message=None, failure=failure)


def _as_json(execution: Execution) -> bytes:
    try:
        return _EXECUTION.dump_json(execution)
    except PydanticSerializationError:  # half a surrogate pair somewhere in it, which JSON allows and UTF-8 does not
        return json.dumps(asdict(execution), ensure_ascii=False).encode("utf-8", "replace")


class Engines:
    """The configured adapters; entering opens them, whoever opens them closes them."""

    def __init__(self, adapters: Mapping[str, Adapter], *, patience: float = PATIENCE) -> None:
        self._adapters = adapters
        self._patience = patience
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for adapter in self._adapters.values():
                await stack.enter_async_context(adapter)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def names(self) -> Sequence[str]:
        """The engines there are."""
        return list(self._adapters)

    @asynccontextmanager
    async def calling(self, name: str) -> AsyncGenerator[Adapter]:
        """The adapter of this name, for one call.

        Raises:
            EngineError: what the adapter raised; `EngineUnavailable` when time is up or the adapter broke.
        """
        adapter = self._adapters.get(name)
        if adapter is None:
            raise EngineUnavailable("it is not in the configuration any more", sent=False)
        try:
            with anyio.fail_after(self._patience):
                yield adapter
        except TimeoutError:
            raise EngineUnavailable(f"no answer within {self._patience:g} s") from None
        except EngineError:
            raise
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == float("-inf"):
                raise  # it is us who were cancelled
            raise EngineUnavailable("its adapter gave up (cancelled)") from None
        except Exception as error:  # an adapter is a stranger's code: see docs/decisions/0002
            logger.exception("the adapter of engine %r broke the contract", name)
            raise EngineUnavailable(f"its adapter failed ({type(error).__name__}); see the log") from None

    async def check(self) -> Mapping[str, Finding]:
        """Whether each engine answers, all asked at once; an adapter that cannot tell counts as fine."""
        findings: dict[str, Finding] = {}
        async with anyio.create_task_group() as group:
            for name, adapter in self._adapters.items():
                group.start_soon(self._check, name, adapter, findings)
        return {name: findings[name] for name in self._adapters}

    async def _check(self, name: str, adapter: Adapter, findings: dict[str, Finding]) -> None:
        if not isinstance(adapter, Checks):
            findings[name] = Finding(ok=True, text="not checked: its adapter cannot tell")
            return
        try:
            findings[name] = Finding(ok=False, text=f"no answer within {CHECK_PATIENCE:g} s")
            with anyio.move_on_after(CHECK_PATIENCE):
                async with self.calling(name):
                    findings[name] = await adapter.check_engine()
        except EngineError as error:
            findings[name] = Finding(ok=False, text=str(error))
