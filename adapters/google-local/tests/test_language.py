"""Steps of the local engine: what they do, in which order, and how they fail."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_google_local.language.errors import Tag, WorkflowError, failure
from ruamel.yaml import YAML

from tests.support.google_local_host import Answer, Desk, failed, response, run

_YAML: Any = YAML(typ="safe", pure=True)  # its methods have no types
CASES: Any = _YAML.load(Path(__file__).with_name("steps.yaml"))


@pytest.mark.parametrize("case", CASES["results"], ids=lambda case: case["name"])
async def test_steps_do_what_they_do_at_google(case: Any) -> None:
    assert await run(case["source"]) == case["result"]


@pytest.mark.parametrize("case", CASES["failures"], ids=lambda case: case["name"])
async def test_an_uncaught_error_is_what_the_execution_fails_with(case: Any) -> None:
    """`payload`: all of it, or its first tag."""
    found = await failed(case["source"])
    tags = WorkflowError(found).tags
    assert case["payload"] in (found, *tags)


SUBWORKFLOWS = """
    main:
      params: [args]
      steps:
        - named: {call: join, args: {left: a, right: "${args.b}"}, result: one}
        - placed: {return: ["${one}", "${join(1)}", "${join(1, 2) + join(3, 4)}"]}
    join:
      params: [left, right: none]
      steps:
        - out: {return: "${left + \\"-\\" + right}"}
"""


async def test_subworkflows_are_called_by_name_and_by_position_with_defaults() -> None:
    assert await run(SUBWORKFLOWS, {"b": "b"}) == ["a-b", "1-none", "1-23-4"]


async def test_a_busy_loop_can_be_cancelled_and_lets_others_run() -> None:
    task = asyncio.create_task(run("- a: {next: b}\n- b: {next: a}"))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_branch_that_waits_can_be_cancelled() -> None:
    waiting = asyncio.Event()

    class Waiting(Desk):
        async def effect(self, name: str, arguments: Mapping[str, Any], path: Any) -> Any:
            waiting.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(
        run("- a: {parallel: {branches: [{b: {call: sys.sleep, args: {seconds: 9}}}]}}", desk=Waiting())
    )
    await asyncio.wait_for(waiting.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


ENDLESS = [
    "- a: {try: {steps: [{b: {next: c}}, {c: {next: b}}]}, except: {as: e, return: caught}}",
    "- a: {assign: [{x: abcdefgh}]}\n- b: {assign: [{x: '${x + x}'}], next: b}",
    "- a: {assign: [{x: [abcdefgh]}]}\n- b: {assign: [{x: '${list.concat(x, x)}'}], next: b}",
]


@pytest.mark.parametrize("source", ENDLESS, ids=["loop", "strings", "lists"])
async def test_what_has_no_end_is_an_error_that_nothing_catches(source: str) -> None:
    assert (await failed(source))["tags"] == ["ResourceLimitError"]
    recursion = "main:\n  steps: [{a: {return: '${f()}'}}]\nf:\n  steps: [{a: {return: '${f()}'}}]"
    assert (await failed(recursion))["tags"] == ["RecursionError"]


async def test_retry_waits_longer_each_time_and_then_gives_up() -> None:
    desk = Desk(answers={"http.request": lambda _: response(503, {"no": "luck"})})
    source = """
        - a:
            try: {call: http.get, args: {url: "http://shop/x"}}
            retry:
              predicate: ${http.default_retry_predicate}
              max_retries: 3
              backoff: {initial_delay: 0.5, max_delay: 1.5, multiplier: 2}
            except: {as: e, return: "${e}"}
    """
    error = await run(source, desk=desk)
    assert [arguments["seconds"] for name, arguments in desk.effects if name == "sys.sleep"] == [0.5, 1.0, 1.5]
    assert (error["tags"], error["code"], error["body"]) == (["HttpError"], 503, {"no": "luck"})


RETRIED = [
    ("${http.default_retry}", failure(Tag.CONNECTION, "lost"), 6),
    ("${http.default_retry_non_idempotent}", failure(Tag.CONNECTION, "lost"), 1),
    ("${http.default_retry_non_idempotent}", failure(Tag.CONNECTION_FAILED, "refused"), 6),
    ("${http.default_retry_non_idempotent}", response(429), 6),
]


@pytest.mark.parametrize(("policy", "answer", "attempts"), RETRIED)
async def test_ready_policies_retry_what_they_say(policy: str, answer: Any, attempts: int) -> None:
    desk = Desk(answers={"http.request": lambda _: answer})
    await failed(f'- a: {{try: {{call: http.post, args: {{url: "http://shop"}}}}, retry: "{policy}"}}', desk=desk)
    assert len([name for name, _ in desk.effects if name == "http.request"]) == attempts


async def test_a_subworkflow_may_decide_about_a_retry() -> None:
    source = """
        main:
          steps:
            - a: {assign: [{n: 0}]}
            - b:
                try:
                  steps:
                    - c: {assign: [{n: "${n + 1}"}]}
                    - d: {raise: {again: "${n < 3}", n: "${n}"}}
                retry:
                  predicate: ${mine}
                  max_retries: 9
                  backoff: {initial_delay: 0, max_delay: 1, multiplier: 1}
                except: {as: e, return: "${e.n}"}
        mine:
          params: [e]
          steps:
            - a: {return: "${e.again}"}
    """
    assert await run(source) == 3


async def test_what_is_sent_is_encoded_and_what_comes_back_decoded() -> None:
    desk = Desk(answers={"http.request": lambda _: response(200, {"ok": True})})
    source = """
        - a:
            call: http.request
            args:
              method: post
              url: http://shop/x?y=1
              query: {q: a b, l: [1, true]}
              headers: {X-Key: 5}
              auth: {type: OIDC, audience: http://shop}
              timeout: 1.5
              body: {n: "${1 + 1}"}
            result: r
        - b: {return: "${r}"}
    """
    result = await run(source, desk=desk)
    ((name, sent),) = desk.effects
    assert name == "http.request"
    assert (sent["method"], sent["url"], sent["timeout"]) == ("POST", "http://shop/x?y=1&q=a%20b&l=1&l=true", 1.5)
    assert sent["headers"] == {"X-Key": "5", "Content-Type": "application/json; charset=utf-8"}
    assert json.loads(base64.b64decode(sent["body"])) == {"n": 2}
    assert sent["auth"] == {"type": "OIDC", "audience": "http://shop"}
    assert result == {"code": 200, "body": {"ok": True}, "headers": {"content-type": "application/json"}}


PARALLEL = """
    - a: {assign: [{done: []}]}
    - b:
        parallel:
          shared: [done]
          concurrency_limit: 2
          for:
            value: v
            range: [0, 4]
            steps:
              - c: {call: sys.sleep, args: {seconds: "${v}"}}
              - d: {switch: [{condition: "${v == 2}", raise: two}]}
              - e: {assign: [{done: "${list.concat(done, v)}"}]}
"""


async def test_the_other_branches_go_on_when_one_fails() -> None:
    source = f"{PARALLEL}".replace("\n    ", "\n")
    caught = "- t:\n    try:\n      steps:\n" + "".join(f"        {line}\n" for line in source.strip().splitlines())
    found = await run(f"{caught}    except: {{as: e, return: '${{e}}'}}")
    assert found["tags"] == ["UnhandledBranchError"]
    ((branch),) = found["branches"]
    assert (branch["id"], branch["error"]["payload"]) == ("2", "two")


async def test_no_more_branches_run_at_once_than_allowed() -> None:
    desk = Desk()
    await failed(PARALLEL, desk=desk)
    assert max(len(steps) for steps in desk.seen) == 2
    assert len([name for name, _ in desk.effects if name == "sys.sleep"]) == 5


async def test_a_third_parallel_step_inside_is_an_error_through_subworkflows_too() -> None:
    source = """
        main: {steps: [{a: {parallel: {branches: [{b: {call: two}}]}}}]}
        two: {steps: [{a: {parallel: {branches: [{b: {call: three}}]}}}]}
        three: {steps: [{a: {parallel: {branches: [{c: {raise: x}}]}}}]}
    """
    assert "ParallelNestingError" in json.dumps(await failed(source))


REPLAYED = """
    main:
      steps:
        - a: {assign: [{ids: []}, {first: "${uuid.generate()}"}]}
        - b:
            parallel:
              shared: [ids]
              for:
                value: v
                in: [1, 2, 3]
                steps:
                  - c: {call: sys.sleep, args: {seconds: 1}}
                  - d: {call: one, result: id}
                  - e: {assign: [{ids: "${list.concat(ids, id)}"}]}
        - f: {call: events.create_callback_endpoint, result: cb}
        - g: {call: events.await_callback, args: {callback: "${cb}", timeout: 9.5}, result: answer}
        - h: {return: ["${first}", "${ids}", "${sys.now()}", "${answer.http_request.body}"]}
    one:
      steps:
        - a: {return: "${uuid.generate()}"}
"""


async def test_a_replay_takes_every_answer_from_the_journal_and_does_nothing_again() -> None:
    numbers = iter(range(100))
    answers: dict[str, Answer] = {
        "uuid.generate": lambda _: f"id-{next(numbers)}",
        "sys.now": lambda _: float(next(numbers)),
        "events.create_callback_endpoint": lambda _: {"url": "http://callback"},
        "events.await_callback": lambda _: {"http_request": {"body": {"yes": 1}}},
    }
    first = Desk(answers=answers)
    result = await run(REPLAYED, desk=first)
    again = Desk(journal=first.journal)
    assert await run(REPLAYED, desk=again) == result
    assert again.effects == []
    assert len(first.journal) == len(first.effects) == 1 + 3 * 2 + 3


@pytest.mark.parametrize("ends", ["[1, 3]", '["${1}", "${n}"]', '"${[1, n]}"'])
@pytest.mark.parametrize("loop", ["for: LOOP", "parallel: {shared: [total], for: LOOP}"])
async def test_a_range_may_be_an_expression(ends: str, loop: str) -> None:
    body = f"{{value: v, range: {ends}, steps: [{{add: {{assign: [{{total: '${{total + v}}'}}]}}}}]}}"
    source = f"""
        - start: {{assign: [{{n: 3}}, {{total: 0}}, {{both: [1, 3]}}]}}
        - each: {{{loop.replace("LOOP", body)}}}
        - done: {{return: "${{total}}"}}
    """
    assert await run(source) == 6


@pytest.mark.parametrize("ends", ['"${[1]}"', '"${[1, 2.5]}"', '"${n}"'])
async def test_an_expression_that_gives_no_range_is_a_type_error(ends: str) -> None:
    source = f"""
        - start: {{assign: [{{n: 3}}]}}
        - a:
            try:
              steps:
                - c: {{for: {{value: v, range: {ends}, steps: [{{b: {{assign: [{{x: 1}}]}}}}]}}}}
            except: {{as: e, steps: [{{r: {{return: "${{e.tags}}"}}}}]}}
    """
    assert await run(source) == ["TypeError"]
