"""Plain functions as an adapter: `from_functions(start=..., describe=..., cancel=...)`.

Functions may be sync or async; sync ones run in a limited number of threads, so none holds up the server.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import ClassVar, Final, Self, TypeAlias, TypeVar, cast

import anyio
from pydantic import BaseModel

from mcp_workflows.adapter.boundary import (
    JSON,
    Adapter,
    Execution,
    Failure,
    Nothing,
    Ref,
    Start,
    StartGuarantee,
    Status,
)
from mcp_workflows.adapter.http_errors import AdapterVerb, engine_error
from mcp_workflows.adapter.threads import begin_call
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable

__all__ = ["FunctionsAdapter", "from_functions"]

logger = logging.getLogger(__name__)

THREADS = 8
TURN = 5.0  # seconds a call waits for a free thread
KEPT = 60.0  # seconds to wait for a start that must not be repeated, even if its caller has gone

T = TypeVar("T")
Look: TypeAlias = Execution | Status
Errors: TypeAlias = Mapping[type[Exception], type[EngineError]]
StartFunction: TypeAlias = Callable[[Start], str | Awaitable[str]]
DescribeFunction: TypeAlias = Callable[[Ref], Look | Awaitable[Look]]
CancelFunction: TypeAlias = Callable[[Ref], object]  # its result is ignored
AnswerFunction: TypeAlias = Callable[[Ref, Mapping[str, JSON]], object]

NO_ERRORS: Final[Errors] = MappingProxyType({})


class FunctionsAdapter(Adapter):
    """An adapter made of functions; subclass it to give it settings, and an entry point of its own.

    `describe` may return just a `Status`. An `EngineError` passes. The table `errors` translates other exceptions; then
    those of HTTP clients are translated by the status of the response (see `http_errors`), and each other `OSError` is
    an `EngineUnavailable`. The rest are defects: the core logs them, and says that nothing is known. Private attributes
    are mangled, so that names such as `_call` and `_start` are free in a subclass.
    """

    Settings: ClassVar[type[BaseModel]] = Nothing
    Options: ClassVar[type[BaseModel]] = Nothing
    starts: ClassVar[StartGuarantee] = StartGuarantee.ONCE

    def __init__(
        self,
        *,
        start: StartFunction,
        describe: DescribeFunction,
        cancel: CancelFunction,
        answer: AnswerFunction | None = None,
        errors: Errors = NO_ERRORS,
        threads: int = THREADS,
    ) -> None:
        """Keep the functions; threads are created by the first calls."""
        self.__start = start
        self.__describe = describe
        self.__cancel = cancel
        self.__answer = answer
        self.__errors = errors
        self.__threads = threads
        self.__places: anyio.CapacityLimiter | None = None  # one for each thread, while the adapter is entered

    async def __aenter__(self) -> Self:
        """Take calls."""
        self.__places = anyio.CapacityLimiter(self.__threads)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take no more calls; a function that runs in a thread goes on."""
        self.__places = None

    async def start(self, start: Start) -> str:
        """Return the result of `start`; wait for one that must not be repeated, even when time is up."""
        return _handle(
            await self.__call(AdapterVerb.START, self.__start, start, keep=self.starts is not StartGuarantee.KEYED)
        )

    async def describe(self, ref: Ref) -> Execution:
        """Return the result of `describe` as an `Execution`."""
        seen = _execution(await self.__call(AdapterVerb.DESCRIBE, self.__describe, ref))
        return seen if seen.execution_id else replace(seen, execution_id=ref.handle)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Hand the responses to `answer`; without it, no execution may ask."""
        if self.__answer is not None:
            await self.__call(AdapterVerb.ANSWER, self.__answer, ref, responses)
        elif responses.keys() & (await self.describe(ref)).requests.keys():
            raise EngineRefused("it asks, but there is no function to take the answer: give `answer` to from_functions")

    async def cancel(self, ref: Ref) -> None:
        """Call `cancel`."""
        await self.__call(AdapterVerb.CANCEL, self.__cancel, ref)

    async def __call(
        self, verb: AdapterVerb, function: Callable[..., T | Awaitable[T]], *given: object, keep: bool = False
    ) -> T:
        translated = _Translated(function, verb, self.__errors, once=self.starts is StartGuarantee.ONCE)

        def called() -> T | Awaitable[T]:
            with translated:  # in the thread of the function: the body of a refusal is read there
                return function(*given)

        found = called() if _is_async(function) else await self.__in_thread(called, keep=keep)
        if not inspect.isawaitable(found):
            return found
        async with translated:
            return cast("T", await found)

    async def __in_thread(self, function: Callable[[], T], *, keep: bool) -> T:
        """Return the result of a sync function; `keep`: wait for it even when cancelled, as its result is needed.

        Raises:
            EngineUnavailable: no thread gets free (then the function is not called), or it is kept too long.
        """
        if self.__places is None:
            raise RuntimeError("enter the adapter first: async with")
        try:
            with anyio.fail_after(TURN):
                call = await begin_call(function, self.__places)
        except TimeoutError:
            busy = f"all {self.__threads} threads of its functions are busy"
            raise EngineUnavailable(f"{busy}: give the functions time-outs, or more threads", sent=False) from None
        with anyio.move_on_after(KEPT if keep else None, shield=keep):
            return await call.outcome()
        raise EngineUnavailable(f"the function has not returned within {KEPT:g} s: nobody knows what it did")


class _Translated(AbstractContextManager[None], AbstractAsyncContextManager[None]):
    """Raise the `EngineError` that an exception of a function means, if it means one.

    Reading the body of a refusal may block: `with` belongs in a thread, `async with` reads it in one.
    """

    def __init__(self, function: object, verb: AdapterVerb, errors: Errors, *, once: bool) -> None:
        self._name = getattr(function, "__name__", "a function")
        self._verb = verb
        self._errors = errors
        self._once = once

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, EngineError):
            return
        if ours := self._engine_error(error):
            logger.info("%s met a %s: %s", self._name, type(error).__name__, ours)
            raise ours from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, EngineError):
            await anyio.to_thread.run_sync(self.__exit__, kind, error, trace, abandon_on_cancel=True)

    def _engine_error(self, error: Exception) -> EngineError | None:
        met = f"its adapter met a {type(error).__name__}"  # its text may hold a secret
        for kind, ours in self._errors.items():
            if isinstance(error, kind):
                return ours(met)
        if known := engine_error(error, self._verb, once=self._once):
            return known
        return EngineUnavailable(met) if isinstance(error, OSError) else None  # `sent`: only the function can know


def from_functions(
    *,
    start: StartFunction,
    describe: DescribeFunction,
    cancel: CancelFunction,
    answer: AnswerFunction | None = None,
    starts: StartGuarantee = StartGuarantee.ONCE,
    options: type[BaseModel] = Nothing,
    errors: Errors = NO_ERRORS,
    threads: int = THREADS,
) -> Adapter:
    """Make an adapter of plain functions, sync or async, for `attach(engines={"acme": from_functions(...)})`.

    Give `starts=StartGuarantee.KEYED` if starting again under the same `start.key` is safe: only then does the core do
    it. `errors` translates foreign exceptions; the first entry that fits counts. Without an entry, a refusal over HTTP
    (4xx) is an `EngineRefused`, for `describe` a 404 is an `ExecutionNotFound`, and any other `OSError` an
    `EngineUnavailable`.
    """
    kind = cast(
        "type[FunctionsAdapter]", type("FunctionsAdapter", (FunctionsAdapter,), {"starts": starts, "Options": options})
    )
    return kind(start=start, describe=describe, cancel=cancel, answer=answer, errors=errors, threads=threads)


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # an object with an async __call__


def _handle(returned: object) -> str:
    if isinstance(returned, str) and returned:
        return returned
    raise EngineUnavailable(f"the function start returned {_kind(returned)}: it must return the handle, a text")


def _execution(returned: Execution | str) -> Execution:
    if isinstance(returned, Execution):
        return returned
    try:
        status = Status(returned)
    except ValueError:
        wanted = "it must return an Execution or a Status"
        raise EngineUnavailable(f"the function describe returned {_kind(returned)}: {wanted}") from None
    return Execution(status=status, failure=Failure(text="the workflow failed") if status is Status.FAILED else None)


def _kind(value: object) -> str:
    return "nothing" if not value else f"a {type(value).__name__}"
