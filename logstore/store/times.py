"""Times of places: from when on a message is offered, and until when.

A caller gives a time as seconds since 1970 or as a ``datetime`` with a time zone; the core has microseconds since 1970.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from logstore import errors
from logstore._core import ffi, lib
from logstore.core import arguments
from logstore.core.native import check

if TYPE_CHECKING:
    from logstore._hot import StoreCalls

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_FAR_S: Final = 10**15  # refused in any case, and exact as a float
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _US
"""The end of the year 9999, the last that a ``datetime`` has."""


@dataclass(frozen=True, slots=True)
class Times:
    """The times of new places in microseconds since 1970; 0: none."""

    not_before_us: int = 0
    expires_us: int = 0

    def __bool__(self) -> bool:
        return self.not_before_us > 0 or self.expires_us > 0

    def as_c(self) -> Any:
        """An ``ls_times *`` that owns its memory; NULL without times."""
        return ffi.new("ls_times *", [self.not_before_us, self.expires_us]) if self else ffi.NULL


NO_TIMES: Final = Times()


def now_us() -> int:
    """The wall clock."""
    return time.time_ns() // 1000


def _far(name: str, value: object) -> errors.OptionError:
    return errors.OptionError(
        f"{name} is after the year 9999: {arguments.shown(value)}. Give seconds since 1970; were these milliseconds?"
    )


def _seconds_us(name: str, value: object, what: str) -> int:
    """A number of seconds in microseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf:
        raise errors.OptionError(f"{name} is {what}, not {arguments.shown(value)}")
    return round(max(-_FAR_S, min(value, _FAR_S)) * 1_000_000)


def _time_us(name: str, value: object, now: int) -> int:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise errors.OptionError(
                f"{name} is a datetime with a time zone, not {arguments.shown(value)}: give it one, such as "
                "datetime.now(UTC)"
            )
        us = (value - _EPOCH) // _US
    else:
        us = _seconds_us(name, value, "a number of seconds since 1970, or a datetime with a time zone")
    if us <= now:
        raise errors.OptionError(
            f"{name} is in the past: {arguments.shown(value)}, and now it is {now / 1e6:.6f}. Give a later time, "
            "or leave it out"
        )
    if us > _LAST_US:
        raise _far(name, value)
    return us


def times_of(not_before: object, expires: object) -> Times:
    """The times that a caller gives for new places; None: none. Raises ``OptionError``."""
    if not_before is None and expires is None:
        return NO_TIMES
    now = now_us()
    not_before_us = 0 if not_before is None else _time_us("not_before", not_before, now)
    expires_us = 0 if expires is None else _time_us("expires", expires, now)
    if expires is not None and expires_us <= not_before_us:
        raise errors.OptionError(
            f"expires ({arguments.shown(expires)}) is not after not_before ({arguments.shown(not_before)}): the "
            "message would never be offered. Give a later time"
        )
    return Times(not_before_us, expires_us)


def after_delay(delay: object) -> Times:
    """The times of a place that is hidden for so long from now on: seconds or a ``timedelta``; 0: no times."""
    if isinstance(delay, timedelta):
        delay_us = delay // _US
    else:
        delay_us = _seconds_us("delay", delay, "a number of seconds, 0 or more, or a timedelta")
    if delay_us < 0:
        raise errors.OptionError(f"delay is 0 or more, not {arguments.shown(delay)}: a place cannot be offered earlier")
    if delay_us == 0:
        return NO_TIMES
    not_before_us = now_us() + delay_us
    if not_before_us > _LAST_US:
        raise errors.OptionError(
            f"delay ends after the year 9999: {arguments.shown(delay)}. Give seconds; were these milliseconds?"
        )
    return Times(not_before_us)


def times_of_place(
    store: StoreCalls, queue_id: int, message_id: int, position: int
) -> tuple[datetime | None, datetime | None]:
    """``not_before`` and ``expires`` of a place, in UTC; None: it has no such time."""
    into = ffi.new("ls_times *")
    check(lib.ls_place_times(store._c, queue_id, message_id, position, into))  # type: ignore[attr-defined] # MessageStore has it
    return _moment(into.not_before_us), _moment(into.expires_us)


def _moment(us: int) -> datetime | None:
    """A later time than any ``datetime`` has is the last of them: only other programs on the core write such a time."""
    return _EPOCH + timedelta(microseconds=min(us, _LAST_US)) if us else None
