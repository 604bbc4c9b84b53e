"""Settings of a Google Workflows engine, and the options of one tool on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from mcp_workflows import Duration
from mcp_workflows.adapter import JSON, Trusted, read_options
from mcp_workflows_google.resources import LOCATION, PROJECT, WORKFLOW

_MODEL: Final = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

GOOGLE: Final = "workflowexecutions.googleapis.com"  # the Executions API, for gRPC and REST
DEMO: Final = "demo"  # the default project of a local engine

_HOST: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})(?:\.[A-Za-z0-9][A-Za-z0-9-]{0,62})*|\[[0-9a-fA-F:]+\])"
_ENDPOINT = re.compile(rf"{_HOST}(?::(?P<port>[0-9]{{1,5}}))?", re.ASCII)
_MOST_PORT: Final = 65535
_SETTLING: Final = 3  # timeouts: of a delayed call, of the call itself, and of the delay of the list
_THIS_MACHINE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_SECRETS: Final = frozenset(
    {"credentials", "private_key", "token", "access_token", "refresh_token", "client_secret", "api_key"}
)


def _written_as(pattern: str, remedy: str) -> AfterValidator:
    """Return the validator of a text with this pattern; the remedy is the message for any other text."""
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(remedy)
        return text

    return AfterValidator(check)


def _url(example: str) -> AfterValidator:
    """Return the validator of a URL without user and fragment."""

    def check(url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.fragment or "@" in parts.netloc:
            raise ValueError(f"write a URL: {example}")
        return url

    return AfterValidator(check)


def _as_text(written: object) -> object:
    """Accept a project number that YAML reads as a number."""
    return str(written) if isinstance(written, int) and not isinstance(written, bool) else written


Project = Annotated[
    str,
    BeforeValidator(_as_text, json_schema_input_type=str | int),
    _written_as(PROJECT, "write a project's id or number: shop-prod"),
]
Email = Annotated[
    str,
    _written_as(
        r"[a-z0-9._-]{1,128}@[a-z0-9.-]{1,128}\.[a-z]{2,}",
        "write the email of a service account: NAME@PROJECT.iam.gserviceaccount.com",
    ),
]


def _endpoint(written: str, example: str) -> str:
    found = _ENDPOINT.fullmatch(written)
    if not found or not 0 < int(found["port"] or 443) <= _MOST_PORT:
        raise ValueError(f"write a host, or HOST:PORT: {example}")
    return written


def _as_it_signs(local: str) -> str:
    """Return the issuer in the tokens of a local engine at this URL, which never contains localhost."""
    return local.replace("://localhost:", "://127.0.0.1:", 1)


class Inbound(BaseModel):
    """Accept requests from workflows at `/engines/ENGINE/...`, with an OpenID Connect token."""

    model_config = _MODEL

    audience: Annotated[str, _url("https://tasks.example.com")] = Field(
        description="The audience of their tokens: the URL by which the workflows reach this server."
    )
    accounts: tuple[Email, ...] = Field(min_length=1, description="The service accounts that the workflows run as.")
    issuer: Annotated[str, _url("https://accounts.google.com")] | None = Field(
        default=None, description="The issuer of the tokens. Default: https://accounts.google.com."
    )
    keys_url: Annotated[str, _url("https://accounts.google.com")] | None = Field(
        default=None, description="The URL of the issuer's keys. Default: Google's."
    )

    @field_validator("keys_url")
    @classmethod
    def _keys_come_safely(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "")
        if parts.scheme == "http" and parts.hostname not in _THIS_MACHINE:
            raise ValueError("write https://: whoever is on the way could put in keys of their own, and sign with them")
        return url


_PER_MINUTE: Final = "The project's quota per minute, if it differs from Google's default."


class Quota(BaseModel):
    """This process's share of Google's quotas, which apply to the whole project in its location."""

    model_config = _MODEL

    share: float = Field(default=0.5, gt=0, le=1, description="The share to use, over all replicas.")
    replicas: int = Field(
        default=1,
        gt=0,
        description="The number of processes that split the share. A PostgreSQL store counts them instead.",
    )
    get_execution: float | None = Field(default=None, gt=0, description=_PER_MINUTE)
    list_executions: float | None = Field(default=None, gt=0, description=_PER_MINUTE)
    write_executions: float | None = Field(default=None, gt=0, description=_PER_MINUTE)
    list_callbacks: float | None = Field(default=None, gt=0, description=_PER_MINUTE)
    send_callback: float | None = Field(default=None, gt=0, description=_PER_MINUTE)
    read_workflows: float | None = Field(default=None, gt=0, description=_PER_MINUTE)


class Discover(BaseModel):
    """Workflows that their owners have labelled as tools."""

    model_config = _MODEL

    label: Annotated[
        str,
        _written_as(
            r"[a-z][a-z0-9_-]{0,62}=[a-z0-9_-]{0,63}",
            "write KEY=VALUE, of lower case letters, digits, _ and -: mcp-tool=true",
        ),
    ] = Field(default="mcp-tool=true", description="The label, KEY=VALUE.")
    every: Duration = Field(
        default=timedelta(minutes=5), description="How often the server looks for marked workflows."
    )
    schemas: Mapping[str, Mapping[str, JSON]] = Field(
        default_factory=dict[str, Mapping[str, JSON]],
        description="The JSON Schema (an object) of the arguments, by workflow. Default: any object.",
    )

    @field_validator("schemas")
    @classmethod
    def _schemas_are_of_workflows(cls, schemas: Mapping[str, Mapping[str, JSON]]) -> Mapping[str, Mapping[str, JSON]]:
        for workflow, schema in schemas.items():
            if not re.fullmatch(WORKFLOW, workflow, re.ASCII):
                raise ValueError(f"{workflow!r} is no name of a workflow")
            if schema.get("type") != "object":
                raise ValueError(f"{workflow}: the schema of arguments is one of an object: type: object")
        return schemas

    @property
    def key_and_value(self) -> tuple[str, str]:
        """The key and the value of the label."""
        key, _, value = self.label.partition("=")
        return key, value


class GoogleSettings(BaseModel):
    """The workflows of one project in one location.

    Defaults come from the sources of Google's libraries: `GOOGLE_APPLICATION_CREDENTIALS`, `gcloud auth
    application-default login`, the service account of the machine. Credentials never appear here.
    """

    model_config = _MODEL

    project: Project | None = Field(
        default=None,
        description="The id or number of the project. Default: GOOGLE_CLOUD_PROJECT, else the credentials' project.",
    )
    location: Annotated[str, _written_as(LOCATION, "write a location: europe-west1")] = Field(
        description="The location: europe-west1."
    )
    credentials_file: str | None = Field(
        default=None,
        min_length=1,
        description="A credentials file of a service account or of workload identity federation. Default: "
        "application default credentials.",
    )
    impersonate: Email | None = Field(default=None, description="The email of a service account to impersonate.")
    endpoint: str | None = Field(
        default=None,
        description="The Executions API, HOST or HOST:PORT: a regional or private endpoint "
        "(workflowexecutions.europe-west1.rep.googleapis.com). Default: Google's global endpoint.",
    )
    emulator: str | None = Field(
        default=None,
        description="A local engine instead of Google, HOST:PORT, without credentials: see `python -m "
        "mcp_workflows_google_local`.",
    )
    inbound: Inbound | None = Field(
        default=None, description="Let workflows ask questions and claim keys over HTTP. Default: disabled."
    )
    settle: Duration = Field(
        default=timedelta(seconds=60),
        description="How long a new execution can be missing from Google's list. The server retries a start of "
        "unknown outcome only after this time. At least three times timeout_seconds.",
    )
    grace: Duration = Field(
        default=timedelta(hours=24),
        description="How long an execution can be UNAVAILABLE (because its encryption key is) before the task fails.",
    )
    quota: Quota | None = Field(
        default=None,
        description="How much of the provider's quotas to use. Default: half; with a local or custom endpoint, all.",
    )
    discover: Discover | None = Field(default=None, description="Offer marked workflows as tools. Default: none.")
    console_url: Annotated[str, _url("https://console.cloud.google.com")] | None = Field(
        default=None, description="The URL of the console, for links. Default: the public console."
    )
    timeout_seconds: float = Field(default=8, ge=1, le=600, description="Longest total time of any call, in seconds.")
    max_connections: int = Field(default=16, ge=1, le=256, description="Maximum number of concurrent calls.")

    @model_validator(mode="before")
    @classmethod
    def _no_secrets(cls, values: Any) -> Any:  # Any: not yet validated
        secrets = sorted(name for name in _SECRETS if name in values) if isinstance(values, Mapping) else ()
        if secrets:
            raise ValueError(
                f"{', '.join(secrets)}: no credentials here; name a file with credentials_file, set "
                "GOOGLE_APPLICATION_CREDENTIALS, or `gcloud auth application-default login`"
            )
        return values  # pyright: ignore[reportUnknownVariableType]

    @field_validator("endpoint")
    @classmethod
    def _endpoint_is_a_host(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and endpoint.lower().startswith("http://"):
            raise ValueError(
                "Google's API has TLS, so http:// is no endpoint of it; for a local engine write emulator: HOST:PORT"
            )
        return endpoint and _endpoint(endpoint, "workflowexecutions.europe-west1.rep.googleapis.com")

    @field_validator("emulator", mode="before")
    @classmethod
    def _nothing_is_none(cls, emulator: object) -> object:
        """Treat an empty text as None: `${EMULATOR:-}` of an unset variable."""
        return emulator or None

    @field_validator("emulator")
    @classmethod
    def _emulator_is_host_and_port(cls, emulator: str | None) -> str | None:
        if emulator is not None and not _endpoint(emulator, "127.0.0.1:8790").rpartition("]")[2].count(":"):
            raise ValueError("write HOST:PORT: 127.0.0.1:8790")
        return emulator

    @model_validator(mode="after")
    def _an_emulator_is_not_google(self) -> Self:
        both = [name for name in ("endpoint", "credentials_file", "impersonate") if getattr(self, name) is not None]
        if self.emulator and both:
            raise ValueError(f"emulator is for a local engine, and {', '.join(both)} for Google: leave one out")
        if self.settle.total_seconds() < (least := _SETTLING * self.timeout_seconds):
            raise ValueError(f"settle must be at least {_SETTLING} times timeout_seconds: {least:g}s")
        return self

    @property
    def trusted(self) -> Trusted | None:
        """The tokens that are accepted in requests from workflows, if any."""
        if self.inbound is None:
            return None
        local = self.emulator and f"http://{self.emulator}"
        return Trusted(
            issuer=self.inbound.issuer or (local and _as_it_signs(local)) or "https://accounts.google.com",
            keys_url=self.inbound.keys_url
            or (f"{local}/oauth2/v3/certs" if local else "https://www.googleapis.com/oauth2/v3/certs"),
            audience=self.inbound.audience,
            accounts=frozenset(self.inbound.accounts),
        )


class GoogleOptions(BaseModel):
    """Options of one tool on Google Cloud Workflows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    progress: bool = Field(
        default=True,
        description="Whether a poll reads the current step of a running execution (view FULL, which also returns "
        "argument and result). `false` reads only its state. Tools with gates always read the step.",
    )

    @classmethod
    def read(cls, options: Mapping[str, JSON]) -> Self:
        """Validate the options of a start, which its task keeps.

        Raises:
            EngineRefused: they are invalid.
        """
        return read_options(cls, options)
