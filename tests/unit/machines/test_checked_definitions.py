"""XML in a message: harmless elements reach libvirt, written again; all else is refused by name."""

from __future__ import annotations

import random
from xml.etree import ElementTree as ET

import pytest

from ccagent.agents.fast.messages.structures import MachineConfiguration
from ccagent.machines.operations import make_definition
from ccagent.machines.policy import MachinePolicy
from ccagent.machines.settings import AllowMachines, MigfraSettings

ALLOW = AllowMachines(
    tasks=("start vm",),
    machines=("vm-[0-9]+",),
    xml="checked",
    images="/images",
    networks=("cluster",),
    max_memory="64M",
    max_vcpus=2,
)
HARMLESS = """<?xml version='1.0'?>
<domain type='qemu'><name>vm-1</name><uuid>1</uuid><memory unit='MiB'>8</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type><boot dev='hd'/><boot dev='network'/>
<kernel>/images/vmlinuz-6.1</kernel><cmdline>console=ttyS0 quiet</cmdline></os>
<features><acpi/></features><cpu mode='host-model'/><on_crash>destroy</on_crash>
<devices><controller type='usb' model='none'/>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/images/a.qcow2'/>
<target dev='vda' bus='virtio'/></disk>
<disk type='file' device='cdrom'><source file='/images/a.iso'/><target dev='sda' bus='sata'/>
<readonly/></disk>
<interface type='network'><mac address='52:54:00:00:00:01'/><source network='cluster'/>
<model type='virtio'/></interface>
<serial type='pty'><target port='0'/></serial><memballoon model='none'/></devices></domain>"""


def refuse(xml: str, allow: AllowMachines = ALLOW, name: str = "vm-1") -> str:
    policy = MachinePolicy(MigfraSettings(url="mqtt://h", allow=allow))
    return policy.find_part_refusal(MachineConfiguration(name=name, xml=xml))


def test_a_harmless_definition_is_written_again() -> None:
    assert refuse(HARMLESS) == ""
    made = ET.fromstring(
        make_definition("/none", MachineConfiguration(name="vm-2", xml=HARMLESS, memory=4096))
    )
    assert made.findtext("name") == "vm-2"
    assert made.findtext("memory") == "4096"
    assert (made.find("uuid"), made.find("devices/interface/mac")) == (None, None)
    assert [each.get("file") for each in made.iter("source")] == [
        "/images/a.qcow2", "/images/a.iso", None,
    ]  # fmt: skip


def test_xml_is_refused_unless_the_policy_says_checked() -> None:
    for choice in ("refuse", "templates"):
        allow = AllowMachines(machines=("vm-[0-9]+",), xml=choice)
        assert refuse(HARMLESS, allow).startswith("xml: not accepted by this node")


DEVICES = "<devices>{}</devices>"
DISK = "<disk type='file' device='disk'>{}<target dev='vda'/></disk>"
HARMFUL = {
    "emulator": (DEVICES.format("<emulator>/bin/sh</emulator>"), "domain/devices/emulator"),
    "namespace of qemu": (
        "<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'/>",
        "commandline",
    ),
    "host device": (
        DEVICES.format("<hostdev mode='subsystem' type='pci'/>"), "domain/devices/hostdev",
    ),
    "directory of the host": (DEVICES.format("<filesystem type='mount'/>"), "devices/filesystem"),
    "script": (
        DEVICES.format("<interface type='network'><script path='/x'/></interface>"),
        "domain/devices/interface/script",
    ),
    "bridge": (DEVICES.format("<interface type='bridge'/>"), "domain/devices/interface: type"),
    "other network": (
        DEVICES.format("<interface type='network'><source network='x'/></interface>"),
        "domain/devices/interface/source: network",
    ),
    "serial to a file": (DEVICES.format("<serial type='file'/>"), "domain/devices/serial: type"),
    "path of a serial": (
        DEVICES.format("<serial type='pty'><source path='/x'/></serial>"), "devices/serial/source",
    ),
    "log of a serial": (
        DEVICES.format("<serial type='pty'><log file='/x'/></serial>"), "devices/serial/log",
    ),
    "block device": (DEVICES.format("<disk type='block' device='disk'/>"), "disk: type"),
    "disk of the host": (
        DEVICES.format(DISK.format("<source file='/etc/shadow'/>")), "source: file '/etc/shadow'",
    ),
    "way out of the directory": (
        DEVICES.format(DISK.format("<source file='/images/../etc/shadow'/>")), "source: file",
    ),
    "relative path": (DEVICES.format(DISK.format("<source file='a.img'/>")), "source: file"),
    "two sources": (
        DEVICES.format(DISK.format("<source file='/images/a'/><source file='/images/b'/>")),
        "domain/devices/disk/source: more than one",
    ),
    "qcow2 in a raw file": (
        DEVICES.format(DISK.format("<driver type='qcow2'/><source file='/images/a.img'/>")),
        "a disk of type qcow2",
    ),
    "raw of a qcow2 file": (
        DEVICES.format(DISK.format("<source file='/images/a.qcow2'/>")), "a disk of type raw",
    ),
    "backing store": (DEVICES.format(DISK.format("<backingStore/>")), "disk/backingStore"),
    "loader": ("<os><type>hvm</type><loader>/images/x</loader></os>", "domain/os/loader"),
    "kernel of the host": ("<os><kernel>/boot/x</kernel></os>", "domain/os/kernel: text"),
    "two texts": ("<os><kernel text='/images/x'>/boot/x</kernel></os>", "domain/os/kernel: text"),
    "seclabel": ("<seclabel type='none'/>", "domain/seclabel"),
    "metadata": ("<metadata/>", "domain/metadata"),
    "pinning": ("<vcpu cpuset='0'>1</vcpu>", "domain/vcpu: cpuset"),
    "memory": ("<memory unit='GiB'>1</memory>", "memory: the policy allows 65536"),
    "two memories": ("<memory>1</memory><memory>2</memory>", "domain/memory: more than one"),
    "virtual CPUs": ("<vcpu>3</vcpu>", "vcpu: the policy allows 2"),
    "core dump": ("<on_crash>coredump-destroy</on_crash>", "domain/on_crash: text"),
    "sockets": (DEVICES.format("<graphics type='vnc'/>"), "domain/devices/graphics"),
    "text between": ("<devices>x</devices>", "domain/devices: text"),
}  # fmt: skip


@pytest.mark.parametrize("case", HARMFUL)
def test_what_could_harm_the_host_is_refused_by_name(case: str) -> None:
    text, reason = HARMFUL[case]
    assert reason in refuse(f"<domain type='qemu'><name>vm-1</name>{text}</domain>")


@pytest.mark.parametrize(
    ("xml", "reason"),
    [
        ("<!DOCTYPE d [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><domain>&a;</domain>", "type"),
        ("<?xml version='1.0'?>\n<!DOCTYPE d [<!ENTITY a 'aa'>]><domain/>", "a document type"),
        ("<domain type='qemu'>&a;</domain>", "undefined entity"),
        ("<domain type='lxc'/>", "domain: type 'lxc'"),
        ("<network/>", "network: not an element"),
        ("<domain type='qemu'>", "no element found"),
        ("<domain" + "><a" * 1300, "xml: unclosed token"),
        ("\x00", "xml:"),
        ("<domain type='qemu'>\ud800</domain>", "xml:"),
    ],
    ids=range(9),
)
def test_what_is_no_plain_definition_is_refused(xml: str, reason: str) -> None:
    assert reason in refuse(xml)


def test_no_declared_encoding_hides_an_element() -> None:
    """Bytes are never read again in the encoding that the text declares."""
    hidden = "<?xml version='1.0' encoding='utf-7'?><domain type='qemu'><title>+ADw-emulator+AD4-"
    text = f"{hidden}</title></domain>"
    assert refuse(text) == ""
    made = make_definition("/none", MachineConfiguration(name="vm-1", xml=text))
    assert "<title>+ADw-emulator+AD4-</title>" in made


def test_damaged_definitions_never_raise_nor_pass_what_is_not_allowed() -> None:
    chance = random.Random(38)
    parts = ["<emulator>/x</emulator>", "<", ">", "'", "/", "&lt;", "<!--", "]]>", "file='/etc/x'"]
    for _ in range(1000):
        text = HARMLESS
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(text))
            text = text[:place] + chance.choice(parts) + text[place + chance.randrange(3) :]
        if refuse(text) == "":
            made = ET.fromstring(
                make_definition("/none", MachineConfiguration(name="vm-1", xml=text))
            )
            assert made.find("devices/emulator") is None
            files = [each.get("file", "/images/") for each in made.iter("source")]
            assert all(file.startswith("/images/") for file in files)
