"""Log records as Python objects, for inspection and tests: decode, encode, and the class of each record's body.

This is the public face of :mod:`logstore.codec`, whose files say what always holds; it has the same names as
:mod:`logstore.codec.records`.
"""

from __future__ import annotations

from logstore.codec.records import *  # noqa: F403 - one list of names, that of the module behind
from logstore.codec.records import __all__  # noqa: F401
