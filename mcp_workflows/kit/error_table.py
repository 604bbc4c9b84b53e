"""The table of errors of an adapter made of functions: the meaning of foreign exceptions and of HTTP statuses.

A table has exception classes and HTTP statuses: `{409: StartConflict, KeyError: ExecutionNotFound}`. Each entry counts
at the verbs for which its error has a meaning; a mapping by verb, `{409: {"cancel": None}}`, says so for one verb.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Final, Literal, TypeAlias, cast

import anyio

from mcp_workflows.errors import ConfigError, EngineError, EngineUnavailable, ExecutionNotFound, StartConflict
from mcp_workflows.kit.http_errors import CONFLICT, AdapterVerb, HttpAnswer, engine_error, http_answer

logger = logging.getLogger(__name__)

Meaning: TypeAlias = Callable[[str], EngineError] | None  # makes the error of its text; None: it is no error
VerbName: TypeAlias = Literal["start", "describe", "answer", "cancel"]
Errors: TypeAlias = Mapping[type[Exception] | int, Meaning | Mapping[VerbName, Meaning]]

_ASK: Final = frozenset({AdapterVerb.ANSWER, AdapterVerb.CANCEL})  # what they return does not matter
_STATUSES: Final = range(300, 600)  # that HTTP clients raise


class KeyTakenError(Exception):
    """The engine does not start what it is asked to, as the key has an execution; never leaves an adapter."""


def check_table(errors: Errors) -> None:
    """Check that each entry can count.

    Raises:
        ConfigError: one cannot.
    """
    wrong = [f"errors: {problem}" for key, meant in errors.items() for problem in _problems(key, meant)]
    if wrong:
        raise ConfigError("\n".join(wrong))


def _problems(key: object, meant: object) -> Iterator[str]:
    name = key.__name__ if isinstance(key, type) else str(key)
    if isinstance(key, type) and not issubclass(key, Exception):
        yield f"{name} is no exception"
    elif not isinstance(key, type) and key not in _STATUSES:
        yield f"{name} is neither an exception class nor an HTTP status of {_STATUSES[0]} to {_STATUSES[-1]}"
    by_verb = _by_verb(meant)
    for meaning in [meant] if by_verb is None else by_verb.values():
        if meaning is not None and not _makes_error(meaning):
            yield f"{name}: {meaning!r} is neither a class of EngineError nor a function that makes one"
    for verb, meaning in (by_verb or {}).items():
        if verb not in list(AdapterVerb):
            yield f"{name}: {verb!r} is none of {', '.join(AdapterVerb)}"
        elif not _counts(AdapterVerb(verb), meaning):
            yield f"{name}: {getattr(meaning, '__name__', meaning)} has no meaning at {verb}"


def _makes_error(meaning: object) -> bool:
    return issubclass(meaning, EngineError) if isinstance(meaning, type) else callable(meaning)


def _by_verb(meant: object) -> Mapping[str, Meaning] | None:
    """Return what an entry means by verb; None if it means the same at all of them."""
    return cast("Mapping[str, Meaning]", meant) if isinstance(meant, Mapping) else None


def _counts(verb: AdapterVerb, meaning: object) -> bool:
    """True if a verb can have this meaning."""
    if meaning is None:
        return verb in _ASK
    if not isinstance(meaning, type):
        return True
    without = ExecutionNotFound if verb is AdapterVerb.START else StartConflict
    return not issubclass(meaning, without)


class Translated(AbstractContextManager[None, bool], AbstractAsyncContextManager[None, bool]):
    """Raise the `EngineError` that an exception of a function means, if it means one; swallow it if it is no error.

    With `detects_taken`, a start under a key that is taken raises `KeyTakenError`. Reading the body of a refusal may
    block: `with` belongs in a thread, `async with` reads it in one.
    """

    def __init__(
        self, function: object, verb: AdapterVerb, errors: Errors, *, once: bool, detects_taken: bool = False
    ) -> None:
        self._name = getattr(function, "__name__", "a function")
        self._verb = verb
        self._errors = errors
        self._once = once
        self._detects_taken = detects_taken

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, EngineError):
            return False
        answer = http_answer(error)
        if (entry := next(self._entries(error, answer), None)) is None:
            ours = self._default(error, answer)
            is_taken = answer is not None and answer.status == CONFLICT
        else:
            meaning, text = entry
            if meaning is None:
                return True
            ours = meaning(text)
            is_taken = isinstance(ours, StartConflict)
        if ours is None:
            return False
        logger.info("%s met a %s: %s", self._name, type(error).__name__, ours)
        if is_taken and self._detects_taken:
            raise KeyTakenError from error
        raise ours from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, EngineError):
            return False
        return await anyio.to_thread.run_sync(self.__exit__, kind, error, trace, abandon_on_cancel=True)

    def _entries(self, error: Exception, answer: HttpAnswer | None) -> Iterator[tuple[Meaning, str]]:
        """Yield the meanings of an exception at this verb in the order of the table, each with the text for clients."""
        for key, meant in self._errors.items():
            if isinstance(key, type):
                fits, text = isinstance(error, key), _name_of(error)
            else:
                fits, text = answer is not None and answer.status == key, answer.text if answer else ""
            by_verb = _by_verb(meant)
            if not fits or (by_verb is not None and self._verb not in by_verb):
                continue
            meaning = cast("Meaning", meant) if by_verb is None else by_verb[self._verb]
            if _counts(self._verb, meaning):
                yield meaning, text

    def _default(self, error: Exception, answer: HttpAnswer | None) -> EngineError | None:
        if answer is not None:
            return engine_error(answer, self._verb, once=self._once)
        return EngineUnavailable(_name_of(error)) if isinstance(error, OSError) else None  # `sent`: only it can know


def _name_of(error: Exception) -> str:
    return f"its adapter met a {type(error).__name__}"  # its text may hold a secret
