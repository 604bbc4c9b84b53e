"""The Events of the small receiver, with faults to switch on; an independent implementation, like the receiver."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import httpx2

EXTENSION = "io.modelcontextprotocol/events"
HEARTBEAT = 0.2  # seconds
RETRY = 0.1  # seconds
STREAMS = 10  # of one client
DAY = 86_400_000
LOCAL = "http://127.0.0.1:"
TEXT = {"type": "string"}
STATUS = {"type": "string", "enum": ["completed", "failed", "cancelled"]}

Body = dict[str, Any]
Mutate = Callable[[str, Body, Body], Body]  # method, params, body without id -> the same, or wrong


class Refused(Exception):  # noqa: N818  # a reply of the protocol
    """A request ends with this JSON-RPC error."""

    def __init__(self, code: int, message: str, **data: Any) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message, **({"data": data} if data else {})}


def part(body: Body, name: str) -> Body:
    """Return the object with this name; an empty one if it is missing."""
    found = body.get(name)
    return cast("Body", found) if isinstance(found, dict) else {}


def now() -> str:
    """Return the current time as an ISO 8601 timestamp."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def declared_events() -> Body:
    """Return the capabilities of Events, in both places."""
    return {"events": {"listChanged": False}, "extensions": {EXTENSION: {"listChanged": False}}}


def types() -> Sequence[Body]:
    """Return the types of events."""
    schema: Body = {"type": "object", "properties": {"tool": TEXT, "status": STATUS}, "additionalProperties": False}
    payload: Body = {"type": "object", "properties": {"taskId": TEXT, "tool": TEXT, "status": STATUS}}
    return [
        {"name": name, "delivery": modes, "inputSchema": schema, "payloadSchema": payload}
        for name, modes in {"task.ended": ["poll", "push", "webhook"], "task.progress": ["poll", "push"]}.items()
    ]


@dataclass(slots=True, kw_only=True, eq=False)
class Subscriber:
    """A webhook subscription."""

    id: str
    owner: str
    params: Body
    url: str
    keys: list[str]  # the secret, then the former one
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """An event, and whose it is."""

    owner: str
    event: Body
    at: float = field(default_factory=time.time)


class EventServer:
    """The methods of Events, with these faults; `mutate` may change every notification of a stream."""

    def __init__(self, faults: Sequence[str], mutate: Mutate) -> None:
        self.faults = faults
        self.mutate = mutate
        self.log: list[Logged] = []
        self.subscribers: dict[str, Subscriber] = {}
        self.verified: set[tuple[str, str]] = set()
        self.streams: dict[int, int] = {}  # open ones by client
        self.running: set[asyncio.Task[None]] = set()

    def happened(self, owner: str, data: Body) -> None:
        """Log the end of a task, and deliver it."""
        event: Body = {"eventId": f"evt_{secrets.token_hex(8)}", "name": "task.ended", "timestamp": now(), "data": data}
        self.log.append(Logged(owner=owner, event=event))
        for each in list(self.subscribers.values()):
            if each.owner == owner and fits(each.params, event):
                running = asyncio.get_running_loop().create_task(self.deliver(each, event))
                self.running.add(running)

    # --- events/list, events/poll, events/stream

    async def list(self, _: str, params: Body) -> Body:
        """Handle events/list."""
        if params.get("cursor") is not None and "any-list-cursor" not in self.faults:
            raise Refused(-32602, "unknown cursor")
        return {"events": [*types()]}

    def check(self, params: Body, mode: str) -> None:
        """Refuse a request for events that there are not."""
        found = next((each for each in types() if each["name"] == params.get("name")), None)
        if found is None:
            raise Refused(-32011, "no such event", kind="event")
        if mode not in found["delivery"] and "any-mode" not in self.faults:
            raise Refused(-32014, "not by this mode", feature="deliveryMode", value=mode)
        given, properties = params.get("arguments", {}), found["inputSchema"]["properties"]
        good = isinstance(given, dict) and all(
            name in properties and isinstance(value, str) and value in properties[name].get("enum", [value])
            for name, value in cast("Body", given).items()
        )
        if not good:
            raise Refused(-32602, "wrong arguments")

    def place(self, params: Body, *, refuses: str = "") -> tuple[int, bool]:
        """Return the position of the cursor, and True if it is not known."""
        cursor = params.get("cursor")
        if cursor is None:
            return len(self.log), False
        if isinstance(cursor, str) and cursor.removeprefix("c").isdecimal():
            return int(cursor.removeprefix("c")), False
        if refuses in self.faults:
            raise Refused(-32602, "unknown cursor")
        return len(self.log), True

    async def poll(self, owner: str, params: Body) -> Body:
        """Handle events/poll."""
        self.check(params, "poll")
        place, truncated = self.place(params, refuses="refuses-cursors")
        if params.get("cursor") is None and "replays-all" in self.faults:
            place = 0
        most = 100 if "ignores-max-events" in self.faults else params.get("maxEvents", 100)
        since = 0.0
        if "maxAgeMs" in params and "ignores-max-age" not in self.faults:
            since = time.time() - params["maxAgeMs"] / 1000
        found: list[Body] = []
        end, more = place, False
        for position, each in enumerate(self.log[place:], place + 1):
            if each.owner == owner and fits(params, each.event):
                if each.at < since:
                    truncated = True
                elif len(found) == most:
                    more = True
                    break
                else:
                    found.append(each.event)
            end = position
        if "fresh-ids-polled" in self.faults:
            found = [{**each, "eventId": secrets.token_hex(4)} for each in found]
        if "polls-nothing" in self.faults:
            found = []
        cursor = params["cursor"] if found and "cursor-stays" in self.faults else f"c{end}"
        copies = [{**each, "data": dict(each["data"])} for each in found]
        return {"events": copies, "cursor": cursor, "truncated": truncated, "hasMore": more, "nextPollMs": 1000}

    def stream(self, owner: str, client: int, params: Body, number: Any) -> AsyncIterator[Body]:
        """Handle events/stream: return its notifications."""
        self.check(params, "push")
        place, truncated = self.place(params, refuses="refuses-stream-cursors")
        if "streams-from-now" in self.faults:
            place = len(self.log)
        if "leaks-streams" in self.faults and self.streams.get(client, 0) >= STREAMS:
            raise Refused(-32013, "too many streams", limit="streams")
        self.streams[client] = self.streams.get(client, 0) + 1
        return self.frames(owner, client, params, number, place, truncated)

    async def frames(
        self, owner: str, client: int, params: Body, number: Any, place: int, truncated: bool
    ) -> AsyncIterator[Body]:
        """Yield the notifications of a stream."""

        def frame(name: str, content: Body) -> Body:
            method = f"notifications/events/{name}"
            meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": number}}
            return {"jsonrpc": "2.0", "method": method, **self.mutate(method, {}, {"params": {**content, **meta}})}

        is_second = self.streams[client] > 1 and "one-stream" in self.faults
        try:
            yield frame("active", {"cursor": f"c{place}", "truncated": truncated})
            told = time.monotonic()
            while True:
                while place < len(self.log):
                    each, place = self.log[place], place + 1
                    silent = is_second or "streams-nothing" in self.faults
                    if each.owner == owner and fits(params, each.event) and not silent:
                        behind = place - ("stream-cursor-before" in self.faults)
                        yield frame("event", {**each.event, "cursor": f"c{behind}"})
                        told = time.monotonic()
                if time.monotonic() - told > HEARTBEAT and "no-heartbeat" not in self.faults:
                    yield frame("heartbeat", {"cursor": f"c{place}"})
                    told = time.monotonic()
                await asyncio.sleep(0.02)
        finally:
            self.streams[client] -= "leaks-streams" not in self.faults

    # --- events/subscribe and events/unsubscribe

    def key(self, owner: str, params: Body, *, named: bool = False) -> str:
        """Return the key of a subscription, or what its id is made of."""
        arguments = params.get("arguments", {})
        if named and "one-id" in self.faults:
            arguments = {}
        ordered = "ordered-keys" in self.faults
        text = json.dumps(arguments, sort_keys=not ordered)
        return hashlib.sha256(f"{owner} {params['delivery']['url']} {params['name']} {text}".encode()).hexdigest()

    async def subscribe(self, owner: str, params: Body) -> Body:
        """Handle events/subscribe."""
        if not owner and "anybody-subscribes" not in self.faults:
            raise Refused(-32012, "who are you?")
        delivery = part(params, "delivery")
        url, secret = delivery.get("url"), delivery.get("secret")
        if "asks-first" in self.faults and str(url).startswith(LOCAL) and (owner, url) not in self.verified:
            await self.verify(owner, str(url), str(secret), "")
        self.check(params, "webhook")
        if delivery.get("mode", "webhook") != "webhook":
            raise Refused(-32014, "only webhooks", feature="deliveryMode", value=delivery["mode"])
        is_local = isinstance(url, str) and url.startswith(LOCAL)
        is_https = isinstance(url, str) and url.startswith("https://") and len(url) > len("https://")
        is_http = isinstance(url, str) and url.startswith("http://") and "http-anywhere" in self.faults
        if not (is_local or is_https or is_http):
            raise Refused(-32602, "delivery.url must begin with https://")
        if not isinstance(secret, str) or not is_secret(secret):
            raise Refused(-32602, "delivery.secret must be whsec_ and base64")
        return await self.saved(owner, params, str(url), secret)

    async def saved(self, owner: str, params: Body, url: str, secret: str) -> Body:
        """Save a good subscription, once its endpoint is verified."""
        key = self.key(owner, params)
        name = f"sub_{self.key(owner, params, named=True)[:16]}"
        if "id-per-call" in self.faults:
            name = f"sub_{secrets.token_hex(8)}"
        if (owner, url) not in self.verified or "verifies-always" in self.faults:
            await self.verify(owner, url, secret, name)
        old = self.subscribers.get(key)
        if old is not None and secret not in old.keys and "refuses-rotation" in self.faults:
            raise Refused(-32602, "another secret")
        keys = [secret, *(each for each in (old.keys if old else []) if each != secret)]
        if "forgets-the-old-secret" in self.faults:
            keys = keys[:1]
        place, truncated = self.place(params)
        if old is None or old.ended:
            self.subscribers[key] = Subscriber(id=name, owner=owner, params=params, url=url, keys=keys)
        else:
            old.id, old.keys = name, keys
        ttl = params.get("ttlMs", DAY) * (10 if "long-ttl" in self.faults else 1)
        until = (datetime.now(UTC) + timedelta(milliseconds=ttl)).isoformat()
        return {"id": name, "refreshBefore": until, "cursor": f"c{place}", "truncated": truncated}

    async def verify(self, owner: str, url: str, secret: str, name: str) -> None:
        """Ask the endpoint for the echo of a challenge."""
        if "no-verification" in self.faults:
            return
        challenge = "always" if "same-challenge" in self.faults else secrets.token_urlsafe(16)
        body = json.dumps({"type": "verification", "challenge": challenge}).encode()
        message = f"msg_verification_{secrets.token_hex(8)}"
        signing = [] if "unsigned-verification" in self.faults else [secret]
        try:
            response = await self.post(url, body, headers_of(signing, message, name, body))
        except httpx2.HTTPError:
            raise Refused(-32015, "no endpoint", reason="connection_refused") from None
        found = cast("Body", response.json())
        if found.get("challenge") != challenge and "any-echo" not in self.faults:
            words = f": {response.text}" if "repeats-words" in self.faults else ""
            raise Refused(-32015, f"no echo{words}", reason="challenge_failed")
        self.verified.add((owner, url))

    async def unsubscribe(self, owner: str, params: Body) -> Body:
        """Handle events/unsubscribe."""
        found = self.subscribers.get(self.key(owner, params))
        if found is None or found.ended:
            others = [each for each in self.subscribers.values() if each.owner != owner]
            theirs = any(each.url == params["delivery"]["url"] for each in others)
            if (theirs and "anybody-unsubscribes" in self.faults) or (found and "unsubscribes-twice" in self.faults):
                return {}
            raise Refused(-32011, "no such subscription", kind="subscription")
        found.ended = True
        return {}

    # --- deliveries

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> httpx2.Response:
        """Send one request to an endpoint."""
        async with httpx2.AsyncClient(
            follow_redirects="follows-redirects" in self.faults, timeout=5, trust_env=False, verify=False
        ) as http:
            return await http.post(url, content=body, headers=headers)

    async def deliver(self, subscriber: Subscriber, event: Body) -> None:
        """Deliver an event, until the endpoint takes it."""
        message = event["eventId"] if "message-ids" not in self.faults else f"msg_event_{event['eventId']}"
        shown = {**event, "cursor": None, **({"timestamp": 5} if "unix-time" in self.faults else {})}
        body = json.dumps(shown).encode()
        headers: dict[str, str] = {}
        pause = 1.6 if "stale-retries" in self.faults else RETRY
        for _ in range(20):
            if subscriber.ended and "keeps-delivering" not in self.faults:
                return
            if not headers or "stale-retries" not in self.faults:
                headers = self.signed(subscriber, message, body)
            try:
                status = (await self.post(subscriber.url, body, headers)).status_code
            except httpx2.HTTPError:
                status = 0
            if "never-retries" in self.faults or (status == 413 and "retries-413" not in self.faults):
                return
            if 200 <= status < 300:
                if "sends-twice" in self.faults:
                    await self.post(subscriber.url, body, headers)
                return
            await asyncio.sleep(pause)

    def signed(self, subscriber: Subscriber, message: str, body: bytes) -> dict[str, str]:
        """Return the headers of a delivery."""
        over = json.dumps(json.loads(body), indent=1).encode() if "signs-another-body" in self.faults else body
        factor = 1000 if "milliseconds" in self.faults else 1
        name = "sub_other" if "foreign-id" in self.faults else subscriber.id
        headers = headers_of(subscriber.keys, message, name, over, factor)
        return {**headers, "content-type": "text/plain"} if "plain-text" in self.faults else headers


def fits(params: Body, event: Body) -> bool:
    """Return True if the event is one that these params ask for."""
    wanted = params.get("arguments", {}).items()
    return params["name"] == event["name"] and all(event["data"].get(name) == value for name, value in wanted)


def is_secret(text: str) -> bool:
    """Return True for whsec_ and base64 of 24 to 64 bytes."""
    try:
        return text.startswith("whsec_") and 24 <= len(base64.b64decode(text[6:], validate=True)) <= 64
    except ValueError:
        return False


def headers_of(keys: Sequence[str], message: str, subscription: str, body: bytes, factor: int = 1) -> dict[str, str]:
    """Return the headers of a request, signed with each of the secrets."""
    sent = str(int(time.time() * factor))
    signatures = [
        base64.b64encode(
            hmac.digest(base64.b64decode(each[6:]), f"{message}.{sent}.".encode() + body, hashlib.sha256)
        ).decode()
        for each in keys
    ]
    return {
        "content-type": "application/json",
        "webhook-id": message,
        "webhook-timestamp": sent,
        "webhook-signature": " ".join(f"v1,{each}" for each in signatures) or "v1,none",
        "x-mcp-subscription-id": subscription,
    }
