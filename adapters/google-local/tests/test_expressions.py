"""Expressions of the local engine: operators, types and functions, as truth tables."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_workflows_google_local.language.library import FUNCTIONS, supported

from tests.support.google_local_host import evaluated, tag

VALUES: list[tuple[str, Any]] = [
    ("1 + 2 * 3", 7),
    ("(1 + 2) * 3", 9),
    ("2 - 3 - 4", -5),
    ("-2 * -3", 6),
    ("6 / 3", 2.0),
    ("7 // 2", 3),
    ("7 % 3", 1),
    ("-7 // 2", -4),
    ("7.5 // 2", 3.0),
    ('"a" + "b"', "ab"),
    ('1.5 + "a"', "1.5a"),
    ("1 == 1.0", True),
    ("true == 1", False),
    ('"1" == 1', False),
    ("[1, [2]] == [1.0, [2]]", True),
    ("1 != 2", True),
    ("1 < 2.5", True),
    ("2 >= 2", True),
    ('"a" < "b"', True),
    ("1 in [1.0, 2]", True),
    ('"a" in x', True),
    ('"z" in x', False),
    ("true and not false", True),
    ("TRUE AND NOT FALSE", True),
    ("true or 1 / 0 == 1", True),
    ("false and 1 / 0 == 1", False),
    ("x.a", 1),
    ('x["a"]', 1),
    ("x.list[1].in", "there"),
    ("x['a b']", "space"),
    ("len(x.list)", 2),
    ('len("wörld")', 5),
    ("keys(x)", ["a", "a b", "list", "none"]),
    (r'"\"q\" \\ \n \u00e9"', '"q" \\ \n é'),
    ("default(x.none, 5)", 5),
    ('default("", 5)', ""),
    ('if(x.a == 1, "one", "other")', "one"),
    ("int(2.7)", 2),
    ('int("42")', 42),
    ('double("2.5")', 2.5),
    ("double(2)", 2.0),
    ("string(1.7)", "1.7"),
    ("string(true)", "true"),
    ('map.get(x, "a")', 1),
    ('map.get([], "a")', None),
    ('map.get(null, "zz")', None),
    ('map.get(x, ["a", "b"])', None),
    ('map.delete(x, "list")', {"a": 1, "a b": "space", "none": None}),
    ("list.concat([1], 2)", [1, 2]),
    ("list.prepend([1], 2)", [2, 1]),
    ("math.abs(-3)", 3),
    ("math.floor(-1.5)", -2),
    ("math.min(1, 2.5)", 1),
    ("math.max(1, 2.5)", 2.5),
    ('text.to_upper("ab")', "AB"),
    ('text.to_lower("AB")', "ab"),
    ('text.split("a,b", ",")', ["a", "b"]),
    ('text.substring("hello", 1, 3)', "el"),
    ('text.find_all("abab", "b")', [{"index": 1, "match": "b"}, {"index": 3, "match": "b"}]),
    (
        'text.find_all_regex("HelloWorld", "Hello|World")',
        [{"index": 0, "match": "Hello"}, {"index": 5, "match": "World"}],
    ),
    ('text.match_regex("order-12", "[0-9]+$")', True),
    ('text.replace_all("aa", "a", "b")', "bb"),
    ('text.replace_all_regex("one two", "one|two", "three")', "three three"),
    (r'text.replace_all_regex("ab", "(a)", "\\1")', r"\1b"),
    ('text.url_encode("a b&c")', "a%20b%26c"),
    ('text.url_encode_plus("a b")', "a+b"),
    ('text.url_decode("a%20b")', "a b"),
    ('text.decode(text.encode("é"))', "é"),
    ('base64.encode(text.encode("hi"))', "aGk="),
    ('text.decode(base64.decode("aGk="))', "hi"),
    (
        'base64.encode(hash.compute_checksum(text.encode("Hello World"), "SHA256"))',
        "pZGm1Av0IEBKARczz7exkNYsZb8LzaMrV7J32a2fFG4=",
    ),
    ("json.encode_to_string([1, null, true])", "[1,null,true]"),
    ('json.decode("{\\"a\\": [1.0, 2]}")', {"a": [1.0, 2]}),
    ("json.decode(json.encode(x.list))", [1, {"in": "there"}]),
    ("time.format(0)", "1970-01-01T00:00:00Z"),
    ('time.format(0, "Europe/Berlin")', "1970-01-01T01:00:00+01:00"),
    ('time.parse("1970-01-01T00:01:00Z")', 60.0),
    ('sys.get_env("NAME")', "value"),
    ('sys.get_env("OTHER", "none")', "none"),
]

ERRORS = [
    ("1 / 0", "ZeroDivisionError"),
    ('"a" - 1', "TypeError"),
    ('"a" + null', "TypeError"),
    ('"a" < 1', "TypeError"),
    ('-"a"', "TypeError"),
    ("not 1", "TypeError"),
    ("1 and true", "TypeError"),
    ('"a" in null', "TypeError"),
    ("x.zz", "KeyError"),
    ("x.list[2]", "IndexError"),
    ('x.list["a"]', "TypeError"),
    ("x.a.b", "TypeError"),
    ("len(1)", "TypeError"),
    ('int("x")', "ValueError"),
    ("int(null)", "TypeError"),
    ("string(x)", "TypeError"),
    ("9223372036854775807 + 1", "ValueError"),
    ('json.decode("{")', "ValueError"),
    ('json.decode("NaN")', "ValueError"),
    ('json.encode_to_string(text.encode("a"))', "TypeError"),
    ('text.match_regex("a", "(")', "ValueError"),
    ('text.match_regex("a", "(?=a)")', "ValueError"),
    ('text.substring("abc", 2, 9)', "IndexError"),
    ('base64.decode("*")', "ValueError"),
    ('hash.compute_checksum(text.encode("a"), "CRC")', "ValueError"),
    ('time.parse("yesterday")', "ValueError"),
    ("map.get(x, 1)", "TypeError"),
    ('map.delete(x, "zz")', "KeyError"),
    ("list.concat(1, 2)", "TypeError"),
    ('sys.get_env("OTHER")', "KeyError"),
]

X = {"a": 1, "a b": "space", "list": [1, {"in": "there"}], "none": None}


@pytest.mark.parametrize(("expression", "value"), VALUES)
async def test_an_expression_has_the_value_it_has_at_google(expression: str, value: Any) -> None:
    found = await evaluated(expression, X)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(("expression", "expected"), ERRORS)
async def test_an_expression_that_cannot_be_evaluated_raises_an_error_with_a_tag(
    expression: str, expected: str
) -> None:
    assert await tag(expression, X) == expected


def test_every_function_is_in_the_table_of_supported_ones() -> None:
    names = [name for name, _, _ in supported()]
    assert set(FUNCTIONS) < set(names)
    assert ("map.get", "map, keys", "expressions and call steps") in supported()
    assert ("http.default_retry", "", "retry policy") in supported()
