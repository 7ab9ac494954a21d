# pyproject.toml has everything but the C extensions; cffi can name its builder only here.
import runpy

from setuptools import setup

BUILDER = "logstore/_build_core.py"  # run, not imported: an import would import the package, which is not built yet

setup(cffi_modules=[f"{BUILDER}:builder"], ext_modules=[runpy.run_path(BUILDER)["hot"]()])
