"""The definition of a job API: the requests that start, poll, answer and cancel an execution, and how to read replies.

A preset is such a definition in a file. The settings of an engine are also one, and override those of its preset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, field_validator, model_validator

from mcp_workflows import Duration
from mcp_workflows.adapter import Signature, StartGuarantee
from mcp_workflows.kit.definition import ENDS_OR_RUNS, MODEL, SENDS, EngineQuestion, Inputs, Reading, Sends, in_order
from mcp_workflows.kit.expressions import Text, Value, names_in

Code = Annotated[int, Field(ge=100, le=599)]


Host = Annotated[str, Field(pattern=r"^(\*\.)?[a-z0-9.-]+(:\d+)?$")]
Codes = Annotated[tuple[Code, ...], AfterValidator(in_order)]


_UP: Final = re.compile(r"/\.\.?(/|$)")
HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Method(StrEnum):
    """The HTTP method of a request."""

    GET = "GET"
    POST = "POST"
    PUT = "PUT"
    PATCH = "PATCH"
    DELETE = "DELETE"


def _from_line(written: object) -> object:
    """Read `POST /jobs` or `/jobs`."""
    if not isinstance(written, str):
        return written
    method, _, path = written.partition(" ")
    return {"method": method, "path": path} if path and method.isupper() else {"path": written}


class Request(BaseModel):
    """One request; texts may contain {{placeholders}}. `POST /jobs` is short for method and path."""

    model_config = MODEL

    method: Method = Field(default=Method.GET, description="The HTTP method.")
    path: Text | None = Field(default=None, description="The path after `url`. Values cannot leave their path segment.")
    url: Text | None = Field(
        default=None, description="A URL from a reply, instead of a path. It must have the origin of `url`."
    )
    query: Mapping[str, Value] = Field(default={}, description="The query. A list repeats its parameter.")
    headers: Mapping[str, Text] = Field(default={}, description="Headers of this request.")
    body: Value = Field(default=None, alias="json", description="The body, as JSON.")
    form: Value = Field(default=None, description="The body, as a form: an object, or an expression for one.")
    multipart: Value = Field(
        default=None, description="The body, as multipart/form-data. Values other than texts are written as JSON."
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Request:
        if (self.path is None) == (self.url is None):
            raise ValueError("set path, or url (of a reply)")
        if self.path is not None and (not self.path.startswith("/") or _UP.search(self.path)):
            raise ValueError("a path begins with /, and has no .. in it")
        for name in self.headers:
            if not HEADER.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a header")
        if sum(each is not None for each in (self.body, self.form, self.multipart)) > 1:
            raise ValueError("set one of json, form and multipart")
        return self


Requested = Annotated[Request, BeforeValidator(_from_line, json_schema_input_type=Request | str)]


class Taken(BaseModel):
    """The reply by which an API says that the key already has an execution."""

    model_config = MODEL

    status: Codes = Field(default=(409,), description="The HTTP statuses that indicate this.")
    when: Text | None = Field(default=None, description="A further condition.")
    handle: Value = Field(description="The handle of the execution, in the form of `start.handle`.")


class StartRequest(BaseModel):
    """The start of an execution."""

    model_config = MODEL

    request: Requested = Field(description="The request that starts the execution. It is sent once.")
    handle: Value = Field(description="The handle of the execution: a text, or an object of several parts.")
    finished: Text | None = Field(
        default=None, description="True if the execution has already ended and the reply is equivalent to a poll's."
    )
    taken: Taken | None = Field(
        default=None, description="With `starts: keyed`: how the API reports that the key is taken."
    )
    same: Text | None = Field(
        default=None,
        description="True if the execution of a key, in the reply of `describe`, is the same order. Otherwise "
        "the start is refused.",
    )
    known: Text | None = Field(
        default=None,
        description="True if the reply is about an execution that existed before. Default: always possible.",
    )
    conflict: Codes = Field(default=(), description="The HTTP statuses that say the key belongs to another order.")
    refused_if: Text | None = Field(
        default=None, description="True if a reply is a definite refusal despite its HTTP status."
    )

    @model_validator(mode="after")
    def _starts_one(self) -> StartRequest:
        if "method" not in self.request.model_fields_set:
            raise ValueError("request: write the method of a start, POST /jobs")
        if not names_in(self.handle):
            raise ValueError("handle: it is the same for all; say where it is in the reply, {{reply.body.id}}")
        return self


class NextPage(BaseModel):
    """The next page of a list."""

    model_config = MODEL

    query: Mapping[str, Value] = Field(
        default={}, description="The query parameters of the next page, taken from the reply."
    )
    link: bool = Field(default=False, description="The `Link` header of the reply has the next URL (rel=next).")


class Pages(BaseModel):
    """A list, in pages."""

    model_config = MODEL

    request: Requested = Field(description="The request.")
    each: Text = Field(description="The list of items in the reply.")
    next: NextPage | None = Field(default=None, description="How to request the next page. Default: one page.")
    pages: int = Field(default=10, ge=1, le=100, description="Maximum number of pages to read.")


class Listing(Pages):
    """A list of executions."""

    handle: Value = Field(description="The handle of the execution, in the form of `start.handle`.")


class Search(Listing):
    """The search for the execution of a key."""

    where: Text = Field(description="True if the `item` is the execution of the key.")


class BatchStatus(Listing):
    """A list that shows which executions still run."""

    values: tuple[str, ...] = Field(
        default=(), description="Request the list once per `value`, for APIs whose filter takes one status."
    )
    status: Text | None = Field(
        default=None, description="The status word of an `item`. Default: the list has only running executions."
    )
    asking: Text | None = Field(
        default=None,
        description="True if an `item` may have a question; then its execution is polled separately. With a "
        "text, it is polled when the text changes.",
    )


class More(BaseModel):
    """A further request of a poll."""

    model_config = MODEL

    request: Requested = Field(description="The request.")
    each: Text | None = Field(
        default=None, description="A list. The request is sent for each `item`, and more.NAME is the list of replies."
    )
    when: Text | None = Field(default=None, description="A condition. `status` is the mapped status.")


class Log(BaseModel):
    """The log of a failed execution; its end becomes part of the failure."""

    model_config = MODEL

    request: Requested = Field(description="The request.")
    text: Text | None = Field(default=None, description="The text in the reply. Default: the whole reply.")
    line: Text | None = Field(
        default=None, description="The text of a line, `item`, if each line is JSON. Empty lines are omitted."
    )
    follow: tuple[Host, ...] = Field(
        default=(),
        description="Hosts to which one redirect is followed, without credentials: logs.example.com, or "
        "*.blob.core.windows.net. A host of a pattern must not have a private address.",
    )
    lines: int = Field(default=50, ge=1, le=500, description="The number of lines to show, from the end.")


class _DescribeRequests(BaseModel):
    """The requests of a poll."""

    model_config = MODEL

    request: Requested = Field(description="The request.")
    more: Mapping[str, More] = Field(default={}, description="Further requests. Their replies are more.NAME.")


class DescribeRequest(Reading, _DescribeRequests):
    """A poll of an execution."""

    status: Text | None = Field(
        default=None,
        description="The status word in the reply. If it uses more.NAME, those requests are sent first and must "
        "all succeed.",
    )
    codes: Mapping[int, Text] = Field(
        default={},
        description="The status by HTTP status: running, succeeded, failed, cancelled, or an expression instead "
        "of `status`.",
    )
    log: Log | None = Field(default=None, description="The log of a failed execution.")
    gone: Codes = Field(default=(404, 410), description="The HTTP statuses that say the execution does not exist.")
    gone_if: Text | None = Field(
        default=None, description="True if a reply says that the execution does not exist, despite its HTTP status."
    )

    @field_validator("codes")
    @classmethod
    def _codes_say_a_status(cls, codes: Mapping[int, str]) -> Mapping[int, str]:
        words = [status.value for status in ENDS_OR_RUNS]
        for code, meaning in codes.items():
            if "{{" not in meaning and meaning not in words:
                raise ValueError(f"{code}: write one of {', '.join(words)}, or an expression")
        return codes

    @cached_property
    def needs_more_for_status(self) -> bool:
        """True if the further requests determine the status."""
        return "more" in names_in([self.status, self.gone_if, *self.codes.values()])

    @cached_property
    def needs_more_for_output(self) -> bool:
        """True if the result is in a further request."""
        return "more" in names_in(self.output)

    @model_validator(mode="after")
    def _has_an_order(self) -> DescribeRequest:
        used = names_in([each.when for each in self.more.values()])
        if self.needs_more_for_status and "status" in used:
            raise ValueError("more.NAME.when cannot use status, as status uses more")
        return self


class Ask(EngineQuestion):
    """A question of an execution to people, in the terms of the API."""

    send: Requested | None = Field(default=None, description="The request that delivers an answer, `answer.NAME`.")
    decline: Requested | None = Field(
        default=None, description="The request that delivers a refusal. Without it, the question cannot be declined."
    )
    late: Codes = Field(
        default=(404, 409, 410), description="The HTTP statuses that say it is too late: answered already, or ended."
    )
    refused: Text | None = Field(default=None, description="True if a reply is a refusal despite its 2xx status.")


class Cancel(BaseModel):
    """The cancellation of an execution. It is polled first; nothing is sent if it has ended."""

    model_config = MODEL

    request: Requested = Field(description="The request.")
    when: Text | None = Field(
        default=None,
        description="True if the execution can be cancelled. Until then the server polls again, several times.",
    )
    late: Codes = Field(
        default=(404, 409, 410), description="The HTTP statuses that say it is too late: answered already, or ended."
    )


class Action(BaseModel):
    """A message to a running execution; a tool sends it in its `actions`, as `{request: NAME}`."""

    model_config = MODEL

    request: Requested = Field(description="The request. It is sent once.")
    sends: Sends = Field(default=StartGuarantee.ONCE, description=SENDS)
    refused_if: Text | None = Field(
        default=None, description="True if a reply is a definite refusal despite its HTTP status."
    )
    output: Value = Field(
        default=None,
        description="The result, taken from the reply. Default: the names of the message and the execution.",
    )


class Throttled(BaseModel):
    """The reply that says that we call too often; `Retry-After` gives the end of the pause."""

    model_config = MODEL

    status: Codes = Field(default=(429,), description="The HTTP statuses that indicate this.")
    when: Text | None = Field(default=None, description="A further condition.")
    until: str | None = Field(default=None, description="A header with the end of the pause, in seconds since 1970.")


class Webhook(BaseModel):
    """The API's calls about its executions. A call only triggers a poll."""

    model_config = MODEL

    signature: Signature = Field(
        default=Signature.BEARER,
        description="The proof that the caller knows `webhook_secret`: hub (X-Hub-Signature-256), gitlab "
        "(X-Gitlab-Token), standard (standardwebhooks.com), bearer.",
    )
    handle: Value = Field(description="The handle of the execution, in the form of `start.handle`.")


class Checking(BaseModel):
    """Requests of `mcp-workflows check` that change nothing."""

    model_config = MODEL

    engine: Requested | None = Field(
        default=None, description="A request that returns 2xx if the API answers. Default: GET /."
    )
    workflow: Requested | None = Field(default=None, description="A request that returns 2xx if the workflow exists.")
    advice: str | None = Field(
        default=None, description="Advice on how to make repeated starts safe, while they are not."
    )


class Detail(BaseModel):
    """A further request about a workflow."""

    model_config = MODEL

    request: Requested = Field(description="The request.")
    yaml: bool = Field(default=False, description="The reply is YAML. Its first document becomes the body.")


class Workflows(Pages):
    """The workflows of the API, for `mcp-workflows init --add`."""

    more: Mapping[str, Detail] = Field(default={}, description="Further requests. Their replies are more.NAME.")
    when: Text | None = Field(default=None, description="True if the `item` can be started. Default: all can.")
    workflow: Text = Field(description="The `workflow` of a tool for the `item`.")
    title: Text | None = Field(default=None, description="The title of the tool.")
    description: Text | None = Field(default=None, description="The description for people.")
    options: Value = Field(default=None, description="The `options` of a tool for the `item`.")
    input: Inputs | Text | None = Field(
        default=None, description="The inputs: a JSON Schema, or how the API lists them."
    )


class ApiDefinition(BaseModel):
    """A job API."""

    model_config = MODEL

    starts: StartGuarantee = Field(
        default=StartGuarantee.ONCE,
        description="The guarantee for a repeated start: keyed (the key prevents a second execution), findable "
        "(`find` searches first) or once (no repeat).",
    )
    start: StartRequest = Field(description="How to start an execution.")
    find: Search | None = Field(
        default=None,
        description="With `starts: findable`: how to find the execution of a key, in a list with the newest first.",
    )
    describe: DescribeRequest = Field(description="How to poll an execution.")
    asks: Mapping[str, Ask] = Field(default={}, description="Questions of executions to people, by name.")
    cancel: Cancel | None = Field(default=None, description="How to cancel an execution. Default: not possible.")
    actions: Mapping[str, Action] = Field(default={}, description="Messages to a running execution, by name.")
    batch_status: BatchStatus | None = Field(
        default=None,
        description="A list of running executions, instead of a poll of each. With `asks`, it requires `asking`.",
    )
    settling: Duration = Field(
        default=timedelta(seconds=30), description="The longest time until a poll or a list shows a new execution."
    )
    workflows: Workflows | None = Field(default=None, description="How to list workflows, for `init --add`.")
    webhook: Webhook | None = Field(
        default=None, description="The API's calls to `/engines/ENGINE/webhook`, enabled by `webhook_secret`."
    )
    check: Checking = Field(default=Checking(), description="Requests of `mcp-workflows check`.")
    throttled: Throttled = Field(default=Throttled(), description="How the API reports its rate limit.")

    @property
    def has_batch_status(self) -> bool:
        """True if the list can replace polls: without `asking` it would hide questions."""
        return self.batch_status is not None and (not self.asks or self.batch_status.asking is not None)

    @model_validator(mode="after")
    def _keeps_its_promise(self) -> ApiDefinition:
        if self.starts is StartGuarantee.FINDABLE and self.find is None:
            raise ValueError("starts: findable needs find, which searches for the execution of a key")
        if self.describe.status is None and not self.describe.codes:
            raise ValueError("describe needs status (and map), or codes")
        return self
