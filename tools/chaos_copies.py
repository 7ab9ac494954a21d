"""What is compared when all members of a chaos run are closed: every copy is clean, and all are equal."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from chaos_member import HOST, QUEUE, number_of

import logstore
from logstore.cluster.directory import copy_number
from logstore.cluster.replica import Copy, detach
from logstore.inspect import Reader
from logstore.verify.verification import Verification

if TYPE_CHECKING:
    from pathlib import Path

    from chaos_judge import Place

Batches = dict[int, tuple[int, bytes]]
"""Of a copy, by LSN: end and bytes."""
INDEX_AT = 88  # in a batch's bytes


def copy_of(member_dir: Path) -> Path:
    """The directory of the member's present copy."""
    return member_dir / HOST / f"copy-{copy_number(member_dir / HOST)}"


def remove_copy(member_dir: Path) -> None:
    """As an operator does with a copy that is to be had anew; the member does not run."""
    with Copy.open(member_dir / HOST) as copy:
        copy.remove()


def differences(member_dirs: list[Path], durable_index: int) -> list[str]:
    """Why a copy is not clean, and where two differ up to this index, which is known to be durable."""
    found = []
    logs: list[Batches] = []
    for directory in member_dirs:
        path = copy_of(directory)
        verification = Verification(path)
        verification.run(lambda _: None, connect=None, schema=None)
        verification.close()
        found += [f"{path}: {problem}" for problem in verification.findings.problems]
        logs.append(_batches(path, durable_index))
    for (one, first), (other, second) in pairwise(zip(member_dirs, logs, strict=True)):
        found += _compared(f"{one.name} and {other.name}", first, second)
    return found


def _batches(path: Path, durable_index: int) -> Batches:
    with Reader(path, undurable=True) as reader:
        return {
            batch.lsn: (batch.end_lsn, batch.raw)
            for batch in reader.batches()
            if int.from_bytes(batch.raw[INDEX_AT : INDEX_AT + 8], "little") <= durable_index
        }


def _compared(names: str, one: Batches, other: Batches) -> list[str]:
    if not one or not other:
        return [f"{names}: one of them has no durable batch"]
    begins = max(min(one), min(other))  # their bases may differ
    lsns = sorted(lsn for lsn in one.keys() | other.keys() if lsn >= begins)
    different = [lsn for lsn in lsns if one.get(lsn) != other.get(lsn)]
    return [f"{names} differ in {len(different)} batches, the first at LSN {different[0]}"] if different else []


def queues(member_dirs: list[Path]) -> list[list[Place]]:
    """What each copy has as a single store. The members are never started again."""
    found = []
    for directory in member_dirs:
        with logstore.open(detach(directory / HOST)) as store:
            found.append([(one.id, *number_of(one.content)) for one in store.messages(QUEUE, load=True)])
    return found
