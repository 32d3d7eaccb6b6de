"""Slurm's lists of nodes: the NodeRanges of the specification, and their host names."""

import re
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ccagent.errors import UnparsableError
from ccagent.machine.hostlist import compact, expand, split

# A handful of short parts, so that names often share them.
NAME = st.lists(
    st.sampled_from(["c", "n.", "-", "_x", "0", "1", "2", "9", "10", "09", "00", "99", "1" * 19]),
    min_size=1,
    max_size=6,
).map("".join)
NAMES = st.lists(NAME, max_size=40)
# Texts that are nearly node lists.
NEARLY = st.lists(
    st.sampled_from([*"c[]-,0129:. ", "[0-9]", "[08-", "10]", "c[1,", "2-3]", "(null)"]),
    max_size=12,
).map("".join)


@st.composite
def numbers(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Brackets, and the numbers that they stand for."""
    width = draw(st.sampled_from([0, 2, 3]))
    bounds = sorted(draw(st.sets(st.integers(0, 120), min_size=1, max_size=6)))
    if width == 2:
        bounds = [bound for bound in bounds if bound < 100] or [7]
    items: list[tuple[int, int]] = []
    while bounds:
        first = bounds.pop(0)
        is_range = len(bounds) > 0 and draw(st.booleans())
        last = bounds.pop(0) if is_range else first
        items.append((first, last))
    items = draw(st.permutations(items))
    texts = [
        f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"
        for first, last in items
    ]
    expanded = [f"{n:0{width}}" for first, last in items for n in range(first, last + 1)]
    return f"[{','.join(texts)}]", expanded


@st.composite
def node_ranges(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A valid NodeRange, and its names as they follow from how it was made."""
    fixed = st.sampled_from(["c", "gpu-", ".fox", "a1", "_"]).map(lambda text: (text, [text]))
    parts = [draw(fixed)]
    for _ in range(draw(st.integers(0, 2))):
        parts += (draw(numbers()), draw(fixed))
    names = ["".join(name) for name in product(*(part_names for _, part_names in parts))]
    return "".join(text for text, _ in parts), names


def expanded(ranges: list[str]) -> list[str]:
    return expand(",".join(ranges), limit=10**6)


def test_the_example_of_the_specification() -> None:
    text = "c[1-3,5]-[2-4].fox"
    names = [f"c{i}-{j}.fox" for i in (1, 2, 3, 5) for j in (2, 3, 4)]

    assert split(text) == [text]
    assert expand(text) == names
    assert len(expand(text)) == 12
    assert compact(names) == [text]


def test_a_list_is_split_at_the_commas_outside_brackets() -> None:
    assert split("c1-[1-2,8],login,c2-0[1-2]\n") == ["c1-[1-2,8]", "login", "c2-0[1-2]"]


@pytest.mark.parametrize("text", ["", " \n", "(null)", "None assigned"])
def test_what_slurm_prints_for_no_nodes_is_an_empty_list(text: str) -> None:
    assert split(text) == []
    assert expand(text) == []
    assert expand(text) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("c1", ["c1"]),
        ("c[8-10]", ["c8", "c9", "c10"]),
        ("c[08-10]", ["c08", "c09", "c10"]),
        ("c[0-1]", ["c0", "c1"]),
        ("c[3,1-2]", ["c3", "c1", "c2"]),
        ("c[1,01]", ["c1", "c01"]),
        ("[1-2]", ["1", "2"]),
        ("c[1-2][1-2]", ["c11", "c12", "c21", "c22"]),
        ("b,a,b", ["b", "a", "b"]),
        ("n[007].Example_1.org", ["n007.Example_1.org"]),
        ("c[999999999999999999]", ["c999999999999999999"]),
    ],
)
def test_names_come_in_the_order_of_the_text(text: str, names: list[str]) -> None:
    assert expand(text) == names


def test_padding_that_slurm_lets_numbers_outgrow_is_kept_apart() -> None:
    assert split("n[1,08-120].x,m[99-100]") == ["n[1,08-99,100-120].x", "m[99-100]"]
    assert expand("n[098-101]") == ["n098", "n099", "n100", "n101"]
    assert expand("n[98-101]") == ["n98", "n99", "n100", "n101"]
    assert expand("n[08-100]")[::46] == ["n08", "n54", "n100"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("c[1-3", r"\[ without \]"),
        ("c1-3]", r"\] without \["),
        ("c[1-[2-3]]", r"'\[' in brackets"),
        ("c[]", "nothing in brackets"),
        ("c[a]", "'a' in brackets"),
        ("c[0-10:2]", "':' in brackets"),
        ("c[000x133]", "'x' in brackets"),
        ("c[1,]", "neither a number nor a range"),
        ("c[1-]", "neither a number nor a range"),
        ("c[-1]", "neither a number nor a range"),
        ("c[1-2-3]", "neither a number nor a range"),
        ("c[3-1]", "first number is greater"),
        ("c[08-9]", "leading zeros of different width"),
        ("c[8-010]", "leading zeros of different width"),
        ("c[1,1]", "repeated numbers"),
        ("c[1-5,3]", "repeated numbers"),
        ("c[3,1-5]", "repeated numbers"),
        ("c[08-100,10]", "repeated numbers"),
        ("c[8-100,010-099,50]", "repeated numbers"),
        ("c[01,10-20,01-05]", "repeated numbers"),
        ("a,,b", "a host name is missing"),
        ("a,", "a host name is missing"),
        (",", "a host name is missing"),
        ("a b", "' ' in a host name"),
        ("a\nb", r"'\\n' in a host name"),
        ("smørbrød", "'ø' in a host name"),
        ("c[\u0661]", "'\u0661' in brackets"),
        ("c1(null)", r"'\(' in a host name"),
        ("\udc80", "in a host name"),
    ],
)
def test_what_is_no_node_range_is_refused_with_the_reason(text: str, why: str) -> None:
    for function in (split, expand):
        with pytest.raises(UnparsableError, match=why):
            function(text)


def test_the_error_shows_which_of_many_ranges_is_wrong() -> None:
    with pytest.raises(UnparsableError, match=r"at 'broken\[3-1\],c\[4-5\]': the first number"):
        split("c[1-3],broken[3-1],c[4-5]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("c[1-1000000000]", "too many hosts"),
        ("c[1-999999999999999999]", "too many hosts"),
        ("[1-999999999999999999]" * 8, "too many hosts"),
        ("c[1-50000],d[1-50001]", "too many hosts"),
        ("a[1-1000]-[1-101]", "too many hosts"),
        ("c[" + "1," * 2_000_000 + "1]", "too many hosts"),
        ("c," * 1_000_000 + "c", "too many hosts"),
        ("c[1-999999999999999999" + ",1-999999999999999999" * 90_000 + "]", "repeated numbers"),
        ("c" + "[1]" * 9, "too many brackets"),
        ("c" + "[1-2]" * 1_000_000, "too many brackets"),
        ("[" * 3_000_000, r"'\[' in brackets"),
        ("c[" + "-" * 3_000_000 + "]", "neither a number nor a range"),
        ("c[" + "9" * 3_000_000 + "]", "a number is too long"),
        ("c[1000000000000000000]", "a number is too long"),
        ("c" * 3_000_000, "a host name is too long"),
        ("c" * 255 + "[1-100000]", "a host name is too long"),
        ("c" * 254 + "[9-10]", "a host name is too long"),
    ],
    ids=lambda text: text[:20],
)
def test_hostile_text_is_refused_before_it_costs_time_or_memory(text: str, why: str) -> None:
    for function in (split, expand):
        with pytest.raises(UnparsableError, match=why) as caught:
            function(text)
        assert len(str(caught.value)) < 300


def test_the_limit_is_the_number_of_hosts_of_the_whole_list() -> None:
    text = "a[1-10],b[1-10]"

    assert len(expand(text, limit=20)) == 20
    assert split(text, limit=20) == ["a[1-10]", "b[1-10]"]
    for function in (split, expand):
        with pytest.raises(UnparsableError, match="too many hosts"):
            function(text, limit=19)


def test_splitting_does_not_expand() -> None:
    assert split("[1-999999999999999999]" * 8, limit=10**144)


@given(st.lists(node_ranges(), max_size=4))
def test_expansion_is_the_product_of_the_parts(ranges: list[tuple[str, list[str]]]) -> None:
    text = ",".join(node_range for node_range, _ in ranges)
    names = [name for _, of_range in ranges for name in of_range]

    assert expand(text, limit=len(names)) == names
    assert len(expand(text, limit=len(names))) == len(names)
    assert split(text, limit=len(names)) == [node_range for node_range, _ in ranges]


@given(st.one_of(st.text(), NEARLY))
@example("c[08-100,1]")
def test_any_text_is_refused_or_gives_valid_ranges(text: str) -> None:
    try:
        ranges = split(text)
    except UnparsableError:
        with pytest.raises(UnparsableError):
            expand(text)
        return
    for node_range in ranges:
        assert re.fullmatch(r"([A-Za-z0-9._-]|\[\d+(-\d+)?(,\d+(-\d+)?)*\])+", node_range)
        for first, last in re.findall(r"(?<=[\[,])(\d+)-(\d+)", node_range):
            assert int(first) <= int(last)
            assert len(first) == len(last) or not (first.startswith("0") and len(first) > 1)
        for brackets in re.findall(r"\[[^]]*\]", node_range):
            assert len(set(expand(brackets))) == len(expand(brackets))
    assert split(",".join(ranges)) == ranges
    assert expand(",".join(ranges)) == expand(text)


@pytest.mark.parametrize(
    ("names", "ranges"),
    [
        ([], []),
        (["c1"], ["c1"]),
        (["c2", "c1", "c2"], ["c[1-2]"]),
        (["c1", "c3"], ["c[1,3]"]),
        (["c8", "c9", "c10", "c100"], ["c[8-10,100]"]),
        (["c08", "c09", "c10"], ["c[08-10]"]),
        (["c1", "c2", "c01", "c02", "c002"], ["c[01-02,1-2,002]"]),
        (["c98", "c99", "c100", "c01"], ["c[01,98-99,100]"]),
        (["c9", "c08", "c10"], ["c[08,10,9]"]),
        (["n10", "n9", "login", "gpu-1", "gpu-2"], ["gpu-[1-2]", "login", "n[9-10]"]),
        (["b10-1", "b9-1", "b9-3"], ["b9-[1,3]", "b10-1"]),
        (["c1.a", "c2.a", "c1.b"], ["c[1-2].a", "c1.b"]),
        (["r1c1", "r1c2", "r2c1", "r2c2", "r3c1"], ["r[1-2]c[1-2]", "r3c1"]),
        (["r1c1", "r2c1", "r3c1", "r1c2", "r1c3"], ["r1c[1-3]", "r[2-3]c1"]),
        (["1", "2", "10"], ["[1-2,10]"]),
        (["1" * 19, "1" * 18 + "2"], ["1" * 19, "1" * 18 + "2"]),
        (["1" * 19, "2" + "1" * 18], ["1" * 19, "2" + "1" * 18]),
    ],
)
def test_names_are_compacted_in_natural_order(names: list[str], ranges: list[str]) -> None:
    assert compact(names) == ranges


def test_a_hole_in_a_grid_costs_one_more_range() -> None:
    names = [f"c{i}-{j}" for i in range(10) for j in range(10) if (i, j) != (3, 4)]

    assert compact(names) == ["c[0-2,4-9]-[0-9]", "c3-[0-3,5-9]"]


def test_of_two_ways_to_merge_the_one_with_fewer_ranges_is_taken() -> None:
    by_column = [f"c{i}-{j}" for j in range(2) for i in range(10) if i % (j + 2) == 0]
    by_row = [f"c{i}-{j}" for i in range(2) for j in range(10) if j % (i + 2) == 0]

    assert len(compact(by_row)) == len(compact(by_column)) == 2


def test_only_the_last_of_very_many_numbers_are_put_in_brackets() -> None:
    names = [f"{i}" + "-0" * 7 + f"-{j}" for i in (1, 2) for j in (1, 2)]

    assert compact(names) == ["1" + "-0" * 7 + "-[1-2]", "2" + "-0" * 7 + "-[1-2]"]


@pytest.mark.slow
def test_a_large_cluster_is_one_range() -> None:
    names = [f"c{rack}-{node}" for rack in range(1, 201) for node in range(1, 201)]

    assert compact(names) == ["c[1-200]-[1-200]"]


def test_six_numbers_in_a_name_are_six_brackets() -> None:
    names = ["-".join(row) for row in product("12", repeat=6)]

    assert compact(names) == ["-".join(["[1-2]"] * 6)]


@pytest.mark.parametrize("name", ["", "c[1-2]", "a,b", "a b", "ø", "c1\n", "c" * 256])
def test_what_is_no_host_name_is_not_compacted(name: str) -> None:
    with pytest.raises(UnparsableError, match="not a host name") as caught:
        compact(["c1", name])
    assert len(str(caught.value)) < 150


@given(NAMES)
@example(["c9", "c08", "c10", "c010", "c0", "c00"])
def test_compacted_names_expand_to_the_same_names_once_each(names: list[str]) -> None:
    ranges = compact(names)

    assert sorted(expanded(ranges)) == sorted(set(names))
    assert len(ranges) <= len(set(names))


@given(NAMES)
def test_compacted_names_are_valid_ranges_that_stay_as_they_are(names: list[str]) -> None:
    ranges = compact(names)

    assert split(",".join(ranges)) == ranges
    assert compact(expanded(ranges)) == ranges


@given(NAMES.flatmap(lambda names: st.tuples(st.just(names), st.permutations(names * 2))))
def test_neither_order_nor_repetition_of_names_matters(pair: tuple[list[str], list[str]]) -> None:
    names, permuted = pair

    assert compact(permuted) == compact(names)


@given(
    *[st.sets(st.integers(0, 150), min_size=1, max_size=8)] * 3,
    st.sampled_from(["c{}-{}.r{}", "{}a{}b{}", "n{:03}_{:04}x{:03}"]),
)
def test_a_full_product_is_one_range(
    first: set[int], second: set[int], third: set[int], form: str
) -> None:
    names = [form.format(*row) for row in product(first, second, third)]

    (only,) = compact(names)

    assert sorted(expand(only)) == sorted(names)
