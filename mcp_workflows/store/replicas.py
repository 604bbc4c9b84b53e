"""Replicas that share a store: their membership, the owner of each execution, and their messages.

Each execution has one owner, by rendezvous hashing, so the death of a replica moves only its own executions. Messages
may be lost: a replica then reads the changed rows, or polls the engine itself. See docs/decisions/0034.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import Final, Protocol, TypeAlias

import anyio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import TypeAdapter

from mcp_workflows.adapter.capabilities import set_live_replicas
from mcp_workflows.errors import StoreError
from mcp_workflows.store.protocol import LONGEST_MESSAGE, Replica, ReplicaChannel
from mcp_workflows.task import CLOCKS_DIFFER, Task

logger = logging.getLogger(__name__)

LEASE: Final = timedelta(seconds=3)
BEAT_EVERY: Final = 1.0  # seconds
BEAT_REST: Final = 0.1  # minimum, however many messages come from unknown senders
TRUST: Final = 2.0  # seconds after its last heartbeat in which a replica still polls; less than `LEASE`
DEAF_AFTER: Final = 4.0  # without any message: each replica also receives its own
SEND_EVERY: Final = 0.02  # between messages; lines that come meanwhile share one
RENEW_EVERY: Final = 10.0
RECONCILE_EVERY: Final = 2.0
RECONCILE_DEAF: Final = 0.5
OVERLAP: Final = 10.0  # commits may appear in another order than their times
LEAVING: Final = 1.0
MOST_REMEMBERED: Final = 20_000  # polls of other replicas, owners, lines to send, and rows to read
MOST_ROWS: Final = 500  # per read

_FORMAT: Final = b"1"  # of messages; those of another format cannot be opened
_PAYLOAD: Final = LONGEST_MESSAGE * 3 // 4 - 150  # bytes of lines in a message
_NONCE: Final = 12  # bytes
_NO_TROUBLE: Final = "behind PgBouncer in transaction mode, set store.listen_url to the server's own address"
_BEAT, _LEAVE, _POLL, _BATCH, _CHANGED, _REFRESH, _WANT, _NOW, _HINT = "blpscrwnh"
_POLLS: Final = {_POLL, _BATCH, _CHANGED}
Line: TypeAlias = tuple[str, str, float, str | float]  # kind, task id, and for a poll its age and interval in seconds
_MESSAGE: Final = TypeAdapter(tuple[str, float, list[Line]])  # sender, the server's time, lines


class Polling(Protocol):
    """The poller of this process, see `engines.polling.poller`."""

    def needs_row(self, task_id: str) -> bool: ...
    def note(self, task: Task) -> None: ...
    def note_remote(self, task_id: str, began: float, interval: float, *, is_batch: bool) -> None: ...
    def note_remote_change(self, task: Task) -> None: ...
    def poll_for_others(self, task: Task, *, now: bool) -> None: ...
    def hint(self, engine: str, handle: str, *, forwarded: bool) -> None: ...
    def reshard(self) -> None: ...
    def renew_interest(self) -> None: ...


class OpenCounts(Protocol):
    """The open requests and sessions of callers."""

    open_elsewhere: Mapping[str, int]

    def open_here(self) -> Mapping[str, int]: ...


class Replicas:
    """This process among the replicas: the poller's `Peers`. Call `run` while the poller runs."""

    def __init__(
        self,
        channel: ReplicaChannel,
        limits: OpenCounts | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Prepare to `join`. `limits` count open requests and sessions on all replicas; `clock` is this machine's."""
        self.replicas = 1
        self.resharded = 0
        self._channel = channel
        self._limits = limits
        self._machine_clock = clock
        self._is_clock_wrong = False
        self._wall_ahead = 0.0  # seconds from the monotonic clock to the server's
        self._id = secrets.token_hex(6)
        self._cipher = AESGCM(bytes(32))  # until `join`
        self._owners: Sequence[str] = (self._id,)  # replicas that receive messages
        self._is_owner: dict[str, bool] = {}
        self._others: frozenset[str] = frozenset()
        self.live_until = float("-inf")
        self._server_ahead = 0.0  # seconds from the event loop's clock to the server's
        self._hears, self._is_deaf = False, False  # both unknown at first
        self._heard_at = 0.0
        self._listening = anyio.CancelScope()
        self._trouble = _NO_TROUBLE  # of the listening connection
        self._beat_now = anyio.Event()
        self._polls: OrderedDict[str, float] = OrderedDict()  # beginnings of polls
        self._outbox: dict[tuple[str, str, str], tuple[float, str | float]] = {}  # by kind, name and engine
        self._posted = anyio.Event()
        self._for_rows: dict[str, list[Callable[[Task], None]]] = {}
        self._rows_wanted = anyio.Event()

    def clock(self) -> datetime:
        """Return this machine's time, or PostgreSQL's if the machine's is wrong by more than a minute."""
        if self._is_clock_wrong:
            return datetime.fromtimestamp(time.monotonic() + self._wall_ahead, UTC)
        return self._machine_clock()

    def is_mine(self, task_id: str) -> bool:
        """Return True if this process polls the execution in the background; always, if it receives no messages."""
        if self._owners == (self._id,):
            return True
        found = self._is_owner.get(task_id)
        if found is None:
            if len(self._is_owner) >= MOST_REMEMBERED:
                self._is_owner.clear()
            owner = max(self._owners, key=lambda each: blake2b(f"{task_id} {each}".encode(), digest_size=8).digest())
            found = self._is_owner[task_id] = owner == self._id
        return found

    def last_poll(self, task_id: str) -> float | None:
        """Return when another replica last began to poll, if it reported that recently."""
        return self._polls.get(task_id)

    # --- messages to others

    def publish(self, task_id: str, began: float, interval: float, *, changed: bool | None) -> None:
        """Report a poll or a batch that was answered to the other replicas."""
        kind = _BATCH if changed is None else _POLL
        kind = _CHANGED if changed or (_CHANGED, task_id, "") in self._outbox else kind
        self._post(kind, task_id, began, interval)

    def publish_change(self, task_id: str) -> None:
        """Notify the other replicas that the row was changed and the execution is worth polling."""
        self._post(_REFRESH, task_id)

    def want(self, task_id: str, *, now: bool = False) -> None:
        """Ask the owner to poll an execution for a while, or now."""
        self._post(_NOW if now else _WANT, task_id)

    def forward_hint(self, engine: str, handle: str) -> None:
        """Notify the other replicas that an execution may have changed."""
        self._post(_HINT, handle, 0.0, engine)

    def _post(self, kind: str, name: str, number: float = 0.0, other: str | float = 0.0) -> None:
        if kind == _BEAT or (self._others and len(self._outbox) < MOST_REMEMBERED):
            self._outbox[kind, name, other if isinstance(other, str) else ""] = number, other
            self._posted.set()

    def _texts(self) -> Iterator[str]:
        """Empty the outbox into messages of limited length."""
        outbox, self._outbox = self._outbox, {}
        now, size, lines = anyio.current_time(), 0, list[Line]()
        for (kind, name, _), (number, other) in outbox.items():
            line = kind, name, round(now - number, 3) if kind in _POLLS else number, other
            length = len(json.dumps(line)) + 2
            if size + length > _PAYLOAD and lines:
                yield self._sealed(lines)
                size, lines = 0, []
            if length <= _PAYLOAD:
                size += length
                lines.append(line)
        yield self._sealed(lines)

    def _sealed(self, lines: Sequence[Line]) -> str:
        """Return a message that only replicas can read and write: all users of a database may listen and notify."""
        nonce = secrets.token_bytes(_NONCE)
        text = json.dumps((self._id, anyio.current_time() + self._server_ahead, lines))
        return b64encode(nonce + self._cipher.encrypt(nonce, text.encode(), _FORMAT)).decode()

    def _opened(self, message: str) -> tuple[str, float, list[Line]] | None:
        """Return the parts of a message; None: it is not from a replica, or has another format."""
        try:
            sealed = b64decode(message)
            return _MESSAGE.validate_json(self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], _FORMAT))
        except (ValueError, InvalidTag):  # ValidationError is a ValueError
            return None

    async def _send(self, _: Polling) -> None:
        while True:
            await self._posted.wait()
            self._posted = anyio.Event()
            with suppress(StoreError):  # a lost message does no harm
                await self._channel.send(list(self._texts()))
            await anyio.sleep(SEND_EVERY)

    # --- membership

    async def join(self, secret: bytes) -> None:
        """Send the first heartbeat. All replicas share the secret.

        Raises:
            StoreUnavailable: the store does not accept it.
        """
        self._cipher = AESGCM(secret)
        await self._beat()

    async def run(self, poller: Polling) -> None:
        """Send heartbeats and messages, and act on those of others, until cancelled; then leave."""
        try:
            async with anyio.create_task_group() as group:
                for work in (self._listen, self._reconcile, self._stay, self._read_rows, self._renew, self._send):
                    group.start_soon(self._keep_going, partial(work, poller))
        finally:
            set_live_replicas(None)
            self.live_until = float("-inf")
            with anyio.move_on_after(LEAVING, shield=True), suppress(StoreError):
                await self._channel.beat(Replica(id=self._id, hears=False, open={}), lasting=timedelta())
                await self._channel.send([self._sealed([(_LEAVE, "", 0.0, 0.0)])])

    async def _keep_going(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:  # a background loop must not end the server: docs/decisions/0002
                logger.exception("work shared with other replicas failed; it restarts in %g s", BEAT_EVERY)
                await anyio.sleep(BEAT_EVERY)

    async def _stay(self, poller: Polling) -> None:
        was_live, was_resharded = True, False
        while True:
            self._beat_now = anyio.Event()
            await anyio.sleep(BEAT_REST)
            with anyio.move_on_after(BEAT_EVERY - BEAT_REST):
                await self._beat_now.wait()
            resharded = self.resharded
            try:
                await self._beat()
            except StoreError as error:
                if was_live:
                    logger.warning("this replica polls no executions until the store answers: %s", error)
                was_live = False
                continue
            if not was_live:
                logger.info("this replica polls executions again")
            was_live = True
            if was_resharded:
                poller.renew_interest()  # by now the others know the new owners, too
            if was_resharded := resharded != self.resharded:
                poller.reshard()
            self._check_hearing()

    async def _beat(self) -> None:
        began = anyio.current_time()
        here: Mapping[str, int] = self._limits.open_here() if self._limits else {}
        others, clock = await self._channel.beat(Replica(id=self._id, hears=self._hears, open=here), lasting=LEASE)
        self.live_until = began + TRUST
        self._server_ahead = clock - (began + anyio.current_time()) / 2
        self._wall_ahead = clock - time.monotonic()
        self._check_clock(timedelta(seconds=clock - self._machine_clock().timestamp()))
        if self._limits:
            self._limits.open_elsewhere = sum((Counter(each.open) for each in others), Counter[str]())
        self._others, self.replicas = frozenset(each.id for each in others), len(others) + 1
        set_live_replicas(self.replicas)
        hearing = [each.id for each in others if each.hears] if self._hears else []
        owners = tuple(sorted([*hearing, self._id]))
        if owners != self._owners:
            self._owners, self.resharded = owners, self.resharded + 1
            self._is_owner.clear()
        self._post(_BEAT, "")

    def _check_clock(self, behind: timedelta) -> None:
        was_wrong = self._is_clock_wrong
        self._is_clock_wrong = abs(behind) > (CLOCKS_DIFFER / 2 if was_wrong else CLOCKS_DIFFER)
        if self._is_clock_wrong and not was_wrong:
            logger.warning(
                "this machine's clock is %s %s PostgreSQL's, which is used until they agree",
                timedelta(seconds=round(abs(behind).total_seconds())),
                "behind" if behind > timedelta() else "ahead of",
            )
        elif was_wrong and not self._is_clock_wrong:
            logger.info("this machine's clock agrees with PostgreSQL's again")

    def _check_hearing(self) -> None:
        """Reconnect if no message came for a while, and poll all executions until one does."""
        if anyio.current_time() - self._heard_at <= DEAF_AFTER:
            return
        self._hears, self._heard_at = False, anyio.current_time()
        self._listening.cancel()
        if not self._is_deaf:
            logger.warning(
                "LISTEN receives nothing from PostgreSQL (%s): this replica polls all executions itself", self._trouble
            )
        self._is_deaf = True

    # --- messages from others

    async def _listen(self, poller: Polling) -> None:
        self._heard_at = anyio.current_time()
        while True:
            with anyio.CancelScope() as self._listening:
                try:
                    await self._channel.listen(partial(self._hear, poller))
                except StoreError as error:
                    self._trouble = str(error)
            await anyio.sleep(BEAT_EVERY)

    def _hear(self, poller: Polling, message: str) -> None:
        opened = self._opened(message)
        if opened is None:
            return
        sender, sent, lines = opened
        now = self._heard_at = anyio.current_time()
        if not self._hears:
            self._hears = True
            self._beat_now.set()
            if self._is_deaf:
                logger.info("LISTEN receives from PostgreSQL again")
            self._is_deaf, self._trouble = False, _NO_TROUBLE
        if sender == self._id:
            return
        if (sender not in self._others) != any(kind == _LEAVE for kind, *_ in lines):
            self._beat_now.set()
        delay = max(0.0, now + self._server_ahead - sent)
        for kind, name, number, other in lines:
            if kind == _HINT:
                poller.hint(str(other), name, forwarded=True)
            elif kind in _POLLS and not isinstance(other, str):
                self._note_poll(poller, kind, name, (now - delay - number, other))
            elif kind == _REFRESH and poller.needs_row(name):
                self._with_row(name, poller.note_remote_change)
            elif kind in {_WANT, _NOW} and self.is_mine(name):
                self._with_row(name, partial(poller.poll_for_others, now=kind == _NOW))

    def _note_poll(self, poller: Polling, kind: str, task_id: str, poll: tuple[float, float]) -> None:
        if kind != _BATCH:
            self._polls[task_id] = poll[0]
            self._polls.move_to_end(task_id)
            if len(self._polls) > MOST_REMEMBERED:
                self._polls.popitem(last=False)
        if kind == _CHANGED and poller.needs_row(task_id):
            self._with_row(task_id, poller.note)
            self._with_row(task_id, lambda _: poller.note_remote(task_id, *poll, is_batch=False))
        else:
            poller.note_remote(task_id, *poll, is_batch=kind == _BATCH)

    # --- rows

    def _with_row(self, task_id: str, act: Callable[[Task], None]) -> None:
        if len(self._for_rows) < MOST_REMEMBERED:
            self._for_rows.setdefault(task_id, []).append(act)
            self._rows_wanted.set()

    async def _read_rows(self, _: Polling) -> None:
        while True:
            await self._rows_wanted.wait()
            self._rows_wanted = anyio.Event()
            waiting, self._for_rows = self._for_rows, {}
            names = list(waiting)
            for at in range(0, len(names), MOST_ROWS):
                with suppress(StoreError):  # `_reconcile` finds missed rows
                    for task in await self._channel.read(names[at : at + MOST_ROWS]):
                        for act in waiting.get(task.id, ()):
                            act(task)

    async def _reconcile(self, poller: Polling) -> None:
        """Read changed rows whose message was lost: its sender died first, or this process was disconnected."""
        last, known = anyio.current_time(), dict[str, int]()
        while True:
            await anyio.sleep(RECONCILE_EVERY if self._hears else RECONCILE_DEAF)
            began = anyio.current_time()
            if not self._others:
                last = began
                continue
            with suppress(StoreError):
                versions = await self._channel.changed(timedelta(seconds=began - last + OVERLAP))
                needed = {task_id: each for task_id, each in versions.items() if poller.needs_row(task_id)}
                unread = [task_id for task_id, version in needed.items() if known.get(task_id) != version]
                for at in range(0, len(unread), MOST_ROWS):
                    for task in await self._channel.read(unread[at : at + MOST_ROWS]):
                        poller.note(task)
                last, known = began, needed

    async def _renew(self, poller: Polling) -> None:
        while True:
            await anyio.sleep(RENEW_EVERY)
            poller.renew_interest()
