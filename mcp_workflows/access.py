"""Who asks: the principal that owns a task."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks. `id` is the owner of the tasks they create and the only thing ever compared."""

    id: str
    subject: str | None = None  # the person, if the token names one: `{{principal.subject}}` in mappings
    identified: bool = True  # False: nobody knows who it is, and a task's id is all that protects it

    @property
    def scope(self) -> Mapping[str, Mapping[str, str | None]]:
        """`principal` as templates see it."""
        return {"principal": {"id": self.id, "subject": self.subject}}


ANONYMOUS = Principal(id="anonymous", identified=False)
LOCAL = Principal(id="local")  # the one user of this machine: on stdio, and on loopback with `single_user`


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address, or have come from it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
