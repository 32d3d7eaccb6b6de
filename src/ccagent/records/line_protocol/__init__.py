r"""The line protocol in both directions, as the components of ClusterCockpit read it.

    measurement,tag=value,... field=value time

Source: ClusterCockpit's flavor of the InfluxData line protocol: a line has one field, whose key is
the category of the message. A backslash stands before comma and space of a measurement, before
these and the equals sign of keys and tag values, before quotation mark and backslash of strings;
line feed, carriage return and tab of strings become `\n`, `\r` and `\t`.
"""

from __future__ import annotations

from ccagent.records.line_protocol.checking import check_message
from ccagent.records.line_protocol.decoding import decode, decode_lines
from ccagent.records.line_protocol.encoding import encode
from ccagent.records.line_protocol.lines import (
    CATEGORIES,
    LOG_LEVELS,
    TYPES,
    Category,
    Line,
    LineError,
    Precision,
    Unsigned,
    get_control,
    put_control,
)

__all__ = [
    "CATEGORIES",
    "LOG_LEVELS",
    "TYPES",
    "Category",
    "Line",
    "LineError",
    "Precision",
    "Unsigned",
    "check_message",
    "decode",
    "decode_lines",
    "encode",
    "get_control",
    "put_control",
]
