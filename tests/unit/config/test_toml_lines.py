"""Lines of keys in TOML, and errors of TOML after the first."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.config.toml_lines import list_statements, parse_leniently

TEXT = '''\
# a = 0
a = 1 # [x]
"b.c" = """x
[no]
y = 2 """
[t]  # "q
x.'y z' = [ 1, # ]
 2, ["]"] ]

  z = {a = 1, b = "}"}
[[s]]
k='a]'
[[s]]
k = "\\"#"
[s.in]
q = 3
[[s.in.r]]
'''


def lines(text: str) -> dict[str, int]:
    return {".".join(key): line for key, line in list_statements(text)}


def test_each_key_and_header_has_its_line() -> None:
    assert lines(TEXT) == {
        "a": 2, "b.c": 3, "t": 6, "t.x.y z": 7, "t.z": 10, "s[0]": 11, "s[0].k": 12,
        "s[1]": 13, "s[1].k": 14, "s[1].in": 15, "s[1].in.q": 16, "s[1].in.r[0]": 17,
    }  # fmt: skip


def test_every_statement_that_is_no_toml_is_an_error() -> None:
    parsed = parse_leniently("a = x\n[t]\nb = 1\nc = 2020-13-01\nd = 'e\nd = 1\nd = 2\n")
    assert [line for line, _ in parsed.errors] == [1, 4, 5, 7]
    assert parsed.left_out == {("a",), ("t", "c"), ("t", "d")}
    assert parsed.table == {"t": {"b": 1, "d": 1}}


def test_what_is_more_than_a_statement_ends_the_search() -> None:
    parsed = parse_leniently("a = x\n[t\nb = 1\n")
    assert [line for line, _ in parsed.errors] == [1, 2]
    assert parsed.table is None


def test_errors_are_bounded() -> None:
    parsed = parse_leniently("".join(f"k{number} = x\n" for number in range(1000)))
    assert len(parsed.errors) == 20


@pytest.mark.slow
def test_a_large_broken_file_takes_no_time() -> None:
    assert len(list(list_statements('a = "\n' * 100_000))) == 100_000
    assert len(list(list_statements('"""' * 100_000))) < 2
    assert parse_leniently("a = [\n" * 100_000 + "]").table is None


@given(st.text(alphabet="ab.=[]{}\"'#\\\n 1,", max_size=80))
def test_no_text_raises(text: str) -> None:
    statements = list(list_statements(text))
    assert all(1 <= line <= text.count("\n") + 1 for _, line in statements)
    parsed = parse_leniently(text)
    if not parsed.errors:
        assert parsed.table == tomllib.loads(text)


KEYS = st.from_regex(r"[a-c]{1,2}", fullmatch=True)
VALUES = st.sampled_from(["1", "'#x'", '"""\n=\n"""', "[\n1,\n]", "{a = 1}", '"]"'])


@given(st.lists(st.tuples(KEYS, VALUES), unique_by=lambda pair: pair[0]))
def test_the_lines_of_what_is_toml_are_right(pairs: list[tuple[str, str]]) -> None:
    text, expected = "", {}
    for key, value in pairs:
        expected[key] = text.count("\n") + 1
        text += f"{key} = {value} # {value[0]}\n"
    assert lines(text) == expected
