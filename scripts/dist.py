"""Build every distribution into dist/, check it, install from the wheels alone, serve a tool, and follow the README.

Usage: python -m scripts.dist TOOLS [--release] [PYTHON...]

TOOLS is the folder that scripts/install-tools prints. PYTHON is an interpreter to install with; default: each minor
version on this machine. `--release` only builds and checks, and needs the addresses of the publication.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.site import Addresses, relink
from tests.support.child_processes import free_port
from tests.support.environments import ROOT, pythons
from tests.support.first_start import Installation, follow
from tests.support.sidecars import Process

DIST = ROOT / "dist"
STAGED = ROOT / ".cache" / "dist"

CONFIG = """
store: sqlite:///tasks.db
engines: {here: {adapter: memory}}
tools: {echo: {engine: here, workflow: echo}}
"""


def projects() -> Sequence[Path]:
    """The folders of all distributions, that of the core first."""
    return [ROOT, ROOT / "conformance", *sorted(path.parent for path in ROOT.glob("adapters/*/pyproject.toml"))]


def extras() -> Sequence[str]:
    """The extras of the core that a user installs."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return sorted(found.keys() - {"dev"})


def run(*command: str | Path) -> None:
    """Run a command; raise CalledProcessError if it fails."""
    subprocess.run(list(map(str, command)), check=True)


def stage(project: Path, addresses: Addresses) -> Path:
    """Copy the tracked files of a project; add the addresses to its metadata, and make the README's links absolute."""
    staged = STAGED / project.name
    listed = subprocess.run(["git", "ls-files", "-z", "."], cwd=project, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        (staged / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(project / name, staged / name)
    if addresses.repository:
        readme = (project / "README.md").read_text("utf-8")
        pictures = f"{addresses.repository}/raw/main/docs/pictures/"
        linked = relink(readme, project / "README.md", None, addresses).replace('"docs/pictures/', f'"{pictures}')
        # the MCP registry looks for this line on PyPI
        marker = f"\n<!-- mcp-name: {registry_name(addresses)} -->\n" if project == ROOT else ""
        (staged / "README.md").write_text(linked + marker, encoding="utf-8")
        metadata = staged / "pyproject.toml"
        urls = {
            "Homepage": addresses.site,
            "Source": addresses.repository,
            "Issues": f"{addresses.repository}/issues",
            "Changelog": f"{addresses.repository}/blob/main/CHANGELOG.md",
        }
        lines = "".join(f"{name} = {json.dumps(address)}\n" for name, address in urls.items())
        metadata.write_text(f"{metadata.read_text('utf-8')}\n[project.urls]\n{lines}", encoding="utf-8")
    return staged


def registry_name(addresses: Addresses) -> str:
    """Return the name in the MCP registry, which the owner of a GitHub repository may publish."""
    owner, name = addresses.repository.split("/")[-2:]
    return f"io.github.{owner}/{name}"


def registry_entry(addresses: Addresses) -> Mapping[str, Any]:  # Any: JSON
    """Return server.json, the entry of the MCP registry: https://modelcontextprotocol.io/registry."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    version = project["version"]
    config = {"format": "filepath", "isRequired": True, "description": "Your workflows.yaml"}
    serve = {"type": "positional", "value": "serve"}
    mount = {"type": "named", "name": "--mount", "value": "type=bind,src={config},dst=/config/workflows.yaml,readonly"}
    return {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": registry_name(addresses),
        "title": "mcp-workflows",
        "description": project["description"],
        "version": version,
        "websiteUrl": addresses.site,
        "repository": {"url": addresses.repository, "source": "github"},
        "packages": [
            {
                "registryType": "pypi",
                "identifier": "mcp-workflows",
                "version": version,
                "runtimeHint": "uvx",
                "runtimeArguments": [{"type": "named", "name": "--with", "value": "mcp-workflows[temporal]"}],
                "packageArguments": [serve, {"type": "positional", "valueHint": "config", **config}],
                "transport": {"type": "stdio"},
            },
            {
                "registryType": "oci",
                "identifier": f"ghcr.io/{'/'.join(addresses.repository.split('/')[-2:]).lower()}:{version}",
                "runtimeHint": "docker",
                "runtimeArguments": [{**mount, "isRequired": True, "variables": {"config": config}}],
                "packageArguments": [serve, {"type": "positional", "value": "/config/workflows.yaml"}],
                "transport": {"type": "stdio"},
            },
        ],
    }


def build(tools: Path, addresses: Addresses) -> None:
    """Build a source distribution and a wheel of each project, the wheel from the source distribution.

    Once there are addresses, also write the entry of the MCP registry.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(STAGED, ignore_errors=True)
    for project in projects():
        run(tools / "uv", "build", "--quiet", "--out-dir", DIST, stage(project, addresses))
    run(tools / "twine", "check", "--strict", *sorted(DIST.glob("mcp_*")))
    if addresses.repository:
        (DIST / "server.json").write_text(json.dumps(registry_entry(addresses), indent=2) + "\n", encoding="utf-8")


def complaints(wheel: Path) -> Iterator[str]:
    """Yield the faults of a wheel and of its source distribution."""
    names = zipfile.ZipFile(wheel).namelist()
    [source] = DIST.glob(f"{'-'.join(wheel.name.split('-')[:2])}.tar.gz")
    with tarfile.open(source) as packed:
        strays = [name for name in packed.getnames() if re.search(r"/\.(?!gitignore)|\.(pyc|db|log)$", name)]
    if strays:
        yield f"{source.name}: contains {', '.join(strays[:5])}"
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        yield f"{wheel.name}: has no licence file"
    package, version = wheel.name.split("-")[:2]
    ours = (f"{package}/", f"{package}-{version}.dist-info/")
    strange = [name for name in names if not name.startswith(ours) or re.search(r"/tests/.*\.py$|\.pyc$", name)]
    if strange:
        yield f"{wheel.name}: holds {', '.join(strange[:5])}"
    if f"{package}/py.typed" not in names:
        yield f"{wheel.name}: has no py.typed"


def install(uv: Path, python: str, place: Path) -> Path:
    """Install the core alone into a new environment, then all wheels; return the folder of its commands."""
    run(uv, "venv", "--quiet", "--python", python, place)
    pip = (str(uv), "pip", "install", "--quiet", "--prerelease", "if-necessary-or-explicit")
    into = ("--python", str(place / "bin" / "python"), "--find-links", str(DIST))
    run(*pip, *into, "mcp-workflows")
    run(place / "bin" / "python", "-c", "from mcp_workflows import attach, TasksClient")
    told = subprocess.run([place / "bin" / "mcp-workflows"], capture_output=True, text=True, check=False)
    if told.returncode != 1 or "pip install 'mcp-workflows[server]'" not in told.stderr:
        raise SystemExit(f"the command without its extra said {told.stderr}")
    run(*pip, *into, f"mcp-workflows[{','.join(extras())}]", "mcp-tasks-conformance>=0.2")
    return place / "bin"


def serve(commands: Path, folder: Path) -> None:
    """Serve a tool over HTTP, call it, and check the reply."""
    (folder / "workflows.yaml").write_text(CONFIG)
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(commands / "mcp-workflows")]
    address = ["--http", f"127.0.0.1:{port}"]
    served = Process([*command, "serve", *address], port, folder / "served.log", cwd=folder, env=environment)
    try:
        served.wait_until_ready()
        call = [*command, "call", "echo", "text=hello", "--json", "--url", served.url]
        reply = subprocess.run(call, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout
        if "hello" not in json.dumps(json.loads(reply)):
            raise SystemExit(f"the tool answered {reply}")
        subprocess.run([commands / "mcp-tasks-conformance", "--help"], check=True, capture_output=True)
    finally:
        served.stop()


def unreleased() -> Sequence[str]:
    """Return the places that say that the project has no release."""
    pages = [path for name in ("*.md", "docs/**/*.md", "adapters/*/README.md") for path in ROOT.glob(name)]
    denial = re.compile(r"Until the first release|\(unreleased\)|There is no release yet")
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path in pages
        if "decisions" not in path.parts
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if denial.search(line)
    ]


def main(tools: Path, *arguments: str) -> None:
    """Build and check the distributions; without `--release`, also try them with each Python."""
    addresses = Addresses.read()
    is_release = "--release" in arguments
    if is_release and not (addresses.repository and addresses.site):
        raise SystemExit("fill in the repository and the site under [tool.publication] of pyproject.toml first")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    if is_release and os.environ.get("GITHUB_REF_NAME", f"v{version}") != f"v{version}":
        raise SystemExit(f"the tag {os.environ['GITHUB_REF_NAME']} is not v{version}, the version in pyproject.toml")
    if is_release and (denials := unreleased()):
        raise SystemExit("\n".join(["these texts deny the release; change them:", *denials]))
    build(tools, addresses)
    wrong = [line for wheel in sorted(DIST.glob("*.whl")) for line in complaints(wheel)]
    if wrong:
        raise SystemExit("\n".join(wrong))
    for python in [] if is_release else arguments or list(pythons().values()):
        with tempfile.TemporaryDirectory() as folder:
            commands = install(tools / "uv", python, Path(folder) / "venv")
            serve(commands, Path(folder))
            path = f"{commands}{os.pathsep}{os.environ['PATH']}"
            follow(Installation(folder=Path(folder), commands=commands, environment={**os.environ, "PATH": path}))
        print(f"{len(list(DIST.glob('*.whl')))} wheels install with {python}, serve a tool and start the README's app")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), *sys.argv[2:])
