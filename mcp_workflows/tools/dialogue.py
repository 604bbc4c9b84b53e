"""The dialogue with a person: questions before the start (multi round-trip requests) and confirmations; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, cast

from pydantic import TypeAdapter

from mcp_workflows.adapter import JSON, InputRequest, digest
from mcp_workflows.adapter.templates import Template
from mcp_workflows.errors import INVALID_PARAMS, MappingError, RequestError
from mcp_workflows.tools.json_schema import Checker, added_by_host, is_object
from mcp_workflows.tools.questions import ELICIT
from mcp_workflows.tools.tool import AnyTool

_NO: Final = (False, "decline", "cancel", "no", "reject", "false")


class Action(StrEnum):
    """A person's action on a question (MCP `ElicitResult.action`)."""

    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"


class AnswerWay(StrEnum):
    """The source of an answer to a workflow's question."""

    CHAT = "chat"  # from an MCP client; a model may have written it
    LINK = "link"  # like CHAT, but the client shows links: an answer without content reports if the link was opened
    PAGE = "page"  # from our page of the question, or from an operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """The state of a call between its rounds, in `requestState`; sealed elsewhere."""

    key: str | None = None  # makes the start at the end of the dialogue safe to retry; keys of later rounds are ignored
    since: datetime | None = None  # the time of the first question, if the arguments are the key
    answered: tuple[str, ...] = ()  # names of questions
    arguments: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # from the answers
    confirming: str | None = None  # digest of the question that a person must confirm
    task_id: str | None = None  # set if the task asks instead of the tool


_DIALOGUE = TypeAdapter(Dialogue)


def read_dialogue(state: str | None) -> Dialogue:
    """Parse the dialogue so far; without a state, return a new one. The state was unsealed, so it is our own."""
    if state is None:
        return Dialogue()
    return _DIALOGUE.validate_json(state)


def write_dialogue(dialogue: Dialogue) -> str:
    """Serialize the dialogue as a state that is not sealed yet."""
    return _DIALOGUE.dump_json(dialogue).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """The person declined a question: nothing is started."""

    name: str
    action: Action


def take(tool: AnyTool, responses: Mapping[str, JSON], dialogue: Dialogue) -> Dialogue | Declined:
    """Add these answers to the dialogue; ignore responses to questions that were not asked.

    Raises:
        RequestError: an answer does not fit its question; the message names it.
    """
    for name in tool.ask:
        if name not in responses or name in dialogue.answered:
            continue
        question = InputRequest(method=ELICIT, params={"requestedSchema": tool.ask[name].form(name)})
        response = checked_response(name, question, responses[name])
        if response["action"] != Action.ACCEPT:
            return Declined(name=name, action=Action(response["action"]))
        arguments = {**dialogue.arguments, **response["content"]}
        dialogue = replace(dialogue, answered=(*dialogue.answered, name), arguments=arguments)
    return dialogue


def still_to_ask(tool: AnyTool, arguments: Mapping[str, JSON], dialogue: Dialogue) -> tuple[str, ...]:
    """Return the names of the questions that still need an answer."""
    due = (name for name, ask in tool.ask.items() if ask.due(name, arguments))
    return tuple(name for name in due if name not in dialogue.answered)


def questions(tool: AnyTool, names: tuple[str, ...], scope: Mapping[str, JSON]) -> Mapping[str, InputRequest]:
    """Return the questions as input requests, by name."""
    return {name: InputRequest(method=ELICIT, params=tool.ask[name].params(name, scope)) for name in names}


def checked_response(key: str, request: InputRequest, response: JSON) -> Mapping[str, JSON]:
    """Return the response if it answers that request; the content of a form is normalized to its schema.

    Raises:
        RequestError: it does not; the message names the key.
    """
    if not isinstance(response, Mapping):
        raise invalid_response(key, "must be an object")
    found = cast("Mapping[str, JSON]", response)
    if request.method != ELICIT:
        return found
    action = found.get("action")
    if not isinstance(action, str) or action not in set(Action):
        raise invalid_response(key, f"action must be one of {', '.join(Action)}")
    if action != Action.ACCEPT or (request.params.get("mode") == "url" and found.get("content") is None):
        return found  # only a form needs content
    form = request.params.get("requestedSchema")
    checker = Checker({"type": "object", **form} if is_object(form) else {})
    content = checker.normalize(found.get("content"))
    if not isinstance(content, Mapping):
        raise invalid_response(key, "content must be an object when the action is accept")
    if wrong := checker.violations(content):
        raise invalid_response(key, f"content does not match the question: {wrong[0]}")
    if refusals := _refusals(form, cast("Mapping[str, JSON]", content)):
        text = f"content does not match the question: it has no field {refusals[0]!r}; to refuse, send action decline"
        raise invalid_response(key, text)
    return {**found, "content": cast("JSON", content)}


def _refusals(form: object, content: Mapping[str, JSON]) -> Sequence[str]:
    """Return the members of an accepted answer that the form lacks and that refuse, such as `{"approved": false}`.

    Other members that the form lacks are ignored, because some clients send them.
    """
    known = set(form.get("properties", {})) if is_object(form) else set(content)
    unknown = content.keys() - known - added_by_host(content)
    return sorted(name for name in unknown if content[name] in _NO)


def invalid_response(key: str, text: str) -> RequestError:
    """Return the error for a response that does not fit its input request."""
    return RequestError(INVALID_PARAMS, f"inputResponses[{key!r}]: {text}; nothing was applied", {"key": key})


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """A question that a person must answer with yes."""

    name: str
    request: InputRequest
    about: str  # a digest of the tool, the message and the arguments

    def asked(self, dialogue: Dialogue) -> Dialogue:
        """Return the dialogue with this question asked."""
        return replace(dialogue, confirming=self.about)

    def taken(self, responses: Mapping[str, JSON], dialogue: Dialogue) -> bool | Declined:
        """Return True if a person confirmed this; False if it must still be asked, perhaps after another question.

        Raises:
            RequestError: the answer does not fit.
        """
        if self.name not in responses or dialogue.confirming != self.about:
            return False
        response = checked_response(self.name, self.request, responses[self.name])
        if response["action"] != Action.ACCEPT:
            return Declined(name=self.name, action=Action(response["action"]))
        return True if response["content"][self.name] else Declined(name=self.name, action=Action.DECLINE)


def confirmation(tool: AnyTool, scope: Mapping[str, JSON]) -> Confirmation | None:
    """Return the confirmation that this call needs before it starts, or None.

    Raises:
        MappingError: the message would have a gap: a person who confirms must see everything.
    """
    if tool.confirmation is None:
        return None
    name, question = tool.confirmation
    if Template(question.message).wordless:  # otherwise only values would describe the call
        question = question.model_copy(update={"message": f"Start {tool.name}? {question.message}"})
    if gaps := Template(question.message).gaps(scope):
        raise MappingError(f"{', '.join(gaps)} must be given: a person is asked to confirm it")
    params = question.params(name, scope)
    about = digest([tool.name, params["message"], scope["args"]])
    return Confirmation(name=name, request=InputRequest(method=ELICIT, params=params), about=about)
