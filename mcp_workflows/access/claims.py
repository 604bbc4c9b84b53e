"""What a token says under a name: of a claim, or of what is inside one; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias, cast

from pydantic import AfterValidator, Field

Claims: TypeAlias = Mapping[str, Any]  # Any: JSON values
_DOT: Final = re.compile(r"(?<!\\)\.")


def said(claims: Claims, name: str) -> object:
    r"""What the claims say under this name, as `realm_access.roles`; None: nothing.

    To the letter first, as claims such as `https://acme.example/roles` have dots in their names: a token that has one
    is read in no other way, also where it is null. Else it is a path from the outside in, and `\.` is a dot in a name
    (so Keycloak writes it). A path has one reading and takes as many steps as it has parts, however much a token
    nests. It goes through objects only: of a list, nobody could say which of its entries is meant.
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
    """The same, if it can be meant.

    Raises:
        ValueError: as a path it has a part without a name.
    """
    if "" in _parts(name):
        raise ValueError(rf"{name!r} is no name of a claim: between dots there are names, and \. is a dot in a name")
    return name


def _parts(name: str) -> Sequence[str]:
    return [part.replace(r"\.", ".") for part in _DOT.split(name)]


ClaimName: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(claim_name)]
