"""Encryption of a store with several keys: the first encrypts, and each decrypts the texts it encrypted.

The cipher is Fernet of `cryptography`: AES-128-CBC and HMAC-SHA256, with random bytes for each text. An encrypted text
names its key by a digest. So no keys are tried out, and texts of keys other than the first are found without
decryption.

Source: https://cryptography.io/en/latest/fernet/.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from secrets import token_bytes
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mcp_workflows.errors import ConfigError

_KEY: Final = re.compile(r"[A-Za-z0-9_-]{43}=", re.ASCII)
_MARK: Final = "fernet:"  # no JSON value begins with this
_SEALED: Final = re.compile(r"fernet:([0-9a-f]{12}):(.*)", re.ASCII | re.DOTALL)
_DIGEST: Final = "hmac:"


class CipherError(Exception):
    """A text cannot be decrypted. The message has the reason, but no part of the text."""


class Cipher:
    """Keys that a store is encrypted with, as `mcp-workflows store key` prints them.

    Raises:
        ConfigError: there is no key, or one of them is invalid; the message shows no key.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        """Keep the keys: the first encrypts, all decrypt."""
        if not keys:
            raise ConfigError("encryption needs a key: print one with: mcp-workflows store key")
        ciphers = [_fernet(key.strip(), number) for number, key in enumerate(keys, start=1)]
        self._by_name: Mapping[str, Fernet] = dict(zip((name_of(key.strip()) for key in keys), ciphers, strict=True))
        self._first = next(iter(self._by_name))

    @property
    def names(self) -> Sequence[str]:
        """A digest of each key, starting with the first key; it reveals nothing about the key."""
        return list(self._by_name)

    @property
    def prefix(self) -> str:
        """The prefix of all texts encrypted with the first key."""
        return f"{_MARK}{self._first}:"

    def seal(self, text: str, *names: str) -> str:
        """Encrypt a text for one place in the store, given by the names; it can be opened only there."""
        token = self._by_name[self._first].encrypt(f"{_line(names)}\n{text}".encode())
        return self.prefix + token.decode()

    def open(self, sealed: str, *names: str) -> str:
        """Decrypt a text that was sealed for this place.

        Raises:
            CipherError: its key is missing, it was sealed for another place, or it was changed.
        """
        found = _SEALED.fullmatch(sealed)
        key = self._by_name.get(found[1]) if found else None
        if found is None or key is None:
            raise CipherError(f"it was encrypted by key {found[1]}, which is not given" if found else "it is damaged")
        try:
            line, _, text = key.decrypt(found[2].encode()).decode().partition("\n")
        except InvalidToken:
            raise CipherError("it was changed since it was encrypted") from None
        if line != _line(names):
            raise CipherError("it was encrypted for another place and moved here")
        return text

    def digest(self, secret: bytes, *texts: str) -> str:
        """Return a digest that is equal for equal texts and reveals nothing else about them."""
        return _DIGEST + hmac.new(secret, _line(texts).encode(), hashlib.sha256).hexdigest()


def is_sealed(text: str) -> bool:
    """Return True if the text is encrypted, with any key."""
    return text.startswith(_MARK)


def name_of(key: str) -> str:
    """Return the digest that names a key. The key has 256 bits, so the digest reveals nothing about it."""
    return hashlib.sha256(b"mcp-workflows store key\n" + base64.urlsafe_b64decode(key)).hexdigest()[:12]


def new_key() -> str:
    """Create a key: 32 random bytes, in URL-safe base64."""
    return Fernet.generate_key().decode()


_NONCE: Final = 12  # bytes


def seal(key: bytes, text: bytes, about: str, *, is_stable: bool = False) -> str:
    """Encrypt a text with one of the store's secrets (AES-256-GCM), bound to `about`; the result is safe in URLs.

    `is_stable`: equal texts give equal results, because the nonce is a MAC of the text.
    """
    nonce = hmac.digest(key, f"{about}\n".encode() + text, "sha256")[:_NONCE] if is_stable else token_bytes(_NONCE)
    sealed = nonce + AESGCM(key).encrypt(nonce, text, about.encode())
    return base64.urlsafe_b64encode(sealed).decode().rstrip("=")


def unseal(key: bytes, sealed: str, about: str) -> bytes | None:
    """Return the text that `seal` encrypted; None: another key, another `about`, or not encrypted by `seal`."""
    try:
        raw = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
        return AESGCM(key).decrypt(raw[:_NONCE], raw[_NONCE:], about.encode())
    except (ValueError, InvalidTag):
        return None


def _fernet(key: str, number: int) -> Fernet:
    if not _KEY.fullmatch(key):  # decoding would skip other characters
        raise ConfigError(
            f"encryption key {number} is not a key: it must be 32 bytes in URL-safe base64, as printed by: "
            "mcp-workflows store key"
        )
    return Fernet(key)


def _line(names: Sequence[str]) -> str:
    return json.dumps(names)
