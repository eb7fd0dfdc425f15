"""Programs of docker/recipe that need no image around them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RECIPE = Path(__file__).resolve().parents[3] / "docker" / "recipe"


def test_large_files_with_the_same_bytes_and_mode_become_one(tmp_path):
    large, other = b"a" * 70_000, b"b" * 70_000
    for name, data in {"a/one": large, "b/two": large, "b/x": other, "c/run": large, "s1": b"s", "s2": b"s"}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "c/run").chmod(0o755)
    (tmp_path / "link").symlink_to("a/one")

    for _ in range(2):  # what is linked stays as it is
        subprocess.run([sys.executable, RECIPE / "link-same", tmp_path], check=True)
        links = {str(path.relative_to(tmp_path)): path.lstat().st_nlink for path in tmp_path.rglob("*")}
        assert {name: count for name, count in links.items() if not (tmp_path / name).is_dir()} == {
            "a/one": 2,
            "b/two": 2,
            "b/x": 1,
            "c/run": 1,
            "s1": 1,
            "s2": 1,
            "link": 1,
        }
        assert (tmp_path / "a/one").samefile(tmp_path / "b/two")
        assert (tmp_path / "b/x").read_bytes() == other
