"""The message header: the form in which the store keeps a message's routing and AMQP properties.

    version   1 byte, 1
    flags     1 byte, bit 0: an expiration follows
    published 8 bytes, milliseconds since the epoch
    [expiration 4 bytes, milliseconds: the message's own time to live]
    exchange  short string
    key       short string, the routing key
    properties  to the end: property flags and list exactly as the publisher sent them

Integers are big-endian, as on the wire. Exchange and key are stored in the form that a delivery needs.
The properties are never decoded, so a consumer gets exactly the bytes that the publisher sent.

A message published through the library has another header, or none. It is delivered as if it came
through the default exchange, without properties.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

VERSION: Final = 1
NO_PROPERTIES: Final = b"\x00\x00"
EXPIRATION_MS_MAX: Final = 0xFFFFFFFF

_HAS_EXPIRATION: Final = 1
_PLAIN: Final = struct.Struct(">BBQ")
_EXPIRING: Final = struct.Struct(">BBQI")


PLAIN_START: Final = bytes((VERSION, 0))  # the first bytes of a header without an expiration
PLAIN_BYTES: Final = _PLAIN.size  # the bytes before routing and properties in such a header


class Envelope(NamedTuple):
    """The parts of a message that a delivery contains besides the body. Equal successive messages share one object."""

    routing: bytes  # exchange and routing key, two short strings in wire form
    properties: bytes  # flags and list in wire form


class MessageHeader(NamedTuple):
    """A decoded message header."""

    routing: bytes  # exchange and routing key, two short strings in wire form
    properties: bytes  # flags and list in wire form
    published_ms: int | None  # ms since the epoch; None for messages not published by the broker
    expiration_ms: int | None  # the message's own time to live


def encode_header(routing: bytes, properties: bytes, published_ms: int, expiration_ms: int | None) -> bytes:
    """Encode a header. `routing` and `properties` are in wire form and must have been checked."""
    if expiration_ms is None:
        return _PLAIN.pack(VERSION, 0, published_ms) + routing + properties
    return _EXPIRING.pack(VERSION, _HAS_EXPIRATION, published_ms, expiration_ms) + routing + properties


def header_bytes(routing: bytes, properties: bytes, expiration_ms: int | None) -> int:
    """The length of an encoded header."""
    return (_PLAIN if expiration_ms is None else _EXPIRING).size + len(routing) + len(properties)


def decode_header(data: bytes, default_routing: bytes) -> MessageHeader:
    """Decode a header. Other bytes give `default_routing` and no properties."""
    try:
        version, flags, published_ms = _PLAIN.unpack_from(data)
        if version != VERSION or flags > _HAS_EXPIRATION:
            return MessageHeader(default_routing, NO_PROPERTIES, None, None)
        if flags:
            expiration_ms = _EXPIRING.unpack_from(data)[3]
            start = _EXPIRING.size
        else:
            expiration_ms = None
            start = _PLAIN.size
        key = start + 1 + data[start]
        properties = key + 1 + data[key]
    except (struct.error, IndexError):
        return MessageHeader(default_routing, NO_PROPERTIES, None, None)
    if len(data) < properties + 2:
        return MessageHeader(default_routing, NO_PROPERTIES, None, None)
    return MessageHeader(data[start:properties], data[properties:], published_ms, expiration_ms)
