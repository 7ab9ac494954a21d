"""The binding that cffi generates from csrc/include/logstore.h; see there for every function."""

from typing import Any

ffi: Any
lib: Any
