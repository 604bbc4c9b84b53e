"""`confirm`: a person says yes to one call before it starts, to exactly these arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from mcp_workflows.adapter import JSON, InputRequest
from mcp_workflows.adapter.templates import Template
from mcp_workflows.ask import Action, Declined, Dialogue, checked_response
from mcp_workflows.creation import digest
from mcp_workflows.errors import MappingError
from mcp_workflows.gate import ELICIT
from mcp_workflows.question import NAME_META
from mcp_workflows.schema import Schema
from mcp_workflows.tool import CONFIRM, Tool

_FORM: Final[Schema] = {
    "type": "object",
    "properties": {CONFIRM: {"type": "boolean", "title": "Yes, go ahead"}},
    "required": [CONFIRM],
}
"""One box to tick: hosts and conformance clients answer that, and an empty form they may send without being asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What a person is to say yes to."""

    request: InputRequest
    about: str  # a digest of the tool, the message and the arguments

    def asked(self, dialogue: Dialogue) -> Dialogue:
        """The dialogue once it is asked."""
        return replace(dialogue, confirming=self.about)

    def taken(self, responses: Mapping[str, JSON], dialogue: Dialogue) -> bool | Declined:
        """Whether a person said yes to this; False: it is still to be asked, perhaps after something else was.

        Raises:
            RequestError: the answer does not fit.
        """
        if CONFIRM not in responses or dialogue.confirming != self.about:
            return False
        response = checked_response(CONFIRM, self.request, responses[CONFIRM])
        if response["action"] != Action.ACCEPT:
            return Declined(name=CONFIRM, action=Action(response["action"]))
        return True if response["content"][CONFIRM] else Declined(name=CONFIRM, action=Action.DECLINE)


def confirmation(tool: Tool, scope: Mapping[str, JSON]) -> Confirmation | None:
    """What there is to confirm before this call starts; None: nothing.

    Raises:
        MappingError: the message would have a gap: who says yes must see what to.
    """
    if tool.confirm is None:
        return None
    wordless = Template(tool.confirm).wordless  # then only the values would say what a person says yes to
    template = Template(f"Start {tool.name}? {tool.confirm}" if wordless else tool.confirm)
    if gaps := template.gaps(scope):
        raise MappingError(f"{', '.join(gaps)} must be given: it is what a person is asked to confirm")
    message = template.message(scope)
    params = {"mode": "form", "message": message, "requestedSchema": _FORM, "_meta": {NAME_META: CONFIRM}}
    about = digest([tool.name, message, scope["args"]])
    return Confirmation(request=InputRequest(method=ELICIT, params=params), about=about)
