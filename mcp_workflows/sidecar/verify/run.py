"""One run of `mcp-workflows verify`: every law and question in turn."""

from __future__ import annotations

import platform
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from importlib.metadata import distributions
from typing import Any, Final, cast

import anyio
from pydantic import BaseModel, SecretStr

from mcp_workflows.adapter import (
    JSON,
    Adapter,
    Finds,
    Fixtures,
    Question,
    Remembers,
    StartGuarantee,
)
from mcp_workflows.engines.registry import CALL_TIMEOUT
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from mcp_workflows.kit.tooling import Checks, HasFixtures
from mcp_workflows.sidecar.config.models import Engine, StoreSettings
from mcp_workflows.sidecar.verify.observations import Observations, ObservedAdapter
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
_OURS: Final = "mcp-workflows"  # the beginning of the names of our distributions
_SDKS: Final = frozenset({"boto3", "google-cloud-workflows", "httpx2", "mcp", "temporalio"})


class Verdict(StrEnum):
    """The verdict on a promise."""

    HELD = "held"
    BROKEN = "broken"
    NOT_TRIED = "not tried"
    NOTED = "noted"  # there is nothing that it should be


_VERDICTS: Final[Mapping[bool | None, Verdict]] = {True: Verdict.HELD, False: Verdict.BROKEN, None: Verdict.NOTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One promise of the boundary, or one answer of the engine that the adapter relies on."""

    promise: str
    verdict: Verdict
    seen: str = ""  # the reason, or what the engine said
    expected: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The engine to verify, and the workflows to do it with."""

    engine: Engine
    roles: Fixtures | None  # tools that the user named; None: the workflows that the adapter brings
    settings: Any  # of the adapter's `FixtureSettings`
    patience: float  # seconds


@dataclass(slots=True, kw_only=True)
class Verification:
    """The findings of a run, filled in while it goes on."""

    promises: list[Promise] = field(default_factory=list[Promise])
    measured: Mapping[str, float] = field(default_factory=dict[str, float])
    left: Sequence[str] = ()  # what could not be ended or removed
    is_complete: bool = False  # all was tried

    def count(self, verdict: Verdict) -> int:
        """Return how many promises have this verdict."""
        return sum(each.verdict is verdict for each in self.promises)

    def as_json(self, adapter: str) -> Mapping[str, JSON]:
        """Return the findings as JSON, with the kind of engine, the day in UTC and the versions."""
        return {
            "adapter": adapter,
            "date": datetime.now(UTC).date().isoformat(),
            "versions": _versions(),
            "promises": [asdict(each) for each in self.promises],
            "measured": self.measured,
        }


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
        fixtures = plan.roles
        if fixtures is None:
            tooling = own.tooling
            assert isinstance(tooling, HasFixtures), "the plan says so"
            fixtures = await stack.enter_async_context(tooling.fixtures(plan.settings))
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
            shown = replace(promise, seen=_masked(promise.seen, engine.settings))
            found.promises.append(shown)
            told(shown)

        for law in LAWS:
            tell(await _of_law(law, subject, adapter))
        tell(_of_errors(seen.errors, _secrets(engine.settings)))
        for text, question in fixtures.questions.items():
            for promise in await _of_question(text, question):
                tell(promise)
        found.measured, found.is_complete = seen.measured(), True


async def _must_answer(adapter: Adapter) -> None:
    tooling = adapter.tooling
    if isinstance(tooling, Checks) and (finding := await tooling.check_engine()).ok is False:
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
    """Return a text without the secrets of the settings."""
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


def _versions() -> Mapping[str, str]:
    found = {each.metadata["Name"]: each.version for each in distributions()}
    return {"python": platform.python_version()} | {
        name: found[name] for name in sorted(found) if name.startswith(_OURS) or name in _SDKS
    }
