"""Checks of passwords: once for all who wait, the addresses in turn, and none in vain."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from kit.patience import PATIENCE_S
from logstore.broker import password_checks
from logstore.broker.password_checks import PasswordChecks, TooManyChecks

if TYPE_CHECKING:
    from collections.abc import Callable

ONE, TWO, THREE = "192.0.2.1", "192.0.2.2", "192.0.2.3"


class Slow:
    """Checks that end when they may, and the order in which they were made."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.may_end = threading.Event()
        self.began = threading.Event()

    def check(self, name: str, *, result: bool = True) -> Callable[[], bool]:
        def work() -> bool:
            self.made.append(name)
            self.began.set()
            assert self.may_end.wait(PATIENCE_S)
            return result

        return work


async def begin(checks: PasswordChecks, slow: Slow, address: str, name: str) -> asyncio.Task[bool]:
    """A login that waits for its check."""
    task = asyncio.ensure_future(checks.result(address, name.encode(), slow.check(name)))
    await asyncio.sleep(0)
    return task


async def in_progress(slow: Slow) -> None:
    await asyncio.to_thread(slow.began.wait, PATIENCE_S)


def test_all_who_wait_for_the_same_password_share_one_check_and_the_next_one_has_its_own() -> None:
    slow, checks = Slow(), PasswordChecks()

    async def run() -> None:
        waiting = [await begin(checks, slow, address, "same") for address in (ONE, TWO, ONE, THREE)]
        await in_progress(slow)
        waiting.append(await begin(checks, slow, ONE, "same"))
        slow.may_end.set()
        assert await asyncio.gather(*waiting) == [True] * 5
        assert slow.made == ["same"]
        assert await checks.result(ONE, b"same", lambda: False) is False

    asyncio.run(run())


def test_addresses_take_turns_however_many_passwords_one_of_them_sends() -> None:
    slow, checks = Slow(), PasswordChecks()

    async def run() -> None:
        waiting = [await begin(checks, slow, ONE, f"guess {number}") for number in range(5)]
        waiting += [await begin(checks, slow, TWO, f"user {number}") for number in range(2)]
        waiting += [await begin(checks, slow, THREE, "other")]
        slow.may_end.set()
        await asyncio.gather(*waiting)

    asyncio.run(run())
    assert slow.made[0] == "guess 0"
    assert slow.made.index("other") <= 3
    assert slow.made.index("user 1") <= 6
    assert slow.made[-2:] == ["guess 3", "guess 4"]


def test_a_check_that_waits_behind_a_long_queue_is_made_in_the_turn_of_another_address_that_wants_it() -> None:
    slow, checks = Slow(), PasswordChecks()

    async def run() -> None:
        waiting = [await begin(checks, slow, ONE, f"guess {number}") for number in range(5)]
        waiting += [await begin(checks, slow, TWO, "guess 4")]
        slow.may_end.set()
        await asyncio.gather(*waiting)

    asyncio.run(run())
    assert slow.made.index("guess 4") <= 2
    assert len(slow.made) == 5


def test_an_address_that_has_its_share_of_waiting_checks_gets_no_more_and_others_do() -> None:
    slow, checks = Slow(), PasswordChecks(2)

    async def run() -> None:
        waiting = [await begin(checks, slow, ONE, name) for name in ("in progress", "first", "second")]
        with pytest.raises(TooManyChecks, match=r"2 passwords from 192\.0\.2\.1 waiting for a check"):
            await checks.result(ONE, b"third", slow.check("third"))
        waiting.append(await begin(checks, slow, ONE, "first"))  # shares
        waiting.append(await begin(checks, slow, TWO, "third"))
        slow.may_end.set()
        assert all(await asyncio.gather(*waiting))
        assert await checks.result(ONE, b"fourth", lambda: True)

    asyncio.run(run())
    assert sorted(slow.made) == ["first", "in progress", "second", "third"]


def test_a_check_that_nobody_waits_for_any_more_is_not_made() -> None:
    slow, checks = Slow(), PasswordChecks(2)

    async def run() -> None:
        first = await begin(checks, slow, ONE, "first")
        await in_progress(slow)
        gone = [await begin(checks, slow, ONE, "gone"), await begin(checks, slow, TWO, "gone")]
        stays = [await begin(checks, slow, ONE, "shared"), await begin(checks, slow, TWO, "shared")]
        first.cancel()  # this one is in progress
        for task in (*gone, stays[0]):
            task.cancel()
        await asyncio.wait([first, *gone, stays[0]])
        again = await begin(checks, slow, ONE, "first")  # shares what is in progress
        slow.may_end.set()
        assert await stays[1]
        assert await again

    asyncio.run(run())
    assert slow.made == ["first", "shared"]


def test_the_exception_of_a_check_reaches_all_who_wait_and_the_next_check_is_made() -> None:
    checks = PasswordChecks()

    def fail() -> bool:
        raise MemoryError("no memory for a check")

    async def run() -> None:
        results = await asyncio.gather(
            *(checks.result(address, b"key", fail) for address in (ONE, TWO)), return_exceptions=True
        )
        assert [type(each) for each in results] == [MemoryError] * 2
        assert await checks.result(ONE, b"key", lambda: True)

    asyncio.run(run())


def test_without_a_thread_a_login_has_an_error_and_the_next_one_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = PasswordChecks()

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(password_checks, "start", no_thread)
            with pytest.raises(RuntimeError, match="new thread"):
                await checks.result(ONE, b"key", lambda: True)
        assert await checks.result(ONE, b"key", lambda: True)

    asyncio.run(run())


def test_the_thread_ends_with_the_last_check_and_with_the_loop() -> None:
    slow, checks = Slow(), PasswordChecks()

    def threads() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "logstore-logins"]

    async def run() -> None:
        await checks.result(ONE, b"key", lambda: True)
        for each in threads():
            await asyncio.to_thread(each.join, PATIENCE_S)
        assert threads() == []
        await begin(checks, slow, ONE, "first")
        await begin(checks, slow, ONE, "second")
        await in_progress(slow)

    asyncio.run(run())
    left = threads()
    slow.may_end.set()
    for each in left:
        each.join(PATIENCE_S)
        assert not each.is_alive()
    assert slow.made == ["first"]
