"""SIGTERM before a command serves (broker/test_broker_process.py has the time after), and Ctrl-C while one rests."""

from __future__ import annotations

import os
import select
import signal
import threading

import pytest

from logstore.terminal import stopping
from logstore.terminal.stopping import Stopping, rest


def test_a_command_that_ends_before_it_serves_leaves_no_thread_and_no_blocked_signal() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    threads = threading.active_count()
    with pytest.raises(ZeroDivisionError), Stopping(60):
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        raise ZeroDivisionError
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert threading.active_count() == threads


def test_ctrl_c_that_comes_just_before_a_rest_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.set_wakeup_fd(-1)
    waits = []

    class Waiting:
        @staticmethod
        def select(readers: list[int], *_: object) -> None:
            tell = signal.set_wakeup_fd(-1)
            signal.set_wakeup_fd(tell)
            os.write(tell, bytes([signal.SIGINT]))  # as the interpreter does when a signal comes
            waits.append(select.select(readers, [], [], 30)[0] == readers)
            raise KeyboardInterrupt  # as its handler does next

    monkeypatch.setattr(stopping, "select", Waiting)
    with pytest.raises(KeyboardInterrupt):
        rest(86_400)
    assert waits == [True]
    assert signal.set_wakeup_fd(before) == -1


def test_a_rest_ends_by_itself_and_goes_on_after_another_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    handled = []
    old = signal.signal(signal.SIGUSR1, lambda *_: handled.append(True))
    try:

        class Waiting:
            @staticmethod
            def select(readers: list[int], *rest: object) -> object:
                if not handled:
                    signal.raise_signal(signal.SIGUSR1)
                return select.select(readers, *rest)

        monkeypatch.setattr(stopping, "select", Waiting)
        rest(0.05)
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert handled == [True]
