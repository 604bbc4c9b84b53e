"""`store.encryption`: the keys a store is encrypted with, from the environment or from a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from mcp_workflows.errors import ConfigError
from mcp_workflows.store.encryption import Cipher

_FOR_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP  # a group may read it: so are secrets mounted in Kubernetes
_LARGEST: Final = 100_000  # bytes; a thousand keys would fit


class EncryptionSettings(BaseModel):
    """What arguments, results and notes of adapters are encrypted with. The first key encrypts, all decrypt."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: list[SecretStr] = Field(
        default_factory=list[SecretStr],
        description="Keys, as `mcp-workflows store key` prints them; from the environment: `${STORE_KEY}`.",
        examples=[["${STORE_KEY}"]],
    )
    key_file: Path | None = Field(
        default=None,
        description="A file with a key on each line, in their place; only its user (and group) may read it. A relative "
        "path starts at the folder of this file.",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if bool(self.keys) == bool(self.key_file):
            raise ValueError("needs either keys or a key_file; print a key with: mcp-workflows store key")
        return self

    def cipher(self) -> Cipher:
        """What encrypts and decrypts; the file is read now.

        Raises:
            ConfigError: a key is none, or the file cannot be read, or everybody can read it.
        """
        if self.key_file is None:
            return Cipher([key.get_secret_value() for key in self.keys])
        return Cipher(read_keys(self.key_file))

    def located(self, folder: Path) -> EncryptionSettings:
        """The same, a relative path taken from this folder."""
        return self.model_copy(update={"key_file": folder.resolve() / self.key_file}) if self.key_file else self


def read_keys(path: Path) -> list[str]:
    """The keys of a file, one on each line; empty lines and those that begin with # are none.

    Raises:
        ConfigError: it cannot be read, or not only its user and group can.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_LARGEST).decode("ascii", "replace")
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from None
    if os.name == "posix" and mode & _FOR_OTHERS:
        raise ConfigError(
            f"the key file {path} can be read or changed by others (mode {stat.S_IMODE(mode):04o}): "
            f"chmod 600 {path}, and if others could read it, make a new key"
        )
    lines = (line.strip() for line in text.splitlines())
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"the key file {path} has no key in it; print one with: mcp-workflows store key")
    return keys
