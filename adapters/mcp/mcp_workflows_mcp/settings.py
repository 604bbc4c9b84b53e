"""The settings of an MCP engine: the address of the server, our credentials, and the tools that belong together."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from mcp_workflows.adapter import JSON
from mcp_workflows.adapter.display_text import is_this_machine
from mcp_workflows.kit.definition import MODEL, CallTimeout
from mcp_workflows_mcp.definition import ToolsDefinition


class ClientCredentials(BaseModel):
    """OAuth 2 client credentials (RFC 6749, section 4.4), at the authorization server that the MCP server names."""

    model_config = MODEL

    issuer: str = Field(description="The authorization server of this client. No other gets the secret.")
    client_id: str = Field(description="The client id.")
    client_secret: SecretStr = Field(description="The client secret.")
    scope: str | None = Field(default=None, description="The scopes, separated by spaces.")

    @field_validator("issuer")
    @classmethod
    def _issuer_is_a_url(cls, issuer: str) -> str:
        return _a_url(issuer)


class TokenExchange(BaseModel):
    """A token of this workload, exchanged for one of the MCP server (RFC 8693)."""

    model_config = MODEL

    token_url: str = Field(description="The token endpoint of the authorization server.")
    subject_token_file: Path = Field(
        description="A file with the workload's own token (Kubernetes, SPIFFE), read again for each exchange."
    )
    subject_token_type: str = Field(
        default="urn:ietf:params:oauth:token-type:jwt", description="The type of that token."
    )
    client_id: str | None = Field(default=None, description="The client id, if the authorization server requires one.")
    client_secret: SecretStr | None = Field(default=None, description="The client secret.")
    audience: str | None = Field(default=None, description="The audience of the new token.")
    resource: str | None = Field(default=None, description="The URL of the resource of the new token (RFC 8707).")
    scope: str | None = Field(default=None, description="The scopes, separated by spaces.")

    @field_validator("token_url")
    @classmethod
    def _token_url_is_one(cls, url: str) -> str:
        return _a_url(url)


class UpstreamAuth(BaseModel):
    """The credentials for a server over HTTP: one of these. A caller's own token is never forwarded."""

    model_config = MODEL

    bearer: SecretStr | None = Field(default=None, description="A token, sent as Authorization: Bearer.")
    bearer_file: Path | None = Field(
        default=None, description="A file with this credential, read again when it changes."
    )
    oauth: ClientCredentials | None = Field(default=None, description="OAuth 2 client credentials.")
    exchange: TokenExchange | None = Field(default=None, description="Token exchange (RFC 8693).")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(getattr(self, name) is not None for name in type(self).model_fields) != 1:
            raise ValueError(f"set one of {', '.join(type(self).model_fields)}")
        return self

    @field_validator("bearer")
    @classmethod
    def _bearer_is_a_header(cls, bearer: SecretStr | None) -> SecretStr | None:
        text = "" if bearer is None else bearer.get_secret_value()
        if not text.isascii() or not text.isprintable():
            raise ValueError("a token is one line of ASCII")
        return bearer


class McpSettings(ToolsDefinition):
    """One MCP server: its address, our credentials, and the tools that belong to one execution."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)

    command: tuple[str, ...] = Field(default=(), description="The command of an MCP server over stdio.")
    env: Mapping[str, SecretStr] = Field(
        default={},
        description="The environment of the program. From this process it inherits only PATH, HOME and the like.",
    )
    cwd: Path | None = Field(default=None, description="The program's working folder. Default: that of this process.")
    url: str | None = Field(
        default=None, description="The URL of an MCP server over HTTP: https://tools.example.com/mcp."
    )
    auth: UpstreamAuth | None = Field(default=None, description="The credentials. Default: none.")
    headers: Mapping[str, str] = Field(default={}, description="Headers of all requests. Not for secrets.")
    expose: tuple[str, ...] = Field(
        default=(), description="Tools of the server to offer as that server describes them."
    )
    pin: bool = Field(
        default=True,
        description="Offer an exposed tool as first seen. `mcp-workflows check --accept` accepts a change.",
    )
    timeout: CallTimeout = Field(
        default=timedelta(seconds=8), description="The timeout of one poll or start, including all its calls."
    )
    polls_per_second: float = Field(default=10.0, gt=0, description="Maximum number of polls per second.")

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("set command (a program that speaks MCP over stdio) or url, one of them")
        if self.command and (self.auth is not None or self.headers):
            raise ValueError("auth and headers are for a server over HTTP (url); a program gets its secrets in env")
        if self.url is not None and (self.env or self.cwd):
            raise ValueError("env and cwd are for a program (command)")
        return self

    @field_validator("url")
    @classmethod
    def _url_is_one(cls, url: str | None) -> str | None:
        return None if url is None else _a_url(url)

    @field_validator("headers")
    @classmethod
    def _headers_are_lines(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        for name, text in headers.items():
            if not name.replace("-", "").isalnum() or not (name + text).isascii() or not text.isprintable():
                raise ValueError(f"{name}: a header is a name without spaces, and one line of ASCII")
        return headers

    @property
    def definition(self) -> Mapping[str, JSON]:
        """The part that says how executions are polled, as JSON: a task keeps it from its start on."""
        found: Mapping[str, JSON] = self.model_dump(
            mode="json", by_alias=True, exclude_none=True, include=set(ToolsDefinition.model_fields) - {"actions"}
        )
        return found

    @property
    def is_local(self) -> bool:
        """True if the server runs on this machine."""
        return self.url is None or is_this_machine(urlsplit(self.url).hostname or "")


def _a_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.fragment:
        raise ValueError("write a URL: https://tools.example.com/mcp")
    if "@" in parts.netloc:
        raise ValueError("no credentials in a URL: auth is for these")
    return url


class McpOptions(BaseModel):
    """The settings of one tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    options: Mapping[str, Any] = Field(  # any JSON values
        default={}, description="Values for the engine's definition, which refers to them as {{options.NAME}}."
    )


class McpAction(McpOptions):
    """A message to the execution of a task: a tool of the engine's `actions`."""

    tool: str = Field(description="The name of the message in the engine's `actions`.")
