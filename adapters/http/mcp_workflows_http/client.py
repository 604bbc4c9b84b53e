"""HTTP calls to the API, limited in time and size, and only to the origin of `url`.

Redirects are not followed, and a request that may change something is not repeated.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import ssl
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final
from urllib.parse import urlencode, urljoin, urlsplit

import anyio
import anyio.to_thread
import httpx2

from mcp_workflows.adapter import JSON
from mcp_workflows.adapter.capabilities import replica_count
from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, MappingError
from mcp_workflows.kit.expressions import Scope, as_list, as_object, lenient
from mcp_workflows.kit.token_bucket import BUCKETS, UNLIMITED, Bucket, BucketLimits, QuotaKey
from mcp_workflows_http.auth import Credentials
from mcp_workflows_http.definition import Method, Pages, Request
from mcp_workflows_http.errors import ReplyUndecodable, connection_error, describe_error
from mcp_workflows_http.reply import Reply, retry_after
from mcp_workflows_http.settings import HttpSettings, Tls

logger = logging.getLogger(__name__)

AGENT: Final = "mcp-workflows"
_AT_ONCE: Final = 1 / 6  # share of a rate limit that may be used in a burst; the rest refills evenly
_LONGEST_WAIT: Final = 2.0  # seconds that a call waits for its turn
_LONGEST_PAUSE: Final = 3600.0  # seconds; limits what the API demands
_URLS: Final = frozenset({"location", "content-location", "operation-location", "azure-asyncoperation"})
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NEXT: Final = re.compile(r'\s*<([^<>]*)>(?=.*;\s*rel="?next"?)', re.IGNORECASE)
_END: Final = 65_536  # bytes of the end of a log


class RateLimit:
    """The rate at which the API may be called, and the end of a pause that it demands."""

    def __init__(self, settings: HttpSettings) -> None:
        self._rate, self._throttled = settings.rate, settings.throttled
        self._key = QuotaKey(endpoint=settings.url, owner=None, place="", operation="call")
        self._until = 0.0  # wall clock

    @property
    def _bucket(self) -> Bucket:
        limits, rate = UNLIMITED, self._rate
        if rate is not None:
            calls = rate.calls * rate.share / replica_count(rate.replicas)
            burst = max(1.0, calls * _AT_ONCE)
            limits = BucketLimits(bucket=burst, refill=calls * (1 - _AT_ONCE) / rate.per.total_seconds())
        return BUCKETS.bucket(self._key, limits)

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
            EngineUnavailable: the wait is too long; nothing was sent.
        """
        left = self._until - time.time()
        if left > 0:
            raise EngineUnavailable(f"held back: it throttles us for {left:.0f} s more", sent=False, throttled=True)
        if not await self._bucket.turn(_LONGEST_WAIT):
            raise EngineUnavailable("held back: its rate limit is used up for now", sent=False, throttled=True)

    def is_throttled(self, reply: Reply) -> bool:
        """Return True if the reply says that we call too often, and pause as it demands."""
        how = self._throttled
        if reply.status not in how.status:
            return False
        if how.when is not None and not lenient(partial(Scope(names={"reply": reply.as_json()}).is_true, how.when)):
            return False
        if self._bucket.throttled():
            logger.warning("the API throttles us%s", self._bucket.slowed)
        now = time.time()
        ahead = (reply.date or now) - now  # the API's clock relative to ours
        until = max(now + (retry_after(reply, now) or 0.0), _number(reply.headers.get(how.until or "")) - ahead)
        self._until = max(self._until, min(until, now + _LONGEST_PAUSE))
        return True


def _number(written: str | None) -> float:
    try:
        return float(written or 0)
    except ValueError:
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that is ready to be sent, without credentials."""

    method: str
    url: str  # including its query
    headers: Mapping[str, str]
    body: JSON = None
    form: Mapping[str, Any] | None = None
    multipart: Mapping[str, str] | None = None


class ApiClient:
    """One API: its address, credentials and connections, which the first call opens."""

    def __init__(self, settings: HttpSettings) -> None:
        KNOWN.add_all(settings)
        self._settings = settings
        self._opening = anyio.Lock()
        self._opened: httpx2.AsyncClient | None = None
        self._rate_limit = RateLimit(settings)

    @property
    def refill(self) -> float:
        """Calls per second that the rate limit allows now."""
        return self._rate_limit.refill

    @property
    def spare(self) -> float:
        """Calls that may be made at once."""
        return self._rate_limit.spare

    @property
    def shown_credentials(self) -> Mapping[str, str]:
        """The headers with our credentials, masked."""
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
        """Fill in the expressions of a request.

        Raises:
            EngineRefused: a value is missing, or an expression fails.
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
        """Return the end of a log; one redirect to a host in `follow` is followed, without credentials.

        Raises:
            EngineRefused: the redirect leads to another host.
            EngineUnavailable: no reply.
        """
        reply = await self.send(request, scope, end_only=True)
        if not follow or reply.status not in _REDIRECTS:
            return reply
        client, url = await self._client(), reply.headers.get("location", "")  # absolute by now
        try:
            built, there, follows = client.build_request("GET", url), _origin(url), await may_follow(url, follow)
        except (httpx2.InvalidURL, ValueError):
            raise EngineRefused("it redirects to something that is not a URL") from None
        if not follows:
            raise EngineRefused(f"it redirects to {there}, which describe.log.follow does not name")
        return await self._replied(client, built, end_only=True, is_theirs=False)

    async def send(self, request: Request, scope: Scope, *, end_only: bool = False, changes: bool = False) -> Reply:
        """Send a request. `end_only`: read only the end of a long reply.

        A GET whose reply cannot be decoded is sent once more, unless it `changes` something. Buildbot 4.3 writes
        replies in a thread, which Twisted does not allow, and on a busy machine loses the first bytes of some.

        Raises:
            EngineRefused: these values make no valid request.
            EngineUnavailable: no reply; `sent=False` if the request certainly was not sent.
        """
        prepared = self.prepare(request, scope)
        client = await self._client()
        await self._rate_limit.turn()
        try:
            reply = await self._sent(client, prepared, renewed=False, end_only=end_only)
        except ReplyUndecodable:
            if changes or request.method is not Method.GET:
                raise
            reply = await self._sent(client, prepared, renewed=False, end_only=end_only)
        if reply.is_unauthorized and self._credentials.renewable:  # definitely not accepted, so it may be sent again
            reply = await self._sent(client, prepared, renewed=True, end_only=end_only)
        return reply

    async def items(self, how: Pages, scope: Scope) -> AsyncGenerator[JSON]:
        """Yield the items of all pages; see `pages`."""
        async for page in self.pages(how, scope):
            for item in page:
                yield item

    async def pages(self, how: Pages, scope: Scope) -> AsyncGenerator[Sequence[JSON]]:
        """Yield the items of each page; each page takes one call.

        Raises:
            EngineUnavailable: the reply has no list, or the list exceeds the maximum number of pages.
        """
        request = how.request
        for _ in range(how.pages):
            reply = await self.read(request, scope)
            if not reply.ok:
                raise describe_error(reply)
            page = scope | {"reply": reply.as_json()}
            found = as_list(lenient(partial(page.value, how.each)))
            if found is None:
                raise EngineUnavailable(f"it answered {reply.status} without a list at {how.each}", silent=False)
            yield found
            following = _following(how, reply, page) if found else None
            if following is None:
                return
            request = following
        raise EngineUnavailable(f"its list has more than {how.pages} pages, which are not read (pages)", silent=False)

    async def read(self, request: Request, scope: Scope) -> Reply:
        """Send a request that changes nothing; without a reply, the result is unknown.

        Raises:
            EngineUnavailable: no reply, or these values make no valid request.
        """
        try:
            return await self.send(request, scope)
        except EngineUnavailable:
            raise
        except EngineError as error:
            raise EngineUnavailable(str(error), silent=False) from None

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
        except (httpx2.InvalidURL, ValueError) as error:  # too long, or not Unicode or JSON
            raise EngineRefused(f"its request cannot be made ({type(error).__name__})", final=True) from None
        return await self._replied(client, built, end_only=end_only)

    async def _replied(
        self, client: httpx2.AsyncClient, request: httpx2.Request, *, end_only: bool, is_theirs: bool = True
    ) -> Reply:
        """Send a request; `is_theirs`: it goes to the API, not to another host."""
        if end_only:
            request.headers["accept-encoding"] = "identity"  # a growing log may be cut in mid-stream
        try:
            response = await client.send(request, stream=True)
            try:
                content = await (_end(response) if end_only else self._bounded(response))
            finally:
                await response.aclose()
        except httpx2.RequestError as error:
            raise connection_error(error) from None
        headers = {name.lower(): KNOWN.mask(value) for name, value in response.headers.items()}
        for name in headers.keys() & _URLS:  # relative to the request: RFC 9110, section 10.2.2
            with suppress(ValueError):  # not a URL
                headers[name] = urljoin(str(request.url), headers[name])
        content = KNOWN.mask(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        reply = Reply(status=response.status_code, headers=headers, content=content)
        return replace(reply, is_throttled=is_theirs and self._rate_limit.is_throttled(reply))

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
                        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none: tasks have no session
                        timeout=self._settings.timeout.total_seconds(),
                        headers={"user-agent": AGENT, "accept": "application/json"},
                    )
                except ValueError:
                    raise EngineUnavailable("HTTPS_PROXY or HTTP_PROXY is not a URL of a proxy", sent=False) from None
            return self._opened


async def _end(response: httpx2.Response) -> bytes:
    """Return the last bytes of a body of any length; the time-out of the poll limits it."""
    content, is_cut = bytearray(), False
    async for chunk in response.aiter_bytes():
        content += chunk
        is_cut = is_cut or len(content) > _END
        del content[:-_END]
    return bytes(content.partition(b"\n")[2] if is_cut else content)  # half a secret could not be masked


async def may_follow(url: str, hosts: Sequence[str]) -> bool:
    """Return True if the redirect may be followed; a host that matches a wildcard must not have a private address."""
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
    """Return the TLS context: the CAs that we trust and our certificate.

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
    """Return the parameters; a list repeats its parameter, and a parameter without a value is omitted."""
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


def _following(how: Pages, reply: Reply, page: Scope) -> Request | None:
    """Return the request of the next page; None after the last page."""
    if how.next is None:
        return None
    if how.next.link:
        links = map(_NEXT.match, reply.headers.get("link", "").split(","))
        found = next((each for each in links if each), None)
        return None if found is None else how.request.model_copy(update={"path": None, "url": found[1], "query": {}})
    more: Mapping[str, Any] = {name: page.value(value) for name, value in how.next.query.items()}
    if all(value in (None, "", False) for value in more.values()):
        return None
    return how.request.model_copy(update={"query": {**how.request.query, **more}})
