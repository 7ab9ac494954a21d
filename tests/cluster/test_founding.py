"""``cluster init``: a member with its first host, whatever interrupts it, and what it refuses without a change."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logstore
from kit.command import fails, fine, run, told
from kit.copy_group import Group
from kit.killed import killed
from kit.patience import wait_until
from kit.stores import SMALL_SEGMENT, contents, segment_files
from kit.torture import stride
from logstore.cluster import config
from logstore.cluster.directory import read_vote
from logstore.cluster.member import Member

if TYPE_CHECKING:
    from types import FrameType

LISTEN = "127.0.0.1:7391"
SOURCES = ("logstore/cluster/", "logstore/store/opening.py", "logstore/store/message_store.py")


def init(directory: Path, *more: object, name: str = "m1", listen: str = LISTEN) -> tuple[object, ...]:
    return ("cluster", "init", directory, "--name", name, "--listen", listen, "--segment-size", SMALL_SEGMENT, *more)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    path = tmp_path / "single"
    with logstore.open(path, segment_size=SMALL_SEGMENT) as store:
        queue = store.declare_queue("orders")
        for number in range(40):
            store.publish(queue, content=bytes([number]) * 30_000)
    return path


def messages(directory: Path) -> list[bytes]:
    """Those of the queue "orders", of a member that is started for this."""
    file = config.read(directory)
    with Member(directory, file.config(directory)) as member:
        store = member.store("main", within_s=30)
        return contents(store.queue("orders"))


def other_root(path: Path) -> Path:
    """A directory on another file system than the path."""
    for root in (Path("/dev/shm"), Path("/var/tmp")):
        if os.access(root, os.W_OK) and root.stat().st_dev != path.stat().st_dev:
            return root
    pytest.skip("there is no second file system")


def everything(place: Path) -> dict[str, Any]:
    """Each file's content and identity."""
    return {
        str(path.relative_to(place)): (path.stat().st_ino, path.read_bytes() if path.is_file() else None)
        for path in sorted(place.rglob("*"))
    }


def test_a_new_member_has_an_empty_host_that_it_leads_alone(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "m1"
    said = fine(*init(directory))
    assert said.endswith(f"start it with: logstore cluster run --dir {directory}\n")
    file = config.read(directory)
    assert 1 <= file.member <= 1 << 52
    vote = read_vote(directory / "main")
    assert vote is not None
    assert (vote.member_id, vote.cluster_uuid.bytes, vote.copy) == (file.member, file.cluster, 1)
    with Member(directory, file.config(directory)) as member:
        store = member.store("main", within_s=30)
        store.publish(store.declare_queue("orders"), content=b"first")
        standing = member.standings()["main"]
        assert (standing.state, standing.leader) == ("leads", file.member)
    assert messages(directory) == [b"first"]


def test_two_members_never_get_one_id_or_one_cluster(tmp_path: Path) -> None:
    found = []
    for number in range(2):
        fine(*init(tmp_path / f"m{number}"))
        found.append(config.read(tmp_path / f"m{number}"))
    assert found[0].member != found[1].member
    assert found[0].cluster != found[1].cluster


def test_an_id_may_be_given(tmp_path: Path) -> None:
    fine(*init(tmp_path / "m1", "--member", 7, "--host", "orders"))
    assert config.read(tmp_path / "m1").member == 7
    assert (tmp_path / "m1" / "orders" / "VOTE").exists()
    assert "a number from 1 to" in fails(run(*init(tmp_path / "m2", "--member", 1 << 53)), 2)


def test_a_store_is_moved_and_no_byte_of_it_is_rewritten(tmp_path: Path, single: Path) -> None:
    log = logstore.inspect.Reader(single)
    end_lsn = log.info.end_lsn
    log.close()
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in segment_files(single)}
    fine(*init(tmp_path / "m1", "--store", single))
    assert not single.exists()
    copy = tmp_path / "m1" / "main" / "copy-1"
    for name, (inode, content) in before.items():
        path = copy / name
        used = min(end_lsn - int(name[:16], 16), len(content))
        if used <= 0:
            continue  # a spare
        assert path.stat().st_ino == inode
        assert path.read_bytes()[:used] == content[:used]
    assert messages(tmp_path / "m1") == [bytes([number]) * 30_000 for number in range(40)]


def test_a_store_that_crashed_is_taken_with_all_that_its_recovery_finds(tmp_path: Path) -> None:
    path = tmp_path / "crashed"

    def work() -> None:
        store = logstore.open(path, segment_size=SMALL_SEGMENT)
        store.publish(store.declare_queue("orders"), content=b"kept")
        os.kill(os.getpid(), signal.SIGKILL)

    assert killed(work)
    fine(*init(tmp_path / "m1", "--store", path))
    assert messages(tmp_path / "m1") == [b"kept"]


def test_a_store_that_is_open_is_refused_and_nothing_changes(tmp_path: Path, single: Path) -> None:
    with logstore.open(single):
        before = everything(tmp_path)
        assert f"the store {single} is open in this process already" in fails(
            run(*init(tmp_path / "m1", "--store", single)), 3
        )
        assert everything(tmp_path) == before


def test_a_damaged_store_is_refused_and_nothing_changes(tmp_path: Path, single: Path) -> None:
    segment = segment_files(single)[0]
    raw = bytearray(segment.read_bytes())
    raw[100_000] ^= 1
    segment.write_bytes(raw)
    before = everything(tmp_path)
    fails(run(*init(tmp_path / "m1", "--store", single)), 3)
    assert everything(tmp_path) == before


def test_a_store_whose_catalog_is_elsewhere_is_refused_and_nothing_changes(tmp_path: Path, single: Path) -> None:
    (single / "catalog.sqlite").unlink()
    before = everything(tmp_path)
    assert "catalog" in fails(run(*init(tmp_path / "m1", "--store", single)), 3)
    assert everything(tmp_path) == before


def test_a_copy_of_a_replicated_store_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    group = Group(tmp_path, 1)
    group.lead(0)
    group.close()
    before = everything(tmp_path)
    said = fails(run(*init(tmp_path / "m1", "--store", group.stores[0])), 3)
    assert "is a copy of a replicated one" in said
    assert everything(tmp_path) == before


def test_an_absent_store_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    assert "there is no store" in fails(run(*init(tmp_path / "m1", "--store", tmp_path / "none")), 3)
    assert list(tmp_path.iterdir()) == []


def test_a_store_on_another_file_system_is_to_be_moved_first(tmp_path: Path, single: Path) -> None:
    with tempfile.TemporaryDirectory(dir=other_root(single)) as other:
        said = fails(run(*init(Path(other) / "m1", "--store", single)), 2)
        assert "is on another file system" in said
        assert "move it to that file system first" in said
        assert os.listdir(other) == []
    assert (single / "META").exists()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--host", "../up"), "a host's name has letters"),
        (("--host", "cluster.toml"), "a host's name has letters"),
        (("--ca", "absent.pem"), "cert: it is missing"),
        (("--ca", "absent.pem", "--cert", "absent.pem", "--key", "absent.pem"), "absent.pem cannot be used"),
        (("--advertise", "10.0.0.1:1"), "advertise: connections to 10.0.0.1:1 need TLS"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_made(tmp_path: Path, more: tuple[str, ...], text: str) -> None:
    assert text in fails(run(*init(tmp_path / "m1", *more)), 2)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m1").mkdir()
    (tmp_path / "m1" / "notes").write_text("mine")
    assert "is not empty (it holds 'notes')" in fails(run(*init(tmp_path / "m1")), 2)


def test_the_same_command_once_more_changes_nothing_and_says_so(tmp_path: Path) -> None:
    fine(*init(tmp_path / "m1"))
    before = (tmp_path / "m1" / config.FILE_NAME).read_bytes()
    assert "nothing was left to do" in fine(*init(tmp_path / "m1"))
    assert (tmp_path / "m1" / config.FILE_NAME).read_bytes() == before


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"name": "m2"}, "says name = 'm1', and not 'm2'"),
        ({"listen": "127.0.0.1:1"}, "says listen = "),
    ],
)
def test_another_command_in_a_members_directory_is_refused(tmp_path: Path, more: dict[str, str], text: str) -> None:
    fine(*init(tmp_path / "m1"))
    assert text in fails(run(*init(tmp_path / "m1", **more)), 2)
    assert "with the host main" in fails(run(*init(tmp_path / "m1", "--host", "other")), 2)


def test_a_running_member_keeps_the_command_out(tmp_path: Path) -> None:
    fine(*init(tmp_path / "m1"))
    file = config.read(tmp_path / "m1")
    with Member(tmp_path / "m1", file.config(tmp_path / "m1")) as member:
        wait_until(lambda: member.standings()["main"].state == "leads", "it leads")
        fails(run(*init(tmp_path / "m1")), 3)


def killed_at_call(number: int, arguments: tuple[object, ...]) -> bool:
    """Whether the command was killed: before its call of this number to the system or to the core."""

    def work() -> None:
        left = number

        def profile(frame: FrameType, event: str, called: Any) -> None:
            nonlocal left
            if event != "c_call" or not any(source in frame.f_code.co_filename for source in SOURCES):
                return
            if called.__module__ == "posix" or called.__name__.startswith("ls_"):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(profile)
        result = run(*arguments)
        sys.setprofile(None)
        assert result.returncode == 0, result.stderr

    return killed(work)


@pytest.mark.parametrize("with_store", [False, True], ids=["new", "moved"])
def test_the_same_command_goes_on_after_a_kill_before_any_call(tmp_path: Path, with_store: bool) -> None:
    fine(*init(tmp_path / "warm"))  # what is imported late is imported now, and not by every child
    content = [b"one", b"two"] if with_store else []
    number, was_killed = 0, True
    while was_killed:
        number += stride(3)
        place = tmp_path / str(number)
        place.mkdir()
        more: tuple[object, ...] = ()
        if with_store:
            with logstore.open(place / "single", segment_size=SMALL_SEGMENT) as store:
                queue = store.declare_queue("orders")
                for one in content:
                    store.publish(queue, content=one)
            more = ("--store", place / "single")
        arguments = init(place / "m1", *more)
        was_killed = killed_at_call(number, arguments)
        early = config.read(place / "m1") if (place / "m1" / config.FILE_NAME).exists() else None
        fine(*arguments)
        assert early in (None, config.read(place / "m1"))
        if with_store:
            assert messages(place / "m1") == content
        status = told("cluster", "status", "--dir", place / "m1")
        assert (status["running"], status["hosts"][0]["problem"]) == (False, None)
        assert status["hosts"][0]["index"] >= 1
    assert number > 30  # or else the calls are not seen
