"""The tokens by which callers prove who they are: who issued them, and by which keys that shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt

from mcp_workflows.access.authn.jwks import Keys
from mcp_workflows.errors import TokenRefused

ALGORITHMS: Final = ("ES256", "RS256")  # those of workflows that call
LEEWAY: Final = 30.0  # seconds that clocks may differ
LONGEST_TOKEN: Final = 8192  # characters

_REQUIRED: Final = ("iss", "aud", "exp", "iat")
_GARBAGE: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)  # PyJWT lets some through
_REASONS: Final[Mapping[type[Exception], str]] = {
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAlgorithmError: "its algorithm is not that of its key",
}
"""What PyJWT finds wrong, in words that hold nothing of the token; all else is no token."""


class Issuer:
    """Who signs OpenID Connect tokens, to the letter of `iss`; verifies them.

    Source: OpenID Connect Core 1.0, section 3.1.3.7.
    """

    def __init__(self, name: str, keys: Keys) -> None:
        self._name = name
        self._keys = keys

    async def claims(self, token: str, audience: str) -> Mapping[str, Any]:  # Any: JSON values
        """What a good token for this audience says.

        Raises:
            TokenRefused, KeysUnavailable: it is not good, or that cannot be told.
        """
        head = head_of(token, ALGORITHMS)
        if head.key is None:
            raise TokenRefused("it names no key")
        key = await self._keys.get(head.key, head.algorithm)
        claims = decoded(token, key, leeway=LEEWAY, required=_REQUIRED)
        if claims["iss"] != self._name:
            raise TokenRefused(f"its issuer is {shortened(claims['iss'])}, not {self._name!r}")
        if claims["aud"] not in (audience, [audience]):  # one more could use it here in our caller's name
            raise TokenRefused(f"its audience is {shortened(claims['aud'])}, not {audience!r}")
        return claims


def account_of(claims: Mapping[str, Any]) -> str:  # Any: JSON values
    """The account that a token names: its verified email address.

    Raises:
        TokenRefused: it names none.
    """
    email = claims.get("email")
    if not isinstance(email, str) or not email:
        raise TokenRefused("it has no email")
    if claims.get("email_verified") is not True:
        raise TokenRefused("its email is not verified")
    return email


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a token says of its own signature; nobody has verified it yet."""

    algorithm: str
    key: str | None
    kind: str | None  # `typ`


def head_of(token: str, algorithms: Collection[str]) -> Head:
    """Of what nobody has verified yet; nothing is fetched for what can be no good token.

    Raises:
        TokenRefused: it is no token, or signed in another way.
    """
    if len(token) > LONGEST_TOKEN:
        raise TokenRefused("it is too long")
    try:
        header = jwt.get_unverified_header(token)
    except _GARBAGE:
        raise TokenRefused("it is no token") from None
    algorithm, key, kind = header.get("alg"), header.get("kid"), header.get("typ")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise TokenRefused(f"its algorithm is none of {', '.join(algorithms)}")
    if not isinstance(key, str | None) or not isinstance(kind, str | None):
        raise TokenRefused("it is no token")
    return Head(algorithm=algorithm, key=key, kind=kind)


def issuer_said(token: str) -> str | None:
    """Who a token says to be from, to know who can tell whether that is so; None: it says nothing that can be read."""
    if len(token) > LONGEST_TOKEN:
        return None
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except _GARBAGE:
        return None
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else None


def decoded(
    token: str, key: jwt.PyJWK, *, leeway: float, required: Sequence[str]
) -> Mapping[str, Any]:  # Any: JSON values
    """What it says, if its signature is right and it is neither too early nor too late for it.

    Raises:
        TokenRefused: it is not so, or one of the claims is missing. Issuer and audience are not looked at.
    """
    try:
        found: Mapping[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            leeway=leeway,
            options={"require": list(required), "verify_aud": False, "verify_iss": False},  # that we do, and say more
        )
    except jwt.MissingRequiredClaimError:
        raise TokenRefused(f"it must have {', '.join(required)}") from None
    except _GARBAGE as error:
        raise TokenRefused(_REASONS.get(type(error), "it is no token")) from None
    return found


def shortened(value: object) -> str:
    """A value that somebody else made up, for the log."""
    return repr(value)[:100]
