"""The files around the code: what a release builds, and what GitHub, Kubernetes and others read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from scripts import dist, site
from scripts.site import Addresses
from tests.support import commands
from tests.support.child_processes import free_port
from tests.support.local_engines import BIN
from tests.support.served import peer
from tests.support.sidecars import Process

ROOT = Path(__file__).parents[2]
PUBLISHED = Addresses(repository="https://github.com/acme/mcp-workflows", site="https://acme.github.io/mcp-workflows")


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[bi]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("compose-spec", "deploy/compose.yaml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_configuration_files_match_their_schemas(schema: str, files: str) -> None:
    paths = [str(path) for path in ROOT.glob(files)]
    assert paths
    done = commands.run([str(BIN / "check-jsonschema"), "--builtin-schema", f"vendor.{schema}", *paths], cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_the_workflows_of_github_are_safe() -> None:
    done = commands.run([str(BIN / "zizmor"), "--offline", "--no-progress", ".github"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_that_is_run_floats() -> None:
    files = [*ROOT.glob("deploy/*.*"), *ROOT.glob(".github/workflows/*.yml")]
    floating = [path.name for path in files if re.search(r"\w:latest\b|@latest\b", path.read_text())]
    assert floating == []


def test_kubernetes_and_ecs_accept_the_recipes() -> None:
    done = commands.run([str(BIN / "kubernetes-validate"), "--strict", "deploy/kubernetes.yaml"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    task = json.loads((ROOT / "deploy" / "ecs-task.json").read_text())
    botocore: Any = import_module("botocore.session")  # Any: it has no types
    ecs = botocore.get_session().get_service_model("ecs").operation_model("RegisterTaskDefinition")
    report: Any = import_module("botocore.validate").ParamValidator().validate(task, ecs.input_shape)
    assert report.generate_report() == ""


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / "mcp-workflows.service"
    text = (ROOT / "deploy" / "mcp-workflows.service").read_text()
    unit.write_text(text.replace("/opt/mcp-workflows/bin/mcp-workflows", str(BIN / "mcp-workflows")))
    done = commands.run(["systemd-analyze", "verify", str(unit)], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_distributions_have_one_version_and_say_who_made_them() -> None:
    found = [tomllib.loads((path / "pyproject.toml").read_text())["project"] for path in dist.projects()]
    assert {each["version"] for each in found} == {found[0]["version"]}
    assert f"version: {found[0]['version']}\n" in (ROOT / "CITATION.cff").read_text()
    recipes = (ROOT / "deploy", ROOT / "docs" / "operate")
    texts = [path.read_text() for folder in recipes for path in folder.iterdir() if path.is_file()]
    tags = [tag for text in texts for tag in re.findall(r"\bmcp-workflows:(\d+\.[\w.]+)", text)]
    assert len(tags) >= 4
    assert set(tags) == {found[0]["version"]}
    for each in found:
        assert each["authors"]
        assert {"Programming Language :: Python :: 3.11", "Typing :: Typed"} <= set(each["classifiers"])


@pytest.mark.parametrize("project", dist.projects(), ids=lambda path: path.name)
def test_a_release_has_addresses_and_absolute_links(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "STAGED", tmp_path)
    staged = dist.stage(project, PUBLISHED)
    assert tomllib.loads((staged / "pyproject.toml").read_text())["project"]["urls"]["Source"] == PUBLISHED.repository
    readme = (staged / "README.md").read_text()
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", re.sub(r"(?ms)^```.*?^```", "", readme))
    assert [link for pair in links for link in pair if link and not link.startswith(("https://", "#"))] == []
    assert ("<!-- mcp-name: io.github.acme/mcp-workflows -->" in readme) == (project == ROOT)


def test_the_entry_of_the_mcp_registry_names_what_is_published() -> None:
    entry = dist.registry_entry(PUBLISHED)
    assert entry["name"] == "io.github.acme/mcp-workflows"
    assert len(entry["description"]) <= 100
    assert [package["identifier"] for package in entry["packages"]] == [
        "mcp-workflows",
        f"ghcr.io/acme/mcp-workflows:{entry['version']}",
    ]


def test_a_release_needs_the_addresses() -> None:
    done = commands.run([sys.executable, "-m", "scripts.dist", "tools", "--release"], cwd=ROOT)
    assert done.returncode == 1
    assert "fill in the repository and the site under [tool.publication]" in done.stderr


def test_a_release_refuses_texts_that_deny_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("# x\n\nUntil the first release, build it.\n")
    (tmp_path / "CHANGELOG.md").write_text("## 0.2.0 (unreleased)\n")
    (tmp_path / "SECURITY.md").write_text("Report it.\n")
    monkeypatch.setattr(dist, "ROOT", tmp_path)
    assert sorted(dist.unreleased()) == ["CHANGELOG.md:1", "README.md:3"]


def test_links_out_of_the_documentation_lead_to_the_repository() -> None:
    page, place = ROOT / "docs" / "use" / "page.md", Path("use/page.md")
    text = "[a](../../samples/orders) [b](../secure/access.md#rules) [c](#here) [`d`](../../CHANGELOG.md) `[e](x.md)`"
    published = site.relink(text, page, place, PUBLISHED)
    assert published == (
        f"[a]({PUBLISHED.repository}/tree/main/samples/orders) [b](../secure/access.md#rules) [c](#here) "
        "[`d`](../reference/changelog.md) `[e](x.md)`"
    )
    before = site.relink(text, page, place, Addresses(repository="", site=""))
    assert before.startswith("a [b](../secure/access.md")


def test_the_configuration_in_the_compose_file_starts_on_all_addresses(tmp_path: Path) -> None:
    written = re.findall(r"(?m)^#     ((?:store|server): .+)$", (ROOT / "deploy" / "compose.yaml").read_text())
    lines = [*written, "engines: {here: {adapter: memory}}", "tools: {echo: {engine: here, workflow: echo}}"]
    text = "\n".join(lines).replace("/data/", f"{tmp_path}/")
    (tmp_path / "workflows.yaml").write_text(text)
    port = free_port()
    command = [str(BIN / "mcp-workflows"), "serve", "workflows.yaml", "--http", f"0.0.0.0:{port}"]
    environment = {**os.environ, "TOKEN_SHA256": "0" * 64}
    served = Process(command, port, tmp_path / "served.log", cwd=tmp_path, env=environment)
    try:
        served.wait_until_ready()
    finally:
        served.stop()


IMAGE_CONFIG = """
store: sqlite:////data/tasks.db
engines: {here: {adapter: memory}}
tools: {echo: {engine: here, workflow: echo}}
"""


@pytest.mark.slow
async def test_the_image_serves_as_65532_on_a_read_only_root(tmp_path: Path) -> None:
    missing = [name for name in ("buildah", "umoci", "runc", "debootstrap") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    dist.build(ROOT / _run("scripts/install-tools").strip(), PUBLISHED)
    buildah = ("buildah", "--storage-driver", "vfs", "--root", f"{tmp_path}/storage", "--runroot", f"{tmp_path}/run")
    _run("debootstrap", "--variant=minbase", "--include=python3-venv,ca-certificates", "bookworm", f"{tmp_path}/base")
    made = _run(*buildah, "from", "scratch").strip()
    _run(*buildah, "add", "--quiet", made, f"{tmp_path}/base", "/")
    _run(*buildah, "commit", "--quiet", "--rm", made, "localhost/base")
    environment = {**os.environ, "BUILDAH": " ".join(buildah), "PYTHON": "/usr/bin/python3"}
    image = ("scripts/image", "--tag", "localhost/tried", "--base", "localhost/base", "--extras", "server,ops,http")
    _run(*image, env=environment)
    _run(*buildah, "push", "--quiet", "localhost/tried", f"oci:{tmp_path}/oci:tried")
    _run("umoci", "unpack", "--image", f"{tmp_path}/oci:tried", f"{tmp_path}/bundle")

    port, settings = free_port(), tmp_path / "bundle" / "config.json"
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "workflows.yaml").write_text(IMAGE_CONFIG)
    (tmp_path / "data").mkdir(mode=0o777)
    (tmp_path / "data").chmod(0o777)
    config: dict[str, Any] = json.loads(settings.read_text())
    assert config["process"]["user"] == {"uid": 65532, "gid": 65532}
    config["root"]["readonly"] = True
    serve = ["mcp-workflows", "serve", "/config/workflows.yaml", "--http", f"127.0.0.1:{port}"]
    config["process"] |= {"terminal": False, "args": serve}
    for name in ("config", "data"):
        mount = {
            "type": "bind",
            "source": str(tmp_path / name),
            "options": ["rbind", "ro" if name == "config" else "rw"],
        }
        config["mounts"].append({"destination": f"/{name}", **mount})
    config["linux"]["namespaces"] = [each for each in config["linux"]["namespaces"] if each["type"] in {"mount", "uts"}]
    settings.write_text(json.dumps(config))
    command = ["runc", "--root", f"{tmp_path}/runc", "run", "--bundle", f"{tmp_path}/bundle", f"tried-{port}"]
    served = Process(command, port, tmp_path / "served.log", cwd=tmp_path, env=dict(os.environ))
    try:
        served.wait_until_ready()
        async with peer(served.url) as client:
            assert (await client.call("echo", {"text": "hello"})).result
        labels = json.loads(_run(*buildah, "inspect", "localhost/tried"))["Docker"]["config"]
        assert labels["Healthcheck"]["Test"][0] == "CMD"
        assert labels["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
        assert labels["Labels"]["io.modelcontextprotocol.server.name"] == dist.registry_entry(PUBLISHED)["name"]
    finally:
        served.stop()
        shutil.rmtree(dist.DIST)  # it has the addresses of nobody


def _run(*command: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=ROOT, env=env, check=False, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
