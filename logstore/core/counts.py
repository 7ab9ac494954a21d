"""Numbers with their nouns, for texts that people read."""

from __future__ import annotations


def counted(number: object, noun: str, plural: str | None = None) -> str:
    """The number and the noun: ``1 message``, ``2 messages``. ``plural`` is for more than an added s.

    ``number`` is an int, or its text. A verb may follow the noun: ``counted(n, "message is", "messages are")``.
    """
    return f"{number} {noun if str(number) == '1' else plural or f'{noun}s'}"
