"""Nothing outside the policy is ever written, whatever the text of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccagent.controls.policy import RateLimit, RequestSender
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.machine.node import Node
from tests.support.control_machines import CPU, RAPL, MachineNode, Site, allow, check_table, intel

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = f"{RAPL}/intel-rapl:0/constraint_0_power_limit_uw"
WATTS: dict[str, object] = {"min": 80, "max": 250}


@pytest.mark.parametrize("value", ["80", "250", "80.0", "100.5", "080"])
def test_values_within_the_policy_are_set(tmp_path: Path, value: str) -> None:
    node = intel(tmp_path)
    site = Site(node, allow(rapl__pkg_limit_1=WATTS))
    assert site.ask("rapl.pkg_limit_1", value, kind="socket")[0] == "INFO"
    assert node.text(LIMIT) == str(round(float(value) * 1e6))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("79.999999", "not between 80 and 250"),
        ("250.0000001", "is not a number with 6 decimals"),
        ("251", "not between"),
        ("-100", "not between"),
        ("nan", "is not a number"),
        ("inf", "is not a number"),
        ("1e2", "is not a number"),
        ("0x64", "is not a number"),
        ("100\n350", "is not a number"),
        (" 100", "is not a number"),
        ("100;350", "is not a number"),
        ("١٠٠", "is not a number"),  # noqa: RUF001 - Arabic digits
        ("", "is not a number"),
    ],
)
def test_values_outside_the_policy_are_refused_with_the_reason(
    tmp_path: Path, value: str, reason: str
) -> None:
    node = intel(tmp_path)
    site = Site(node, allow(rapl__pkg_limit_1=WATTS))
    level, text = site.ask("rapl.pkg_limit_1", value, kind="socket")
    assert level == "ERROR"
    assert reason in text
    assert node.text(LIMIT) == "270000000"
    assert [entry.action for entry in site.entries] == ["refused"]


def test_nothing_may_be_set_unless_it_is_named(tmp_path: Path) -> None:
    site = Site(intel(tmp_path), allow(rapl__pkg_limit_1=WATTS))
    level, text = site.ask("rapl.pkg_limit_2", "100", kind="socket")
    assert (level, "does not allow" in text) == ("ERROR", True)
    assert site.ask("rapl.pkg_energy", "1", kind="socket")[0] == "ERROR"


def test_the_machine_refuses_what_the_policy_allows_too_far(tmp_path: Path) -> None:
    node = intel(tmp_path)
    site = Site(node, allow(rapl__pkg_limit_1={"min": 1, "max": 5000}))
    level, text = site.ask("rapl.pkg_limit_1", "301", kind="socket")
    assert level == "ERROR"
    assert "out of the machine's range: 301.000000 is above 300" in text
    assert node.text(LIMIT) == "270000000"


def test_device_types_can_be_limited(tmp_path: Path) -> None:
    rule = {**WATTS, "device-types": ["node"]}
    site = Site(intel(tmp_path), allow(rapl__pkg_limit_1=rule))
    assert "for node only" in site.ask("rapl.pkg_limit_1", "100", kind="socket")[1]


def test_senders_are_those_of_the_rule_or_of_all(tmp_path: Path) -> None:
    table = allow(
        os__swappiness={"values": ["1", "2"], "from": ["account:OPS"]},
        os__numa_balancing={"values": ["0", "1"]},
    )
    site = Site(intel(tmp_path), table | {"from": ["user:ada"], "trust-request-info": True})
    ops = RequestSender("ops", frozenset({"account:OPS"}))
    ada = RequestSender("ada", frozenset({"user:ada", "account:OTHER"}))
    root = RequestSender("root", is_root=True)
    for sender, swappiness, balancing in (
        (ops, "INFO", "ERROR"), (ada, "ERROR", "INFO"), (root, "INFO", "INFO"),
        (RequestSender("nobody"), "ERROR", "ERROR"),
    ):  # fmt: skip
        assert site.ask("os.swappiness", "1", sender=sender)[0] == swappiness
        assert site.ask("os.numa_balancing", "0", sender=sender)[0] == balancing
    assert site.ask("restore", "", sender=ops)[0] == "ERROR"
    assert site.ask("restore", "", sender=ada)[0] == "INFO"


def test_get_can_be_turned_off(tmp_path: Path) -> None:
    site = Site(intel(tmp_path), {"get": False})
    assert site.ask("os.swappiness")[0] == "ERROR"
    assert site.ask("controls")[0] == "ERROR"


def test_dry_run_writes_nothing_and_says_what_it_would(tmp_path: Path) -> None:
    node = intel(tmp_path)
    site = Site(node, allow(rapl__pkg_limit_1=WATTS) | {"dry-run": True})
    level, text = site.ask("rapl.pkg_limit_1", "100", kind="socket")
    assert level == "INFO"
    assert text.startswith("Dry run: would set rapl.pkg_limit_1=100.000000")
    assert "SUCCESS" not in text
    assert node.text(LIMIT) == "270000000"
    assert site.ask("rapl.pkg_limit_1", "100", kind="socket", dry_run="true")[1] == text
    assert site.ask("rapl.pkg_limit_1", "20", kind="socket")[0] == "ERROR"


def test_more_puts_than_the_limit_a_minute_are_refused(tmp_path: Path) -> None:
    node = intel(tmp_path)
    site = Site(node, allow(os__swappiness={"min": 0, "max": 100}) | {"puts-per-minute": 3})
    levels = [site.ask("os.swappiness", str(n))[0] for n in range(5)]
    assert levels == ["INFO", "INFO", "INFO", "ERROR", "ERROR"]
    node.still.sleep(61)
    assert site.ask("os.swappiness", "9")[0] == "INFO"


def test_the_rate_limit_forgets_after_a_minute() -> None:
    limit = RateLimit(2)
    assert [limit.take(now) for now in (0.0, 1.0, 59.9, 60.1, 60.2)] == [
        True, True, False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"allow": {"rapl.*": {}}}, "no wildcards"),
        ({"allow": {"cpu_freq.governer": {"values": ["x"]}}}, "did you mean"),
        ({"allow": {"rapl.pkg_limit_1": {"min": 5}}}, "values, or min and max"),
        ({"allow": {"rapl.pkg_limit_1": {"min": 5, "max": 4}}}, "min is greater than max"),
        ({"allow": {"rapl.pkg_limit_1": {"min": 5, "max": float("inf")}}}, "finite"),
        ({"allow": {"cpu_freq.governor": {}}}, "values are needed"),
        ({"allow": {"cpu_freq.boost": {"min": 0, "max": 1}}}, "for numbers"),
        ({"allow": {"os.swappiness": {"values": ["1"], "lease": "0s"}}}, "lease"),
        ({"allow": {"os.swappiness": {"values": ["1"], "device-types": ["gpu"]}}}, "'gpu'"),
        ({"allow": {"os.swappiness": {"values": ["1"], "from": ["OPS"]}}}, "account:NAME"),
        ({"from": ["account:OPS"]}, "trust-request-info"),
        ({"from": ["key:U123"]}, "public nkey"),
        ({"subjects": ["cc.>"]}, "no wildcards"),
        ({"subjects": ["a b"]}, "no spaces"),
        ({"url": "nats://127.0.0.1", "subjects": []}, "at least one"),
        ({"url": "nats://127.0.0.1", "nkey-file": "/nowhere"}, "/nowhere"),
        ({"state-directory": "x"}, "absolute path"),
        ({"time-limit": "0s"}, "time-limit"),
        ({"allow": {"config.sinks.x.url": {"values": ["y"]}}}, "only config.agents"),
        ({"allow": {"config.agents.sample.every": {"values": ["7s"]}}}, "divide"),
    ],
)
def test_a_policy_with_a_mistake_is_refused(table: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_table(table)
    assert reason in str(caught.value)


class GuardedNode(MachineNode):
    """Records every write."""

    def __init__(self, root: Path) -> None:
        self.written: list[tuple[str, bytes]] = []
        super().__init__(root)

    def write_file(self, path: str, content: bytes, offset: int | None = None) -> None:
        self.written.append((path, content))
        super().write_file(path, content, offset)


NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats().map(repr),
    st.decimals(allow_nan=True).map(str),
    st.text(max_size=30),
    st.sampled_from(["performance", "powersave", "userspace", "performance\n", "80", "250"]),
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One machine for all examples: each puts back what it has set."""
    root = tmp_path_factory.mktemp("machine")
    intel(root)
    return root


@pytest.mark.slow
@given(
    value=NUMBERS,
    number=st.one_of(st.sampled_from(["0", "1", "15"]), st.text(max_size=10)),
    name=st.one_of(
        st.sampled_from(["rapl.pkg_limit_1", "pkg_limit_1", "rapl", "cpu_freq.governor"]),
        st.text(min_size=1, max_size=20),
    ),
    kind=st.sampled_from(["socket", "hwthread", "node"]),
    low=st.integers(1, 400),
    high=st.integers(1, 400),
)
@settings(max_examples=120, deadline=None)
def test_nothing_outside_the_policy_is_ever_written(
    tree: Path, value: str, number: str, name: str, kind: str, low: int, high: int
) -> None:
    low, high = sorted((low, high))
    node = GuardedNode(tree)
    rules: dict[str, object] = {
        "rapl.pkg_limit_1": {"min": low, "max": high},
        "cpu_freq.governor": {"values": ["performance"]},
    }
    site = Site(node, {"allow": rules})
    site.ask(name, value, kind=kind, number=number)
    for path, content in node.written:
        if path.endswith("constraint_0_power_limit_uw"):
            assert low * 1_000_000 <= int(content) <= high * 1_000_000 or content == b"270000000"
        else:
            assert path.startswith(f"{CPU}/cpu")
            assert path.endswith("/cpufreq/scaling_governor")
            assert content in {b"performance", b"powersave"}
    node.written.clear()
    site.ask("restore", "")
    assert node.text(LIMIT) == "270000000"
    site.journal.close()


def test_a_write_never_creates_a_file_and_follows_no_link(tmp_path: Path) -> None:
    node = Node(root=str(tmp_path))
    with pytest.raises(CcagentError):
        node.write_file("new", b"x")
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(CcagentError):
        node.write_file("link", b"x")
    assert (tmp_path / "target").read_text() == "old"
    assert not (tmp_path / "new").exists()
