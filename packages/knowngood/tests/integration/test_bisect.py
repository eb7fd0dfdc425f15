"""One bad pin among forty real ones, found in real environments."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from knowngood.lock import resolver

pytestmark = pytest.mark.integration

SMALL = """anyio attrs asgiref cachetools certifi chardet click colorama decorator distlib exceptiongroup filelock
fsspec h11 humanize idna iniconfig inflection isodate itsdangerous jmespath markdown-it-py mdurl more-itertools mpmath
packaging pathspec platformdirs pluggy pygments pyparsing python-dateutil pytz six sniffio sortedcontainers tabulate
tomli tqdm typing-extensions wcwidth zipp"""
"""Pure Python, and no more than these: what they require is among them."""

ASKS = "import packaging.licenses"
"""A module that packaging has since 24.2."""


@pytest.fixture(scope="module")
def locks(tmp_path_factory):
    """The newest releases of two days, pinned by hash."""
    folder = tmp_path_factory.mktemp("locks")
    for name, day in (("good", "2025-02-01"), ("bad", "2022-06-01")):
        request = resolver.ResolverRequest(
            requirements=tuple(SMALL.split()), excludes=(), python="3.11", glibc="2.36", locked_at=day, sources=()
        )
        pinned = resolver.resolve_distributions(request)
        lines = [f"{item.name}=={item.version} --hash=sha256:{item.sha256}\n" for item in pinned]
        (folder / f"{name}.txt").write_text("".join(lines))
    return folder


def bisect(locks, *words, command=("python", "-c", ASKS)):
    done = subprocess.run(
        [sys.executable, "-m", "knowngood", "bisect", "good.txt", "bad.txt", *words, "--json", "--", *command],
        cwd=locks,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def test_the_bad_pin_is_found_in_nine_environments_and_can_be_shown_again(locks):
    pinned = [(locks / f"{name}.txt").read_text().splitlines() for name in ("good", "bad")]
    assert min(map(len, pinned)) >= 40
    code, found, said = bisect(locks)
    assert code == 0, said
    assert [move["name"] for move in found["culprits"]] == ["packaging"]
    assert found["proven"]
    assert found["changed"] >= 30
    assert found["environments"] <= 9
    assert found["ends"] == {"good": "good", "bad": "bad"}
    assert said.count(": environment ") == found["environments"]
    assert "No module named 'packaging.licenses'" in found["said"]
    code, shown, said = bisect(locks, "--only", "packaging")
    assert (code, shown["outcome"]) == (1, "bad"), said
    assert "--only packaging" in found["again"]
    code, shown, _ = bisect(locks, "--only", "six")
    assert (code, shown["outcome"]) == (0, "good")


def test_swapped_ends_blame_no_package(locks):
    (locks / "swapped").mkdir(exist_ok=True)
    for name, other in (("good", "bad"), ("bad", "good")):
        (locks / "swapped" / f"{name}.txt").write_text((locks / f"{other}.txt").read_text())
    code, found, said = bisect(locks / "swapped")
    assert (code, found["problem"], found["culprits"], found["environments"]) == (2, "swapped", [], 2), said


def test_what_no_package_did_is_said(locks):
    code, found, _ = bisect(locks, command=("python", "-c", "raise SystemExit(3)"))
    assert (code, found["culprits"]) == (1, [])
    assert "the good lock fails as well" in found["note"]
