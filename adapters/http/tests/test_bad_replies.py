"""What an API may answer: nothing of it loses an execution, starts one twice, or shows a secret."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from mcp_workflows_http import HttpAdapter, HttpSettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from adapters.http.tests.jobs_api import DEFINITION, FIND, TOKEN, JobsApi, jobs_api
from mcp_workflows.adapter import Execution, Ref, Start, Status
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows.store.key_value import notes_in
from mcp_workflows.store.protocol import open_store
from mcp_workflows.testing import MemoryNotes
from tests.support.served import serving

pytestmark = pytest.mark.anyio

Served = Callable[[Request], Awaitable[Response]]


class Here:
    """An API, and the adapter of it."""

    def __init__(self, api: JobsApi, adapter: HttpAdapter) -> None:
        self.api = api
        self.adapter = adapter

    async def start(self, workflow: str = "echo", key: str = "k", arguments: Any = None) -> str:
        """The handle."""
        return await self.adapter.start(start(workflow, key, arguments))

    async def describe(self, handle: str) -> Execution:
        """What is told of it."""
        return await self.adapter.describe(Ref(workflow="echo", handle=handle))


def start(workflow: str = "echo", key: str = "k", arguments: Any = None) -> Start:
    return Start(workflow=workflow, arguments=arguments or {}, key=key, created=datetime.now(UTC))


@asynccontextmanager
async def here(*, dedupes: bool = True, **more: Any) -> AsyncGenerator[Here]:
    async with jobs_api(dedupes=dedupes) as (api, url):
        settings = HttpSettings.model_validate({**DEFINITION, "url": url, **more})
        async with HttpAdapter(settings) as adapter:
            yield Here(api, adapter)


def answering(response: Response) -> Served:
    async def served(request: Request) -> Response:
        return response

    return served


HTML = HTMLResponse("<html><body>Sign in</body></html>")


async def test_a_word_that_no_map_names_is_running_and_said() -> None:
    async with here() as found:
        seen = await found.describe(await found.start("odd"))
    assert seen.status is Status.RUNNING
    assert seen.message == "the engine says 'sleeping', which the map of statuses does not name"


async def test_a_word_that_no_map_names_is_a_finding_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(f"sqlite:///{tmp_path}/tasks.db") as store, here() as found:
        found.adapter.remember(notes_in(store)("jobs"))
        await found.describe(await found.start("odd"))
        assert (await found.adapter.tooling.check_engine()).ok
        monkeypatch.setattr("mcp_workflows.kit.kept_definitions._TELL_AFTER", timedelta(0))
        finding = await found.adapter.tooling.check_engine()
    assert finding.text == "its status 'sleeping' has been in no map for a day: a task with it goes on for ever"
    assert not finding.ok


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (JSONResponse({"identifier": 1}, status_code=201), "it answered 201 with no handle at {{reply.body.id}}"),
        (HTMLResponse("<html>", status_code=200), "it answered 200 with no JSON: it may have been started"),
        (JSONResponse({"id": "x" * 6_000_000}), "more than 5000000 bytes"),
        (JSONResponse({"error": "down"}, status_code=503), "it answered 503"),
        (HTMLResponse("<html>not here</html>", status_code=404), "with a page that is not JSON"),
        (RedirectResponse("http://169.254.169.254/latest", status_code=303), "it answered 303"),
        (Response("{}", headers={"content-encoding": "gzip"}), "its reply cannot be decoded"),
    ],
    ids=["no handle", "html", "huge", "503", "proxy", "redirect", "no gzip"],
)
async def test_a_reply_that_tells_nothing_leaves_the_start_unknown(reply: Response, text: str) -> None:
    async with here() as found:
        found.api.after.append(answering(reply))
        with pytest.raises(EngineUnavailable, match=re.escape(text)) as raised:
            await found.start()
        assert raised.value.sent
        assert len(found.api.jobs) == 1


async def test_a_definite_no_is_final_and_a_redirect_says_where_the_api_is() -> None:
    async with here() as found:
        for status in (400, 404, 413, 422):
            found.api.next_replies.append(answering(JSONResponse({"error": "amount: too much"}, status_code=status)))
            with pytest.raises(EngineRefused, match=f"it answered {status}: amount: too much") as raised:
                await found.start()
            assert raised.value.final
        reply = RedirectResponse("https://api.example.com/jobs/echo", status_code=301)
        found.api.next_replies.append(answering(reply))
        with pytest.raises(EngineRefused, match=r"it redirects to api\.example\.com; set url to that"):
            await found.start()


@pytest.mark.parametrize("to", ["http://169.254.169.254/latest", "/jobs/job-0"])
async def test_no_verb_follows_a_redirect(to: str) -> None:
    """Not even to the same host: nothing but what the definition names is asked."""
    async with here(dedupes=False, starts="findable", find=FIND) as found:
        adapter = found.adapter
        handle = await found.start("forever")
        cancelled = partial(adapter.cancel, Ref(workflow="echo", handle=handle))
        for call in (partial(found.describe, handle), cancelled, partial(adapter.find, start())):
            asked = found.api.calls.total()
            found.api.next_replies.append(answering(RedirectResponse(to, status_code=302)))
            with pytest.raises(EngineError, match="it answered 302"):
                await call()
            assert found.api.calls.total() == asked + 1


async def test_a_wrong_token_is_told_without_it() -> None:
    async with here(auth={"bearer": "another-s3cret"}) as found:
        for call in (found.start(), found.describe(handle_of("job-0"))):
            with pytest.raises(EngineError, match="it does not accept our credentials") as raised:
                await call
            assert "s3cret" not in str(raised.value)


def handle_of(run: str, *, seconds_ago: float = 1000) -> str:
    at = time.time() - seconds_ago
    return json.dumps({"v": 1, "run": run, "workflow": "echo", "at": at, "vars": {}, "definition": "x"})


async def test_what_is_not_found_is_gone_only_once_it_has_settled() -> None:
    async with here(settling="1m") as found:
        assert (await found.describe(handle_of("none", seconds_ago=30))).status is Status.RUNNING
        with pytest.raises(ExecutionNotFound, match="it answered 404: no such job"):
            await found.describe(handle_of("none", seconds_ago=90))


async def test_what_is_no_handle_of_ours_is_not_found() -> None:
    async with here() as found:
        for handle in ("", "job-0", "{}", '{"v":2}', "[1]"):
            with pytest.raises(ExecutionNotFound, match="no handle of an HTTP engine"):
                await found.describe(handle)


async def test_a_look_that_tells_nothing_is_no_end() -> None:
    async with here() as found:
        handle = await found.start()
        for reply in (HTML, JSONResponse({"state": None}), JSONResponse([]), Response(status_code=500)):
            found.api.next_replies.append(answering(reply))
            with pytest.raises(EngineUnavailable):
                await found.describe(handle)


async def test_a_look_whose_reply_cannot_be_decoded_is_repeated_once() -> None:
    broken = answering(Response("{}", headers={"content-encoding": "gzip"}))
    async with here() as found:
        handle = await found.start()
        found.api.next_replies.append(broken)
        assert (await found.describe(handle)).status is Status.SUCCEEDED
        found.api.next_replies += [broken, broken]
        with pytest.raises(EngineUnavailable, match=re.escape("its reply cannot be decoded")):
            await found.describe(handle)
        assert not found.api.next_replies


async def test_a_start_whose_reply_cannot_be_decoded_is_not_repeated_even_if_it_is_a_get() -> None:
    broken = answering(Response("{}", headers={"content-encoding": "gzip"}))
    async with here(
        start={"request": {"method": "GET", "path": "/jobs"}, "handle": "{{reply.body.id}}"}, starts="once"
    ) as found:
        found.api.next_replies += [broken, answering(JSONResponse({"id": "job-0"}))]
        with pytest.raises(EngineUnavailable, match="its reply cannot be decoded"):
            await found.start()
        assert len(found.api.next_replies) == 1


async def test_what_has_ended_is_not_cancelled() -> None:
    """This API would rewrite how it ended."""
    async with here() as found:
        handle = await found.start()
        await found.adapter.cancel(Ref(workflow="echo", handle=handle))
        assert found.api.calls["stop"] == 0
        assert (await found.describe(handle)).status is Status.SUCCEEDED


async def test_a_value_cannot_leave_its_segment_of_a_path() -> None:
    async with here() as found:
        shown = found.adapter.tooling.preview(start("../jobs?x=1#/echo"))
        assert shown["url"].endswith("/jobs/..%2Fjobs%3Fx%3D1%23%2Fecho")
        for workflow in ("..", ".", ""):
            with pytest.raises(EngineRefused, match="cannot be a part of a path"):
                await found.start(workflow)


async def test_only_what_is_split_fills_several_segments_of_a_path() -> None:
    for path, arguments, sent in (
        ("/run/{{split(workflow, '/')}}", {}, "/run/team/my%20job"),
        ("/run/{{arguments.id}}", {"id": ["a", "b"]}, "/run/%5B%22a%22%2C%20%22b%22%5D"),
    ):
        async with here(start={**DEFINITION["start"], "request": f"POST {path}"}) as found:
            assert found.adapter.tooling.preview(start("team/my job", arguments=arguments))["url"].endswith(sent)
    async with here(start={**DEFINITION["start"], "request": "POST /run/{{split(workflow, '/')}}"}) as found:
        for workflow in ("team/../x", "/x", ""):
            with pytest.raises(EngineRefused, match="cannot be a part of a path"):
                await found.start(workflow)


async def test_a_url_of_another_origin_is_not_asked() -> None:
    async with here(describe={**DEFINITION["describe"], "request": {"url": "{{handle}}"}}) as found:
        for url in (
            "http://169.254.169.254/latest",
            "//evil.example.com/x",
            "https://127.0.0.1/x",
            "http://u@127.0.0.1/",
        ):
            with pytest.raises(EngineUnavailable, match="of another origin"):
                await found.describe(handle_of(url))


async def test_a_header_cannot_be_broken() -> None:
    request = {**DEFINITION["start"]["request"], "headers": {"x-name": "{{arguments.name}}"}}
    async with here(start={**DEFINITION["start"], "request": request}) as found:
        with pytest.raises(EngineRefused, match="x-name would not be one line of ASCII"):
            await found.start(arguments={"name": "a\r\nx-admin: 1"})


async def test_while_it_throttles_us_nothing_is_sent() -> None:
    async with here() as found:
        handle = await found.start()
        found.api.next_replies.append(answering(Response(status_code=429, headers={"retry-after": "60"})))
        with pytest.raises(EngineUnavailable, match="it throttles us") as raised:
            await found.describe(handle)
        assert raised.value.throttled
        asked = found.api.calls.total()
        with pytest.raises(EngineUnavailable, match=r"held back: it throttles us for [1-6]?\d s more") as raised:
            await found.describe(handle)
        assert (raised.value.sent, raised.value.throttled) == (False, True)
        assert found.api.calls.total() == asked


async def test_a_throttled_start_was_not_accepted_where_it_cannot_be_repeated_safely() -> None:
    for starts, sent in (("keyed", True), ("once", False)):
        async with here(starts=starts) as found:
            found.api.next_replies.append(answering(Response(status_code=429)))
            with pytest.raises(EngineUnavailable) as raised:
                await found.start()
            assert raised.value.sent is sent


async def test_a_search_finds_nobody_elses_and_reads_all_pages() -> None:
    async with here(dedupes=False, starts="findable", find=FIND) as found:
        adapter = found.adapter
        mine = await found.start(key="mine")
        for number in range(12):
            await found.start(key=f"theirs-{number}")
        order = start(key="mine")
        assert '"run":"job-0"' in str(await adapter.find(order))
        assert '"run":"job-0"' in mine
        assert await adapter.find(start(key="nobodys")) is None
        assert adapter.settling > timedelta(seconds=10)


async def test_a_search_with_more_pages_than_are_read_tells_nothing() -> None:
    async with here(dedupes=False, starts="findable", find={**FIND, "pages": 2}) as found:
        for number in range(12):
            await found.start(key=f"theirs-{number}")
        with pytest.raises(EngineUnavailable, match="more than 2 pages"):
            await found.adapter.find(start(key="nobodys"))


async def test_a_token_that_expires_midway_is_renewed_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    async with here(auth={"bearer_file": str(file)}) as found:
        with pytest.raises(EngineRefused, match="credentials"):
            await found.start()
        file.write_text(f"{TOKEN}\n")
        assert await found.start()


async def test_the_definition_of_its_start_is_the_one_that_counts() -> None:
    """A task goes on, whatever is changed in the configuration since."""
    kept: dict[str, Any] = {}

    class Kept:
        async def get(self, key: str) -> Any:
            return kept.get(key)

        async def put(self, key: str, value: Any, *, until: datetime) -> None:
            kept[key] = value

    async with jobs_api() as (_, url):
        before = HttpAdapter(HttpSettings.model_validate({**DEFINITION, "url": url}))
        before.remember(Kept())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        async with before:
            handle = await before.start(start())
        describe = {"request": "/elsewhere/{{handle}}", "codes": {404: "failed"}}
        after = HttpAdapter(HttpSettings.model_validate({**DEFINITION, "url": url, "describe": describe}))
        after.remember(Kept())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        async with after:
            assert (await after.describe(Ref(workflow="echo", handle=handle))).status is Status.SUCCEEDED
    assert TOKEN not in str(kept)


async def test_what_a_start_would_send_is_shown_without_secrets() -> None:
    async with here() as found:
        shown = found.adapter.tooling.preview(start(arguments={"a": "it's"}))
    assert TOKEN not in str(shown)
    assert shown["headers"]["authorization"] == "Bearer ***"
    assert shown["curl"].startswith("curl --request POST --header 'idempotency-key: k'")


async def test_check_tells_whether_it_answers_and_lets_us_in() -> None:
    async with here(starts="findable", find=FIND) as found:
        assert (await found.adapter.tooling.check_engine()).ok
        assert (await found.adapter.tooling.check("echo", {})).text == "workflow echo its executions can be searched"
    async with here(auth={"bearer": "wrong"}, check={"engine": "/jobs/x"}) as found:
        finding = await found.adapter.tooling.check_engine()
    assert (finding.ok, finding.hint) == (False, "check auth")


@pytest.mark.parametrize(
    ("describe", "text"),
    [
        ("/jobs/{{handle}}", "workflow echo its executions can be searched"),  # 404: nobody started it
        ("/pages/{{handle}}", "workflow echo: a poll of 0 gets a page that is not JSON (404)"),
        ({"path": "/pages", "query": {"id": "{{handle}}"}}, "workflow echo: a poll of 0 gets a page that is not JSON"),
    ],
)
async def test_check_polls_an_execution_that_nobody_started(describe: Any, text: str) -> None:
    async with here(starts="findable", find=FIND, describe={"request": describe, "codes": {200: "running"}}) as found:
        assert (await found.adapter.tooling.check("echo", {})).text.startswith(text)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (JSONResponse({"error": "no id 0"}, status_code=422), None),
        (Response(status_code=429), None),
        (JSONResponse({}, status_code=401), "a poll of 0 fails: it answered 401: it does not accept our credentials"),
        (JSONResponse({}, status_code=500), "a poll of 0 fails: it answered 500"),
        (RedirectResponse("/login", status_code=302), "a poll of 0 fails: it answered 302"),
        (HTML, "a poll of 0 gets a page that is not JSON (200)"),
    ],
    ids=["422", "429", "401", "500", "login", "html"],
)
async def test_check_tells_a_look_that_fails_from_an_id_that_is_none(reply: Response, text: str | None) -> None:
    handle = {"job": "{{reply.body.id}}", "kind": "{{reply.body.kind}}"}
    start, describe = (
        {**DEFINITION["start"], "handle": handle},
        {**DEFINITION["describe"], "request": "/jobs/{{handle.job}}"},
    )
    async with here(start=start, describe=describe) as found:
        found.api.next_replies.append(answering(reply))
        finding = await found.adapter.tooling.check("echo", {})
        assert found.api.calls["describe"] == 1
    if text is None:
        assert (finding.ok, finding.text) == (None, "workflow echo: this API cannot show it without a start")
    else:
        assert (finding.ok, finding.text, finding.hint) == (False, f"workflow echo: {text}", "check describe")


async def test_check_tells_a_page_in_place_of_the_api() -> None:
    async with here(check={"engine": "/jobs/x"}) as found:
        found.api.next_replies.append(answering(HTML))
        finding = await found.adapter.tooling.check_engine()
    assert (finding.ok, finding.text) == (False, "it answered 200 with a page that is not JSON")


MORE: Mapping[str, Any] = {"result": {"request": "/jobs/{{handle}}", "when": "{{status == 'succeeded'}}"}}
UNREAD = [JSONResponse({"error": "no"}, status_code=status) for status in (401, 403, 404, 410, 500, 503)]


@pytest.mark.parametrize("output", ["{{more.result.body}}", {"rows": "{{more.result.body.rows}}"}])
@pytest.mark.parametrize("reply", [UNREAD[0], UNREAD[4], HTML], ids=lambda reply: str(reply.status_code))
async def test_a_result_that_cannot_be_read_is_no_empty_success_and_is_asked_for_again(
    reply: Response, output: Any
) -> None:
    """A task that has ended is never looked at again: its result would be lost for ever."""
    async with here(describe={**DEFINITION["describe"], "more": MORE, "output": output}) as found:
        handle = await found.start()
        found.api.next_replies += [found.api.describe, answering(reply)]
        seen = await found.describe(handle)
        assert seen.status is Status.RUNNING
        assert str(seen.message).startswith(
            f"it has succeeded, but its result cannot be read: it answered {reply.status_code}"
        )
        found.api.next_replies += [found.api.describe, answering(JSONResponse({"rows": 3}))]
        seen = await found.describe(handle)
        assert (seen.status, seen.output) == (Status.SUCCEEDED, {"rows": 3})


async def test_a_part_of_a_result_that_is_not_there_leaves_the_rest() -> None:
    output = {"job": "{{handle}}", "report": "{{more.result.body}}"}
    async with here(describe={**DEFINITION["describe"], "more": MORE, "output": output}) as found:
        handle = await found.start()
        found.api.next_replies += [found.api.describe, answering(JSONResponse({}, status_code=404))]
        seen = await found.describe(handle)
        assert (seen.status, seen.output) == (Status.SUCCEEDED, {"job": "job-0"})


@pytest.mark.parametrize("keeps_notes", [True, False])
async def test_a_result_that_stays_unreadable_ends_its_task_as_failed_with_the_reason(
    keeps_notes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with here(describe={**DEFINITION["describe"], "more": MORE, "output": "{{more.result.body}}"}) as found:
        if keeps_notes:
            found.adapter.remember(MemoryNotes())
        handle = await found.start()
        found.api.next_replies += [found.api.describe, answering(UNREAD[4])] * 2
        assert (await found.describe(handle)).status is Status.RUNNING
        monkeypatch.setattr("mcp_workflows.kit.kept_definitions.READ_FOR", timedelta())
        seen = await found.describe(handle)
        assert (seen.status, seen.failure and seen.failure.kind) == (Status.FAILED, "ResultUnavailable")
        assert "its result cannot be read: it answered 500" in str(seen.failure)


ECHOED: Final[Mapping[str, tuple[dict[str, Any], str]]] = {
    "bearer": ({"bearer": "tok-canary-0123456789"}, "tok-canary-0123456789"),
    "basic": ({"basic": {"user": "me", "password": "pass-canary-012345"}}, "bWU6cGFzcy1jYW5hcnktMDEyMzQ1"),
    "header": ({"header": {"name": "X-Api-Key", "value": "key-canary-0123456789"}}, "key-canary-0123456789"),
    "oauth": (
        {"oauth": {"token_url": "URL/token", "client_id": "me", "client_secret": "client-canary-012"}},
        "issued-canary-0123",
    ),
    "login": (
        {"login": {"path": "/token", "user": "me", "password": "pass-canary-012345"}},
        "issued-canary-0123",
    ),
}


@pytest.mark.parametrize(("auth", "secret"), ECHOED.values(), ids=ECHOED)
async def test_a_credential_that_the_api_repeats_reaches_nobody(auth: dict[str, Any], secret: str) -> None:
    """Whatever repeats it: a header, the body as a text or as JSON, the failure."""

    async def echo(request: Request) -> Response:
        if request.url.path == "/token":
            return JSONResponse({"access_token": "issued-canary-0123", "expires_in": 600})
        sent = request.headers.get("authorization") or request.headers["x-api-key"]
        return JSONResponse({"id": "1", "s": "done", "sent": [sent, {sent: f"as {sent}"}]}, headers={"x-echo": sent})

    app = Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])])
    async with serving(app) as served:
        url = served.removesuffix("/mcp")
        settings: dict[str, Any] = {
            "url": url,
            "auth": json.loads(json.dumps(auth).replace("URL", url)),
            "starts": "once",
            "start": {"request": "POST /s", "handle": "{{reply.body.id}}"},
            "describe": {
                "request": "/l/{{handle}}",
                "status": "{{reply.body.s}}",
                "map": {"succeeded": "done"},
                "message": '{{reply.headers."x-echo"}}',
                "output": "{{reply}}",
            },
        }
        async with HttpAdapter(HttpSettings.model_validate(settings)) as adapter:
            seen = await adapter.describe(Ref(workflow="w", handle=await adapter.start(start())))
    assert seen.status is Status.SUCCEEDED
    assert secret not in f"{seen}"
    assert "***" in json.dumps(seen.output)
