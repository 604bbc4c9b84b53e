"""The claims of a token, by name or by path; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias, cast

from pydantic import AfterValidator, Field

Claims: TypeAlias = Mapping[str, Any]  # Any: JSON values
_DOT: Final = re.compile(r"(?<!\\)\.")


def claim_value(claims: Claims, name: str) -> object:
    r"""Return the value of a claim or of a path such as `realm_access.roles`; None if there is none.

    A claim of exactly that name comes first, even if its value is null, as names such as `https://acme.example/roles`
    have dots. Otherwise the name is a path from the outside in, in which `\.` is a dot in a name (as in Keycloak). A
    path has one reading and takes one step for each of its parts, however deep a token is nested. It goes through
    objects only: in a list, no entry would be the right one.
    """
    if name in claims:
        return claims[name]
    found = cast("object", claims)
    for part in _parts(name):
        if not isinstance(found, Mapping):
            return None
        found = cast("Claims", found).get(part)
    return found


def claim_name(name: str) -> str:
    """Return the name, if it is a valid path.

    Raises:
        ValueError: a part of the path is empty.
    """
    if "" in _parts(name):
        raise ValueError(rf"{name!r} is no name of a claim: between dots there are names, and \. is a dot in a name")
    return name


def _parts(name: str) -> Sequence[str]:
    return [part.replace(r"\.", ".") for part in _DOT.split(name)]


ClaimName: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(claim_name)]
