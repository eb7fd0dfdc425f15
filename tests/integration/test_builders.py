"""Two engines, each on a machine of its own as far as the network goes, and a real registry between them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections import Counter

import hosts
import pytest
import small
import zstandard
from conftest import PARTS, ROOT

from knowngood.core import local_files
from knowngood.engine import embedded_engine, unpacked_engine

LACKING = [name for name in ("ip", "nsenter", "unshare", "openssl") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(embedded_engine.describe_obstacle()), reason=str(embedded_engine.describe_obstacle())),
    pytest.mark.skipif(bool(LACKING), reason=f"machines in namespaces need {LACKING}"),
]

SECRET = "not-for-any-image"
RELEASES = ("4.55.0", "4.55.1", "4.55.2", "4.55.3", "4.56.0", "4.56.2")
SHARED = ("venv", "layer-tools", "layer-python")
OWN = ("annotated-doc", "shellingham", "mdurl", "annotated-types", "h11", "idna")


@pytest.fixture(scope="module")
def fleet(registry_program, tmp_path_factory):
    with hosts.fleet(registry_program, tmp_path_factory.mktemp("fleet"), 2) as found:
        yield found


@pytest.fixture
def world(fleet, monkeypatch):
    """What a user has set: a proxy to the index, a certificate to trust, a password."""
    _, server, proxy = fleet
    for name in ("http_proxy", "https_proxy", "no_proxy", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", hosts.ADDRESS)
    monkeypatch.setenv("SSL_CERT_FILE", str(server.bundle))
    monkeypatch.setenv("UV_INDEX_SOMEWHERE_PASSWORD", SECRET)
    return fleet


def copied(root):
    for part in PARTS:
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copy(ROOT / "matrix.yaml", root)
    return root


def command(here, builders, repository, *words):
    return small.command(here, "build", "--builder", ",".join(builders), "--to", repository, "--json", *words)


def finished(process):
    out, said = process.communicate(timeout=300)
    print(said)
    return process.returncode, json.loads(out) if out else {}, said


def logs(since):
    """What BuildKit said of each bake that began since then."""
    found = (local_files.cache_folder() / "logs").glob("*/build-*.log")
    return [path.read_text() for path in found if path.stat().st_mtime >= since]


def unpacked(path):
    """What a blob of the registry holds: a layer's tar, or a document."""
    data = path.read_bytes()
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return zstandard.ZstdDecompressor().stream_reader(data).read()
    return data


def digests(document):
    return {item["id"]: item["image"]["digest"] for item in document["cells"]}


def removed(engine, cells):
    with contextlib.closing(engine.client()) as client:
        for cell in cells:
            with contextlib.suppress(Exception):
                client.images.remove(f"knowngood:{cell}", force=True)


def test_six_cells_on_two_builders(world, tmp_path, engine):
    machines, server, _ = world
    here = small.project(copied(tmp_path), *RELEASES, own=OWN)
    addresses = [host.address for host in machines]
    repository = f"{server.address}/team/builds"
    began = time.time()
    code, made, said = finished(command(here, addresses, repository, "--all"))
    assert code == 0, said
    ids = {str(cell) for cell in here.matrix.cells}
    assert digests(made).keys() == ids
    by = {re.search(r"built by (\S+)", item["note"])[1]: item["id"] for item in made["cells"]}
    assert by.keys() == set(addresses), by

    # Each layer once in the fleet, as BuildKit has it; what a cell has of its own, once a cell.
    steps = Counter(stage for text in logs(began) for stage in hosts.ran(text))
    assert {name: steps[name] for name in SHARED} == dict.fromkeys(SHARED, 1), steps
    assert (steps["layer-own"], steps["checked"]) == (6, 6), steps

    # Nothing of what the builders were lent is left: in what they pushed, or in what they said.
    stored = [unpacked(path) for path in server.folder.rglob("data") if path.stat().st_size < 1 << 20]
    assert stored
    assert not [data for data in stored if SECRET.encode() in data]
    assert SECRET not in said + "".join(logs(began))

    # The same again is done already, whoever is asked.
    code, again, said = finished(command(here, addresses[:1], repository, "--all"))
    assert (code, digests(again)) == (0, digests(made)), said
    assert not any(item["image"]["built"] for item in again["cells"])

    # This machine's engine, alone and without any of it: the same bytes, of a cell of each builder.
    try:
        code, alone, said = finished(small.command(here, "build", *by.values(), "--json"))
        assert code == 0, said
        assert digests(alone) == {cell: digests(made)[cell] for cell in by.values()}
    finally:
        removed(engine, by.values())


def test_a_builder_that_does_not_answer_is_left_out(world, tmp_path):
    machines, server, _ = world
    here = small.project(copied(tmp_path), RELEASES[0], own=OWN[:1])
    repository = f"{server.address}/team/silent"
    nobody = f"unix://{tmp_path}/nobody.sock"
    code, made, said = finished(command(here, [nobody, machines[0].address], repository, "--all"))
    assert (code, len(digests(made))) == (0, 1), said
    assert f"builder {nobody} is left out: no engine answers at {nobody}" in said
    code, _, said = finished(command(here, [nobody, "no-such-builder"], repository, "--all"))
    assert code == 4, said
    assert "builder no-such-builder is left out" in said
    assert "no builder is left" in said


@pytest.fixture
def instance(world, tmp_path, monkeypatch):
    """An instance of buildx with the remote driver."""
    buildx = unpacked_engine.engine_paths().buildx
    with hosts.Plug(tmp_path / "buildkit.sock", buildx, world[0][0].address) as plug:
        monkeypatch.setenv("BUILDX_CONFIG", str(tmp_path / "buildx"))
        words = ["create", "--name", "by-itself", "--driver", "remote", f"unix://{tmp_path}/buildkit.sock"]
        subprocess.run([buildx, *words], check=True, capture_output=True)
        yield "by-itself"
        plug.shutdown()


def test_an_instance_of_buildx_gives_the_same_bytes(world, instance, tmp_path):
    machines, server, _ = world
    here = small.project(copied(tmp_path), RELEASES[0], own=OWN[:1])
    said = []
    for builder in (instance, machines[1].address):
        code, made, text = finished(
            command(here, [builder], f"{server.address}/team/{builder[:4]}", "--all", "--network", "host")
        )
        assert code == 0, text
        said.append(digests(made))
        assert made["cells"][0]["image"]["built"]
    assert said[0] == said[1]


SETUP = """\
import pathlib, subprocess
from setuptools import Distribution, setup
names = ["one", "two", "three"]
objects = " ".join(f"{name}.o" for name in names)
rules = "rule c\\n  command = sleep 4; gcc -fPIC -O1 -c $in -o $out\\nrule so\\n  command = gcc -shared $in -o $out\\n"
steps = "".join(f"build {name}.o: c {name}.c\\n" for name in names)
pathlib.Path("build.ninja").write_text(f"{rules}{steps}build kgslow/_c.so: so {objects}\\n")
subprocess.run(["ninja", "-v", "-j", "1"], check=True)
class Own(Distribution):
    def has_ext_modules(self):
        return True
setup(name="kgslow", version="1.0", packages=["kgslow"], package_data={"kgslow": ["*.so"]}, distclass=Own)
"""


@pytest.fixture
def sdist(tmp_path):
    """Sources that ninja compiles, three files of four seconds each."""
    folder = tmp_path / "kgslow-1.0"
    (folder / "kgslow").mkdir(parents=True)
    (folder / "kgslow/__init__.py").touch()
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: kgslow\nVersion: 1.0\n")
    (folder / "setup.py").write_text(f"{SETUP}# {tmp_path}\n")
    for name in ("one", "two", "three"):
        (folder / f"{name}.c").write_text(f"int {name}(void) {{ return 1; }}\n")
    path = tmp_path / "kgslow-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, "kgslow-1.0")
    return path


def with_pip(root):
    """A project whose one cell has what makes a wheel."""
    return small.project(copied(root), RELEASES[0], shared={"tools": ["pluggy"], "python": ["packaging", "pip"]})


def compiling(here, sdist, house, *words):
    """`knowngood compile` for the one cell."""
    house.mkdir(exist_ok=True)
    argv = ("compile", str(here.matrix.cells[0]), "--sdist", str(sdist), "--wheelhouse", str(house), "--json", *words)
    return small.command(here, *argv, "--memory-per-job", "100M")


def until(process, pattern):
    """What the process says until a line matches."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if match := re.search(pattern, line):
            return match, lines
    raise AssertionError("".join(lines))


def test_a_compile_on_a_builder_goes_on_where_it_was_killed_and_gives_the_same_bytes(world, sdist, tmp_path, engine):
    machines, server, _ = world
    here = with_pip(tmp_path / "project")
    there = ("--builder", machines[0].address, "--to", f"{server.address}/team/compiled")
    process = compiling(here, sdist, tmp_path / "far", *there)
    until(process, r"\[2/4\] two\.c")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

    code, made, said = finished(compiling(here, sdist, tmp_path / "far", *there))
    assert code == 0, said
    (wheel,) = made["wheels"]
    found = wheel["record"]["made"]
    assert wheel["status"] == "compiled"
    assert found["place"].startswith("builder (docker driver)")
    assert len(found["attempts"]) == 2, "the first attempt is known on the builder"
    assert found["attempts"][1]["objects_found"] >= 1
    assert "] one.c" not in said, "what was compiled is not compiled again"

    try:
        code, alone, said = finished(compiling(here, sdist, tmp_path / "near"))
        assert code == 0, said
        assert alone["wheels"][0]["record"]["made"]["place"].startswith("container")
        assert alone["wheels"][0]["record"]["sha256"] == wheel["record"]["sha256"]
    finally:
        removed(engine, here.matrix.cells)


def test_a_compile_whose_builder_dies_is_done_by_another(world, sdist, tmp_path):
    machines, server, _ = world
    here = with_pip(tmp_path / "project")
    addresses = {host.address: host for host in machines}
    there = ("--builder", ",".join(addresses), "--to", f"{server.address}/team/placed")
    process = compiling(here, sdist, tmp_path / "house", *there)
    match, lines = until(process, r"goes to (\S+)$")
    dying = addresses[match[1]]
    _, more = until(process, r"\[2/4\] two\.c")
    dying.kill()
    out, rest = process.communicate(timeout=300)
    said = "".join([*lines, *more, rest])
    dying.start()
    assert process.returncode == 0, said
    (wheel,) = json.loads(out)["wheels"]
    assert (wheel["status"], wheel["note"]) == ("compiled", f"begun by {dying.address}, which stopped answering")
    assert f"builder {dying.address} stopped answering" in said
    assert [path.name for path in (tmp_path / "house").glob("*.whl")] == [wheel["record"]["wheel"]]


# The last one here: one machine less is left.
def test_a_builder_killed_in_mid_build_and_the_run_completes(world, tmp_path, engine):
    machines, server, _ = world
    here = small.project(copied(tmp_path), *RELEASES[:3], own=OWN[:3])
    # Long enough to be killed in the middle, and other bytes than any build before.
    recipe = here.tree.folder / "recipe/install-layer"
    slow = 'case "$name" in own-*) sleep 4;; esac\n'
    recipe.write_text(recipe.read_text().replace("secrets=/run/secrets\n", f"{slow}secrets=/run/secrets\n", 1))
    first, second = machines
    began, killed = time.time(), False
    process = command(here, [first.address, second.address], f"{server.address}/team/killed", "--all")
    lines = []
    for line in process.stderr:
        lines.append(line)
        if not killed and f"on {second.address}: run layer-own" in line:
            second.kill()
            killed = True
    out, said = process.stdout.read(), "".join(lines)
    assert (process.wait(), killed) == (0, True), said
    made = json.loads(out)
    assert digests(made).keys() == {str(cell) for cell in here.matrix.cells}
    assert f"builder {second.address} stopped answering" in said
    assert f"its unfinished tasks move to {first.address}" in said
    notes = {item["id"]: item["note"] for item in made["cells"]}
    interrupted = [cell for cell, note in notes.items() if "which stopped answering" in note]
    assert interrupted
    for cell in interrupted:
        assert notes[cell].endswith(f"begun by {second.address}, which stopped answering; built by {first.address}")
    steps = Counter(stage for text in logs(began) for stage in hosts.ran(text))
    assert {name: steps[name] for name in SHARED} == dict.fromkeys(SHARED, 1), steps
    # What was interrupted has the bytes that this machine's engine, alone, gives it.
    try:
        code, alone, said = finished(small.command(here, "build", *interrupted, "--json"))
        assert code == 0, said
        assert digests(alone) == {cell: digests(made)[cell] for cell in interrupted}
    finally:
        removed(engine, interrupted)
