"""The distribution is called logstore-engine, because logstore on the package index is a different project."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import logstore
from kit.checkouts import checkout
from kit.patience import wait_until
from logstore.core.extras import MissingExtra, require

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("logstore", "docs", "tests", "tools", "benchmarks", "csrc", ".ci")
SUFFIXES = {".py", ".pyi", ".md", ".c", ".h", ".sh", ".html", ".txt", ".toml", ""}
# A requirement of the bare name, with extras or a version, or as an argument of pip.
STRANGER = (
    re.compile(r"(?<![\w/.-])logstore(\[[a-z,]+\]|==|>=|~=)"),
    re.compile(r"\bpip[\w.]*\s+(install|download|wheel)\b[^`\n]*?[\s'\"]logstore(?![\w/.*-])"),
)


def texts() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in SUFFIXES and path.name != ".git"]
    for place in PLACES:
        found += [path for path in (ROOT / place).rglob("*") if path.is_file() and path.suffix in SUFFIXES]
    return [path for path in found if path != Path(__file__)]


def test_no_text_would_install_the_strangers_package() -> None:
    found = texts()
    assert {"README.md", "pyproject.toml", "Makefile", "extras.py", "spark.md"} <= {path.name for path in found}
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in found
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if any(pattern.search(line) for pattern in STRANGER)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'logstore[arrow]'",
        "needs `logstore[report]`; without",
        "pip install --upgrade logstore",
        "with `pip install logstore` on the driver",
        "python -m pip install -U logstore",
        "logstore>=0.1",
    ],
)
def test_the_check_finds_every_way_to_name_the_strangers_package(line: str) -> None:
    assert any(pattern.search(line) for pattern in STRANGER)


def test_the_project_is_named_so_and_its_import_is_not() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "logstore-engine"
    assert project["scripts"] == {"logstore": "logstore.__main__:main"}


def test_a_missing_library_names_an_install_of_the_checkout() -> None:
    with pytest.raises(MissingExtra, match=re.escape("pip install '/path/to/checkout[arrow]'")):
        require("arrow", "no_such_library")


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (core,) = re.findall(r'#define VERSION "(.*)"', (ROOT / "csrc/store/bindings.c").read_text())
    assert project["version"] == logstore.__version__ == core
    assert f"\n## {core} " in (ROOT / "docs/CHANGELOG.md").read_text()


# ---- the page of the index


def description(readme: str, base: str | None) -> str:
    return runpy.run_path(str(ROOT / "setup.py"))["description"](readme, base)


README = """See [the API](docs/api.md#two), [pip](https://pip.pypa.io) and [part](#part).

![a plot](docs/img/a.svg)

End [x] (y).
"""


def test_without_a_public_place_relative_links_become_text_and_images_go() -> None:
    assert description(README, None) == "See the API, [pip](https://pip.pypa.io) and part.\n\nEnd [x] (y).\n"


def test_with_a_public_place_relative_links_become_absolute() -> None:
    assert description(README, "https://host.example/main/") == (
        "See [the API](https://host.example/main/docs/api.md#two), [pip](https://pip.pypa.io) and "
        "[part](https://host.example/main/README.md#part).\n\n"
        "[a plot](https://host.example/main/docs/img/a.svg)\n\nEnd [x] (y).\n"
    )


def test_the_readme_has_no_link_on_the_index_that_leads_nowhere() -> None:
    shown = description((ROOT / "README.md").read_text(), None)
    assert re.findall(r"\]\((?!https?:)", shown) == []
    assert "docs/img" not in shown


# ---- the stranger's package over ours


def wheel_of(name: str, version: str, files: dict[str, str], where: Path) -> Path:
    """A wheel with these files."""
    info = f"{name}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    made = where / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        lines = [
            f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
            for path, text in files.items()
        ]
        wheel.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,", ""]))
    return made


class Installed:
    """logstore-engine in a place of its own, with the modules of the checkout, as pip installs it."""

    def __init__(self, where: Path) -> None:
        self.prefix = where / "prefix"
        source = checkout(where / "checkout")
        command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "--no-index"]
        environment = os.environ | {"LOGSTORE_MODULES": "no"}
        subprocess.run([*command, "-w", where, source], env=environment, check=True)
        (self.wheel,) = where.glob("logstore_engine-*.whl")
        self.install(self.wheel)
        (self.site,) = self.prefix.glob("lib/python3*/site-packages")
        for module in (ROOT / "logstore").glob("*.so"):
            shutil.copy2(module, self.site / "logstore")

    def install(self, wheel: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--no-index", "--force-reinstall"]
        subprocess.run([*command, "--ignore-installed", "--prefix", self.prefix, wheel], check=True)

    def run(self, *command: str | Path) -> tuple[int, str, str]:
        """Runs Python without the .pth file that names the checkout."""
        libraries = sysconfig.get_path("platlib")
        environment = os.environ | {"PYTHONPATH": f"{self.site}{os.pathsep}{libraries}"}
        done = subprocess.run(
            [sys.executable, "-S", *command],
            cwd=self.prefix,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


def test_the_command_says_that_the_strangers_package_lies_over_ours(tmp_path: Path) -> None:
    installed = Installed(tmp_path)
    programs = ([installed.prefix / "bin" / "logstore"], ["-m", "logstore"])
    for program in programs:
        status, said, complaint = installed.run(*program, "--version")
        assert (status, complaint) == (0, "")
        assert said.startswith(f"logstore {logstore.__version__}, log format 1, core ")

    stranger = wheel_of(
        "logstore",
        "1.0.0",
        {"logstore/__init__.py": "from .logger import Logger\n", "logstore/logger.py": "class Logger: pass\n"},
        tmp_path,
    )
    installed.install(stranger)
    again = "install logstore-engine again with 'pip install --force-reinstall --no-deps' from where it came\n"
    for program in programs:
        said = (
            "logstore: the distribution logstore-1.0.0 is another project, and has overwritten logstore/__init__.py "
            f"of logstore-engine: run 'pip uninstall logstore', then {again}"
        )
        assert installed.run(*program, "info", "store") == (3, "", said)

    # What `pip uninstall logstore` does: it removes the files that the stranger's list names.
    for path in (
        *installed.site.glob("logstore-1.0.0.dist-info/*"),
        *map(installed.site.joinpath, ("logstore/__init__.py", "logstore/logger.py")),
    ):
        path.unlink()
    (installed.site / "logstore-1.0.0.dist-info").rmdir()
    for program in programs:
        expected = f"logstore: logstore/__init__.py of logstore-engine is missing: {again}"
        assert installed.run(*program, "info", "store") == (3, "", expected)


def test_the_strangers_package_below_ours_is_no_damage(tmp_path: Path) -> None:
    installed = Installed(tmp_path)
    installed.install(wheel_of("logstore", "1.0.0", {"logstore/__init__.py": "", "logstore/logger.py": ""}, tmp_path))
    installed.install(installed.wheel)
    for module in (ROOT / "logstore").glob("*.so"):
        shutil.copy2(module, installed.site / "logstore")
    assert installed.run("-m", "logstore", "--version")[0] == 0


# ---- the README begins with the installation


def test_the_readme_says_how_to_install_before_how_to_use() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert headings[0] == "Install"


def test_every_extra_that_the_readme_offers_exists() -> None:
    (offered,) = re.findall(r"The extras are optional:\n(.*)\.\n", (ROOT / "README.md").read_text())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"`(\w+)`", offered)) == set(extras) - {"bench", "coilmq", "demo", "lint", "test"}


def test_an_empty_store_takes_as_much_as_the_readme_says(tmp_path: Path) -> None:
    (said,) = re.findall(r"An empty\s+store takes (\d+) MiB", (ROOT / "README.md").read_text())

    def taken() -> int:
        return sum(path.stat().st_blocks * 512 for path in (tmp_path / "store").glob("*.seg")) >> 20

    with logstore.open(tmp_path / "store"):
        wait_until(lambda: taken() == int(said), f"{said} MiB of segments, which a thread makes,")
    assert taken() == int(said)
