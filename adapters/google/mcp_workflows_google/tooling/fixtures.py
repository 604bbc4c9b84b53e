"""Workflows with known behaviour for `mcp-workflows check --live`, and questions that only Google can answer.

A question is a generator of observations about a deployment; it blocks, and its docstring is shown.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# Reason: the official clients are partly typed.

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, cast

from google.api_core.exceptions import GoogleAPICallError
from google.cloud.workflows.executions_v1 import Execution
from httpx2 import HTTPError

from mcp_workflows.adapter import Fixtures, Observation, Role
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows.testing.engine_questions import deployed, expect, expect_one_of
from mcp_workflows.testing.laws import NotTried, until_found
from mcp_workflows_google.client import Client
from mcp_workflows_google.credentials import AUTH_ERRORS, credentials_error
from mcp_workflows_google.resources import KEY_LABEL as KEY
from mcp_workflows_google.settings import GoogleSettings
from mcp_workflows_google.start import MAX_ARGUMENT
from mcp_workflows_google.tooling.deployment import PREFIX, Deployment, FixtureSettings, answer, code

NOTICE: Final = (
    "Some 20 small workflows named mcp-workflows-verify-... are deployed, run a few times each, and removed. That "
    "takes about ten minutes, as Google's list may lag, and costs less than a cent. The credentials need "
    "roles/workflows.admin on the project, and roles/iam.serviceAccountUser on the account that the workflows run as."
)
LISTED: Final = 180.0  # seconds until an existing resource is listed
SETTLE: Final = 60.0  # seconds: the default of `settle`
_LABELLED: Final = (
    'labels.{key}="{value}"',
    'labels."{key}"="{value}"',
    'label.{key}="{value}"',
    "labels.{key}:{value}",
)
_STATE: Final = 'state="{}"'
_NUMBER: Final = re.compile(r"projects/\d+/")
State = Execution.State

ECHO: Final = "main: {params: [args], steps: [{answer: {return: '${args}'}}]}"
NOTHING: Final = "main: {steps: [{pause: {assign: [{x: 1}]}}]}"
NULL: Final = "main: {steps: [{answer: {return: null}}]}"
SLEEP: Final = """
main: {steps: [{inside: {call: nap}}]}
nap: {steps: [{napping: {call: sys.sleep, args: {seconds: 300}}}]}
"""
TEXT: Final = "main: {steps: [{no: {raise: my error}}]}"
MAP: Final = "main: {steps: [{no: {raise: {code: 7, message: no}}}]}"
DIVIDED: Final = "main: {steps: [{no: {assign: [{x: '${1 / 0}'}]}}]}"
ENV: Final = """
main:
  steps:
    - answer:
        return:
          project: ${sys.get_env("GOOGLE_CLOUD_PROJECT_ID")}
          number: ${sys.get_env("GOOGLE_CLOUD_PROJECT_NUMBER")}
          location: ${sys.get_env("GOOGLE_CLOUD_LOCATION")}
          workflow: ${sys.get_env("GOOGLE_CLOUD_WORKFLOW_ID")}
          execution: ${sys.get_env("GOOGLE_CLOUD_WORKFLOW_EXECUTION_ID")}
          set: ${sys.get_env("MCP_WORKFLOWS_URL")}
"""
_OPENS: Final = """
main:
  steps:
    - open: {call: events.create_callback_endpoint, args: {http_callback_method: POST}, result: callback}
"""
_AWAITS: Final = """
    - wait: {call: events.await_callback, args: {callback: "${callback}", timeout: 300}, result: request}
"""
TAKES: Final = f"{_OPENS}{_AWAITS}    - after: {{call: sys.sleep, args: {{seconds: 300}}}}"
WAITS: Final = (
    f'{_OPENS}{_AWAITS}    - answer: {{return: {{url: "${{callback.url}}", body: "${{request.http_request.body}}"}}}}'
)
WAITS_LATER: Final = (
    f"{_OPENS}    - pause: {{call: sys.sleep, args: {{seconds: 6}}}}{_AWAITS}"
    '    - answer: {return: "${request.http_request.body}"}'
)
POSTS: Final = """
main:
  params: [args]
  steps:
    - post:
        try:
          call: http.post
          args: {url: "${args.url}", auth: {type: OIDC, audience: "${args.audience}"}, body: {}}
          result: reply
        except:
          as: error
          steps: [{refused: {return: "${map.get(error, [\\"code\\"])}"}}]
    - taken: {return: "${reply.code}"}
"""
_FAILURE: Final = "the card was declined"
_FAILS: Final = f"main: {{steps: [{{charging: {{raise: {{code: 402, message: {_FAILURE}, tags: [CardDeclined]}}}}}}]}}"
_SOURCES: Final[Mapping[str, str]] = {"finishes": ECHO, "fails": _FAILS, "endless": SLEEP}
_OTHER_WORKFLOW: Final = (
    "executions are listed by workflow; keys are made of the tool, so no two workflows get the same one"
)


@asynccontextmanager
async def fixtures(client: Client, engine: GoogleSettings, settings: FixtureSettings) -> AsyncGenerator[Fixtures]:
    """Deploy the workflows, and remove them at the end.

    Raises:
        EngineRefused, EngineUnavailable: they cannot be deployed or removed.
    """
    place = (await client.place()).name
    open_deployment = partial(Deployment.open, engine, place, settings)
    async with deployed(open_deployment, _deploy, partial(_translated, engine)) as found:
        echo = found.parts["finishes"]
        asks = Role(workflow="", missing="questions come in over HTTP: see --set sidecar=URL, at the end")
        yield Fixtures(
            finishes=Role(workflow=echo, arguments=[{"text": "hi"}]),
            output={"text": "hi"},
            other_arguments=[{"text": "ho"}],
            fails=Role(workflow=found.parts["fails"]),
            failure=_FAILURE,
            endless=Role(workflow=found.parts["endless"]),
            asks=asks,
            asks_two=asks,
            refused=Role(workflow=f"{echo}-nobody"),
            unknown_handle=f"{echo}/executions/{uuid.uuid4()}",
            gaps={"another_workflow_under_the_same_key_is_refused": _OTHER_WORKFLOW},
            questions=found.questions(QUESTIONS),
        )


def _deploy(at: Deployment) -> Mapping[str, str]:
    return {part: at.workflow(source) for part, source in _SOURCES.items()}


@contextmanager
def _translated(engine: GoogleSettings) -> Generator[None]:
    try:
        yield
    except GoogleAPICallError as error:
        raise EngineRefused(f"Google says {code(error)}") from None
    except HTTPError as error:
        raise EngineUnavailable(f"Google cannot be asked ({type(error).__name__})") from None
    except AUTH_ERRORS as error:
        raise credentials_error(error, engine) from None


def names(at: Deployment) -> Iterator[Observation]:
    """Names of executions have the project's id or its number, the same in every answer."""
    name = at.start(at.workflow(ECHO), "1")
    shapes = [name, at.get(name).name, *(row.name for row in at.listed(name.rpartition("/executions/")[0]))]
    kinds = {"number" if _NUMBER.match(shape) else "id" for shape in shapes}
    yield Observation(expected="one of them", seen=", ".join(sorted(kinds)), ok=len(kinds) == 1)
    by_id = f"{at.place}/workflows/{name.partition('/workflows/')[2]}"
    yield expect("accepted", answer(lambda: at.get(by_id)))


def starts_again(at: Deployment) -> Iterator[Observation]:
    """Two creates with one label are two executions, and both are listed soon."""
    workflow, key = at.workflow(ECHO), uuid.uuid4().hex
    began = time.monotonic()
    two = {at.start(workflow, "1", mcp_workflows_key=key) for _ in range(2)}
    yield expect("2 executions", f"{len(two)} executions")
    until_found(lambda: {row.name for row in at.listed(workflow)} >= two or None, "both in the list", LISTED)
    lag = time.monotonic() - began
    yield Observation(expected=f"listed within {SETTLE:g} s", seen=f"after {lag:.1f} s", ok=lag < SETTLE)
    rows = [row for row in at.listed(workflow, full=True) if row.name in two]
    yield expect(
        "labels in the FULL view", "labels in the FULL view" if all(row.labels for row in rows) else "no labels"
    )


def filters_labels(at: Deployment) -> Iterator[Observation]:
    """The filter of a list by a label with dashes in its key: the spelling that finds it, and only it."""
    workflow, key = at.workflow(ECHO), uuid.uuid4().hex
    mine = at.start(workflow, "1", mcp_workflows_key=key)
    at.start(workflow, "1", mcp_workflows_key="another")
    until_found(lambda: len(at.listed(workflow)) > 1 or None, "both in the list", LISTED)
    for number, spelling in enumerate(_LABELLED):
        only = spelling.format(key=KEY, value=key)
        found: list[str] = []
        said = _listing(at, workflow, only, found)
        text = said if said != "accepted" else "finds it" if found == [mine] else f"finds {len(found)} of 1"
        ours = number == 0  # the adapter's first choice; others matter only if it fails
        yield Observation(expected="finds it", seen=f"{spelling}: {text}", ok=text == "finds it" if ours else None)


def filters_states(at: Deployment) -> Iterator[Observation]:
    """The filter of a list by state and by start time, and the order of a list."""
    workflow = at.workflow(ECHO)
    first, second = at.start(workflow, "1"), at.start(workflow, "2")
    for name in (first, second):
        at.ended(name)
    until_found(lambda: len(at.listed(workflow)) > 1 or None, "both in the list", LISTED)
    for state, rows in (("SUCCEEDED", "2 rows"), ("ACTIVE", "0 rows"), ("QUEUED", "0 rows")):
        yield expect(f"{state}: {rows}", f"{state}: {len(at.listed(workflow, _STATE.format(state)))} rows")
    for since, rows in ((timedelta(minutes=5), "2 rows"), (-timedelta(minutes=5), "0 rows")):
        when = (datetime.now(UTC) - since).strftime("%Y-%m-%dT%H:%M:%SZ")
        found: list[str] = []
        said = _listing(at, workflow, f'startTime>="{when}"', found)
        yield expect(rows, f"{len(found)} rows" if said == "accepted" else said)
    yield expect("newest first", "newest first" if at.listed(workflow)[0].name == second else "another order")


def _listing(at: Deployment, workflow: str, only: str, found: list[str]) -> str:
    """Add the executions that match a filter, and return the status of the call."""
    return answer(lambda: found.extend(row.name for row in at.listed(workflow, only)))


def basic_view(at: Deployment) -> Iterator[Observation]:
    """The fields of the BASIC view."""
    row = at.get(at.start(at.workflow(ECHO), "1", a="b"), full=False)
    has = [field for field in ("argument", "result", "labels", "status") if getattr(row, field)]
    yield Observation(expected="none of argument, result, labels, status", seen=", ".join(has) or "none", ok=not has)


def results(at: Deployment) -> Iterator[Observation]:
    """The result of a workflow that returns null, and of one that returns nothing."""
    yield expect("null", at.ended(at.start(at.workflow(NULL))).result)
    yield expect_one_of(("null", ""), at.ended(at.start(at.workflow(NOTHING))).result)


def payloads(at: Deployment) -> Iterator[Observation]:
    """The payload and the context of an error: a text, a map, one of Google's own."""
    found = {source: at.ended(at.start(at.workflow(source))).error for source in (TEXT, MAP, DIVIDED)}
    yield expect('"my error"', found[TEXT].payload)
    yield expect("code, message", _keys(found[MAP].payload))
    own = _keys(found[DIVIDED].payload)
    yield Observation(expected="message, tags", seen=own, ok={"message", "tags"} <= {*own.split(", ")})
    context = found[TEXT].context
    yield Observation(
        expected='in step "no", routine "main"', seen=context, ok='in step "no", routine "main"' in context
    )


def _keys(payload: str) -> str:
    try:
        value = json.loads(payload)
    except ValueError:
        return payload
    return ", ".join(sorted(map(str, cast("dict[str, object]", value)))) if isinstance(value, dict) else payload


def cancels(at: Deployment) -> Iterator[Observation]:
    """A cancellation: the time until it shows, its error, and another one after the end."""
    name = at.start(at.workflow(SLEEP))
    until_found(lambda: at.get(name).status.current_steps or None, "a step")
    steps = [(step.routine, step.step) for step in at.get(name).status.current_steps]
    yield expect("[('nap', 'napping')]", steps)
    began = time.monotonic()
    at.cancel(name)
    ended = at.ended(name)
    yield Observation(
        expected="CANCELLED",
        seen=f"{State(ended.state).name} after {time.monotonic() - began:.1f} s",
        ok=ended.state == State.CANCELLED,
    )
    again = answer(lambda: at.cancel(name))
    yield expect_one_of(("FAILED_PRECONDITION", "accepted"), again)


def derives_callbacks(at: Deployment) -> Iterator[Observation]:
    """The URL of a callback follows from its name in the list, takes an OAuth token, and the workflow knows it."""
    name = at.start(at.workflow(WAITS))
    callback = until_found(
        lambda: next((row for row in at.callbacks(name) if int(row.get("waiters", 0))), None), "a waiter"
    )
    identity = str(callback["name"]).rpartition("/")[2]
    path = f"/v1/{name}/callbacks/{identity}"
    yield expect_one_of(("405", "404"), str(at.deliver(path, None, "PATCH")))
    yield expect("200", at.deliver(path, {"a": 1}))
    found = json.loads(at.ended(name).result)
    yield expect('{"a": 1}', json.dumps(found["body"]))
    yield Observation(expected=path, seen=str(found["url"]), ok=_path(str(found["url"])) == path)
    yield expect_one_of(("404",), str(at.deliver(path, {"a": 2})))
    yield expect("0 callbacks", f"{len(at.callbacks(name))} callbacks")


def _path(url: str) -> str:
    return "/" + url.partition("://")[2].partition("/")[2]


def keeps_payloads(at: Deployment) -> Iterator[Observation]:
    """A callback that nobody awaits yet keeps a request; the list shows it, and a second request is refused."""
    name = at.start(at.workflow(WAITS_LATER))
    identity = str(at.waiting(name)["name"]).rpartition("/")[2]
    path = f"/v1/{name}/callbacks/{identity}"
    yield expect_one_of(("200",), str(at.deliver(path, {"a": 1})))
    payloads = [payload for row in at.callbacks(name) for payload in row.get("availablePayloads", ())]
    yield Observation(
        expected="1 payload", seen=f"{len(payloads)} payload: {str(payloads)[:200]}", ok=len(payloads) == 1
    )
    yield expect("429", at.deliver(path, {"a": 2}))
    yield expect('{"a": 1}', json.dumps(json.loads(at.ended(name).result)))


def shows_who_waits(at: Deployment) -> Iterator[Observation]:
    """The list shows who awaits a callback, also once its request was taken."""
    name = at.start(at.workflow(TAKES))
    awaited = until_found(lambda: _awaited(at, name), f"a callback of {name} that is awaited", LISTED)
    identity = str(awaited[0]["name"]).rpartition("/")[2]
    yield expect("200", at.deliver(f"/v1/{name}/callbacks/{identity}", {}))
    until_found(lambda: "after" in [each.step for each in at.get(name).status.current_steps], f"{name} after its wait")
    listed, left = len(at.callbacks(name)), len(_awaited(at, name))
    yield Observation(expected="nobody waits", seen=f"{listed} listed, {left} of them awaited", ok=not left)


def _awaited(at: Deployment, name: str) -> Sequence[Mapping[str, object]]:
    return [row for row in at.callbacks(name) if int(row.get("waiters", 0)) and not row.get("availablePayloads")]


def refuses(at: Deployment) -> Iterator[Observation]:
    """The refusals: of a workflow, an execution, a location that is not there, of an argument that is too large."""
    workflow = at.workflow(ECHO)
    yield expect("NOT_FOUND", answer(lambda: at.start(f"{at.place}/workflows/{PREFIX}-not")))
    yield expect("NOT_FOUND", answer(lambda: at.get(f"{workflow}/executions/{uuid.uuid4()}")))
    nowhere = re.sub(r"locations/.*?/", "locations/moon-east1/", f"{at.place}/workflows/x")
    yield expect_one_of(("NOT_FOUND", "PERMISSION_DENIED", "INVALID_ARGUMENT"), answer(lambda: at.start(nowhere)))
    yield expect("accepted", answer(lambda: at.start(workflow, json.dumps("x" * (MAX_ARGUMENT - 2)))))
    yield expect("INVALID_ARGUMENT", answer(lambda: at.start(workflow, json.dumps("x" * (MAX_ARGUMENT - 1)))))
    yield expect("INVALID_ARGUMENT", answer(lambda: at.start(workflow, "1", Bad="x")))


def labels(at: Deployment) -> Iterator[Observation]:
    """A labelled workflow in the list: its filter, its source, and the labels of its executions."""
    value = uuid.uuid4().hex
    workflow = at.workflow(ECHO, labels={"mcp-tool": value}, description="Verify.")
    until_found(lambda: [row for row in at.deployed() if row.labels.get("mcp-tool") == value], "it in the list", LISTED)
    inherited = dict(at.get(at.start(workflow, "1")).labels)
    yield Observation(expected="no key of ours", seen=str(inherited), ok=KEY not in inherited)


def environment(at: Deployment) -> Iterator[Observation]:
    """The environment of a workflow has the id of its execution, as its name has it."""
    name = at.start(at.workflow(ENV, user_env_vars={"MCP_WORKFLOWS_URL": "https://tasks.example.com"}))
    known: Mapping[str, object] = json.loads(at.ended(name).result)
    yield expect(name.rpartition("/")[2], known["execution"])
    yield expect(name.partition("/workflows/")[2].partition("/")[0], known["workflow"])
    yield expect("https://tasks.example.com", known["set"])


def reaches_the_sidecar(at: Deployment) -> Iterator[Observation]:
    """`http.post` with an OpenID Connect token reaches the sidecar, which trusts it and refuses an empty question."""
    sidecar = at.settings.sidecar
    if sidecar is None:
        raise NotTried(
            "name a sidecar that Google can reach, and whose inbound.accounts has the account: --set sidecar=URL"
        )
    url = f"{sidecar.rstrip('/')}/input"
    name = at.start(at.workflow(POSTS), json.dumps({"url": url, "audience": at.settings.audience or sidecar}))
    yield expect("400", at.ended(name).result)


QUESTIONS: Final[Sequence[Callable[[Deployment], Iterator[Observation]]]] = (
    *(names, starts_again, filters_labels, filters_states, basic_view, results, payloads, cancels),
    *(derives_callbacks, keeps_payloads, shows_who_waits, refuses, labels, environment, reaches_the_sidecar),
)
