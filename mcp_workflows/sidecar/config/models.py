"""The models of workflows.yaml."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, reduce
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    WithJsonSchema,
    model_validator,
)

from mcp_workflows.access import Authorizer
from mcp_workflows.access.authn.settings import AuthSettings, IssuerUrl, Scope, ServerUrl
from mcp_workflows.access.limit_settings import DEFAULTS, Limits
from mcp_workflows.adapter import Adapter
from mcp_workflows.errors import ConfigError
from mcp_workflows.events.endpoints import EventSettings
from mcp_workflows.events.notifications import Channels, NotificationChannel
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.address import exact_origin, host, origin
from mcp_workflows.sidecar.config.problems import known_keys
from mcp_workflows.sidecar.config.yaml import Where
from mcp_workflows.store.encryption import Cipher
from mcp_workflows.store.protocol import Store, open_store
from mcp_workflows.tools.tool import MODELS, AnyTool
from mcp_workflows.units import Duration, parse_duration
from mcp_workflows.wire.params import KEY_PATHS, KeyPath

_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP  # a group may read it: Kubernetes mounts secrets readable by a group
_MAX_KEY_FILE: Final = 100_000  # bytes, for a thousand keys
SECTIONS = (
    *("include", "server", "store", "limits", "audit", "telemetry", "notify"),
    *("engines", "defaults", "rules", "tools"),
)
CANCEL = "cancel"  # a setting of a tool that some adapters extend
TOOL_KEYS = frozenset[str]().union(*map(known_keys, MODELS.values())) - {"name", "options", "listed", "message"}

STDOUT: Final = "stdout"
STDERR: Final = "stderr"
OTLP: Final = "otlp"
_NO_FILES: Final = frozenset({STDOUT, STDERR, OTLP})

ToolDefaults: TypeAlias = Callable[
    [str, Mapping[str, Any]], Mapping[str, Any]
]  # Any: the settings of a tool, unvalidated
"""Adds the configuration's `defaults` and `rules` to the settings of a tool that is not in the file, by name."""

Payload = Literal["arguments", "results"]
"""The payloads that the audit log may contain."""

LONGEST_DRAIN = timedelta(hours=1)

DrainTime = Annotated[
    timedelta,
    Field(strict=True, ge=timedelta(0), le=LONGEST_DRAIN),
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h)\s*$", "examples": ["0s", "15s"]}),
]
"""A duration that may be zero."""


_Name = Annotated[str, Field(min_length=1, max_length=200)]
KeyName = _Name | Annotated[list[_Name], Field(min_length=1, max_length=8)]
"""A member of `_meta`, or a list of names as the path to a nested one; names may contain dots and slashes."""


class EncryptionSettings(BaseModel):
    """Keys that encrypt arguments, results and notes of adapters. The first key encrypts, all decrypt."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    keys: list[SecretStr] = Field(
        default_factory=list[SecretStr],
        description="Keys from `mcp-workflows store key`, such as `${STORE_KEY}` from the environment. The first "
        "encrypts, all decrypt.",
        examples=[["${STORE_KEY}"]],
    )
    key_file: Path | None = Field(
        default=None,
        description="A file with one key per line, instead of `keys`. Only its user and group may read it. "
        "Relative paths start at the folder of this file.",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if bool(self.keys) == bool(self.key_file):
            raise ValueError("needs either keys or a key_file; print a key with: mcp-workflows store key")
        return self

    def cipher(self) -> Cipher:
        """Return the cipher; read the file now.

        Raises:
            ConfigError: a key is malformed, or the file cannot be read, or other users can read it.
        """
        if self.key_file is None:
            return Cipher([key.get_secret_value() for key in self.keys])
        return Cipher(read_keys(self.key_file))

    def with_absolute_path(self, folder: Path) -> EncryptionSettings:
        """Return the same settings with a relative path resolved against this folder."""
        return self.model_copy(update={"key_file": folder.resolve() / self.key_file}) if self.key_file else self


class WebSettings(BaseModel):
    """Pages on which people answer questions, after a login with OpenID Connect (authorization code with PKCE)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: IssuerUrl = Field(description="The identity provider, which must be one of `server.auth.issuers`.")
    client_id: str = Field(
        min_length=1,
        description="The server's client id at the provider. Register `/login/callback` under `public_url` as "
        "its redirect address.",
    )
    client_secret: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="The server's client secret. Without it, the server is a public client.",
        repr=False,
    )
    client_auth: Literal["client_secret_basic", "client_secret_post"] = Field(
        default="client_secret_basic", description="How the server sends the secret."
    )
    scopes: list[Scope] = Field(
        default=["profile"], description="Scopes to request besides `openid`, for claims that rules need."
    )


class ServerSettings(BaseModel):
    """The server as hosts see it, and its access over HTTP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(default=DISTRIBUTION, min_length=1, description="The server's name for hosts.")
    title: str | None = Field(default=None, description="The name that people see.")
    version: str = Field(
        default_factory=lambda: version(DISTRIBUTION),
        description="The server's version for hosts. Default: the version of mcp-workflows.",
    )
    instructions: str | None = Field(default=None, description="Instructions about the server for the model.")
    allowed_hosts: list[Annotated[str, AfterValidator(host)]] = Field(
        default_factory=list,
        description="Accepted `Host` headers besides the listening address: `workflows.example.com`, with "
        "`:8443` for one port or `:*` for any.",
    )
    allowed_origins: list[Annotated[str, AfterValidator(origin)]] = Field(
        default_factory=list,
        description="Accepted `Origin` headers of browsers besides loopback: `https://app.example.com`. Ports as "
        "in `allowed_hosts`.",
    )
    cors: list[Annotated[str, AfterValidator(exact_origin)]] = Field(
        default_factory=list,
        description="Origins whose pages may call `/mcp` from a browser and read the replies: "
        "`http://localhost:6274`. Adds them to `allowed_origins`.",
    )
    public_url: ServerUrl | None = Field(
        default=None,
        description="The URL by which clients reach the server behind a proxy, without `/mcp`: "
        "https://workflows.example.com. The URL plus `/mcp` is the audience of tokens, and clients see it in "
        "the metadata.",
    )
    auth: AuthSettings | None = Field(
        default=None,
        description="Authentication over HTTP. Without it, the server admits every caller and listens only on "
        "this machine.",
    )
    web: WebSettings | None = Field(
        default=None, description="Pages on which people approve and answer, see `docs/use/approvals.md`."
    )
    single_user: bool = Field(
        default=False,
        description="Treat every caller over loopback HTTP as one identified local user, who can list tasks and "
        "watch. Only on loopback.",
    )
    events: EventSettings = Field(default_factory=EventSettings, description="MCP Events, see `docs/use/events.md`.")
    authorizer: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        description="An async function, `module:attribute`, that also decides after the tool's rules allow a "
        "request, see `docs/secure/access.md`.",
    )
    skills: bool = Field(
        default=False,
        description="Serve an Agent Skill for each tool by the extension `io.modelcontextprotocol/skills`. It tells "
        "models how to use the tool. `mcp-workflows skills` writes the same skills as files.",
    )
    my_tasks: bool = Field(
        default=False,
        description="Also offer `my_tasks`, a list of the caller's own tasks, to clients with tasks. Clients "
        "without tasks always have it. For identified callers.",
    )
    idempotency_keys: list[KeyName] = Field(
        default_factory=lambda: [list(path) if path[1:] else path[0] for path in KEY_PATHS],
        description="Members of a call's `_meta` that serve as idempotency keys: a name, or a list of names as a "
        "path. The first that a call has counts. `mcp-workflows/idempotencyKey` always counts, first "
        "unless listed. See `docs/use/retries.md`.",
        examples=[["claudecode/toolUseId", ["modelcontextprotocol.io/task", "taskId"]]],
    )
    drain: DrainTime = Field(
        default=timedelta(seconds=5),
        description="How long the server keeps serving after SIGTERM or SIGHUP while `/readyz` fails, so that "
        "load balancers notice. At most 1h; `0s` disables it.",
    )
    max_polls_per_second: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Maximum number of polls per second of each engine. With more tasks, poll intervals "
        "grow. Default: 50; unlimited for workflows in the server's process (DBOS with `module`).",
    )
    max_sessions: int = Field(
        default=10_000,
        gt=0,
        description="Maximum number of open HTTP sessions (2025-11-25 and earlier) of all callers. See also "
        "`limits.sessions_per_principal`.",
    )

    @property
    def key_paths(self) -> Sequence[KeyPath]:
        """The idempotency keys as paths, from the outside in."""
        return [(name,) if isinstance(name, str) else tuple(name) for name in self.idempotency_keys]

    @model_validator(mode="after")
    def _one_or_many(self) -> Self:
        if self.single_user and self.auth is not None:
            raise ValueError("single_user makes everybody one user, and auth tells them apart: remove one of the two")
        issuers = [] if self.auth is None else [each.issuer for each in self.auth.issuers]
        if self.web is not None and self.web.issuer not in issuers:
            raise ValueError(
                "web.issuer must be one of auth.issuers, so that a person has one identity in hosts and on pages; "
                f"auth.issuers has {', '.join(issuers) or 'none'}"
            )
        return self


class StoreSettings(BaseModel):
    """The store of tasks. A URL alone is enough: `store: sqlite:///tasks.db`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(
        default="sqlite:///mcp-workflows.db",
        description="The store: an SQLite file, or `postgresql://user:password@host/database`. A relative SQLite path "
        "(three slashes) starts at the folder of this file.",
    )
    retention: Duration = Field(
        default=timedelta(days=90), description="How long a task without a ttl can be read after its creation."
    )
    encryption: EncryptionSettings | None = Field(
        default=None,
        description="Encrypt arguments, results and notes in the store. Without it, the store has them in plain "
        "text; only its user can read an SQLite file.",
    )

    migrate: bool = Field(
        default=True,
        description="PostgreSQL: create and migrate tables at startup. Set `false` if the role of the URL may "
        "not; then run `mcp-workflows store migrate` as another role before each new version.",
    )
    listen_url: str | None = Field(
        default=None,
        description="PostgreSQL behind PgBouncer in transaction mode: the URL of PostgreSQL itself, through "
        "which replicas notify each other.",
    )
    password_file: Path | None = Field(
        default=None,
        description="PostgreSQL: a file with the password, read for each connection. Relative paths start at the "
        "folder of this file.",
    )
    password_function: str | None = Field(
        default=None,
        description="PostgreSQL: a function, `module:attribute`, that returns the password or a token for each "
        "connection. It can be async.",
    )

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.password_file and self.password_function:
            raise ValueError("has both a password_file and a password_function: remove one of them")
        return self

    def open(self, *, migrate: bool = False) -> Store:
        """Return the store, not entered yet; `migrate=True` overrides `store.migrate: false`.

        Raises:
            ConfigError: the store is unknown, a key is malformed, or the store does not support an option.
        """
        options: dict[str, object] = {} if migrate or self.migrate else {"migrate": False}
        options |= {"listen_url": self.listen_url} if self.listen_url else {}
        if self.password_file is not None:
            options["password"] = partial(_first_line, self.password_file)
        elif self.password_function is not None:
            options["password"] = imported(self.password_function)
        return open_store(self.url, self.encryption.cipher() if self.encryption else None, **options)

    def with_absolute_paths(self, folder: Path) -> StoreSettings:
        """Return the same settings with relative paths resolved against this folder."""
        encryption = self.encryption.with_absolute_path(folder) if self.encryption else None
        password = folder.resolve() / self.password_file if self.password_file else None
        return self.model_copy(update={"encryption": encryption, "password_file": password})


def _first_line(file: Path) -> str:
    return file.read_text().partition("\n")[0].rstrip("\r")


def imported(reference: str) -> Any:  # Any: any object of a module
    """Import `module:attribute`.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, _, path = reference.partition(":")
    try:
        return reduce(getattr, path.split("."), import_module(module))
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{reference} cannot be imported ({type(error).__name__}: {error})") from None


class AuditSettings(BaseModel):
    """The audit log: see `docs/operate/observability.md`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    to: str = Field(
        min_length=1,
        description="The destination, one JSON object per line: `stdout` (only over HTTP), `stderr`, a file "
        "(relative to the folder of this file), or `otlp`, as logs configured by OpenTelemetry's "
        "environment variables.",
    )
    include: list[Payload] = Field(
        default_factory=list[Payload],
        description="Content to add to events: the `arguments` of calls, the `results` returned.",
    )

    @property
    def file(self) -> Path | None:
        """The file; None for the other destinations."""
        return None if self.to in _NO_FILES else Path(self.to)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One workflow engine: its adapter and settings."""

    name: str
    adapter: str  # the entry point
    kind: type[Adapter]
    settings: BaseModel = field(repr=False)  # may contain secrets


def _no_place(_: Where) -> str | None:
    return None


def no_defaults(_: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings unchanged."""
    return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The validated configuration."""

    server: ServerSettings
    store: StoreSettings
    engines: Mapping[str, Engine]
    tools: Sequence[AnyTool]
    authorizer: Authorizer | None = None
    audit: AuditSettings | None = None
    telemetry: bool = False  # by OTLP, configured by OpenTelemetry's environment variables
    limits: Limits = DEFAULTS
    notify: Channels = field(default_factory=dict[str, NotificationChannel])
    tool_defaults: ToolDefaults = no_defaults
    place: Callable[[Where], str | None] = _no_place  # of a setting: `workflows.yaml:12`; None: not in a file
    not_offered: Sequence[str] = ()  # reasons why workflows of a Python file are not tools: `app.py:12: ...`


def with_absolute_path(settings: AuditSettings, folder: Path) -> AuditSettings:
    """Return the same settings with a relative file resolved against this folder."""
    file = settings.file
    if file is None or file.is_absolute():
        return settings
    return settings.model_copy(update={"to": str(folder.resolve() / file)})


def read_keys(path: Path) -> list[str]:
    """Return the keys in a file, one per line; skip empty lines and those that begin with #.

    Raises:
        ConfigError: the file cannot be read, or users outside its owner and group can access it.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_MAX_KEY_FILE).decode("ascii", "replace")
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from None
    if os.name == "posix" and mode & _OTHERS:
        raise ConfigError(
            f"the key file {path} can be read or changed by others (mode {stat.S_IMODE(mode):04o}): "
            f"chmod 600 {path}, and if others could read it, make a new key"
        )
    lines = (line.strip() for line in text.splitlines())
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"the key file {path} has no key in it; print one with: mcp-workflows store key")
    return keys
