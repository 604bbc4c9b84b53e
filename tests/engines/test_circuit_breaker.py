"""The circuit breaker of an engine, with a clock of our own: when it opens, what it lets through, when it closes."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_workflows.engines.circuit_breaker import SETTINGS, Circuit
from mcp_workflows.errors import AdapterBroke, EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound

SILENT = EngineUnavailable("no answer within 10 s")
NOON = datetime(2026, 11, 22, 12, 3, 4, tzinfo=UTC)


class Engine:
    """Calls to an engine, as they come out, on a clock that only the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.changes: list[str | None] = []
        self.circuit = Circuit(
            clock=lambda: self.seconds,
            now=lambda: NOON + timedelta(seconds=self.seconds),
            on_change=self.changes.append,
        )

    def look(self, outcome: EngineError | None = None, *, lasting: float = 0.0) -> bool:
        """One look; whether it was sent."""
        sent = False
        with suppress(EngineError), self.circuit.admitted():
            sent = True
            self.call(outcome, lasting=lasting)
        return sent

    def call(self, outcome: EngineError | None = None, *, lasting: float = 0.0) -> None:
        """One call that is always made, such as a start."""
        began = self.circuit.clock()
        self.seconds += lasting
        self.circuit.record(began, outcome)


@pytest.mark.parametrize(
    ("outcome", "lasting", "opens"),
    [
        (SILENT, 0.0, True),
        (EngineUnavailable("connection refused", sent=False), 0.0, True),
        (EngineUnavailable("turned away", throttled=True), 9.0, False),
        (EngineUnavailable("held back here", throttled=True, sent=False), 9.0, False),
        (AdapterBroke("its adapter failed"), 9.0, False),
        (EngineUnavailable("it cannot show this one execution", silent=False), 9.0, False),
        (EngineRefused("no permission"), 9.0, False),
        (ExecutionNotFound("no such execution"), 9.0, False),
        (None, 9.0, False),
    ],
)
def test_only_looks_without_any_answer_open_the_circuit(
    outcome: EngineError | None, lasting: float, *, opens: bool
) -> None:
    engine = Engine()
    for _ in range(SETTINGS.failures):
        assert engine.circuit.silence is None
        assert engine.look(outcome, lasting=lasting)
    assert (engine.circuit.silence is not None) is opens


def test_a_look_that_began_before_the_last_answer_says_nothing() -> None:
    engine = Engine()
    began = engine.circuit.clock()
    engine.look(None)
    engine.seconds += 8
    engine.look(None)
    engine.circuit.record(began, SILENT)
    assert engine.circuit.silence is None


def test_silence_that_was_known_long_ago_is_found_out_again() -> None:
    engine = Engine()
    engine.look(SILENT, lasting=8)
    engine.seconds += SETTINGS.known_for
    assert engine.circuit.silence is None
    with suppress(EngineError), engine.circuit.admitted():
        assert engine.circuit.silence is not None  # for all others, while one finds out
        raise SILENT


def test_a_start_that_is_answered_closes_the_circuit() -> None:
    engine = Engine()
    engine.look(SILENT, lasting=8)
    engine.call(SILENT)
    assert not engine.look()
    engine.call()
    assert (engine.circuit.silence, engine.changes[-1]) == (None, None)
    assert engine.look()


Step = tuple[Literal["look", "wait"], float, bool]
STEPS = st.lists(st.tuples(st.sampled_from(["look", "wait"]), st.floats(0, 6), st.booleans()), max_size=60)


@given(steps=STEPS)
@settings(max_examples=200, deadline=None)
def test_an_open_circuit_lets_one_probe_through_at_a_time_and_never_stays_shut(steps: list[Step]) -> None:
    engine = Engine()
    engine.look(SILENT, lasting=8)
    ended = engine.seconds
    for kind, seconds, answers in steps:
        if kind == "wait":
            engine.seconds += seconds
            continue
        since = engine.seconds - ended
        if is_open := engine.changes[-1] is not None:
            with suppress(EngineError), engine.circuit.admitted():
                assert not engine.look(), "one at a time"
                raise AdapterBroke("it says nothing")
        sent = engine.look(None if answers else SILENT, lasting=seconds)
        assert sent or (is_open and since < SETTINGS.longest_pause)
        assert not (sent and is_open and since < SETTINGS.first_pause / 2)
        if sent:
            ended = engine.seconds
            assert not answers or engine.circuit.silence is None
