"""The settings of a Temporal engine, and the options of one tool, whose texts may contain {{placeholders}}."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SecretStr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, SchemaSerializer, core_schema
from temporalio.converter import DataConverter

from mcp_workflows import Duration
from mcp_workflows.adapter import JSON
from mcp_workflows.adapter.display_text import is_this_machine
from mcp_workflows.adapter.templates import Template
from mcp_workflows.errors import ConfigError, EngineRefused
from mcp_workflows.kit.definition import MessageName

MAX_INPUT_BYTES = 2 * 1024 * 1024
"""Temporal's limit for one blob (`limit.blobSize.error`); a gRPC message over 4 MiB does not even arrive."""

ADDRESS = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})$")


def load_attribute(reference: str, wanted: str) -> Any:  # Any: an attribute of unknown type
    """Import `module:attribute`; `wanted` names the second part in the message.

    Raises:
        ConfigError: the module cannot be imported, or has no such attribute.
    """
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{reference!r} is not module:{wanted}")
    try:
        module = import_module(module_name)
    except CODE_ERRORS as error:
        raise ConfigError(f"{reference}: cannot import {module_name}: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise ConfigError(f"{reference}: {module_name} has no {name}")
    return getattr(module, name)


_CODE_ERRORS = (ImportError, SyntaxError, NameError, AttributeError, TypeError, ValueError, LookupError)
CODE_ERRORS = (*_CODE_ERRORS, RuntimeError, OSError)  # raised by code that is imported or called for the first time


def load_converter(reference: str) -> DataConverter:
    """Return the DataConverter of `module:attribute`: an instance, a class, or a function that returns one.

    Raises:
        ConfigError: there is no DataConverter.
    """
    found = load_attribute(reference, "attribute")
    try:
        made: object = found if isinstance(found, DataConverter) or not callable(found) else found()
    except CODE_ERRORS as error:
        raise ConfigError(f"{reference} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(made, DataConverter):
        raise ConfigError(f"{reference} is a {type(made).__name__}: a temporalio DataConverter is needed")
    return made


def _pem_file(path: Path) -> Path:
    """Reject key material in place of a path: an error about an unreadable path would print it."""
    if not str(path).isprintable():
        raise ValueError("name a PEM file; its content does not belong here")
    return path


def _header(secret: SecretStr) -> SecretStr:
    """Reject a secret that is no valid header value: the SDK would silently send none."""
    text = secret.get_secret_value()
    if not text.isascii() or not text.isprintable():
        raise ValueError("a header is one line of ASCII")
    return secret


PemFile = Annotated[Path, AfterValidator(_pem_file)]
HeaderSecret = Annotated[SecretStr, AfterValidator(_header)]


class TemporalTLS(BaseModel):
    """TLS to the frontend; with a client certificate and key it is mTLS."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    disabled: bool = Field(default=False, description="Disable TLS, even if the profile or the environment enables it.")
    server_name: str | None = Field(default=None, description="The server name that the certificate must have (SNI).")
    server_root_ca_cert: PemFile | None = Field(default=None, description="The CA, a PEM file. Default: the system's.")
    client_cert: PemFile | None = Field(default=None, description="The client certificate, a PEM file.")
    client_key: PemFile | None = Field(default=None, description="The client's private key, a PEM file.")

    @model_validator(mode="after")
    def _certificate_and_key_belong_together(self) -> Self:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("set client_cert and client_key, both or neither")
        return self


class CodecServer(BaseModel):
    """A remote codec, as used by `temporal --codec-endpoint` and the Web UI."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str = Field(
        description="The URL of the codec server, without /encode and /decode. {namespace} stands for the namespace."
    )
    auth: HeaderSecret | None = Field(default=None, description="The Authorization header, Bearer ...")
    auth_file: Path | None = Field(default=None, description="A file with this credential, read again when it changes.")

    @field_validator("endpoint")
    @classmethod
    def _endpoint_is_url(cls, endpoint: str) -> str:
        parts = urlsplit(endpoint)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("write a URL, http://localhost:8081 or https://codec.example.com/{namespace}")
        if "@" in parts.netloc:
            raise ValueError("credentials go into auth, not into the URL")
        return endpoint

    @model_validator(mode="after")
    def _auth_is_given_once(self) -> Self:
        if self.auth and self.auth_file:
            raise ValueError("set auth or auth_file, not both")
        return self


class TemporalSettings(BaseModel):
    """One Temporal namespace.

    An omitted setting comes from Temporal's own configuration: `TEMPORAL_*` in the environment, then the profile in its
    TOML file, then `localhost:7233` and `default`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    address: str | None = Field(default=None, description="The frontend, host:port.")
    namespace: str | None = Field(default=None, min_length=1, description="The namespace.")
    task_queue: str | None = Field(default=None, min_length=1, description="The task queue for tools that set none.")
    profile: str | None = Field(
        default=None, description="A profile in the configuration files of the engine's own tools."
    )
    config_file: Path | None = Field(
        default=None, description="The configuration file with the profile, if not in its usual place."
    )
    api_key: HeaderSecret | None = Field(default=None, description="The API key, which enables TLS.")
    api_key_file: Path | None = Field(default=None, description="A file with the API key, read again when it changes.")
    tls: bool | TemporalTLS | None = Field(default=None, description="true, false, or certificates.")
    grpc_meta: dict[str, SecretStr] = Field(default_factory=dict, description="Headers of every call.")
    data_converter: str | None = Field(
        default=None,
        description="Your DataConverter, module:attribute: an instance, a class, or a function that returns one. "
        "Default: the SDK's pydantic_data_converter.",
    )
    codec: CodecServer | None = Field(default=None, description="A codec server, for encrypted payloads.")
    ui_url: str | None = Field(
        default=None,
        description="The URL of the Web UI, for links. Default: Temporal Cloud's for Cloud, port + 1000 on localhost.",
    )
    timeout_seconds: float = Field(default=8, gt=0, le=600, description="Longest total time of any call, in seconds.")
    max_input_bytes: int = Field(
        default=MAX_INPUT_BYTES,
        gt=0,
        description="Maximum size of a workflow's encoded input, in bytes. The default is Temporal's own limit.",
    )

    @field_validator("address")
    @classmethod
    def _address_is_host_and_port(cls, address: str | None) -> str | None:
        if address is not None and not ADDRESS.match(address):
            raise ValueError("write host:port, without a scheme: localhost:7233")
        return address

    @field_validator("data_converter")
    @classmethod
    def _data_converter_can_be_loaded(cls, reference: str | None) -> str | None:
        if reference is not None:
            try:
                load_converter(reference)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return reference

    @model_validator(mode="after")
    def _nothing_is_given_twice(self) -> Self:
        if self.api_key and self.api_key_file:
            raise ValueError("set api_key or api_key_file, not both")
        if self.codec and self.data_converter and load_converter(self.data_converter).payload_codec:
            raise ValueError("data_converter has a payload codec of its own: take it out there, or leave codec out")
        return self


_CLOUD = (".tmprl.cloud", ".api.temporal.io")
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The address, namespace and Web UI of the engine, for messages and links; no secrets."""

    address: str
    namespace: str
    ui: str | None = None  # the URL of the Web UI

    def __str__(self) -> str:
        return f"Temporal at {self.address}"

    @classmethod
    def of(cls, address: str, namespace: str, ui_url: str | None) -> Self:
        """Return the place at an address; without `ui_url`, the Web UI is known only for Cloud and this machine."""
        host, _, port = address.rpartition(":")
        if not ui_url and is_this_machine(host.strip("[]")):
            ui_url = f"http://localhost:{int(port) + 1000}"  # the port of `temporal server start-dev`
        elif not ui_url and host.endswith(_CLOUD):
            ui_url = "https://cloud.temporal.io"
        return cls(address=address, namespace=namespace, ui=ui_url.rstrip("/") if ui_url else None)

    @property
    def is_local(self) -> bool:
        """True if the address belongs to this machine."""
        return is_this_machine(self.address.rpartition(":")[0].strip("[]"))

    def page(self, workflow_id: str, run_id: str) -> str | None:
        """Return the Web UI's page of one execution."""
        if self.ui is None:
            return None
        # Each poll builds this URL, and most ids need no quoting.
        parts = [
            part if _PLAIN.fullmatch(part) else quote(part, safe="") for part in (self.namespace, workflow_id, run_id)
        ]
        return f"{self.ui}/namespaces/{parts[0]}/workflows/{parts[1]}/{parts[2]}/history"


FINAL = "final"  # the validation context after all templates are filled in
MAX_ID_BYTES = 1000  # `limit.maxIDLength`
OWN_IDS = "mcp-"  # the prefix of default workflow ids
MAX_FAIRNESS_KEY_BYTES = 64


@dataclass(frozen=True, slots=True)
class Templated:
    """Allow a template in place of a non-text value; validate it after it is filled in."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # Any: a type
        inner = handler(source)
        written = SchemaSerializer(inner)

        def write(value: Any) -> Any:  # Any: of the marked type
            return value if isinstance(value, str) else written.to_python(value, mode="json")

        return core_schema.with_info_wrap_validator_function(
            _unless_template, inner, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string", "pattern": r"\{\{"}]}


def _unless_template(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Return a template unchanged, and validate any other value; Any: of the marked type."""
    return value if is_template(value) and info.context != FINAL else handler(value)


def is_template(value: object) -> bool:
    """True if a value has placeholders to fill in."""
    return isinstance(value, str) and "{{" in value


Text = Annotated[str, Field(coerce_numbers_to_str=True)]
Time = Annotated[Duration, Templated()]


class OnExisting(StrEnum):
    """The action if the workflow id belongs to an existing execution."""

    REFUSE = "refuse"
    ADOPT = "adopt"


class AttributeType(StrEnum):
    """The types of search attributes, in Temporal's words."""

    TEXT = "Text"
    KEYWORD = "Keyword"
    INT = "Int"
    DOUBLE = "Double"
    BOOL = "Bool"
    DATETIME = "Datetime"
    KEYWORD_LIST = "KeywordList"


class TypedAttribute(BaseModel):
    """A search attribute with its type, for values that fit several types."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: AttributeType = Field(description="The type with which it is registered.")
    value: str | bool | int | float | list[str] | None = Field(
        default=None, description="The value. A Datetime is text with its zone, 2026-07-28T12:00:00Z."
    )


AttributeValue = TypedAttribute | str | bool | int | float | list[str] | None


class TemporalPriority(BaseModel):
    """The order on a task queue with a backlog."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: Annotated[Annotated[int, Field(ge=1)], Templated()] | None = Field(
        default=None, description="The priority from 1 (most urgent) to 5. Temporal's default is 3."
    )
    fairness_key: Text | None = Field(
        default=None, description="The key of the fair share, such as a tenant; up to 64 bytes."
    )
    fairness_weight: Annotated[Annotated[float, Field(gt=0)], Templated()] | None = Field(
        default=None, description="The weight of that share. Default: 1."
    )


class DeploymentVersion(BaseModel):
    """One version of a worker deployment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    deployment: Annotated[Text, Field(min_length=1)] = Field(description="The name of the worker deployment.")
    build_id: Annotated[Text, Field(min_length=1)] = Field(description="The build id of the version.")


class Pinned(BaseModel):
    """The execution stays on one version."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pinned: DeploymentVersion = Field(description="The pinned version.")


class CancelSignal(BaseModel):
    """Cancellation by a signal, for workflows with that convention."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    signal: Annotated[Text, Field(min_length=1)] = Field(description="The signal that asks the workflow to stop.")
    args: list[JSON] = Field(default_factory=list, description="The positional arguments.")


class StartIfMissing(BaseModel):
    """A workflow that is started if no execution has the workflow id of a message."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workflow: str = Field(min_length=1, description="The workflow type.")
    args: list[JSON] = Field(default_factory=list[JSON], description="The positional arguments.")
    after_end: Literal["start", "refuse"] = Field(
        default="refuse",
        description="The action if the last execution with that id has ended: `start` another, or `refuse`.",
    )


class QueriedProgress(BaseModel):
    """Progress read from a query, for workflows that do not know MCP.

    Bare names in the templates are fields of the result; `output` is the whole result.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    query: str = Field(min_length=1, description="The query of the workflow.")
    args: list[JSON] = Field(default_factory=list[JSON], description="The arguments of the query.")
    value: str = Field(description="The progress so far: `{{done}}`.")
    total: str | float | None = Field(default=None, description="The total, a number or `{{total}}`. Default: unknown.")
    message: str | None = Field(default=None, description="The progress message: `Row {{done}} of {{total}}`.")

    @field_validator("value", "total", "message")
    @classmethod
    def _is_template(cls, text: str | float | None) -> str | float | None:
        try:
            Template(text)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return text

    @model_validator(mode="after")
    def _has_numbers(self) -> Self:
        if not is_template(self.value):
            raise ValueError("value: write the field of the query's result that has the number, such as {{done}}")
        if not is_template(self.total) and (isinstance(self.total, str) or (self.total or 1) <= 0):
            raise ValueError("total: write a number above 0, or the field that has it, such as {{total}}")
        return self


MESSAGES = ("signal", "update", "query")


def message_in(options: Mapping[str, JSON]) -> tuple[str, str] | None:
    """Return the kind and name of the message that a tool with these options sends; None if it sends none."""
    return next(((kind, options[kind]) for kind in MESSAGES if options.get(kind)), None)


class MessageNames(BaseModel):
    """The message to an execution: one of `signal`, `update` and `query`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    signal: MessageName | None = Field(
        default=None,
        description="A signal of the workflow. It has no result, and Temporal keeps it until a worker takes it.",
    )
    update: MessageName | None = Field(
        default=None,
        description="An update of the workflow, whose result is the tool's result. It needs a running worker.",
    )
    query: MessageName | None = Field(
        default=None, description="A query of the workflow, which changes nothing. It needs a running worker."
    )

    @property
    def names(self) -> Mapping[str, str]:
        """The message by its kind, at most one."""
        return {kind: name for kind in MESSAGES if (name := getattr(self, kind)) is not None}


class TemporalAction(MessageNames):
    """A message to the execution of a task: one of `signal`, `update` and `query`."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.names) != 1:
            raise ValueError("write one of signal, update and query")
        return self


class TemporalOptions(MessageNames):
    """The options of one tool. Without a message, it starts a workflow."""

    start_if_missing: StartIfMissing | None = Field(
        default=None,
        description="With `signal` or `update`: the workflow to start if no execution has the workflow id.",
    )
    task_queue: Annotated[Text, Field(min_length=1)] | None = Field(
        default=None, description="The task queue of this workflow."
    )
    workflow_id: Text | None = Field(
        default=None,
        description="The workflow id, such as fulfil-{{order_id}}. Default: mcp- plus the key of the task.",
    )
    on_existing: OnExisting = Field(
        default=OnExisting.REFUSE,
        description="The action if that id is taken: refuse, or adopt the execution if the same owner started it here.",
    )
    execution_timeout: Time | None = Field(
        default=None, description="Longest time of the whole chain of runs. Default: no limit."
    )
    run_timeout: Time | None = Field(default=None, description="Longest time of one run.")
    task_timeout: Time | None = Field(default=None, description="Longest time of one workflow task. Default: 10s.")
    search_attributes: dict[str, AttributeValue] = Field(
        default_factory=dict, description="Search attributes, by name: a value, or a type and a value."
    )
    priority: TemporalPriority | None = Field(default=None, description="The priority on a busy task queue.")
    versioning_override: Literal["auto_upgrade"] | Pinned | None = Field(
        default=None, description="auto_upgrade, or the version of the worker deployment to pin to."
    )
    cancel: CancelSignal | None = Field(
        default=None,
        description="A signal that cancels, for workflows that expect one. Default: Temporal's cancellation request.",
    )
    progress: QueriedProgress | None = Field(
        default=None,
        description="The progress, read by a query. Default: the progress that the workflow reports itself, if any.",
    )
    summary: Text | None = Field(default=None, description="One line about the execution, for the Web UI.")
    details: Text | None = Field(default=None, description="Details about the execution, for the Web UI (Markdown).")

    @model_validator(mode="after")
    def _message_has_an_address(self) -> Self:
        found = list(self.names)
        if len(found) > 1:
            raise ValueError(f"{' and '.join(found)}: a tool sends one message")
        if found and self.workflow_id is None:
            raise ValueError(f"workflow_id is missing: {found[0]} needs the id of the execution that it goes to")
        if self.start_if_missing and not (self.signal or self.update):
            raise ValueError("start_if_missing: only with signal or update; leave it out")
        if self.progress and self.query:
            raise ValueError("progress: a tool that sends a query ends with its result; leave it out")
        return self

    @classmethod
    def final(cls, options: Mapping[str, JSON]) -> Self:
        """Validate the options of a task, with all templates filled in.

        Raises:
            EngineRefused: an option is invalid; the message never contains the value.
        """
        found = cls._read(options, FINAL)
        if error := next(found.errors(), None):
            raise EngineRefused(error, final=True)
        return found

    @classmethod
    def written(cls, options: Mapping[str, JSON]) -> Self:
        """Validate the options of a tool, which may have placeholders.

        Raises:
            EngineRefused: an option is invalid; the message never contains the value.
        """
        return cls._read(options, None)

    @classmethod
    def _read(cls, options: Mapping[str, JSON], context: str | None) -> Self:
        try:
            return cls.model_validate(dict(options), context=context)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            location = ".".join(map(str, first["loc"]))
            raise EngineRefused(f"options of the tool: {location}: {first['msg']}") from None

    def errors(self) -> Iterator[str]:
        """Yield the errors that appear only after all templates are filled in."""
        if (workflow_id := self.workflow_id) is not None:
            if not workflow_id.strip():
                yield "the workflow id of the tool is empty once it is filled in"
            if len(workflow_id.encode(errors="replace")) > MAX_ID_BYTES:
                yield f"the workflow id is longer than {MAX_ID_BYTES} bytes"
            if not workflow_id.isprintable():
                yield "the workflow id has characters in it that cannot be printed"
            if workflow_id.startswith(OWN_IDS):
                yield f"workflow ids that begin with {OWN_IDS} are those of tasks without an id of their own"
        key = self.priority.fairness_key if self.priority else None
        if key is not None and len(key.encode(errors="replace")) > MAX_FAIRNESS_KEY_BYTES:
            yield f"the fairness key of the tool is longer than {MAX_FAIRNESS_KEY_BYTES} bytes"


START_OPTIONS = frozenset(TemporalOptions.model_fields) - {"cancel", "progress"}  # no effect on a running execution
