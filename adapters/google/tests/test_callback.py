"""URLs of callbacks, as a workflow tells them: our OAuth token is sent there, so each is hostile until proven."""

from __future__ import annotations

import pytest
from mcp_workflows_google.questions import check_callback, listed_callback
from mcp_workflows_google.resources import ExecutionName

from adapters.google.tests.tell import EXECUTION, GOOGLE, NAME, url
from mcp_workflows.errors import EngineRefused

REGIONAL = "https://workflowexecutions.europe-west1.rep.googleapis.com"
LOCAL = "http://127.0.0.1:8790"
HOST = "workflowexecutions.googleapis.com"
PATH = f"/v1/{NAME}/callbacks/cb-1"


@pytest.mark.parametrize(
    ("written", "project", "identifier"),
    [
        (url(), "shop-123", "cb-1"),
        (url("0cb4_A-9"), "shop-123", "0cb4_A-9"),
        (url(origin=REGIONAL), "shop-123", "cb-1"),
        (url(execution=NAME.replace("shop-123", "123456789012")), "123456789012", "cb-1"),
        (url(execution=NAME.replace("shop-123", "example.com:shop")), "example.com:shop", "cb-1"),
        (url().replace("/callbacks/", "/callback/"), "shop-123", "cb-1"),
    ],
)
def test_googles_own_urls_are_taken_and_sent_to_as_they_are(written: str, project: str, identifier: str) -> None:
    for rest_url in (GOOGLE, REGIONAL):
        found = check_callback(written, EXECUTION, rest_url=rest_url)
        assert (found.project, found.id, found.url) == (project, identifier, written)


def test_the_endpoint_of_the_engine_is_taken_too() -> None:
    private = "https://workflowexecutions-shop.p.googleapis.com"
    assert check_callback(url(origin=private), EXECUTION, rest_url=private).id == "cb-1"
    with pytest.raises(EngineRefused):
        check_callback(url(origin=private), EXECUTION, rest_url=GOOGLE)


HOSTILE = {
    "another host": "https://evil.example" + PATH,
    "a suffix": "https://workflowexecutions.googleapis.com.evil.example" + PATH,
    "a prefix": "https://evil-googleapis.com" + PATH,
    "a longer label": "https://evilworkflowexecutions.googleapis.com" + PATH,
    "a host below": f"https://evil.{HOST}{PATH}",
    "another service": "https://storage.googleapis.com" + PATH,
    "the apex": "https://googleapis.com" + PATH,
    "another region": "https://workflowexecutions.us-east1.rep.googleapis.com" + PATH,
    "a region's suffix": "https://workflowexecutions.europe-west1.rep.googleapis.com.evil.example" + PATH,
    "a region without rep": "https://workflowexecutions.europe-west1.googleapis.com" + PATH,
    "a user": f"https://{HOST}@evil.example{PATH}",
    "a user at Google": f"https://evil@{HOST}{PATH}",
    "a user and password": f"https://a:b@{HOST}{PATH}",
    "an empty user": f"https://@{HOST}{PATH}",
    "a port": f"https://{HOST}:444{PATH}",
    "the usual port": f"https://{HOST}:443{PATH}",
    "an empty port": f"https://{HOST}:{PATH}",
    "a dot after the host": f"https://{HOST}.{PATH}",
    "capitals in the host": f"https://WorkflowExecutions.GoogleAPIs.com{PATH}",
    "capitals in the scheme": f"HTTPS://{HOST}{PATH}",
    "http": f"http://{HOST}{PATH}",
    "no scheme": f"//{HOST}{PATH}",
    "another scheme": f"ftp://{HOST}{PATH}",
    "one slash": f"https:/{HOST}{PATH}",
    "three slashes": f"https:///{HOST}{PATH}",
    "a backslash": f"https://evil.example\\@{HOST}{PATH}",
    "a backslash after": f"https://{HOST}\\.evil.example{PATH}",
    "a hash before the path": f"https://evil.example#{HOST}{PATH}",
    "a question mark before the path": f"https://evil.example?{HOST}{PATH}",
    "a query": url() + "?alt=json",
    "an empty query": url() + "?",
    "a fragment": url() + "#x",
    "a parameter": url() + ";x",
    "a slash after": url() + "/",
    "more path": url() + "/more",
    "a verb": url() + ":cancel",
    "two slashes in the path": f"https://{HOST}//v1/{NAME}/callbacks/cb-1",
    "two slashes within": f"https://{HOST}/v1/{NAME}//callbacks/cb-1",
    "dot segments": f"https://{HOST}/v1/{NAME}/callbacks/../../cancel",
    "dot segments to us": f"https://{HOST}/v1/{NAME}/x/../callbacks/cb-1",
    "dots for an id": f"https://{HOST}/v1/{NAME}/callbacks/..",
    "encoded dots": f"https://{HOST}/v1/{NAME}/callbacks/%2e%2e",
    "an encoded slash": f"https://{HOST}/v1/{NAME}%2Fcallbacks/cb-1",
    "an encoded slash within": f"https://{HOST}/v1/{NAME.replace('/executions', '%2fexecutions')}/callbacks/cb-1",
    "an encoded host": f"https://workflowexecutions%2egoogleapis.com{PATH}",
    "an encoded null": url() + "%00",
    "another version": url().replace("/v1/", "/v2/"),
    "no version": url().replace("/v1/", "/"),
    "no id": f"https://{HOST}/v1/{NAME}/callbacks/",
    "no callbacks": f"https://{HOST}/v1/{NAME}",
    "another execution": url(execution=NAME.replace("e-1", "e-2")),
    "a longer execution": url(execution=NAME + "1"),
    "another workflow": url(execution=NAME.replace("refund", "pay")),
    "another location": url(execution=NAME.replace("europe-west1", "us-east1")),
    "no project": url(execution=NAME.replace("projects/shop-123/", "")),
    "a wild project": url(execution=NAME.replace("shop-123", "-")),
    "an execution after ours": url(execution=f"{NAME}/{NAME}"),
    "ours after another": url(execution=NAME.replace("e-1", "e-2") + f"/callbacks/x/{NAME}"),
    "a new line at the end": url() + "\n",
    "a new line before": "\n" + url(),
    "a new line within": url().replace("/callbacks", "\r\n/callbacks"),
    "a header": url() + "\r\nHost: evil.example",
    "a space at the end": url() + " ",
    "a tab in the host": f"https://workflow\texecutions.googleapis.com{PATH}",
    "a full-width letter": f"https://workflowexecutions.googleapis.c\uff4fm{PATH}",
    "a Cyrillic letter": f"https://workfl\u043ewexecutions.googleapis.com{PATH}",
    "an ideographic dot": f"https://workflowexecutions\u3002googleapis.com{PATH}",
    "a soft hyphen": f"https://workflow\u00adexecutions.googleapis.com{PATH}",
    "punycode": f"https://xn--workfloexecutions-9ef.googleapis.com{PATH}",
    "Arabic digits in the project": url(execution=NAME.replace("shop-123", "\u0661\u0662\u0663\u0664\u0665\u0666")),
    "an accent in the id": url("cb-\u00e9"),
    "an address": f"https://127.0.0.1{PATH}",
    "an address of six": f"https://[::1]{PATH}",
    "the metadata server": "http://169.254.169.254/computeMetadata/v1/" + PATH,
    "the emulator": LOCAL + PATH,
    "a long id": url("c" * 257),
    "a very long URL": url() + "c" * 100_000,
    "nothing": "",
    "a word": "callback",
    "script": "javascript:alert(1)",
    "a file": "file:///etc/passwd",
    "a null": "\x00",
}


@pytest.mark.parametrize("written", HOSTILE.values(), ids=HOSTILE)
def test_everything_else_is_refused_and_not_repeated(written: str) -> None:
    for rest_url in (GOOGLE, REGIONAL):
        with pytest.raises(EngineRefused, match="callback_url") as refused:
            check_callback(written, EXECUTION, rest_url=rest_url)
        assert "evil" not in str(refused.value)
        assert "cb-1" not in str(refused.value)


@pytest.mark.parametrize("origin", [LOCAL, "http://localhost:8790"])
def test_an_emulators_own_urls_are_taken_and_sent_to_where_it_was_configured(origin: str) -> None:
    found = check_callback(origin + PATH, EXECUTION, rest_url=LOCAL)
    assert (found.id, found.url) == ("cb-1", LOCAL + PATH)


@pytest.mark.parametrize(
    "origin",
    [
        GOOGLE,
        REGIONAL,
        "https://127.0.0.1:8790",
        "http://127.0.0.1:8791",
        "http://127.0.0.1",
        "http://127.0.0.1:87900",
        "http://evil.example:8790",
        "http://127.0.0.1:8790@evil.example",
        "http://127.0.0.1.evil.example:8790",
    ],
)
def test_with_an_emulator_nothing_else_is_taken(origin: str) -> None:
    with pytest.raises(EngineRefused, match="callback_url"):
        check_callback(origin + PATH, EXECUTION, rest_url=LOCAL)


def test_an_emulator_elsewhere_is_known_by_its_one_name() -> None:
    assert check_callback("http://engine:8790" + PATH, EXECUTION, rest_url="http://engine:8790").id == "cb-1"
    with pytest.raises(EngineRefused):
        check_callback(LOCAL + PATH, EXECUTION, rest_url="http://engine:8790")


def test_no_url_is_in_the_text_of_what_was_found() -> None:
    assert "https://" not in repr(check_callback(url(), EXECUTION, rest_url=GOOGLE))


@pytest.mark.parametrize("part", ["callback", "callbacks"])
def test_the_url_of_a_listed_callback_is_made_of_its_name(part: str) -> None:
    name = f"{NAME.replace('shop-123', '123456789012')}/{part}/cb-1"
    found = listed_callback(name, EXECUTION, rest_url=GOOGLE)
    assert found is not None
    assert (found.id, found.url) == ("cb-1", url())
    assert check_callback(found.url, EXECUTION, rest_url=GOOGLE).id == "cb-1"


@pytest.mark.parametrize(
    "name",
    ["", "cb-1", f"{NAME}/callback/", f"{NAME}/callback/..", f"{NAME}/callback/a?b", f"{NAME}2/callback/c", NAME],
)
def test_a_listed_callback_of_another_name_has_no_url(name: str) -> None:
    assert listed_callback(name, EXECUTION, rest_url=GOOGLE) is None


def test_an_execution_by_its_projects_number_takes_urls_by_its_id() -> None:
    numbered = ExecutionName.parse(NAME.replace("shop-123", "123456789012"))
    assert check_callback(url(), numbered, rest_url=GOOGLE).project == "shop-123"
