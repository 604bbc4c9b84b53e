"""Adapters of strangers: the sample as a package of its own, what `new-adapter` writes, and their documents."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner, Result

from mcp_workflows import errors, from_functions
from mcp_workflows.adapter import Adapter, Ref, Start, Status
from mcp_workflows.errors import ConfigError, EngineRefused, EngineUnavailable, ExecutionNotFound, StartConflict
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.testing import AdapterContract, Role, Subject, lossy_proxy
from tests.support import commands
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND
from tests.support.served import peer, serving
from tests.support.sidecars import Process

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "samples" / "custom-adapter"
DOCS = ROOT / "docs" / "extend"
FUNCTIONS = DOCS / "adapter-functions.md"
CAPABILITIES = DOCS / "capabilities.md"
QUOTING = (DOCS / "write-an-adapter.md", DOCS / "adapter-verbs.md", CAPABILITIES)
BIN = Path(sys.executable).parent

SERVES = """
from mcp.server.mcpserver import MCPServer

from mcp_workflows import Tool, attach

workshop = WorkshopAdapter(WorkshopSettings(address="http://127.0.0.1:8099", api_key="letmein"))
server = MCPServer("acme", lifespan=lambda _: workflows)
workflows = attach(
    server, tools=[Tool(name="plate", engine="workshop", workflow="plate")], engines={"workshop": workshop}
)
"""
LAWS = 20  # at least so many tests has the contract


def install(project: Path, target: Path) -> Mapping[str, str]:
    """Install a project as pip does, beside what is here; the environment in which it is found."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(project)], check=True)
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(target), "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    program, *words = command
    full = COMMAND if program == "mcp-workflows" else program
    return commands.run([full, *words], cwd=folder, env=environment, seconds=600)


def pytest_in(folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"], folder, environment)


def counted(report: str) -> Mapping[str, int]:
    """How many tests passed, failed, ..."""
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", report.splitlines()[-1])}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment in which the sample's package is installed."""
    return install(SAMPLE, tmp_path_factory.mktemp("installed"))


@contextmanager
def workshop(database: Path) -> Generator[str]:
    """The sample's server: its URL."""
    command = [sys.executable, str(SAMPLE / "server.py"), "--port=0", f"--database={database}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield next(iter(server.stdout or [])).strip()
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The URL of one server for the tests that leave it running."""
    with workshop(tmp_path_factory.mktemp("workshop") / "orders.db") as address:
        yield address


# --- the sample


@pytest.mark.slow
def test_the_sample_passes_the_contract_where_it_is_installed(installed: Mapping[str, str]) -> None:
    done = pytest_in(SAMPLE, installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert counted(done.stdout)["passed"] >= LAWS


def test_the_sample_imports_only_public_rooms() -> None:
    for path in SAMPLE.glob("mcp_workflows_acme/*.py"):
        imported = [
            node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
        ]
        rooms = {".".join(name.split(".")[:2]) for name in imported if name.startswith("mcp_workflows.")}
        assert rooms <= {f"mcp_workflows.{room}" for room in ("adapter", "kit", "errors", "testing")}


async def test_the_sample_is_checked_and_served_by_its_entry_point(
    installed: Mapping[str, str], shop: str, tmp_path: Path
) -> None:
    environment = {**installed, "ACME_ADDRESS": shop, "MCP_WORKFLOWS_STORE": f"sqlite:///{tmp_path}/tasks.db"}
    checked = run([COMMAND, "check", "--json", str(SAMPLE / "workflows.yaml")], tmp_path, environment)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert {row["text"] for row in json.loads(checked.stdout)["tools"]} == {"it makes plate, trophy"}
    port = free_port()
    command = [COMMAND, "serve", str(SAMPLE / "workflows.yaml"), "--http", f"127.0.0.1:{port}"]
    process = Process(command, port, tmp_path / "serve.log", cwd=tmp_path, env=environment)
    try:
        process.wait_until_ready()
        await order_a_plate(process.url)
    finally:
        process.stop()


async def order_a_plate(url: str) -> None:
    """A client of the sidecar: the proof is shown to a person, approved, and the plate made."""
    async with peer(url) as client:
        task_id = (await client.call("engrave_plate", {"text": "Ada"})).result["taskId"]
        asked = await client.until(task_id, "input_required")
        ((key, question),) = asked["inputRequests"].items()
        assert question["params"]["message"] == "Is the proof of the front right? Ada"
        await client.answer(task_id, **{key: {"action": "accept", "content": {"approved": True}}})
        ended = await client.until(task_id)
        assert json.loads(ended["result"]["content"][0]["text"]) == {"product": "plate", "letters": 3}
        refused = (await client.call("engrave_trophy", {"text": ""})).result
        assert refused["isError"]
        assert "details.text" in refused["content"][0]["text"]


# --- mcp-workflows new-adapter


def new_adapter(*arguments: str) -> Result:
    """The command, in this process: each start of another takes seconds."""
    return CliRunner().invoke(app, ["new-adapter", *arguments])


@pytest.mark.slow
def test_a_new_adapter_has_failing_contract_tests_that_say_what_to_write(tmp_path: Path) -> None:
    made = run([COMMAND, "new-adapter", "print-shop"], tmp_path, os.environ)
    assert (made.returncode, made.stderr) == (0, "")
    assert "cd mcp-workflows-print-shop\n" in made.stdout
    project = tmp_path / "mcp-workflows-print-shop"
    environment = install(project, tmp_path / "installed")
    done = pytest_in(project, environment)
    told = "not written yet: start() in mcp_workflows_print_shop/adapter.py: send start.workflow"
    assert done.stdout.count(told) > 10, done.stdout
    assert counted(done.stdout)["failed"] >= LAWS - 5, done.stdout
    assert "errors" not in counted(done.stdout), done.stdout
    listed = "from mcp_workflows.adapter import installed_adapters, load_adapter as load; "
    listed += "print(installed_adapters(), load('print-shop').Settings.__name__)"
    found = run([sys.executable, "-c", listed], tmp_path, environment)
    assert "'print-shop'" in found.stdout
    assert "PrintShopSettings" in found.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "--isolated", "--line-length=120", "--select=A,B,E,F,I,N,PT,RUF,SIM,UP,W"),
        ("ruff", "format", "--isolated", "--line-length=120", "--check"),
        pytest.param(("pyright", "--pythonpath", sys.executable), marks=pytest.mark.slow),
    ],
    ids=["ruff check", "ruff format", "pyright"],
)
def test_a_new_adapter_is_clean(command: Sequence[str], tmp_path: Path) -> None:
    assert new_adapter("acme", "--path", str(tmp_path / "made")).exit_code == 0
    (tmp_path / "made" / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    done = run([str(BIN / command[0]), *command[1:], "."], tmp_path / "made", os.environ)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Acme", "lowercase letters"),
        ("acme_", "lowercase letters"),
        ("../acme", "lowercase letters"),
        ("-", "lowercase letters"),
        ("a" * 41, "at most 40 characters"),
        ("memory", "is already installed"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, told: str, tmp_path: Path) -> None:
    done = new_adapter("--path", str(tmp_path / "made"), "--", name)
    assert isinstance(done.exception, ConfigError)
    assert told in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    done = new_adapter("acme", "--path", str(tmp_path / "mine"))
    assert isinstance(done.exception, ConfigError)
    assert "mine: already exists and was left unchanged" in str(done.exception)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


async def test_the_report_says_that_the_engine_behind_the_proxy_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    async with lossy_proxy(port) as proxy, await anyio.connect_tcp("127.0.0.1", proxy.port) as connection:
        with pytest.raises(anyio.EndOfStream):
            await connection.receive()
    assert f"nothing listens on 127.0.0.1:{port}: is your engine running?" in caplog.text


# --- the documents


def blocks(document: Path, language: str) -> Sequence[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


def examples() -> Sequence[str]:
    """The blocks about functions that are programs of their own."""
    return [block for block in blocks(FUNCTIONS, "python") if re.search(r"^(import|from) ", block)]


def executed(example: str) -> Mapping[str, Any]:
    """The names that a program makes, with nothing but what it imports."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "example.py", "exec", dont_inherit=True), names)
    return names


def an_order(key: str, *arguments: Any) -> Start:
    return Start(workflow="plate", arguments=list(arguments), key=key, created=datetime.now(UTC))


def test_what_the_documents_quote_is_in_the_sample() -> None:
    sample = "\n".join(path.read_text() for path in SAMPLE.rglob("*.toml"))
    quoted = [block for document in QUOTING for block in blocks(document, "toml")]
    assert quoted
    for block in quoted:
        assert block in sample, f"not in the sample:\n{block}"
    [functions] = examples()
    assert functions in (SAMPLE / "mcp_workflows_acme" / "functions.py").read_text()


def test_what_the_document_says_of_keys_and_errors_is_tested() -> None:
    tested = (ROOT / "tests" / "kit" / "test_functions_keys.py").read_text()
    parts = [block for block in blocks(FUNCTIONS, "python") if block not in examples()]
    (table,) = (part for part in parts if part.startswith("errors ="))
    names: dict[str, Any] = {**vars(errors)}
    exec(table, names)
    made: Any = from_functions  # a table that can count
    assert made(start=None, describe=None, cancel=None, errors=names["errors"])
    assert len(parts) == 2
    for part in (part for part in parts if part != table):
        assert part in tested, f"not in the tests:\n{part}"


async def test_the_documents_functions_serve_a_tool(shop: str, tmp_path: Path) -> None:
    [functions] = examples()
    written = f"{functions}\n{SERVES.replace('http://127.0.0.1:8099', shop)}"
    names = executed(written.replace("engines={", f"store={f'sqlite:///{tmp_path}/tasks.db'!r}, engines={{"))
    async with serving(names["server"].streamable_http_app()) as url, peer(url) as client:
        made = await client.until((await client.call("plate", {"text": "Ada"})).result["taskId"])
        assert json.loads(made["result"]["content"][0]["text"]) == {"product": "plate", "letters": 3}
        endless = (await client.call("plate", {"text": "Ada", "days": 9})).result["taskId"]
        await client.send("tasks/cancel", {"taskId": endless})
        assert (await client.until(endless, "cancelled"))["status"] == "cancelled"
        refused = (await client.call("plate", {})).result
        told = "Engine workshop refused to start plate: it answered 422: details.text: Field required"
        assert (refused["isError"], refused["content"][0]["text"]) == (True, told)
    async with names["workshop"] as adapter:
        await adapter.start(an_order("k", {"text": "Ada"}))
        with pytest.raises(StartConflict, match=r"it answered 409: .* belongs to another order"):
            await adapter.start(an_order("k", {"text": "Eve"}))
        with pytest.raises(ExecutionNotFound, match="it answered 404: there is no order E-0"):
            await adapter.describe(Ref(workflow="plate", handle="E-0"))


@pytest.mark.slow
class TestTheDocumentsFunctionsWithSettings(AdapterContract):
    """The functions for workflows.yaml keep all laws."""

    @pytest.fixture
    async def subject(self, shop: str) -> AsyncIterator[Subject]:
        [example] = examples()
        names = executed(example)

        def made(address: str, api_key: str) -> Adapter:
            return names["WorkshopAdapter"](names["WorkshopSettings"](address=address, api_key=api_key))

        async with lossy_proxy(int(shop.rpartition(":")[2])) as proxy:
            yield Subject(
                new_adapter=lambda: made(f"http://127.0.0.1:{proxy.port}", "letmein"),
                finishes=Role(workflow="plate", arguments=[{"text": "hi"}]),
                output={"product": "plate", "letters": 2},
                other_arguments=[{"text": "ho"}],
                fails=Role(workflow="trophy", arguments=[{"text": "much too long " * 9}]),
                failure="room for 40 letters",
                endless=Role(workflow="plate", arguments=[{"text": "hi", "days": 10_000}]),
                asks=Role(workflow="plate", arguments=[{"text": "hi", "proofs": ["front"]}]),
                asks_two=Role(workflow="plate", arguments=[{"text": "hi", "proofs": ["front", "back"]}]),
                content={"approved": True},
                refused=Role(workflow="plate", arguments=[{"text": ""}]),
                unreachable=lambda: made("http://127.0.0.1:1", "s3cret"),
                secret="s3cret",
                losing_replies=lambda _: proxy.losing(),
            )


async def test_the_samples_class_of_functions_uses_its_settings_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SAMPLE))  # pyright: ignore[reportUnknownMemberType]  # pytest leaves it untyped
    module: Any = importlib.import_module("mcp_workflows_acme.checked")
    kind, settings = module.CheckedAdapter, module.WorkshopSettings
    with workshop(tmp_path / "orders.db") as address:
        async with kind(settings(address=address, api_key="letmein")) as adapter:
            ref = Ref(workflow="plate", handle=await adapter.start(an_order("k", {"text": "Ada", "days": 9})))
            assert (await adapter.describe(ref)).status is Status.RUNNING
            await adapter.cancel(ref)
            assert (await adapter.describe(ref)).status is Status.CANCELLED
            assert (await adapter.tooling.check("plate", {})).ok
            assert (await adapter.tooling.check("plaque", {})).text == "it does not make 'plaque'"
        async with kind(settings(address=address, api_key="wrong")) as adapter:
            assert (await adapter.tooling.check("plate", {})).hint == "check address and api_key"
            with pytest.raises(EngineRefused, match="it answered 401: it does not accept our credentials"):
                await adapter.start(an_order("other"))
    async with kind(settings(address=address, api_key="letmein")) as adapter:
        with pytest.raises(EngineUnavailable, match="ConnectError"):  # the workshop has closed
            await adapter.describe(ref)


def test_every_capability_is_in_the_document() -> None:
    tree = ast.parse((ROOT / "mcp_workflows" / "adapter" / "capabilities.py").read_text())
    protocols = [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(parent) == "Protocol" for parent in node.bases)
    ]
    assert protocols
    assert [name for name in protocols if f"| `{name}` |" not in CAPABILITIES.read_text()] == []
