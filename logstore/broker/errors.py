"""The errors of the broker: protocol exceptions for clients, and one error for the operator.

AMQP 0-9-1 has two kinds of exceptions. A *channel exception* closes one channel and keeps the
connection; a *connection exception* closes the connection. Clients evaluate the code and people read
the text, so the texts use the wording that AMQP users know.
"""

from __future__ import annotations

from typing import Any, Final

from pamqp import exceptions

from logstore.errors import OutcomeUnknown, StoreClosed, StorePoisoned

REPLY_TEXT_BYTES_MAX: Final = 255  # a short string on the wire

CONNECTION_FORCED: Final = 320
CONTENT_TOO_LARGE: Final = 311
NO_ROUTE: Final = 312
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541


# A host's store can be used no longer: its disk has failed, or its member leads no longer. What is not confirmed yet is
# unknown, so it gets neither ack nor nack, and the host ends.
STORE_ENDED: Final = (StorePoisoned, OutcomeUnknown, StoreClosed)


class BrokerError(Exception):
    """The broker cannot start or continue; the text is one line for the operator."""


class AmqpException(Exception):
    """A reply code and a text that close a channel or a connection; not an error of this program."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    @property
    def reply_text(self) -> str:
        """The name of the code and the text, cut to the length of a short string."""
        text = f"{code_name(self.code)} - {self.text}"
        return text.encode()[:REPLY_TEXT_BYTES_MAX].decode(errors="ignore")

    def __str__(self) -> str:
        return f"{self.code} {self.reply_text}"


class ChannelException(AmqpException):
    """Closes the channel."""


class ConnectionException(AmqpException):
    """Closes the connection."""


def code_name(code: int) -> str:
    """`404` as `NOT_FOUND`, from pamqp's table of the specification's codes."""
    kind: Any = exceptions.CLASS_MAPPING[code]
    return str(kind.name).replace("-", "_")


def not_found(kind: str, name: str, vhost: str) -> ChannelException:
    """The exception for a queue or an exchange that does not exist."""
    return ChannelException(NOT_FOUND, f"no {kind} '{name}' in vhost '{vhost}'")


def not_implemented(what: str) -> ChannelException:
    """The exception for a feature that this broker lacks. It closes the channel only, so the client can continue."""
    return ChannelException(NOT_IMPLEMENTED, what)


def precondition_failed(text: str) -> ChannelException:
    """The exception for a request that contradicts an existing object or cannot be granted."""
    return ChannelException(PRECONDITION_FAILED, text)
