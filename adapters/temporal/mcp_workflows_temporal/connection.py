"""From settings to a client that connects with its first call and never writes to stdout."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from mcp_workflows_temporal_worker.contract import MEMO_CONTEXT
from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import PayloadConverter
from temporalio.envconfig import ClientConfigProfile, ClientConfigTLS, ClientConnectConfig
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RetryConfig

from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.errors import ConfigError
from mcp_workflows_temporal.codec import RemoteCodec
from mcp_workflows_temporal.credentials import (
    Renewal,
    WatchedFiles,
    certificate_files,
    check_certificates,
    read_secret,
)
from mcp_workflows_temporal.labels import as_mapping
from mcp_workflows_temporal.settings import ADDRESS, TemporalSettings, load_converter, tls_table

LOCALHOST = "localhost:7233"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
CORE_LOG = "temporal.core"
CODEC_SHARE = 0.5  # of the total time, so that a slow codec server is named as the cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The address and namespace of the engine, for messages and links; no secrets."""

    address: str
    namespace: str

    @property
    def is_local(self) -> bool:
        """True if the address is a loopback address."""
        return self.address.rpartition(":")[0].strip("[]") in LOOPBACK


def _no_retry(record: logging.LogRecord) -> bool:
    """Return False for the records of retries: they flood the log of an outage, which the adapter reports itself."""
    return " retried " not in record.getMessage()


@cache
def quiet_runtime() -> Runtime:
    """Return a runtime that logs to Python logging: by default the SDK's core writes to stdout, where MCP may run."""
    logger = logging.getLogger(CORE_LOG)
    logger.addFilter(_no_retry)
    forwarding = LogForwardingConfig(logger=logger)
    levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=levels, forwarding=forwarding)))


class Connection:
    """The connection to one namespace by the settings; it is made with the first call.

    Raises:
        ConfigError: the profile, a file or the data converter cannot be loaded, or the address is invalid.
    """

    def __init__(self, settings: TemporalSettings) -> None:
        KNOWN.add_all(settings)
        self._settings = settings
        profile = merged_profile(settings)
        files = WatchedFiles(
            [*certificate_files(profile), *filter(None, (settings.api_key_file, settings.config_file))]
        )
        self._renewal = Renewal(files, lambda: _stable_config(settings), self._client)
        self.place = _place(self._renewal.config)
        self._codec = _codec(settings, self.place.namespace)
        converter = load_converter(settings.data_converter) if settings.data_converter else pydantic_data_converter
        self._converter = replace(converter, payload_codec=self._codec) if self._codec else converter

    async def open(self) -> Client:
        """Return a client that connects with its first call."""
        return await self._client(self._renewal.config)

    async def connect(self) -> Client:
        """Return a client that is connected, as workers need one.

        Raises:
            RuntimeError: it cannot connect.
        """
        return await self._client(self._renewal.config, lazy=False)

    async def renew(self, client: Client) -> Client:
        """Return the client to use from now on: another one if certificates have changed."""
        return await self._renewal.renew(client)

    async def aclose(self) -> None:
        """Close the codec; the SDK's client has no close."""
        if self._codec:
            await self._codec.aclose()

    async def _client(self, config: ClientConnectConfig, *, lazy: bool = True) -> Client:
        KNOWN.add(config.get("api_key"))
        KNOWN.add_all(config.get("rpc_metadata"))
        return await Client.connect(
            self.place.address,
            namespace=self.place.namespace,
            api_key=config.get("api_key"),
            tls=config.get("tls"),
            rpc_metadata=config.get("rpc_metadata", {}),
            data_converter=self._converter,
            interceptors=[TraceHeader()],
            retry_config=_retry(self._settings.timeout_seconds),
            lazy=lazy,
            runtime=quiet_runtime(),
        )


TRACE_HEADER: Final = "_tracer-data"
_TRACE_FIELDS: Final = ("traceparent", "tracestate")


class TraceHeader(Interceptor):
    """Copies the trace context from the memo to the header where the SDKs' tracing interceptors look for it.

    Source: https://github.com/temporalio/sdk-python/tree/main/temporalio/contrib/opentelemetry
    """

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002  # the SDK's own name
        """Wrap the SDK's own calls."""
        return _Calls(next)


class _Calls(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002  # Any: a result of unknown type
        """Start the workflow, with the header if there is a trace."""
        context = as_mapping((input.memo or {}).get(MEMO_CONTEXT))
        carrier = {name: context[name] for name in _TRACE_FIELDS if name in context}
        if carrier:
            [payload] = PayloadConverter.default.to_payloads([carrier])
            input.headers = {**input.headers, TRACE_HEADER: payload}
        return await super().start_workflow(input)


def _place(config: ClientConnectConfig) -> Place:
    place = Place(address=config.get("target_host", LOCALHOST), namespace=config.get("namespace", "default"))
    if not ADDRESS.match(place.address):
        raise ConfigError(f"Temporal's address is host:port, without a scheme; the profile has {place.address!r}")
    return place


def _codec(settings: TemporalSettings, namespace: str) -> RemoteCodec | None:
    if settings.codec is None:
        return None
    return RemoteCodec(settings.codec, namespace, settings.timeout_seconds * CODEC_SHARE)


def connect_config(settings: TemporalSettings) -> ClientConnectConfig:
    """Return the connection: the settings first, then the environment, then the profile in Temporal's own file.

    Raises:
        ConfigError: the profile or a file it needs cannot be read.
    """
    return _read(merged_profile(settings))


def _read(profile: ClientConfigProfile) -> ClientConnectConfig:
    try:
        return profile.to_client_connect_config()
    except OSError as error:
        raise ConfigError(f"cannot read the TLS file {error.filename}: {error.strerror}") from None


def _stable_config(settings: TemporalSettings) -> ClientConnectConfig:
    """Return the connection, with certificates that can be used and are not being replaced right now."""
    profile = merged_profile(settings)
    config = _read(profile)
    check_certificates(profile)
    if config != _read(profile):
        raise ConfigError("the TLS files are being replaced")
    return config


def merged_profile(settings: TemporalSettings) -> ClientConfigProfile:
    """Return the settings merged over Temporal's own configuration.

    Raises:
        ConfigError: the profile or the file of the API key cannot be read.
    """
    profile = _profile(settings.profile, settings.config_file)
    own_headers = {name: value.get_secret_value() for name, value in settings.grpc_meta.items()}
    return ClientConfigProfile(
        address=settings.address or profile.address,
        namespace=settings.namespace or profile.namespace,
        api_key=_api_key(settings) or profile.api_key,
        tls=profile.tls if settings.tls is None else ClientConfigTLS(**tls_table(settings.tls)),
        grpc_meta={**profile.grpc_meta, **own_headers},
    )


def _api_key(settings: TemporalSettings) -> str | None:
    if settings.api_key_file:
        return read_secret(settings.api_key_file, "api_key_file")
    return settings.api_key.get_secret_value() if settings.api_key else None


def _profile(name: str | None, file: Path | None) -> ClientConfigProfile:
    if file is not None and not file.is_file():
        raise ConfigError(f"Temporal's configuration file {file} does not exist")
    try:
        return ClientConfigProfile.load(name, config_source=file)
    except RuntimeError as error:
        raise ConfigError(f"Temporal's own configuration: {error}") from None


def _retry(seconds: float) -> RetryConfig:
    """Return retries that end a little before the total time, so that the error names more than the delay."""
    return RetryConfig(max_elapsed_time_millis=int(seconds * 750))
