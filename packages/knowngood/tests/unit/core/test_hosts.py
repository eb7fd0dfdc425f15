from __future__ import annotations

import platform

import pytest

from knowngood.core.errors import UsageError
from knowngood.core.hosts import HostArchitecture, detect_host_architecture, parse_host


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("aarch64", HostArchitecture.AARCH64),
        ("ARM64", HostArchitecture.AARCH64),
        ("x86-64", HostArchitecture.X86_64),
        ("x86_64", HostArchitecture.X86_64),
        ("amd64", HostArchitecture.X86_64),
    ],
)
def test_a_host_has_several_names(text, host):
    assert parse_host(text) is host


def test_another_processor_is_refused():
    with pytest.raises(UsageError, match="'riscv64' is no host that images are for; they are x86-64 and aarch64"):
        parse_host("riscv64")


@pytest.mark.parametrize(
    ("machine", "host"),
    [("aarch64", HostArchitecture.AARCH64), ("x86_64", HostArchitecture.X86_64), ("s390x", None)],
)
def test_this_machine_is_one_of_them_or_none(monkeypatch, machine, host):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert detect_host_architecture() is host


def test_each_tool_has_its_own_name_for_a_host():
    arm = HostArchitecture.AARCH64
    assert (arm.debian, arm.oci_platform, arm.multiarch) == ("arm64", "linux/arm64", "aarch64-linux-gnu")
    x86 = HostArchitecture.X86_64
    assert (x86.machine, x86.debian, x86.multiarch) == ("x86_64", "amd64", "x86_64-linux-gnu")
