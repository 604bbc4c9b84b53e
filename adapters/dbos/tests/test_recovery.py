"""Executions outlive kill -9 at each of their steps, a second process beside the first, and changes of their code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from mcp_workflows_dbos import DbosAdapter, DbosSettings

from mcp_workflows.adapter import Execution, Ref, Start, Status

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("processes")]

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 40  # seconds
STEPS = 4
CODE = """
import asyncio
from pathlib import Path

from dbos import DBOS
from mcp_workflows_dbos import ask, progress

FORM = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
HERE = Path(__file__).parent


@DBOS.step()
async def work(number):
    with (HERE / "done").open("a") as file:
        file.write(f"{number}\\n")
    while (HERE / f"hold-{number}").exists():
        await asyncio.sleep(0.01)
    return number


@DBOS.workflow()
async def several():
    return {"done": [await work(number) for number in range(STEPS)]}


@DBOS.workflow()
async def questions():
    first, second = await asyncio.gather(ask("first?", FORM), ask("second?", FORM))
    last = await ask("third?", FORM)
    return {"answers": [each.content["answer"] for each in (first, second, last)]}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A module in a folder of its own, and a look at its executions from outside."""

    folder: Path
    name: str

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/app.db"

    def write(self, more: str = "") -> None:
        (self.folder / f"{self.name}.py").write_text(CODE.replace("STEPS", str(STEPS)) + more)

    @contextmanager
    def host(self, *words: str) -> Generator[subprocess.Popen[str]]:
        """A process with the workflows; killed at the end, if not before."""
        command = [sys.executable, "-m", "adapters.dbos.tests.host", self.name, self.url, *words]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{self.folder}", "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.communicate()

    @asynccontextmanager
    async def outside(self) -> AsyncGenerator[DbosAdapter]:
        settings = DbosSettings.model_validate({"database": self.url, "queue": f"mcp-{self.name}-queue"})
        async with DbosAdapter(settings.model_copy(update={"application": f"mcp-{self.name}"})) as adapter:
            yield adapter

    def done(self) -> Sequence[int]:
        file = self.folder / "done"
        return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.fixture
def application(tmp_path: Path) -> Application:
    found = Application(folder=tmp_path, name=f"flows_{tmp_path.name.replace('-', '_')}")
    found.write()
    return found


async def until(adapter: DbosAdapter, key: str, wanted: Callable[[Execution], bool]) -> Execution:
    seen: Execution | None = None
    try:
        with anyio.fail_after(PATIENCE):
            while True:
                seen = await adapter.describe(Ref(workflow="", handle=key))
                if wanted(seen):
                    return seen
                await anyio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"within {PATIENCE} s: {seen}")


async def until_done(application: Application, number: int) -> None:
    with anyio.fail_after(PATIENCE):
        while number not in application.done():
            await anyio.sleep(0.02)


@pytest.mark.parametrize("number", range(STEPS))
async def test_killed_in_any_step_it_goes_on_and_repeats_only_that_step(application: Application, number: int) -> None:
    (application.folder / f"hold-{number}").touch()
    with application.host("one=several"):
        await until_done(application, number)
    (application.folder / f"hold-{number}").unlink()
    with application.host():
        async with application.outside() as adapter:
            ended = await until(adapter, "one", lambda seen: seen.terminal)
    assert (ended.status, ended.output) == (Status.SUCCEEDED, {"done": [*range(STEPS)]})
    assert application.done() == [*range(number + 1), *range(number, STEPS)]


async def test_questions_keep_their_keys_and_answers_over_kills(application: Application) -> None:
    with application.host("one=questions"):
        async with application.outside() as adapter:
            asked = await until(adapter, "one", lambda seen: len(seen.requests) == 2)
            first, second = asked.requests
            await adapter.answer(Ref(workflow="", handle="one"), {second: accepted("2")})
            await until(adapter, "one", lambda seen: list(seen.requests) == [first])
    with application.host():
        async with application.outside() as adapter:
            ref = Ref(workflow="", handle="one")
            again = await adapter.describe(ref)
            assert dict(again.requests) == {first: asked.requests[first]}
            await adapter.answer(ref, {first: accepted("1"), second: accepted("another")})
            await adapter.answer(ref, {first: accepted("too late")})
            last = await until(adapter, "one", lambda seen: bool(seen.requests) and first not in seen.requests)
    with application.host():
        async with application.outside() as adapter:
            await adapter.answer(ref, {key: accepted("3") for key in last.requests})
            ended = await until(adapter, "one", lambda seen: seen.terminal)
    assert ended.output == {"answers": ["1", "2", "3"]}


def accepted(answer: str) -> dict[str, object]:
    return {"action": "accept", "content": {"answer": answer}}


async def test_a_second_process_leaves_what_runs_alone_and_takes_over(application: Application) -> None:
    (application.folder / "hold-1").touch()
    with application.host("one=several") as first, application.host("two=several"):
        async with application.outside() as adapter:
            await until_done(application, 1)
            assert application.done().count(0) <= 2  # once for each
            first.send_signal(signal.SIGKILL)
            (application.folder / "hold-1").unlink()
            ended = [await until(adapter, key, lambda seen: seen.terminal) for key in ("one", "two")]
    assert [each.status for each in ended] == [Status.SUCCEEDED] * 2
    assert application.done().count(0) == 2


async def test_workers_elsewhere_take_executions_from_their_queue(application: Application) -> None:
    start = Start(workflow="questions", arguments={}, key="one", created=datetime.now(UTC))
    with application.host():
        async with application.outside() as adapter:
            assert (await adapter.check_engine()).ok
            assert await adapter.start(start) == await adapter.start(start) == "one"
            asked = await until(adapter, "one", lambda seen: len(seen.requests) == 2)
            assert await adapter.describe_many([Ref(workflow="", handle="one")]) == {"one": asked}
            await adapter.cancel(Ref(workflow="", handle="one"))
            await until(adapter, "one", lambda seen: seen.status is Status.CANCELLED)


async def test_changed_code_is_told_and_waits_for_its_version(application: Application) -> None:
    with application.host("one=questions"):
        async with application.outside() as adapter:
            await until(adapter, "one", lambda seen: len(seen.requests) == 2)
    application.write("\n\n@DBOS.workflow()\nasync def another():\n    return 1\n")
    with application.host():
        async with application.outside() as adapter:
            told = await adapter.explain(Ref(workflow="", handle="one"))
            assert "was begun by version" in told.reason
            assert "version:" in (told.advice or "")
            await adapter.answer(
                Ref(workflow="", handle="one"), {key: accepted("1") for key in (await look(adapter)).requests}
            )
    application.write()
    with application.host():
        async with application.outside() as adapter:
            asked = await until(adapter, "one", lambda seen: len(seen.requests) == 1)
            assert [each.params["message"] for each in asked.requests.values()] == ["third?"]


async def look(adapter: DbosAdapter) -> Execution:
    return await adapter.describe(Ref(workflow="", handle="one"))


async def test_with_a_version_of_ones_own_changed_code_goes_on(application: Application) -> None:
    with application.host("version=1", "one=questions"):
        async with application.outside() as adapter:
            await until(adapter, "one", lambda seen: len(seen.requests) == 2)
    application.write("\n\n@DBOS.workflow()\nasync def another():\n    return 1\n")
    with application.host("version=1"):
        async with application.outside() as adapter:
            ref = Ref(workflow="", handle="one")
            await adapter.answer(ref, {key: accepted("1") for key in (await look(adapter)).requests})
            await until(adapter, "one", lambda seen: len(seen.requests) == 1)
