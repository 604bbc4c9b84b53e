"""The secrets of every store: random bytes by name, and the marks of the keys that encrypt the store.

Each key that may have encrypted something has a mark, encrypted by it: a process that cannot open the mark must not use
the store. Marks are kept beside the secrets; the SQL is each store's own.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from mcp_workflows.errors import StoreUnavailable, StoreUnusable
from mcp_workflows.store.encryption import Cipher, CipherError

KEY_SECRET: Final = "idempotency-keys"  # the secret for digests of idempotency keys  # noqa: S105  # its name
_SIZE: Final = 32  # bytes; an encrypted secret is longer
_TABLE: Final = "secrets"
_KEPT: Final = "encrypted-with/"  # and the name of the key
_OPENED: Final = "this can be read"


def new_secret(cipher: Cipher | None, name: str) -> bytes:
    """Return new random bytes as the table has them."""
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
    """Return a secret as the table has it."""
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
    """Return the name under which the mark of our first key is kept."""
    return _KEPT + cipher.names[0]


def new_mark(cipher: Cipher) -> bytes:
    """Return a mark of our first key, as the table has it."""
    return cipher.seal(_OPENED, _TABLE, mark_of(cipher)).encode()


def is_mark(name: str) -> bool:
    """True if it is the mark of a key rather than a secret."""
    return name.startswith(_KEPT)


def check_marks(kept: Mapping[str, bytes], cipher: Cipher | None) -> None:
    """Check by the rows of the table that all encrypted data can be read.

    Raises:
        StoreUnusable: something may be encrypted with a key that is not given, or a mark is wrong.
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
