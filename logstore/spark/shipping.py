"""How a source reaches the Python processes of Spark, which may lack this package.

Spark pickles a source and its readers. A pickle names their classes by module, so a process whose Python lacks
``logstore``, or a package that it needs, would fail with a bare ``No module named 'xxhash'``. Therefore the few lines
of :func:`arrive`, which import the module and explain a failure, travel as code. They may use nothing but the standard
library.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource

from logstore.core.extras import MissingExtra
from logstore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Shipped", "arrive", "explained", "plainly", "shipped"]


def arrive(module: str, name: str, at: str) -> Any:
    """The class of this name; ``at`` is a Python that has it.

    Raises ``ModuleNotFoundError`` that says which Python lacks what, and which setting chooses another one.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        _hide_traceback()
        raise ModuleNotFoundError(
            f"the Python of Spark's workers, {sys.executable}, cannot import logstore ({error}): install logstore "
            "there, or set the variable PYSPARK_PYTHON before the session starts (with spark-submit the setting "
            f"spark.pyspark.python) to a Python that has it, such as {at}",
            name=error.name,
        ) from None


def _hide_traceback() -> None:
    """Makes Spark show only the message of an error, and not the traceback of this process.

    A Python process of Spark ends once an error has left it, so no later error loses its traceback.
    """
    if "pyspark.worker_util" in sys.modules:  # not in the driver's own process
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


@contextmanager
def plainly() -> Iterator[None]:
    """An error of this package leaves a Python process of Spark as its message, without a traceback."""
    try:
        yield
    except StoreError:
        _hide_traceback()
        raise


@contextmanager
def explained() -> Iterator[None]:
    """In the driver: raises :class:`MissingExtra` if the Python of Spark's workers lacks this package."""
    try:
        yield
    except PySparkException as failed:
        told = re.search("the Python of Spark's workers, .*", str(failed))
        if told is None:
            raise
        raise MissingExtra(told[0]) from None


def _restore(module: str, name: str, at: str, state: bytes) -> Any:
    kind = arrive(module, name, at)
    made = object.__new__(kind)
    made.__dict__.update(pickle.loads(state))
    return made


class Shipped:
    """A source or a reader that is unpickled by :func:`arrive`."""

    def __reduce__(self) -> tuple[Any, ...]:
        kind, state = type(self), self.__getstate__()
        return _restore, (kind.__module__, kind.__qualname__, sys.executable, cloudpickle.dumps(state))  # type: ignore[no-untyped-call]  # Spark's copy has no types


def shipped(source: type[DataSource], called: str | None = None) -> type[DataSource]:
    """The class to register for this source, as the format ``called``: it makes instances where they are needed."""
    module, name, at, format_name = source.__module__, source.__qualname__, sys.executable, called or source.name()

    class Arriving(DataSource):  # a local class travels as code
        @classmethod
        def name(cls) -> str:
            return format_name

        def __new__(cls, options: Mapping[str, str]) -> Any:
            return arrive(module, name, at)(options=options)

    return Arriving


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # Spark's copy has no types
