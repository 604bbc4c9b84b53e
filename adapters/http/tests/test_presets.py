"""Presets are definitions like any other, can be overridden key by key, and say how they were proved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from mcp_workflows_http import HttpAdapter, HttpSettings
from mcp_workflows_http.presets import preset_names, presets, read_preset
from pydantic import ValidationError

from mcp_workflows.adapter import DescribesMany
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.config.load import load_config

URL = "https://jobs.example.com"
READABLE = (
    "start: {request: POST /jobs, handle: '{{reply.body.id}}'}\ndescribe: {request: /jobs, codes: {200: running}}\n"
)


def settings(**written: Any) -> HttpSettings:
    return HttpSettings.model_validate({"url": URL, **written})


@pytest.mark.parametrize("name", preset_names())
def test_each_is_a_definition_that_says_how_it_was_proved(name: str) -> None:
    assert settings(preset=name).definition
    assert presets()[name].verified in {"real", "recorded", "read"}
    assert presets()[name].text.startswith("about:")


@pytest.mark.parametrize("name", preset_names())
def test_a_definition_read_again_is_the_same(name: str) -> None:
    definition = settings(preset=name).definition
    assert HttpSettings.model_validate({"url": URL, **definition}).definition == definition


def test_what_is_set_overrides_a_preset_key_by_key() -> None:
    found = settings(preset="buildbot", describe={"message": "{{reply.status}}"}, vars={"scheduler": "mine"})
    assert found.describe.message == "{{reply.status}}"
    assert found.describe.map == settings(preset="buildbot").describe.map
    assert found.vars == {"scheduler": "mine"}


def test_a_file_of_ones_own_is_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(READABLE)
    assert settings(preset=str(file)).describe.codes == {200: "running"}


@pytest.mark.parametrize(
    ("preset", "text"),
    [
        ("buildbt", "there is no 'buildbt'; did you mean 'buildbot'?"),
        ("none.yaml", "none.yaml cannot be read: No such file or directory"),
    ],
)
def test_an_unknown_preset_is_told(preset: str, text: str) -> None:
    with pytest.raises(ValidationError, match=text.replace("?", r"\?")):
        settings(preset=preset)


@pytest.mark.parametrize(
    ("written", "place", "text"),
    [
        (
            {"describe": {"status": "{{repyl.body}}"}},
            ("describe", "status"),
            "no expression has 'repyl'; did you mean",
        ),
        (
            {"describe": {"status": "{{!reply.body}}"}},
            ("describe", "status"),
            "! binds tighter than a dot; write !(...)",
        ),
        ({"describe": {"status": "{{reply.body"}}, ("describe", "status"), "braces that are not closed"),
        (
            {"describe": {"map": {"failed": ["a"], "running": "a"}}},
            ("describe", "map"),
            "a: a word can mean one thing only",
        ),
        (
            {
                "describe": {
                    "status": "{{more.a.body}}",
                    "more": {"a": {"request": "/a", "when": "{{status == 'running'}}"}},
                }
            },
            ("describe",),
            "more.NAME.when cannot use status, as status uses more",
        ),
        ({"start": {"request": "jobs"}}, ("start", "request"), "a path begins with /"),
        ({"starts": "findable", "find": None}, (), "starts: findable needs find"),
        ({"url": "https://user:pw@host"}, ("url",), "no credentials in a URL: auth is for these"),
        ({"auth": {}}, ("auth",), "set one of bearer"),
        ({"auth": {"bearer": "a\nb"}}, ("auth", "bearer"), "a header is one line of ASCII"),
        ({"timeout": "1m"}, ("timeout",), "at most 9s"),
        ({"proxy": "proxy:3128"}, ("proxy",), "write the URL of a proxy"),
        ({"lok": {}}, ("lok",), "Extra inputs are not permitted"),
        (
            {"describe": {"request": "/x", "codes": {200: "done"}}},
            ("describe", "codes"),
            "200: write one of running, succeeded",
        ),
        ({"start": {"request": "/x", "handle": "{{reply.body.id}}"}}, ("start",), "write the method of a start"),
        ({"start": {"request": "POST /x", "handle": "abc"}}, ("start",), "it is the same for all"),
        ({"start": {"request": "POST /a/../x"}}, ("start", "request"), "has no .. in it"),
        ({"headers": {"a b": "c"}}, ("headers",), "a header is a name without spaces"),
        ({"headers": {"x-team": "Zürich"}}, ("headers",), "one line of ASCII"),
    ],
)
def test_a_wrong_definition_is_told_with_its_place(written: Any, place: tuple[str, ...], text: str) -> None:
    with pytest.raises(ValidationError) as raised:
        settings(**{"preset": "buildbot", **written})
    [wrong, *_] = raised.value.errors()
    assert wrong["loc"] == place
    assert text in wrong["msg"]


def test_no_secret_is_in_a_definition() -> None:
    found = settings(preset="buildbot", auth={"bearer": "s3cret"}, proxy="http://mcp:s3cret@proxy:3128")
    assert "s3cret" not in str(found.definition) + repr(found)


def test_a_file_of_ones_own_is_beside_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "mine.yaml").write_text(read("buildbot"))
    file = folder / "workflows.yaml"
    file.write_text(
        "engines: {jobs: {adapter: http, preset: ./mine.yaml, url: 'https://jobs.example.com'}}\n"
        "tools: {run: {engine: jobs, workflow: run}}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert [tool.name for tool in load_config(file, {}).tools] == ["run"]
    file.write_text(file.read_text().replace("mine", "yours"))
    with pytest.raises(
        ConfigError, match=r"workflows.yaml:1: engines.jobs.preset: .*yours.yaml cannot be read: No such file"
    ):
        load_config(file, {})


def read(name: str) -> str:
    return presets()[name].text


@pytest.mark.parametrize("name", preset_names())
def test_each_fits_the_schema_that_is_published(name: str) -> None:
    jsonschema_rs.validate(dict(HttpAdapter.tooling.preset_schema()), json.loads(json.dumps(read_preset(name))))


def test_the_schema_knows_every_key() -> None:
    with pytest.raises(jsonschema_rs.ValidationError, match="'lok' was unexpected"):
        jsonschema_rs.validate(dict(HttpAdapter.tooling.preset_schema()), {"lok": {}})


def test_a_preset_has_no_credentials() -> None:
    assert not [name for name in preset_names() if "auth" in read_preset(name)]


def test_a_mistake_in_a_file_of_ones_own_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "start: {request: POST /jobs, handle: '{{reply.body.id}}'}\n"
        "describe:\n  request: /jobs\n  status: '{{reply.body.state'\n  mapp: {}\n  message: '{{replyy.body}}'\n"
    )
    file = tmp_path / "workflows.yaml"
    file.write_text(f"engines: {{jobs: {{adapter: http, preset: ./mine.yaml, url: '{URL}'}}}}\n")
    with pytest.raises(ConfigError) as raised:
        load_config(file, {})
    told = str(raised.value).splitlines()
    for line, text in (
        (4, "describe.status: "),
        (5, "describe.mapp: unknown key"),
        (6, "describe.message: no expression has 'replyy'"),
    ):
        assert any(f"workflows.yaml:1: engines.jobs.preset: ./mine.yaml:{line}: {text}" in each for each in told), told


def test_mistakes_in_a_file_of_ones_own_are_told_beside_those_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"{READABLE}settling: never\nfind:\n  request: /jobs\n")
    file = tmp_path / "workflows.yaml"
    own = "preset: ./mine.yaml\n    describe:\n      url: '{{hande}}'\n    descibe: {}\n"
    file.write_text(f"engines:\n  jobs:\n    adapter: http\n    url: {URL}\n    {own}")
    with pytest.raises(ConfigError) as raised:
        load_config(file, {})
    told = str(raised.value)
    for text in (
        "5: engines.jobs.preset: ./mine.yaml:3: settling: a duration is a number and a unit",
        "5: engines.jobs.preset: ./mine.yaml:4: find.each: is missing",
        "7: engines.jobs.describe.url: no expression has 'hande'; did you mean 'handle'?",
        "8: engines.jobs.descibe: unknown key; did you mean 'describe'?",
    ):
        assert f"workflows.yaml:{text}" in told


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("describe: [a\nstart: b\n", "./mine.yaml:2: not YAML: while parsing a flow sequence, expected"),
        ("describe: {}\ndescribe: {a: s3cret}\n", "./mine.yaml:2: not YAML: a key is there twice"),
        ("- describe\n", "./mine.yaml is no mapping"),
        (f"{READABLE}sweep: {{}}\n", "./mine.yaml:3: sweep: unknown key"),
        (f"{READABLE}starts: findable\n", "./mine.yaml:3: starts: findable needs find"),
        (f"{READABLE}".replace("codes: {200: running}", "gone: []"), "./mine.yaml:2: describe needs status"),
    ],
)
def test_a_file_of_ones_own_that_is_no_preset_is_told_with_its_line(tmp_path: Path, written: str, text: str) -> None:
    (tmp_path / "mine.yaml").write_text(written)
    file = tmp_path / "workflows.yaml"
    file.write_text(f"engines:\n  jobs:\n    adapter: http\n    url: {URL}\n    preset: ./mine.yaml\n")
    with pytest.raises(ConfigError) as raised:
        load_config(file, {})
    told = str(raised.value)
    assert f"workflows.yaml:5: engines.jobs.preset: {text}" in told
    assert "s3cret" not in told


def test_a_list_that_hides_questions_is_not_used_where_there_are_some() -> None:
    ask = {"message": "Ship it?", "send": "POST /answers"}
    assert isinstance(HttpAdapter(settings(preset="buildbot")), DescribesMany)
    assert not isinstance(HttpAdapter(settings(preset="buildbot", asks={"approve": ask})), DescribesMany)
