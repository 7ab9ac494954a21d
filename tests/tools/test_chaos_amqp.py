"""The judge of the fault driver's clients over AMQP finds what is planted in their journals, and no more."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from kit.stores import ROOT

pytest.importorskip("msgspec", reason="the extra cluster is not installed")
pytest.importorskip("logstore._consensus", reason="the cluster is not built")

sys.path.insert(0, str(ROOT / "tools"))

from chaos_amqp_judge import RULES, AmqpJudge  # found by the line above

if TYPE_CHECKING:
    from collections.abc import Callable

Line = dict[str, Any]
COUNT = 10
BROKEN = (-1, -1)  # a content that is not what was sent


class Told:
    """A journal in the order of its time, and the queue at its end."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.queue: list[tuple[int, int, int]] = []

    def write(self, event: str, **members: Any) -> None:
        """One line more."""
        self.lines.append({"event": event, "at_ns": len(self.lines), "run": "clients", **members})

    def deliver(self, session: int, *numbers: int, redelivered: bool = False) -> None:
        """Of sender 0."""
        for number in numbers:
            self.write("delivered", session=session, sender=0, number=number, redelivered=redelivered)

    def settle(self, session: int, *numbers: int, how: str = "accept") -> None:
        """Of sender 0, with an answer."""
        self.write("settling", session=session, places=[[0, number] for number in numbers], how=how)
        self.write("settled", session=session)

    def lie(self, *numbers: int) -> None:
        """These of sender 0 are on the queue."""
        self.queue += [(1000 + number, 0, number) for number in numbers]

    def judge(self) -> AmqpJudge:
        """Of all of it."""
        judge = AmqpJudge()
        judge.take(self.lines)
        judge.stock(self.queue, 1, len(self.lines))
        return judge


def good() -> Told:
    """A round with one fault: 0 to 9 are confirmed, of 10 to 19, one transaction, nobody knows.

    0 to 4 are settled, the ack of 5 has no answer, 6 and 7 were given back, 8 was dropped with its connection.
    """
    told = Told()
    told.write("round", number=0, planned=1, confirms=5)
    told.write("sent", sender=0, first=0, count=COUNT, whole=False)
    told.write("fault", kind="kill one", members=[1])
    told.write("confirmed", sender=0, numbers=list(range(COUNT)))
    told.write("sent", sender=0, first=COUNT, count=COUNT, whole=True)
    told.write("unknown", sender=0, first=COUNT, count=COUNT, error="Lost")
    told.deliver(1, *range(9))
    told.settle(1, 0, 1, 2, 3)
    told.settle(1, 4, how="reject")
    told.write("settling", session=1, places=[[0, 5]], how="accept")
    told.write("released", session=1, places=[[0, 6], [0, 7]])
    told.write("died", session=1, places=[[0, 8]])
    told.deliver(2, 6, redelivered=True)
    told.settle(2, 6)
    told.write("ended", number=0)
    told.lie(5, 7, 8, 9)
    return told


def test_a_good_journal_is_good() -> None:
    found = good().judge()
    assert found.findings == []
    assert [found.counts[name] for name in ("confirmed", "settled", "unknown", "left")] == [10, 6, 10, 4]


# ---- what is planted, each a rule broken ----


def a_message_is_missing(told: Told) -> None:
    told.queue.pop()


def a_settled_message_is_on_the_queue(told: Told) -> None:
    told.queue.insert(0, (1, 0, 2))


def a_settled_message_is_delivered_by_one_who_settles_later(told: Told) -> None:
    told.deliver(3, 2, redelivered=True)
    told.settle(3, 9)
    told.queue.pop()


def two_are_told_that_they_settled_it(told: Told) -> None:
    told.write("settling", session=3, places=[[0, 2]], how="accept")
    told.write("settled", session=3)


def a_message_comes_again_unmarked(told: Told) -> None:
    told.deliver(3, 7)
    told.settle(3, 9)
    told.queue.pop()


def a_session_gets_another_order(told: Told) -> None:
    delivered = [line for line in told.lines if line["event"] == "delivered"]
    delivered[7]["number"], delivered[8]["number"] = 8, 7


def the_queue_has_another_order(told: Told) -> None:
    told.queue.reverse()


def a_content_is_not_what_was_sent(told: Told) -> None:
    told.write("delivered", session=3, sender=BROKEN[0], number=BROKEN[1], redelivered=False)


def a_message_comes_from_nowhere(told: Told) -> None:
    told.lie(50)


def a_message_is_there_twice(told: Told) -> None:
    told.queue.append((2000, 0, 9))


def a_transaction_is_there_in_part(told: Told) -> None:
    told.lie(12)


def a_transaction_was_delivered_in_part(told: Told) -> None:
    told.deliver(3, 13)


def a_round_ends_without_its_fault(told: Told) -> None:
    told.lines = [line for line in told.lines if line["event"] != "fault"]


def a_round_ends_with_too_few(told: Told) -> None:
    told.lines[0]["confirms"] = COUNT + 1


PLANTED: list[tuple[str, Callable[[Told], None]]] = [
    ("lost", a_message_is_missing),
    ("returned after accept", a_settled_message_is_on_the_queue),
    ("returned after accept", a_settled_message_is_delivered_by_one_who_settles_later),
    ("accepted twice", two_are_told_that_they_settled_it),
    ("unmarked", a_message_comes_again_unmarked),
    ("reordered", a_session_gets_another_order),
    ("reordered", the_queue_has_another_order),
    ("changed", a_content_is_not_what_was_sent),
    ("changed", a_message_comes_from_nowhere),
    ("changed", a_message_is_there_twice),
    ("in part", a_transaction_is_there_in_part),
    ("in part", a_transaction_was_delivered_in_part),
    ("without its fault", a_round_ends_without_its_fault),
    ("too few confirms", a_round_ends_with_too_few),
]


@pytest.mark.parametrize(("rule", "planting"), PLANTED, ids=[planting.__name__ for _, planting in PLANTED])
def test_the_judge_finds_what_is_planted(rule: str, planting: Callable[[Told], None]) -> None:
    told = good()
    planting(told)
    found = told.judge()
    assert found.counts[rule] > 0
    assert {name for name in RULES if found.counts[name]} == {rule}


def test_every_rule_has_something_planted() -> None:
    assert {rule for rule, _ in PLANTED} == set(RULES)


# ---- what is no violation ----


def test_a_settlement_without_an_answer_may_have_either_outcome() -> None:
    told = good()
    told.queue = [place for place in told.queue if place[2] != 5]
    assert told.judge().findings == []


def test_what_was_gone_at_one_look_may_not_come_back() -> None:
    told = good()
    told.queue = [place for place in told.queue if place[2] != 5]
    judge = told.judge()
    judge.stock(good().queue, 1, 100)
    assert {name for name in RULES if judge.counts[name]} == {"returned after accept"}


def test_a_deposed_leader_may_deliver_until_its_sessions_end() -> None:
    told = good()
    told.deliver(3, 2, redelivered=True)
    told.deliver(3, 7)
    told.write("settling", session=3, places=[[0, 7]], how="accept")  # without an answer
    judge = told.judge()
    assert judge.findings == []
    assert judge.counts["deposed"] == 2


def test_a_transaction_without_an_answer_is_there_as_a_whole_or_not_at_all() -> None:
    told = good()
    told.lie(*range(COUNT, 2 * COUNT))
    assert told.judge().findings == []


def test_what_nobody_confirmed_may_be_in_any_order() -> None:
    told = good()
    told.lie(*reversed(range(COUNT, 2 * COUNT)))
    assert told.judge().findings == []
