r"""Encoder and decoder of ClusterCockpit's line protocol.

    measurement,tag=value,... field=value time

Source: ClusterCockpit's flavor of the InfluxData line protocol. A line has one field. Its key is
the category of the message. A backslash escapes comma and space in a measurement; comma, space and
equals sign in keys and tag values; quotation mark and backslash in strings. Line feed, carriage
return and tab in strings become `\n`, `\r` and `\t`.

`encoding` writes the parts of a line, `decoding` reads lines.
"""
