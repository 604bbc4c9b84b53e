"""What is read of a workflow's source: routines, steps, calls, and the fields of its argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from mcp_workflows_google.tooling.definition import draft, parse_definition, read_fields

ORDERS = """
main:
  params: [order]
  steps:
    - prepare:
        assign:
          - id: ${order.order_id}
          - note: 'order.never is said, not read'
          - deep: ${default(map.get(order, ["customer", "name"]), "nobody")}
    - each:
        for:
          value: line
          in: ${order["lines"]}
          steps:
            - charge:
                try:
                  call: http.post
                  args: {url: "${sys.get_env(\\"SHOP_URL\\")}", body: {line: "${line}"}}
                except:
                  as: error
                  steps:
                    - refund: {call: undo, args: {what: "${order}"}}
    - both:
        parallel:
          branches:
            - left: {steps: [{look: {call: sys.log, args: {text: '${if("express" in order, "fast", "slow")}'}}}]}
    - decide:
        switch:
          - condition: ${not(map.get(order, "gift") == null)}
            steps: [{wrap: {return: "${ undo ( 1 ) }"}}]
undo:
  params: [what, {why: none}]
  steps:
    - done: {return: "${what.hidden}"}
"""


def test_the_steps_are_found_however_deep_they_are() -> None:
    found = parse_definition(ORDERS)
    assert found is not None
    assert found.main is not None
    assert found.main.params == ["order"]
    steps = {"prepare", "each", "charge", "refund", "both", "look", "decide", "wrap"}
    assert found.main.steps == steps
    assert found.routines["undo"].params == ["what", "why"]
    assert found.routines["undo"].steps == {"done"}


def test_the_steps_that_wait_for_a_callback_are_known() -> None:
    wait = "call: events.await_callback, args: {callback: 1}"
    found = parse_definition(
        f"[{{plain: {{{wait}}}}}, {{tried: {{try: {{{wait}}}}}}}, {{around: {{steps: [{{in: {{{wait}}}}}]}}}}]"
    )
    assert found is not None
    assert found.main is not None
    assert found.main.awaiting == {"plain", "tried", "in"}
    assert found.main.steps == {"plain", "tried", "around", "in"}


def test_what_is_called_by_a_step_or_in_an_expression_is_called() -> None:
    found = parse_definition(ORDERS)
    assert found is not None
    assert all(found.calls(name) for name in ("undo", "http.post", "sys.log"))
    assert not found.calls("mcp_elicit")
    in_an_expression = parse_definition("main: {steps: [{a: {return: '${mcp_elicit (1)}'}}]}")
    assert in_an_expression is not None
    assert in_an_expression.calls("mcp_elicit")


def test_the_draft_has_the_fields_that_are_read() -> None:
    properties: Mapping[str, Mapping[str, str]] = {
        "customer": {},
        "express": {},
        "gift": {},
        "lines": {},
        "order_id": {},
    }
    assert draft(parse_definition(ORDERS)) == {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("expression", "fields"),
    [
        ("args.amount * 2 > args.limit", ["amount", "limit"]),
        ("other.args.x + argsy.z + y.args", []),
        ('"args.said" + \'args["said"]\'', []),
        ("args['a b']", ["a b"]),
        ("args[key]", []),
        ("args.f(1)", []),
        ("args.a.b.c", ["a"]),
        ('map.get( args , "x" )', ["x"]),
        ('map.get(args, "x\\n")', []),
        ('my.map.get(args, "x")', ["x"]),  # no such thing, and no harm
        ('"x" in args and not("y" in args)', ["x", "y"]),
        ("len(args)", []),
        ("args.", []),
        ('"open ', []),
    ],
)
def test_fields_are_found_in_expressions(expression: str, fields: Sequence[str]) -> None:
    assert list(read_fields("args", expression)) == fields


@pytest.mark.parametrize(
    "source",
    [
        None,
        "",
        "main: [",
        "\x00",
        "a: &a [*a]",
        "[" * 1000,
        "main: {params: args, steps: 7}",
        "main: {steps: [{a: {return: '${args.x}'}}]}",
        "main: {params: [a, b], steps: [{a: {return: '${a.x}'}}]}",
        "- a: {return: 1}",
        "main: {params: [args], steps: [{a: {return: 2026-13-45}}]}",
    ],
)
def test_of_any_other_source_there_is_no_draft(source: str | None) -> None:
    assert draft(parse_definition(source)) is None


def test_what_is_repeated_by_reference_is_read_once() -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 30))
    source = f"l0: &l0 ['${{args.x}}']\n{levels}\nmain: {{params: [args], steps: [{{a: {{assign: *l29}}}}]}}"
    assert draft(parse_definition(source)) == {"type": "object", "properties": {"x": {}}}


def test_a_source_in_json_is_read_too() -> None:
    found = parse_definition('{"main": {"params": ["args"], "steps": [{"a": {"return": "${args.x}"}}]}}')
    assert draft(found) == {"type": "object", "properties": {"x": {}}}
