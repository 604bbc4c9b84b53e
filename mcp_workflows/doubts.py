"""Reasons to look at executions before their turn, which sweeps and hints give, and which executions handles name."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_workflows.watched import Watched


class Doubts:
    """Whom there is a reason to look at, in the order the reasons came; each is there once."""

    def __init__(self) -> None:
        self._news: dict[Watched, bool] = {}

    def add(self, watched: Watched, since: float, *, news: bool) -> None:
        """Looks that began before `since` do not count; `news`: it has probably ended, or asks."""
        watched.doubt = max(watched.doubt, since)
        if watched.doubtful:
            self._news[watched] = news or self._news.get(watched, False)

    def drop(self, watched: Watched) -> None:
        """It is looked at, or nobody wants to know."""
        self._news.pop(watched, None)

    def landed(self, watched: Watched) -> bool:
        """A look at it is over. Whether there still is a reason: one that came too late for that look."""
        if not watched.doubtful:
            self.drop(watched)
        return watched in self._news

    def __contains__(self, watched: Watched) -> bool:
        return watched in self._news

    @property
    def news(self) -> Sequence[Watched]:
        """Those nobody looks at just now that have probably ended, or ask."""
        return [watched for watched, news in self._news.items() if news and watched.flight is None]

    @property
    def idle(self) -> Sequence[Watched]:
        """Those nobody looks at just now, news first."""
        idle = [watched for watched in self._news if watched.flight is None]
        return sorted(idle, key=lambda watched: not self._news[watched])


class Handles:
    """The executions that are known, by handle; two tasks may be of one execution."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[Watched, ...]] = {}

    def of(self, handle: str) -> Sequence[Watched]:
        """Those of this handle."""
        return self._named.get(handle, ())

    def add(self, watched: Watched) -> bool:
        """Whether its handle is known, and was not before."""
        handle = watched.task.handle
        if handle is None or watched in self.of(handle):
            return False
        self._named[handle] = (*self.of(handle), watched)
        return True

    def drop(self, watched: Watched) -> None:
        """It is not known any more."""
        handle = watched.task.handle
        if handle is not None and watched in self.of(handle):
            rest = tuple(each for each in self.of(handle) if each is not watched)
            self._named.pop(handle)
            if rest:
                self._named[handle] = rest
