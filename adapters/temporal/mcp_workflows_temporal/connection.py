"""From settings to a client that connects on its first call, and never writes to our stdout."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfigProfile, ClientConfigTLS, ClientConnectConfig
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RetryConfig

from mcp_workflows.errors import ConfigError
from mcp_workflows_temporal.settings import ADDRESS, TemporalSettings, tls_table

LOCALHOST = "localhost:7233"
CORE_LOG = "temporal.core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the engine is, for messages and links; nothing secret in it."""

    address: str
    namespace: str


def _no_retry(record: logging.LogRecord) -> bool:
    """Whether it is more than another retry: those flood the log of an outage, which we tell ourselves."""
    return " retried " not in record.getMessage()


@cache
def quiet_runtime() -> Runtime:
    """The SDK's core with its log sent to Python logging: by default it writes to stdout, where MCP may be spoken."""
    logger = logging.getLogger(CORE_LOG)
    logger.addFilter(_no_retry)
    forwarding = LogForwardingConfig(logger=logger)
    levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=levels, forwarding=forwarding)))


async def connect(settings: TemporalSettings) -> tuple[Client, Place]:
    """A client that has not called the engine yet.

    Raises:
        ConfigError: the profile, its file or a certificate cannot be read, or the address is none.
    """
    config = connect_config(settings)
    place = Place(address=config.get("target_host", LOCALHOST), namespace=config.get("namespace", "default"))
    if not ADDRESS.match(place.address):
        raise ConfigError(f"Temporal's address is host:port, without a scheme; the profile has {place.address!r}")
    client = await Client.connect(
        place.address,
        namespace=place.namespace,
        api_key=config.get("api_key"),
        tls=config.get("tls"),
        rpc_metadata=config.get("rpc_metadata", {}),
        data_converter=pydantic_data_converter,
        retry_config=_retry(settings.timeout_seconds),
        lazy=True,
        runtime=quiet_runtime(),
    )
    return client, place


def connect_config(settings: TemporalSettings) -> ClientConnectConfig:
    """What the settings say, then the environment, then the profile in Temporal's configuration file.

    Raises:
        ConfigError: the profile or a file it needs cannot be read.
    """
    profile = _profile(settings.profile, settings.config_file)
    api_key = settings.api_key.get_secret_value() if settings.api_key else profile.api_key
    own_headers = {name: value.get_secret_value() for name, value in settings.grpc_meta.items()}
    merged = ClientConfigProfile(
        address=settings.address or profile.address,
        namespace=settings.namespace or profile.namespace,
        api_key=api_key,
        tls=profile.tls if settings.tls is None else ClientConfigTLS(**tls_table(settings.tls)),
        grpc_meta={**profile.grpc_meta, **own_headers},
    )
    try:
        return merged.to_client_connect_config()
    except OSError as error:
        raise ConfigError(f"cannot read the TLS file {error.filename}: {error.strerror}") from None


def _profile(name: str | None, file: Path | None) -> ClientConfigProfile:
    if file is not None and not file.is_file():
        raise ConfigError(f"Temporal's configuration file {file} does not exist")
    try:
        return ClientConfigProfile.load(name, config_source=file)
    except RuntimeError as error:
        raise ConfigError(f"Temporal's own configuration: {error}") from None


def _retry(seconds: float) -> RetryConfig:
    """Give up a little before the total time is over, so that the reason is known and not only the delay."""
    return RetryConfig(max_elapsed_time_millis=int(seconds * 750))
