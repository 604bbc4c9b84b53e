"""Questions that workflows post with `mcp_elicit`, with a callback URL for the answer, and claims of keys by
`mcp_claim`.

The contract with workflows is `docs/engines/google-contract.md`. The callback URL is not trusted, because our OAuth
token is sent there.

Source: https://cloud.google.com/workflows/docs/creating-callback-endpoints
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from mcp_workflows.adapter import JSON, TERMINAL, InputRequest
from mcp_workflows.adapter.forms import read_form
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows.kit.change_hints import ChangeHints
from mcp_workflows_google.client import Client
from mcp_workflows_google.notes import ExecutionNotes, utc_now
from mcp_workflows_google.outcome import redact, redact_json, status_of
from mcp_workflows_google.resources import CALLBACK, KEY_LABEL, ExecutionName, ExecutionResource, Place, WorkflowName

ELICIT: Final = "elicitation/create"
METHOD: Final = "POST"  # of the callbacks that `mcp_elicit` opens
MAX_MESSAGE: Final = 16_384  # characters
MAX_KEY: Final = 256
MAX_WAIT: Final = 366 * 24 * 3600  # seconds: no execution runs for longer than a year
MAX_SCHEMA: Final = 32_768  # bytes of it as JSON
MAX_FIELDS: Final = 100
MAX_URL: Final = 2_048  # characters
MOST_OPEN: Final = 100  # open questions of one execution
GLOBAL: Final = "https://workflowexecutions.googleapis.com"
_THIS_MACHINE: Final = ("http://127.0.0.1", "http://localhost")
_URL: Final = re.compile(
    rf"(?P<origin>https?://[a-z0-9.-]+(?::[0-9]{{1,5}})?)/v1/(?P<execution>projects/[A-Za-z0-9._:/-]+)"
    rf"/callbacks?/(?P<id>{CALLBACK})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackPath:
    """A callback of an execution, and the project in its URL."""

    project: str  # from the URL; the caller checks that it is the execution's project
    id: str
    url: str = field(repr=False)


def check_callback(url: str, execution: ExecutionName, *, rest_url: str) -> CallbackPath:
    """Return the callback of a URL, if it belongs to this execution, at Google or at the emulator.

    `rest_url` is the base URL of the API from the engine's settings, and is trusted. The project is not checked,
    because it has an id and a number.

    Raises:
        EngineRefused: the URL does not; the message does not contain it.
    """
    found = _URL.fullmatch(url) if len(url) <= MAX_URL else None
    if found is None:
        raise EngineRefused("callback_url is not the URL of a callback, as events.create_callback_endpoint makes them")
    emulator = rest_url.startswith("http://")
    if emulator:
        host, _, port = rest_url.rpartition(":")  # this machine has two names
        origins = {f"{name}:{port}" for name in _THIS_MACHINE} if host in _THIS_MACHINE else {rest_url}
    else:
        location = execution.workflow.place.location
        origins = {GLOBAL, f"https://workflowexecutions.{location}.rep.googleapis.com", rest_url}
    if found["origin"] not in origins:
        raise EngineRefused(f"callback_url does not lead to {'the emulator' if emulator else 'Google'}")
    name = _parsed(found["execution"])
    if name is None or name.note_prefix != execution.note_prefix:
        raise EngineRefused("callback_url is a callback of another execution")
    known = url.replace(found["origin"], rest_url, 1) if emulator else url
    return CallbackPath(project=name.workflow.place.project, id=found["id"], url=known)


def listed_callback(name: str, execution: ExecutionName, *, rest_url: str) -> CallbackPath | None:
    """Return the callback that `callbacks.list` names `.../callback/ID`; None if it is not this execution's.

    The form of the URL is documented; that the id is that of the name is not.

    Source:
    https://cloud.google.com/workflows/docs/reference/executions/rest/v1/projects.locations.workflows.executions.callbacks/sendHttpCallback
    """
    parent, _, identifier = name.rpartition("/")
    found = _parsed(parent.removesuffix("/callback").removesuffix("/callbacks"))
    if found is None or found.note_prefix != execution.note_prefix or not re.fullmatch(CALLBACK, identifier, re.ASCII):
        return None
    project = execution.workflow.place.project
    url = f"{rest_url}/v1/{found.in_project(project).name}/callbacks/{identifier}"
    return CallbackPath(project=project, id=identifier, url=url)


def _parsed(text: str) -> ExecutionName | None:
    try:
        return ExecutionName.parse(text)
    except EngineRefused:
        return None


def _as_text(value: object) -> object:
    """Accept a project number as a number."""
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
        """Return the name of the execution; the default project is the engine's.

        Raises:
            EngineRefused: the name is invalid.
        """
        at = Place(project=self.project or place.project, location=self.location)
        named = ExecutionName(workflow=WorkflowName(place=at, workflow=self.workflow), execution=self.execution)
        return ExecutionName.parse(named.name)


class PostedQuestion(PostedClaim):
    """Body of `mcp_elicit`: a question, and the callback URL for its answer."""

    callback_url: str = Field(repr=False, min_length=1, max_length=MAX_URL)
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
        """Return the form of a schema; without one, a form without fields, to accept or decline."""
        given: Any = {} if schema is None else schema
        form: dict[str, Any] = {"type": "object", "properties": {}, **given} if isinstance(given, Mapping) else {}
        is_object = form.get("type") == "object" and isinstance(form.get("properties"), Mapping)
        if not is_object or not isinstance(form.get("required", []), list):
            raise ValueError("it is not the schema of an object: {type: object, properties: {...}}")
        try:
            size = len(json.dumps(form, ensure_ascii=False).encode("utf-8", "replace"))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        count = len(form["properties"])
        if size > MAX_SCHEMA or count > MAX_FIELDS:
            raise ValueError(f"it has {count} fields in {size} bytes; at most {MAX_FIELDS} in {MAX_SCHEMA} are taken")
        try:
            form = read_form(form)
        except (AttributeError, TypeError):  # a keyword has another type than in JSON Schema
            raise ValueError("it is no JSON Schema") from None
        if missing := [name for name in form.get("required", ()) if str(name) not in form["properties"]]:
            raise ValueError(f"required names {missing[0]!r}, which is none of its properties")
        return form

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
        """Return whether the workflow probably still waits for the answer."""
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


async def receive_question(client: Client, notes: ExecutionNotes, hints: ChangeHints, body: JSON) -> JSON:
    """Store a question before the workflow gets a reply; a repetition changes nothing.

    The question may arrive before our CreateExecution call returns, so its key is the name of the execution. Google
    confirms that the execution exists; otherwise any permitted account could fill the store. The project of the
    callback is checked before an answer is sent: see `Client.is_in_project`.

    Raises:
        EngineRefused: the question is invalid, its callback belongs to another execution, the execution has ended, or
            it has too many open questions.
        EngineUnavailable: the question could not be stored, or Google does not show the execution yet; the workflow
            retries.
    """
    asked, now = PostedQuestion.read(body), utc_now()
    name = asked.execution_name(await client.place())
    callback = check_callback(asked.callback_url, name, rest_url=client.rest_url)
    known = await notes.questions(name)
    if callback.id not in known:
        # each `describe` reads all open questions, and people see them all
        if sum(each.open(now) for each in map(read_question, known.values()) if each is not None) >= MOST_OPEN:
            raise EngineRefused(f"this execution has {MOST_OPEN} open questions, and no more are taken")
        if status_of((await _shown(client, name, full=False)).state) in TERMINAL:
            raise EngineRefused("this execution has ended: it can ask nothing")
    await notes.add_question(name, callback.id, asked.question(utc_now()), until=asked.until(utc_now()))
    hints.notify_by_name(name.note_prefix)
    return {"kept": True}


async def receive_claim(client: Client, notes: ExecutionNotes, body: JSON) -> JSON:
    """Return whether this execution may continue: true for the first of its key, and for executions without a key.

    The key comes from Google's labels of the execution, so that no execution can claim another's key.

    Raises:
        EngineRefused: the request does not name an execution.
        EngineUnavailable: Google does not show the execution yet, or cannot be reached; the workflow retries.
    """
    name = PostedClaim.read(body).execution_name(await client.place())
    resource = await _shown(client, name, full=True)
    key = resource.labels.get(KEY_LABEL)
    if key is None:
        return {"claimed": True}
    holder = await notes.claim(await client.claim_key(name, key), ExecutionName.parse(resource.name))
    return {"claimed": holder.note_prefix == name.note_prefix}


async def _shown(client: Client, name: ExecutionName, *, full: bool) -> ExecutionResource:
    try:
        return await client.get(name, full=full)
    except ExecutionNotFound as error:
        raise EngineUnavailable(str(error)) from None
