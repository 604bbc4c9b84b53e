"""Who may tell us something: forged tokens and hostile callback URLs against a sidecar, over HTTP.

What is refused is stored nowhere, shown to nobody, and neither the answer nor the log has the token or the URL.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
import pytest

from adapters.google.tests import flows
from adapters.google.tests.configured import asked, called, configured, executions
from adapters.google.tests.elsewhere import cancel
from adapters.google.tests.scene import AUDIENCE, INBOUND
from mcp_workflows.store.key_value import notes_in
from mcp_workflows.store.protocol import open_store
from tests.support.google_engine import ACCOUNT, LOCATION, PROJECT, GoogleEngine
from tests.support.google_local_listener import listening
from tests.support.served import peer
from tests.support.sidecars import Process, sidecar
from tests.support.tokens import ISSUER, KeyServer, by_hand, key_server, signer

pytestmark = pytest.mark.anyio
__all__ = ["key_server"]

GOOD, STRANGER = signer("good"), signer("stranger")
CLAIMS: Final[Mapping[str, Any]] = {"aud": AUDIENCE, "email": ACCOUNT}
PATHS: Final = ("input", "claim")

TELLS: Final = """
main:
  params: [args]
  steps:
    - tell:
        call: http.post
        args:
          url: ${args.url}
          auth: {type: OIDC, audience: "${args.audience}"}
          body: {}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A sidecar whose engine `google` trusts our issuer, and `local` that of the local engine."""

    engine: GoogleEngine
    process: Process
    config: Path
    workflow: str

    async def post(self, path: str, body: Any, token: str | None, engine: str = "google") -> httpx2.Response:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{self.process.port}/engines/{engine}/{path}"
        async with httpx2.AsyncClient() as client:
            return await client.post(url, json=body, headers=headers)

    async def begun(self) -> tuple[str, str]:
        """A task, and its execution, which asks nothing."""
        async with peer(self.process.url) as client:
            task_id = await called(client)
        return task_id, executions(self.engine, self.workflow)[0]

    def question(self, execution: str, **more: Any) -> Mapping[str, Any]:
        """As `mcp_elicit` posts it."""
        *_, workflow, _, name = execution.split("/")
        here = {"project": PROJECT, "location": LOCATION, "workflow": workflow, "execution": name}
        url = f"{self.engine.url}/v1/{execution}/callbacks/cb1"
        return {**here, "callback_url": url, "message": "Your password?", **more}

    async def kept(self, engine: str = "google") -> Mapping[str, Any]:
        """All that is stored of an engine."""
        async with open_store(f"sqlite:///{self.config.parent}/tasks.db") as store:
            return await notes_in(store)(engine).under("")

    async def shown(self, task_id: str) -> str:
        """What its client sees."""
        async with peer(self.process.url) as client:
            return json.dumps(await client.get(task_id))

    def says_nothing_of(self, *secrets: str) -> bool:
        """Whether the log has none of these."""
        log = self.process.log.read_text()
        return not [secret for secret in secrets if secret in log]


@pytest.fixture(scope="module")
def stage(
    google_engine: GoogleEngine, key_server: KeyServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    workflow = google_engine.deploy("forever", flows.FOREVER)
    inbound = {**INBOUND, "issuer": ISSUER, "keys_url": key_server.publish("google-forged", GOOD)}
    tools = {"it": {"workflow": workflow}}
    config = configured(tmp_path_factory.mktemp("forged"), google_engine.address, tools, inbound=inbound)
    written = json.loads(config.read_text())
    written["engines"]["local"] = {**written["engines"]["google"], "inbound": INBOUND}
    config.write_text(json.dumps(written))
    with sidecar(config, "--log-level", "debug") as process:
        yield Stage(engine=google_engine, process=process, config=config, workflow=workflow)
    for name in executions(google_engine, workflow):
        cancel(google_engine, name)


def parts(token: str) -> list[str]:
    """What of a token nobody may read."""
    return [token, *(part for part in token.split(".")[1:] if len(part) > 8)]


async def test_a_good_token_brings_a_question_and_a_claim(stage: Stage) -> None:
    task_id, execution = await stage.begun()
    token = GOOD.token(**CLAIMS)
    answers = [await stage.post(path, stage.question(execution), token) for path in PATHS]
    assert [(each.status_code, each.json()) for each in answers] == [(200, {"kept": True}), (200, {"claimed": True})]
    async with peer(stage.process.url) as client:
        key, question = await asked(client, task_id)
        await client.send("tasks/cancel", {"taskId": task_id})
        await client.until(task_id)
    assert (key, question["params"]["message"]) == ("cb1", "Your password?")
    assert stage.says_nothing_of(*parts(token), "/callbacks/")


def claims(**more: Any) -> Mapping[str, Any]:
    now = time.time()
    return {"iss": ISSUER, "sub": "1", "email_verified": True, "iat": now, "exp": now + 3600, **CLAIMS, **more}


def ago(seconds: float) -> float:
    return time.time() - seconds


REFUSED: Final[Mapping[str, Callable[[], str | None]]] = {
    "none": lambda: None,
    "no token at all": lambda: "secret-of-somebody",
    "signed by a stranger": lambda: STRANGER.token(kid=GOOD.name, **CLAIMS),
    "by a key of nobody": lambda: STRANGER.token(**CLAIMS),
    "not signed": lambda: by_hand({"alg": "none", "kid": GOOD.name}, claims()),
    "signed with what everybody knows": lambda: by_hand({"alg": "HS256", "kid": GOOD.name}, claims(), GOOD.pem),
    "expired": lambda: GOOD.token(**CLAIMS, iat=ago(7200), exp=ago(3600)),
    "for another audience": lambda: GOOD.token(email=ACCOUNT, aud="https://other.example.com"),
    "for two audiences": lambda: GOOD.token(email=ACCOUNT, aud=[AUDIENCE, "https://other.example.com"]),
    "of another issuer": lambda: GOOD.token(**CLAIMS, iss="https://other-issuer.example.com"),
    "of an account that is not allowed": lambda: GOOD.token(email="evil@demo.example.com", aud=AUDIENCE),
    "of an email that nobody has verified": lambda: GOOD.token(**CLAIMS, email_verified=False),
    "without an email": lambda: GOOD.token(without=("email",), aud=AUDIENCE),
}
STATUSES: Final[Mapping[str, Collection[int]]] = {
    "by a key of nobody": {401, 503},  # its issuer is not asked every time: then it cannot be told
    "of an account that is not allowed": {403},
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_token_that_is_not_good_brings_nothing(stage: Stage, kind: str) -> None:
    token, before = REFUSED[kind](), await stage.kept()
    task_id, execution = await stage.begun()
    body = stage.question(execution)
    for path in PATHS:
        answer = await stage.post(path, body, token)
        assert answer.status_code in STATUSES.get(kind, {401})
        assert set(answer.json()) == {"error"}
        assert not [secret for secret in (*parts(token or ""), ACCOUNT, "callback") if secret and secret in answer.text]
    assert await stage.kept() == before
    assert "password" not in await stage.shown(task_id)
    assert stage.says_nothing_of("/callbacks/", *(parts(token) if token else ()))


HOSTILE: Final = (
    "https://evil.example.com/v1/{name}/callbacks/cb-{n}",
    "http://evil.example.com:{port}/v1/{name}/callbacks/cb-{n}",
    "https://workflowexecutions.googleapis.com/v1/{name}/callbacks/cb-{n}",  # this engine is not at Google
    "https://workflowexecutions.googleapis.com.evil.example.com/v1/{name}/callbacks/cb-{n}",
    "http://127.0.0.1:{port}@evil.example.com/v1/{name}/callbacks/cb-{n}",
    "http://127.0.0.1:1/v1/{name}/callbacks/cb-{n}",
    "http://127.0.0.1:{port}/v1/{name}-other/callbacks/cb-{n}",
    "http://127.0.0.1:{port}/v1/{name}/../other/callbacks/cb-{n}",
    "http://127.0.0.1:{port}/v1/{name}/%2e%2e/callbacks/cb-{n}",
    "http://127.0.0.1:{port}/v1/{name}/callbacks/cb-{n}?to=evil",
    "http://127.0.0.1:{port}/v1/{name}/callbacks/cb-{n}#evil",
    "http://127.0.0.1:{port}/v1/{name}/callbacks/cb-{n}\nHost: evil.example.com",
    "http://127.0.0.1:{port}\\@evil.example.com/v1/{name}/callbacks/cb-{n}",
    "file:///etc/passwd?cb-{n}",
    "//evil.example.com/cb-{n}",
    "cb-{n}",
)


async def test_no_callback_of_elsewhere_is_kept(stage: Stage) -> None:
    task_id, execution = await stage.begun()
    before = await stage.kept()
    token = GOOD.token(**CLAIMS)
    for number, url in enumerate(HOSTILE, 7_000_000):
        there = url.format(name=execution, port=stage.engine.port, n=number)
        answer = await stage.post("input", stage.question(execution, callback_url=there), token)
        assert answer.status_code == 400, there
        assert "callback_url" in answer.json()["error"]
        assert "evil" not in answer.text
        assert str(number) not in answer.text
        assert stage.says_nothing_of(there, f"cb-{number}", "evil.example.com")
    assert await stage.kept() == before
    assert "password" not in await stage.shown(task_id)
    assert stage.says_nothing_of(*parts(token))


async def signed_here(stage: Stage, audience: str, **more: Any) -> str:
    """A token as the local engine gives it to a workflow that calls somebody."""
    workflow = stage.engine.deploy("tells", TELLS, **more)
    with listening() as listener:
        execution = stage.engine.execute(workflow, {"url": listener.url, "audience": audience})
        await anyio.to_thread.run_sync(stage.engine.ended, execution)
        [came] = listener.requests
    return str(came["headers"]["Authorization"]).removeprefix("Bearer ")


async def test_a_workflow_of_the_local_engine_is_believed_for_its_audience_and_its_account_only(stage: Stage) -> None:
    _, execution = await stage.begun()
    good = await signed_here(stage, AUDIENCE)
    elsewhere = await signed_here(stage, "https://other.example.com")
    stranger = await signed_here(stage, AUDIENCE, service_account="stranger@demo.iam.gserviceaccount.com")
    body, before = stage.question(execution), await stage.kept("local")
    assert (await stage.post("input", body, elsewhere, "local")).status_code == 401
    assert (await stage.post("input", body, stranger, "local")).status_code == 403
    assert (await stage.post("input", body, good)).status_code in {401, 503}  # the other engine trusts another issuer
    assert await stage.kept("local") == before
    assert (await stage.post("input", body, good, "local")).json() == {"kept": True}
    assert len(await stage.kept("local")) == len(before) + 1
    assert stage.says_nothing_of(*parts(good), *parts(elsewhere), *parts(stranger))
