"""Parts for a machine without a network: each fits a transfer, and there the files are whole again."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
PLACE = "packages/knowngood/scripts"


@pytest.fixture
def lease_parts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lease_parts", SCRIPTS / "lease_parts.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LIMIT", 1000)
    return module


def test_a_file_longer_than_a_part_is_whole_again_where_it_arrives(lease_parts, tmp_path):
    sources = {"long": os.urandom(2500), "exact": os.urandom(1000), "short": b"x", "empty": b""}
    for name, content in sources.items():
        (tmp_path / name).write_bytes(content)
    lease_parts.write_parts(tmp_path / "out", "group", [tmp_path / name for name in sources])
    parts = sorted((tmp_path / "out").iterdir())
    assert all(sum(file.stat().st_size for file in part.iterdir()) <= 1000 for part in parts)

    there = tmp_path / "there"
    script = (SCRIPTS / "lease_driver.sh").read_text().replace("/tmp/knowngood-lease", str(there))
    driver = tmp_path / "out" / "driver.sh"
    driver.write_text(script)
    keep = ["bash", driver, "keep", *map(str, parts)]
    bare = subprocess.run(keep, cwd=tmp_path / "out", capture_output=True, text=True, check=False)
    assert (bare.returncode, "not started on this machine" in bare.stderr) == (3, True)
    for folder in ("in", "logs"):  # as `start` makes them
        (there / folder).mkdir(parents=True)
    (there / "logs/driver").touch()
    for arguments in (["keep", *map(str, parts)], ["ready", "group"]):
        subprocess.run(["bash", driver, *arguments], check=True, cwd=tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (there / "in").iterdir()} == sources


def test_a_group_lacks_what_an_earlier_one_has_sent(lease_parts, tmp_path):
    packed = tmp_path / "packed"
    packed.mkdir()
    images = [
        {"image": "knowngood:first", "config": "a", "layers": ["base", "one"]},
        {"image": "knowngood:second", "config": "b", "layers": ["base", "two"]},
    ]
    (packed / "images.json").write_text(lease_parts.json.dumps(images))
    for layer, recipe in {
        "base": [["shared", "s.zst", 9]],
        "one": [["literal", 3]],
        "two": [["shared", "s.zst", 9]],
    }.items():
        (packed / f"{layer}.json").write_text(lease_parts.json.dumps(recipe))
        (packed / f"{layer}.literal.zst").write_bytes(b"l")
    for name in ("a.config", "b.config", "compile-modules", "s.zst"):
        (packed / name).write_bytes(b"c")
    lease_parts.write_images(tmp_path / "out", packed, ["g1=first", "g2=second"])
    first, second = ({file.name for file in (tmp_path / "out" / f"part-0{number}").iterdir()} for number in (0, 1))
    assert {"s.zst", "base.json", "one.json", "a.config", "images-g1.json"} <= first
    assert second == {"two.json", "two.literal.zst", "b.config", "images-g2.json"}


def test_the_driver_runs_what_is_queued_in_order_as_its_group_arrives(tmp_path):
    there, here, part = tmp_path / "there", tmp_path / "here", tmp_path / "part"
    for folder in (here / PLACE, part / "bin", part / "packages"):
        folder.mkdir(parents=True)
    driver = here / PLACE / "lease_driver.sh"
    driver.write_text((SCRIPTS / "lease_driver.sh").read_text().replace("/tmp/knowngood-lease", str(there)))
    driver.chmod(0o755)
    (here / PLACE / "gpu_images.py").write_text("")  # no engine
    (here / PLACE / "said.py").write_text("import os, sys\nprint(sys.argv[1:], os.environ.get('WORD'))\n")
    subprocess.run(["tar", "-C", part, "-czf", part / "tools.tar.gz", "bin", "packages"], check=True)
    after_all = f"until grep -q 'en[d] 20' {there}/logs/driver; do sleep 0.1; done; echo late"
    calls = [
        ["start"],
        ["keep", str(part)],
        ["queue", "05+", "data", "bash", "-c", after_all],
        ["queue", "10", "data", "env", "WORD=word", "python3", f"{PLACE}/said.py", "two words", "x"],
        ["queue", "20", "data", f"{PLACE}/said.py"],
        ["ready", "tools"],
        ["ready", "data"],
        ["hold", "30", "end 05+"],
    ]
    try:
        for call in calls:
            subprocess.run([driver, *call], check=True, cwd=here, capture_output=True)
    finally:
        subprocess.run(["pkill", "-f", f"{driver} drive"], check=False)
    told = [line.partition(" ")[2] for line in (there / "logs/driver").read_text().splitlines()]
    assert [line for line in told if line.startswith("end")] == ["end 10: good", "end 20: good", "end 05+: good"]
    assert (there / "logs/10").read_text() == "['two words', 'x'] word\n"
    assert (there / "logs/05+").read_text() == "late\n"
