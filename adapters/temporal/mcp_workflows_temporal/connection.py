"""A client from settings, which connects with its first call, loads new secrets, and never writes to stdout."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
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
from mcp_workflows_temporal.credentials import WatchedFiles, certificate_files, check_certificates, read_secret
from mcp_workflows_temporal.payloads import as_mapping
from mcp_workflows_temporal.settings import ADDRESS, Place, TemporalSettings, load_converter

logger = logging.getLogger(__name__)

LOCALHOST = "localhost:7233"
CORE_LOG = "temporal.core"
CODEC_SHARE = 0.5  # of the time limit, so that a slow codec server is named as the cause


def _no_retry(record: logging.LogRecord) -> bool:
    """Return False for the records of retries: they flood the log of an outage, which the adapter reports itself."""
    return " retried " not in record.getMessage()


@cache
def quiet_runtime() -> Runtime:
    """Return a runtime that logs to Python logging: by default the SDK's core writes to stdout, which MCP may use."""
    logger = logging.getLogger(CORE_LOG)
    logger.addFilter(_no_retry)
    forwarding = LogForwardingConfig(logger=logger)
    levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=levels, forwarding=forwarding)))


class Connection:
    """The connection to one namespace from the settings; it is made with the first call.

    A new API key is set on the client in use; new certificates need a new client. A new file that is unusable, such as
    a half-written one, is logged, and the previous configuration remains in use.

    Raises:
        ConfigError: the profile, a file or the data converter cannot be loaded, or the address is invalid.
    """

    def __init__(self, settings: TemporalSettings) -> None:
        KNOWN.add_all(settings)
        self._settings = settings
        files = certificate_files(merged_profile(settings))
        self._files = WatchedFiles([*files, *filter(None, (settings.api_key_file, settings.config_file))])
        self._config = _stable_config(settings)
        address, namespace = self._config.get("target_host", LOCALHOST), self._config.get("namespace", "default")
        if not ADDRESS.match(address):
            raise ConfigError(f"Temporal's address is host:port, without a scheme; the profile has {address!r}")
        self.place = Place.of(address, namespace, settings.ui_url)
        self._codec: RemoteCodec | None = None
        self._converter = (
            load_converter(settings.data_converter) if settings.data_converter else pydantic_data_converter
        )
        if settings.codec is not None:
            self._codec = RemoteCodec(settings.codec, namespace, settings.timeout_seconds * CODEC_SHARE)
            self._converter = replace(self._converter, payload_codec=self._codec)

    async def aclose(self) -> None:
        """Close the codec; the SDK's client cannot be closed."""
        if self._codec:
            await self._codec.aclose()

    async def renew(self, client: Client) -> Client:
        """Return the client for further calls: the same, possibly with a new API key, or a new one."""
        if not self._files.changed():
            return client
        try:
            config = _stable_config(self._settings)
        except ConfigError as error:
            logger.warning("%s; the values read before stay in use", error)
            return client
        before, self._config = self._config, config
        if config.get("tls") != before.get("tls"):
            logger.info("new TLS files: reconnecting")
            return await self.open()
        if config.get("api_key") != before.get("api_key"):
            logger.info("new API key: in use")
            client.api_key = config.get("api_key")
            KNOWN.add(client.api_key)
        return client

    async def open(self, *, lazy: bool = True) -> Client:
        """Return a client that connects with its first call; unless `lazy`, a connected one, which workers need.

        Raises:
            RuntimeError: it cannot connect.
        """
        config = self._config
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
            # Retries end slightly before the time limit, so that the error has more than the delay.
            retry_config=RetryConfig(max_elapsed_time_millis=int(self._settings.timeout_seconds * 750)),
            lazy=lazy,
            runtime=quiet_runtime(),
        )


TRACE_HEADER: Final = "_tracer-data"
_TRACE_FIELDS: Final = ("traceparent", "tracestate")


class TraceHeader(Interceptor):
    """Copies the trace context from the memo to the header that the SDKs' tracing interceptors read.

    Source: https://github.com/temporalio/sdk-python/tree/main/temporalio/contrib/opentelemetry
    """

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002  # the SDK's name
        """Wrap the SDK's calls."""
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


def _stable_config(settings: TemporalSettings) -> ClientConnectConfig:
    """Return the connection, with certificates that are usable and not being replaced right now.

    Raises:
        ConfigError: the profile or a file it needs cannot be read.
    """
    profile = merged_profile(settings)
    config = read_config(profile)
    check_certificates(profile)
    if config != read_config(profile):
        raise ConfigError("the TLS files are being replaced")
    return config


def read_config(profile: ClientConfigProfile) -> ClientConnectConfig:
    """Read the files that a profile names.

    Raises:
        ConfigError: a file cannot be read.
    """
    try:
        return profile.to_client_connect_config()
    except OSError as error:
        raise ConfigError(f"cannot read the TLS file {error.filename}: {error.strerror}") from None


def merged_profile(settings: TemporalSettings) -> ClientConfigProfile:
    """Return the settings merged over Temporal's own configuration: the environment, then the profile in its file.

    Raises:
        ConfigError: the profile or the file of the API key cannot be read.
    """
    if settings.config_file is not None and not settings.config_file.is_file():
        raise ConfigError(f"Temporal's configuration file {settings.config_file} does not exist")
    try:
        profile = ClientConfigProfile.load(settings.profile, config_source=settings.config_file)
    except RuntimeError as error:
        raise ConfigError(f"Temporal's own configuration: {error}") from None
    if settings.api_key_file:
        api_key: str | None = read_secret(settings.api_key_file, "api_key_file")
    else:
        api_key = settings.api_key.get_secret_value() if settings.api_key else profile.api_key
    tls = profile.tls
    if isinstance(settings.tls, bool):
        tls = ClientConfigTLS(disabled=not settings.tls)
    elif settings.tls is not None:
        given = settings.tls.model_dump()
        tls = ClientConfigTLS(client_private_key=given.pop("client_key"), **given)
    own_headers = {name: value.get_secret_value() for name, value in settings.grpc_meta.items()}
    return ClientConfigProfile(
        address=settings.address or profile.address,
        namespace=settings.namespace or profile.namespace,
        api_key=api_key,
        tls=tls,
        grpc_meta={**profile.grpc_meta, **own_headers},
    )
