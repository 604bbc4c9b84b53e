"""Plain functions as an adapter: `from_functions(start=..., describe=..., cancel=...)`.

Functions may be sync or async; sync ones run in a limited number of threads, so they do not block the event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Final, Self, TypeAlias, TypeVar, cast, overload

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
from mcp_workflows.errors import ConfigError, EngineRefused, EngineUnavailable, ExecutionNotFound, StartConflict
from mcp_workflows.kit.error_table import Errors, KeyTakenError, Translated, check_table
from mcp_workflows.kit.http_errors import AdapterVerb
from mcp_workflows.kit.threads import begin_call

__all__ = ["FunctionsAdapter", "from_functions"]

THREADS = 8
TURN = 5.0  # seconds a call waits for a free thread
KEPT = 60.0  # maximum seconds to wait for a start that must not be repeated, even if its caller has gone

S = TypeVar("S", bound=BaseModel)
C = TypeVar("C")
Snapshot: TypeAlias = Execution | Status
Client: TypeAlias = AbstractContextManager[C] | AbstractAsyncContextManager[C]
StartFunction: TypeAlias = Callable[[Start], str | Awaitable[str]]
DescribeFunction: TypeAlias = Callable[[Ref], Snapshot | Awaitable[Snapshot]]
CancelFunction: TypeAlias = Callable[[Ref], object]  # its result is ignored
AnswerFunction: TypeAlias = Callable[[Ref, Mapping[str, JSON]], object]
SameFunction: TypeAlias = Callable[[Start, str], bool | Awaitable[bool]]

NO_ERRORS: Final[Errors] = MappingProxyType({})


class FunctionsAdapter(Adapter):
    """An adapter made of functions; subclass it to add abilities and a separate entry point.

    `describe` may return just a `Status`. An `EngineError` passes unchanged. The table `errors` translates other
    exceptions. Without an entry, exceptions of HTTP clients are translated by the response's status (see
    `http_errors`), and other `OSError`s become `EngineUnavailable`. The rest are defects, which the core logs and
    treats as an unknown outcome. Private attributes are mangled, so that a subclass can use names such as `_call` and
    `_start`.
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
        same: SameFunction | None = None,
        taken: StartFunction | None = None,
        connect: Callable[[], Client[Any]] | None = None,  # Any: a client of the author's choice
        errors: Errors = NO_ERRORS,
        threads: int = THREADS,
        identity: str = "",
    ) -> None:
        """Store the functions; the first calls create threads.

        The arguments are those of `from_functions`. With `connect`, here without settings, the functions get the client
        as an additional first argument.

        Raises:
            ConfigError: the arguments do not fit together.
        """
        _check_keys(self.starts, same=same, taken=taken)
        check_table(errors)
        self.__start = start
        self.__describe = describe
        self.__cancel = cancel
        self.__answer = answer
        self.__same = same
        self.__taken = taken
        self.__connect = connect
        self.__errors = errors
        self.__threads = threads
        self.__identity = identity
        self.__places: anyio.CapacityLimiter | None = None  # one token per thread, while the adapter is entered
        self.__first: tuple[object, ...] = ()  # the client, while it is open
        self.__opened = AsyncExitStack()

    @property
    def identity(self) -> str:
        """The identity from the settings; see `Adapter.identity`."""
        return self.__identity

    async def __aenter__(self) -> Self:
        """Open the client and take calls."""
        if self.__connect is not None:
            client = self.__connect()
            if isinstance(client, AbstractAsyncContextManager):
                self.__first = (await self.__opened.enter_async_context(client),)
            else:
                self.__first = (self.__opened.enter_context(client),)
        self.__places = anyio.CapacityLimiter(self.__threads)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Refuse further calls and close the client; a function that runs in a thread continues."""
        self.__places = None
        await self.__opened.aclose()

    async def start(self, start: Start) -> str:
        """Return the result of `start`; wait for a start that must not be repeated, even after the time limit.

        With `same`, an execution that may have existed before is compared with the order.
        """
        keep = self.starts is not StartGuarantee.KEYED
        try:
            handle = _handle("start", await self.__call(AdapterVerb.START, self.__start, start, keep=keep))
        except KeyTakenError:
            handle = _handle("taken", await self.__ask(self.__taken, start))
        else:
            if self.__taken is not None:
                return handle  # new, as the engine refuses a known key
        if self.__same is not None and not _truth(await self.__ask(self.__same, start, handle)):
            raise StartConflict("this key belongs to an execution of another workflow or with another input")
        return handle

    async def describe(self, ref: Ref) -> Execution:
        """Return the result of `describe` as an `Execution`."""
        seen = _execution(await self.__call(AdapterVerb.DESCRIBE, self.__describe, ref))
        return seen if seen.execution_id else replace(seen, execution_id=ref.handle)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Pass the responses to `answer`; without that function, an open question is an error."""
        if self.__answer is not None:
            await self.__call(AdapterVerb.ANSWER, self.__answer, ref, responses)
        elif responses.keys() & (await self.describe(ref)).requests.keys():
            raise EngineRefused("it asks, but there is no function to take the answer: give `answer` to from_functions")

    async def cancel(self, ref: Ref) -> None:
        """Call `cancel`."""
        await self.__call(AdapterVerb.CANCEL, self.__cancel, ref)

    async def __ask(self, function: Callable[..., object] | None, *given: object) -> object:
        """Ask about the execution of a key. None of its errors may mean that nothing was started."""
        assert function is not None
        try:
            return await self.__call(AdapterVerb.DESCRIBE, function, *given)
        except StartConflict:
            raise
        except (EngineRefused, ExecutionNotFound) as error:
            raise EngineUnavailable(f"the execution of this key cannot be told: {error}", silent=False) from error

    async def __call(
        self, verb: AdapterVerb, function: Callable[..., object], *given: object, keep: bool = False
    ) -> object:
        arguments = (*self.__first, *given)
        once, detects = self.starts is StartGuarantee.ONCE, self.__taken is not None and verb is AdapterVerb.START
        translated = Translated(function, verb, self.__errors, once=once, detects_taken=detects)

        def called() -> object:
            with translated:  # in the function's thread, where the body of a refusal is read
                return function(*arguments)
            return None

        found = called() if _is_async(function) else await self.__in_thread(called, keep=keep)
        if not inspect.isawaitable(found):
            return found
        async with translated:
            return cast("object", await found)
        return None

    async def __in_thread(self, function: Callable[[], object], *, keep: bool) -> object:
        """Return the result of a sync function; `keep`: wait for it even when cancelled, as its result is needed.

        Raises:
            EngineUnavailable: no thread is free in time (the function is not called), or it runs longer than `KEPT`.
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


@overload
def from_functions(
    *,
    start: StartFunction,
    describe: DescribeFunction,
    cancel: CancelFunction,
    answer: AnswerFunction | None = None,
    starts: StartGuarantee = StartGuarantee.ONCE,
    same: SameFunction | None = None,
    taken: StartFunction | None = None,
    options: type[BaseModel] = Nothing,
    errors: Errors = NO_ERRORS,
    threads: int = THREADS,
) -> Adapter: ...


@overload
def from_functions(
    *,
    settings: type[Nothing],
    start: StartFunction,
    describe: DescribeFunction,
    cancel: CancelFunction,
    answer: AnswerFunction | None = None,
    starts: StartGuarantee = StartGuarantee.ONCE,
    same: SameFunction | None = None,
    taken: StartFunction | None = None,
    options: type[BaseModel] = Nothing,
    errors: Errors = NO_ERRORS,
    threads: int = THREADS,
) -> type[Adapter]: ...


@overload
def from_functions(
    *,
    settings: type[S],
    connect: Callable[[S], Client[C]],
    start: Callable[[C, Start], str | Awaitable[str]],
    describe: Callable[[C, Ref], Snapshot | Awaitable[Snapshot]],
    cancel: Callable[[C, Ref], object],
    answer: Callable[[C, Ref, Mapping[str, JSON]], object] | None = None,
    starts: StartGuarantee = StartGuarantee.ONCE,
    same: Callable[[C, Start, str], bool | Awaitable[bool]] | None = None,
    taken: Callable[[C, Start], str | Awaitable[str]] | None = None,
    options: type[BaseModel] = Nothing,
    errors: Errors = NO_ERRORS,
    threads: int = THREADS,
) -> type[Adapter]: ...


@overload
def from_functions(
    *,
    settings: type[S],
    start: Callable[[S, Start], str | Awaitable[str]],
    describe: Callable[[S, Ref], Snapshot | Awaitable[Snapshot]],
    cancel: Callable[[S, Ref], object],
    answer: Callable[[S, Ref, Mapping[str, JSON]], object] | None = None,
    starts: StartGuarantee = StartGuarantee.ONCE,
    same: Callable[[S, Start, str], bool | Awaitable[bool]] | None = None,
    taken: Callable[[S, Start], str | Awaitable[str]] | None = None,
    options: type[BaseModel] = Nothing,
    errors: Errors = NO_ERRORS,
    threads: int = THREADS,
) -> type[Adapter]: ...


def from_functions(
    *,
    start: Callable[..., object],
    describe: Callable[..., object],
    cancel: Callable[..., object],
    answer: Callable[..., object] | None = None,
    starts: StartGuarantee = StartGuarantee.ONCE,
    same: Callable[..., object] | None = None,
    taken: Callable[..., object] | None = None,
    settings: type[BaseModel] | None = None,
    connect: Callable[[Any], Client[Any]] | None = None,  # Any: the author's settings and client
    options: type[BaseModel] = Nothing,
    errors: Errors = NO_ERRORS,
    threads: int = THREADS,
) -> Adapter | type[Adapter]:
    """Create an adapter from plain functions, sync or async.

    Without `settings`, the result is an adapter, for `attach(engines={"acme": from_functions(...)})`. With `settings`,
    a pydantic model, it is a class for an entry point and workflows.yaml, and each function gets an additional first
    argument: the value of the context manager `connect(settings)`, or the settings without `connect`. With
    `settings=Nothing` there are no settings and no such argument. Connecting must not need the engine. A property
    `identity` of the model becomes that of the adapter: see `Adapter.identity`.

    Set `starts=StartGuarantee.KEYED` if starting again with the same `start.key` is safe: only then does the core
    repeat a start. `same(start, handle)` is for KEYED engines that return the execution of a key whatever its input: it
    returns True if that execution has the workflow and input of `start`; False is a `StartConflict`. `taken(start)` is
    for engines that refuse a known key, with a 409 or an exception that `errors` translates into `StartConflict`: it
    returns the handle of the execution that has the key.

    `errors` translates foreign exceptions, by class or HTTP status; the first matching entry applies. `StartConflict`
    is for `start` only, `ExecutionNotFound` for the other verbs, None (not an error) for `answer` and `cancel`; a
    mapping by verb sets an error for single verbs. Without an entry, a refusal over HTTP (4xx) is an `EngineRefused`,
    for `describe` a 404 is an `ExecutionNotFound`, and any other `OSError` an `EngineUnavailable`.

    Raises:
        ConfigError: the arguments do not fit together, or an entry of `errors` can never apply.
    """
    functions = {"start": start, "describe": describe, "cancel": cancel, "answer": answer, "same": same, "taken": taken}
    rest: Any = {**functions, "errors": errors, "threads": threads}  # keyword arguments of different types

    client = nullcontext[Any] if connect is None and settings is not Nothing else connect

    def with_settings(self: FunctionsAdapter, settings: BaseModel) -> None:
        identity = str(getattr(settings, "identity", None) or "")
        FunctionsAdapter.__init__(self, **rest, connect=client and partial(client, settings), identity=identity)

    body: dict[str, object] = {"starts": starts, "Options": options}
    if settings is None:
        return cast("type[FunctionsAdapter]", type("FunctionsAdapter", (FunctionsAdapter,), body))(**rest)
    _check_keys(starts, same=same, taken=taken)
    check_table(errors)
    body |= {"Settings": settings, "__init__": with_settings}
    return type("FunctionsAdapter", (FunctionsAdapter,), body)


def _check_keys(starts: StartGuarantee, *, same: object, taken: object) -> None:
    if starts is not StartGuarantee.KEYED and (same is not None or taken is not None):
        raise ConfigError("`same` and `taken` are about keys: give starts=StartGuarantee.KEYED, or leave them out")
    if taken is not None and same is None:
        raise ConfigError("`taken` needs `same`: the execution that has the key may be of another order")


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # an object with an async __call__


def _handle(function: str, returned: object) -> str:
    if isinstance(returned, str) and returned:
        return returned
    raise EngineUnavailable(f"the function {function} returned {_kind(returned)}: it must return the handle, a text")


def _truth(returned: object) -> bool:
    if isinstance(returned, bool):
        return returned
    raise EngineUnavailable(f"the function same returned {_kind(returned)}: it must return True or False")


def _execution(returned: object) -> Execution:
    if isinstance(returned, Execution):
        return returned
    try:
        status = Status(cast("str", returned))
    except ValueError:
        wanted = "it must return an Execution or a Status"
        raise EngineUnavailable(f"the function describe returned {_kind(returned)}: {wanted}") from None
    return Execution(status=status, failure=Failure(text="the workflow failed") if status is Status.FAILED else None)


def _kind(value: object) -> str:
    return "nothing" if not value else f"a {type(value).__name__}"
