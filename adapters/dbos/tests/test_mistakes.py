"""Mistakes in the user's module are told with file and line, and the other workflows go on."""

from __future__ import annotations

import importlib
import logging
import re
import sqlite3
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from mcp_workflows_dbos import DbosAdapter, DbosSettings
from mcp_workflows_dbos.start import validate_arguments
from mcp_workflows_dbos.tooling.schema import draft_file

from mcp_workflows.adapter import Execution, Failure, Ref, Start, Status
from mcp_workflows.errors import ConfigError, EngineRefused, EngineUnavailable

PATIENCE = 60.0  # seconds
RETRIES = 3
HEAD = "from dbos import DBOS; from mcp_workflows_dbos import McpError, tool\n"
WORKFLOWS = """
import asyncio, dataclasses, sys, time
@DBOS.workflow(name=__name__ + ".blocks")
async def blocks():
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        time.sleep(0.1)
@DBOS.workflow(name=__name__ + ".exits")
async def exits():
    sys.exit(3)
@DBOS.workflow(name=__name__ + ".works")
async def works(number: int):
    return {"number": number}
@DBOS.workflow(name=__name__ + ".breaks")
async def breaks(value: dict):
    raise McpError("it broke", -32603, {"value": value})
@DBOS.workflow(name=__name__ + ".half_a_character")
async def half_a_character():
    return {"text": chr(0xD800)}
@DBOS.workflow(name=__name__ + ".exits_in_thread")
def exits_in_thread():
    sys.exit()
@DBOS.step()
def leaves():
    sys.exit()
@DBOS.workflow(name=__name__ + ".exits_in_step")
def exits_in_step():
    leaves()
@DBOS.workflow(name=__name__ + ".exits_beside")
async def exits_beside():
    await asyncio.gather(asyncio.to_thread(leaves), asyncio.sleep(0))
@DBOS.workflow(name=__name__ + ".interrupts")
async def interrupts():
    raise KeyboardInterrupt
@DBOS.workflow(name=__name__ + ".stops_the_loop")
async def stops_the_loop():
    asyncio.get_running_loop().stop()
@DBOS.workflow(name=__name__ + ".cancels_all")
async def cancels_all():
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
@DBOS.workflow(name=__name__ + ".raises_cancelled")
async def raises_cancelled():
    raise asyncio.CancelledError
@DBOS.workflow(name=__name__ + ".awaits_cancelled")
async def awaits_cancelled():
    task = asyncio.create_task(asyncio.sleep(1000))
    asyncio.get_running_loop().call_soon(task.cancel)
    await task
@DBOS.workflow(name=__name__ + ".raises_cancelled_in_thread")
def raises_cancelled_in_thread():
    raise asyncio.CancelledError
@DBOS.workflow(name=__name__ + ".has_no_number")
async def has_no_number() -> dict[str, list[float]]:
    return {"means": [0.5, float("nan")]}
@DBOS.workflow(name=__name__ + ".has_no_number_in_a_model")
async def has_no_number_in_a_model():
    return {"scores": [Score(mean=float("inf"))]}
@dataclasses.dataclass
class Score:
    mean: float
"""

CANCELS_AGAIN = """
@DBOS.workflow(name=__name__ + ".cancels_again")
async def cancels_again():
    loop = asyncio.get_running_loop()
    def cancel_all():
        for task in asyncio.all_tasks(loop):
            task.cancel()
    for number in range(100):
        loop.call_later(1 + number / 50, cancel_all)
"""
BLOCKS_LONGER = """
@DBOS.workflow(name=__name__ + ".blocks_longer")
async def blocks_longer():
    print("it blocks")
    time.sleep(8)
"""
METHOD = """
@DBOS.dbos_class(__name__ + ".Shop")
class Shop:
    @staticmethod
    @DBOS.workflow(name=__name__ + ".sell")
    async def sell() -> None: ...
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A file with workflows that Python has not imported yet."""
    with ExitStack() as afterwards:
        path = tmp_path / f"app_{uuid.uuid4().hex}.py"
        sys.path.insert(0, str(tmp_path))
        afterwards.callback(sys.path.remove, str(tmp_path))
        afterwards.callback(sys.modules.pop, path.stem, None)
        importlib.invalidate_caches()
        path.write_text(HEAD + WORKFLOWS)
        yield path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another file, without workflows."""
    found = tmp_path / f"other_{uuid.uuid4().hex}.py"
    found.write_text(HEAD)
    return found


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("import nobody_wrote_this\n", 2, "ModuleNotFoundError: No module named 'nobody_wrote_this'"),
        ("\n\nraise ValueError('no')\n", 4, "ValueError: no"),
        ("def broken(:\n", 2, "invalid syntax"),
        ("\nimport sys\nsys.exit(3)\n", 4, "it exits while it is imported"),
        ("@DBOS.workflow()\ndef one(*words: str) -> None: ...\n", None, "arguments are given by name"),
        ("@DBOS.workflow()\ndef other(word: 'Nobody') -> None: ...\n", 2, "its type hints cannot be read"),
        (
            "import socket\n@DBOS.workflow()\ndef hinted(s: socket.socket, n: int) -> None: ...\n",
            3,
            "type hint of s; use str",
        ),
        ("DBOS(config={'name': 'mine'})\n", None, "it makes a DBOS object: leave that out"),
        ("", None, "no function in it has @DBOS.workflow()"),
        ("def plain() -> None: ...\ntool(plain, wait='1s')\n", 3, "tool(plain, ...) needs a function with @DBOS"),
        (
            "@DBOS.workflow()\ndef w() -> None: ...\ntool(w, engine='x', input={})\n",
            4,
            "tool(w, ...) cannot set engine, input: the function gives it",
        ),
        (
            "import datetime as d\n@DBOS.workflow()\ndef late(): ...\ntool(late, wait=d.timedelta(seconds=30))\n",
            5,
            "cannot set wait to datetime.timedelta(seconds=30); write it as in workflows.yaml: wait='30s'",
        ),
        (
            "@DBOS.workflow()\ndef hidden() -> None: ...\ntool(hidden, expose='false')\n",
            4,
            "tool(hidden, ...) cannot set expose to 'false': it is True or False",
        ),
        ("@DBOS.workflow()\ndef silent() -> None: ...\ntool(silent, expose=False)\n", None, "and a public name"),
        (METHOD, 5, "Shop.sell is no tool: only functions at the top of a module are"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(file: Path, text: str, line: int | None, said: str) -> None:
    file.write_text(HEAD + text)
    with pytest.raises(ConfigError) as refused:
        draft_file(file, None)
    assert said in str(refused.value)
    assert line is None or f"{file}:{line}" in str(refused.value)


def adapter_of(file: Path) -> DbosAdapter:
    return DbosAdapter(DbosSettings.model_validate({"module": file.stem}))


def order(workflow: str, **arguments: object) -> Start:
    return Start(workflow=workflow, arguments=arguments, key=uuid.uuid4().hex, created=datetime.now(UTC))


async def ended(adapter: DbosAdapter, start: Start) -> Execution:
    """Start an execution, and return it once it has ended."""
    ref = Ref(workflow=start.workflow, handle=await adapter.start(start))
    with anyio.fail_after(PATIENCE):
        while not (seen := await adapter.describe(ref)).terminal:
            await anyio.sleep(0.02)
    return seen


async def until(adapter: DbosAdapter, workflow: str, **arguments: object) -> Status:
    return (await ended(adapter, order(workflow, **arguments))).status


EXIT = "it called exit: raise an exception in its place"
CANCELLED = "it raised CancelledError, or awaited what was cancelled: raise an exception in its place"
NO_JSON = "it has succeeded, but its result is no JSON"
FAILURES = {
    "exits": f":11: {EXIT}",
    "exits_in_thread": f":23: {EXIT}",
    "exits_in_step": f":26: {EXIT}",
    "exits_beside": f":26: {EXIT}",
    "interrupts": "it raised KeyboardInterrupt: raise an exception in its place",
    "raises_cancelled": f":45: {CANCELLED}",
    "awaits_cancelled": f":50: {CANCELLED}",
    "raises_cancelled_in_thread": f":53: {CANCELLED}",
    "half_a_character": "half of a surrogate pair",
    "has_no_number": f"{NO_JSON}: means[1] is NaN, which JSON does not have: use None or a text",
    "has_no_number_in_a_model": f"{NO_JSON}: scores[0].mean is an infinite number",
}


@pytest.mark.anyio
async def test_a_workflow_that_ends_badly_fails_with_the_reason_and_the_others_go_on(file: Path) -> None:
    async with adapter_of(file) as adapter:
        for workflow, said in FAILURES.items():
            failure = (await ended(adapter, order(f"{file.stem}.{workflow}"))).failure
            assert failure, workflow
            assert (f"{file}{said}" if said.startswith(":") else said) in failure.text
        failure = (await ended(adapter, order(f"{file.stem}.breaks", value={"a": 1}))).failure
        assert failure == Failure(text="it broke", kind="McpError", code=-32603, data={"value": {"a": 1}})
        assert (await adapter.tooling.check_engine()).ok
        assert await until(adapter, f"{file.stem}.works", number=1) is Status.SUCCEEDED


@pytest.mark.anyio
async def test_a_workflow_that_stops_the_event_loop_is_told_and_all_go_on(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with adapter_of(file) as adapter:
        for workflow in ("stops_the_loop", "cancels_all"):
            caplog.clear()
            await adapter.start(order(f"{file.stem}.{workflow}"))
            with anyio.fail_after(PATIENCE):
                while not any("stopped the event loop" in each.message for each in caplog.records):
                    await anyio.sleep(0.02)
            assert await until(adapter, f"{file.stem}.works", number=1) is Status.SUCCEEDED


@pytest.mark.anyio
async def test_workflows_go_on_although_one_cancels_the_end_of_dbos(file: Path) -> None:
    with file.open("a") as opened:
        opened.write(CANCELS_AGAIN)
    async with adapter_of(file) as adapter:
        await adapter.start(order(f"{file.stem}.cancels_again"))
        await anyio.sleep(3)  # it cancels until then
        assert await until(adapter, f"{file.stem}.works", number=1) is Status.SUCCEEDED


@pytest.mark.anyio
async def test_other_workflows_wait_for_the_end_of_those_that_this_process_ran_before(
    file: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, text in ((file, BLOCKS_LONGER), (other, WORKFLOWS)):
        with path.open("a") as opened:
            opened.write(text)
    async with adapter_of(file) as adapter:
        await adapter.start(order(f"{file.stem}.blocks_longer"))
        with anyio.fail_after(PATIENCE):
            while "it blocks" not in capsys.readouterr().out:
                await anyio.sleep(0.02)
    async with adapter_of(other) as adapter:
        assert await until(adapter, f"{other.stem}.blocks") is Status.SUCCEEDED  # for longer than the former block
        assert await until(adapter, f"{other.stem}.works", number=1) is Status.SUCCEEDED


@pytest.mark.anyio
async def test_a_loop_that_is_blocked_is_told_with_its_line(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with adapter_of(file) as adapter:
        await adapter.tooling.check_engine()  # we go on while a workflow blocks
        async with anyio.create_task_group() as group:
            group.start_soon(until, adapter, f"{file.stem}.blocks")
            with anyio.fail_after(PATIENCE):
                while not any(f"{file}:8: this blocks all workflows" in each.message for each in caplog.records):
                    await anyio.sleep(0.02)


@pytest.mark.anyio
async def test_arguments_that_do_not_fit_are_refused_and_a_preview_shows_those_that_do(file: Path) -> None:
    async with adapter_of(file) as adapter:
        with pytest.raises(EngineRefused, match=r"works: number: Input should be a valid integer"):
            await adapter.start(order(f"{file.stem}.works", number="many"))
        with pytest.raises(EngineRefused, match="unexpected keyword argument"):
            await adapter.start(order(f"{file.stem}.works", number=1, more=2))
        with pytest.raises(EngineRefused, match="has no workflow 'nobody'"):
            await adapter.start(order("nobody"))
        with pytest.raises(EngineRefused, match="half of a surrogate pair"):
            await adapter.start(order(f"{file.stem}.breaks", value={"text": "\ud800"}))
        with pytest.raises(EngineRefused, match="takes no such text"):
            await adapter.adopt("\ud800")
        with pytest.raises(EngineRefused, match="number: Input should be a valid integer"):
            adapter.tooling.preview(order(f"{file.stem}.works", number="many"))
        start = order(f"{file.stem}.works", number="1")
        assert adapter.tooling.preview(start) == {
            "workflow_name": start.workflow,
            "workflow_id": start.key,
            "args": [],
            "kwargs": {"number": 1},
        }


@pytest.mark.anyio
async def test_a_method_beside_other_workflows_is_told_with_its_line(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with file.open("a") as opened:
        opened.write(METHOD)
    async with adapter_of(file) as adapter:
        assert await until(adapter, f"{file.stem}.works", number=1) is Status.SUCCEEDED
    told = [each.message for each in caplog.records if "is no tool" in each.message]
    line = len((HEAD + WORKFLOWS).splitlines()) + 4
    said = "Shop.sell is no tool: only functions at the top of a module are; call it from one of these"
    assert told == [f"{file}:{line}: {said}"]


@pytest.mark.anyio
class Connection:
    """No type of JSON."""


def connected(number: int, connection: Connection | None = None) -> int:
    """Take what only code in the process can give."""
    return number


def test_a_parameter_that_is_not_passed_needs_no_type_of_json() -> None:
    assert validate_arguments(connected, ["1"]) == {"number": 1}


async def test_a_single_object_that_names_no_parameter_is_the_first_argument(file: Path) -> None:
    async with adapter_of(file) as adapter:
        by_position = replace(order(f"{file.stem}.breaks"), arguments=[{"a": 1}])
        by_name = replace(by_position, arguments=[{"value": {"a": 1}}], key=uuid.uuid4().hex)
        for start in (by_position, by_name):
            seen = await ended(adapter, start)
            assert seen.failure
            assert seen.failure.data == {"value": {"a": 1}}


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()


def garbage(path: Path) -> None:
    path.write_bytes(b"no database, but a text " * 100)


def content_of(path: Path) -> bytes:
    """What a file has after the header of an SQLite database, which says how it is written."""
    return path.read_bytes()[100:] if path.is_file() else b""


NO_DBOS = "is no database of DBOS: move it away, or set `database` to another file"
UNWRITABLE = "cannot be written: give this user the right to write it and its folder, or set `database`"


@pytest.mark.anyio
@pytest.mark.parametrize(("make", "said"), [(foreign, NO_DBOS), (garbage, NO_DBOS), (Path.mkdir, UNWRITABLE)])
async def test_a_database_that_cannot_be_used_is_told_once_with_its_path_and_used_once_it_is_right(
    file: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None], said: str
) -> None:
    caplog.set_level(logging.DEBUG, "mcp_workflows_dbos.executor")
    database = file.with_suffix(".db")
    make(database)
    before = content_of(database)
    told = f"the workflows of {file.stem} do not run: {database} {said}"
    async with adapter_of(file) as adapter:
        found = await adapter.tooling.check_engine()
        assert (found.ok, found.text) == (False, told)
        with pytest.raises(EngineUnavailable):
            await adapter.describe(Ref(workflow="", handle="one"))
        order = Start(workflow=f"{file.stem}.works", arguments={"number": 1}, key="no", created=datetime.now(UTC))
        with pytest.raises(EngineUnavailable, match=re.escape(f"its workflows do not run: their database {said}")):
            await adapter.start(order)
        assert (await adapter.tooling.explain(Ref(workflow="", handle="one"))).reason == told
        with anyio.fail_after(PATIENCE):
            while [each.message for each in caplog.records].count("they do not run") < RETRIES:
                await anyio.sleep(0.1)
        logged = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
        assert [each for each in logged if not each.startswith("Duplicate registration")] == [told]
        assert content_of(database) == before
        database.rename(database.with_suffix(".moved"))
        with anyio.fail_after(PATIENCE):
            while not (await adapter.tooling.check_engine()).ok:
                await anyio.sleep(0.1)
        assert await until(adapter, f"{file.stem}.works", number=1) is Status.SUCCEEDED


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform == "win32", reason="modes of files are POSIX's")
async def test_nobody_else_can_read_the_database(file: Path) -> None:
    database = file.with_suffix(".db")
    async with adapter_of(file) as adapter:
        assert (await adapter.tooling.check_engine()).ok
        files = [database.with_name(f"{database.name}{each}") for each in ("", "-wal", "-shm")]
        modes = [oct(each.stat().st_mode & 0o777) for each in files]
    assert modes == ["0o600"] * 3


@pytest.mark.anyio
async def test_a_process_runs_the_workflows_of_one_module(file: Path, other: Path) -> None:
    async with adapter_of(file):
        with pytest.raises(ConfigError, match="DBOS is one per process"):
            async with adapter_of(other):
                pass


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes typing.TypedDict from Python 3.12 on")
def test_a_typed_dict_of_typing_is_refused_with_the_one_to_import(tmp_path: Path) -> None:
    file = tmp_path / f"typed_{uuid.uuid4().hex}.py"
    code = "class Out(TypedDict):\n    a: int\n"
    code += "@DBOS.workflow(name=__name__)\nasync def typed(x: int) -> Out:\n    return Out(a=x)\n"
    file.write_text(f"from typing import TypedDict\n{HEAD}{code}")
    with pytest.raises(ConfigError, match=rf"{file.name}:\d+: typed: .*typing_extensions\.TypedDict"):
        draft_file(file, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))  # pyright: ignore[reportUnknownMemberType]  # pytest leaves it untyped
        right = tmp_path / f"typed_{uuid.uuid4().hex}.py"
        right.write_text(f"from typing_extensions import TypedDict\n{HEAD}{code}")
        assert draft_file(right, None).workflows[0].workflow == right.stem
