from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from knowngood.base import emulation, private_apt
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.hosts import HostArchitecture

ARM = HostArchitecture.AARCH64
OTHERS = """enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: POF
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A machine of x86-64 with a kernel whose registry can be mounted, and that keeps what it is told."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(emulation, "REGISTRY", tmp_path / "binfmt")
    monkeypatch.setattr(emulation, "STATE", tmp_path / "state")
    monkeypatch.setattr(emulation, "unpack_qemu", lambda _: Path("/cache/qemu-aarch64-static"))
    commands: list[list[str]] = []

    def run(argv):
        commands.append(argv)
        if argv[0] == "mount":
            emulation.REGISTRY.mkdir()
            (emulation.REGISTRY / "register").touch()

    monkeypatch.setattr(private_apt, "run_command", run)
    return commands


def test_the_entry_is_there_only_while_it_is_needed_and_what_was_mounted_is_unmounted(kernel):
    with emulation.emulate_host(ARM, print):
        line = (emulation.REGISTRY / "register").read_text()
        assert line == emulation.registration_line(Path("/cache/qemu-aarch64-static"))
        assert line.endswith(":/cache/qemu-aarch64-static:PF")
        assert [argv[0] for argv in kernel] == ["mount"]
    assert (emulation.REGISTRY / emulation.ENTRY).read_text() == "-1"
    assert [argv[0] for argv in kernel] == ["mount", "umount"]
    assert not emulation.STATE.exists()


def test_a_registry_that_was_mounted_stays_mounted(kernel):
    emulation.REGISTRY.mkdir()
    (emulation.REGISTRY / "register").touch()
    with emulation.emulate_host(ARM, print):
        pass
    assert kernel == []


def test_the_last_of_two_processes_removes_the_entry(kernel):
    with emulation.emulate_host(ARM, print):
        with emulation.emulate_host(ARM, print):
            pass
        assert [argv[0] for argv in kernel] == ["mount"]
    assert [argv[0] for argv in kernel] == ["mount", "umount"]


@pytest.mark.usefixtures("kernel")
def test_what_others_registered_is_used_and_left_alone():
    emulation.REGISTRY.mkdir()
    (emulation.REGISTRY / "register").touch()
    (emulation.REGISTRY / "qemu-aarch64").write_text(OTHERS)
    with emulation.emulate_host(ARM, print):
        assert (emulation.REGISTRY / "register").read_text() == ""
    assert (emulation.REGISTRY / "qemu-aarch64").read_text() == OTHERS


@pytest.mark.parametrize(
    "change",
    [("enabled", "disabled"), ("flags: POF", "flags: PO"), ("0200b700", "02003e00")],
    ids=["disabled", "not in containers", "another processor"],
)
def test_an_entry_that_does_not_do_is_not_used(change):
    assert emulation.is_emulator_entry(OTHERS)
    assert not emulation.is_emulator_entry(OTHERS.replace(*change))


def test_a_host_of_aarch64_needs_none_of_it(kernel, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with emulation.emulate_host(ARM, print):
        assert not emulation.REGISTRY.exists()
    assert kernel == []


@pytest.mark.usefixtures("kernel")
def test_without_root_one_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingError, match=r"needs root, .*: build it on a host of aarch64, or have an administrator"):
        emulation.emulate_host(ARM, print).__enter__()


@pytest.mark.usefixtures("kernel")
def test_a_kernel_without_binfmt_misc_is_named_with_what_to_do(monkeypatch):
    def refuse(argv):
        raise KnowngoodError(f"`{argv[0]}` failed: unknown filesystem type")

    monkeypatch.setattr(private_apt, "run_command", refuse)
    with pytest.raises(MissingError, match=r"no binfmt_misc can be mounted .*unknown filesystem.*build it on a host"):
        emulation.emulate_host(ARM, print).__enter__()
    assert not emulation.STATE.exists()
