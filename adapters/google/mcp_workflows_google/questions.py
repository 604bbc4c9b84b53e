"""Questions that `mcp_elicit` posts, and their form in the notes: see `mcp-workflows docs google-contract`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from mcp_workflows.adapter import JSON, InputRequest
from mcp_workflows.errors import EngineRefused
from mcp_workflows_google.forms import MalformedFormError, read_form
from mcp_workflows_google.names import ExecutionName, Place, WorkflowName
from mcp_workflows_google.redaction import redact, redact_json

ELICIT: Final = "elicitation/create"
MAX_MESSAGE: Final = 16_384  # characters
MAX_KEY: Final = 256
MAX_WAIT: Final = 366 * 24 * 3600  # seconds: no execution runs for longer than a year
METHOD: Final = "POST"  # of the callbacks that `mcp_elicit` opens


def _as_text(value: object) -> object:
    """Accept the number of a project as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class PostedClaim(BaseModel):
    """Body of `mcp_claim`: the execution's name, in the parts that `sys.get_env` returns."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    project: str | None = Field(default=None, max_length=128)
    project_number: Annotated[str, BeforeValidator(_as_text)] = Field(default="", max_length=20)
    location: str = Field(max_length=64)
    workflow: str = Field(max_length=128)
    execution: str = Field(max_length=128)

    @classmethod
    def read(cls, body: JSON) -> Self:
        """Read a posted body.

        Raises:
            EngineRefused: it is invalid; the message names the field.
        """
        if not isinstance(body, Mapping):
            raise EngineRefused("the body must be a JSON object")
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False)[0]
            where, text = ".".join(map(str, wrong["loc"])), wrong["msg"].removeprefix("Value error, ")
            raise EngineRefused(f"{where}: {text}") from None

    def execution_name(self, place: Place) -> ExecutionName:
        """Return the name of the execution; without a project it is in that of the engine.

        Raises:
            EngineRefused: the name is invalid.
        """
        at = Place(project=self.project or place.project, location=self.location)
        named = ExecutionName(workflow=WorkflowName(place=at, workflow=self.workflow), execution=self.execution)
        return ExecutionName.parse(named.name)


class PostedQuestion(PostedClaim):
    """Body of `mcp_elicit`: a question, and the callback URL for its answer."""

    callback_url: str = Field(repr=False, min_length=1, max_length=2_048)
    message: str = Field(max_length=MAX_MESSAGE)
    requested_schema: Any = Field(default=None, validate_default=True)  # Any: JSON; checked below
    key: str | None = Field(default=None, max_length=MAX_KEY)
    timeout: float = Field(default=43_200, gt=0, le=MAX_WAIT)  # seconds, as events.await_callback has it

    @field_validator("message")
    @classmethod
    def _says_something(cls, message: str) -> str:
        if not message.strip():
            raise ValueError("a question needs a text")
        return message

    @field_validator("requested_schema")
    @classmethod
    def _is_form(cls, schema: Any) -> Any:  # Any: JSON
        try:
            return read_form(schema)
        except MalformedFormError as error:
            raise ValueError(str(error)) from None

    def question(self, now: datetime) -> Mapping[str, JSON]:
        """Return the note of the question; its texts do not contain the callback URL, which clients must not see."""
        return {
            "callback_url": self.callback_url,
            "key": self.key,
            "message": redact(self.message),
            "requested_schema": redact_json(self.requested_schema),
            "expires": self._expiry(now).isoformat(),
            "answered": False,
        }

    def until(self, now: datetime) -> datetime:
        """Return the expiry of the note: one day after the workflow stops waiting."""
        return self._expiry(now) + timedelta(days=1)

    def _expiry(self, now: datetime) -> datetime:
        return now + timedelta(seconds=self.timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question from the notes."""

    request: InputRequest
    url: str = field(repr=False)
    expires: datetime
    answered: bool

    def open(self, now: datetime) -> bool:
        """Return whether the workflow still waits for the answer, as far as is known."""
        return not self.answered and now < self.expires


def read_question(value: JSON) -> Question | None:
    """Read a note; None if this version does not know its format."""
    if not isinstance(value, Mapping):
        return None
    found = cast("Mapping[str, Any]", value)  # Any: JSON
    try:
        expires = datetime.fromisoformat(found["expires"])
        params = {"mode": "form", "message": str(found["message"]), "requestedSchema": found["requested_schema"]}
        url = str(found["callback_url"])
    except (KeyError, TypeError, ValueError):
        return None
    if expires.tzinfo is None:
        return None
    request, answered = InputRequest(method=ELICIT, params=params), found.get("answered") is True
    return Question(request=request, url=url, expires=expires, answered=answered)
