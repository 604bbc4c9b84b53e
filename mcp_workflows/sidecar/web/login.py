"""Logins with OpenID Connect, and the sessions that follow them.

The browser gets two opaque cookies. One binds a login to the browser that began it; the other identifies a session. The
store has a hash of the latter, and the encrypted principal. No token reaches the browser.

Sources: OpenID Connect Core 1.0, section 3.1; RFC 7636 (PKCE); RFC 9700 (OAuth security).
"""

from __future__ import annotations

import logging
import re
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, cast

import anyio
import httpx2
from anyio import to_thread
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.access import Principal
from mcp_workflows.access.authn.fetch import ANSWER_WITHIN, JsonFetcher, https_url
from mcp_workflows.access.authn.identity import Identity
from mcp_workflows.access.authn.settings import AuthSettings
from mcp_workflows.access.authn.verifier import JwtVerifier, issuer_metadata, sha256_of, verifier
from mcp_workflows.errors import IssuerUnavailable, TokenRefused
from mcp_workflows.sidecar.config.models import WebSettings
from mcp_workflows.store.encryption import seal, unseal
from mcp_workflows.store.protocol import Store
from mcp_workflows.units import utc_now

logger = logging.getLogger(__name__)

IDLE: Final = timedelta(minutes=30)  # a session without a request ends
LONGEST: Final = timedelta(hours=8)  # of a session
LOGIN_WITHIN: Final = timedelta(minutes=15)
NOTED_EVERY: Final = timedelta(minutes=1)  # requests of one session
ASKED_AT_ONCE: Final = 16  # concurrent exchanges of codes; others wait
METADATA_KEPT: Final = 3600.0  # seconds
PAUSE: Final = 5.0  # seconds between two attempts to fetch it, as anyone can begin a login
LONGEST_COOKIE: Final = 200  # characters
CALLBACK: Final = "/login/callback"
AFTER_LOGIN: Final = "/approvals"
_LONGEST_STATE: Final = 2000  # characters
_LONGEST_PATH: Final = 500  # characters of a page to return to
_PAGE: Final = re.compile(rf"{AFTER_LOGIN}/[A-Za-z0-9_-]+")  # the alphabet of `seal`: no dots, which lead elsewhere
KEY_NAME: Final = "web"  # in the store: the name of the key that encrypts logins and sessions
_SESSIONS: Final = "(sessions)"  # the space of notes
_SEEN: Final = "/seen"  # after the id of a session


class LoginFailed(Exception):  # noqa: N818  # an answer to a person
    """A failed login; the text is for the person, the reason for the audit log only."""

    def __init__(self, text: str, reason: str, to: str = AFTER_LOGIN) -> None:
        super().__init__(text)
        self.reason = reason
        self.to = to


class OtherBrowserError(Exception):
    """A login ended in another browser than it began in, such as one that an app opened."""

    def __init__(self, to: str) -> None:
        super().__init__("this login began in another browser")
        self.to = to


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """A login in progress; its encrypted form is the `state` parameter."""

    browser: str  # a hash of the cookie
    nonce: str
    code_verifier: str
    to: str  # the page to return to
    began: datetime
    again: bool  # begun again in the browser where the first login ended


_ATTEMPT: Final = TypeAdapter(_Attempt)
_GARBAGE: Final = (ValueError, TypeError, AttributeError, RecursionError)
"""Errors of Authlib about replies that are not JSON, or not an object."""


class OpenIdLogin:
    """Logs people in at one provider with the authorization code flow, PKCE, state and nonce."""

    def __init__(self, settings: WebSettings, auth: AuthSettings, web_url: str, secret: bytes) -> None:
        self._settings = settings
        self._auth = auth
        self._redirect = f"{web_url}{CALLBACK}"
        self._secret = secret
        self._fetcher = JsonFetcher()
        self._metadata: Mapping[str, Any] = {}  # Any: JSON values
        self._fetched = self._tried = float("-inf")
        self._fetching = anyio.Lock()
        self._asking = anyio.CapacityLimiter(ASKED_AT_ONCE)
        self._trusting: ssl.SSLContext | None = None  # cached, as loading the certificates is slow
        known = [each.issuer for each in auth.issuers].index(settings.issuer)  # validated in the configuration
        self._verifier: JwtVerifier = verifier(auth, "").signed[known]

    async def begin(self, to: str, browser: str, *, again: bool = False) -> str:
        """Return the provider's login URL for this browser, with a page of ours to return to.

        Raises:
            LoginFailed: the provider cannot be reached.
        """
        attempt = _Attempt(
            browser=sha256_of(browser),
            nonce=secrets.token_urlsafe(24),
            code_verifier=secrets.token_urlsafe(48),
            to=local_path(to),
            began=utc_now(),
            again=again,
        )
        endpoint = await self._endpoint("authorization_endpoint", attempt.to)
        async with await self._client() as client:
            url, _ = client.create_authorization_url(
                endpoint,
                state=seal(self._secret, _ATTEMPT.dump_json(attempt), "login"),
                nonce=attempt.nonce,
                code_verifier=attempt.code_verifier,
            )
        return str(url)

    async def finish(self, query: Mapping[str, str], browser: str | None) -> tuple[Principal, str]:
        """Return the principal who has logged in, and the page to return to.

        Raises:
            OtherBrowserError: this browser did not begin the login.
            LoginFailed: the login failed.
        """
        attempt = self._attempt(query.get("state", ""))
        if browser is None or not secrets.compare_digest(sha256_of(browser), attempt.browser):
            if attempt.again:
                text = "This browser does not keep our cookie. Allow cookies for this site, and log in again."
                raise LoginFailed(text, "the browser rejects cookies", attempt.to)
            raise OtherBrowserError(attempt.to)
        if error := query.get("error"):
            raise LoginFailed("Your identity provider did not log you in.", f"it said {error[:100]!r}", attempt.to)
        if query.get("iss", self._settings.issuer) != self._settings.issuer:  # RFC 9207
            raise LoginFailed("The login did not work. Log in again.", "another issuer answered", attempt.to)
        identity = await self._identity(query.get("code", ""), attempt)
        return identity.principal(self._auth.owner), attempt.to

    def _attempt(self, state: str) -> _Attempt:
        found = unseal(self._secret, state, "login") if len(state) <= _LONGEST_STATE else None
        try:
            attempt = None if found is None else _ATTEMPT.validate_json(found)
        except ValidationError:  # from another version
            attempt = None
        if attempt is None or not timedelta() <= utc_now() - attempt.began <= LOGIN_WITHIN:
            to = AFTER_LOGIN if attempt is None else attempt.to
            raise LoginFailed("This login took too long. Log in again.", "its state is unknown or too old", to)
        return attempt

    async def _identity(self, code: str, attempt: _Attempt) -> Identity:
        """Exchange the code for an ID token, and return the identity that it proves.

        Groups and other claims may exist only at the userinfo endpoint (OpenID Connect Core 1.0, section 5.4).
        """
        text = "The login did not work. Log in again, and tell your administrator if that does not help."
        try:
            async with self._asking, await self._client() as client:
                with anyio.fail_after(2 * ANSWER_WITHIN):
                    endpoint = await self._endpoint("token_endpoint", attempt.to)
                    token: Mapping[str, Any] = await client.fetch_token(
                        endpoint, code=code, code_verifier=attempt.code_verifier
                    )
                    identity = await self._verifier.verify_login(
                        str(token.get("id_token")), client=self._settings.client_id, nonce=attempt.nonce
                    )
                    if "userinfo_endpoint" not in self._metadata:
                        return identity
                    more = await client.get(await self._endpoint("userinfo_endpoint", attempt.to))
                    claims: object = more.raise_for_status().json()
        except (AuthlibBaseError, httpx2.HTTPError, IssuerUnavailable, TimeoutError, *_GARBAGE) as error:
            raise LoginFailed(text, f"the provider cannot be asked: {type(error).__name__}", attempt.to) from None
        except TokenRefused as error:
            raise LoginFailed(text, f"its ID token is refused: {error}", attempt.to) from None
        return with_userinfo(identity, claims)

    async def _client(self) -> Any:  # Any: Authlib has no types
        if self._trusting is None:
            self._trusting = await to_thread.run_sync(ssl.create_default_context)
        secret = self._settings.client_secret
        return AsyncOAuth2Client(
            client_id=self._settings.client_id,
            client_secret=None if secret is None else secret.get_secret_value(),
            token_endpoint_auth_method="none" if secret is None else self._settings.client_auth,
            scope=" ".join(dict.fromkeys(("openid", *self._settings.scopes))),
            redirect_uri=self._redirect,
            code_challenge_method="S256",
            timeout=ANSWER_WITHIN,
            follow_redirects=False,
            trust_env=False,
            verify=self._trusting,
        )

    async def _endpoint(self, name: str, to: str) -> str:
        """Return an endpoint of the provider from its metadata; use outdated metadata if it cannot be fetched."""
        try:
            if anyio.current_time() - self._fetched >= METADATA_KEPT:
                await self._fetch_metadata()
            return https_url(str(self._metadata.get(name)))
        except IssuerUnavailable as error:
            text = "Your identity provider cannot be reached. Try again in a minute."
            raise LoginFailed(text, f"its metadata cannot be fetched: {error}", to) from None
        except ValueError as error:
            raise LoginFailed("The login is not set up rightly.", f"{name} in its metadata {error}", to) from None

    async def _fetch_metadata(self) -> None:
        """Fetch the metadata once for all waiting logins; pause before the next attempt after a failure."""
        async with self._fetching:
            now = anyio.current_time()
            if now - self._fetched < METADATA_KEPT:
                return
            if now - self._tried >= PAUSE:
                self._tried = now
                try:
                    self._metadata, self._fetched = await issuer_metadata(self._settings.issuer, self._fetcher), now
                except IssuerUnavailable as error:
                    logger.warning("the metadata of %s cannot be fetched: %s", self._settings.issuer, error)
            if not self._metadata:
                raise IssuerUnavailable("no metadata; see the log")


def with_userinfo(identity: Identity, claims: object) -> Identity:
    """Return the identity with claims of the userinfo endpoint, if they are about the same subject."""
    found = cast("Mapping[str, Any]", claims if isinstance(claims, dict) else {})  # Any: JSON values
    if found.get("sub") != identity.claims.get("sub"):
        return identity
    return replace(identity, claims={**found, **identity.claims})


def local_path(to: str) -> str:
    """Return a page of ours to return to; any other value becomes the list of approvals."""
    return to if len(to) <= _LONGEST_PATH and _PAGE.fullmatch(to) else AFTER_LOGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    principal: Principal
    began: datetime


_SESSION: Final = TypeAdapter(_Session)


class WebSessions:
    """The sessions of all replicas, in the store.

    Each has two notes: the session itself, which is never written again after its end, and its last request.
    """

    def __init__(self, store: Store, secret: bytes) -> None:
        self._store = store
        self._secret = secret

    async def begin(self, principal: Principal) -> str:
        """Begin a session, and return its cookie."""
        cookie, now = secrets.token_urlsafe(32), utc_now()
        name = sha256_of(cookie)
        sealed = seal(self._secret, _SESSION.dump_json(_Session(principal=principal, began=now)), name)
        await self._store.put_note(_SESSIONS, name, sealed, until=now + LONGEST)
        await self._note_request(name, now)
        return cookie

    async def find(self, cookie: str | None) -> Principal | None:
        """Return the principal of a session; None if it does not exist or is over."""
        if not cookie or len(cookie) > LONGEST_COOKIE:
            return None
        name, now = sha256_of(cookie), utc_now()
        notes = await self._store.notes_under(_SESSIONS, name)
        note, seen = notes.get(name), notes.get(f"{name}{_SEEN}")
        found = unseal(self._secret, note, name) if isinstance(note, str) else None
        try:
            session = None if found is None else _SESSION.validate_json(found)
        except ValidationError:  # from another version
            return None
        if session is None or not isinstance(seen, str) or now - session.began >= LONGEST:
            return None
        idle = now - datetime.fromisoformat(seen)
        if idle >= IDLE:
            return None
        if idle >= NOTED_EVERY:
            await self._note_request(name, now)
        return session.principal

    async def end(self, cookie: str | None) -> None:
        """End a session."""
        if cookie and len(cookie) <= LONGEST_COOKIE:
            await self._store.put_note(_SESSIONS, sha256_of(cookie), None, until=utc_now())

    async def _note_request(self, name: str, now: datetime) -> None:
        await self._store.put_note(_SESSIONS, f"{name}{_SEEN}", now.isoformat(), until=now + IDLE, durable=False)
