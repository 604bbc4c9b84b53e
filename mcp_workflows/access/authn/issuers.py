"""Signed tokens: their headers, claims and issuers, verified with PyJWT."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt

from mcp_workflows.access.authn.jwks import KeySet
from mcp_workflows.errors import TokenRefused

ALGORITHMS: Final = ("ES256", "RS256")  # of workflows that call us
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
"""The defects that PyJWT finds, in words that hold nothing of the token; with any other it is no token."""


class Issuer:
    """An issuer of OpenID Connect tokens, named exactly as in `iss`; verifies them.

    Source: OpenID Connect Core 1.0, section 3.1.3.7.
    """

    def __init__(self, name: str, keys: KeySet) -> None:
        self._name = name
        self._keys = keys

    async def claims(self, token: str, audience: str) -> Mapping[str, Any]:  # Any: JSON values
        """Return the claims of a good token for this audience.

        Raises:
            TokenRefused, KeysUnavailable: the token is not good, or the keys cannot be had.
        """
        head = read_header(token, ALGORITHMS)
        if head.key is None:
            raise TokenRefused("it names no key")
        key = await self._keys.get(head.key, head.algorithm)
        claims = decode_token(token, key, leeway=LEEWAY, required=_REQUIRED)
        if claims["iss"] != self._name:
            raise TokenRefused(f"its issuer is {shortened(claims['iss'])}, not {self._name!r}")
        if claims["aud"] not in (audience, [audience]):  # another audience could use it here in our caller's name
            raise TokenRefused(f"its audience is {shortened(claims['aud'])}, not {audience!r}")
        return claims


def account_of(claims: Mapping[str, Any]) -> str:  # Any: JSON values
    """Return the account that a token names: its verified email address.

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
class TokenHeader:
    """The header of a token, not verified yet."""

    algorithm: str
    key: str | None
    kind: str | None  # `typ`


def read_header(token: str, algorithms: Collection[str]) -> TokenHeader:
    """Read the header of a token that is not verified yet; nothing is fetched for one that cannot be good.

    Raises:
        TokenRefused: it is no token, or signed with another algorithm.
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
    return TokenHeader(algorithm=algorithm, key=key, kind=kind)


def read_issuer(token: str) -> str | None:
    """Return the issuer that a token claims, to find out which verifier to ask; None if it cannot be read."""
    if len(token) > LONGEST_TOKEN:
        return None
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except _GARBAGE:
        return None
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else None


def decode_token(
    token: str, key: jwt.PyJWK, *, leeway: float, required: Sequence[str]
) -> Mapping[str, Any]:  # Any: JSON values
    """Return the claims, if the signature is right and the token is valid now.

    Raises:
        TokenRefused: it is not so, or a required claim is missing. Issuer and audience are not checked here.
    """
    try:
        found: Mapping[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            leeway=leeway,
            options={"require": list(required), "verify_aud": False, "verify_iss": False},  # checked by us
        )
    except jwt.MissingRequiredClaimError:
        raise TokenRefused(f"it must have {', '.join(required)}") from None
    except _GARBAGE as error:
        raise TokenRefused(_REASONS.get(type(error), "it is no token")) from None
    return found


def shortened(value: object) -> str:
    """Return the beginning of a foreign value, for the log."""
    return repr(value)[:100]
