"""Secrets and certificates that are rotated while we run: a new API key in place, a new client for new certificates."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from temporalio.client import Client
from temporalio.envconfig import ClientConfigProfile, ClientConfigTLS, ClientConnectConfig

from mcp_workflows.errors import ConfigError
from mcp_workflows_temporal.credentials import Files

logger = logging.getLogger(__name__)


class Renewal:
    """Asked before calls; reads again only when a file has changed.

    A new file that cannot be used, half-written for example, changes nothing but the log.
    """

    def __init__(
        self,
        files: Files,
        read: Callable[[], ClientConnectConfig],
        make: Callable[[ClientConnectConfig], Awaitable[Client]],
    ) -> None:
        """`read` gives the configuration as it is now, `make` a client for one."""
        self._files = files
        self._read = read
        self._make = make
        self._config = read()

    @property
    def config(self) -> ClientConnectConfig:
        """What the client in use was made with."""
        return self._config

    async def renew(self, client: Client) -> Client:
        """The client to use from now on: the same, with a new API key, or a new one."""
        if not self._files.changed():
            return client
        try:
            config = self._read()
        except ConfigError as error:
            logger.warning("%s; what was read before stays in use", error)
            return client
        before, self._config = self._config, config
        if config.get("tls") != before.get("tls"):
            logger.info("new TLS files: connecting anew")
            return await self._make(config)
        if config.get("api_key") != before.get("api_key"):
            logger.info("new API key: in use")
            client.api_key = config.get("api_key")
        return client


def sources(profile: ClientConfigProfile) -> Sequence[Path]:
    """The files that a profile takes its certificates from."""
    tls = profile.tls or ClientConfigTLS()
    found = (tls.server_root_ca_cert, tls.client_cert, tls.client_private_key)
    return [source for source in found if isinstance(source, Path)]


def check_certificates(profile: ClientConfigProfile) -> None:
    """Whether the files can be used as what they are: a file in the middle of being written cannot.

    Raises:
        ConfigError: they cannot; nothing of their content is repeated.
    """
    tls = profile.tls
    if tls is None or tls.disabled:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # how strong they must be is for the handshake to say
    if isinstance(tls.server_root_ca_cert, Path):
        _usable("server_root_ca_cert", lambda: context.load_verify_locations(cafile=tls.server_root_ca_cert))
    if isinstance(tls.client_cert, Path) and isinstance(tls.client_private_key, Path):
        pair = (tls.client_cert, tls.client_private_key)
        _usable("client_cert and client_key", lambda: context.load_cert_chain(*pair, password=""))


def _usable(setting: str, load: Callable[[], None]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        why = (error.reason or "no PEM file of that kind").lower().replace("_", " ")
        raise ConfigError(f"the TLS file of {setting} cannot be used: {why}") from None
    except OSError as error:
        raise ConfigError(f"cannot read the TLS file of {setting}: {error.strerror}") from None
