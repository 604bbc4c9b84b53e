"""Signed tokens: their headers, claims and issuers, verified with PyJWT."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import anyio
import jwt
from anyio import to_thread

from mcp_workflows.access.authn.fetch import ANSWER_WITHIN, JsonFetcher
from mcp_workflows.errors import IssuerUnavailable, KeysUnavailable, TokenRefused

logger = logging.getLogger(__name__)

FRESH: Final = 300.0  # seconds before the keys are fetched again
KEPT: Final = 24 * 3600.0  # seconds for which known keys stay valid while a fetch fails
PAUSE: Final = 5.0  # minimum seconds between two fetches, for any key
FETCH_WITHIN: Final = ANSWER_WITHIN  # seconds for the whole fetch

ASYMMETRIC: Final[Mapping[tuple[str, str | None], Sequence[str]]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""The algorithms of each kind of key. All are asymmetric, so that a verifier cannot sign."""

_GARBAGE: Final = (jwt.PyJWTError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""The errors that PyJWT raises for malformed keys and tokens, including foreign ones that it does not wrap."""

Locate: TypeAlias = Callable[[JsonFetcher], Awaitable[str]]
"""Finds the URL of the keys; raises IssuerUnavailable."""
Known: TypeAlias = Mapping[str | None, Mapping[str, jwt.PyJWK]]
"""Keys by name (`kid`; None: a key without a name) and algorithm."""


class KeySet:
    """The public keys of a token issuer (a JWKS), as last fetched.

    All waiting requests share one fetch. PyJWT's own client is not used: it reads without limits, and after its cache
    expires, a failed fetch makes known keys unusable.
    """

    def __init__(
        self, at: str | Locate, algorithms: Sequence[str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Fetch nothing yet. `at` is the URL or a function that finds it. `clock` counts seconds."""
        self._at = at
        self._algorithms = algorithms
        self._clock = clock
        self._fetching = JsonFetcher()
        self._lock = anyio.Lock()
        self._known: Known = {}
        self._tried = self._fetched = -math.inf  # start times of the last fetch and of the last successful one

    async def get(self, name: str | None, algorithm: str) -> jwt.PyJWK:
        """Return the key with this name (`kid`) for this algorithm; without a name, the only key.

        Raises:
            TokenRefused: the issuer has no such key.
            KeysUnavailable: the keys cannot be fetched now.
        """
        begun = self._clock()
        good = self._find(name, begun)
        if good is None or (begun - self._fetched >= FRESH and not self._lock.locked()):
            async with self._lock:
                if self._clock() - self._tried >= PAUSE:
                    await self._fetch()
            good = self._find(name, begun)
        if good is not None:
            if algorithm not in good:
                raise TokenRefused("its algorithm is not that of its key")
            return good[algorithm]
        if self._fetched < self._tried:
            raise KeysUnavailable("the keys of its issuer cannot be fetched")
        if name is None:
            raise TokenRefused("it names no key, and its issuer does not have exactly one")
        if self._tried < begun:
            raise KeysUnavailable("its key is not known; the keys of its issuer were fetched a moment ago")
        raise TokenRefused("its issuer has no such key")

    async def probe(self) -> int:
        """Fetch the keys now and return their number, as a startup check.

        Raises:
            KeysUnavailable: the fetch failed, for the reason in the message.
        """
        try:
            with anyio.fail_after(FETCH_WITHIN):
                return len(await self._read())
        except TimeoutError:
            raise KeysUnavailable(f"no answer within {FETCH_WITHIN:g} s") from None
        except IssuerUnavailable as error:
            raise KeysUnavailable(str(error)) from None

    def _find(self, name: str | None, now: float) -> Mapping[str, jwt.PyJWK] | None:
        if now - self._fetched >= KEPT:
            return None
        if name is None:
            return next(iter(self._known.values())) if len(self._known) == 1 else None
        return self._known.get(name)

    async def _fetch(self) -> None:
        """Fetch the keys, even if the request that asked is cancelled: other requests wait for them."""
        begun = self._tried = self._clock()
        with anyio.move_on_after(FETCH_WITHIN, shield=True) as scope:
            try:
                self._known = await self._read()
                self._fetched = begun
            except IssuerUnavailable as error:
                logger.warning("%s cannot be fetched: %s", self, error)
        if scope.cancelled_caught:
            logger.warning("%s cannot be fetched: no answer within %g s", self, FETCH_WITHIN)

    async def _read(self) -> Known:
        url = self._at if isinstance(self._at, str) else await self._at(self._fetching)
        found = await self._fetching.get(url)
        return await to_thread.run_sync(_read_keys, found, self._algorithms)

    def __str__(self) -> str:
        return f"the keys at {self._at}" if isinstance(self._at, str) else f"the keys of {self._at!r}"


def _read_keys(found: Any, algorithms: Sequence[str]) -> Known:  # Any: a JSON value
    """Return the keys that can verify signatures; skip unusable ones."""
    written: object = cast("Mapping[str, object]", found).get("keys") if isinstance(found, dict) else None
    if not isinstance(written, list):
        raise IssuerUnavailable("it is not a list of keys")
    known: dict[str | None, dict[str, jwt.PyJWK]] = {}
    for one in cast("list[object]", written):
        if isinstance(one, dict):
            jwk = cast("dict[str, Any]", one)
            name = jwk.get("kid")
            usable = dict(_usable(jwk, algorithms))
            if usable and (name is None or isinstance(name, str)):
                known.setdefault(name, {}).update(usable)
    if not known:
        raise IssuerUnavailable("it has no keys for signatures")
    return known


def _usable(jwk: dict[str, Any], algorithms: Sequence[str]) -> Iterable[tuple[str, jwt.PyJWK]]:
    """Yield a key with each of its algorithms: the one that it names, or all of its kind."""
    if (jwk.get("use") or "sig") != "sig" or "verify" not in (jwk.get("key_ops") or ["verify"]):
        return
    kind = (str(jwk.get("kty")), None if jwk.get("kty") == "RSA" else str(jwk.get("crv")))
    for algorithm in ASYMMETRIC.get(kind, ()):
        if algorithm in algorithms and (jwk.get("alg") or algorithm) == algorithm:
            try:
                key = jwt.PyJWK(jwk, algorithm)
                if not key.Algorithm.check_key_length(key.key):  # returns the problem with the key
                    yield algorithm, key
            except _GARBAGE:
                return


ALGORITHMS: Final = ("ES256", "RS256")  # of workflows that call us
LEEWAY: Final = 30.0  # seconds that clocks may differ
LONGEST_TOKEN: Final = 8192  # characters

_REQUIRED: Final = ("iss", "aud", "exp", "iat")
_REASONS: Final[Mapping[type[Exception], str]] = {
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAlgorithmError: "its algorithm is not that of its key",
}
"""The defects that PyJWT reports, in texts without any part of the token. Any other defect means: not a token."""


class Issuer:
    """Verifies the OpenID Connect tokens of one issuer, which is named exactly as in `iss`.

    Source: OpenID Connect Core 1.0, section 3.1.3.7.
    """

    def __init__(self, name: str, keys: KeySet) -> None:
        self._name = name
        self._keys = keys

    async def claims(self, token: str, audience: str) -> Mapping[str, Any]:  # Any: JSON values
        """Return the claims of a valid token for this audience.

        Raises:
            TokenRefused, KeysUnavailable: the token is not valid, or the keys cannot be fetched.
        """
        head = read_header(token, ALGORITHMS)
        if head.key is None:
            raise TokenRefused("it names no key")
        key = await self._keys.get(head.key, head.algorithm)
        claims = decode_token(token, key, leeway=LEEWAY, required=_REQUIRED)
        if claims["iss"] != self._name:
            raise TokenRefused(f"its issuer is {shortened(claims['iss'])}, not {self._name!r}")
        if claims["aud"] not in (audience, [audience]):  # else another audience could use it as our caller
            raise TokenRefused(f"its audience is {shortened(claims['aud'])}, not {audience!r}")
        return claims


def account_of(claims: Mapping[str, Any]) -> str:  # Any: JSON values
    """Return the account that a token names: its verified email address.

    Raises:
        TokenRefused: the token has none.
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
    """Read the header of an unverified token, so that no keys are fetched for a token that cannot be valid.

    Raises:
        TokenRefused: it is not a token, or is signed with another algorithm.
    """
    if len(token) > LONGEST_TOKEN:
        raise TokenRefused("it is too long")
    try:
        header = jwt.get_unverified_header(token)
    except _GARBAGE:
        raise TokenRefused("it is not a token") from None
    algorithm, key, kind = header.get("alg"), header.get("kid"), header.get("typ")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise TokenRefused(f"its algorithm is not one of {', '.join(algorithms)}")
    if not isinstance(key, str | None) or not isinstance(kind, str | None):
        raise TokenRefused("it is not a token")
    return TokenHeader(algorithm=algorithm, key=key, kind=kind)


def read_issuer(token: str) -> str | None:
    """Return the issuer that a token claims, to select its verifier; None if it cannot be read."""
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
    """Return the claims if the signature is correct and the token is valid now. Issuer and audience are not checked.

    Raises:
        TokenRefused: the token is not valid, or lacks a required claim.
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
        raise TokenRefused(_REASONS.get(type(error), "it is not a token")) from None
    return found


def shortened(value: object) -> str:
    """Return the beginning of a foreign value, for the log."""
    return repr(value)[:100]
