"""Functions with settings, in front of job APIs over HTTP that do not compare the input of a key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mcp_workflows.adapter import Adapter, Execution, Ref, Start, StartGuarantee, Status
from mcp_workflows.errors import (
    ConfigError,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    ExecutionNotFound,
    StartConflict,
)
from mcp_workflows.kit.functions import from_functions
from mcp_workflows.testing import AdapterContract, Role, Subject, lossy_proxy
from tests.support.served import serving

pytestmark = pytest.mark.anyio

CONFLICT = 409
STATES = {"done": Status.SUCCEEDED, "failed": Status.FAILED, "stopped": Status.CANCELLED}
START = Start(workflow="echo", arguments=["hi"], key="k", created=datetime.now(UTC))
REF = Ref(workflow="echo", handle="k")


@dataclass
class Runs:
    """An API that has one run for a name, and does not look at the input of a name that it knows."""

    refuses: bool  # with 409; otherwise it returns the run that it has
    runs: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    async def start(self, request: Request) -> JSONResponse:
        order = await request.json()
        known = order["name"] in self.runs
        state = {"echo": "done", "fail": "failed"}.get(order["kind"], "active")
        run = self.runs.setdefault(order["name"], {**order, "state": state})
        return JSONResponse(run, CONFLICT if known and self.refuses else 201)

    async def look(self, request: Request) -> JSONResponse:
        run = self.runs.get(request.path_params["name"])
        return JSONResponse(run) if run else JSONResponse({"detail": "there is no such run"}, 404)

    async def stop(self, request: Request) -> JSONResponse:
        run = self.runs.get(request.path_params["name"], {})
        if run.get("state") == "active":
            run["state"] = "stopped"
            return JSONResponse(run)
        return JSONResponse({"detail": "it is not active"}, CONFLICT if run else 404)

    def app(self) -> Starlette:
        """The application."""
        paths = {"/runs": (self.start, "POST"), "/runs/{name}": (self.look, "GET")}
        paths |= {"/runs/{name}/stop": (self.stop, "POST")}
        return Starlette(routes=[Route(path, do, methods=[method]) for path, (do, method) in paths.items()])


class RunsSettings(BaseModel):
    """What `engines:` may say."""

    address: str
    token: str = Field(default="", repr=False)


def connect(settings: RunsSettings) -> httpx2.Client:
    return httpx2.Client(base_url=settings.address, headers={"authorization": settings.token}, timeout=5)


def start(api: httpx2.Client, start: Start) -> str:
    order = {"name": start.key, "kind": start.workflow, "input": start.arguments, "digest": start.digest}
    reply = api.post("/runs", json=order).raise_for_status()
    return reply.json()["name"]


def run_of(api: httpx2.Client, handle: str) -> Mapping[str, Any]:
    return api.get(f"/runs/{handle}").raise_for_status().json()


def same(api: httpx2.Client, start: Start, handle: str) -> bool:
    return run_of(api, handle)["digest"] == start.digest


def taken(api: httpx2.Client, start: Start) -> str:
    return start.key


def describe(api: httpx2.Client, ref: Ref) -> Execution | Status:
    run = run_of(api, ref.handle)
    if run["state"] == "done":
        return Execution(status=Status.SUCCEEDED, output=run["input"])
    return STATES.get(run["state"], Status.RUNNING)


def cancel(api: httpx2.Client, ref: Ref) -> None:
    api.post(f"/runs/{ref.handle}/stop").raise_for_status()


runs = partial(
    from_functions,
    settings=RunsSettings,
    connect=connect,
    start=start,
    describe=describe,
    cancel=cancel,
    starts=StartGuarantee.KEYED,
    same=same,
    errors={404: {"cancel": ExecutionNotFound}, 409: {"cancel": None}},
)
ReturnsTheOldRun: type[Adapter] = runs()
RefusesTheName: type[Adapter] = runs(taken=taken)


class RunsContract(AdapterContract):
    """The laws, with replies that are lost on the way."""

    lacks = frozenset({"asks", "asks_two", "has_stopped", "refused"})

    kind: type[Adapter]
    refuses: bool

    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with (
            serving(Runs(refuses=self.refuses).app()) as url,
            lossy_proxy(int(urlsplit(url).port or 0)) as proxy,
        ):

            def made(port: int) -> Adapter:
                return self.kind(RunsSettings(address=f"http://127.0.0.1:{port}", token="s3cret"))

            yield Subject(
                new_adapter=lambda: made(proxy.port),
                finishes=Role(workflow="echo", arguments=["hi"]),
                output=["hi"],
                other_arguments=["ho"],
                fails=Role(workflow="fail"),
                failure="failed",
                endless=Role(workflow="forever"),
                unreachable=lambda: made(1),
                secret="s3cret",
                losing_replies=lambda _: proxy.losing(),
            )


class TestAnApiThatReturnsTheOldRun(RunsContract):
    """As Prefect: the key counts, its input does not."""

    kind = ReturnsTheOldRun
    refuses = False


class TestAnApiThatRefusesAKnownName(RunsContract):
    """As Airflow: 409 for the same input and for another one."""

    kind = RefusesTheName
    refuses = True


# --- keys


def of(**functions: Any) -> Adapter:
    make: Any = from_functions  # what is given may be wrong
    whole = {"start": gives("h"), "describe": gives(Status.RUNNING), "cancel": gives(None), **functions}
    return make(**{"starts": StartGuarantee.KEYED, **whole})


def gives(returned: object) -> Callable[..., Any]:
    return lambda *_: returned


def raising(error: Exception) -> Callable[..., Any]:
    def function(*_: object) -> None:
        raise error

    return function


async def test_the_execution_of_a_key_is_compared_with_the_order_that_it_is_started_for() -> None:
    asked: list[tuple[str, str]] = []

    async def same(start: Start, handle: str) -> bool:
        asked.append((start.key, handle))
        return bool(start.arguments == ["hi"])

    async with of(same=same) as adapter:
        assert await adapter.start(START) == "h"
        with pytest.raises(StartConflict, match="another workflow or with another input"):
            await adapter.start(replace(START, arguments=["ho"]))
    assert asked == [("k", "h")] * 2


async def test_an_engine_that_refuses_known_keys_is_asked_for_the_execution_only_then() -> None:
    asked: list[str] = []

    def same(start: Start, handle: str) -> bool:
        asked.append(handle)
        return True

    async with of(same=same, taken=gives("theirs")) as adapter:
        assert await adapter.start(START) == "h"
    assert asked == []
    table = {FileExistsError: StartConflict}
    async with of(start=raising(FileExistsError()), same=same, taken=gives("theirs"), errors=table) as adapter:
        assert await adapter.start(START) == "theirs"
    assert asked == ["theirs"]


@pytest.mark.parametrize("error", [EngineRefused("no"), ExecutionNotFound("gone"), KeyError(), OSError()], ids=repr)
async def test_a_comparison_that_fails_does_not_say_that_nothing_was_started(error: Exception) -> None:
    async with of(same=raising(error), errors={KeyError: ExecutionNotFound}) as adapter:
        with pytest.raises(EngineUnavailable) as raised:
            await adapter.start(START)
    assert raised.value.sent


@pytest.mark.parametrize(
    ("functions", "told"),
    [
        ({"same": gives(None)}, "same returned nothing: it must return True or False"),
        ({"same": gives("yes")}, "same returned a str"),
        (
            {"same": gives(True), "taken": gives(None), "start": raising(KeyError())},
            "taken returned nothing: it must return the handle",
        ),
    ],
)
async def test_a_comparison_without_a_result_says_so(functions: dict[str, Any], told: str) -> None:
    async with of(**functions, errors={KeyError: StartConflict}) as adapter:
        with pytest.raises(EngineUnavailable, match=told):
            await adapter.start(START)


@pytest.mark.parametrize(
    ("functions", "told"),
    [
        ({"same": same, "starts": StartGuarantee.ONCE}, "are about keys: give starts=StartGuarantee.KEYED"),
        ({"taken": taken}, "`taken` needs `same`"),
    ],
)
def test_functions_that_do_not_fit_together_are_refused(functions: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        of(**functions)
    with pytest.raises(ConfigError, match=told):
        of(settings=RunsSettings, **functions)


def test_the_digest_of_an_order_stands_for_workflow_and_arguments_alone() -> None:
    same_order = replace(START, key="other", options={"queue": "big"}, created=datetime.now(UTC))
    assert len(START.digest) == 32
    assert same_order.digest == START.digest
    assert len({START.digest, replace(START, workflow="w").digest, replace(START, arguments=[]).digest}) == 3


# --- the table of errors


@contextmanager
def answering(status: int) -> Generator[Callable[..., Any]]:
    """A function that raises what httpx2 raises for this status."""
    request = httpx2.Request("POST", "http://jobs")
    response = httpx2.Response(status, request=request, json={"detail": "not so"})
    yield raising(httpx2.HTTPStatusError("s3cret", request=request, response=response))


async def outcomes(status: int, errors: Any) -> Mapping[str, Any]:
    """The kind of error of each verb; None: there was none."""
    found: dict[str, Any] = {}
    with answering(status) as call:
        made = of(start=call, describe=call, cancel=call, answer=call, errors=errors)
    async with made as adapter:
        verbs: Mapping[str, tuple[Any, ...]] = {
            "start": (START,),
            "describe": (REF,),
            "answer": (REF, {}),
            "cancel": (REF,),
        }
        for verb, given in verbs.items():
            try:
                await getattr(adapter, verb)(*given)
                found[verb] = None
            except EngineError as error:
                assert str(error).startswith(f"it answered {status}: not so")  # noqa: PT017  # each verb may raise
                found[verb] = type(error)
    return found


@pytest.mark.parametrize(
    ("status", "errors", "changed"),
    [
        (409, {409: StartConflict}, {"start": StartConflict}),
        (404, {404: ExecutionNotFound}, dict.fromkeys(("describe", "answer", "cancel"), ExecutionNotFound)),
        (404, {404: EngineUnavailable}, dict.fromkeys(("start", "describe", "answer", "cancel"), EngineUnavailable)),
        (409, {409: None}, {"answer": None, "cancel": None}),
        (409, {409: {"start": StartConflict, "cancel": None}}, {"start": StartConflict, "cancel": None}),
        (400, {400: partial(EngineRefused, final=True)}, {"describe": EngineRefused}),
        (409, {410: StartConflict, httpx2.HTTPStatusError: {"cancel": None}, 409: StartConflict}, {
            "start": StartConflict, "cancel": None,
        }),
    ],
)  # fmt: skip
async def test_an_entry_counts_at_the_verbs_where_its_error_has_a_meaning(
    status: int, errors: Any, changed: Mapping[str, Any]
) -> None:
    assert await outcomes(status, errors) == {**await outcomes(status, {}), **changed}


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ({200: EngineRefused}, "200 is neither an exception class nor an HTTP status of 300 to 599"),
        ({int: EngineRefused}, "int is no exception"),
        (
            {409: StartConflict("taken")},
            r"409: StartConflict\('taken'\) is neither a class of EngineError nor a function",
        ),
        ({409: {"start": ValueError}}, "409: <class 'ValueError'> is neither a class of EngineError nor a function"),
        ({409: {"stop": None}}, "409: 'stop' is none of start, describe, answer, cancel"),
        ({409: {"start": None}}, "409: None has no meaning at start"),
        ({KeyError: {"start": ExecutionNotFound}}, "KeyError: ExecutionNotFound has no meaning at start"),
        ({409: {"cancel": StartConflict}}, "409: StartConflict has no meaning at cancel"),
    ],
)
def test_an_entry_that_can_never_count_is_refused(errors: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        of(errors=errors)
    with pytest.raises(ConfigError, match=told):
        of(errors=errors, settings=RunsSettings)


# --- settings


async def test_the_client_is_open_while_the_adapter_is_and_may_be_async() -> None:
    async def describe(api: httpx2.AsyncClient, ref: Ref) -> Status:
        assert not api.is_closed
        opened.append(api)
        return STATES[(await api.get(f"/runs/{ref.handle}")).raise_for_status().json()["state"]]

    opened: list[httpx2.AsyncClient] = []
    kind = from_functions(
        settings=RunsSettings,
        connect=lambda settings: httpx2.AsyncClient(base_url=settings.address),
        start=lambda api, start: start.key,
        describe=describe,
        cancel=lambda api, ref: None,
    )
    served = Runs(refuses=False, runs={"k": {"state": "done"}})
    async with serving(served.app()) as url:
        adapter = kind(RunsSettings(address=f"http://127.0.0.1:{urlsplit(url).port}"))
        for _ in range(2):  # entered again, as a server may be
            async with adapter:
                assert (await adapter.describe(REF)).status is Status.SUCCEEDED
    assert len({id(api) for api in opened}) == 2
    assert all(api.is_closed for api in opened)
