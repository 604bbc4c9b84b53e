"""The sections `audit` and `telemetry` of workflows.yaml."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from mcp_workflows.audit_event import Payload
from mcp_workflows.units import Duration

STDOUT: Final = "stdout"
STDERR: Final = "stderr"
OTLP: Final = "otlp"
_NO_FILES: Final = frozenset({STDOUT, STDERR, OTLP})


class AuditSettings(BaseModel):
    """The record of who did what: see `mcp-workflows docs observability`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    to: str = Field(
        min_length=1,
        description="Where events go, one JSON object per line: `stdout`, `stderr`, a file (relative to the folder of "
        "this file), or `otlp`, as logs to where `telemetry.otlp` says. `stdout` only over HTTP.",
    )
    include: list[Payload] = Field(
        default_factory=list[Payload],
        description="What is left out otherwise: the `arguments` of calls, the `results` that were given out.",
    )

    @property
    def file(self) -> Path | None:
        """The file, if it is one."""
        return None if self.to in _NO_FILES else Path(self.to)


class OtlpSettings(BaseModel):
    """A collector of OpenTelemetry that takes OTLP over HTTP. Needs `mcp-workflows[otlp]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str | None = Field(
        default=None,
        description="Its address, without a path: http://collector:4318. Default: what OTEL_EXPORTER_OTLP_ENDPOINT "
        "says, or else http://localhost:4318.",
    )
    headers: dict[str, SecretStr] = Field(default_factory=dict[str, SecretStr], description="Sent with each request.")
    traces: bool = Field(default=True, description="Send traces.")
    metrics: bool = Field(default=True, description="Send metrics.")
    every: Duration = Field(default=timedelta(minutes=1), description="How often metrics are sent.")
    sample: float = Field(
        default=1, ge=0, le=1, description="The share of traces that begin here which is sent; others: as their parent."
    )

    @field_validator("endpoint")
    @classmethod
    def _an_address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("an address begins with http:// or https://")
        return value if value is None else value.rstrip("/")


class TelemetrySettings(BaseModel):
    """Where traces and metrics go; metrics can also be scraped: `serve --ops HOST:PORT`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    otlp: OtlpSettings | None = Field(default=None, description="A collector; `{}` for one on this machine.")


def located(settings: AuditSettings, folder: Path) -> AuditSettings:
    """The same, a relative file taken from this folder."""
    file = settings.file
    if file is None or file.is_absolute():
        return settings
    return settings.model_copy(update={"to": str(folder.resolve() / file)})
