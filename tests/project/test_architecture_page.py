"""docs/architecture.md names files that exist, and all those that handle a record type by its name."""

from __future__ import annotations

import re
from pathlib import Path

from kit.stores import ROOT
from logstore.codec.records import RecordType, Stream

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
SECTION = PAGE.split("\n### A record type\n", 1)[1].split("\n#", 1)[0]
NAMES = "|".join(kind.name for kind in RecordType if kind.stream is not Stream.HOUSEKEEPING) + "|QUEUE_DELETE"
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# In Python a name counts as a member of RecordType, or as a whole string, which is how rows name it.
PYTHON = re.compile(rf'RecordType\.(?:{NAMES})\b|"(?:{NAMES})"')
# They write records, which the section says of the whole folder.
WRITERS = "csrc/store/"


def named_files() -> set[str]:
    """The paths in the section; a name without a folder lies in that which its cell names before."""
    found = set()
    for row in re.findall(r"^\| .*", SECTION, re.MULTILINE):
        folder = ""
        for name in re.findall(r"`([\w./]+)`", row):
            if name.endswith("/"):
                folder = name
            elif "." in name:
                found.add(name if "/" in name else folder + name)
    return found


def handles_types(path: Path) -> bool:
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return PYTHON.search(text) is not None
    return re.search(rf"\b(?:{NAMES})\b", COMMENT.sub("", text)) is not None


def test_every_file_that_a_record_type_touches_exists() -> None:
    assert [name for name in sorted(named_files()) if not (ROOT / name).is_file()] == []


def test_every_source_that_handles_a_record_type_by_name_is_on_the_list() -> None:
    core = [path for suffix in ("c", "h", "def") for path in (ROOT / "csrc").rglob(f"*.{suffix}")]
    package = (ROOT / "logstore").rglob("*.py")
    sources = {path.relative_to(ROOT).as_posix(): path for path in (*core, *package)}
    handling = {
        name for name, path in sources.items() if not name.startswith(("csrc/tests/", WRITERS)) and handles_types(path)
    }
    assert len(handling) > 20
    assert handling - named_files() == set()
