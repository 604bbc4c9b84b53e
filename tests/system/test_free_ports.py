"""Free ports are used some time after they were given out: nobody else may get the same meanwhile."""

from __future__ import annotations

import os
import socket

from tests.support.child_processes import free_port

MANY = 300


def test_no_port_is_given_out_twice() -> None:
    assert len({free_port() for _ in range(MANY)}) == MANY


def test_processes_that_were_started_one_after_the_other_are_given_different_ports() -> None:
    assert {free_port() % 8 for _ in range(MANY)} == {os.getpid() % 8}


def test_a_port_that_is_taken_is_not_given_out() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert port not in {free_port() for _ in range(2500)}  # all of them, and a few again
