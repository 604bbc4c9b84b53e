"""Delivery of answers to an execution: first to its engine, then noted in the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from mcp_workflows.adapter import JSON
from mcp_workflows.engines.registry import Engines, ref_of
from mcp_workflows.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    EngineError,
    EngineRefused,
    RequestError,
    StoreError,
)
from mcp_workflows.store.protocol import Store, changed
from mcp_workflows.task import Task, accept


async def deliver_answers(
    task: Task,
    handle: str,
    answers: Mapping[str, Mapping[str, JSON]],
    store: Store,
    engines: Engines,
    clock: Callable[[], datetime],
) -> Task:
    """Return the task once its engine has taken these answers (see `ask.fitting_answers`) and the store has that.

    Raises:
        RequestError: the engine did not take them, or that it did could not be noted; the message says which.
    """
    try:
        await store.check()  # what cannot be noted is not delivered
        async with engines.calling(task.engine, api="answer") as adapter:
            await adapter.answer(ref_of(task, handle), answers)
    except EngineRefused as error:
        raise RequestError(INVALID_PARAMS, f"engine {task.engine} refused the answer: {error}") from None
    except EngineError as error:
        raise undelivered(task, error) from None
    except StoreError as error:
        raise RequestError(INTERNAL_ERROR, f"the answer was not delivered: {error}; try again") from None
    try:
        return await changed(store, task, lambda row: accept(row, answers, clock()))
    except StoreError as error:
        said = f"engine {task.engine} took the answer, but that could not be noted: {error}; look at the task first"
        raise RequestError(INTERNAL_ERROR, said) from None


def undelivered(task: Task, error: EngineError) -> RequestError:
    """Return what is told of an answer that the engine did not take; it may be given again."""
    return RequestError(
        INTERNAL_ERROR, f"engine {task.engine} did not take the answer: {error}; the task goes on, try again"
    )
