"""Questions that the server itself asks, by elicitation: each is open until it is answered here."""

from __future__ import annotations

import json
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import anyio
import mcp_types as types
from pydantic import ValidationError

from mcp_workflows.adapter import JSON, InputRequest
from mcp_workflows.adapter.display_text import safe_link
from mcp_workflows.kit.expressions import as_object

logger = logging.getLogger(__name__)

_METHOD: Final = "elicitation/create"
MOST_QUESTIONS: Final = 20  # questions of one execution that are open at a time
_MOST_IN_ALL: Final = 1000
_LONGEST: Final = 50_000  # characters of a question as JSON


_NOT_SHOWN: Final = {"meta", "task"}


@dataclass(slots=True)
class _Elicitation:
    params: Mapping[str, JSON]
    answered: anyio.Event = field(default_factory=anyio.Event)
    response: types.ElicitResult = field(default_factory=lambda: types.ElicitResult(action="cancel"))


class Elicitations:
    """The open questions by execution (an id of a call or of a task), each under a key that is never used again."""

    def __init__(self, changed: Callable[[str], None], masked: Callable[[JSON], JSON], *, is_local: bool) -> None:
        """`changed` is called with the execution whose questions have changed; `masked` leaves out our credentials.

        A server that `is_local` may send people to http pages of this machine.
        """
        self._is_local = is_local
        self._masked = masked
        self._open: defaultdict[str, dict[str, _Elicitation]] = defaultdict(dict)
        self._changed = changed

    async def ask(self, execution: str, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Return the answer to a question of this execution, once there is one.

        A server that asks too much, or sends people to an unsafe address, gets `cancel` for an answer.
        """
        written = self._masked(params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude=_NOT_SHOWN))
        if isinstance(params, types.ElicitRequestURLParams) and safe_link(params.url, local=self._is_local) is None:
            logger.warning("an MCP server asks people to visit a page that is not https: its question is cancelled")
            return types.ElicitResult(action="cancel")
        count, in_all = len(self._open.get(execution, ())), sum(map(len, self._open.values()))
        if count >= MOST_QUESTIONS or in_all >= _MOST_IN_ALL or len(json.dumps(written)) > _LONGEST:
            logger.warning("an MCP server asks too much: %d questions are open, %d of one call", in_all, count)
            return types.ElicitResult(action="cancel")
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
            given = as_object(responses[key]) or {}
            try:
                question.response = types.ElicitResult.model_validate(
                    {name: given[name] for name in ("action", "content") if given.get(name) is not None}
                )
            except ValidationError:
                continue
            question.answered.set()

    def close(self, execution: str) -> None:
        """Answer the open questions of an execution that has ended: nobody will."""
        for question in self._open.get(execution, {}).values():
            question.answered.set()
