"""HTTP calls to the API: bounded in time and size, and only to the origin of `url`.

Redirects are not followed, and a request that may have changed something is not repeated.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final
from urllib.parse import urlencode, urljoin, urlsplit

import anyio
import anyio.to_thread
import httpx2

from mcp_workflows.adapter import JSON
from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.errors import EngineRefused, EngineUnavailable, MappingError
from mcp_workflows.kit.expressions import Scope, as_list, as_object, lenient
from mcp_workflows.kit.token_bucket import BUCKETS, UNLIMITED, BucketLimits, QuotaKey
from mcp_workflows_http.auth import Credentials
from mcp_workflows_http.connection_errors import cause_of
from mcp_workflows_http.definition import Method, Request
from mcp_workflows_http.settings import HttpSettings, Tls

logger = logging.getLogger(__name__)

AGENT: Final = "mcp-workflows"
_AT_ONCE: Final = 1 / 6  # of the calls of a rate limit; the rest comes in evenly
_PATIENCE: Final = 2.0  # seconds that a call waits for its turn
_LONGEST_PAUSE: Final = 3600.0  # seconds, whatever the API says
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_URLS: Final = frozenset({"location", "content-location", "operation-location", "azure-asyncoperation"})
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_END: Final = 65_536  # bytes at the end of a log


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply of the API; `body` is None if it is no JSON."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    content: bytes
    is_throttled: bool = False  # as the definition says

    @property
    def ok(self) -> bool:
        """True if the API says that all is well."""
        return 200 <= self.status < 300  # the class of HTTP status

    @property
    def is_unauthorized(self) -> bool:
        """True if our credentials are not accepted."""
        return self.status == 401  # RFC 9110, section 15.5.2

    @property
    def is_client_error(self) -> bool:
        """True if the API, or something before it, does not do what it was asked."""
        return 400 <= self.status < 500

    @property
    def is_server_error(self) -> bool:
        """True if the API failed."""
        return self.status >= 500  # and the codes beyond 599 that some gateways make up

    @property
    def text(self) -> str:
        """The body as a text."""
        return self.content.decode("utf-8", "replace")

    @property
    def body(self) -> JSON:
        """The body as JSON; None if it is none."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            return None

    @property
    def is_json(self) -> bool:
        """True if the body is JSON, or empty: an API wrote it, and no proxy on the way."""
        return not self.content or self.body is not None or self.content.strip() == b"null"

    @property
    def date(self) -> float | None:
        """The time by the API's clock, in seconds since 1970, if it tells."""
        return _moment(self.headers.get("date"))

    def as_json(self) -> Mapping[str, JSON]:
        """Return it for expressions."""
        body = self.body
        return {
            "status": self.status,
            "headers": dict(self.headers),
            "body": body,
            "text": self.text if body is None else None,
        }


class Pace:
    """The rate at which the API may be called: its limit, and the time until which it throttles us."""

    def __init__(self, settings: HttpSettings) -> None:
        rate, self._throttled = settings.rate, settings.throttled
        limits = UNLIMITED
        if rate is not None:
            calls = rate.calls * rate.share / rate.replicas
            burst = max(1.0, calls * _AT_ONCE)
            limits = BucketLimits(bucket=burst, refill=calls * (1 - _AT_ONCE) / rate.per.total_seconds())
        key = QuotaKey(endpoint=settings.url, owner=None, place="", operation="call")
        self._bucket = BUCKETS.bucket(key, limits)
        self._until = 0.0  # of the wall clock

    @property
    def refill(self) -> float:
        """Calls per second now."""
        return self._bucket.refill

    @property
    def spare(self) -> float:
        """Calls that may be made at once."""
        return self._bucket.spare

    async def turn(self) -> None:
        """Wait until a call may be made.

        Raises:
            EngineUnavailable: that would take too long; nothing was sent.
        """
        left = self._until - time.time()
        if left > 0:
            raise EngineUnavailable(f"held back: it throttles us for {left:.0f} s more", sent=False, throttled=True)
        if not await self._bucket.turn(_PATIENCE):
            raise EngineUnavailable("held back: its rate limit is used up for now", sent=False, throttled=True)

    def is_throttled(self, reply: Reply) -> bool:
        """Return True if the reply says that we call too often, and heed it."""
        how = self._throttled
        if reply.status not in how.status:
            return False
        if how.when is not None and not lenient(partial(Scope(names={"reply": reply.as_json()}).is_true, how.when)):
            return False
        if self._bucket.throttled():
            logger.warning("the API throttles us%s", self._bucket.slowed)
        now = time.time()
        ahead = (reply.date or now) - now  # of the API's clock
        until = max(now + (retry_after(reply, now) or 0.0), _number(reply.headers.get(how.until or "")) - ahead)
        self._until = max(self._until, min(until, now + _LONGEST_PAUSE))
        return True


def retry_after(reply: Reply, now: float) -> float | None:
    """Return the seconds that the header Retry-After tells, as a number or a date by the API's clock."""
    written = reply.headers.get("retry-after")
    if written is None:
        return None
    if written.strip().isdecimal():
        return float(written)
    until = _moment(written)
    return None if until is None else max(0.0, until - (reply.date or now))


def _moment(written: str | None) -> float | None:
    """Return a date of HTTP in seconds since 1970; None if it is none."""
    try:
        return None if written is None else parsedate_to_datetime(written).timestamp()
    except (ValueError, OverflowError):
        return None


def _number(written: str | None) -> float:
    try:
        return float(written or 0)
    except ValueError:
        return 0.0


class _ReplyUndecodable(EngineUnavailable):
    """A reply came whose content coding is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that is ready to be sent, without credentials."""

    method: str
    url: str  # with its query
    headers: Mapping[str, str]
    body: JSON = None
    form: Mapping[str, Any] | None = None
    multipart: Mapping[str, str] | None = None


class ApiClient:
    """One API: its address, credentials and connections, opened at the first call."""

    def __init__(self, settings: HttpSettings) -> None:
        KNOWN.add_all(settings)
        self._settings = settings
        self._opening = anyio.Lock()
        self._opened: httpx2.AsyncClient | None = None
        self._pace = Pace(settings)

    @property
    def refill(self) -> float:
        """Calls per second that the rate limit allows now."""
        return self._pace.refill

    @property
    def spare(self) -> float:
        """Calls that may be made at once."""
        return self._pace.spare

    @property
    def shown_credentials(self) -> Mapping[str, str]:
        """The headers that say who we are, masked."""
        return self._credentials.shown

    async def close(self) -> None:
        """Close all connections."""
        if self._opened is not None:
            await self._opened.aclose()
        self._opened = None

    @cached_property
    def _credentials(self) -> Credentials:
        return Credentials(self._settings.auth, self._settings.url)

    def prepare(self, request: Request, scope: Scope) -> Prepared:
        """Fill in a request.

        Raises:
            EngineRefused: a value is missing, or an expression does not work.
        """
        try:
            return Prepared(
                method=request.method.value,
                url=self._url(request, scope),
                headers={**self._settings.headers, **_headers(request, scope)},
                body=None if request.body is None else scope.value(request.body),
                form=None if request.form is None else _fields("form", scope.value(request.form)),
                multipart=None if request.multipart is None else _fields("multipart", scope.value(request.multipart)),
            )
        except (MappingError, ValueError) as error:
            raise EngineRefused(f"its request cannot be made: {error}", final=True) from None

    def _url(self, request: Request, scope: Scope) -> str:
        query = urlencode(_query({name: scope.value(value) for name, value in request.query.items()}))
        if request.path is not None:
            url = self._settings.url + scope.path(request.path)
        else:
            url = urljoin(f"{self._settings.url}/", scope.text(request.url or ""))
            if _origin(url) != _origin(self._settings.url):
                raise ValueError(f"the API named a URL of another origin, {_origin(url)}, where nothing is sent")
            if "@" in urlsplit(url).netloc:
                raise ValueError("the API named a URL with credentials, where nothing is sent")
        return f"{url}{'&' if '?' in url else '?'}{query}" if query else url

    async def log(self, request: Request, scope: Scope, follow: Sequence[str]) -> Reply:
        """Return the end of a log; one redirect is followed to these hosts, without credentials.

        Raises:
            EngineRefused: the redirect leads elsewhere.
            EngineUnavailable: no reply.
        """
        reply = await self.send(request, scope, end_only=True)
        if not follow or reply.status not in _REDIRECTS:
            return reply
        client, url = await self._client(), reply.headers.get("location", "")  # an absolute one by now
        try:
            built, there, follows = client.build_request("GET", url), _origin(url), await may_follow(url, follow)
        except (httpx2.InvalidURL, ValueError):
            raise EngineRefused("it redirects to something that is no URL") from None
        if not follows:
            raise EngineRefused(f"it redirects to {there}, which look.log.follow does not name")
        return await self._replied(client, built, end_only=True, is_theirs=False)

    async def send(self, request: Request, scope: Scope, *, end_only: bool = False, changes: bool = False) -> Reply:
        """Send a request. `end_only`: the end of a long reply is enough.

        A GET whose reply cannot be decoded is sent once more, unless it `changes` something. Buildbot 4.3 writes
        replies in a thread, which Twisted does not allow: on a busy machine it loses the first bytes of some.

        Raises:
            EngineRefused: it cannot be made of these values.
            EngineUnavailable: no reply; `sent=False` if it certainly never left.
        """
        prepared = self.prepare(request, scope)
        client = await self._client()
        await self._pace.turn()
        try:
            reply = await self._sent(client, prepared, renewed=False, end_only=end_only)
        except _ReplyUndecodable:
            if changes or request.method is not Method.GET:
                raise
            reply = await self._sent(client, prepared, renewed=False, end_only=end_only)
        if reply.is_unauthorized and self._credentials.renewable:  # a definite no: it may be sent again
            reply = await self._sent(client, prepared, renewed=True, end_only=end_only)
        return reply

    async def _sent(self, client: httpx2.AsyncClient, prepared: Prepared, *, renewed: bool, end_only: bool) -> Reply:
        headers = {**prepared.headers, **await self._credentials.headers(client, renewed=renewed)}
        parts = prepared.multipart
        try:
            built = client.build_request(
                prepared.method,
                prepared.url,
                headers=headers,
                json=prepared.body,
                data=prepared.form,
                files=None if parts is None else {name: (None, text) for name, text in parts.items()},
            )
        except (httpx2.InvalidURL, ValueError) as error:  # too long, no Unicode, no JSON
            raise EngineRefused(f"its request cannot be made ({type(error).__name__})", final=True) from None
        return await self._replied(client, built, end_only=end_only)

    async def _replied(
        self, client: httpx2.AsyncClient, request: httpx2.Request, *, end_only: bool, is_theirs: bool = True
    ) -> Reply:
        """Send it; `is_theirs`: to the API, and to no other host."""
        if end_only:
            request.headers["accept-encoding"] = "identity"  # a log that still grows may be cut in mid-stream
        try:
            response = await client.send(request, stream=True)
            try:
                content = await (_end(response) if end_only else self._bounded(response))
            finally:
                await response.aclose()
        except httpx2.RequestError as error:
            raise _lost(error) from None
        headers = {name.lower(): KNOWN.mask(value) for name, value in response.headers.items()}
        for name in headers.keys() & _URLS:  # relative to the request: RFC 9110, section 10.2.2
            with suppress(ValueError):  # it is no URL
                headers[name] = urljoin(str(request.url), headers[name])
        content = KNOWN.mask(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        reply = Reply(status=response.status_code, headers=headers, content=content)
        return replace(reply, is_throttled=is_theirs and self._pace.is_throttled(reply))

    async def _bounded(self, response: httpx2.Response) -> bytes:
        content = bytearray()
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > self._settings.max_reply:
                raise EngineUnavailable(
                    f"it answered {response.status_code} with more than {self._settings.max_reply} bytes (max_reply)",
                    silent=False,
                )
        return bytes(content)

    async def _client(self) -> httpx2.AsyncClient:
        if self._opened is not None:
            return self._opened
        async with self._opening:
            if self._opened is None:
                verify = await anyio.to_thread.run_sync(_tls, self._settings.tls)  # reads files
                proxy = self._settings.proxy
                try:
                    self._opened = httpx2.AsyncClient(
                        verify=verify,
                        proxy=None if proxy is None else proxy.get_secret_value(),
                        follow_redirects=False,
                        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none: tasks are no session
                        timeout=self._settings.timeout.total_seconds(),
                        headers={"user-agent": AGENT, "accept": "application/json"},
                    )
                except ValueError:
                    raise EngineUnavailable("HTTPS_PROXY or HTTP_PROXY is no URL of a proxy", sent=False) from None
            return self._opened


async def _end(response: httpx2.Response) -> bytes:
    """Return the last bytes of a body, of whatever length: the time-out of the look bounds it."""
    content, is_cut = bytearray(), False
    async for chunk in response.aiter_bytes():
        content += chunk
        is_cut = is_cut or len(content) > _END
        del content[:-_END]
    return bytes(content.partition(b"\n")[2] if is_cut else content)  # half a secret could not be masked


async def may_follow(url: str, hosts: Sequence[str]) -> bool:
    """Return True if a redirect may be followed there; a name behind an asterisk may not have a private address."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme in {"http", "https"} and (host in hosts or parts.netloc in hosts):
        return True
    if parts.scheme != "https" or not any(each.startswith("*.") and host.endswith(each[1:]) for each in hosts):
        return False
    try:
        found = await anyio.getaddrinfo(host, parts.port or 443)
    except OSError:
        return False
    return all(ipaddress.ip_address(address[0].partition("%")[0]).is_global for *_, address in found)


def _tls(tls: Tls) -> ssl.SSLContext:
    """Return what we trust, and the certificate that we show.

    Raises:
        EngineUnavailable: a file cannot be used.
    """
    what, wrong = "tls.ca_file", "it is no PEM file of certificates"
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.client_cert is not None:
            what, wrong = "tls.client_cert and tls.client_key", "no PEM files, no pair, or the key has a password"
            context.load_cert_chain(tls.client_cert, tls.client_key, password=str)  # none; OpenSSL would ask for one
    except OSError as error:
        reason = wrong if isinstance(error, ssl.SSLError) else error.strerror
        raise EngineUnavailable(f"{what} cannot be used: {reason}", sent=False) from None
    return context


def _origin(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    return f"{parts.scheme}://{parts.hostname}:{port}"


def _query(values: Mapping[str, JSON]) -> tuple[tuple[str, str], ...]:
    """Return the parameters; a list is one several times, and what has no value is left out."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        found = as_list(value)
        pairs += [(name, _as_text(each)) for each in ([value] if found is None else found) if each is not None]
    return tuple(pairs)


def _headers(request: Request, scope: Scope) -> Mapping[str, str]:
    found = {name: scope.text(text) for name, text in request.headers.items()}
    for name, text in found.items():
        if not text.isprintable() or not text.isascii():
            raise ValueError(f"the header {name} would not be one line of ASCII")
    return {name: text for name, text in found.items() if text}


def _fields(what: str, values: JSON) -> Mapping[str, str]:
    found = as_object(values)
    if found is None:
        raise ValueError(f"{what} is no object here")
    return {name: _as_text(value) for name, value in found.items() if value is not None}


def _as_text(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _lost(error: httpx2.RequestError) -> EngineUnavailable:
    if isinstance(error, _NOT_SENT):
        return EngineUnavailable(f"it cannot be connected to{cause_of(error)}", sent=False)
    if isinstance(error, httpx2.DecodingError):
        return _ReplyUndecodable("its reply cannot be decoded")
    late = isinstance(error, httpx2.TimeoutException)
    return EngineUnavailable("no answer in time" if late else f"the connection was lost ({type(error).__name__})")
