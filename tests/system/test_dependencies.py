"""What we depend on: declared with bounds that hold, and pinned with hashes for deployments."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.check_deps import report

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
PROJECTS: Mapping[str, Path] = {
    str(path.parent.relative_to(ROOT)): path
    for path in (
        ROOT / "pyproject.toml",
        ROOT / "conformance/pyproject.toml",
        *sorted(ROOT.glob("adapters/*/pyproject.toml")),
    )
}
OURS = ("mcp_workflows", "mcp_tasks_conformance")
UNBOUNDED = {"cryptography", "referencing", "regex", "rfc3339-validator", "rfc3986-validator"}  # by date, or stable
DISTRIBUTIONS = {  # of modules that are not called like what brings them
    "jwt": "pyjwt",
    "ruamel": "ruamel.yaml",
    "grpc": "grpcio",
    "prometheus_client": "prometheus-client",
    "mcp_types": "mcp",
    "pydantic_core": "pydantic",
    "botocore": "boto3",
    "moto": "moto",
    "jsonata": "jsonata-python",
    "jsonschema_rs": "jsonschema-rs",
    "opentelemetry": "opentelemetry-api",
    "pytest": "pytest",
}
NAMESPACES = {"azure", "google"}  # of many distributions each
FOR_TESTS = {"pytest"}  # `mcp_workflows.testing` is imported by tests alone


@cache
def declared(project: str) -> Sequence[Requirement]:
    """What a distribution needs, with its extras but for `dev`; without our own."""
    read: Mapping[str, Any] = tomllib.loads(PROJECTS[project].read_text())["project"]
    extras = (
        each for name, listed in read.get("optional-dependencies", {}).items() if name != "dev" for each in listed
    )
    found = [Requirement(each) for each in (*read["dependencies"], *extras)]
    return [each for each in found if not each.name.startswith("mcp-workflows")]


def imported(project: str) -> Iterator[str]:
    """The distributions whose modules it imports."""
    [package] = (ROOT / project).glob("mcp_*/") if project != "." else [ROOT / "mcp_workflows"]
    for path in package.rglob("*.py"):
        for names in re.findall(r"^ *(?:import (\w+)|from (\w+)[\w.]* import )", path.read_text(), re.MULTILINE):
            top = "".join(names)
            if top not in sys.stdlib_module_names and not top.startswith(OURS) and top not in NAMESPACES:
                yield DISTRIBUTIONS.get(top, top)


@pytest.mark.parametrize("project", PROJECTS)
def test_what_is_imported_is_declared(project: str) -> None:
    names = {canonicalize_name(each.name) for each in declared(project)}
    assert {canonicalize_name(each) for each in imported(project)} - FOR_TESTS <= names


@pytest.mark.parametrize("project", PROJECTS)
def test_each_dependency_has_a_lower_bound_and_one_below_the_next_major(project: str) -> None:
    for each in declared(project):
        operators = {specifier.operator for specifier in each.specifier}
        assert operators & {">=", "=="}, each
        assert operators & {"<", "=="} or each.name in UNBOUNDED, each


def test_a_deployment_can_pin_all_of_it_with_hashes_within_the_bounds() -> None:
    text = CONSTRAINTS.read_text()
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))
    for each in (each for project in PROJECTS for each in declared(project) if not _local(project, each)):
        assert each.specifier.contains(pinned[canonicalize_name(each.name)], prereleases=True), f"make lock: {each}"
    blocks = re.split(r"\n(?=\w)", text.partition("\n\n")[2] or text)
    assert all("--hash=sha256:" in block for block in blocks if "==" in block)


def _local(project: str, requirement: Requirement) -> bool:
    """Whether only a local engine needs it."""
    if project.endswith("-local"):
        return True
    read: Mapping[str, Any] = tomllib.loads(PROJECTS[project].read_text())["project"]
    extras: Mapping[str, Sequence[str]] = read.get("optional-dependencies", {})
    return requirement in [Requirement(each) for each in extras.get("local", ())]


def test_the_pins_name_no_host() -> None:
    assert not re.search(r"://|index-url|find-links| @ ", CONSTRAINTS.read_text())


FLAW: Mapping[str, Any] = {"id": "PYSEC-1", "fix_versions": ["2.0"]}


REPORTS: Sequence[tuple[Sequence[Mapping[str, Any]], Sequence[str], bool]] = [
    (
        [{"name": "a", "version": "1.0", "vulns": [FLAW]}, {"name": "b", "version": "1.0", "vulns": []}],
        ["a 1.0: PYSEC-1, fixed in 2.0", "2 of 2 packages checked: 1 have known vulnerabilities"],
        True,
    ),
    (
        [{"name": "a", "version": "1.0", "vulns": []}, {"name": "b", "skip_reason": "not found"}],
        ["1 of 2 packages checked: 0 have known vulnerabilities", "not checked: b"],
        False,
    ),
    (
        [{"name": "a", "skip_reason": "not found"}],
        ["not checked: the database knows none of these packages, or cannot be reached from here"],
        False,
    ),
]


@pytest.mark.parametrize(("packages", "lines", "wrong"), REPORTS)
def test_what_was_not_looked_up_is_not_told_as_fine(
    packages: Sequence[Mapping[str, Any]], lines: Sequence[str], wrong: bool
) -> None:
    assert report(packages) == (lines, wrong)
