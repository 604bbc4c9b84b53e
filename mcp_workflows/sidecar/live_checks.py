"""`check --live`: the laws of the boundary on a real engine, with executions that are started and ended there."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final, cast

import anyio
from pydantic import BaseModel, SecretStr

from mcp_workflows.adapter import Adapter, Finds, Fixtures, Question, Ref, Remembers, Start, StartGuarantee
from mcp_workflows.engines.registry import CALL_TIMEOUT
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from mcp_workflows.kit.tooling import Checks, HasFixtures
from mcp_workflows.sidecar.config.models import Engine, StoreSettings
from mcp_workflows.store.key_value import notes_in
from mcp_workflows.testing.laws import (
    LAWS,
    STACK_TRACES,
    Law,
    LawBroken,
    NotTried,
    Subject,
    a_start_whose_reply_was_lost_is_found_again,
)

_ONCE: Final = "an engine that starts 'once' promises nothing about this"
_AGAIN: Final = 0.2  # seconds between two polls of a cancelled execution


class Verdict(StrEnum):
    """The verdict on a promise."""

    HELD = "held"
    BROKEN = "broken"
    NOT_TRIED = "not tried"
    NOTED = "noted"  # there is no expected result


_VERDICTS: Final[Mapping[bool | None, Verdict]] = {True: Verdict.HELD, False: Verdict.BROKEN, None: Verdict.NOTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One promise of the boundary, or one behaviour of the engine that the adapter relies on."""

    promise: str
    verdict: Verdict
    seen: str = ""  # the reason, or the engine's reply
    expected: str = ""


@dataclass(slots=True, kw_only=True)
class LiveCheck:
    """One run on an engine: the workflows to try, and the findings so far."""

    engine: Engine
    roles: Fixtures | None  # tools that the user named; None: the adapter's own workflows
    settings: Any  # of the adapter's fixtures
    timeout: float  # seconds for an execution to end
    report: Callable[[Promise], None]
    promises: list[Promise] = field(default_factory=list[Promise])
    left: list[str] = field(default_factory=list[str])  # executions and objects that could not be ended or removed
    _started: dict[str, Ref] = field(default_factory=dict[str, Ref])  # by handle
    _unanswered: dict[str, Start] = field(default_factory=dict[str, Start])  # by key: sent, without a reply yet
    _errors: list[str] = field(default_factory=list[str])  # the texts of all errors raised
    _ignores_replies: bool = False

    def count(self, verdict: Verdict) -> int:
        """Return the number of promises with this verdict."""
        return sum(each.verdict is verdict for each in self.promises)

    async def run_until_interrupted(self) -> bool:
        """Check everything; on SIGINT or SIGTERM end the started executions, and return False.

        Raises:
            EngineError: see `run`; in a group.
        """
        scope, is_complete = anyio.CancelScope(), False

        async def cancel_on_signals() -> None:  # further signals must not stop the cleanup
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(cancel_on_signals)
            with scope:
                async with AsyncExitStack() as stack:
                    await self._try_everything(stack)
                    is_complete = True
                    try:
                        await stack.aclose()
                    except EngineError as error:
                        self.left.append(str(error))  # created objects that could not be removed
            group.cancel_scope.cancel()
        return is_complete and not scope.cancelled_caught

    async def _try_everything(self, stack: AsyncExitStack) -> None:
        """Check each law and question, and report each verdict; the stack ends and removes everything that was created.

        Raises:
            EngineError: the engine does not reply, or the workflows cannot be created.
        """
        engine, kind = self.engine, self._recording(self.engine.kind)
        store = await stack.enter_async_context(StoreSettings(url="sqlite:///:memory:").open())
        notes = notes_in(store)(engine.name)

        def new_adapter() -> Adapter:
            adapter = kind(engine.settings)
            if isinstance(adapter, Remembers):
                adapter.remember(notes)
            return adapter

        adapter = await stack.enter_async_context(new_adapter())
        tooling = adapter.tooling
        if isinstance(tooling, Checks) and (finding := await tooling.check_engine()).ok is False:
            raise EngineRefused(finding.text + (f"; {finding.hint}" if finding.hint else ""))
        fixtures = self.roles
        if fixtures is None:
            assert isinstance(tooling, HasFixtures), "the command says so"
            fixtures = await stack.enter_async_context(tooling.fixtures(self.settings))
        stack.push_async_callback(self._end_all, adapter)
        late = adapter.settling.total_seconds() if isinstance(adapter, Finds) else 0.0
        gaps = dict(fixtures.gaps)
        if adapter.starts is StartGuarantee.ONCE:
            gaps[a_start_whose_reply_was_lost_is_found_again.__name__] = _ONCE
        subject = Subject(
            new_adapter=new_adapter,
            losing_replies=self._ignoring_replies,
            timeout=self.timeout + late,
            call_timeout=CALL_TIMEOUT,
            **{each.name: getattr(fixtures, each.name) for each in fields(Fixtures) if each.name != "gaps"},
            gaps=gaps,
        )
        for law in LAWS:
            self._add(await _of_law(law, subject, adapter))
        self._add(self._of_errors())
        for text, question in fixtures.questions.items():
            for promise in await _of_question(text, question):
                self._add(promise)

    def _recording(self, kind: type[Adapter]) -> type[Adapter]:
        """Return a subclass that records its starts and the texts of its errors."""

        def recorded(verb: str) -> Callable[..., Any]:  # Any: the verbs return different things
            inner = getattr(kind, verb)

            async def call(adapter: Adapter, *args: Any) -> Any:  # Any: see above
                try:
                    return await (self._start(adapter, inner, *args) if verb == "start" else inner(adapter, *args))
                except EngineError as error:
                    self._errors.append(str(error))
                    raise

            return call

        verbs = [verb for verb in ("start", "find", "describe", "answer", "cancel") if hasattr(kind, verb)]
        return cast("type[Adapter]", type(kind.__name__, (kind,), {verb: recorded(verb) for verb in verbs}))

    async def _start(self, adapter: Adapter, inner: Callable[..., Any], start: Start) -> str:  # Any: see above
        self._unanswered[start.key] = start
        try:
            handle: str = await inner(adapter, start)
        except EngineUnavailable as error:
            if not error.sent:
                self._unanswered.pop(start.key, None)
            raise
        except EngineError:
            self._unanswered.pop(start.key, None)
            raise
        self._note(start, handle)
        if self._ignores_replies:
            raise EngineUnavailable("the reply was ignored on purpose")
        return handle

    def _note(self, start: Start, handle: str) -> None:
        self._unanswered.pop(start.key, None)
        self._started[handle] = Ref(workflow=start.workflow, handle=handle, options=start.options)

    @asynccontextmanager
    async def _ignoring_replies(self, _: Adapter) -> AsyncGenerator[None]:
        """Ignore the replies to starts: they take effect, and are reported as unavailable."""
        self._ignores_replies = True
        try:
            yield
        finally:
            self._ignores_replies = False

    async def _end_all(self, adapter: Adapter) -> None:
        """Cancel all executions that still run, and list those that do not end in time."""
        running: dict[str, str] = {}
        with anyio.CancelScope(shield=True):
            for start in list(self._unanswered.values()):
                await self._settle(adapter, start)
            running |= dict.fromkeys(self._started, "it runs")
            asked: set[str] = set()
            with anyio.move_on_after(self.timeout):
                while running:
                    for handle in list(running):
                        try:
                            if (await adapter.describe(self._started[handle])).terminal:
                                del running[handle]
                            elif handle not in asked:
                                await adapter.cancel(self._started[handle])
                                asked.add(handle)
                        except EngineError as error:
                            running[handle] = str(error)
                        except Exception as error:  # noqa: BLE001  # the others are ended, whatever it raises
                            running[handle] = type(error).__name__
                    if running:
                        await anyio.sleep(_AGAIN)
        self.left += [f"{handle}: {why}" for handle, why in running.items()]
        self.left += [f"key {key}: whether it was started is unknown" for key in self._unanswered]

    async def _settle(self, adapter: Adapter, start: Start) -> None:
        """Find the outcome of an interrupted start, as the core does."""
        try:
            if adapter.starts is StartGuarantee.KEYED:
                await adapter.start(start)
            elif isinstance(adapter, Finds):
                handle = await adapter.find(start)
                self._unanswered.pop(start.key) if handle is None else self._note(start, handle)
        except Exception:  # noqa: BLE001, S110  # whatever an adapter raises
            pass  # it remains unknown, and is reported

    def _add(self, promise: Promise) -> None:
        """Store and report a verdict, without the secrets of the settings."""
        seen = promise.seen
        for secret in _secrets(self.engine.settings):
            seen = seen.replace(secret, "***")
        self.promises.append(replace(promise, seen=seen))
        self.report(self.promises[-1])

    def _of_errors(self) -> Promise:
        """Judge the texts of all errors so far."""
        secrets = _secrets(self.engine.settings)
        bad = [text for text in self._errors if any(secret in text for secret in secrets)]
        traces = [text for text in self._errors if any(trace in text for trace in STACK_TRACES)]
        return Promise(
            promise="No secret and no stack trace crosses with an error.",
            verdict=Verdict.BROKEN if bad or traces else Verdict.HELD,
            seen=f"{len(self._errors)} errors, {len(bad)} with a secret of the settings, "
            f"{len(traces)} with a stack trace",
        )


async def _of_law(law: Law, subject: Subject, adapter: Adapter) -> Promise:
    name, text = getattr(law, "__name__", ""), (law.__doc__ or "").strip()
    if name in subject.gaps:
        return Promise(promise=text, verdict=Verdict.NOT_TRIED, seen=subject.gaps[name])
    try:
        await law(subject, adapter)
    except NotTried as reason:
        return Promise(promise=text, verdict=Verdict.NOT_TRIED, seen=str(reason))
    except LawBroken as broken:
        return Promise(promise=text, verdict=Verdict.BROKEN, seen=str(broken))
    except EngineUnavailable as error:
        return Promise(promise=text, verdict=Verdict.NOT_TRIED, seen=f"no answer: {error}")
    except Exception as error:  # noqa: BLE001  # any other exception from an adapter breaks the law
        return Promise(promise=text, verdict=Verdict.BROKEN, seen=f"{type(error).__name__}: {error}")
    return Promise(promise=text, verdict=Verdict.HELD)


async def _of_question(text: str, question: Question) -> Sequence[Promise]:
    try:
        return [
            Promise(promise=text, verdict=_VERDICTS[each.ok], seen=each.seen, expected=each.expected)
            for each in await question()
        ]
    except NotTried as reason:
        return [Promise(promise=text, verdict=Verdict.NOT_TRIED, seen=str(reason))]
    except EngineError as error:
        return [Promise(promise=text, verdict=Verdict.NOT_TRIED, seen=f"no answer: {error}")]


def _secrets(settings: object) -> Sequence[str]:
    """Return the secrets in an engine's settings: `SecretStr`, and the texts of fields that `repr` omits."""
    if isinstance(settings, SecretStr):
        return [settings.get_secret_value()] if settings.get_secret_value() else []
    inside: Iterable[object] = ()
    if isinstance(settings, BaseModel):
        hidden = {name for name, each in type(settings).model_fields.items() if not each.repr}
        inside = [SecretStr(value) if name in hidden and isinstance(value, str) else value for name, value in settings]
    elif isinstance(settings, Mapping):
        inside = cast("Mapping[object, object]", settings).values()
    elif isinstance(settings, list | tuple):
        inside = cast("Sequence[object]", settings)
    return [secret for each in inside for secret in _secrets(each)]
