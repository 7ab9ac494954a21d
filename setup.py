# pyproject.toml has everything but the C core; cffi can name its builder only here.
from setuptools import setup

setup(cffi_modules=["logstore/_build_core.py:builder"])
