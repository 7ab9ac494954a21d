"""The topics of ``logstore help``: what docs/operations.md says at length, for a machine without the page.

Lines have at most 80 columns.
"""

from __future__ import annotations

from typing import Final

TOPICS: Final[dict[str, str]] = {
    "exit-status": """
Exit status of every command

  0  fine
  1  problems were found, the object that was named does not exist, or the
     command could not do its work (a port in use, say)
  2  misuse: an unknown option, or an invalid value
  3  the store cannot be opened or read: no store, open in another process,
     damaged, of a newer version, or with a catalog that does not belong to it

With every status but 0, one line on stderr says why. Ctrl-C ends a command with
130, a closed pipe (| head) with 141, both without a message.
""",
    "sizes": """
Sizes

An option takes bytes (65536), powers of 1024 (64K, 64KiB, 16MiB, 1G) or powers
of 1000 (64kB, 16MB).

  a segment        16 MiB, unless the store was made with --segment-size
                   (512 KiB to 1 GiB); it cannot be changed later
  a new store      two segments and two spares, 64 MiB
  the log          at most about max(4 segments, 2 x live bytes) + 1 segment,
                   and spares
  --max-log-bytes  includes spares, at least 6 segments; it is stored, and
                   'logstore serve DIR --max-log-bytes none' removes it
  a hold           keeps at most 1 GiB for at most an hour, unless its command
                   says otherwise

'logstore info DIR' shows the sizes of a store, 'logstore tail DIR' what keeps
its log large.
""",
    "permissions": """
Permissions

The store directory is 0700, its files are 0600. Run the broker as a user of its
own, and run commands as that user.

  reading commands   need to read every file of DIR; they write nothing there
                     but the file of a hold
  an open            needs to write the directory, LOCK, holds, the last segment
                     and the catalog; 'logstore info DIR' says if an open would
                     be refused
  control.sock       only the broker's user and root may use it
  --connect URL      every user can read command lines: put a URL with a
                     password into LOGSTORE_CONNECT
""",
    "full": """
A full store

'logstore info DIR' begins with FULL, the reason, and what would free it.
A broker's publishers wait, before that too (NEARLY FULL), and are refused when
they have waited; consumers, outcomes and restarts go on, and nothing has to be
deleted by hand.

  the limit of the log   consume, or 'logstore purge DIR QUEUE'; or raise it:
                         'logstore serve DIR --max-log-bytes SIZE'
  the disk               make room on the disk
  a hold                 'logstore holds DIR' names its process: wait, or end it
""",
    "growth": """
A log that grows

  logstore tail DIR               what holds the base, and what would free it
  logstore queues DIR             depth and bytes of each queue
  logstore in-doubt DIR           prepared transactions keep their messages
  logstore holds DIR              backups and exports that keep segments
  logstore compact DIR --dry-run  how much compaction would free now

Consume or purge the queue, decide the transaction, end the hold, or run
'logstore compact DIR'.
""",
    "damage": """
A damaged store

An open that finds damage refuses, and changes nothing. Nothing repairs a log in
place.

  1. Stop the broker. Keep DIR as it is.
  2. 'logstore verify DIR' shows the extent, 'logstore salvage DIR --dry-run'
     what would be lost.
  3. Restore a backup, or 'logstore salvage DIR NEW --report lost.json'.
  4. 'logstore verify NEW', then start the broker on NEW.

A torn tail after a crash is no damage: it was never acknowledged. For a catalog
that contradicts itself or its log: 'logstore repair-catalog DIR --dry-run'.
For an I/O error of the disk, copy what is readable to another disk first.
""",
    "locked": """
A store that is open in another process

A store has one writer. The error names its process; 'fuser DIR/LOCK' finds it
if the error cannot, for example in another container.

  reading commands            work all the same
  purge, in-doubt, compact,   go through the broker that has the store open
  checkpoint
  recover, salvage,           need a closed store: stop the broker first
  repair-catalog

Never remove LOCK. control.sock of a killed broker is replaced by the next one.
""",
}
