"""What fuzzing takes: how many inputs, how they are counted, and the odd JSON that people and machines send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar, overload

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_workflows.errors import RequestError

FUZZED: Final = "fuzzed"  # the name of the count in a test's report
LONGER: Final = 250  # times as many inputs in `make test-all`
SLOWEST: Final = 30_000  # milliseconds for one input: whatever takes longer hangs


def lengths(short: int) -> pytest.MarkDecorator:
    """A test with `inputs`: so many, the same ones each time, in `make test`; others, and more, in `make test-all`."""
    return pytest.mark.parametrize("inputs", [short, pytest.param(short * LONGER, marks=pytest.mark.slow)])


class Fuzz:
    """Runs checks on generated inputs, and counts these."""

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs
        self.ran = 0

    def __call__(self, check: Callable[[Any], None], strategy: st.SearchStrategy[Any]) -> None:
        """Check `inputs` of them; a failure shows the smallest that fails."""

        def counted(found: Any) -> None:
            self.ran += 1
            check(found)

        whole = settings(
            max_examples=self._inputs,
            deadline=SLOWEST,
            database=None,
            derandomize=self._inputs < LONGER,
            print_blob=True,
            suppress_health_check=[*HealthCheck],  # pyright: ignore[reportArgumentType]  # it is one
        )
        whole(given(strategy)(counted))()


@pytest.fixture
def fuzz(inputs: int, request: pytest.FixtureRequest) -> Iterator[Fuzz]:
    """For a test with `lengths`; the count goes into its report, and from there into the summary."""
    found = Fuzz(inputs)
    yield found
    request.node.user_properties.append((FUZZED, found.ran))


E = TypeVar("E", bound=Exception)


@overload
def refused(call: Callable[[], object]) -> RequestError | None: ...
@overload
def refused(call: Callable[[], object], kind: type[E]) -> E | None: ...
def refused(call: Callable[[], object], kind: type[Exception] = RequestError) -> Exception | None:
    """The error that says no, if that is what comes of it; whatever else is raised fails the test."""
    try:
        call()
    except kind as error:
        return error
    return None


# --- odd JSON

TEXT: Final = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(categories=["Cs", "Cc", "Co", "Cn", "Zl"]), max_size=5),  # halves, controls, nothing at all
    st.sampled_from(["", " ", "\x00", "null", "__proto__", "{{args}}", "' OR 1=1 --", "../../etc/passwd", "\ud800"]),
    st.integers(1, 70_000).map(lambda size: "x" * size),
)
NUMBERS: Final = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 2**31, 2**53, 2**63, 2**64, 10**400, -(10**400), 1e308, -0.0]),
)
SCALARS: Final = st.one_of(st.none(), st.booleans(), NUMBERS, TEXT)


def nested(depth: int) -> Any:  # Any: a JSON value
    """Lists and objects in each other, so many levels."""
    found: Any = 0
    for level in range(depth):
        found = [found] if level % 2 else {"x": found}
    return found


_USUAL: Final[st.SearchStrategy[Any]] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
)
VALUES: Final[st.SearchStrategy[Any]] = st.integers(0, 9).flatmap(  # Any: JSON values
    lambda number: _USUAL if number else st.integers(1, 500).map(nested)
)


def odd(**likely: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:  # Any: JSON values
    """An object with these members as they should be, or odd, or not there; and others."""
    members = {name: st.one_of(good, good, VALUES) for name, good in likely.items()}
    return st.builds(
        merged,
        st.dictionaries(TEXT, SCALARS, max_size=2),
        st.fixed_dictionaries({}, optional=members),
    )


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:  # Any: JSON values
    """Both; the other counts where both have something."""
    return {**one, **other}
