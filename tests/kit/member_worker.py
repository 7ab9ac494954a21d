"""A member in a process of its own, and what a program does there with the host that it leads.

    python -m kit.member_worker DIRECTORY CONFIGURATION

Commands come as JSON lines, and each has one answer.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.trio import HOST
from logstore.cluster.member import Member, MemberConfig
from logstore.errors import NotLeader, OutcomeUnknown, StoreClosed, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

TESTS = Path(__file__).parents[1]


class Worker:
    """The process, as a test sees it."""

    def __init__(self, directory: Path, config: MemberConfig, environment: Mapping[str, str]) -> None:
        given = {
            name: getattr(config, name) for name in ("member", "name", "listen", "join", "kept_bytes") if name != "tls"
        } | {"cluster": config.cluster.hex()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kit.member_worker", directory, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=TESTS,
            text=True,
        )

    def ask(self, do: str, **more: Any) -> Any:
        """The answer to a command."""
        self.tell(do, **more)
        return self.answer()

    def tell(self, do: str, **more: Any) -> None:
        """A command whose answer is taken later."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do} | more) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """The next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the member's process has ended"
        return json.loads(line)

    def freeze(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            end.close()


class Working:
    """In the process."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def standing(self) -> dict[str, Any]:
        """How the host stands."""
        found = self._member.standings()[HOST]
        return {name: getattr(found, name) for name in ("state", "leader", "index", "durable_index", "problem")}

    def reopen(self) -> dict[str, Any]:
        """Opens the host again that has failed."""
        try:
            return {"was_open": self._member.reopen(HOST).was_open, "error": ""}
        except StoreError as error:
            return {"was_open": False, "error": str(error)}

    def transfer(self, to: int) -> None:
        """Hands over."""
        self._member.transfer(HOST, to)

    def publish(self, count: int, size: int) -> dict[str, Any]:
        """Publishes until an error, if one comes: the ids that were confirmed, and the error's class."""
        ids: list[int] = []
        try:
            store = self._member.store(HOST, within_s=60)
            for _ in range(count):
                ids.append(store.publish("orders", bytes(size)))  # noqa: PERF401 - what came before an error counts
        except StoreError as error:
            return {"ids": ids, "error": type(error).__name__, "text": str(error)}
        return {"ids": ids, "error": "", "text": ""}

    def publish_while_there_is_room(self, size: int) -> None:
        """Publishes, as a broker does, until an append would wait for the next segment, or the member leads no more."""
        with contextlib.suppress(NotLeader, OutcomeUnknown, StoreClosed):
            store = self._member.store(HOST, within_s=60)
            while store.room_percent == 100:
                store.publish("orders", bytes(size))

    def declare(self, first: int, count: int) -> dict[str, Any]:
        """Declares queues with long names until an error: how many there are of them, and the error's class."""
        store = self._member.store(HOST, within_s=60)
        error = text = ""
        try:
            for number in range(first, first + count):
                store.declare_queue(f"{number:06d}-{'q' * 200}")
        except StoreError as problem:
            error, text = type(problem).__name__, str(problem)
        return {"error": error, "text": text, "names": self.names()}

    def names(self) -> list[str]:
        """Of the queues."""
        return sorted(queue.name[:6] for queue in self._member.store(HOST, within_s=60).queues())

    def drain(self) -> dict[str, Any]:
        """Accepts each message, and says which."""
        ids = []
        queue = self._member.store(HOST, within_s=60).queue("orders")
        while deliveries := queue.acquire():
            for delivery in deliveries:
                delivery.accept()
                ids.append(delivery.id)
        return {"ids": ids}

    def catalog_lsn(self) -> int:
        """Up to where the catalog of a copy that follows has every change, as its file says."""
        copy = self._member._running.group(HOST).copy
        catalog = None if copy is None else copy._catalog
        return 0 if catalog is None else catalog.applied_lsn or 0

    def ids(self) -> list[int]:
        """Of the messages on the queue."""
        return [message.id for message in self._member.store(HOST, within_s=60).messages("orders")]


def main() -> None:
    """Works until its input ends."""
    given = json.loads(sys.argv[2])
    config = MemberConfig(**(given | {"cluster": bytes.fromhex(given["cluster"])}))
    with Member(Path(sys.argv[1]), config) as member:
        working = Working(member)
        for line in sys.stdin:
            command = json.loads(line)
            print(json.dumps(getattr(working, command.pop("do"))(**command)), flush=True)


if __name__ == "__main__":
    main()
