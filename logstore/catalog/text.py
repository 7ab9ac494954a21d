"""What drivers say, made fit for our own messages."""

from __future__ import annotations


def one_line(error: object) -> str:
    """What a driver says, fit for one of our messages."""
    return " ".join(str(error).split()) or type(error).__name__
