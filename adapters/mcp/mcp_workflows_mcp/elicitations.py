"""Questions that the server itself asks, by elicitation: each is open until it is answered here."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio
import mcp_types as types
from pydantic import ValidationError

from mcp_workflows.adapter import JSON, InputRequest

_METHOD = "elicitation/create"


@dataclass(slots=True)
class _Elicitation:
    params: Mapping[str, JSON]
    answered: anyio.Event = field(default_factory=anyio.Event)
    response: types.ElicitResult = field(default_factory=lambda: types.ElicitResult(action="cancel"))


class Elicitations:
    """The open questions by execution (an id of a call or of a task), each under a key that is never used again."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        """`changed` is called with the execution whose questions have changed."""
        self._open: defaultdict[str, dict[str, _Elicitation]] = defaultdict(dict)
        self._changed = changed

    async def ask(self, execution: str, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Return the answer to a question of this execution, once there is one."""
        written = params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta", "task"})
        key, question = uuid.uuid4().hex, _Elicitation(params={"mode": "form", **written})
        self._open[execution][key] = question
        self._changed(execution)
        try:
            await question.answered.wait()
        finally:
            del self._open[execution][key]
            if not self._open[execution]:
                del self._open[execution]
            self._changed(execution)
        return question.response

    def requests(self, execution: str) -> Mapping[str, InputRequest]:
        """Return the open questions of an execution by key."""
        questions = self._open.get(execution, {})
        return {key: InputRequest(method=_METHOD, params=each.params) for key, each in questions.items()}

    def answer(self, execution: str, responses: Mapping[str, JSON]) -> None:
        """Answer open questions; those that are not open are ignored."""
        questions = self._open.get(execution, {})
        for key in responses.keys() & questions.keys():
            question = questions[key]
            try:
                question.response = types.ElicitResult.model_validate(
                    {name: responses[key].get(name) for name in ("action", "content") if responses[key].get(name)}
                )
            except ValidationError:
                continue
            question.answered.set()
