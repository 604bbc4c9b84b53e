"""Delivery of answers to an execution: first to its engine, then noted in the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON
from mcp_workflows.adapter.templates import Template
from mcp_workflows.engines.registry import Engines, ref_of
from mcp_workflows.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    EngineError,
    EngineRefused,
    MappingError,
    RequestError,
    StoreError,
)
from mcp_workflows.store.protocol import Store, changed
from mcp_workflows.task import Task, accept
from mcp_workflows.tools.dialogue import Action, checked_response, invalid_response


def fitting_answers(
    task: Task, responses: Mapping[str, JSON], principal: Principal
) -> Mapping[str, Mapping[str, JSON]]:
    """Return the responses to open questions of the task as its adapter gets them, by key; the rest is ignored.

    Raises:
        RequestError: one does not fit its question, see `checked_response` and `rendered_response`.
    """
    open_requests = task.seen.requests
    given = {
        key: checked_response(key, open_requests[key], responses[key]) for key in responses if key in open_requests
    }
    return {key: sent for key in given if (sent := rendered_response(task, key, given[key], principal))}


def rendered_response(
    task: Task, key: str, response: Mapping[str, JSON], principal: Principal
) -> Mapping[str, JSON] | None:
    """Return the response for the adapter; for a gate with `send`, add the rendered text for the engine.

    None: the question was only put aside, and stays open. A workflow that asks by itself gets that as a response.

    Raises:
        RequestError: the gate cannot be declined, or its template does not work on this answer.
    """
    request = task.seen.requests[key]
    gate, action = task.gates.get(request.gate or ""), response.get("action")
    if action == Action.CANCEL and (gate is not None or request.declinable is not None):
        return None
    if gate is None:
        return {name: value for name, value in response.items() if name != "send"}  # only gates may send
    template = gate.send if action == Action.ACCEPT else gate.decline
    if template is None:
        raise invalid_response(key, "this question cannot be declined, only answered or left open")
    answer = response.get("content") if action == Action.ACCEPT else None  # the content of a refusal was not validated
    scope = {"args": task.given or {}, "task": {"id": task.id}, "answer": answer, **principal.scope}
    try:
        return {**response, "send": Template(template).render(scope, all_keys=True)}
    except MappingError as error:
        raise invalid_response(key, str(error)) from None


async def deliver_answers(
    task: Task,
    handle: str,
    answers: Mapping[str, Mapping[str, JSON]],
    principal: Principal,
    store: Store,
    engines: Engines,
    clock: Callable[[], datetime],
) -> Task:
    """Return the task once its engine has taken these answers (see `fitting_answers`) and the store has that.

    Raises:
        RequestError: the engine did not take them, or that it did could not be noted; the message says which.
    """
    try:
        await store.check()  # an answer that cannot be stored is not delivered
        async with engines.calling(task, api="answer") as adapter:
            ref = replace(ref_of(task, handle), principal=principal.scope["principal"])
            await adapter.answer(ref, answers)
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
    """Return the error for an answer that the engine did not take; the client may give it again."""
    return RequestError(
        INTERNAL_ERROR, f"engine {task.engine} did not take the answer: {error}; the task goes on, try again"
    )
