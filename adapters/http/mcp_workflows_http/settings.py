"""The settings of an HTTP engine: the address of the API, our credentials, and its definition."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mcp_workflows import Duration
from mcp_workflows.adapter import JSON
from mcp_workflows.kit.definition import MODEL, CallTimeout
from mcp_workflows_http.definition import HEADER, ApiDefinition
from mcp_workflows_http.presets import with_places_in_preset, with_preset

_NOT_OF_A_TASK: Final = {"workflows", "check", "webhook", "actions"}
_LIBRARIES: Final = {"google": "google.auth", "azure": "azure.identity"}


def _one_line(secret: SecretStr | None) -> SecretStr | None:
    text = secret.get_secret_value() if secret else ""
    if not text.isascii() or not text.isprintable():
        raise ValueError("a header is one line of ASCII")
    return secret


class Basic(BaseModel):
    """A user and a password; a token can replace the password."""

    model_config = MODEL

    user: str = Field(default="", description="The user, which may be empty.")
    password: SecretStr = Field(description="The password or token.")

    @property
    def secret(self) -> SecretStr:
        """The secret part."""
        return self.password


class HeaderSecret(BaseModel):
    """A secret in a separate header."""

    model_config = MODEL

    name: str = Field(pattern=r"^[A-Za-z0-9-]+$", description="The header, such as PRIVATE-TOKEN.")
    value: SecretStr = Field(description="The secret.")

    @property
    def secret(self) -> SecretStr:
        """The secret part."""
        return self.value

    @field_validator("value")
    @classmethod
    def _value_is_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        return _one_line(value)


class ClientCredentials(BaseModel):
    """OAuth 2 client credentials (RFC 6749, section 4.4); the token is renewed before it expires."""

    model_config = MODEL

    token_url: str = Field(description="The token endpoint of the authorization server.")
    client_id: str = Field(description="The client id.")
    client_secret: SecretStr = Field(description="The client secret.")
    scope: str | None = Field(default=None, description="The scopes, separated by spaces.")
    audience: str | None = Field(default=None, description="The audience, if the authorization server requires one.")

    @property
    def secret(self) -> SecretStr:
        """The secret part."""
        return self.client_secret

    @field_validator("token_url")
    @classmethod
    def _token_url_is_one(cls, url: str) -> str:
        return _a_url(url)


class GitHubApp(BaseModel):
    """A GitHub App's installation in one account; tokens last an hour and are renewed before they expire."""

    model_config = MODEL

    app_id: str = Field(pattern=r"^[A-Za-z0-9_.]+$", description="The App's id, or its client id.")
    installation_id: str = Field(pattern=r"^\d+$", description="The App's installation in the account.")
    private_key: SecretStr = Field(description="The App's private key, PEM: ${file:github-app.pem}.")

    @property
    def secret(self) -> SecretStr:
        """The secret part."""
        return self.private_key


class Login(BaseModel):
    """A user and a password that the API exchanges for a token, as Airflow does."""

    model_config = MODEL

    path: str = Field(default="/auth/token", pattern="^/", description="The path of the login, after `url`.")
    user: str = Field(description="The user.")
    password: SecretStr = Field(description="The password or token.")

    @property
    def secret(self) -> SecretStr:
        """The secret part."""
        return self.password


class CloudIdentity(BaseModel):
    """The identity that a cloud gives to a workload, a machine or a logged-in person."""

    model_config = MODEL

    scope: str = Field(min_length=1, description="The scope of the token, from the API's documentation.")


class Auth(BaseModel):
    """The credentials for the API: one of these."""

    model_config = MODEL

    bearer: SecretStr | None = Field(default=None, description="A token, sent as Authorization: Bearer.")
    bearer_file: Path | None = Field(
        default=None, description="A file with this credential, read again when it changes."
    )
    basic: Basic | None = Field(default=None, description="User and password.")
    header: HeaderSecret | None = Field(default=None, description="A secret in a separate header.")
    oauth: ClientCredentials | None = Field(default=None, description="OAuth 2 client credentials.")
    github_app: GitHubApp | None = Field(default=None, description="A GitHub App.")
    login: Login | None = Field(default=None, description="A user and a password that the API exchanges for a token.")

    google: CloudIdentity | None = Field(
        default=None, description="Google's default credentials, including workload identity. Needs the extra `google`."
    )
    azure: CloudIdentity | None = Field(
        default=None, description="Azure's default credentials, including managed identity. Needs the extra `azure`."
    )

    @model_validator(mode="after")
    def _has_its_library(self) -> Self:
        for name, library in _LIBRARIES.items():
            if getattr(self, name) is not None and not _is_installed(library):
                raise ValueError(f"{name} needs a library: pip install 'mcp-workflows-http[{name}]'")
        return self

    @field_validator("bearer")
    @classmethod
    def _bearer_is_a_header(cls, bearer: SecretStr | None) -> SecretStr | None:
        return _one_line(bearer)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"set one of {', '.join(type(self).model_fields)}")
        return self


class Tls(BaseModel):
    """TLS to the API."""

    model_config = MODEL

    ca_file: Path | None = Field(default=None, description="The CA, a PEM file. Default: the system's.")
    client_cert: Path | None = Field(default=None, description="The client certificate, a PEM file.")
    client_key: Path | None = Field(default=None, description="The client's private key, a PEM file.")

    @model_validator(mode="after")
    def _certificate_and_key_belong_together(self) -> Self:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("set client_cert and client_key, both or neither")
        return self


class Rate(BaseModel):
    """The rate limit of the API, and the share of it for this process."""

    model_config = MODEL

    calls: float = Field(gt=0, description="The number of calls that the API allows.")
    per: Duration = Field(default=timedelta(hours=1), description="The period of that number.")
    share: float = Field(default=0.5, gt=0, le=1, description="The share to use, over all replicas.")
    replicas: int = Field(
        default=1,
        gt=0,
        description="The number of processes that split the share. A PostgreSQL store counts them instead.",
    )


def _not_required_with_a_preset(schema: dict[str, Any]) -> None:
    """Relax the JSON Schema: a preset can supply the other settings."""
    schema["required"] = ["url"]


class HttpSettings(ApiDefinition):
    """One job API: its address, our credentials, and its definition."""

    model_config = ConfigDict(json_schema_extra=_not_required_with_a_preset)

    preset: str | None = Field(
        default=None,
        description="A definition that comes with the adapter (`mcp-workflows print presets`), or a file, "
        "./my-api.yaml, relative to this one. Settings here override it, key by key.",
    )
    url: str = Field(description="The URL of the API: https://jobs.example.com/api.")
    auth: Auth | None = Field(default=None, description="The credentials. Default: none.")
    webhook_secret: SecretStr | None = Field(
        default=None, description="The secret of the API's webhook. Default: no webhook."
    )
    vars: Mapping[str, str] = Field(default={}, description="Values for expressions: {{vars.owner}}.")
    headers: Mapping[str, str] = Field(default={}, description="Headers of all requests. Not for secrets.")
    timeout: CallTimeout = Field(
        default=timedelta(seconds=8), description="The timeout of one poll or start, including all its calls."
    )
    max_reply: ByteSize = Field(default=ByteSize(5_000_000), description="Maximum size of a reply, in bytes.")
    proxy: SecretStr | None = Field(
        default=None, description="An HTTP(S) proxy, http://USER:PASSWORD@HOST:PORT. Default: HTTPS_PROXY and NO_PROXY."
    )
    tls: Tls = Field(default=Tls(), description="Certificates.")
    rate: Rate | None = Field(default=None, description="The API's rate limit.")

    @model_validator(mode="wrap")
    @classmethod
    def _over_its_preset(cls, written: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        context: Mapping[str, Path] = info.context or {}
        folder = context.get("folder", Path())
        merged = with_preset(written, folder)
        try:
            return handler(merged)
        except ValidationError as error:
            raise with_places_in_preset(error, written, folder) from None

    @field_validator("headers")
    @classmethod
    def _headers_are_lines(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        for name, text in headers.items():
            if not HEADER.fullmatch(name) or not text.isascii() or not text.isprintable():
                raise ValueError(f"{name}: a header is a name without spaces, and one line of ASCII")
        return headers

    @field_validator("url")
    @classmethod
    def _url_is_one(cls, url: str) -> str:
        return _a_url(url).rstrip("/")

    @model_validator(mode="after")
    def _webhook_has_both(self) -> Self:
        if self.webhook_secret is not None and (self.webhook is None or not self.webhook_secret.get_secret_value()):
            raise ValueError("webhook_secret needs webhook, and a value")
        return self

    @field_validator("proxy")
    @classmethod
    def _proxy_is_url(cls, url: SecretStr | None) -> SecretStr | None:
        parts = urlsplit("" if url is None else url.get_secret_value())
        if url is not None and (parts.scheme not in {"http", "https"} or not parts.hostname):
            raise ValueError("write the URL of a proxy: http://proxy.example.com:3128")
        return url

    @property
    def definition(self) -> Mapping[str, JSON]:
        """The part that says how executions are polled, as JSON; a task keeps the version of its start."""
        found: Mapping[str, JSON] = self.model_dump(
            mode="json", by_alias=True, exclude_none=True, include=set(ApiDefinition.model_fields) - _NOT_OF_A_TASK
        )
        return found


def _is_installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def _a_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("write a URL: https://jobs.example.com/api")
    if "@" in parts.netloc:
        raise ValueError("no credentials in a URL: auth is for these")
    return url


class HttpOptions(BaseModel):
    """The settings of one tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    options: Mapping[str, Any] = Field(  # any JSON values
        default={}, description="Values for the API's definition, which refers to them as {{options.NAME}}."
    )


class HttpAction(HttpOptions):
    """A message to the execution of a task: a request of the engine's `actions`."""

    request: str = Field(description="The name of the message in the engine's `actions`.")


def preset_schema() -> Mapping[str, JSON]:
    """Return the JSON Schema of a preset: any settings, none required, and its description of itself."""
    schema: dict[str, Any] = HttpSettings.model_json_schema()  # any JSON values
    schema["properties"]["about"] = {
        "type": "object",
        "description": "What the preset says of itself: its engine, how it was proved, since which version.",
        "properties": {
            **{name: {"type": "string"} for name in ("title", "verified", "since", "notes")},
            "example": {"type": "object", "description": "The settings of an engine, and a `workflow`."},
        },
    }
    return {**schema, "title": "Preset", "required": []}
