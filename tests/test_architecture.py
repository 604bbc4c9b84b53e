"""The shape of the project. `.importlinter` holds the import table, which `make check` compares with every import."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise, permutations
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import grimp
import pytest

from mcp_workflows import Tool
from tests.support.in_memory import entered, line

ROOT = Path(__file__).parent.parent
CORE = "mcp_workflows"

MCP_SDK: Mapping[str, tuple[str, ...]] = {
    f"{CORE}.receiver": ("mcp.server",),
    f"{CORE}.client": ("mcp.client",),
    f"{CORE}_mcp": ("mcp.client",),  # it is a client of other servers
    f"{CORE}.sidecar": (
        "mcp.server.auth",
        "mcp.server.lowlevel",
        "mcp.server.stdio",
        "mcp.server.subscriptions",
        "mcp.server.transport_security",
    ),
}
"""The modules of the MCP SDK's server and client that a package may import; other packages may import none."""

FORBIDDEN_WORDS = frozenset(
    {"job", "jobs", "backend", "provider", "connector", "driver", "manager", "helper", "helpers"}
    | {"util", "utils", "base", "impl"}
)
OTHERS_WORDS = frozenset({"anyio_backend", "helper"})  # a fixture of anyio's pytest plugin; our command `helper`


def modules(pattern: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield each module of the core and of the adapters whose text has this pattern, with its name."""
    for package in (ROOT / CORE, *sorted(ROOT.glob(f"adapters/*/{CORE}_*"))):
        for path in sorted(package.rglob("*.py")):
            name = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
            text = path.read_text()
            if re.search(pattern, f"{name}\n{text}", re.MULTILINE):
                yield name, ast.parse(text)


def within(name: str, places: Sequence[str]) -> bool:
    """Return True if a dotted name is one of these places or under one."""
    return any(name == place or name.startswith(f"{place}.") for place in places)


def test_only_the_edges_import_the_mcp_sdk() -> None:
    wrong: list[str] = []
    for name, tree in modules(r"^ *(from|import) mcp\b"):
        allowed = [each for package, places in MCP_SDK.items() if within(name, [package]) for each in places]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                source = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                found = [f"{source}{alias.name}" for alias in node.names]
                sides = [each for each in found if within(each, ["mcp.server", "mcp.client"])]
                wrong += [f"{name} imports {each}" for each in sides if not within(each, allowed)]
    assert wrong == []


def defined_names(name: str, tree: ast.Module) -> Iterator[str]:
    """Return the names that a module makes up."""
    yield name.rpartition(".")[2]
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.alias(asname=str(name)):
                yield name
            case _:
                pass


def words(name: str) -> frozenset[str]:
    """`some_HTTPName2` -> some, http, name."""
    return frozenset(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name))


def test_names_say_something() -> None:
    spellings = "|".join(spelling for word in FORBIDDEN_WORDS for spelling in (word, word.title(), word.upper()))
    suspects = modules(rf"({spellings})(?![a-z])")
    found = {(module, name) for module, tree in suspects for name in defined_names(module, tree)}
    wrong = [
        f"{module}: {name}" for module, name in found if words(name) & FORBIDDEN_WORDS and name not in OTHERS_WORDS
    ]
    assert wrong == []
    assert words("self_HTTPBackend2") & FORBIDDEN_WORDS


def test_the_diagram_of_the_documentation_shows_the_imports_between_rooms() -> None:
    graph = grimp.build_graph(CORE, exclude_type_checking_imports=True)
    rooms = {name.rpartition(".")[2] for name in graph.find_children(CORE)} - {"__main__"}
    imports = {
        (above, below)
        for above, below in permutations(rooms, 2)
        if graph.direct_import_exists(importer=f"{CORE}.{above}", imported=f"{CORE}.{below}", as_packages=True)
    }
    text = (ROOT / "docs/why/architecture.md").read_text()
    drawn = {(above, below) for above, below in re.findall(r"^    (\w+) --> (\w+)$", text, re.MULTILINE)}

    def reached(room: str) -> set[str]:
        return {each for above, below in drawn if above == room for each in (below, *reached(below))}

    assert drawn <= imports
    assert {(above, below) for above, below in imports if below not in reached(above)} == set()


def test_workflows_of_dbos_are_imported_by_the_tests_of_its_adapter_alone() -> None:
    """DBOS has one registry in a process: two modules with workflows of one name cannot both be imported there."""
    folders = ("tests", "benchmarks", "scripts", "samples", "adapters/*/tests")
    texts = {path: path.read_text() for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")}
    registering = [
        path
        for path, text in texts.items()
        if "@DBOS.workflow" in text  # perhaps only in a string
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(ast.unparse(each).startswith("DBOS.workflow") for each in node.decorator_list)
    ]
    names = [path.relative_to(ROOT).with_suffix("").parts for path in set(registering)]
    found = [
        f"{path.relative_to(ROOT)} imports {'.'.join(name)}"
        for path, text in texts.items()
        if not path.is_relative_to(ROOT / "adapters" / "dbos")
        for name in names
        for whole, folder, last in [(re.escape(".".join(name)), re.escape(".".join(name[:-1])), name[-1])]
        if re.search(rf"^ *(from|import) {whole}\b|^ *from {folder} import .*\b{last}\b", text, re.MULTILINE)
    ]
    assert registering
    assert found == []


@pytest.mark.usefixtures("processes")
def test_the_boundary_is_imported_alone() -> None:
    code = f"import sys, {CORE}.adapter; print(*sorted(name for name in sys.modules if name.split('.')[0] in {SEEN}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    alone = (CORE, f"{CORE}.adapter", f"{CORE}.errors", f"{CORE}.units")
    assert [name for name in found if name != CORE and not within(name, alone[1:])] == []


SEEN = [CORE, "mcp", "mcp_types", "typer", "starlette", "uvicorn", "ruamel", "opentelemetry"]


@pytest.mark.usefixtures("processes")
def test_a_server_that_attaches_needs_no_package_of_the_sidecar() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["server"]
    modules = {re.split(r"[^\w.-]", each)[0].removesuffix(".yaml") for each in listed} - {"uvicorn"}  # `mcp` needs that
    code = f"""
import sys
sys.modules.update(dict.fromkeys({modules}))  # None: importing it fails
import {CORE}.receiver.attach, {CORE}.client, {CORE}.testing, {CORE}.adapter.memory, {CORE}.store.sqlite.store
from {CORE}.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"mcp-workflows: .*typer.* not installed; pip install 'mcp-workflows\[server\]'\n", done.stderr)


@pytest.mark.usefixtures("processes")
def test_the_program_needs_no_package_of_the_tests() -> None:
    code = f"""
import sys
from importlib import import_module
from pkgutil import walk_packages
sys.modules["pytest"] = None  # importing it fails
import {CORE}.sidecar
for module in walk_packages({CORE}.sidecar.__path__, "{CORE}.sidecar."):
    import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


class Size(NamedTuple):
    """The most code lines and files of a part; docs/why/architecture.md says what to do when it is reached."""

    lines: int
    files: int


ENGINES = ("temporal", "stepfunctions", "google")
CENTRAL = ("adapter", "wire", "tools", "tasks", "engines")
SIZES: Mapping[str, Size] = {
    "core": Size(31_810, 194),  # 60 of them are lines of descriptions: the reference is made of these
    "central rooms": Size(8_770, 50),
    **{f"the adapter of {name}": Size(3_800, 23) for name in ENGINES},
    "the adapter of temporal": Size(4_265, 24),  # messages and a queried progress: the other two have neither
}


def size(paths: Iterator[Path]) -> Size:
    """Count lines that hold code: neither blank nor only a comment or a docstring."""
    counts = [lines_of_code(path) for path in paths]
    return Size(sum(counts), len(counts))


@cache
def lines_of_code(path: Path) -> int:
    """Count the lines of one file."""
    text = path.read_text()
    found = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(found)


def test_the_parts_have_the_sizes_of_the_table(record_property: Callable[[str, object], None]) -> None:
    found = {
        "core": size((ROOT / CORE).rglob("*.py")),
        "central rooms": size(path for room in CENTRAL for path in (ROOT / CORE / room).rglob("*.py")),
        **{f"the adapter of {name}": size((ROOT / f"adapters/{name}/{CORE}_{name}").rglob("*.py")) for name in ENGINES},
    }
    for part, each in found.items():
        record_property("said", f"{part}: {each.lines} code lines in {each.files} files")
    too_large = {
        part
        for part, each in found.items()
        for most in [SIZES[part]]
        if each.lines > most.lines or each.files > most.files
    }
    assert too_large == set()


class Lengths(NamedTuple):
    """The length of the way of a request."""

    files: int
    changes: int


TRIPS: Mapping[str, Lengths] = {"tools/call": Lengths(files=29, changes=81), "tasks/get": Lengths(files=19, changes=42)}
"""The longest ways; docs/decisions/0024 says which files these are, and why they are so many."""


class Trip:
    """The way of one request: the files of the core that it enters, in order, from the middleware to an adapter's verb.

    A function is entered when it is called; a coroutine counts once, not each time it goes on.
    """

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.files: list[str] = []
        self.has_arrived = False
        self._frames: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Take note of a call; for `sys.setprofile`."""
        place = frame.f_code.co_filename.removeprefix(f"{ROOT / CORE}{os.sep}")
        if event != "call" or self.has_arrived or place == frame.f_code.co_filename or frame in self._frames:
            return
        if self.files or place == f"receiver{os.sep}middleware.py":
            self._frames.add(frame)  # which keeps it, so that its id is not given to another one
            self.files.append(place)
            self.has_arrived = frame.f_code.co_name == self.verb and place.startswith(f"adapter{os.sep}")

    @property
    def lengths(self) -> Lengths:
        """How many files it enters, and how often it goes from one to another."""
        return Lengths(len(set(self.files)), sum(before != after for before, after in pairwise(self.files)))

    def __str__(self) -> str:
        return f"{self.lengths.files} files, {self.lengths.changes} changes of file"


@pytest.mark.anyio
async def test_the_trip_of_a_request_is_counted(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    tools = [Tool(name="forever", engine="memory", workflow="forever")]
    knows_tasks: Mapping[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with entered(tools, store=store) as (server, _), line(server, capabilities=knows_tasks) as client:

        async def trip(verb: str, method: str, every: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
            """Count several and take the shortest: a poll of another task may come in between."""
            ways: list[Trip] = []
            results: list[Mapping[str, Any]] = []
            for params in every:
                way = Trip(verb)
                sys.setprofile(way)
                try:
                    results.append((await client.send(method, params))["result"])
                finally:
                    sys.setprofile(None)
                if way.has_arrived:
                    ways.append(way)
            counted = min(ways, key=lambda way: way.lengths.changes)
            record_property("said", f"trip of {method}, from the middleware to adapter.{verb}: {counted}")
            found, most = counted.lengths, TRIPS[method]
            too_long = found.files > most.files or found.changes > most.changes
            assert not too_long, f"{counted}: {' -> '.join(counted.files)}"
            return results

        call: Mapping[str, Any] = {"name": "forever", "arguments": {}}
        warm = (await client.send("tools/call", call))["result"]["taskId"]
        await client.send("tasks/get", {"taskId": warm})
        tasks = await trip("start", "tools/call", [call] * 3)
        await trip("describe", "tasks/get", [{"taskId": task["taskId"]} for task in tasks])
