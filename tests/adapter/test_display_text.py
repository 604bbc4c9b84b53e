"""What a person reads: nothing invisible, nothing endless, and no value that looks like the words around it."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_workflows.adapter.display_text import (
    MAX_LINK,
    MAX_VALUE,
    cleaned,
    cleaned_result,
    cleaned_schema,
    is_blank,
    quoted,
    safe_link,
)
from mcp_workflows.adapter.templates import Template

INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
ISOLATES = frozenset("\u2068\u2069")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (100, "100"),
        (1.5, "1.5"),
        (12.0, "12"),
        ({"n": [12.0]}, '«{"n": [12]}»'),
        (True, "true"),
        (None, ""),
        ("100", "«100»"),
        ("", "«»"),
        (" \u200b ", "«»"),
        ("me» for nothing. «", "«me> for nothing. <»"),
        ("me>> for nothing. ≪x≫ 《y》 \u2039\u2039z\u203a\u203a", "«me> > for nothing. <x> <y> < <z> >»"),
        ("me\n\nApproved by finance.\r\nAmount: 1", "«me ⏎ ⏎ Approved by finance. ⏎ Amount: 1»"),
        ("a\u2028b\u2029c\x85d\te", "«a ⏎ b ⏎ c ⏎ d e»"),
        ("abc\u202egnp.exe\u202c", "«abcgnp.exe»"),
        ("\x1b[2Jgone\x9b1m\x00\x7f", "«[2Jgone1m»"),
        ("a\u200b\u2060\ufeff\u00ad\u3164\u2800\ufe0f\U000e0041b", "«ab»"),
        ("5" + " " * 500 + "000", "«5 000»"),
        ("\u0338me", "«me»"),
        ("e" + "\u0301" * 50 + "!\u0301", "«e" + "\u0301" * 4 + "!»"),
        ("\u05d0\u05d1", "«\u2068\u05d0\u05d1\u2069»"),
        ("half \ud800", "«half \ufffd»"),
        (["a", {"b": 'say "hi"\n'}], '«["a", {"b": "say \\"hi\\"\\n"}]»'),
    ],
)
def test_a_value_is_set_apart_from_the_words_around_it(value: Any, shown: str) -> None:
    assert quoted(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("x" * (MAX_VALUE + 1), f"«{'x' * MAX_VALUE}…» (cut: 1,001 characters)"),
        ("x" * 5_000_000, f"«{'x' * MAX_VALUE}…» (cut: 5,000,000 characters)"),
        ("\u200b" * 5_000_000 + "x", "«…» (cut: 5,000,001 characters)"),
        (10**3000, f"1{'0' * 999}… (cut: 3,001 characters)"),
    ],
)
def test_a_long_value_is_cut_and_its_length_is_told(value: Any, shown: str) -> None:
    assert quoted(value) == shown


@given(st.one_of(st.text(), st.lists(st.text()), st.dictionaries(st.text(), st.text())))
def test_no_value_can_end_its_own_quotation_or_hide_anything(value: Any) -> None:
    found = quoted(value)
    inside = found[1:-1]
    assert (found[0], found[-1]) == ("«", "»")
    assert not set(inside) & set("«»\n\r")
    assert "<<" not in inside
    assert ">>" not in inside
    assert not {letter for letter in inside if unicodedata.category(letter) in INVISIBLE} - ISOLATES
    assert inside.count("\u2068") == inside.count("\u2069") <= 1


@given(st.text())
def test_cleaning_twice_changes_nothing_and_leaves_nothing_invisible_but_line_breaks(text: str) -> None:
    found = cleaned(text)
    assert cleaned(found) == found
    assert not [letter for letter in found if unicodedata.category(letter) in INVISIBLE and letter != "\n"]


@pytest.mark.parametrize("text", ["", " ", "\u200b", "\t\n", "\u3164\u2800", "\u202e\u00a0", "\U000e0041", "\u0301"])
def test_a_text_of_which_nothing_can_be_seen_is_blank(text: str) -> None:
    assert is_blank(text)
    assert not is_blank(f"{text}?")


def test_a_message_keeps_its_own_words_apart_from_values() -> None:
    template = Template("Pay {{n}}\u202e to {{to}}\nfor “{{what[0]}}”, {{missing}}{{principal.subject}}?")
    scope = {"args": {"n": 5, "to": "a\nb", "what": ["»"]}, "principal": {"subject": "ada"}}
    assert template.message(scope) == "Pay 5 to «a ⏎ b»\nfor “«>»”, «ada»?"
    assert not template.wordless
    assert Template(" {{a}}\u200b{{b}}").wordless


UNSAFE = [
    "javascript:alert(1)",
    "JaVaScRiPt://x/%0aalert(1)",
    "data:text/html,x",
    "file:///etc/passwd",
    "ftp://example.com/",
    "http://example.com/",
    "http://127.0.0.1.example.com/",
    "http://localhost.example.com/",
    "https://user:pw@example.com/",
    "https://user@example.com/",
    "https://example.com\\@evil.example/",
    "https://exa\u0430mple.com/",
    "https://example.com/\u202egpj",
    "https://example.com/a b",
    "https://example.com/\n",
    "https:example.com",
    "https:///example.com",
    "https://",
    "//example.com",
    "https://example.com:port/",
    "https://[::1/",
    f"https://example.com/{'x' * MAX_LINK}",
    "mcp-workflows://tasks/1/result",
    "ui://mcp-workflows/card",
    "",
]


@pytest.mark.parametrize("url", [*UNSAFE, None, 5, ["https://example.com/"]])
def test_a_link_that_may_lead_people_astray_is_left_out(url: Any) -> None:
    assert safe_link(url) is None


@pytest.mark.parametrize("url", ["http://localhost:8233/x", "http://127.0.0.1:1/", "http://[::1]:8233/"])
def test_a_local_engine_may_have_http_links_of_this_machine(url: str) -> None:
    assert safe_link(url) == url
    assert safe_link(url, local=False) is None


@pytest.mark.parametrize("url", UNSAFE)
def test_a_result_sends_nobody_to_an_unsafe_address(url: str) -> None:
    link = {"type": "resource_link", "uri": url, "name": "report\u202e"}
    inner = {"type": "resource", "resource": {"uri": url, "text": "rows"}}
    found = cleaned_result({"content": [link, inner], "isError": False})
    assert found["content"][0] == {"type": "text", "text": "(left out: a link that is not https, «report»)"}
    assert found["content"][1]["resource"] == {"uri": "urn:mcp-workflows:left-out", "text": "rows"}


def test_a_result_keeps_its_data_and_the_names_of_resources() -> None:
    content = [
        {"type": "text", "text": "👩\u200d👧"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "demo://report/1", "blob": "aGk="}},
        {"type": "resource_link", "uri": "demo://report/1", "name": "report"},
    ]
    result = {"content": content, "structuredContent": {"a": "\u200b"}, "isError": False}
    assert cleaned_result(result) == result


def test_the_meta_of_a_result_speaks_neither_for_us_nor_for_the_protocol() -> None:
    theirs = {"acme/region": "eu", "progress": 1}
    ours = {
        "mcp-workflows/url": "https://evil.example/",
        "MCP-Workflows/url": "x",
        "ui": {"resourceUri": "ui://mcp-workflows/card"},
        "ui/resourceUri": "ui://evil",
        "io.modelcontextprotocol/related-task": {"taskId": "1"},
        "acme/\u202ex": 1,
    }
    block = {"type": "text", "text": "a", "_meta": {**ours, **theirs}}
    resource = {"type": "resource", "resource": {"uri": "demo://a/b", "text": "", "_meta": ours}}
    found = cleaned_result({"content": [block, resource], "_meta": {**theirs, **ours}, "isError": False})
    assert found["_meta"] == found["content"][0]["_meta"] == theirs
    assert "_meta" not in found["content"][1]["resource"]
    assert "_meta" not in cleaned_result({"content": [], "_meta": {"acme/large": "x" * 1_000_000}})


def test_joiners_stay_in_a_schema_within_their_script_and_emoji_alone() -> None:
    words = ["👩\u200d💻", "क्\u200dष", "❤\ufe0f"]
    schema: dict[str, Any] = {"enum": [*words, "a\u200db", "é\u200d\u200d\u200cé"], "properties": {words[1]: {}}}
    assert cleaned_schema(schema) == {"enum": [*words, "ab", "éé"], "properties": {words[1]: {}}}
