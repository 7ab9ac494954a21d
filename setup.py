# Everything but the C core stands in pyproject.toml; cffi has no other way to name its builder.
from setuptools import setup

setup(cffi_modules=["logstore/_build_core.py:builder"])
