"""A report's page taken apart: its tiles, and its tables by section; and whether both say the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}
NUMBER_GAP = "\u202f"


@dataclass
class Table:
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    scrolls: bool = False
    """It stands in a box of its own that scrolls."""
    in_details: bool = False

    def column(self, name: str) -> list[str]:
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def row(self, name: str) -> dict[str, str]:
        """The row whose first cell is this."""
        (found,) = [row for row in self.rows if row[0] == name]
        return dict(zip(self.columns, found, strict=True))


class ReportPage(HTMLParser):
    """The tiles by name (value, what is below it), and the tables and texts of each section by its id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tiles: dict[str, tuple[str, str]] = {}
        self.tables: dict[str, list[Table]] = {}
        self.texts: dict[str, list[str]] = {"": []}
        self._open: list[tuple[str, str]] = []
        self._section = ""
        self._tile: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in VOID:
            self._open.append((tag, given.get("class") or ""))
        if tag == "section":
            self._section = given["id"] or ""
            self.tables[self._section], self.texts[self._section] = [], []
        elif tag == "table":
            inside = ("details", "") in self._open
            self.tables[self._section].append(Table(scrolls=self._open[-2] == ("div", "scroll"), in_details=inside))
        elif tag == "tr" and self._inside("tbody"):
            self._table.rows.append([])
        elif tag == "td":
            self._table.rows[-1].append("")
        elif tag == "th":
            self._table.columns.append("")
        elif tag == "p":
            self.texts[self._section].append("")

    def handle_endtag(self, tag: str) -> None:
        opened, kind = self._open.pop()
        assert opened == tag
        if kind.split(" ")[0] == "tile":
            name, value, more = self._tile
            self.tiles[name], self._tile = (value, more), []

    def handle_data(self, data: str) -> None:
        if len(self._open) > 1 and self._open[-2][1].split(" ")[0] == "tile":
            self._tile.append(data)
        elif self._inside("td"):
            self._table.rows[-1][-1] += data
        elif self._inside("th"):
            self._table.columns[-1] += data
        elif self._inside("p"):
            self.texts[self._section][-1] += data

    def _inside(self, tag: str) -> bool:
        return any(opened == tag for opened, _ in self._open)

    @property
    def _table(self) -> Table:
        return self.tables[self._section][-1]

    def shown(self, section: str, first_column: str) -> Table:
        """The table of a section whose first column has this name, without those in its details."""
        (found,) = [one for one in self.tables[section] if one.columns[0] == first_column and not one.in_details]
        return found


def number(text: str) -> int:
    return int(text.replace(NUMBER_GAP, ""))


def check_tiles(text: str) -> ReportPage:
    """Check each tile of a page with at least one message against the tables and texts below it."""
    page = ReportPage(text)
    tiles = dict(page.tiles)

    def tile(name: str) -> tuple[str, str]:
        return tiles.pop(name)

    value, more = tile("Messages started")
    flow, written = page.shown("throughput", "what"), page.shown("written", "what")
    (started,) = [row for row in flow.rows if row[0].startswith("messages started")]
    assert value == started[1]
    assert more.startswith(f"{written.row('content bytes')['size']} of content")
    assert more.endswith("all queues") == started[0].endswith("all queues")

    value, more = tile("Messages ended")
    endings = [one for one in page.tables["throughput"] if one.columns[0] == "how messages ended"]
    rows = dict(endings[0].rows) if endings else {"all": "0"}
    assert value == rows.pop("all")
    assert more == (", ".join(f"{count} {name}" for name, count in rows.items()) or "none yet")
    assert number(value) == sum(map(number, rows.values()))

    depth = page.shown("depth", "queue")
    others = [row for row in depth.rows if row[0].endswith("others together")]
    value, _ = tile("Waiting")
    assert number(value) == sum(map(number, depth.column("at the end")))
    value, _ = tile("Queues")
    assert number(value) == len(depth.rows) + sum(number(row[0].split(" ")[0]) - 1 for row in others)

    _check_oldest(page, *tile("Oldest live message"))

    value, _ = tile("In doubt")
    assert number(value) == sum(len(one.rows) for one in page.tables["in-doubt"]) < 100

    exported = tiles.pop("Exported files", None)
    size, more = exported or tile("Log")
    assert more.split(" records")[0] == written.row("records")["number"]
    if exported is None:
        assert any(f"{size} on disk" in one for one in page.texts["tail"])

    value, _ = tile("Written per byte")
    (cost,) = page.tables["bytes"]
    assert value == cost.row("all")["written per byte"]

    assert tiles == {}, "a tile that no table is compared with"
    return page


def _check_oldest(page: ReportPage, value: str, more: str) -> None:
    """The oldest message of the tile is the oldest of both tables, with the same age; a message has one age."""
    rows: dict[str, set[str]] = {}
    for one in page.tables["tail"]:
        if "age" not in one.columns:
            continue
        for row in one.rows:
            cells = dict(zip(one.columns, row, strict=True))
            kind, _, message = row[0].rpartition(" ") if "id" not in cells else ("message", "", cells["id"])
            if kind == "message":
                rows.setdefault(message, set()).add(cells["age"])
    assert all(len(ages_of_one) == 1 for ages_of_one in rows.values()), "one message, two ages"
    known = [age.removesuffix(" or more") for (age,) in rows.values() if age != "–"]
    if not known:
        assert value == "–"
        return
    assert value.removeprefix("≥ ") in known
    # What holds the tail is always of all queues.
    of_all = not any(text.startswith("only of ") for text in page.texts[""])
    assert not of_all or value.removeprefix("≥ ") == max(known, key=_seconds)
    assert value.startswith("≥ ") == more.endswith(" or longer")


def _seconds(age: str) -> float:
    size, unit = age.split(" ")
    return float(size) * {"d": 86_400, "h": 3600, "min": 60, "s": 1, "ms": 1e-3, "µs": 1e-6}[unit]
