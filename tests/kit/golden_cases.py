"""The command lines of the golden texts: for each command its help, its usual output, an empty store, and mistakes.

A case runs in a directory that contains its store as ``store``. The keys of ``CASES`` name the golden files.
"""

from __future__ import annotations

from dataclasses import dataclass

from kit.golden_stores import LONG_NAME, XID

SHORT_XID = "1:6f726465722d3137:646231"
RELOCATED = 528488  # the oldest message
TRANSACTION = 3210632  # in doubt
KINDS = ("help", "usual", "empty", "mistakes")  # each command has all
CLUSTER = (
    "add",
    "cert",
    "demo",
    "detach",
    "init",
    "join",
    "publish",
    "rebuild",
    "remove",
    "reopen",
    "run",
    "status",
    "transfer",
)
# Commands without a store that could be empty.
WITHOUT_STORE = ("help", "completion", "cluster", *(f"cluster-{name}" for name in CLUSTER))
BETWEEN_PROCESSES = (
    "cluster-add",
    "cluster-demo",
    "cluster-join",
    "cluster-publish",
    "cluster-rebuild",
    "cluster-remove",
    "cluster-reopen",
    "cluster-run",
    "cluster-transfer",
)  # they listen; tests/cluster has their usual output
OF_A_STORE = ("in-doubt", "user", "vhost")  # groups whose commands come after the directory
INIT = "cluster init m1 --name m1 --listen 127.0.0.1:7391 --member 7 --segment-size 512K"


@dataclass(frozen=True, slots=True)
class Case:
    """Command lines, which run one after the other in one directory."""

    commands: tuple[str, ...]
    """The arguments of ``logstore``, as a shell takes them."""
    store: str | None = "store"
    """The store in the archive; None if there is none in the directory."""
    beside: str | None = None
    """The process that uses the store meanwhile: a key of ``terminal_server.BESIDE``."""
    until: str | None = None
    """Ctrl-C is typed when the output contains this text."""
    measured: bool = False
    """Whether the numbers of the output differ in each run."""


def usual(*commands: str) -> Case:
    return Case(commands)


def empty(*commands: str) -> Case:
    return Case(commands, store="empty")


def full(*commands: str) -> Case:
    return Case(commands, store="full")


def damaged(*commands: str) -> Case:
    return Case(commands, store="damaged")


def crashed(*commands: str) -> Case:
    return Case(commands, store="crashed")


def opened(*commands: str) -> Case:
    """Commands that open the store themselves."""
    return Case(commands, store="young")


def locked(*commands: str) -> Case:
    """While another process has the store open."""
    return Case(commands, store="young", beside="open")


def held(*commands: str) -> Case:
    return Case(commands, beside="hold")


def served(*commands: str) -> Case:
    return Case(commands, store="young", beside="serve")


def mistakes(command: str, *more: str, rest: str = "") -> Case:
    """What is wrong with most commands: no directory, an absent one, one that is no store, an unknown flag."""
    lines = (command, f"{command} absent{rest}", f"{command} .{rest}", f"{command} store{rest} --wrong", *more)
    return Case(lines)


def one_command(name: str, **cases: Case) -> dict[str, Case]:
    """The cases of a command by the names of their files, with its help."""
    file = name.replace(" ", "-")
    group, _, verb = name.partition(" ")
    help_line = f"{group} store {verb} --help" if verb and group in OF_A_STORE else f"{name} --help"
    return {f"{file}.help": Case((help_line,), store=None)} | {f"{file}.{kind}": case for kind, case in cases.items()}


CASES: dict[str, Case] = {
    "logstore.help": Case(("--help",), store=None),
    "logstore.usual": Case(("--version",), store=None),
    "logstore.empty": Case(("",), store=None),
    "logstore.mistakes": Case(("inof store", "--wrong", "info --jsn store"), store=None),
    **one_command(
        "info",
        usual=usual("info store"),
        empty=empty("info store"),
        mistakes=mistakes("info", "info store more"),
        full=full("info store"),
        damaged=damaged("info store"),
        crashed=crashed("info store"),
        held=held("info store"),
        served=served("info store"),
        locked=locked("info store"),
    ),
    **one_command(
        "queues",
        usual=usual("queues store"),
        empty=empty("queues store"),
        mistakes=mistakes("queues"),
        damaged=damaged("queues store"),
        served=served("queues store"),
    ),
    **one_command(
        "stats",
        usual=usual("stats store"),
        empty=empty("stats store"),
        mistakes=mistakes("stats", "stats store --every 0"),
        full=full("stats store"),
        damaged=damaged("stats store"),
        served=served("stats store"),
        watched=Case(("stats store --watch --every 600",), until="rates"),
    ),
    **one_command(
        "connections",
        usual=served("connections store", "connections store --json"),
        empty=empty("connections store"),
        mistakes=mistakes("connections"),
        locked=locked("connections store"),
    ),
    **one_command(
        "peek",
        usual=usual("peek store orders -n 5", f"peek store {LONG_NAME} -n 2", "peek store orders.dead"),
        empty=empty("peek store orders"),
        mistakes=mistakes(
            "peek", "peek store", "peek store order", "peek store orders -n 0", "peek store orders --body 1X"
        ),
        damaged=damaged(f"peek store {LONG_NAME} -n 3"),
    ),
    **one_command(
        "tail",
        usual=usual("tail store", "tail store --limit 1"),
        empty=empty("tail store"),
        mistakes=mistakes("tail", "tail store --watch 0", "tail store --limit 5000"),
        full=full("tail store --limit 3"),
        damaged=damaged("tail store"),
        held=held("tail store"),
        served=served("tail store"),
        watched=Case(("tail store --watch 600",), until="each"),
    ),
    **one_command(
        "vhost",
        usual=Case(("vhost store", "vhost store add shop", "vhost store"), store="young"),
        empty=empty("vhost store"),
        mistakes=mistakes("vhost", "vhost store rename"),
    ),
    **one_command(
        "vhost list",
        usual=usual("vhost store list --json"),
        empty=empty("vhost store list"),
        mistakes=Case(("vhost absent list", "vhost store list --wrong")),
        served=served("vhost store list"),
    ),
    **one_command(
        "vhost add",
        usual=opened(
            "vhost store add --max-log-bytes 1G Größe/注文",
            "vhost store add shop --segment-size 512K --json",
            "backup store target",
        ),
        empty=empty("vhost store add shop"),
        mistakes=Case(
            (
                "vhost store add",
                "vhost store add /",
                "vhost store add ''",
                "vhost absent add shop",
                "vhost store add shop",
                "vhost store add shop",
                "vhost store add more --segment-size big",
            ),
            store="young",
        ),
        locked=locked("vhost store add shop"),
        served=served("vhost store add shop", "vhost store"),
    ),
    **one_command(
        "vhost remove",
        usual=opened("vhost store add shop", "vhost store remove shop", "vhost store"),
        empty=empty("vhost store remove shop"),
        mistakes=Case(("vhost store remove", "vhost store remove /", "vhost absent remove shop")),
        locked=locked("vhost store remove shop"),
        served=served("vhost store add shop", "vhost store remove shop"),
    ),
    **one_command(
        "vhost set",
        usual=opened(
            "vhost store add shop --segment-size 512K",
            "vhost store set shop --max-log-bytes 1G",
            "vhost store set / --max-log-bytes 2G --json",
            "vhost store set shop --max-log-bytes none",
        ),
        empty=empty("vhost store set / --max-log-bytes none"),
        mistakes=Case(
            (
                "vhost store set",
                "vhost store set shop",
                "vhost store set '' --max-log-bytes 1G",
                "vhost absent set shop --max-log-bytes 1G",
                "vhost store set shop --max-log-bytes 1G",
                "vhost store set / --max-log-bytes big",
                "vhost store set / --max-log-bytes 1K",
            ),
            store="young",
        ),
        full=full("vhost store set / --max-log-bytes none"),
        locked=locked("vhost store set / --max-log-bytes 1G"),
        served=served("vhost store set / --max-log-bytes 1G"),
    ),
    **one_command(
        "vhost reopen",
        usual=served("vhost store add shop", "vhost store reopen shop", "vhost store reopen shop --json"),
        empty=empty("vhost store reopen shop"),
        mistakes=Case(
            (
                "vhost store reopen",
                "vhost store reopen /",
                "vhost absent reopen shop",
                "vhost store add shop",
                "vhost store reopen shop",
            ),
            store="young",
        ),
        locked=locked("vhost store reopen shop"),
        served=served("vhost store reopen shop"),
    ),
    **one_command(
        "user",
        usual=usual("user store"),
        empty=empty("user store"),
        mistakes=mistakes("user", "user store rename"),
    ),
    **one_command(
        "user list",
        usual=usual("user store list", "user store list --json"),
        empty=empty("user store list"),
        mistakes=Case(("user absent list", "user store list --wrong")),
    ),
    **one_command(
        "user add",
        usual=Case(("user store add anna",), until="password of anna: "),
        empty=Case(("user store add anna",), store="empty", until="password of anna: "),
        mistakes=Case(("user store add", "user store add --password secret anna", "user store add --permit")),
    ),
    **one_command(
        "user password",
        usual=Case(("user store password guest",), until="password of guest: "),
        empty=Case(("user store password guest",), store="empty", until="password of guest: "),
        mistakes=Case(("user store password", "user store password guest secret")),
    ),
    **one_command(
        "user permit",
        usual=opened("vhost store add shop", "user store permit guest shop", "user store"),
        empty=empty("user store permit guest /"),
        mistakes=Case(
            ("user store permit guest", "user absent permit guest /", "user store permit guest shop"), store="young"
        ),
        served=served("user store permit anna /", "user store permit guest /"),
    ),
    **one_command(
        "user forbid",
        usual=opened("user store forbid guest /", "user store"),
        empty=empty("user store forbid guest /"),
        mistakes=Case(("user store forbid guest", "user absent forbid guest /", "user store forbid anna /"), "young"),
    ),
    **one_command(
        "user remove",
        usual=opened("user store remove guest", "user store"),
        empty=empty("user store remove guest"),
        mistakes=Case(("user store remove", "user absent remove guest", "user store remove anna"), "young"),
    ),
    **one_command(
        "dump",
        usual=usual(
            "dump store --from 3000000",
            "dump store --queue orders --bodies --from 4700000",
            "dump store --type message_start --limit 1 --json",
        ),
        empty=empty("dump store"),
        mistakes=mistakes("dump", "dump store --from x", "dump store --type MESSAGE", "dump store --queue order"),
        damaged=damaged("dump store --limit 3 --from 2746880"),
    ),
    **one_command(
        "chain",
        usual=usual(f"chain store {RELOCATED}", f"chain store {TRANSACTION}"),
        empty=empty("chain store 4096"),
        mistakes=mistakes("chain", "chain store", "chain store x", rest=f" {RELOCATED}"),
        damaged=damaged(f"chain store {RELOCATED}", "chain store 528696"),
    ),
    **one_command(
        "verify",
        usual=usual("verify store"),
        empty=empty("verify store"),
        mistakes=mistakes("verify", "verify store --rate fast"),
        damaged=damaged("verify store"),
        crashed=crashed("verify store"),
        locked=locked("verify store"),
    ),
    **one_command(
        "backup",
        usual=usual("backup store target", "info target"),
        empty=empty("backup store target"),
        mistakes=mistakes(
            "backup", "backup store", "backup store store", "backup store t --rate 0", "backup store t --hold-limit 5X"
        ),
        damaged=damaged("backup store target"),
    ),
    **one_command(
        "export",
        usual=usual(
            "export store target --dry-run", "export store target", "export store target", "export --verify target"
        ),
        empty=empty("export store target"),
        mistakes=mistakes(
            "export",
            "export store",
            "export store t --allow-gap --require-complete",
            "export store t --require-complete",
            "export store t --compression zip",
            "export --verify absent",
            rest=" t",
        ),
        damaged=damaged("export store target"),
    ),
    **one_command(
        "holds",
        usual=held("holds store"),
        empty=empty("holds store"),
        mistakes=mistakes("holds"),
    ),
    **one_command(
        "report",
        usual=usual("report store", "report store -o page.html --queue orders"),
        empty=empty("report store"),
        mistakes=mistakes(
            "report",
            "report store --queue order",
            "report store --from never",
            "report store --from 2026-03 --to 2025-01",
        ),
        damaged=damaged("report store"),
    ),
    **one_command(
        "sql",
        usual=usual(
            "sql store 'SELECT type, count(*) AS records FROM records GROUP BY type ORDER BY type'",
            "sql store 'SELECT queue, count(*) AS messages FROM open GROUP BY queue ORDER BY queue' --csv",
            "sql store 'SELECT max(queue_id) AS newest FROM records' --json",
        ),
        empty=empty("sql store 'FROM transactions'"),
        mistakes=mistakes(
            "sql",
            "sql store 'SELECT'",
            "sql store 'SELECT nothing FROM records'",
            "sql store 'FROM open' --csv --json",
            rest=" 'FROM open'",
        ),
        damaged=damaged("sql store 'SELECT count(*) FROM records'"),
    ),
    **one_command(
        "in-doubt",
        usual=usual("in-doubt store"),
        empty=empty("in-doubt store"),
        mistakes=mistakes("in-doubt", "in-doubt store decide"),
    ),
    **one_command(
        "in-doubt list",
        usual=usual("in-doubt store list"),
        empty=empty("in-doubt store list"),
        mistakes=Case(("in-doubt absent list", "in-doubt store list --wrong")),
        damaged=damaged("in-doubt store list"),
    ),
    **one_command(
        "in-doubt commit",
        usual=opened(f"in-doubt store commit {XID} --dry-run", f"in-doubt store commit {XID}", "in-doubt store list"),
        empty=empty(f"in-doubt store commit {SHORT_XID}"),
        mistakes=Case(
            (
                "in-doubt store commit",
                "in-doubt store commit order-17",
                "in-doubt store commit 1:00: --dry-run",
                "in-doubt store commit 1:00:",
                f"in-doubt absent commit {SHORT_XID}",
            )
        ),
        locked=locked(f"in-doubt store commit {SHORT_XID}", f"in-doubt store commit {SHORT_XID} --dry-run"),
        served=served(f"in-doubt store commit {SHORT_XID}"),
    ),
    **one_command(
        "in-doubt rollback",
        usual=opened(f"in-doubt store rollback {XID} --dry-run", f"in-doubt store rollback {XID}"),
        empty=empty(f"in-doubt store rollback {SHORT_XID}"),
        mistakes=Case(("in-doubt store rollback", "in-doubt store rollback 1:00:", "in-doubt store rollback x")),
        locked=locked(f"in-doubt store rollback {SHORT_XID}"),
    ),
    **one_command(
        "purge",
        usual=opened("purge store orders --dry-run", "purge store orders", f"purge store {LONG_NAME}"),
        empty=empty("purge store orders"),
        mistakes=mistakes("purge", "purge store", "purge store order", "purge store order --dry-run", rest=" orders"),
        damaged=damaged("purge store orders"),
        locked=locked("purge store orders", "purge store orders --dry-run"),
        served=served("purge store orders --dry-run", "purge store orders", "purge store order"),
    ),
    **one_command(
        "compact",
        usual=opened("compact store --dry-run", "compact store"),
        shrinks=Case(("compact store --dry-run", "compact store"), measured=True),
        empty=empty("compact store"),
        mistakes=mistakes("compact"),
        full=full("compact store --dry-run", "compact store"),
        damaged=damaged("compact store"),
        locked=locked("compact store"),
        served=served("compact store"),
    ),
    **one_command(
        "checkpoint",
        usual=opened("checkpoint store --dry-run", "checkpoint store", "checkpoint store"),
        empty=empty("checkpoint store"),
        mistakes=mistakes("checkpoint"),
        damaged=damaged("checkpoint store"),
        locked=locked("checkpoint store"),
        served=served("checkpoint store"),
    ),
    **one_command(
        "recover",
        usual=crashed("recover store --dry-run", "recover store", "recover store"),
        empty=empty("recover store"),
        mistakes=mistakes("recover"),
        closed=opened("recover store"),
        damaged=damaged("recover store --dry-run", "recover store"),
        locked=locked("recover store", "recover store --dry-run"),
    ),
    **one_command(
        "salvage",
        usual=damaged("salvage store --dry-run", "salvage store target", "verify target"),
        empty=empty("salvage store target"),
        mistakes=mistakes("salvage", "salvage store", "salvage store store", rest=" target"),
        undamaged=usual("salvage store target"),
        locked=locked("salvage store target"),
    ),
    **one_command(
        "repair-catalog",
        usual=opened("repair-catalog store --dry-run", "repair-catalog store"),
        empty=empty("repair-catalog store"),
        mistakes=mistakes("repair-catalog"),
        locked=locked("repair-catalog store"),
    ),
    **one_command(
        "serve",
        usual=Case(("serve store --port 0",), store="young", until="\nlistening on"),
        empty=Case(("serve new --port 0 --segment-size 512K",), store=None, until="\nlistening on"),
        mistakes=Case(
            (
                "serve",
                "serve store --wrong",
                "serve store --port 70000",
                "serve store --max-log-bytes 1M",
                "serve store --max-log-bytes much",
                "serve store --durability none",
            )
        ),
        damaged=damaged("serve store --port 0"),
        locked=locked("serve store --port 0"),
    ),
    **one_command(
        "help",
        usual=Case(
            ("help", "help peek", *(f"help {topic}" for topic in ("exit-status", "sizes", "permissions", "full"))),
            store=None,
        ),
        more=Case(tuple(f"help {topic}" for topic in ("growth", "damage", "locked")), store=None),
        mistakes=Case(("help wrong", "help peek --wrong"), store=None),
    ),
    **one_command(
        "completion",
        usual=Case(("completion bash", "completion fish"), store=None),
        mistakes=Case(("completion", "completion ksh"), store=None),
    ),
    **one_command(
        "bench",
        usual=Case(("bench new --messages 200 --segment-size 512K",), store=None, measured=True),
        empty=Case(("bench store --messages 200",), store="empty", measured=True),
        mistakes=Case(
            ("bench", "bench store", "bench store --wrong", "bench new --profile quick", "bench new --survivors 2")
        ),
        locked=locked("bench store --existing"),
    ),
    **one_command(
        "cluster",
        usual=Case((INIT, "cluster status --dir m1"), store=None),
        mistakes=Case(("cluster", "cluster explode", "cluster --wrong"), store=None),
    ),
    **one_command(
        "cluster init",
        usual=Case((INIT, INIT), store=None),
        mistakes=Case(
            (
                "cluster init",
                "cluster init m1 --name m1",
                "cluster init m1 --name M1 --listen 127.0.0.1:7391",
                "cluster init m1 --name m1 --listen 127.0.0.1",
                "cluster init m1 --name m1 --listen 10.0.0.1:7391",
                "cluster init m1 --name m1 --listen 127.0.0.1:7391 --store absent",
                "cluster init store --name m1 --listen 127.0.0.1:7391",
            )
        ),
        moved=opened(f"{INIT} --store store", "cluster status --dir m1"),
        locked=locked(f"{INIT} --store store"),
        damaged=damaged(f"{INIT} --store store"),
    ),
    **one_command("cluster add", mistakes=Case((INIT, "cluster add", "cluster add orders --dir m1"), store=None)),
    **one_command(
        "cluster cert",
        usual=Case(("cluster cert certs m1 127.0.0.1", "cluster cert certs m2 m2.example"), store=None),
        mistakes=Case(("cluster cert", "cluster cert certs", "cluster cert certs M1"), store=None),
    ),
    **one_command("cluster join", mistakes=Case(("cluster join", "cluster join 127.0.0.1 --name m1"), store=None)),
    **one_command("cluster demo", mistakes=Case(("cluster demo --members 9", "cluster demo m1"), store=None)),
    **one_command("cluster publish", mistakes=Case((INIT, "cluster publish main orders x --dir m1"), store=None)),
    **one_command(
        "cluster rebuild",
        mistakes=Case((INIT, "cluster rebuild", "cluster rebuild main --dir absent"), store=None),
    ),
    **one_command(
        "cluster reopen",
        mistakes=Case((INIT, "cluster reopen", "cluster reopen main --dir m1"), store=None),
    ),
    **one_command("cluster remove", mistakes=Case((INIT, "cluster remove main m2 --dir m1"), store=None)),
    **one_command(
        "cluster run",
        mistakes=Case(
            (
                "cluster run m1",
                "cluster run --dir absent",
                "cluster run --stop-timeout 0",
                "cluster run --max-memory 1M",
                "cluster run --max-body-bytes 0",
                INIT,
                "cluster run --dir m1 --max-memory 64M --blocked-timeout 5",
            ),
            store=None,
        ),
    ),
    **one_command(
        "cluster status",
        usual=Case((INIT, "cluster status --dir m1"), store=None),
        mistakes=Case(("cluster status", "cluster status --dir absent", "cluster status --wrong"), store=None),
    ),
    **one_command(
        "cluster transfer",
        mistakes=Case(
            (INIT, "cluster transfer", "cluster transfer main", "cluster transfer main m2 --dir m1"), store=None
        ),
    ),
    **one_command(
        "cluster detach",
        usual=Case((INIT, "cluster detach main --dir m1", "cluster status --dir m1"), store=None),
        mistakes=Case((INIT, "cluster detach", "cluster detach main", "cluster detach other --dir m1"), store=None),
    ),
}
