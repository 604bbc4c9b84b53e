"""The package alone: what it exports, and what it does not import."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import mcp_workflows_temporal_worker


def test_a_worker_that_imports_the_package_imports_nothing_of_the_server() -> None:
    code = "import sys, mcp_workflows_temporal_worker; print(sorted({'mcp', 'mcp_workflows'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_worker_installs_the_sdk_and_pydantic() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert [name.partition(">=")[0] for name in project["dependencies"]] == ["pydantic", "temporalio"]


def test_a_worker_imports_two_functions_and_the_type_of_an_answer() -> None:
    assert mcp_workflows_temporal_worker.__all__ == ["Answer", "elicit", "progress"]
