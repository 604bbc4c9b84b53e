"""The error table of an adapter made of functions: the meaning of foreign exceptions and HTTP statuses.

A table maps exception classes and HTTP statuses: `{409: StartConflict, KeyError: ExecutionNotFound}`. Each entry
applies to the verbs for which its error has a meaning. A mapping by verb, `{409: {"cancel": None}}`, sets the meaning
for one verb.
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

Meaning: TypeAlias = Callable[[str], EngineError] | None  # creates the error from its text; None: not an error
VerbName: TypeAlias = Literal["start", "describe", "answer", "cancel"]
Errors: TypeAlias = Mapping[type[Exception] | int, Meaning | Mapping[VerbName, Meaning]]

_ASK: Final = frozenset({AdapterVerb.ANSWER, AdapterVerb.CANCEL})  # their results are ignored
_STATUSES: Final = range(300, 600)  # raised by HTTP clients


class KeyTakenError(Exception):
    """The engine refuses to start because the key has an execution; never leaves an adapter."""


def check_table(errors: Errors) -> None:
    """Check that each entry can apply.

    Raises:
        ConfigError: an entry cannot.
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
    """Return the meanings of an entry by verb; None if it has one meaning for all verbs."""
    return cast("Mapping[str, Meaning]", meant) if isinstance(meant, Mapping) else None


def _counts(verb: AdapterVerb, meaning: object) -> bool:
    """True if this meaning is possible for the verb."""
    if meaning is None:
        return verb in _ASK
    if not isinstance(meaning, type):
        return True
    without = ExecutionNotFound if verb is AdapterVerb.START else StartConflict
    return not issubclass(meaning, without)


class Translated(AbstractContextManager[None, bool], AbstractAsyncContextManager[None, bool]):
    """Translate an exception of a function into the `EngineError` that it means; suppress it if it is not an error.

    With `detects_taken`, a start with a taken key raises `KeyTakenError`. Reading the body of a refusal may block: use
    `with` in a thread; `async with` reads the body in a thread.
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
        """Yield the meanings of an exception for this verb in the order of the table, each with its text for
        clients."""
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
        return EngineUnavailable(_name_of(error)) if isinstance(error, OSError) else None  # `sent` is unknown


def _name_of(error: Exception) -> str:
    return f"its adapter met a {type(error).__name__}"  # the exception's text may contain a secret
