"""Who may import whom, what must never be imported, and words that name nothing."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import pytest

from mcp_workflows import Tool
from scripts.check_names import duplicates
from tests.support.in_memory import entered, line

ROOT = Path(__file__).parent.parent
CORE = "mcp_workflows"
CONFORMANCE = "mcp_tasks_conformance"

ROOMS: Mapping[str, str] = {
    "errors": "",
    "units": "",
    "telemetry": "errors",
    "adapter": "errors units",
    "kit": "errors units adapter",
    "task": "errors adapter",
    "wire": "errors adapter",
    "access": "errors units telemetry adapter task",
    "tools": "errors units adapter access",
    "store": "errors adapter task",
    "engines": "errors adapter task telemetry",
    "tasks": "errors units telemetry adapter task wire access tools store engines",
    "receiver": "errors units telemetry adapter task wire access tools store engines tasks",
    "client": "errors wire",
    "testing": "errors adapter kit task store",
    "sidecar": "errors units telemetry adapter task wire access tools store engines tasks receiver client kit testing",
}
"""The import table: the rooms of the package, from the ground up, and which others each may import."""

ROOT_FILES = frozenset({"__init__.py", "__main__.py", "errors.py", "py.typed", "task.py", "telemetry.py", "units.py"})
FACES = frozenset({CORE, f"{CORE}.__main__"})  # hand on names of any room, or start the command line
NEVER_IMPORTED = frozenset({f"{CORE}.store.sqlite"})  # a store is known by its protocol, and opened by URL
PUBLIC = frozenset({CORE, f"{CORE}.adapter", f"{CORE}.errors", f"{CORE}.kit", f"{CORE}.testing"})  # to adapters
TEMPORAL_WORKER = f"{CORE}_temporal_worker"
SHARED: Mapping[str, frozenset[str]] = {f"{CORE}_temporal": frozenset({TEMPORAL_WORKER})}
"""Packages of an engine that its adapter may import; otherwise no adapter imports another."""

ENGINE_SDKS: Mapping[str, tuple[str, ...]] = {
    "temporal": ("temporalio",),
    "stepfunctions": ("boto3", "botocore", "aiobotocore", "aioboto3"),
    "google": ("google.cloud", "google.auth", "google.api_core", "googleapiclient"),
    "dbos": ("dbos", "sqlalchemy", "psycopg"),
}
MCP_ADAPTER = f"{CORE}_mcp"

MCP_SDK: Mapping[str, tuple[str, ...]] = {
    "receiver": ("mcp.server",),
    "client": ("mcp.client",),
    MCP_ADAPTER: ("mcp.client",),  # it is a client of other servers
    "sidecar": (
        "mcp.server.auth",
        "mcp.server.lowlevel",
        "mcp.server.stdio",
        "mcp.server.subscriptions",
        "mcp.server.transport_security",
    ),
}
"""Which part of the MCP SDK's two sides a module may import; all others none."""

IMPURE = ("time", "random", "secrets", "uuid", "logging", "os", "anyio", "asyncio", "threading", "socket")
CATCH_EVERYTHING = frozenset(
    {
        f"{CORE}.testing.laws",
        f"{CORE}.engines.polling.poller",
        f"{CORE}.engines.registry",
        f"{CORE}.receiver.middleware",
        f"{CORE}.receiver.v2025_11_25.session",
        f"{CORE}.sidecar.verify.observations",
        f"{CORE}.sidecar.verify.run",
        f"{CORE}.tasks.authorization",
        f"{CORE}.tasks.maintenance",
        f"{CORE}_dbos.executor",
        f"{CORE}_dbos.module",
        f"{CORE}_dbos.serializer",
    }
)
"""The boundaries of the process and of a request, as docs/decisions/0002 gives their reasons."""

FORBIDDEN_WORDS = frozenset(
    {"job", "jobs", "backend", "provider", "connector", "driver", "manager", "helper", "helpers"}
    | {"util", "utils", "base", "impl"}
)
OTHERS_WORDS = frozenset({"anyio_backend", "helper"})  # a fixture of anyio's pytest plugin; our command `helper`


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One module: its dotted name and what is written in it."""

    name: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """Its distribution's import name."""
        return self.name.partition(".")[0]

    @property
    def room(self) -> str:
        """The name right under the package."""
        return self.name.split(".")[1] if "." in self.name else "__init__"


@cache
def modules() -> Mapping[str, Module]:
    """Return every module of the core, of the adapters and of the conformance suite by its name."""
    return {module.name: module for module in _parsed()}


def _parsed() -> Iterator[Module]:
    for package in (ROOT / CORE, *sorted(ROOT.glob(f"adapters/*/{CORE}_*")), ROOT / "conformance" / CONFORMANCE):
        for path in sorted(package.rglob("*.py")):
            name = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
            yield Module(name=name, tree=ast.parse(path.read_text(), str(path)))


@cache
def nodes(module: Module) -> Sequence[ast.AST]:
    """Return all nodes of a module; cached, as each rule looks at all of them."""
    return tuple(ast.walk(module.tree))


@cache
def imports(module: Module) -> Sequence[str]:
    """The dotted names it imports; `from a import b` is `a.b` when that is a module, otherwise `a`.

    A string given to `import_module` counts as an import, and an f-string by its beginning.
    """
    return tuple(_imports(module))


def _imports(module: Module) -> Iterator[str]:
    for node in nodes(module):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                assert node.level == 0, f"{module.name}: imports are absolute"
                source = node.module or ""
                longer = (f"{source}.{alias.name}" for alias in node.names)
                yield from (name if name in modules() else source for name in longer)
            case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module")):
                texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
                yield from (text.rstrip(".") for text in texts if isinstance(text, str))
            case _:
                pass


def within(name: str, places: Sequence[str] | frozenset[str]) -> bool:
    """Whether a dotted name is one of these places or under one."""
    return any(name == place or name.startswith(f"{place}.") for place in places)


Rule: TypeAlias = Callable[[Module], Iterator[str]]


def only_downwards(module: Module) -> Iterator[str]:
    """The core imports by the table."""
    if module.package != CORE or module.name in FACES:
        return
    if module.room not in ROOMS:
        yield f"{module.room} has no row in the import table"
        return
    for name in imports(module):
        if name == CORE or (name.startswith(f"{CORE}.") and name.split(".")[1] not in allowed(module.room)):
            yield f"{module.room} must not import {name}"
        elif module.room == "tasks" and within(name, (f"{CORE}.wire",)) and name != f"{CORE}.wire.commands":
            yield f"of wire, tasks may import only the commands, not {name}"
        elif module.room == "sidecar" and within(name, (f"{CORE}.testing",)) and name != f"{CORE}.testing.laws":
            yield f"of testing, sidecar may import only the laws, not {name}"


def allowed(room: str) -> frozenset[str]:
    """The rooms that a room may import, itself among them."""
    return frozenset(ROOMS[room].split()) | {room}


def stores_by_protocol(module: Module) -> Iterator[str]:
    """Only a store imports itself."""
    if not within(module.name, NEVER_IMPORTED):
        yield from (f"imports {name}" for name in imports(module) if within(name, NEVER_IMPORTED))


def wire_is_pure(module: Module) -> Iterator[str]:
    """wire/ knows the commands, and neither clock, chance, log nor loop."""
    if module.name.startswith(f"{CORE}.wire."):
        yield from (f"imports {name}" for name in imports(module) if within(name, IMPURE))
        words = tuple(f"{CORE}.wire.{name}" for name in ("commands", "params"))
        wires = (name for name in imports(module) if name.startswith(f"{CORE}.wire."))
        yield from (f"imports {name}" for name in wires if name not in words)


def no_engine_sdk(module: Module) -> Iterator[str]:
    """The core imports no engine SDK; an adapter no other engine's."""
    own = module.package.removeprefix(f"{CORE}_")
    if module.name == f"{CORE}_http.google_identity":  # who a workload is, for any API that takes Google's tokens
        return
    foreign = [place for engine, places in ENGINE_SDKS.items() if not own.startswith(engine) for place in places]
    yield from (f"imports {name}" for name in imports(module) if within(name, foreign))


def adapters_stay_outside(module: Module) -> Iterator[str]:
    """An adapter imports public names of the core, and never another adapter; the core imports no adapter."""
    for name in imports(module):
        root = name.partition(".")[0]
        if root.startswith(f"{CORE}_") and root != module.package and root not in SHARED.get(module.package, ()):
            yield f"imports {name}"
        public = tuple(f"{CORE}.{room}" for room in ("adapter", "kit", "testing"))
        if module.package == MCP_ADAPTER:
            public += (f"{CORE}.client",)
        if root == CORE and module.package != CORE and not (name in PUBLIC or within(name, public)):
            yield f"imports {name}, which is not public: {', '.join(sorted(PUBLIC))} are"


def conformance_stands_alone(module: Module) -> Iterator[str]:
    """The conformance suite imports neither the MCP SDK nor our other packages, and they do not import the suite."""
    for name in imports(module):
        root = name.partition(".")[0]
        if module.package == CONFORMANCE and (root in ("mcp", "mcp_types") or root.startswith(CORE)):
            yield f"imports {name}"
        if module.package != CONFORMANCE and root == CONFORMANCE:
            yield f"imports {name}"


def temporal_worker_stands_alone(module: Module) -> Iterator[str]:
    """A Temporal worker imports neither the core, nor the MCP SDK, nor an adapter."""
    if module.package == TEMPORAL_WORKER:
        foreign = (name for name in imports(module) if name.partition(".")[0].startswith(("mcp", CORE)))
        yield from (f"imports {name}" for name in foreign if not within(name, (TEMPORAL_WORKER,)))


def mcp_sdk_at_the_edge(module: Module) -> Iterator[str]:
    """Only the receiver and the client know the inside of the MCP SDK's server and client."""
    allowed = MCP_SDK.get(module.room if module.package == CORE else module.package, ())
    sides = [name for name in imports(module) if within(name, ("mcp.server", "mcp.client"))]
    yield from (f"imports {name}" for name in sides if not within(name, allowed))


def imports_at_the_top(module: Module) -> Iterator[str]:
    """No imports inside functions."""
    for function in nodes(module):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
            yield from (f"line {node.lineno}: an import inside {function.name}()" for node in inside)


def nothing_private_of_others(module: Module) -> Iterator[str]:
    """What starts with an underscore stays in its module."""
    for node in nodes(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(CORE):
            private = [alias.name for alias in node.names if re.match(r"_[^_]", alias.name)]
            yield from (f"imports {name} of {node.module}" for name in private)


def catch_by_name(module: Module) -> Iterator[str]:
    """Catch only what you can name; everything only where somebody must."""
    if within(module.name, CATCH_EVERYTHING):
        return
    for node in nodes(module):
        if isinstance(node, ast.ExceptHandler):
            caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else {"all"}
            if caught & {"all", "Exception", "BaseException"}:
                yield f"line {node.lineno}: catches everything"


def defined_names(module: Module) -> Iterator[str]:
    """The names this module makes up."""
    yield module.name.rpartition(".")[2]
    for node in nodes(module):
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


def names_that_say_something(module: Module) -> Iterator[str]:
    """One word, one thing; some words are no thing."""
    names = {name for name in defined_names(module) if words(name) & FORBIDDEN_WORDS} - OTHERS_WORDS
    yield from (f"the name {name}" for name in sorted(names))


RULES: Sequence[Rule] = (
    only_downwards,
    stores_by_protocol,
    wire_is_pure,
    no_engine_sdk,
    adapters_stay_outside,
    conformance_stands_alone,
    temporal_worker_stands_alone,
    mcp_sdk_at_the_edge,
    imports_at_the_top,
    nothing_private_of_others,
    catch_by_name,
    names_that_say_something,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    assert [f"{name}: {complaint}" for name, module in modules().items() for complaint in rule(module)] == []


def cycle_from(start: str, edges: Callable[[str], frozenset[str]]) -> Sequence[str]:
    """The shortest way from a name back to itself; empty if there is none."""
    ways = [[start, name] for name in sorted(edges(start))]
    seen: set[str] = set()
    for way in ways:
        if way[-1] == start:
            return way
        if way[-1] not in seen:
            seen.add(way[-1])
            ways.extend([*way, name] for name in sorted(edges(way[-1])))
    return []


@cache
def module_edges(name: str) -> frozenset[str]:
    return frozenset(imports(modules()[name])) & frozenset(modules())


@cache
def side_by_side(package: str) -> Mapping[str, frozenset[str]]:
    """What lies in a package, modules and packages alike, and what each of these imports of the others."""
    below = [name for name in modules() if name.startswith(f"{package}.")]

    def child(name: str) -> str:
        return ".".join(name.split(".")[: package.count(".") + 2])

    return {
        each: frozenset(child(to) for name in below if child(name) == each for to in module_edges(name) if to in below)
        - {each}
        for each in {child(name) for name in below}
    }


def room_edges(room: str) -> frozenset[str]:
    return frozenset(name.split(".")[1] for name in side_by_side(CORE)[f"{CORE}.{room}"])


@cache
def floor(room: str) -> int:
    return 1 + max((floor(below) for below in room_edges(room)), default=0)


def test_no_module_imports_itself_in_a_circle() -> None:
    assert [cycle for name in modules() if (cycle := cycle_from(name, module_edges))] == []


def test_nothing_that_lies_side_by_side_imports_itself_in_a_circle() -> None:
    packages = {name.rpartition(".")[0] for name in modules() if "." in name}
    found = [(each, edges) for package in packages for edges in [side_by_side(package)] for each in edges]
    assert [cycle for each, edges in found if (cycle := cycle_from(each, edges.__getitem__))] == []


def test_a_circle_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c", "d"}, "c": set[str](), "d": {"b"}}
    assert cycle_from("b", lambda name: frozenset(edges[name])) == ["b", "d", "b"]
    assert cycle_from("a", lambda name: frozenset(edges[name])) == []


def test_the_picture_of_the_rooms_is_one_that_a_reader_can_hold(record_property: Callable[[str, object], None]) -> None:
    arrows = [(room, below) for room in ROOMS for below in room_edges(room)]
    record_property("said", f"rooms: {len(ROOMS)} on {max(map(floor, ROOMS))} floors, {len(arrows)} arrows")
    assert len(ROOMS) <= 17
    assert max(map(floor, ROOMS)) <= 8
    assert len(arrows) <= 70


def reached(room: str, edges: Callable[[str], frozenset[str]]) -> frozenset[str]:
    """Every room that a way of arrows leads to."""
    found: set[str] = set()
    todo = [room]
    while todo:
        new = edges(todo.pop()) - found
        found |= new
        todo.extend(new)
    return frozenset(found)


def test_the_diagram_of_the_documentation_is_the_import_table() -> None:
    drawn: dict[str, set[str]] = {room: set() for room in ROOMS}
    for above, below in re.findall(r"^    (\w+) --> (\w+)$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE):
        drawn[above].add(below)
    assert all(below <= allowed(room) for room, below in drawn.items())
    shown = {room: reached(room, lambda each: frozenset(drawn[each])) for room in ROOMS}
    assert shown == {room: reached(room, lambda each: allowed(each) - {each}) for room in ROOMS}


def test_nothing_else_lies_beside_the_rooms() -> None:
    folder = ROOT / CORE
    assert {path.name for path in folder.iterdir() if path.is_file()} == ROOT_FILES
    rooms = {path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == ROOMS.keys() - {Path(name).stem for name in ROOT_FILES}


def test_workflows_of_dbos_are_imported_by_the_tests_of_its_adapter_alone() -> None:
    """DBOS has one registry in a process: two modules with workflows of one name cannot both be imported there."""
    folders = ("tests", "scripts", "samples", "adapters/*/tests")
    trees = {path: ast.parse(path.read_text()) for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")}
    registering = {
        path
        for path, tree in trees.items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(ast.unparse(each).startswith("DBOS.workflow") for each in function.decorator_list)
    }
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, tree in trees.items()
        if not path.is_relative_to(ROOT / "adapters" / "dbos")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in (f"{getattr(node, 'module', '')}.{alias.name}".strip(".") for alias in node.names)
        if {ROOT / f"{name.replace('.', '/')}.py", ROOT / f"{name.rpartition('.')[0].replace('.', '/')}.py"}
        & registering
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


def test_no_public_class_name_is_defined_twice() -> None:
    assert list(duplicates()) == []


def test_every_rule_of_the_table_is_about_a_room() -> None:
    assert {room for row in ROOMS for room in allowed(row)} == set(ROOMS)
    assert f"{CORE}_temporal.adapter" in modules()


LINES: Mapping[str, int] = {
    "errors": 60,
    "units": 52,
    "telemetry": 179,  # unknown starts, unmapped statuses, rounds, mismatches
    "adapter": 1720,  # masking and cleaning of texts; forms
    "kit": 1480,
    "task": 219,
    "wire": 576,  # the call of a card
    "access": 1579,  # signatures of webhooks
    "tools": 1590,  # the preparation of a call in one place; arguments as hosts send them; known hosts
    "store": 1496,  # a row is decoded once for each text; creates share a sync; turns of processes; sweeps in batches
    "engines": 1365,  # one class for a call; identities of engines; texts from outside
    "tasks": 2437,  # an unknown start's reason; steps, logs; cards find tasks; rounds that go on
    "receiver": 2678,  # signed webhooks; steps and logs; the run card; pages only for clients that show them
    "client": 820,  # bounded answers over HTTP; what was not sent, and what has no token
    "testing": 1610,  # without the laws of the verbs; the laws of logs and identities
    "sidecar": 7820,  # `dev` in its own process; `verify`; `import --mcp`; `engines rebind`; pins; bounds of requests
}
"""The most lines of code of each room, without blank lines, comments and docstrings; a raised one has its reason."""


def lines_of_code(path: Path) -> int:
    """Count the lines that hold code: neither blank nor only a comment or a docstring."""
    text = path.read_text()
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code = (token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in layout)
    return len({line for token in code for line in range(token.start[0], token.end[0] + 1)} - docstrings)


def lines_of_room(room: str) -> int:
    path = ROOT / CORE / room
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    return sum(map(lines_of_code, files))


@pytest.mark.parametrize("room", LINES)
def test_a_room_has_no_more_lines_than_its_budget(room: str) -> None:
    assert lines_of_room(room) <= LINES[room]


def test_every_room_has_a_budget() -> None:
    assert LINES.keys() == ROOMS.keys()


class Lengths(NamedTuple):
    """The length of the way of a request."""

    files: int
    changes: int


TRIPS: Mapping[str, Lengths] = {"tools/call": Lengths(files=33, changes=77), "tasks/get": Lengths(files=25, changes=57)}
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


BAD: Sequence[tuple[Rule, str, str]] = [
    (only_downwards, f"{CORE}.adapter.boundary", f"from {CORE}.task import Task"),
    (only_downwards, f"{CORE}.store.redis.store", f"import {CORE}.tasks.service"),
    (only_downwards, f"{CORE}.tasks.call", f"from {CORE}.wire import v2026_07_28"),
    (only_downwards, f"{CORE}.sidecar.app", f"from {CORE}.testing import AdapterContract"),
    (only_downwards, f"{CORE}.errors", f"from {CORE} import Tool"),
    (only_downwards, f"{CORE}.brand_new", "import json"),
    (only_downwards, f"{CORE}.tools.tool", f'importlib.import_module("{CORE}.tasks.service")'),
    (stores_by_protocol, f"{CORE}.sidecar", f"from {CORE}.store.sqlite.store import SQLiteStore"),
    (stores_by_protocol, f"{CORE}.cli", f"from {CORE}.store import sqlite"),
    (wire_is_pure, f"{CORE}.wire.v1", "import logging"),
    (wire_is_pure, f"{CORE}.wire.v1", "from anyio.abc import TaskGroup"),
    (wire_is_pure, f"{CORE}.wire.v1", f"from {CORE}.wire.v2026_07_28 import parse"),
    (no_engine_sdk, f"{CORE}.check", "from temporalio.client import Client"),
    (no_engine_sdk, f"{CORE}.check", "from google.cloud.workflows import executions_v1"),
    (no_engine_sdk, f"{CORE}_temporal.adapter", "import boto3"),
    (adapters_stay_outside, f"{CORE}_temporal.adapter", f"from {CORE}_google.adapter import GoogleAdapter"),
    (adapters_stay_outside, f"{CORE}.sidecar.config.load", f"import {CORE}_temporal"),
    (adapters_stay_outside, f"{CORE}_temporal.adapter", f"from {CORE}.tasks.service import TaskService"),
    (mcp_sdk_at_the_edge, f"{CORE}.tasks.service", "from mcp.server.lowlevel import Server"),
    (conformance_stands_alone, f"{CONFORMANCE}.session", f"from {CORE}.errors import EngineError"),
    (conformance_stands_alone, f"{CONFORMANCE}.session", f"import {CORE}_temporal.adapter"),
    (conformance_stands_alone, f"{CONFORMANCE}.session", "from mcp_types import Tool"),
    (conformance_stands_alone, f"{CORE}.check", f"from {CONFORMANCE}.runner import CHECKS"),
    (temporal_worker_stands_alone, f"{TEMPORAL_WORKER}.workflow", f"from {CORE}.errors import EngineError"),
    (temporal_worker_stands_alone, TEMPORAL_WORKER, "import mcp_types"),
    (temporal_worker_stands_alone, f"{TEMPORAL_WORKER}.forms", f"from {CORE}_temporal.labels import mapping"),
    (adapters_stay_outside, f"{CORE}_google.adapter", f"import {TEMPORAL_WORKER}"),
    (mcp_sdk_at_the_edge, f"{CORE}.sidecar", "from mcp.server.session import ServerSession"),
    (mcp_sdk_at_the_edge, f"{CORE}_temporal.client", "import mcp.client.session"),
    (imports_at_the_top, f"{CORE}.cli", "def main():\n    if True:\n        import json"),
    (imports_at_the_top, f"{CORE}.cli", "class A:\n    async def b(self):\n        from os import path"),
    (nothing_private_of_others, f"{CORE}.task", f"from {CORE}.adapter import _secret"),
    (catch_by_name, f"{CORE}.tasks.service", "try:\n    pass\nexcept (ValueError, Exception):\n    pass"),
    (catch_by_name, f"{CORE}.tasks.service", "try:\n    pass\nexcept:\n    pass"),
    (catch_by_name, f"{CORE}_temporal.receiver", "try:\n    pass\nexcept BaseException as error:\n    pass"),
    (names_that_say_something, f"{CORE}.store_utils", ""),
    (names_that_say_something, f"{CORE}.a", "class TaskManager: ..."),
    (names_that_say_something, f"{CORE}.a", "def run_job(): ..."),
    (names_that_say_something, f"{CORE}.a", "def f(*, base_url): ..."),
    (names_that_say_something, f"{CORE}.a", "self.HTTPBackend = 1"),
    (names_that_say_something, f"{CORE}.a", "import json as json_impl"),
    (names_that_say_something, f"{CORE}.a", "with open() as driver: ..."),
]

GOOD: Sequence[tuple[Rule, str, str]] = [
    (only_downwards, f"{CORE}.store.sqlite.store", f"from {CORE}.task import Task"),
    (only_downwards, f"{CORE}.tasks.call", f"from {CORE}.wire.commands import Call"),
    (only_downwards, f"{CORE}.sidecar.config.yaml", f"from {CORE}.tasks.service import TaskService"),
    (stores_by_protocol, f"{CORE}.store.sqlite.store", f"from {CORE}.store.sqlite.rows import Rows"),
    (wire_is_pure, f"{CORE}.wire.v1", f"from {CORE}.wire.commands import Call\nfrom datetime import datetime"),
    (no_engine_sdk, f"{CORE}_temporal.adapter", "import temporalio.client\nimport google.protobuf"),
    (adapters_stay_outside, f"{CORE}_temporal.adapter", f"from {CORE}.errors import EngineError"),
    (adapters_stay_outside, f"{CORE}_temporal.adapter", f"from {TEMPORAL_WORKER}.contract import MEMO_INPUT"),
    (temporal_worker_stands_alone, TEMPORAL_WORKER, f"from {TEMPORAL_WORKER}.forms import form\nimport temporalio"),
    (conformance_stands_alone, f"{CONFORMANCE}.runner", f"from {CONFORMANCE}.check import Check\nimport httpx2"),
    (mcp_sdk_at_the_edge, f"{CORE}.sidecar", "from mcp.server.lowlevel.server import Server"),
    (mcp_sdk_at_the_edge, f"{CORE}.receiver.subscriptions", "from mcp.server.session import ServerSession"),
    (imports_at_the_top, f"{CORE}.cli", "if TYPE_CHECKING:\n    import json"),
    (catch_by_name, f"{CORE}.engines.registry", "try:\n    pass\nexcept Exception:\n    pass"),
    (catch_by_name, f"{CORE}.a", "try:\n    pass\nexcept (ValueError, errors.EngineError):\n    pass"),
    (names_that_say_something, f"{CORE}.a", "class Database(BaseModel): ...\nobject.backend()\nimplied = rebase = 1"),
]


def judged(rule: Rule, name: str, source: str) -> Sequence[str]:
    return list(rule(Module(name=name, tree=ast.parse(source))))


@pytest.mark.parametrize(("rule", "name", "source"), BAD)
def test_a_module_that_breaks_the_rule_is_found(rule: Rule, name: str, source: str) -> None:
    assert judged(rule, name, source)


@pytest.mark.parametrize(("rule", "name", "source"), GOOD)
def test_a_module_that_keeps_the_rule_is_let_be(rule: Rule, name: str, source: str) -> None:
    assert judged(rule, name, source) == []
