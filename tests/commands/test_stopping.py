"""A command that fails before it serves leaves SIGTERM unchanged; broker/test_broker_process.py tests the rest."""

from __future__ import annotations

import signal
import threading

import pytest

from logstore.commands.stopping import Stopping


def test_a_command_that_ends_before_it_serves_leaves_no_thread_and_no_blocked_signal() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    threads = threading.active_count()
    with pytest.raises(ZeroDivisionError), Stopping(60):
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        raise ZeroDivisionError
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert threading.active_count() == threads
