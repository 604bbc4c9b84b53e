"""What the local engine refuses to deploy: in plain words, at the place, and never silently."""

from __future__ import annotations

from textwrap import dedent

import pytest
from mcp_workflows_google_local.language.errors import DeployError
from mcp_workflows_google_local.language.source import load

REFUSED = [
    ("", "not empty", 1),
    ("main: [", "Not YAML", 1),
    ("a\n---\nb", "one YAML document", 1),
    ("sub:\n  steps: [{a: {return: 1}}]", "There is no `main`", 1),
    ("main:\n  steps: []", "not empty", 2),
    ("main:\n  step: []", "unknown key 'step'", 2),
    ("main:\n  params: [a, b]\n  steps: [{a: {return: 1}}]", "at most one parameter", 2),
    ("- a: &x {return: 1}", "anchors", 1),
    ("- a: {return: !x 1}", "tags", 1),
    ("- a:\n    return: 1\n    return: 2", "here twice", 3),
    ("- a:\n    frobnicate: 1", "'frobnicate'", 2),
    ("- a:\n    return: 1\n    next: a", "unknown key 'next'", 3),
    ("- a:\n    assign: [{x: 1}]\n    return: 1", "make it two steps", 3),
    ("- a:\n    call: googleapis.pubsub.v1.projects.topics.list", "connectors are not here", 2),
    ("- a:\n    call: experimental.executions.run", "experimental", 2),
    ("- a:\n    call: nothing.of_this", "There is no function or subworkflow", 2),
    ("- a:\n    call: mcp_claim", "append what `mcp-workflows print helper google` prints", 2),
    ("- a:\n    call: http.get\n    args: {uri: x}", "no argument 'uri'", 2),
    ("- a:\n    call: http.get\n    args: {url: x, ca_certificate: y}", "no argument 'ca_certificate'", 2),
    ("- a:\n    call: http.get", "needs the argument 'url'", 2),
    ("- a:\n    call: main", "main cannot be called", 2),
    ("- a: {next: zz}", "no step 'zz'", 1),
    ("- a: {next: break}", "belongs in a `for` loop", 1),
    ("- a: {return: 1}\n- a: {return: 2}", "two steps 'a'", 2),
    ("- a:\n    steps:\n      - a: {return: 1}", "two steps 'a'", 3),
    ("- end: {return: 1}", "cannot be called 'end'", 1),
    ("- a:\n    return: ${1 +}", "Wrong expression", 2),
    ("- a:\n    return: ${'a' 'b'}", "Wrong expression", 2),
    ("- a:\n    return: ${1 ? 2}", "unexpected '?'", 2),
    ("- a:\n    return: hello ${x}", "cannot be mixed", 2),
    ("- a:\n    return: ${x}", "no variable 'x'", 2),
    ("- a:\n    return: ${f(1)}", "There is no function", 2),
    ("- a:\n    return: ${len()}", "got 0 arguments", 2),
    ('- a:\n    return: ${http.get("http://x")}', "use a `call` step", 2),
    ("- a:\n    return: ${" + "1+" * 200 + "1}", "longer than 400", 2),
    ("- a:\n    return: ${" + "(" * 100 + "1" + ")" * 100 + "}", "nested more than", 2),
    ("- a:\n    assign: [{and: 1}]", "Wrong expression", 2),
    ("- a:\n    assign: [{1 + 2: 1}]", "cannot be assigned", 2),
    ("- a:\n    try: {raise: x}", "needs `retry` or `except`", 2),
    ("- a:\n    try: {raise: x}\n    retry: ${no.policy}", "no retry policy", 3),
    ("- a:\n    try: {raise: x}\n    retry: {predicate: '${retry.always}'}", "needs 'backoff'", 3),
    (
        "- a:\n    try: {raise: x}\n    retry: {max_retries: 1,backoff: '${retry.default_backoff}',predicate: '${m}'}",
        "no predicate 'm'",
        3,
    ),
    ("- a:\n    for: {value: v, steps: [{b: {return: 1}}]}", "either `in` or `range`", 2),
    ("- a:\n    for: {value: v, in: [1], steps: [{b: {next: c}}]}\n- c: {return: 1}", "no step 'c'", 2),
    ("- a:\n    for: {value: v, in: [1], steps: [{b: {assign: [{q: 1}]}}]}\n- c: {return: '${q}'}", "'q'", 3),
    ("- a:\n    try: {raise: x}\n    except: {as: e, assign: [{q: 1}]}\n- c: {return: '${q}'}", "'q'", 4),
    ("- a:\n    parallel: {branches: [{b: {return: 1}}]}", "return cannot be used in a parallel", 2),
    ("- a:\n    parallel: {for: {value: v, in: [1], steps: [{b: {next: break}}]}}", "next: break", 2),
    ("- a:\n    parallel: {branches: [{b: {next: end}}]}", "next: end", 2),
    ("- a:\n    parallel: {exception_policy: abort, branches: [{b: {raise: x}}]}", "continueAll", 2),
    ("- a:\n    parallel: {shared: [x], branches: [{b: {raise: x}}]}", "no variable 'x' before", 2),
    (
        "- x: {assign: [{y: 1}]}\n- a:\n    parallel: {branches: [{b: {assign: [{y: 2}]}}]}",
        "add it to the step's `shared`",
        3,
    ),
    ("- a:\n    parallel: {branches: " + str([{f"b{n}": {"raise": "x"}} for n in range(11)]) + "}", "at most 10", 2),
    ("- a:\n    assign: " + str([{"x": 1}] * 51), "at most 50", 2),
    ("- a: {return: " + "[" * 120 + "]" * 120 + "}", "Nested more than 100", 1),
    ("- a: {return: " + "x" * 140_000 + "}", "larger than 128 KB", 1),
    ("- a: {return: .nan}", "not numbers", 1),
    ("- a: {return: 9223372036854775808}", "does not fit 64 bits", 1),
    ("- a: {return: " + "9" * 5000 + "}", "does not fit 64 bits", 1),
    ("- a: {return: 1e999}", "does not fit 64 bits", 1),
    ("- a: {return: '${9223372036854775808}'}", "does not fit 64 bits", 1),
]


@pytest.mark.parametrize(("source", "words", "line"), REFUSED, ids=[words for _, words, _ in REFUSED])
def test_what_cannot_run_is_refused_at_deployment_where_it_stands(source: str, words: str, line: int) -> None:
    with pytest.raises(DeployError) as refused:
        load(source)
    assert words in refused.value.text
    assert refused.value.line == line
    assert str(refused.value).startswith(f"line {line}, column ")


def test_an_outer_parallel_step_must_share_what_an_inner_one_shares() -> None:
    source = """\
    - init: {assign: [{x: 1}]}
    - outer:
        parallel:
          branches:
            - one:
                steps:
                  - inner:
                      parallel:
                        shared: [x]
                        branches:
                          - two: {assign: [{x: 2}]}
    """
    with pytest.raises(DeployError, match="'x' is assigned in a parallel step"):
        load(dedent(source))


def test_json_indented_by_tabs_is_a_source_too() -> None:
    load('{\n\t"main": {\n\t\t"steps": [{"a": {"return": null}}]\n\t}\n}')
