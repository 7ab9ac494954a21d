# pyproject.toml has everything but the C extensions; cffi can name its builder only here.
import os
import runpy

from setuptools import setup

BUILDER = "logstore/_build_core.py"  # run, not imported: an import would import the package, which is not built yet

# The Makefile installs the checkout without its modules, and compiles them itself.
modules = os.environ.get("LOGSTORE_MODULES") != "no"
setup(
    cffi_modules=[f"{BUILDER}:builder"] if modules else [],
    ext_modules=[runpy.run_path(BUILDER)["hot"]()] if modules else [],
)
