"""Who may import whom, what must never be imported, and words that name nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parent.parent
CORE = "mcp_workflows"
CONFORMANCE = "mcp_tasks_conformance"

WORDS = frozenset({"errors", "adapter", "capabilities"})
RULES = WORDS | {"access", "ask", "gate", "mapping", "question", "schema", "task", "tool"}
PARTS = RULES | {
    "adoption",
    "audit",
    "behalf",
    "capping",
    "confirming",
    "creation",
    "engines",
    "fitting",
    "guard",
    "ledger",
    "limits",
    "metering",
    "pacing",
    "result",
    "sameness",
    "sizing",
    "store",
    "telemetry",
    "trial",
    "view",
    "watch",
    "wire",
}

MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "__main__": frozenset({"completion"}),
    "completion": frozenset(),
    "errors": frozenset(),
    "adapter": frozenset({"errors"}),
    "capabilities": frozenset({"errors", "adapter"}),
    "display_text": frozenset(),
    "mapping": frozenset({"display_text", "errors"}),
    "access": frozenset({"access", "duration", "errors"}),
    "patterns": frozenset(),
    "schema_cost": frozenset(),
    "schema": frozenset({"patterns", "schema_cost"}),
    "duration": frozenset(),
    "ending": frozenset({"duration"}),
    "question": frozenset({"display_text", "errors", "mapping", "schema"}),
    "gate": WORDS | {"mapping", "question"},
    "limits": frozenset({"duration"}),
    "tool": WORDS | {"access", "duration", "ending", "gate", "limits", "mapping", "question", "schema"},
    "task": WORDS,
    "telemetry": frozenset({"errors"}),
    "audit": WORDS | {"access", "task", "telemetry"},
    "audit_event": WORDS | {"audit", "telemetry"},
    "recording": WORDS | {"audit", "audit_event", "telemetry"},
    "census": WORDS | {"engines", "store", "telemetry"},
    "telemetry_sdk": frozenset({"telemetry"}),
    "telemetry_prometheus": frozenset(),
    "telemetry_otlp": frozenset({"config_telemetry"}),
    "config_telemetry": WORDS | {"audit_event", "duration"},
    "exporting": frozenset({"audit", "config_telemetry", "errors", "recording", "telemetry"}),
    "probes": frozenset({"capabilities", "errors", "receiver", "stopping"}),
    "ops": frozenset({"access", "exporting", "probes", "receiver", "request_headers", "stopping"}),
    "request_headers": frozenset(),
    "guard": WORDS | {"access", "audit", "task", "tool"},
    "metering": WORDS | {"access", "audit", "limits"},
    "sizing": WORDS | {"result"},
    "capping": WORDS | {"limits", "store", "task", "tool"},
    "answer_delivery": WORDS | {"engines", "sight", "store", "task"},
    "ask": WORDS | {"access", "gate", "mapping", "schema", "task", "tool"},
    "wire": WORDS | {"display_text", "wire"},
    "result": WORDS | {"schema"},
    "store": WORDS | {"store", "task"},
    "circuit": frozenset({"errors"}),
    "engines": WORDS | {"circuit", "display_text", "telemetry"},
    "notes": WORDS | {"store"},
    "log_limits": frozenset(),
    "inbound": WORDS | {"access", "engines"},
    "memory": WORDS,
    "trial": WORDS,
    "http_errors": frozenset({"display_text", "errors"}),
    "functions": WORDS | {"http_errors"},
    "listing": WORDS,
    "quota": frozenset(),
    "pacing": WORDS | {"task"},
    "leases": frozenset({"errors", "store"}),
    "keeping": WORDS | {"leases", "store", "task"},
    "cancelling": WORDS | {"audit", "engines", "sight", "store", "task"},
    "housekeeping": WORDS | {"cancelling", "engines", "keeping", "leases", "store", "task"},
    "paging": frozenset({"errors"}),
    "sight": WORDS | {"engines", "task"},
    "watched": WORDS | {"task"},
    "waiting": WORDS | {"sight", "task"},
    "hearing": WORDS | {"sight"},
    "doubts": frozenset({"watched"}),
    "beat": WORDS | {"doubts", "pacing", "sight", "task", "watched"},
    "sweeper": WORDS | {"beat", "pacing", "sight", "watched"},
    "patrol": WORDS | {"beat", "sweeper", "watched"},
    "watch": WORDS
    | {"beat", "hearing", "pacing", "patrol", "sight", "sweeper", "task", "telemetry"}
    | {"waiting", "watched"},
    "searching": WORDS | {"engines", "task"},
    "creation": WORDS | {"engines", "searching", "store", "task"},
    "adoption": WORDS | {"access", "creation", "engines", "store", "task", "tool"},
    "sameness": WORDS | {"access", "ask", "creation", "tool", "wire"},
    "confirming": WORDS | {"ask", "creation", "gate", "mapping", "question", "schema", "tool"},
    "behalf": WORDS | {"access", "tool"},
    "exposing": WORDS | {"companions", "fitting", "schema_cost", "tool"},
    "offering": WORDS | {"exposing", "receiver", "tool"},
    "fitting": WORDS | {"adoption", "tool"},
    "ledger": WORDS
    | {"access", "adoption", "ask", "cancelling", "creation", "engines", "housekeeping", "pacing", "paging", "sight"}
    | {"answer_delivery", "audit", "capping", "limits", "sizing", "store", "telemetry"}
    | {"task", "watch"},
    "view": WORDS | {"display_text", "result", "task", "wire"},
    "companions": WORDS | {"schema", "tool"},
    "narration": WORDS | {"companions", "display_text", "question", "wire"},
    "stopping": frozenset({"errors"}),
    "operating": WORDS
    | {"access", "adoption", "answer_delivery", "ask", "audit", "engines", "sight", "store", "task", "tool"},
    "plain": PARTS | {"narration"},
    "door": WORDS | {"access", "audit", "guard", "ledger", "limits", "metering", "sizing", "task", "view", "wire"},
    "replies": PARTS | {"door", "plain"},
    "calls": PARTS | {"door", "plain", "replies"},
    "bridge": PARTS | {"calls", "door", "plain"},
    "receiver": PARTS | {"bridge", "census", "companions", "inbound", "log_limits", "narration", "notes", "receiver"},
    "client": frozenset({"client", "errors", "wire"}),
    "testing": WORDS | {"memory", "store", "task", "testing"},
}
"""The import table: which top-level names of the package a module may import; see docs/decisions/."""

MAY_IMPORT_ANYTHING = re.compile(r"^(__init__|check(_\w+)?|cli|config(_\w+)?|connect|reloading|sidecar)$")
NOBODY_IMPORTS = frozenset(
    {f"{CORE}.store.sqlite"}  # stores are known by their protocol, and opened by URL
    | {f"{CORE}.telemetry_{name}" for name in ("otlp", "prometheus", "sdk")}  # they need an extra
)
PUBLIC = frozenset(  # what an adapter may import
    {CORE}
    | {f"{CORE}.{name}" for name in ("adapter", "capabilities", "errors", "functions", "listing", "quota", "testing")}
)

ENGINE_SDKS: Mapping[str, tuple[str, ...]] = {
    "temporal": ("temporalio",),
    "stepfunctions": ("boto3", "botocore", "aiobotocore", "aioboto3"),
    "google": ("google.cloud", "google.auth", "google.api_core", "googleapiclient"),
}
MCP_SDK: Mapping[str, tuple[str, ...]] = {
    "receiver": ("mcp.server",),
    "client": ("mcp.client",),
    "sidecar": (
        "mcp.server.lowlevel",
        "mcp.server.stdio",
        "mcp.server.subscriptions",
        "mcp.server.transport_security",
    ),
}
"""Which part of the MCP SDK's two sides a module may import; all others none."""

IMPURE = ("time", "random", "secrets", "uuid", "logging", "os", "anyio", "asyncio", "threading", "socket")
CATCH_EVERYTHING = frozenset({"guard", "receiver", "engines", "watch", "housekeeping"})  # docs/decisions/0002
FORBIDDEN_WORDS = frozenset(
    {"job", "jobs", "backend", "provider", "connector", "driver", "manager", "helper", "helpers"}
    | {"util", "utils", "base", "impl"}
)
OTHERS_WORDS = frozenset({"anyio_backend"})  # the fixture that anyio's pytest plugin looks for


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
    def part(self) -> str:
        """Its place in the house: the name right under the package."""
        return self.name.split(".")[1] if "." in self.name else "__init__"


def modules() -> Iterator[Module]:
    """Every module of the core, of the adapters and of the conformance suite."""
    for package in (ROOT / CORE, *sorted(ROOT.glob(f"adapters/*/{CORE}_*")), ROOT / "conformance" / CONFORMANCE):
        for path in sorted(package.rglob("*.py")):
            name = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
            yield Module(name=name, tree=ast.parse(path.read_text(), str(path)))


HOUSE: Mapping[str, Module] = {module.name: module for module in modules()}


def imports(module: Module) -> Iterator[str]:
    """The dotted names it imports; `from a import b` is `a.b` when that is a module, otherwise `a`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name}: imports are absolute"
            source = node.module or ""
            longer = (f"{source}.{alias.name}" for alias in node.names)
            yield from (name if name in HOUSE else source for name in longer)


def within(name: str, places: Sequence[str] | frozenset[str]) -> bool:
    """Whether a dotted name is one of these places or under one."""
    return any(name == place or name.startswith(f"{place}.") for place in places)


Rule: TypeAlias = Callable[[Module], Iterator[str]]


def only_upwards(module: Module) -> Iterator[str]:
    """The core imports by the table."""
    if module.package != CORE or MAY_IMPORT_ANYTHING.match(module.part):
        return
    if module.part not in MAY_IMPORT:
        yield f"{module.part} has no place in the import table"
        return
    for name in imports(module):
        if name == CORE or (name.startswith(f"{CORE}.") and name.split(".")[1] not in MAY_IMPORT[module.part]):
            yield f"{module.part} must not import {name}"


def stores_by_protocol(module: Module) -> Iterator[str]:
    """Nobody imports a certain store."""
    yield from (f"imports {name}" for name in imports(module) if name in NOBODY_IMPORTS)


def wire_is_pure(module: Module) -> Iterator[str]:
    """wire/ knows the commands, and neither clock, chance, log nor loop."""
    if module.name.startswith(f"{CORE}.wire."):
        yield from (f"imports {name}" for name in imports(module) if within(name, IMPURE))
        words = tuple(f"{CORE}.wire.{name}" for name in ("commands", "params", "strict"))
        wires = (name for name in imports(module) if name.startswith(f"{CORE}.wire."))
        yield from (f"imports {name}" for name in wires if name not in words)


def no_engine_sdk(module: Module) -> Iterator[str]:
    """The core imports no engine SDK; an adapter no other engine's."""
    own = module.package.removeprefix(f"{CORE}_")
    foreign = [place for engine, places in ENGINE_SDKS.items() if engine != own for place in places]
    yield from (f"imports {name}" for name in imports(module) if within(name, foreign))


def adapters_stay_outside(module: Module) -> Iterator[str]:
    """An adapter imports public names of the core, and never another adapter; the core imports no adapter."""
    for name in imports(module):
        root = name.partition(".")[0]
        if root.startswith(f"{CORE}_") and root != module.package:
            yield f"imports {name}"
        if root == CORE and module.package != CORE and name not in PUBLIC:
            yield f"imports {name}, which is not public: {', '.join(sorted(PUBLIC))} are"


def conformance_stands_alone(module: Module) -> Iterator[str]:
    """The conformance suite imports neither the MCP SDK nor our other packages, and they do not import the suite."""
    for name in imports(module):
        root = name.partition(".")[0]
        if module.package == CONFORMANCE and (root in ("mcp", "mcp_types") or root.startswith(CORE)):
            yield f"imports {name}"
        if module.package != CONFORMANCE and root == CONFORMANCE:
            yield f"imports {name}"


def mcp_sdk_at_the_edge(module: Module) -> Iterator[str]:
    """Only the receiver and the client know the inside of the MCP SDK's server and client."""
    allowed = MCP_SDK.get(module.part, ()) if module.package == CORE else ()
    sides = [name for name in imports(module) if within(name, ("mcp.server", "mcp.client"))]
    yield from (f"imports {name}" for name in sides if not within(name, allowed))


def imports_at_the_top(module: Module) -> Iterator[str]:
    """No imports inside functions."""
    for function in ast.walk(module.tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
            yield from (f"line {node.lineno}: an import inside {function.name}()" for node in inside)


def nothing_private_of_others(module: Module) -> Iterator[str]:
    """What starts with an underscore stays in its module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(CORE):
            private = [alias.name for alias in node.names if re.match(r"_[^_]", alias.name)]
            yield from (f"imports {name} of {node.module}" for name in private)


def catch_by_name(module: Module) -> Iterator[str]:
    """Catch only what you can name; everything only where somebody must."""
    if module.package == CORE and module.part in CATCH_EVERYTHING:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else {"all"}
            if caught & {"all", "Exception", "BaseException"}:
                yield f"line {node.lineno}: catches everything"


def defined_names(module: Module) -> Iterator[str]:
    """The names this module makes up."""
    yield module.name.rpartition(".")[2]
    for node in ast.walk(module.tree):
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


RULES_OF_THE_HOUSE: Sequence[Rule] = (
    only_upwards,
    stores_by_protocol,
    wire_is_pure,
    no_engine_sdk,
    adapters_stay_outside,
    conformance_stands_alone,
    mcp_sdk_at_the_edge,
    imports_at_the_top,
    nothing_private_of_others,
    catch_by_name,
    names_that_say_something,
)


@pytest.mark.parametrize("rule", RULES_OF_THE_HOUSE, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    assert [f"{name}: {complaint}" for name, module in HOUSE.items() for complaint in rule(module)] == []


def cycle_from(start: str, edges: Callable[[str], frozenset[str]]) -> Sequence[str]:
    """The shortest way from a module back to itself; empty if there is none."""
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
def house_edges(name: str) -> frozenset[str]:
    return frozenset(imports(HOUSE[name])) & frozenset(HOUSE)


def test_no_module_imports_itself_in_a_circle() -> None:
    assert [cycle for name in HOUSE if (cycle := cycle_from(name, house_edges))] == []


def test_a_circle_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c", "d"}, "c": set[str](), "d": {"b"}}
    assert cycle_from("b", lambda name: frozenset(edges[name])) == ["b", "d", "b"]
    assert cycle_from("a", lambda name: frozenset(edges[name])) == []


def test_the_house_is_all_there() -> None:
    assert {f"{CORE}.{name}" for name in ("errors", "adapter", "task", "wire.commands", "store.sqlite")} <= set(HOUSE)
    assert {"mcp_workflows_temporal.adapter", f"{CONFORMANCE}.runner"} <= set(HOUSE)


def test_every_place_in_the_table_is_in_the_house() -> None:
    assert {name for allowed in MAY_IMPORT.values() for name in allowed} <= set(MAY_IMPORT)


BAD: Sequence[tuple[Rule, str, str]] = [
    (only_upwards, f"{CORE}.adapter", f"from {CORE}.task import Task"),
    (only_upwards, f"{CORE}.store.redis", f"import {CORE}.bridge"),
    (only_upwards, f"{CORE}.errors", f"from {CORE} import Tool"),
    (only_upwards, f"{CORE}.wire.v1", f"from {CORE}.store import Store"),
    (only_upwards, f"{CORE}.brand_new", "import json"),
    (stores_by_protocol, f"{CORE}.sidecar", f"from {CORE}.store.sqlite import SQLiteStore"),
    (stores_by_protocol, f"{CORE}.cli", f"from {CORE}.store import sqlite"),
    (wire_is_pure, f"{CORE}.wire.v1", "import logging"),
    (wire_is_pure, f"{CORE}.wire.v1", "from anyio.abc import TaskGroup"),
    (wire_is_pure, f"{CORE}.wire.v1", f"from {CORE}.wire.v2026_07_28 import parse"),
    (no_engine_sdk, f"{CORE}.check", "from temporalio.client import Client"),
    (no_engine_sdk, f"{CORE}.check", "from google.cloud.workflows import executions_v1"),
    (no_engine_sdk, f"{CORE}_temporal.adapter", "import boto3"),
    (adapters_stay_outside, f"{CORE}_temporal.adapter", f"from {CORE}_google.adapter import GoogleAdapter"),
    (adapters_stay_outside, f"{CORE}.config", f"import {CORE}_temporal"),
    (adapters_stay_outside, f"{CORE}_temporal.adapter", f"from {CORE}.bridge import Bridge"),
    (conformance_stands_alone, f"{CONFORMANCE}.session", f"from {CORE}.errors import EngineError"),
    (conformance_stands_alone, f"{CONFORMANCE}.session", f"import {CORE}_temporal.adapter"),
    (conformance_stands_alone, f"{CONFORMANCE}.session", "from mcp_types import Tool"),
    (conformance_stands_alone, f"{CORE}.check", f"from {CONFORMANCE}.runner import CHECKS"),
    (mcp_sdk_at_the_edge, f"{CORE}.bridge", "from mcp.server.lowlevel import Server"),
    (mcp_sdk_at_the_edge, f"{CORE}.sidecar", "from mcp.server.session import ServerSession"),
    (mcp_sdk_at_the_edge, f"{CORE}_temporal.client", "import mcp.client.session"),
    (imports_at_the_top, f"{CORE}.cli", "def main():\n    if True:\n        import json"),
    (imports_at_the_top, f"{CORE}.cli", "class A:\n    async def b(self):\n        from os import path"),
    (nothing_private_of_others, f"{CORE}.task", f"from {CORE}.adapter import _secret"),
    (catch_by_name, f"{CORE}.bridge", "try:\n    pass\nexcept (ValueError, Exception):\n    pass"),
    (catch_by_name, f"{CORE}.bridge", "try:\n    pass\nexcept:\n    pass"),
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
    (only_upwards, f"{CORE}.store.sqlite", f"from {CORE}.task import Task"),
    (only_upwards, f"{CORE}.config_source", f"from {CORE}.bridge import Bridge"),
    (wire_is_pure, f"{CORE}.wire.v1", f"from {CORE}.wire.commands import Call\nfrom datetime import datetime"),
    (no_engine_sdk, f"{CORE}_temporal.adapter", "import temporalio.client\nimport google.protobuf"),
    (adapters_stay_outside, f"{CORE}_temporal.adapter", f"from {CORE}.errors import EngineError"),
    (adapters_stay_outside, f"{CORE}_temporal.adapter", f"from {CORE}_temporal.names import MEMO"),
    (conformance_stands_alone, f"{CONFORMANCE}.runner", f"from {CONFORMANCE}.check import Check\nimport httpx2"),
    (mcp_sdk_at_the_edge, f"{CORE}.sidecar", "from mcp.server.lowlevel.server import Server"),
    (mcp_sdk_at_the_edge, f"{CORE}.receiver.streams", "from mcp.server.session import ServerSession"),
    (imports_at_the_top, f"{CORE}.cli", "if TYPE_CHECKING:\n    import json"),
    (catch_by_name, f"{CORE}.engines", "try:\n    pass\nexcept Exception:\n    pass"),
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
