"""Credentials in files: loading, validation and monitoring for changes."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from temporalio.envconfig import ClientConfigProfile, ClientConfigTLS

from mcp_workflows.errors import ConfigError

logger = logging.getLogger(__name__)

CHECK_EVERY = 2.0  # seconds

Stamp = tuple[int, int, int, int] | None  # times, size and inode; None: no such file


class WatchedFiles:
    """Files whose content may change, checked at most every two seconds."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._stamps = self._stat()
        self._checked = time.monotonic()

    def changed(self) -> bool:
        """True if any file has changed since the last call."""
        now = time.monotonic()
        if not self._paths or now - self._checked < CHECK_EVERY:
            return False
        before, self._stamps, self._checked = self._stamps, self._stat(), now
        return self._stamps != before

    def _stat(self) -> Sequence[Stamp]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino  # ctime: a change of permissions counts


def read_secret(path: Path, setting: str) -> str:
    """Return the single line of text in a file, without surrounding white space.

    Raises:
        ConfigError: the file cannot be read, is empty, or has several lines; the message never contains its content.
    """
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{setting}: {path} is no text") from None
    if not secret or not secret.isprintable() or not secret.isascii():
        raise ConfigError(
            f"{setting}: {path} must hold one line of text (ASCII), and {'more' if secret else 'nothing'} is there"
        )
    return secret


def certificate_files(profile: ClientConfigProfile) -> Sequence[Path]:
    """Return the certificate files of a profile."""
    tls = profile.tls or ClientConfigTLS()
    found = (tls.server_root_ca_cert, tls.client_cert, tls.client_private_key)
    return [source for source in found if isinstance(source, Path)]


def check_certificates(profile: ClientConfigProfile) -> None:
    """Load the certificates of a profile once, as a file that is being written is unusable.

    Raises:
        ConfigError: a file is unusable; the message never contains its content.
    """
    tls = profile.tls
    if tls is None or tls.disabled:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # the handshake decides the required strength of keys
    if isinstance(tls.server_root_ca_cert, Path):
        _try_load("server_root_ca_cert", lambda: context.load_verify_locations(cafile=tls.server_root_ca_cert))
    if isinstance(tls.client_cert, Path) and isinstance(tls.client_private_key, Path):
        pair = (tls.client_cert, tls.client_private_key)
        _try_load("client_cert and client_key", lambda: context.load_cert_chain(*pair, password=""))


def _try_load(setting: str, load: Callable[[], None]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        why = (error.reason or "no PEM file of that kind").lower().replace("_", " ")
        raise ConfigError(f"the TLS file of {setting} cannot be used: {why}") from None
    except OSError as error:
        raise ConfigError(f"cannot read the TLS file of {setting}: {error.strerror}") from None
