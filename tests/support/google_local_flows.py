"""Workflows for the tests of the local engine's server."""

from __future__ import annotations

from typing import Final

HELLO: Final = """
main:
  params: [args]
  steps:
    - answer:
        return: ${args}
"""

SLEEP: Final = """
main:
  params: [args]
  steps:
    - nap:
        call: sys.sleep
        args: {seconds: "${args.seconds}"}
    - done:
        return: rested
"""

FAIL: Final = """
main:
  params: [args]
  steps:
    - breaking:
        raise: ${args.what}
"""

ASK: Final = """
main:
  params: [args]
  steps:
    - open:
        call: events.create_callback_endpoint
        args: {http_callback_method: "${args.method}"}
        result: endpoint
    - wait:
        call: events.await_callback
        args: {callback: "${endpoint}", timeout: "${args.timeout}"}
        result: request
    - done:
        return: ${request}
"""

FETCH: Final = """
main:
  params: [args]
  steps:
    - fetch:
        call: http.request
        args:
          method: POST
          url: ${args.url}
          auth: ${args.auth}
          headers: {X-Shop: here}
          body: {order: 7}
          timeout: ${args.timeout}
        result: reply
    - done:
        return: ${reply}
"""

RESTART: Final = """
main:
  params: [args]
  steps:
    - first:
        assign:
          - id: ${uuid.generate()}
          - began: ${sys.now()}
    - told:
        call: http.post
        args: {url: "${args.url + \\"/once\\"}", body: {id: "${id}"}}
    - open:
        call: events.create_callback_endpoint
        result: endpoint
    - nap:
        call: sys.sleep
        args: {seconds: "${args.seconds}"}
    - told_again:
        call: http.post
        args: {url: "${args.url + args.path}", body: {id: "${id}", url: "${endpoint.url}"}}
    - wait:
        call: events.await_callback
        args: {callback: "${endpoint}", timeout: 60}
        result: request
    - done:
        return: {id: "${id}", began: "${began}", body: "${request.http_request.body}"}
"""

LATER: Final = """
main:
  steps:
    - open:
        call: events.create_callback_endpoint
        result: one
    - open_another:
        call: events.create_callback_endpoint
        result: two
    - wait:
        call: events.await_callback
        args: {callback: "${two}"}
    - wait_again:
        call: events.await_callback
        args: {callback: "${one}"}
        result: request
    - done:
        return: ${request.http_request.body}
"""
