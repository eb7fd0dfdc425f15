from __future__ import annotations

import ast
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from knowngood.core.child_processes import end_with_parent
from samples import ROOT

PARENT = """
import signal, subprocess, sys
from knowngood.core.child_processes import end_with_parent
child = subprocess.Popen(["sh", "-c", "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done"],
                         stdout=subprocess.PIPE, preexec_fn=end_with_parent(signal.Signals(int(sys.argv[1]))))
child.stdout.readline()
print(child.pid, flush=True)
input()
"""

# Programs that answer in a moment, and files that run on other machines, without this package.
SHORT = {
    "base/base_image.py": 1,  # does this perl have what mmdebstrap needs?
    "doctor/elf_reader.py": 1,
    "doctor/probe.py": 1,
    "python_environment.py": 2,
    "registry/image_release.py": 1,  # git
    "reports/git_history.py": 1,
    "wheels/compile_inside.py": 3,  # runs in a build container, which ends with the build
}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent has ended")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_when_its_parent_is_killed(number):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(int(number))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child)


def test_other_systems_start_children_without_it(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert end_with_parent() is None


def test_every_child_ends_with_its_parent_unless_it_is_detached_or_short():
    untied: dict[str, int] = {}
    packages = ROOT / "packages"
    for path in sorted(packages.glob("*/src/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="subprocess"), attr="run" | "Popen"), keywords=words
                ):
                    if not {"preexec_fn", "start_new_session"} & {word.arg for word in words}:
                        name = str(path.relative_to(packages)).partition("/src/knowngood")[2].partition("/")[2]
                        untied[name] = untied.get(name, 0) + 1
    assert untied == SHORT
