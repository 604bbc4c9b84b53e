"""What is said of each thing that can be wrong in workflows.yaml: the line, the path, the mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.config.load import load_config
from tests.support.config_files import ENGINES, FINE, TOOL, problems

SECRET = "hunter2-and-much-more"

UNREADABLE: Mapping[str, tuple[bytes, str]] = {
    "empty": (b"", ":1: the file is empty"),
    "only a comment": (b"# soon\n", ":1: the file is empty"),
    "a list": (b"\n- engines\n", ":2: this must be a mapping"),
    "a word": (b"engines", ":1: this must be a mapping"),
    "not UTF-8": (b"server:\n  name: caf\xe9\n", ":2: not UTF-8"),
    "not closed": (b"server:\n  name: [a, b\n", ":3:1: not YAML: "),
    "a tab": (b"server:\n\tname: x\n", ":2:1: not YAML: "),
    "two colons": (b"server: name: x\n", ":1:13: not YAML: "),
    "two documents": (b"server: {}\n---\nserver: {}\n", ":2:1: not YAML: "),
    "an unknown alias": (b"server: {}\nstore: *nothing\n", ":2:8: not YAML: "),
    "nested too deeply": (b"server: " + b"[" * 5000 + b"]" * 5000, ":1: not YAML that can be read: nested"),
    "a control character": (b"server:\n  name: \x01\n", ":2: not YAML: a control character"),
}


@pytest.mark.parametrize(("content", "essence"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_parsed_says_where(tmp_path: Path, content: bytes, essence: str) -> None:
    path = tmp_path / "workflows.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    assert str(caught.value).startswith(f"{path}{essence}")


def test_an_unquoted_placeholder_in_braces_is_explained(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "engines:\n  orders: {adapter: memory, name: ${NAME}}\n", NAME="x")
    assert problem.startswith("2:")
    assert 'it needs quotes: "${NAME}"' in problem


def test_a_missing_file_a_folder_and_a_forbidden_file_say_so(tmp_path: Path) -> None:
    for path, essence in [(tmp_path / "none.yaml", "no such file"), (tmp_path, "this is a folder")]:
        with pytest.raises(ConfigError, match=essence):
            load_config(path, {})


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that can be opened but not read")
def test_a_file_that_cannot_be_read_says_why() -> None:
    with pytest.raises(ConfigError, match="/proc/self/mem: Input/output error"):
        load_config(Path("/proc/self/mem"), {})


ONLY_ORDER = "additionalProperties: false, properties: {order: {type: string}}"
NESTED = "properties: {a: {type: object}}"
TEXT = "{type: string}"
LISTENING = (
    "engines:\n  orders: {{adapter: google-workflows, location: us-central1, "
    "inbound: {{audience: 'https://a.example.com', accounts: {}}}}}\n"
)

BAD: Mapping[str, tuple[str, int, str, str]] = {
    # what: (text, line, path, essence)
    "a slip in an adapter": (
        f"engines:\n  orders: {{adapter: memroy}}\n{TOOL}",
        2,
        "engines.orders.adapter",
        "'memory'?",
    ),
    "no adapter of ours": (
        f"engines:\n  orders: {{adapter: sfn}}\n{TOOL}",
        2,
        "engines.orders.adapter",
        "stepfunctions, ",
    ),
    "an extra instead of its adapter": (
        f"engines:\n  orders: {{adapter: google}}\n{TOOL}",
        2,
        "engines.orders.adapter",
        "did you mean 'google-workflows'?",
    ),
    "a word for a list": (
        f"{LISTENING.format('a@b.example.com')}{TOOL}",
        2,
        "engines.orders.inbound.accounts",
        "must be a list",
    ),
    "an empty list": (
        f"{LISTENING.format('[]')}{TOOL}",
        2,
        "engines.orders.inbound.accounts",
        "must have at least 1 item, not 0",
    ),
    "an unknown section": (f"serverr: {{}}\n{FINE}", 1, "serverr", "unknown key; did you mean 'server'?"),
    "a key of the server": (f"server: {{nam: x}}\n{FINE}", 1, "server.nam", "did you mean 'name'?"),
    "a server that is a word": (f"server: x\n{FINE}", 1, "server", "must be a mapping"),
    "a boolean": (f"server:\n  my_tasks: maybe\n{FINE}", 2, "server.my_tasks", "must be a valid boolean"),
    "no store for that": (f"store: redis://x\n{FINE}", 1, "store", "no store for 'redis' is installed"),
    "two slashes": (f"store: sqlite://tasks.db\n{FINE}", 1, "store", "write sqlite:///relative.db"),
    "a retention": (f"store:\n  retention: 0d\n{FINE}", 2, "store.retention", "must be longer than 0"),
    "no engines": (TOOL, 1, "engines", "needs at least one of the engines"),
    "engines as a list": (f"engines: [orders]\n{TOOL}", 1, "engines", "must be a mapping, by name"),
    "no tools": (f"{ENGINES}tools: {{}}\n", 3, "tools", "needs at least one of the tools"),
    "no tools at all": (ENGINES, 1, "tools", "needs at least one of the tools"),
    "an engine that is a word": (f"engines:\n  orders: memory\n{TOOL}", 2, "engines.orders", "must be a mapping"),
    "no adapter": (f"engines:\n  orders: {{}}\n{TOOL}", 2, "engines.orders.adapter", "is missing (installed: "),
    "an unknown adapter": (
        f"engines:\n  orders:\n    adapter: memry\n{TOOL}",
        3,
        "engines.orders.adapter",
        "; did you mean 'memory'?",
    ),
    "an unknown setting": (
        f"engines:\n  orders:\n    adapter: memory\n    nmae: x\n{TOOL}",
        4,
        "engines.orders.nmae",
        "unknown key; did you mean 'name'? (known: name, unreachable)",
    ),
    "a wrong setting": (
        f"engines:\n  orders:\n    adapter: temporal\n    tls: {{server_nam: x}}\n{TOOL}",
        4,
        "engines.orders.tls.server_nam",
        "did you mean 'server_name'?",
    ),
    "a tool that is a word": (f"{ENGINES}tools:\n  wait: sleep\n", 4, "tools.wait", "must be a mapping"),
    "no engine": (f"{ENGINES}tools:\n  wait: {{workflow: sleep}}\n", 4, "tools.wait.engine", "is missing"),
    "no workflow": (f"{ENGINES}tools:\n  wait: {{engine: orders}}\n", 4, "tools.wait.workflow", "is missing"),
    "an unknown engine": (
        FINE.replace("engine: orders", "engine: order"),
        5,
        "tools.wait.engine",
        "no engine named 'order'; did you mean 'orders'? (engines: orders)",
    ),
    "two tools of one name": (f"{FINE}  wait: {{engine: orders, workflow: echo}}\n", 7, "tools.wait", "is here twice"),
    "a tool's name": (FINE.replace("wait", "wait for it"), 4, "tools.wait for it", "must match pattern"),
    "an unknown key": (f"{FINE}    titel: Wait\n", 7, "tools.wait.titel", "did you mean 'title'?"),
    "name as a key": (f"{FINE}    name: wait\n", 7, "tools.wait.name", "unknown key"),
    "a schema": (
        f"{FINE}    input:\n      type: object\n      properties: {{x: {{type: strng}}}}\n",
        7,
        "tools.wait.input",
        'not a JSON Schema: properties.x.type: "strng"',
    ),
    "a schema of a string": (f"{FINE}    input: {{type: string}}\n", 7, "tools.wait.input", "of an object is needed"),
    "a schema that is a word": (f"{FINE}    input: order\n", 7, "tools.wait.input", "write a schema, a file"),
    "a schema file": (f"{FINE}    output: ./none.json\n", 7, "tools.wait.output", "none.json: no such file"),
    "code for an adapter that cannot": (f"{FINE}    input: shop:Order\n", 7, "tools.wait.input", "from code"),
    "a template": (f'{FINE}    args: ["{{{{a b}}}}"]\n', 7, "tools.wait.args", "is not a JMESPath expression"),
    "a typo about who calls": (
        f'{FINE}    args: [{{for: "{{{{principal.clams.email}}}}", by: "{{{{principal.claims.any}}}}"}}]\n',
        7,
        "tools.wait.args",
        "there is no principal.clams; did you mean 'claims'?",
    ),
    "open braces": (f'{FINE}    args: "{{{{order"\n', 7, "tools.wait.args", "braces that are not closed"),
    "an unquoted template": (f"{FINE}    args: [{{{{order}}}}]\n", 7, "tools.wait.args[0]", "a template needs quotes"),
    "tasks": (f"{FINE}    tasks: forbiden\n", 7, "tools.wait.tasks", "did you mean 'forbidden'?"),
    "an annotation": (
        f"{FINE}    annotations:\n      readOnly: true\n",
        8,
        "tools.wait.annotations.readOnly",
        "did you mean 'readOnlyHint'?",
    ),
    "a ttl of 0": (f"{FINE}    ttl: 0\n", 7, "tools.wait.ttl", "a duration is a number and a unit"),
    "a ttl of 0s": (f"{FINE}    ttl: 0s\n", 7, "tools.wait.ttl", "must be longer than 0"),
    "a negative ttl": (f"{FINE}    ttl: -1d\n", 7, "tools.wait.ttl", "a duration is a number and a unit"),
    "a huge ttl": (f"{FINE}    ttl: 99999d\n", 7, "tools.wait.ttl", "at most 3650d"),
    "an astronomic ttl": (f"{FINE}    ttl: {'9' * 30}w\n", 7, "tools.wait.ttl", "at most 3650d"),
    "max_result": (f"{FINE}    max_result: 0\n", 7, "tools.wait.max_result", "must be greater than 0"),
    "a question's key": (
        f"{FINE}    questions:\n      why: {{message: Why, schema: {{type: string}}, when_missin: true}}\n",
        8,
        "tools.wait.questions.why.when_missin",
        "did you mean 'when_missing'?",
    ),
    "a question without a message": (
        f"{FINE}    questions:\n      why: {{schema: {{type: string}}}}\n",
        8,
        "tools.wait.questions.why.message",
        "is missing",
    ),
    "a question's template": (
        f'{FINE}    questions:\n      why:\n        message: "{{{{a b}}}}"\n        schema: {{type: string}}\n',
        9,
        "tools.wait.questions.why.message",
        "is not a JMESPath expression",
    ),
    "what is asked when it waits, and how it goes on": (
        f"{FINE}    questions:\n      why: {{message: Why, when: {{after_seconds: 0}}}}\n",
        8,
        "tools.wait.questions.why.send",
        "is missing",
    ),
    "a kind": (f"{FINE}    kind: watching\n", 7, "tools.wait.kind", "must be start or watch; did you mean 'watch'?"),
    "a setting of the other kind": (f"{FINE}    allow_answer: true\n", 4, "tools.wait", "only with kind: watch"),
    "an old question": (f"{FINE}    ask: {{}}\n", 7, "tools.wait.ask", "is now `questions: {NAME:"),
    "an old confirmation": (f"{FINE}    confirm: Sure?\n", 7, "tools.wait.confirm", "a question without a schema"),
    "an old gate": (f"{FINE}    gates: {{}}\n", 7, "tools.wait.gates", "is now `questions: {NAME: {when:"),
    "an old fallback": (f"{FINE}    fallback: wait\n", 7, "tools.wait.fallback", "`wait` is `tasks: wait`"),
    "an old input": (f"{FINE}    send: 1\n", 7, "tools.wait.send", "is now `args: [...]`"),
    "an old default": (f"{FINE}defaults:\n  confirm: Sure?\n", 8, "defaults.confirm", "is now a question without"),
    "an old header": (f"server:\n  strict_headers: true\n{FINE}", 2, "server.strict_headers", "is gone"),
    "an old limit": (f"limits:\n  max_json_values: 1\n{FINE}", 2, "limits.max_json_values", "is gone: it is 60,000"),
    "a nested form": (
        f"{FINE}    questions:\n      why:\n        message: Why\n        schema: {{type: object, {NESTED}}}\n",
        10,
        "tools.wait.questions.why.schema",
        "'a' must have one type of string",
    ),
    "an argument that is not there": (
        f'{FINE}    input: {{type: object, properties: {{order_id: {{}}}}}}\n    args: ["{{{{ordr_id}}}}"]\n',
        8,
        "tools.wait.args",
        "there is no argument 'ordr_id'; did you mean 'order_id'?",
    ),
    "two wrong templates": (
        f'{FINE}    args: ["{{{{a b}}}}", "{{{{nofn(a)}}}}"]\n',
        7,
        "tools.wait.args",
        "{{nofn(a)}} calls nofn()",
    ),
    "a list in a form": (
        f"{FINE}    questions:\n      why: {{message: Why, schema: {{type: array, items: {{type: string}}}}}}\n",
        8,
        "tools.wait.questions.why.schema",
        "it is a list, which must be of texts",
    ),
    "a form of nothing": (
        f"{FINE}    questions:\n      why: {{message: Why, schema: {{type: object}}}}\n",
        8,
        "tools.wait.questions.why.schema",
        "asks for nothing",
    ),
    "an answer that the input forbids": (
        f"{FINE}    input: {{type: object, {ONLY_ORDER}}}\n    questions: {{why: {{message: Why, schema: {TEXT}}}}}\n",
        8,
        "tools.wait.questions.why.schema",
        "the tool's input takes no 'why'",
    ),
    "a variable that is not set": (
        f"{FINE}    title: ${{TITLE}}\n",
        7,
        "tools.wait.title",
        "${TITLE}: TITLE is not set in the environment",
    ),
    "a placeholder that is not closed": (f"{FINE}    title: a ${{TITLE\n", 7, "tools.wait.title", "is not closed"),
    "a placeholder that is none": (f"{FINE}    title: ${{a b}}\n", 7, "tools.wait.title", "write ${NAME}"),
    "a placeholder in a placeholder": (f"{FINE}    title: ${{A:-${{B}}}}\n", 7, "tools.wait.title", "write ${NAME}"),
    "a file from outside": (f"{FINE}    title: ${{file:none}}\n", 7, "tools.wait.title", "none: no such file"),
    "a tag": (f"{FINE}    title: !!binary aGk=\n", 7, "tools.wait.title", "is not known here"),
    "an endless alias": (f"{FINE}    args: &a [*a]\n", 7, "tools.wait.args[0]", "stands inside itself"),
}


@pytest.mark.parametrize(("text", "line", "path", "essence"), BAD.values(), ids=BAD)
def test_bad_input_is_named_with_its_line(tmp_path: Path, text: str, line: int, path: str, essence: str) -> None:
    found = problems(tmp_path, text)
    assert len(found) == 1, found
    assert found[0].startswith(f"{line}: {path}: ")
    assert essence in found[0]
    assert not any(noise in found[0] for noise in ("pydantic", "Value error", "input_value", "For further"))


TOOLS = "allow: , questions: {sure: }"
LEFT_EMPTY: Mapping[str, tuple[str, Sequence[str]]] = {
    "of a tool": (f"{FINE}    allow:\n    questions: ~\n", ["7: tools.wait.allow", "8: tools.wait.questions"]),
    "of defaults": (f"{FINE}defaults: {{{TOOLS}}}\n", ["7: defaults.allow", "7: defaults.questions.sure"]),
    "of a rule": (f"{FINE}rules: {{wait: {{{TOOLS}}}}}\n", ["7: rules.wait.allow", "7: rules.wait.questions.sure"]),
    "a rule": (f"{FINE}rules: {{wait: }}\n", ["7: rules.wait"]),
    "rules": (f"{FINE}rules:\n", ["7: rules"]),
    "whose tokens": (
        f"{FINE}    allow: {{call: {{issuer: }}, see: [{{}}, {{issuer: }}]}}\n",
        ["7: tools.wait.allow.call.issuer", "7: tools.wait.allow.see[1].issuer"],
    ),
    "of the server": (f"{FINE}server: {{auth: , authorizer: }}\n", ["7: server.auth", "7: server.authorizer"]),
    "of an issuer": (
        f"{FINE}server: {{auth: {{issuers: [{{issuer: 'https://a.example', may_grant: }}]}}}}\n",
        ["7: server.auth.issuers[0].may_grant"],
    ),
    "others": (f"{FINE}store: {{encryption: }}\naudit:\n", ["7: store.encryption", "8: audit"]),
}


@pytest.mark.parametrize(("text", "places"), LEFT_EMPTY.values(), ids=LEFT_EMPTY)
def test_what_keeps_somebody_out_cannot_be_left_empty(tmp_path: Path, text: str, places: Sequence[str]) -> None:
    found = problems(tmp_path, text)
    assert [each.partition(": is left empty, and without it ")[0] for each in found] == places


@pytest.mark.parametrize("condition", ["scopes: []", "claims: {}", "principals: []"])
def test_a_rule_with_an_empty_condition_is_refused_rather_than_open_to_all(tmp_path: Path, condition: str) -> None:
    (problem,) = problems(tmp_path, f"{FINE}    allow: {{call: {{{condition}}}, see: {{}}}}\n")
    assert problem == f"7: tools.wait.allow.call.{condition.partition(':')[0]}: must have at least 1 item, not 0"


def test_mappings_that_are_merged_over_and_over_are_bounded(tmp_path: Path) -> None:
    names = [f"  t{index}: &a{index} {{<<: *a{index - 1}}}\n" for index in range(1, 200)]
    text = f"{ENGINES}tools:\n  t0: &a0 {{engine: orders, workflow: echo}}\n{''.join(names)}"
    (problem,) = problems(tmp_path, text)
    assert problem == "105: << brings in more than 100 mappings"


def test_what_an_adapter_says_of_a_key_it_does_not_take_is_told_too(tmp_path: Path) -> None:
    engine = f"engines:\n  shop: {{adapter: stepfunctions, aws_secret_access_key: {SECRET}}}\n"
    unknown, said = problems(tmp_path, f"{engine}tools:\n  buy: {{engine: shop, workflow: buy}}\n")
    assert "no credentials here; name a profile" in said
    assert "engines.shop.aws_secret_access_key: unknown key" in unknown
    assert SECRET not in said + unknown


@pytest.mark.parametrize(
    ("content", "essence"),
    [
        ("{", "order.json:1:2: not JSON"),
        ("[]", "order.json: a JSON Schema of an object"),
        ('{"type": "objct"}', 'order.json: not a JSON Schema: type: "objct"'),
    ],
)
def test_a_bad_schema_file_is_named(tmp_path: Path, content: str, essence: str) -> None:
    (tmp_path / "order.json").write_text(content, encoding="utf-8")
    (problem,) = problems(tmp_path, f"{FINE}    input: ./order.json\n")
    assert problem.startswith("7: tools.wait.input: ")
    assert essence in problem


def test_all_problems_are_said_in_one_go_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
        serverr: {}
        engines:
          orders: {adapter: memory, unreachable: maybe}
          archive: {adapter: memry}
        tools:
          a: {engine: order, workflow: sleep, task: required}
          b: {engine: orders, workflow: sleep, ttl: 0s, input: shop:Order, titel: B}
          c: {engine: archive, workflow: ""}
          b: {engine: orders}
    """
    found = problems(tmp_path, dedent(text))
    assert [problem.split(": ")[:2] for problem in found] == [
        ["1", "serverr"],
        ["3", "engines.orders.unreachable"],
        ["4", "engines.archive.adapter"],
        ["6", "tools.a.engine"],
        ["6", "tools.a.task"],
        ["7", "tools.b.input"],
        ["7", "tools.b.titel"],
        ["7", "tools.b.ttl"],
        ["8", "tools.c.workflow"],
        ["9", "tools.b"],
    ]


SECRETIVE: Mapping[str, str] = {
    "a boolean": f"engines:\n  orders: {{adapter: memory, unreachable: '${{SECRET}}'}}\n{TOOL}",
    "an address": f"engines:\n  orders: {{adapter: temporal, address: 'http://${{SECRET}}'}}\n{TOOL}",
    "an adapter": f"engines:\n  orders: {{adapter: '${{SECRET}}'}}\n{TOOL}",
    "an engine": FINE.replace("engine: orders", "engine: ${SECRET}"),
    "a store": f"store: sqlite://user:${{SECRET}}@host/x\n{FINE}",
    "a schema file": f"{FINE}    input: ./${{SECRET}}.json\n",
    "a schema": f"{FINE}    input: {{type: '${{SECRET}}'}}\n",
    "a template": f"{FINE}    args: '{{{{${{SECRET}} x}}}}'\n",
    "a choice": f"{FINE}    tasks: ${{SECRET}}\n",
    "a duration": f"{FINE}    ttl: ${{SECRET}}\n",
    "a file": f"{FINE}    ttl: ${{file:secret}}\n",
}


@pytest.mark.parametrize("text", SECRETIVE.values(), ids=SECRETIVE)
def test_a_value_from_outside_is_never_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(SECRET, encoding="utf-8")
    message = "\n".join(problems(tmp_path, text, SECRET=SECRET))
    assert not any(SECRET[start : start + 6] in message for start in range(len(SECRET) - 5)), message


def test_a_value_from_outside_that_is_cut_short_is_not_shown_either(tmp_path: Path) -> None:
    secret = "0123456789" * 50
    message = "\n".join(problems(tmp_path, f"{FINE}    input: {{type: '${{SECRET}}'}}\n", SECRET=secret))
    assert "${SECRET}" in message
    assert "345678" not in message
