"""The secrets of every store: random bytes by name, and the marks of the keys that encrypt the store.

Each key that may have encrypted something has a mark, which it encrypts: a process that cannot open the mark must not
use the store. Marks are stored with the secrets; each store has its own SQL.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from mcp_workflows.errors import StoreUnavailable, StoreUnusable
from mcp_workflows.store.encryption import Cipher, CipherError

KEY_SECRET: Final = "idempotency-keys"  # the secret for digests of idempotency keys  # noqa: S105  # a name
_SIZE: Final = 32  # bytes; an encrypted secret is longer
_TABLE: Final = "secrets"
_KEPT: Final = "encrypted-with/"  # followed by the name of the key
_OPENED: Final = "this can be read"


def new_secret(cipher: Cipher | None, name: str) -> bytes:
    """Return new random bytes in the table's format."""
    return sealed(cipher, name, secrets.token_bytes(_SIZE))


def read_secret(cipher: Cipher | None, name: str, kept: bytes) -> bytes:
    """Return a secret from the table.

    Raises:
        StoreUnavailable: it cannot be decrypted.
    """
    try:
        return opened(cipher, name, kept)
    except CipherError as error:
        raise StoreUnavailable(f"the store has a secret that cannot be read: {error}") from None


def sealed(cipher: Cipher | None, name: str, value: bytes) -> bytes:
    """Return a secret in the table's format."""
    return value if cipher is None else cipher.seal(value.hex(), _TABLE, name).encode()


def opened(cipher: Cipher | None, name: str, kept: bytes) -> bytes:
    """Return a secret from the table.

    Raises:
        CipherError: it cannot be decrypted.
    """
    if len(kept) == _SIZE:
        return kept
    if cipher is None:
        raise CipherError("it is encrypted, and no keys are configured")
    return bytes.fromhex(cipher.open(kept.decode("ascii", "replace"), _TABLE, name))


def mark_of(cipher: Cipher) -> str:
    """Return the name of the first key's mark in the table."""
    return _KEPT + cipher.names[0]


def new_mark(cipher: Cipher) -> bytes:
    """Return a mark of the first key, in the table's format."""
    return cipher.seal(_OPENED, _TABLE, mark_of(cipher)).encode()


def is_mark(name: str) -> bool:
    """Return True if the name is that of a key's mark rather than a secret."""
    return name.startswith(_KEPT)


def check_marks(kept: Mapping[str, bytes], cipher: Cipher | None) -> None:
    """Check against the rows of the table that all encrypted data can be read.

    Raises:
        StoreUnusable: data may be encrypted with a missing key, or a mark is wrong.
    """
    marks = {name.removeprefix(_KEPT): value for name, value in kept.items() if is_mark(name)}
    missing = sorted(marks.keys() - set(cipher.names if cipher else ()))
    if cipher is None:
        if missing:
            raise StoreUnusable(
                f"the store is encrypted (key {', '.join(missing)}): set its keys, store: {{url: ..., encryption: "
                "{keys: [...]}}"
            )
        return
    if missing:
        raise StoreUnusable(
            f"the store is encrypted with key {', '.join(missing)}, and the keys set are {', '.join(cipher.names)}: "
            "add that key after the first; remove it after: mcp-workflows store rekey CONFIG"
        )
    for name, mark in marks.items():
        try:
            cipher.open(mark.decode("ascii", "replace"), _TABLE, _KEPT + name)
        except CipherError as error:
            raise StoreUnusable(f"the store's own mark of its key {name} is wrong: {error}; restore a backup") from None
