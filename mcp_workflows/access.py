"""Who asks: the principal that owns a task, and the tokens by which callers prove who they are."""

from __future__ import annotations

import ipaddress
import logging
import math
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx2
import jwt
from anyio import to_thread

from mcp_workflows.errors import KeysUnavailable, TokenRefused

logger = logging.getLogger(__name__)

ALGORITHMS: Final = ("ES256", "RS256")  # with public keys only: nobody can sign who can verify
LEEWAY: Final = 30.0  # seconds that clocks may differ
LONGEST_TOKEN: Final = 8192  # characters
FRESH: Final = 300.0  # seconds until the keys are fetched again
KEPT: Final = 24 * 3600.0  # seconds for which known keys are good while they cannot be fetched
PAUSE: Final = 5.0  # seconds at least between two fetches, whoever asks for whatever key
FETCH_WITHIN: Final = 4.0  # seconds
MOST_KEYS: Final = 256 * 1024  # bytes of all keys of an issuer

_OK: Final = 200
_PLAIN: Final = {"accept": "application/json", "accept-encoding": "identity"}

_REQUIRED: Final = ("iss", "aud", "exp", "iat")
_GARBAGE: Final = (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError)  # PyJWT lets some through
_REASONS: Final[Mapping[type[Exception], str]] = {
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAlgorithmError: "its algorithm is not that of its key",
    jwt.MissingRequiredClaimError: f"it must have {', '.join(_REQUIRED)}",
}
"""What PyJWT finds wrong, in words that hold nothing of the token; all else is no token."""


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


class Keys:
    """The public keys of an issuer of tokens (a JWKS), as they were fetched last.

    Fetched once for all who wait. PyJWT's client is not used: it reads whatever comes, for as long as it comes, and
    once its memory is over, keys that are known are good no more while they cannot be fetched again.
    """

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Fetch nothing yet. `clock` counts seconds."""
        self._url = url
        self._clock = clock
        self._lock = anyio.Lock()
        self._known: Mapping[str, jwt.PyJWK] = {}
        self._tried = self._fetched = -math.inf  # when it was begun last, and when last with success

    async def get(self, name: str) -> jwt.PyJWK:
        """The key of this name (`kid`).

        Raises:
            TokenRefused: the issuer has no such key.
            KeysUnavailable: it cannot be told now.
        """
        begun = self._clock()
        good = self._known.get(name) if begun - self._fetched < KEPT else None
        if good is None or (begun - self._fetched >= FRESH and not self._lock.locked()):
            async with self._lock:
                if self._clock() - self._tried >= PAUSE:
                    await self._fetch()
            good = self._known.get(name) if begun - self._fetched < KEPT else None
        if good is not None:
            return good
        if self._fetched < self._tried:
            raise KeysUnavailable("the keys of its issuer cannot be fetched")
        if self._tried < begun:
            raise KeysUnavailable("its key is not known; the keys of its issuer were fetched a moment ago")
        raise TokenRefused("its issuer has no such key")

    async def _fetch(self) -> None:
        """Whoever asked may leave meanwhile: others wait for it too."""
        begun = self._tried = self._clock()
        with anyio.move_on_after(FETCH_WITHIN, shield=True) as scope:
            try:
                self._known = await _keys_at(self._url)
                self._fetched = begun
            except KeysUnavailable as error:
                logger.warning("the keys at %s cannot be fetched: %s", self._url, error)
        if scope.cancelled_caught:
            logger.warning("the keys at %s cannot be fetched: no answer within %g s", self._url, FETCH_WITHIN)


async def _keys_at(url: str) -> Mapping[str, jwt.PyJWK]:
    trusting: Any = await to_thread.run_sync(ssl.create_default_context)  # reads files
    try:
        async with (
            httpx2.AsyncClient(verify=trusting, timeout=FETCH_WITHIN, headers=_PLAIN) as client,
            client.stream("GET", url, follow_redirects=False) as response,
        ):
            body = await _bounded(response)
        return await to_thread.run_sync(_read_keys, body)
    except (*_GARBAGE, AttributeError, OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise KeysUnavailable(str(error) or type(error).__name__) from None


async def _bounded(response: httpx2.Response) -> bytes:
    """Its body, as far as anybody's keys may go: more is sent by somebody else, or to fill our memory."""
    if response.status_code != _OK:
        raise KeysUnavailable(f"it answers {response.status_code}")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MOST_KEYS:
            raise KeysUnavailable(f"it answers more than {MOST_KEYS} bytes")
    return bytes(body)


def _read_keys(body: bytes) -> Mapping[str, jwt.PyJWK]:
    found = jwt.PyJWKSet.from_json(body.decode()).keys
    signing = [key for key in found if key.key_id and key.public_key_use in {"sig", None}]
    if not signing:
        raise ValueError("it has no keys for signatures")
    return {str(key.key_id): key for key in signing if key.algorithm_name in ALGORITHMS}


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
        key = await self._keys.get(_key_name(token))
        claims = _decoded(token, key)
        if claims["iss"] != self._name:
            raise TokenRefused(f"its issuer is {_short(claims['iss'])}, not {self._name!r}")
        if claims["aud"] not in (audience, [audience]):  # one more could use it here in our caller's name
            raise TokenRefused(f"its audience is {_short(claims['aud'])}, not {audience!r}")
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


def _key_name(token: str) -> str:
    """Of what nobody has verified yet; nothing is fetched for what can be no good token."""
    if len(token) > LONGEST_TOKEN:
        raise TokenRefused("it is too long")
    try:
        header = jwt.get_unverified_header(token)
    except _GARBAGE:
        raise TokenRefused("it is no token") from None
    if header.get("alg") not in ALGORITHMS:
        raise TokenRefused(f"its algorithm is none of {', '.join(ALGORITHMS)}")
    name = header.get("kid")
    if not isinstance(name, str):
        raise TokenRefused("it names no key")
    return name


def _decoded(token: str, key: jwt.PyJWK) -> Mapping[str, Any]:  # Any: JSON values
    try:
        found: Mapping[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            leeway=LEEWAY,
            options={"require": list(_REQUIRED), "verify_aud": False, "verify_iss": False},  # that we do, and say more
        )
    except _GARBAGE as error:
        raise TokenRefused(_REASONS.get(type(error), "it is no token")) from None
    return found


def _short(value: object) -> str:
    return repr(value)[:100]
