"""`elicit` asks a person and `progress` reports progress; both write to the memo of the execution.

The adapter reads the memo without a worker. An answer arrives as an update, or as a signal if no worker was up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from mcp_workflows_temporal_worker.contract import (
    ANSWER_SIGNAL,
    ANSWER_UPDATE,
    BAD_ANSWER,
    BAD_QUESTION,
    MEMO_INPUT,
    MEMO_STATUS,
    UNKNOWN_QUESTION,
)
from mcp_workflows_temporal_worker.forms import content_error, form

__all__ = ["Answer", "elicit", "progress"]

ACTIONS = frozenset({"accept", "decline", "cancel"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A person's answer to a question (MCP `ElicitResult`)."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON by the schema; empty if not accepted

    @property
    def accepted(self) -> bool:
        """True if the person submitted the form."""
        return self.action == "accept"


async def elicit(message: str, schema: Mapping[str, Any] | type) -> Answer:
    """Ask the person behind the task and wait for the answer without a time limit.

    `schema` is a flat JSON Schema object of primitive properties, or a pydantic model or dataclass that defines one
    (MCP elicitation, form mode). Cancelling the wait withdraws the question. A form that no client can show is refused
    here; `forms.form(MyModel)` at the top of the module refuses it when the worker imports the module.

    Raises:
        ApplicationError: MCP clients cannot show the schema as a form.
    """
    try:
        requested = form(schema)
    except ValueError as error:
        raise ApplicationError(str(error), type=BAD_QUESTION, non_retryable=True) from None
    return await _questions().ask({"mode": "form", "message": message, "requestedSchema": requested})


async def progress(message: str, value: float | None = None, total: float | None = None) -> None:
    """Report the current step, and that `value` of `total` units are done; choose any unit.

    Each new text or number adds one event to the history, so report steps, not bytes.
    """
    status = {"message": message, "progress": value, "total": total}
    if workflow.memo_value(MEMO_STATUS, None) != status:
        workflow.upsert_memo({MEMO_STATUS: status})
        workflow.set_current_details(message)


def _questions() -> _Questions:
    """Return the questions of this workflow instance, found by its update handler; create them on first use."""
    handler: Any = workflow.get_update_handler(ANSWER_UPDATE)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # bare Callable
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, _Questions) else _Questions()


class _Questions:
    """The open questions of one workflow instance, and answers that `ask` has not collected."""

    def __init__(self) -> None:
        self._open: dict[str, Mapping[str, Any]] = {}
        self._answers: dict[str, Answer] = {}
        self._answered: set[str] = set()
        workflow.set_update_handler(ANSWER_UPDATE, self.answer, validator=self.validate)  # pyright: ignore[reportUnknownMemberType]  # bare Callable
        workflow.set_signal_handler(ANSWER_SIGNAL, self.answer_by_signal)  # pyright: ignore[reportUnknownMemberType]  # bare Callable

    async def ask(self, params: Mapping[str, Any]) -> Answer:
        key = str(workflow.uuid4())  # the same on replay, and never reused, not even by the next run
        order = list(params["requestedSchema"].get("properties", {}))  # Temporal's converter sorts the keys
        self._open[key] = {"method": "elicitation/create", "params": params, "order": order}
        self._publish()
        try:
            await workflow.wait_condition(lambda: key in self._answers)
        except asyncio.CancelledError:
            if self._open.pop(key, None):
                self._publish()
            raise
        return self._answers.pop(key)

    def validate(self, key: str, response: dict[str, Any]) -> None:
        if key in self._answered:
            return  # a repeated delivery: accepted here, ignored in `answer`
        question = self._open.get(key)
        if question is None:
            raise ApplicationError(f"no open question {key!r}", type=UNKNOWN_QUESTION, non_retryable=True)
        if complaint := _response_error(question["params"]["requestedSchema"], response):
            raise ApplicationError(complaint, type=BAD_ANSWER, non_retryable=True)

    def answer(self, key: str, response: dict[str, Any]) -> None:
        if key in self._answered:
            return
        self._answers[key] = Answer(action=response["action"], content=_content(response))
        self._answered.add(key)
        del self._open[key]
        self._publish()  # in the same workflow task: when the update returns, the memo is up to date

    def answer_by_signal(self, answer: dict[str, Any]) -> None:
        key, response = answer.get("key", ""), answer.get("response", {})
        try:
            self.validate(key, response)
        except ApplicationError as error:
            workflow.logger.warning("ignored an answer: %s", error.message)
            return
        self.answer(key, response)

    def _publish(self) -> None:
        """Write the open questions to the memo, with the run that asked them: the next run inherits the memo."""
        asked = {"run": workflow.info().original_execution_run_id, "requests": dict(self._open)}
        workflow.upsert_memo({MEMO_INPUT: asked if self._open else None})


def _response_error(schema: Mapping[str, Any], response: object) -> str | None:
    if not isinstance(response, dict):
        return "an answer is {action, content}"
    answer = cast("dict[str, Any]", response)
    if answer.get("action") not in ACTIONS:
        return "action must be accept, decline or cancel"
    return content_error(schema, _content(answer)) if answer["action"] == "accept" else None


def _content(response: Mapping[str, Any]) -> Any:  # Any: JSON, not checked yet
    """Return the content of an accepted form, or an empty object without content or acceptance."""
    content = response.get("content")
    return {} if content is None or response["action"] != "accept" else content
