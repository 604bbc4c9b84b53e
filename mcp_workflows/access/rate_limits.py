"""Limits on callers: request rates per process, and open requests and sessions over all replicas.

The rates protect the process and make guessing hopeless. Counting polls in the store would cost more than the polls.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from math import ceil
from typing import Final

from mcp_workflows.access import Principal
from mcp_workflows.access.audit import Audit, Event, record_of, silent
from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.adapter import digest
from mcp_workflows.errors import LimitReached

MOST_KNOWN: Final = 10_000  # principals that are counted; a forgotten one starts with a full bucket
MOST_SHOWN: Final = 10_000  # tasks of anonymous callers
_MINUTE: Final = 60.0  # seconds
_TOLERANCE: Final = 1e-6  # seconds: sums of fractions are not exact
_REPORTED_FROM: Final = 0.1  # of a cap: fewer open requests or sessions are not shared with other replicas
_ALL: Final = ""  # all callers together
_FOR_A_SESSION: Final = 30.0  # seconds to wait for a session to end
_SHORTEST_WAIT: Final = 1.0  # seconds: milliseconds are of no use to a client far above its rate
_NETWORK: Final = 64  # bits of an IPv6 address that identify one caller, who can choose the rest freely


class Rate:
    """A rate limit for each of many callers; the least recently counted caller is evicted first.

    A token bucket stored as one number, the time when it is full again (GCRA), as every poll uses it.
    """

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = 0.0 if per_minute is None else _MINUTE / per_minute
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def take(self, who: str, many: int = 1) -> float:
        """Take `many` tokens and return 0; if none is left, return the seconds until the next."""
        if not self._every:
            return 0.0
        now, known = self._clock(), self._full_at
        full_at = known.get(who, now)
        if full_at < now:
            full_at = now
        if (wait := full_at + self._every - now - _MINUTE) > _TOLERANCE:
            return wait
        known.pop(who, None)  # moves the caller to the end of the eviction order
        known[who] = min(full_at + many * self._every, now + 2 * _MINUTE)
        if len(known) > MOST_KNOWN:
            del known[next(iter(known))]
        return 0.0

    def wait(self, who: str) -> float:
        """Return the seconds until the next token; 0: one is available."""
        if not self._every:
            return 0.0
        wait = self._full_at.get(who, 0.0) + self._every - self._clock() - _MINUTE
        return wait if wait > _TOLERANCE else 0.0


class RateLimits:
    """The rate limits of each principal, and of each address for anonymous callers, who share one principal.

    Memory is bounded: by `MOST_KNOWN` for principals, by their limits for open requests.
    """

    def __init__(self, limits: Limits, *, audit: Audit = silent, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds."""
        self._limits = limits
        self._audit = audit
        self._polls = Rate(limits.polls_per_minute, clock)
        self._misses = Rate(limits.failed_lookups_per_minute, clock)
        self._vain = Rate(limits.creates_per_minute, clock)
        self._shown: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._open: dict[str, int] = {_ALL: 0}  # requests
        self.sessions: Callable[[], Mapping[str, int]] = dict  # number of sessions by caller
        self.open_elsewhere: Mapping[str, int] = {}  # the sums of `open_here` on the other replicas

    def count_poll(self, principal: Principal, tasks: int = 1) -> None:
        """Count a request about this number of tasks.

        Raises:
            LimitReached: there were too many.
        """
        if wait := self._polls.take(whose_meter(principal), tasks):
            most = self._limits.polls_per_minute
            text = f"at most {most} requests about tasks in a minute: poll each at its pollIntervalMs"
            raise self._reached(principal, text, wait)

    # --- look-ups that find nothing

    def check_lookup(self, principal: Principal, task_id: str) -> None:
        """Check that a task may be looked up.

        Only the ids of their tasks protect anonymous callers. After too many failures, a task is not even looked up
        unless it was shown to the caller before: neither the reply nor its timing reveals whether the task exists.

        Identified callers are not blocked here: they cannot find tasks of others by guessing, and one client with
        outdated ids must not block the other clients of its owner.

        Raises:
            LimitReached: too many tasks were not found.
        """
        if principal.identified:
            return
        who = whose_meter(principal)
        if (wait := self._misses.wait(who)) and (who, task_id) not in self._shown:
            raise self._too_many_misses(principal, wait)

    def count_failed_lookup(self, principal: Principal) -> None:
        """Count a failed look-up of a task.

        Raises:
            LimitReached: there were too many.
        """
        if wait := self._misses.take(whose_meter(principal)):
            raise self._too_many_misses(principal, wait)

    def remember_shown(self, principal: Principal, task_id: str) -> None:
        """Remember that the task was shown to the principal or created by it."""
        if principal.identified or self._limits.failed_lookups_per_minute is None:
            return
        known = (whose_meter(principal), task_id)
        self._shown[known] = None
        self._shown.move_to_end(known)
        if len(self._shown) > MOST_SHOWN:
            self._shown.popitem(last=False)

    # --- calls that start nothing

    def check_start(self, principal: Principal) -> LimitReached | None:
        """Return the refusal if too many calls of the principal have started nothing, else None."""
        wait = self._vain.wait(whose_meter(principal))
        if not wait:
            return None
        after = max(wait, _SHORTEST_WAIT)
        text = f"at most {self._limits.creates_per_minute} calls of one caller may fail to start anything in a minute"
        return LimitReached(f"{text}: try again in {ceil(after)} s; nothing was started", retry_after=after)

    def started_nothing(self, principal: Principal) -> None:
        """Count a call that asked the engine but left no task."""
        self._vain.take(whose_meter(principal))

    # --- open requests

    @contextmanager
    def listening(self, principal: Principal) -> Generator[None]:
        """Count a request while it stays open.

        Raises:
            LimitReached: too many are open.
        """
        who, limits = whose_meter(principal), self._limits
        everybody = self._open[_ALL] + self._elsewhere("listens", _ALL)
        own = self._open.get(who, 0) + self._elsewhere("listens", who)
        if limits.open_listens_per_principal is not None and own >= limits.open_listens_per_principal:
            text = f"at most {limits.open_listens_per_principal} requests of one caller may stay open: end one"
            raise self._reached(principal, text)
        if limits.open_listens is not None and everybody >= limits.open_listens:
            text = f"at most {limits.open_listens} requests of all callers may stay open: poll, or try again later"
            raise self._reached(principal, text)
        self._open[who] = self._open.get(who, 0) + 1
        self._open[_ALL] += 1
        try:
            yield
        finally:
            self._open[_ALL] -= 1
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    def open_session(self, principal: Principal, has: int) -> None:
        """Check that a caller with `has` HTTP sessions on this replica may open another.

        Raises:
            LimitReached: it has too many.
        """
        most = self._limits.sessions_per_principal
        if most is not None and has + self._elsewhere("sessions", whose_meter(principal)) >= most:
            text = f"at most {most} sessions of one caller may be open: end one (DELETE), or try again later"
            raise self._reached(principal, text, _FOR_A_SESSION)

    def open_here(self) -> Mapping[str, int]:
        """Return the numbers of open requests and sessions to share with other replicas, by a digest of the caller.

        Numbers below a tenth of their cap are left out. So a caller can exceed a cap by a tenth per replica, plus
        whatever it opens on several replicas within a second.
        """
        listens, most = self._limits.open_listens_per_principal, self._limits.open_listens
        counted = [("listens", who, many, most if who == _ALL else listens) for who, many in self._open.items()]
        counted += [
            ("sessions", who, many, self._limits.sessions_per_principal) for who, many in self.sessions().items()
        ]
        return {digest([kind, who]): many for kind, who, many, cap in counted if cap and many >= cap * _REPORTED_FROM}

    def _elsewhere(self, kind: str, who: str) -> int:
        return self.open_elsewhere.get(digest([kind, who]), 0) if self.open_elsewhere else 0

    # --- all

    def refused(self, principal: Principal, tool: str, reached: LimitReached) -> None:
        """Record that a call reached a limit."""
        self._audit(record_of(Event.LIMIT, principal, tool=tool, outcome="refused", reason=reached.message))

    def _too_many_misses(self, principal: Principal, wait: float) -> LimitReached:
        most = self._limits.failed_lookups_per_minute
        return self._reached(principal, f"at most {most} requests in a minute for tasks that are not found", wait)

    def _reached(self, principal: Principal, text: str, wait: float | None = None) -> LimitReached:
        self._audit(record_of(Event.LIMIT, principal, outcome="refused", reason=text))
        return LimitReached(text, retry_after=None if wait is None else max(wait, _SHORTEST_WAIT))


def whose_meter(principal: Principal) -> str:
    """Return the key of the caller's rate limits: the principal's id, or the address of an anonymous caller."""
    return principal.id if principal.identified or principal.peer is None else _caller_at(principal.peer)


@lru_cache(maxsize=4096)  # each poll calls this
def _caller_at(address: str) -> str:
    return f"peer {network_of(address)}"


def network_of(address: str) -> str:
    """Return the network of one caller: a single IPv4 address, or an IPv6 network."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), _NETWORK), strict=False))
