"""All that engines say: whatever place it is in, it reaches people and models visible, bounded and harmless."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, get_type_hints

import pytest

from mcp_workflows.adapter import Execution, ExecutionStep, Failure, InputRequest, Progress, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines, validated
from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.tooling import Discovered, Exposed
from mcp_workflows.sidecar.engine_checks import described
from mcp_workflows.store.rows import Rows
from mcp_workflows.tasks.results import failure_result
from mcp_workflows.testing import make_task

pytestmark = pytest.mark.anyio

HOSTILE: Final = "pay\x00\x1b]8;;x\x07\u202e\u2066\u200b\u200d\ufeff\U000e0041\U000e0042\r\n\x9b31m" + "x" * 2_000_000
LARGEST: Final = 100_000  # characters of a text that any client gets
FORM: Final = {
    "type": "object",
    "title": HOSTILE,
    "description": HOSTILE,
    "properties": {
        "title": {"type": "string", "title": HOSTILE, "description": HOSTILE},
        "pick": {"type": "string", "enum": ["a"], "enumNames": [HOSTILE]},
        "one": {"oneOf": [{"const": "a", "title": HOSTILE}]},
        "many": {"type": "array", "items": {"anyOf": [{"const": "a", "title": HOSTILE}]}},
    },
}
SMALL_FORM: Final = json.loads(json.dumps(FORM).replace("x" * 2_000_000, "x" * 5_000))


def hostile(texts: Any) -> Iterator[str]:
    """Yield what is wrong with the texts in a value."""
    written = json.dumps(texts, ensure_ascii=False)
    if len(written) > LARGEST:
        yield f"{len(written)} characters"
    yield from (
        hex(ord(each)) for each in json.loads(json.dumps(written)) if unicodedata.category(each) in {"Cc", "Cf"}
    )
    yield from (word for word in ("\\u001b", "\\u0000", "\\u0007", "\\u009b") if word in written)


def execution(**more: Any) -> Execution:
    given: dict[str, Any] = {"status": Status.RUNNING, **more}  # Any: fields of `Execution`
    return Execution(**given)


EXECUTIONS: Mapping[str, Callable[[], Execution]] = {
    "status message": lambda: execution(message=HOSTILE),
    "step": lambda: execution(steps=(ExecutionStep(name=HOSTILE, status=Status.RUNNING),) * 2),
    "progress": lambda: execution(progress=Progress(value=1), message=HOSTILE),
    "failure": lambda: execution(
        status=Status.FAILED,
        failure=Failure(text=HOSTILE, kind=HOSTILE, step=HOSTILE, details={HOSTILE[:100]: [HOSTILE[:100]]}),
    ),
    "large details": lambda: execution(status=Status.FAILED, failure=Failure(text="a", details=[HOSTILE])),
    "id": lambda: execution(execution_id=HOSTILE),
    "link": lambda: execution(url=f"https://example.com/{HOSTILE}"),
    "question": lambda: asking({"mode": "form", "message": HOSTILE, "requestedSchema": SMALL_FORM}),
    "large question": lambda: asking({"mode": "form", "message": "a", "requestedSchema": FORM}),
    "page": lambda: asking({"mode": "url", "message": HOSTILE[:100], "url": f"https://example.com/{HOSTILE[:100]}"}),
    "meta": lambda: asking(
        {"message": "a", "requestedSchema": {}, "_meta": {"ui": HOSTILE[:100]}, "task": HOSTILE[:100]}
    ),
}


def asking(params: Mapping[str, Any]) -> Execution:
    request = InputRequest(method="elicitation/create", params=params)
    return execution(status=Status.INPUT_REQUIRED, requests={"q": request})


@pytest.mark.parametrize("place", EXECUTIONS)
def test_no_place_of_an_execution_carries_a_hostile_text(place: str) -> None:
    found = validated(EXECUTIONS[place]())
    steps = [step.name for step in found.steps]
    params = [dict(request.params) for request in found.requests.values()]
    failure = found.failure and asdict(found.failure)
    assert not list(hostile([found.message, failure, found.execution_id, found.url, steps, params]))
    names = [*steps, found.execution_id, *((found.failure.kind, found.failure.step) if found.failure else ())]
    assert [name for name in names if name and "\n" in name] == []


def test_every_text_of_an_execution_is_in_the_list() -> None:
    """A new text in `Execution` must be cleaned, too."""
    texts = [
        {name for name, kind in get_type_hints(holder).items() if kind in (str, str | None)}
        for holder in (Execution, Failure)
    ]
    assert texts == [{"message", "execution_id", "url"}, {"text", "kind", "step"}]


HALF: Final = "half of a pair: \ud800"


@pytest.mark.parametrize("message", [None, HALF])
@pytest.mark.parametrize("odd", [10**400, -(10**400), float("inf"), float("nan")], ids=str)
def test_a_progress_that_is_not_finite_is_unknown_and_breaks_no_row(odd: float, message: str | None) -> None:
    def kept(progress: Progress) -> Progress | None:
        task = make_task(execution=validated(execution(message=message, progress=progress)))
        return Rows().readable((task.id, task.owner, Rows().text(task))).execution.progress

    assert kept(Progress(value=odd)) is None
    assert kept(Progress(value=1, total=odd)) == Progress(value=1)


def test_half_a_character_takes_no_other_value_along() -> None:
    at = datetime(2026, 11, 28, tzinfo=UTC)
    steps = (ExecutionStep(name=HALF, status=Status.RUNNING, at=at),)
    assert [step.at for step in validated(execution(steps=steps)).steps] == [at]
    done = execution(status=Status.SUCCEEDED, output={HALF: [float("nan"), float("inf"), 1]})
    assert list(validated(done).output.values()) == [[None, None, 1]]


@pytest.mark.parametrize("kind", [Exposed, Discovered])
def test_no_word_for_a_workflow_is_hostile(kind: type[Exposed] | type[Discovered]) -> None:
    schema = {
        **SMALL_FORM,
        HOSTILE: {"enum": [HOSTILE], "examples": [HOSTILE], "$comment": HOSTILE, "default": HOSTILE},
    }
    words: dict[str, Any] = {"workflow": "a", "title": HOSTILE, "description": HOSTILE, "input": schema}
    found = described(Exposed(name="a", source="a", **words)) if kind is Exposed else described(Discovered(**words))
    assert not list(hostile([found.title, found.description, found.input]))


def test_a_pattern_of_a_schema_stays_the_rule_that_it_is() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^\t{4}$"}}}
    assert described(Discovered(workflow="a", input=schema)).input == schema


async def test_an_error_of_an_engine_is_cleaned_as_its_other_texts_are() -> None:
    async with Engines({"here": MemoryAdapter(MemorySettings())}) as engines:
        with pytest.raises(EngineRefused) as raised:
            async with engines.calling("here"):
                raise EngineRefused(HOSTILE)
    assert not list(hostile(str(raised.value)))


@pytest.mark.parametrize("url", ["javascript:alert(1)", "http://example.com/", "https://u:p@example.com/", None])
def test_a_question_that_sends_people_to_an_unsafe_address_is_not_asked(url: str | None) -> None:
    found = validated(asking({"mode": "url", "message": "Log in", "url": url, "elicitationId": "e"}))
    assert (found.status, found.requests) == (Status.RUNNING, {})
    assert "cannot be shown" in str(found.message)


def test_a_question_in_form_mode_smuggles_no_link() -> None:
    params: dict[str, Any] = {"mode": "form", "message": "a", "requestedSchema": {}, "url": "javascript:alert(1)"}
    assert not validated(asking(params)).requests


SECRET: Final = "postgres://app:hunter22@db/orders"
SECRETS: Mapping[str, Callable[[], Execution]] = {
    "status message": lambda: execution(message=SECRET),
    "step": lambda: execution(steps=(ExecutionStep(name=SECRET, status=Status.RUNNING),)),
    "output": lambda: execution(status=Status.SUCCEEDED, output={"deep": [SECRET], "password": "hunter22"}),
    "failure": lambda: execution(status=Status.FAILED, failure=Failure(text=SECRET, data={"why": SECRET})),
    "details": lambda: execution(status=Status.FAILED, failure=Failure(text="a", details=[{"password": "hunter22"}])),
    "text in details": lambda: execution(status=Status.FAILED, failure=Failure(text="a", details="token=hunter22")),
    "kind and step": lambda: execution(status=Status.FAILED, failure=Failure(text="a", kind=SECRET, step=SECRET)),
    "question": lambda: asking({"mode": "form", "message": SECRET, "requestedSchema": {}}),
}


@pytest.mark.parametrize("place", SECRETS)
def test_no_place_of_an_execution_carries_a_credential(place: str) -> None:
    found = repr(validated(SECRETS[place]()))
    assert "hunter22" not in found
    assert "***" in found


TRACES: Final[Mapping[str, Any]] = {
    "Python": {
        "why": 'declined\nTraceback (most recent call last):\n  File "pay.py", line 7, in charge\n    secret()\n'
    },
    "Java": ["declined\n\tat com.example.Pay.charge(Pay.java:17)\n\tsecret"],
    "JavaScript": "declined\n    at charge (file:///pay.js:7:11)\n    secret",
    "Go": "declined\ngoroutine 1 [running]:\n\tsecret",
    "member": {"why": "declined", "stackTrace": ["secret"], "nested": {"stack_trace": "secret", "Traceback": "secret"}},
}


@pytest.mark.parametrize("schema", [None, {"type": "object"}], ids=["no schema", "schema"])
@pytest.mark.parametrize("language", TRACES)
def test_no_stack_trace_crosses_with_the_details_of_a_failure(language: str, schema: Mapping[str, Any] | None) -> None:
    failed = validated(execution(status=Status.FAILED, failure=Failure(text="no", details=TRACES[language])))
    written = json.dumps(failure_result(failed.failure, schema))
    assert "declined" in written
    assert not [word for word in ("secret", "charge", "goroutine", "Trace", "stack") if word in written]


def test_details_that_cannot_be_kept_are_left_out_and_the_failure_stays() -> None:
    failed = validated(execution(status=Status.FAILED, failure=Failure(text="no", details={"why": object()})))
    assert failed.failure == Failure(text="no")
