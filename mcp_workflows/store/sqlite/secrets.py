"""The secrets in an SQLite store: random bytes by name, and the marks of the keys that encrypt the store.

Each key that may have encrypted something has a mark, encrypted by it: a process that cannot open the mark must not use
the store.
"""

from __future__ import annotations

import secrets
import sqlite3
from typing import Final

from mcp_workflows.errors import StoreUnavailable, StoreUnusable
from mcp_workflows.store.encryption import Cipher, CipherError

KEY_SECRET: Final = "idempotency-keys"  # the secret for digests of idempotency keys  # noqa: S105  # its name
SIZE: Final = 32  # bytes; an encrypted secret is longer
_TABLE: Final = "secrets"
_KEPT: Final = "encrypted-with/"  # and the name of the key
_MADE: Final = "INSERT OR IGNORE INTO secrets VALUES (?, ?)"
_OPENED: Final = "this can be read"


def secret(connection: sqlite3.Connection, cipher: Cipher | None, name: str) -> bytes:
    """Return 32 random bytes under this name, made once."""
    query = "SELECT value FROM secrets WHERE name = ?"
    found = connection.execute(query, (name,)).fetchone()
    if found is None:
        mark(connection, cipher)
        connection.execute(_MADE, (name, sealed(cipher, name, secrets.token_bytes(SIZE))))
        found = connection.execute(query, (name,)).fetchone()
    try:
        return opened(cipher, name, found[0])
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
    if len(kept) == SIZE:
        return kept
    if cipher is None:
        raise CipherError("it is encrypted, and no keys are given")
    return bytes.fromhex(cipher.open(kept.decode("ascii", "replace"), _TABLE, name))


def check_keys(connection: sqlite3.Connection, cipher: Cipher | None) -> None:
    """Check that all encrypted data can be read, and mark our first key.

    Raises:
        StoreUnusable: something may be encrypted with a key that is not given, or a mark is wrong.
    """
    kept = _keys(connection)
    missing = sorted(kept.keys() - set(cipher.names if cipher else ()))
    if cipher is None:
        if missing:
            raise StoreUnusable(
                f"the store is encrypted (key {', '.join(missing)}): give its keys, "
                "store: {url: ..., encryption: {keys: [...]}}"
            )
        return
    if missing:
        raise StoreUnusable(
            f"the store is encrypted with key {', '.join(missing)}, and the keys given are {', '.join(cipher.names)}: "
            "add that key after the first; it can be left out after: mcp-workflows store rekey CONFIG"
        )
    for name, check in kept.items():
        _try(cipher, name, check)
    mark(connection, cipher)


def mark(connection: sqlite3.Connection, cipher: Cipher | None) -> None:
    """Mark our first key as one that encrypts from now on; in the transaction of each write.

    Another process may have retired that key since: then it is needed again, and nothing is lost.
    """
    if cipher is None:
        return
    name = _KEPT + cipher.names[0]
    if connection.execute("SELECT 1 FROM secrets WHERE name = ?", (name,)).fetchone() is None:
        connection.execute(_MADE, (name, cipher.seal(_OPENED, _TABLE, name).encode()))


def _try(cipher: Cipher, name: str, check: bytes) -> None:
    try:
        cipher.open(check.decode("ascii", "replace"), _TABLE, _KEPT + name)
    except CipherError as error:
        raise StoreUnusable(f"the store's own mark of its key {name} is wrong: {error}; restore a backup") from None


def retire(connection: sqlite3.Connection, cipher: Cipher) -> None:
    """Remove the marks of all keys but the first: nothing is encrypted with them any more."""
    for name in _keys(connection).keys() - {cipher.names[0]}:
        connection.execute("DELETE FROM secrets WHERE name = ?", (_KEPT + name,))


def is_key(name: str) -> bool:
    """True if it is the mark of a key rather than a secret."""
    return name.startswith(_KEPT)


def _keys(connection: sqlite3.Connection) -> dict[str, bytes]:
    found = connection.execute("SELECT name, value FROM secrets")
    return {name.removeprefix(_KEPT): value for name, value in found if is_key(name)}
