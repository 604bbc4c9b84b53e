"""The settings of a Temporal engine; `options` has those of one tool."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from temporalio.converter import DataConverter

from mcp_workflows.errors import ConfigError

MAX_INPUT_BYTES = 2 * 1024 * 1024
"""Temporal's limit of one blob (`limit.blobSize.error`); a gRPC message over 4 MiB does not even arrive."""

ADDRESS = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})$")


IMPORT_ERRORS = (  # of code that is imported or called for the first time
    ImportError,
    SyntaxError,
    NameError,
    AttributeError,
    TypeError,
    ValueError,
    RuntimeError,
    OSError,
    LookupError,
)


def load_converter(reference: str) -> DataConverter:
    """Return the DataConverter behind `module:attribute`: an instance, a class, or a function that returns one.

    Raises:
        ConfigError: there is no DataConverter.
    """
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{reference!r} is not module:attribute")
    try:
        found: Any = getattr(import_module(module_name), name)  # Any: an attribute of unknown type
        made: object = found if isinstance(found, DataConverter) or not callable(found) else found()
    except IMPORT_ERRORS as error:
        raise ConfigError(f"{reference} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(made, DataConverter):
        raise ConfigError(f"{reference} is a {type(made).__name__}: a temporalio DataConverter is needed")
    return made


class TemporalTLS(BaseModel):
    """TLS to the frontend; with a client certificate and key it is mTLS."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    disabled: bool = Field(default=False, description="Plain text, whatever the profile or environment says.")
    server_name: str | None = Field(default=None, description="The name the server's certificate must be for (SNI).")
    server_root_ca_cert: Path | None = Field(default=None, description="PEM file of the CA. Default: the system's.")
    client_cert: Path | None = Field(default=None, description="PEM file of our certificate.")
    client_key: Path | None = Field(default=None, description="PEM file of our private key.")

    @field_validator("server_root_ca_cert", "client_cert", "client_key")
    @classmethod
    def _is_a_file(cls, path: Path | None) -> Path | None:
        """Refuse key material in place of a path: the message about an unreadable path shows it."""
        if path is not None and not str(path).isprintable():
            raise ValueError("name a PEM file; its content does not belong here")
        return path

    @model_validator(mode="after")
    def _certificate_and_key_belong_together(self) -> Self:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("set client_cert and client_key, both or neither")
        return self


def _header(secret: SecretStr | None) -> SecretStr | None:
    text = secret.get_secret_value() if secret else ""
    if not text.isascii() or not text.isprintable():
        raise ValueError("a header is one line of ASCII")
    return secret


class CodecServer(BaseModel):
    """A remote codec, as `temporal --codec-endpoint` and the Web UI use it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str = Field(description="Its URL, without /encode and /decode; {namespace} stands for the namespace.")
    auth: SecretStr | None = Field(default=None, description="The Authorization header, Bearer ...")
    auth_file: Path | None = Field(default=None, description="A file with it, read again when it changes.")

    @field_validator("endpoint")
    @classmethod
    def _endpoint_is_url(cls, endpoint: str) -> str:
        parts = urlsplit(endpoint)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("write a URL, http://localhost:8081 or https://codec.example.com/{namespace}")
        if "@" in parts.netloc:
            raise ValueError("credentials go into auth, not into the URL")
        return endpoint

    @field_validator("auth")
    @classmethod
    def _auth_is_a_header(cls, auth: SecretStr | None) -> SecretStr | None:
        return _header(auth)

    @model_validator(mode="after")
    def _auth_is_given_once(self) -> Self:
        if self.auth and self.auth_file:
            raise ValueError("set auth or auth_file, not both")
        return self


class TemporalSettings(BaseModel):
    """One Temporal namespace.

    A setting that is left out comes from Temporal's own configuration: `TEMPORAL_*` in the environment, then the
    profile in its TOML file, then `localhost:7233` and `default`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    address: str | None = Field(default=None, description="host:port of the frontend.")
    namespace: str | None = Field(default=None, min_length=1, description="The namespace.")
    task_queue: str | None = Field(
        default=None, min_length=1, description="Where workflows start, if a tool names none."
    )
    profile: str | None = Field(default=None, description="A profile of Temporal's configuration file.")
    config_file: Path | None = Field(default=None, description="That file, if not in its usual place.")
    api_key: SecretStr | None = Field(default=None, description="API key; switches TLS on.")
    api_key_file: Path | None = Field(default=None, description="A file with the API key, read again when it changes.")
    tls: bool | TemporalTLS | None = Field(default=None, description="true, false, or certificates.")
    grpc_meta: dict[str, SecretStr] = Field(default_factory=dict, description="Headers of every call.")
    data_converter: str | None = Field(
        default=None,
        description="Your DataConverter, module:attribute: one, a class, or a function that makes one. "
        "Default: the SDK's pydantic_data_converter.",
    )
    codec: CodecServer | None = Field(default=None, description="A codec server, for payloads that are encrypted.")
    ui_url: str | None = Field(
        default=None,
        description="Where the Web UI is, for links. Default: Temporal Cloud's for Cloud, port + 1000 on localhost.",
    )
    timeout_seconds: float = Field(default=8, gt=0, le=600, description="Longest total time of any call, in seconds.")
    max_input_bytes: int = Field(
        default=MAX_INPUT_BYTES, gt=0, description="Largest input of a workflow, encoded; the server's own limit."
    )

    @field_validator("address")
    @classmethod
    def _address_is_host_and_port(cls, address: str | None) -> str | None:
        if address is not None and not ADDRESS.match(address):
            raise ValueError("write host:port, without a scheme: localhost:7233")
        return address

    @field_validator("api_key")
    @classmethod
    def _api_key_is_a_header(cls, api_key: SecretStr | None) -> SecretStr | None:
        """Refuse a key that is no header value: the SDK would send none, silently."""
        return _header(api_key)

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


LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
CLOUD = (".tmprl.cloud", ".api.temporal.io")


def ui_root(address: str, ui_url: str | None) -> str | None:
    """Return the URL of the Web UI of the engine at an address; None if it is unknown."""
    if ui_url:
        return ui_url.rstrip("/")
    host, _, port = address.rpartition(":")
    if host in LOCAL:
        return f"http://localhost:{int(port) + 1000}"  # as `temporal server start-dev` does
    return "https://cloud.temporal.io" if host.endswith(CLOUD) else None


_PLAIN = re.compile(r"[A-Za-z0-9_.~-]+")


def ui_page(root: str | None, namespace: str, workflow_id: str, run_id: str) -> str | None:
    """Return the Web UI's page of one execution."""
    if root is None:
        return None
    return f"{root}/namespaces/{_quoted(namespace)}/workflows/{_quoted(workflow_id)}/{_quoted(run_id)}/history"


def _quoted(part: str) -> str:
    """Return a part of a URL; most ids need no quotation, and each look asks."""
    return part if _PLAIN.fullmatch(part) else quote(part, safe="")


def tls_table(tls: bool | TemporalTLS) -> dict[str, Any]:  # Any: bool or DataSource, as ClientConfigTLS takes them
    """Return the settings as the arguments of `temporalio.envconfig.ClientConfigTLS`."""
    if isinstance(tls, bool):
        return {"disabled": not tls}
    return {
        "disabled": tls.disabled,
        "server_name": tls.server_name,
        "server_root_ca_cert": tls.server_root_ca_cert,
        "client_cert": tls.client_cert,
        "client_private_key": tls.client_key,
    }
