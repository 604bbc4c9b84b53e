"""One run of `mcp-workflows verify`: every law and question in turn, then the executions of the recording."""

from __future__ import annotations

import platform
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from typing import Any, Final, cast

import anyio
from pydantic import BaseModel, SecretStr

from mcp_workflows.adapter import (
    Adapter,
    Checks,
    Finds,
    Fixtures,
    HasFixtures,
    Question,
    Records,
    Ref,
    Remembers,
    Role,
    StartGuarantee,
    Status,
)
from mcp_workflows.adapter.laws import (
    LAWS,
    STACK_TRACES,
    Law,
    LawBroken,
    NotTried,
    Subject,
    a_start_whose_reply_was_lost_is_found_again,
    accepted,
    new_start,
    ref_of,
)
from mcp_workflows.adapter.recordings import Promise, RecordedExecution, Recording, Verdict, outcome
from mcp_workflows.engines.registry import CALL_TIMEOUT
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from mcp_workflows.sidecar.config.models import Engine, StoreSettings
from mcp_workflows.sidecar.verify.observations import Observations, ObservedAdapter
from mcp_workflows.store.key_value import notes_in

_LOOK_AGAIN: Final = 0.2  # seconds
_ONCE: Final = "an engine that starts 'once' promises nothing about this"
_VERDICTS: Final[Mapping[bool | None, Verdict]] = {True: Verdict.HELD, False: Verdict.BROKEN, None: Verdict.NOTED}
_OURS: Final = "mcp-workflows"  # the beginning of the names of our distributions
_SDKS: Final = frozenset({"boto3", "google-cloud-workflows", "httpx2", "mcp", "temporalio"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The engine to verify, and the workflows to do it with."""

    engine: Engine
    roles: Fixtures | None  # tools that the user named; None: the workflows that the adapter brings
    settings: Any  # of the adapter's `FixtureSettings`
    patience: float  # seconds
    with_executions: bool  # for a recording


@dataclass(slots=True, kw_only=True)
class Verification:
    """The findings of a run, filled in while it goes on."""

    promises: list[Promise] = field(default_factory=list[Promise])
    executions: list[RecordedExecution] = field(default_factory=list[RecordedExecution])
    measured: Mapping[str, float] = field(default_factory=dict[str, float])
    private: Mapping[str, str] = field(default_factory=dict[str, str])  # see `Records.private`
    left: Sequence[str] = ()  # what could not be ended or removed
    is_complete: bool = False  # all was tried

    def count(self, verdict: Verdict) -> int:
        """Return how many promises have this verdict."""
        return sum(each.verdict is verdict for each in self.promises)

    def recording(self, adapter: str) -> Recording:
        """Return the recording, not sanitized yet."""
        return Recording(
            adapter=adapter,
            date=datetime.now(UTC).date().isoformat(),
            versions=_versions(),
            promises=tuple(self.promises),
            measured=self.measured,
            executions=tuple(self.executions),
        )


async def run_until_interrupted(plan: Plan, found: Verification, told: Callable[[Promise], None]) -> bool:
    """Run the plan; on SIGINT or SIGTERM end what was started, and return False.

    Raises:
        EngineError: see `run`; in a group.
    """
    scope = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        group.start_soon(_cancel_on_signals, scope)
        try:
            with scope:
                await run(plan, found, told)
        except EngineError as error:
            if not found.is_complete:
                raise
            found.left = [*found.left, str(error)]  # what was created could not be removed
        group.cancel_scope.cancel()
    return not scope.cancelled_caught


async def _cancel_on_signals(scope: anyio.CancelScope) -> None:
    """Cancel at the first signal; further ones must not stop what cleans up."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


async def run(plan: Plan, found: Verification, told: Callable[[Promise], None]) -> None:
    """Try everything, tell each verdict, and leave nothing behind, also when it is cancelled.

    Raises:
        EngineError: the engine does not answer, or the workflows cannot be created.
    """
    engine, seen = plan.engine, Observations()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(StoreSettings(url="sqlite:///:memory:").open())
        notes = notes_in(store)(engine.name)

        def new_adapter() -> ObservedAdapter:
            adapter = engine.kind(engine.settings)
            if isinstance(adapter, Remembers):
                adapter.remember(notes)
            return seen.observe(adapter)

        adapter = new_adapter()
        await stack.enter_async_context(adapter)
        own = adapter.adapter
        await _must_answer(own)
        found.private = dict.fromkeys(_secrets(engine.settings), "secret")
        if isinstance(own, Records):
            found.private = {**found.private, **own.private()}
        fixtures = plan.roles
        if fixtures is None:
            assert isinstance(own, HasFixtures), "the plan says so"
            fixtures = await stack.enter_async_context(own.fixtures(plan.settings))
        stack.push_async_callback(partial(_end_all, seen, adapter, plan.patience, found))
        late = own.settling.total_seconds() if isinstance(own, Finds) else 0.0
        subject = Subject(
            new_adapter=new_adapter,
            losing_replies=seen.ignoring_replies,
            patience=plan.patience + late,
            glance=CALL_TIMEOUT,
            **{each.name: getattr(fixtures, each.name) for each in fields(Fixtures)},
        )
        if own.starts is StartGuarantee.ONCE:
            lost = a_start_whose_reply_was_lost_is_found_again.__name__
            subject = replace(subject, gaps={**subject.gaps, lost: _ONCE})

        def tell(promise: Promise) -> None:
            shown = promise.model_copy(update={"seen": _masked(promise.seen, engine.settings)})
            found.promises.append(shown)
            told(shown)

        for law in LAWS:
            tell(await _of_law(law, subject, adapter))
        tell(_of_errors(seen.errors, _secrets(engine.settings)))
        for text, question in fixtures.questions.items():
            for promise in await _of_question(text, question):
                tell(promise)
        for part, role in _parts(subject) if plan.with_executions else ():
            try:
                found.executions.append(await _executed(subject, adapter, part, role))
            except EngineUnavailable as error:
                why = f"no answer: {error}"
                tell(Promise(promise=f"One execution can be recorded ({part}).", verdict=Verdict.NOT_TRIED, seen=why))
            except (EngineError, TimeoutError) as error:
                why = str(error) or "it did not end in time"
                tell(Promise(promise=f"One execution can be recorded ({part}).", verdict=Verdict.BROKEN, seen=why))
            except Exception as error:  # noqa: BLE001  # the findings are kept, whatever an adapter raises
                why = f"{type(error).__name__}: {error}"
                tell(Promise(promise=f"One execution can be recorded ({part}).", verdict=Verdict.BROKEN, seen=why))
        found.measured, found.is_complete = seen.measured(), True


async def _must_answer(adapter: Adapter) -> None:
    if isinstance(adapter, Checks) and (finding := await adapter.check_engine()).ok is False:
        raise EngineRefused(finding.text + (f"; {finding.hint}" if finding.hint else ""))


async def _end_all(seen: Observations, adapter: Adapter, patience: float, found: Verification) -> None:
    with anyio.CancelScope(shield=True):
        found.left = await seen.end_all(adapter, patience)


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
    except Exception as error:  # noqa: BLE001  # an adapter that lets anything else through has broken the law
        return Promise(promise=text, verdict=Verdict.BROKEN, seen=f"{type(error).__name__}: {error}")
    return Promise(promise=text, verdict=Verdict.HELD)


def _of_errors(errors: Sequence[str], secrets: Sequence[str]) -> Promise:
    """Judge the texts of all errors so far."""
    bad = [text for text in errors if any(secret in text for secret in secrets)]
    traces = [text for text in errors if any(trace in text for trace in STACK_TRACES)]
    return Promise(
        promise="No secret and no stack trace crosses with an error.",
        verdict=Verdict.BROKEN if bad or traces else Verdict.HELD,
        seen=f"{len(errors)} errors, {len(bad)} with a secret of the settings, {len(traces)} with a stack trace",
    )


def _masked(text: str, settings: object) -> str:
    """Return a text for the terminal without the secrets of the settings."""
    for secret in _secrets(settings):
        text = text.replace(secret, "***")
    return text


def _secrets(settings: object) -> Sequence[str]:
    """Return the secrets in the settings of an engine: `SecretStr`, and the texts of fields that `repr` leaves out."""
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


def _parts(subject: Subject) -> Iterator[tuple[str, Role]]:
    """Yield the roles that somebody plays, each with its name."""
    for part in ("finishes", "fails", "endless", "asks"):
        role: Role | None = getattr(subject, part)
        if role is not None and role.missing is None:
            yield part, role


async def _executed(subject: Subject, adapter: ObservedAdapter, part: str, role: Role) -> RecordedExecution:
    """Run one execution from its start to its end, and keep what the engine says after each change.

    Raises:
        EngineError: it cannot be started, or does not end in time.
    """
    start, records = new_start(role), adapter.adapter
    ref = ref_of(start, await adapter.start(start))
    history, last, asked_to_end = None, None, False
    with anyio.fail_after(subject.patience):
        while last is None or not last.terminal:
            seen = await adapter.describe(ref)
            if seen != last:
                history = await records.record(ref, history) if isinstance(records, Records) else None
            if seen.status is Status.INPUT_REQUIRED and (last is None or seen.requests != last.requests):
                await adapter.answer(ref, {key: accepted(subject) for key in seen.requests})
            if part == "endless" and seen.status is Status.RUNNING and not asked_to_end:
                await _run_for_a_look(adapter, ref)
                await adapter.cancel(ref)
                asked_to_end = True
            last = seen
            await anyio.sleep(0 if seen.terminal else _LOOK_AGAIN)
    return RecordedExecution(
        part=part, workflow=role.workflow, arguments=role.arguments, seen=outcome(last), history=history
    )


async def _run_for_a_look(adapter: Adapter, ref: Ref) -> None:
    await anyio.sleep(_LOOK_AGAIN)  # so that it has begun
    await adapter.describe(ref)


def _versions() -> Mapping[str, str]:
    found = {each.metadata["Name"]: each.version for each in distributions()}
    return {"python": platform.python_version()} | {
        name: found[name] for name in sorted(found) if name.startswith(_OURS) or name in _SDKS
    }
