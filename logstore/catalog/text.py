"""Texts of database drivers, prepared for use in our own messages."""

from __future__ import annotations


def one_line(error: object) -> str:
    """The driver's error as one line without repeated blanks; its class name if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__
