# pyproject.toml has everything but the C extensions, the long description, and how wheels are linked.
import os
import re
import runpy
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

BUILDER = "logstore/_build_core.py"  # run, not imported: an import would import the package, which is not built yet
CONSENSUS = "logstore/_build_consensus.py"
CONNECTOR = "logstore/_build_jvm.py"
ROOT = Path(__file__).resolve().parent

IMAGE = re.compile(r"!\[([^]]*)\]\((?!\w+:)([^)\s]+)\)\n*")
LINK = re.compile(r"\[([^]]*)\]\((?!\w+:)([^)\s]+)\)")


class BuildModules(build_ext):
    """Leaves symbols out of modules for a wheel. They are most of its size; modules in a checkout keep them."""

    def run(self):
        self.is_stripped = not (self.inplace or self.editable_mode or os.environ.get("LOGSTORE_SANITIZE"))
        self.force = self.force or self.is_stripped  # build/ may hold modules that a checkout's build left there
        self.consensus = runpy.run_path(CONSENSUS)
        self.libraft = self.consensus["prepare"](ROOT / self.consensus["UNPACKED"])
        if self.libraft is None:
            self.extensions = [each for each in self.extensions if each.name != "logstore._consensus"]
        super().run()
        if self.is_stripped and os.environ.get("LOGSTORE_CONNECTOR") != "no":
            self.build_connector()

    def get_source_files(self):
        """A source distribution has the sources of the JVM connector as well."""
        return [*super().get_source_files(), *runpy.run_path(CONNECTOR)["source_files"]()]

    def build_connector(self):
        """The JVM connector for Spark, if a JDK and Spark's jars are here; a wheel without it is complete."""
        connector = runpy.run_path(CONNECTOR)
        connector["make"](Path(self.build_lib).absolute() / connector["IN_PACKAGE"])

    def build_extension(self, extension):
        if extension.name == "logstore._consensus":
            self.add_libraft(extension)
        if self.is_stripped:
            extension.extra_compile_args = [*extension.extra_compile_args, "-g0"]
            extension.extra_link_args = [*extension.extra_link_args, "-Wl,-s"]
        super().build_extension(extension)

    def add_libraft(self, extension):
        """Compiles libraft with flags of its own, and adds its licence to a wheel."""
        flags = [*self.consensus["COMPILE_FLAGS"], *self.consensus["sanitizers"]()]
        extension.extra_objects = self.compiler.compile(
            self.consensus["library_files"](),
            output_dir=self.build_temp,
            include_dirs=[str(self.libraft / "include")],
            extra_preargs=flags,
            extra_postargs=["-g0"] if self.is_stripped else [],
        )
        if not self.inplace:
            place = Path(self.get_ext_fullpath(extension.name)).with_name("_consensus.LICENSE")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.libraft / "LICENSE", place)


def description(readme, base):
    """The README for a page outside the checkout, where relative links lead nowhere.

    `base` is the URL below which the checkout's files can be read: links become absolute, images become links. Without
    one, a link becomes its text, and an image goes.
    """
    if base is None:
        return LINK.sub(r"\1", IMAGE.sub("", readme))
    root = base.rstrip("/")

    def absolute(link):
        return f"[{link[1]}]({root}/{'README.md' if link[2].startswith('#') else ''}{link[2]})"

    return LINK.sub(absolute, IMAGE.sub(r"[\1](\2)\n\n", readme))


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    # The Makefile installs the checkout without its modules, and compiles them itself.
    modules = os.environ.get("LOGSTORE_MODULES") != "no"
    setup(
        cmdclass={"build_ext": BuildModules},
        cffi_modules=[f"{BUILDER}:builder", f"{CONSENSUS}:builder"] if modules else [],
        ext_modules=[runpy.run_path(BUILDER)["hot"]()] if modules else [],
        long_description=description((ROOT / "README.md").read_text("utf-8"), project.get("urls", {}).get("Files")),
        long_description_content_type="text/markdown",
    )
