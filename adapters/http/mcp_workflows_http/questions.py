"""Questions that executions ask people, and the answers to them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final

from mcp_workflows.adapter import JSON, InputRequest
from mcp_workflows.adapter.http_errors import MAX_BODY, reason_in
from mcp_workflows.errors import EngineRefused, MappingError
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import ApiDefinition, Ask, Place
from mcp_workflows_http.error_translation import change_error
from mcp_workflows_http.expressions import Scope, as_list, as_object, lenient, moment_of
from mcp_workflows_http.inputs import form_of

_METHOD: Final = "elicitation/create"
_NOTHING: Final[Mapping[str, JSON]] = {"type": "object", "properties": {}}
_YES_OR_NO: Final[Mapping[str, JSON]] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}},
    "required": ["approved"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question that is open now, and what expressions know of it."""

    how: Ask
    scope: Scope
    request: InputRequest


def open_questions(definition: ApiDefinition, scope: Scope, page: str | None) -> Mapping[str, OpenQuestion]:
    """Return the open questions by key; `page` is the execution's own page."""
    return {
        key: OpenQuestion(
            how=how, scope=each, request=InputRequest(method=_METHOD, params=_params(how, each, page, key))
        )
        for name, how in definition.asks.items()
        for key, each in _items(name, how, scope)
        if _is_settled(how, each, definition.settling)
    }


def _items(name: str, how: Ask, scope: Scope) -> Iterator[tuple[str, Scope]]:
    """Yield the key and the scope of each question; none where an expression does not work on this reply."""
    try:
        found = [None] if how.each is None else scope.value(how.each)
        for item in as_list(found) or ():
            each = scope | {"item": item}
            if how.when is None or each.is_true(how.when):
                yield f"{name}.{each.text(how.key)}", each
    except MappingError:
        return


def _is_settled(how: Ask, scope: Scope, settling: timedelta) -> bool:
    """Return True if the API takes an answer by now, by its own clock if it tells the time."""
    asked = None if how.asked is None else moment_of(lenient(partial(scope.text, how.asked)))
    if asked is None:
        return True
    try:
        now = parsedate_to_datetime(scope.text("{{reply.headers.date}}")).astimezone(UTC)
    except ValueError:
        now = datetime.now(UTC)
    return now - asked >= settling


def _params(how: Ask, scope: Scope, page: str | None, key: str) -> Mapping[str, JSON]:
    message = lenient(partial(scope.text, how.message)) or "It waits for an answer."
    if how.at is Place.ENGINE:
        return {"mode": "url", "message": message, "url": _page(how, scope) or page or "", "elicitationId": key}
    return {"mode": "form", "message": message, "requestedSchema": _schema(how, scope)}


def _page(how: Ask, scope: Scope) -> str | None:
    return None if how.url is None else lenient(partial(scope.text, how.url))


def _schema(how: Ask, scope: Scope) -> Mapping[str, JSON]:
    """Return the form; some APIs have it as a JSON text."""
    found: Any = None if how.form is None else lenient(partial(scope.value, how.form))
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            found = None
    form = as_object(found) or (_NOTHING if how.fields else _YES_OR_NO)
    fields = _fields(how, scope)
    return {**form, "properties": {**(as_object(form.get("properties")) or {}), **fields}} if fields else form


def _fields(how: Ask, scope: Scope) -> Mapping[str, Mapping[str, JSON]]:
    """Return the further fields of the form: their JSON Schema by name."""
    found: Any = None if how.fields is None else form_of(how.fields, scope)
    return {} if found is None else found["properties"]


async def send_answer(client: ApiClient, question: OpenQuestion, response: JSON, principal: JSON) -> None:
    """Deliver the response of this principal to an open question; one that was answered meanwhile is ignored.

    Raises:
        EngineRefused: the API does not take it, or the question cannot be declined.
        EngineUnavailable: it may not have arrived.
    """
    how = question.how
    if how.at is Place.ENGINE:
        return  # the person went to the page, or did not; a look tells
    given = as_object(response) or {}
    accepted = given.get("action") == "accept"
    request = how.send if accepted else how.decline
    if request is None:
        raise EngineRefused("this question cannot be declined: cancel the task in its place")
    content = as_object(given.get("content")) or {}
    fields = {name: content.get(name, field.get("default")) for name, field in _fields(how, question.scope).items()}
    scope = Scope(names={**question.scope.names, "fields": fields}, own={"answer": content, "principal": principal})
    reply = await client.send(request, scope)
    if reply.status in how.late:
        return
    if not reply.ok:
        raise change_error(reply)
    if how.refused is not None and (scope | {"reply": reply.as_json()}).is_true(how.refused):
        reason = reason_in(reply.content[:MAX_BODY])
        raise EngineRefused(f"the API refused the answer{f': {reason}' if reason else ''}")
