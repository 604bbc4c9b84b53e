"""The one rule of `{{JMESPath}}` templates, as truth tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mcp_workflows.adapter.templates import Template
from mcp_workflows.errors import ConfigError, MappingError

SCOPE: dict[str, Any] = {  # Any: any JSON value
    "args": {"order_id": "o-1", "n": 3, "on": False, "none": None, "deep": {"list": [1, {"x": "y"}]}, "a-b": "dash"},
    "principal": {"subject": "anna", "team": None},
    "task": {"id": "t-1"},
    "answer": {"action": "accept"},
    "output": {"total": 9.5},
}

RENDERED: list[tuple[Any, Any]] = [  # Any: any JSON value
    # a value that is only a placeholder keeps its type
    ("{{order_id}}", "o-1"),
    ("{{n}}", 3),
    ("{{on}}", False),
    ("{{deep}}", {"list": [1, {"x": "y"}]}),
    ("{{ n }}", 3),
    ("{{\n n \n}}", 3),
    ("{{args}}", SCOPE["args"]),
    # in a longer string it is text
    ("order {{order_id}}!", "order o-1!"),
    ("{{n}}{{n}}", "33"),
    ("{{n}} ", "3 "),
    ("{{on}}/{{deep.list}}", 'false/[1, {"x": "y"}]'),
    ("a {{nope}} b {{none}} c", "a  b  c"),
    # bare names mean args
    ("{{args.order_id}}", "o-1"),
    ("{{deep.list[1].x}}", "y"),
    ('{{"a-b"}}', "dash"),
    # the other scopes
    ("{{principal.subject}}", "anna"),
    ("{{task.id}}", "t-1"),
    ("{{answer.action}}", "accept"),
    ("{{output.total}}", 9.5),
    # JMESPath whole
    ("{{deep.list | length(@)}}", 2),
    ("{{nope || 'default'}}", "default"),
    ("{{ {id: order_id, n: n} }}", {"id": "o-1", "n": 3}),
    ("{{`[1, 2]`}}", [1, 2]),
    # what is not there: left out as a value and at the end of a list, null in the middle
    ("{{nope}}", None),
    ({"a": "{{n}}", "b": "{{nope}}"}, {"a": 3}),
    ({"a": {"b": "{{nope}}"}}, {"a": {}}),
    (["{{n}}", "{{nope}}", "{{nope.x}}"], [3]),
    (["{{nope}}", "{{n}}"], [None, 3]),
    (["{{nope}}"], []),
    # an argument that is null is there
    (["{{n}}", "{{none}}"], [3, None]),
    ({"a": "{{none}}"}, {"a": None}),
    # so is what is known to be nobody: a signal keeps the number of its arguments
    (["{{n}}", "{{principal.team}}"], [3, None]),
    (["{{n}}", "{{principal.team}}", "{{answer.note}}"], [3, None]),
    ({"a": "{{principal.team}}"}, {"a": None}),
    ({"a": [{"b": {"c": "{{principal.team}}"}}]}, {"a": [{"b": {"c": None}}]}),
    ("{{principal.team}}", None),
    # and what a login does not say of somebody
    ({"a": "{{principal.claims.email}}", "b": "{{principal.roles[0]}}"}, {"a": None, "b": None}),
    (["{{n}}", "{{principal.claims.email}}"], [3, None]),
    ({"a": "{{args.none}}", "b": "{{args.nope}}"}, {"a": None}),
    # what is no string is as it is, and keys are no templates
    (5, 5),
    (None, None),
    (True, True),
    ("", ""),
    ("{not} }one{ {", "{not} }one{ {"),
    ({"{{n}}": ["x", {"y": "{{n}}"}]}, {"{{n}}": ["x", {"y": 3}]}),
]


@pytest.mark.parametrize(("source", "rendered"), RENDERED, ids=[repr(source) for source, _ in RENDERED])
def test_a_template_renders(source: Any, rendered: Any) -> None:  # Any: any JSON value
    result = Template(source).render(SCOPE)
    assert (result, type(result)) == (rendered, type(rendered))


def test_settings_leave_out_what_is_not_there_so_that_their_defaults_apply() -> None:
    source = {"identity": "{{principal.team}}", "attributes": {"by": "{{principal.claims.email}}", "n": "{{n}}"}}
    assert Template(source).settings(SCOPE) == {"attributes": {"n": 3}}


def test_a_template_in_what_was_filled_in_is_no_template() -> None:
    assert Template("{{evil}}").render({"args": {"evil": "{{principal.subject}}"}}) == "{{principal.subject}}"
    assert Template("x {{evil}}").render({"args": {"evil": "{{n}}"}}) == "x {{n}}"


@pytest.mark.parametrize("name", ["principal", "task"])
def test_an_argument_cannot_pass_for_another_scope(name: str) -> None:
    scope = {**SCOPE, "args": {name: {"subject": "mallory", "id": "mallory"}}}
    assert Template(f"{{{{{name}}}}}").render(scope) == SCOPE[name]


def test_an_argument_cannot_pass_for_a_scope_that_is_not_there() -> None:
    assert Template({"a": "{{output}}"}).render({"args": {"output": "mallory"}}) == {}
    assert Template({"a": "{{args.output}}"}).render({"args": {"output": "fine"}}) == {"a": "fine"}


def test_an_expression_that_does_not_work_on_the_values_says_so() -> None:
    with pytest.raises(MappingError, match=r"^\{\{length\(n\)\}\}: "):
        Template("{{length(n)}}").render(SCOPE)


TEXTS: list[tuple[Any, str]] = [  # Any: any JSON value
    ("Ship {{order_id}}?", "Ship o-1?"),
    ("{{n}}", "3"),
    ("{{on}}", "false"),
    ("{{nope}}", ""),
    ("{{deep.list}}", '[1, {"x": "y"}]'),
    ("{{umlaut}}", '["Zürich"]'),
]


@pytest.mark.parametrize(("source", "text"), TEXTS, ids=[source for source, _ in TEXTS])
def test_a_template_is_a_text_for_people(source: str, text: str) -> None:
    scope = {**SCOPE, "args": {**SCOPE["args"], "umlaut": ["Zürich"]}}
    assert Template(source).text(scope) == text


WRONG = [
    ("{{}}", "empty"),
    ("{{ }}", "empty"),
    ("{{a b}}", "JMESPath"),
    ("{{a-b}}", "JMESPath"),
    ("{{a.}}", "JMESPath"),
    ("{{{a}}}", "JMESPath"),
    ("{{a", "not closed"),
    ("a}}", "not closed"),
    ("{{a}} {{", "not closed"),
    ("{{lenght(a)}}", "calls lenght\\(\\), which JMESPath does not have"),
    ("{{a[?b == nope(`1`)].c}}", "calls nope"),
]


PLACES: Mapping[str, Callable[[str], Any]] = {  # Any: any JSON value
    "alone": lambda text: text,
    "in a list": lambda text: ["x", text],
    "in an object": lambda text: {"a": {"b": text}},
}


@pytest.mark.parametrize(("text", "complaint"), WRONG)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_wrong_template_is_found_when_it_is_made(text: str, complaint: str, place: Callable[[str], Any]) -> None:
    with pytest.raises(ConfigError, match=complaint) as wrong:
        Template(place(text))
    assert "\n" not in str(wrong.value)


def test_a_gap_in_a_longer_text_is_told() -> None:
    template = Template(
        {"id": "order-{{order_id}}", "note": "{{note}}", "by": ["{{principal.subject}} of {{args.at}}"]}
    )
    assert template.gaps({"args": {"at": "acme"}, "principal": {"subject": None}}) == ["order_id"]
    assert template.gaps({"args": {"order_id": 0, "at": ""}, "principal": {"subject": "ada"}}) == ["at"]
