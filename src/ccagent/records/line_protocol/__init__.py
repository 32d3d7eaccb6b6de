r"""The line protocol in both directions, as the components of ClusterCockpit read it.

    measurement,tag=value,... field=value time

Source: ClusterCockpit's flavor of the InfluxData line protocol: a line has one field, whose key is
the category of the message. A backslash stands before comma and space of a measurement, before
these and the equals sign of keys and tag values, before quotation mark and backslash of strings;
line feed, carriage return and tab of strings become `\n`, `\r` and `\t`.

`encoding` writes the parts of a line, `decoding` reads lines, `checking` finds what a component
would miss.
"""
