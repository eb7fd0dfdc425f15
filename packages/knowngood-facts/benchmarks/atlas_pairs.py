"""Draw pairs of releases by a seed, and write down what the atlas foretells of importing one beside the other.

    python atlas_pairs.py SEED BREAKING SOUND [OUT.json]

A pair is a release of a caller and a release of a package that it imports. BREAKING of the pairs have a use that fails
at import time, SOUND have none. A pair is drawn in two steps: two packages, then a release of each, so that no package
crowds out the others (they are dealt like cards). Of each pair these modules may be imported later: the caller's top
level, up to two of those that hold a foretold break, and random others, four together.

A module is foretold to fail when it, or a module of the same package that its import reaches under no `if` or `try`,
has such a use. The draw is added to those in OUT.json (benchmarks/data/atlas_pairs.json), without pairs that were drawn
before: the pairs in an order drawn too, so that a run that is ended early ran a random part of them; the modules; what
is foretold of each and why; the time and the commit at which it was foretold. `atlas_comparison.py` then
imports the modules.

Left out: packages that cannot be imported without a GPU or without something compiled by nvcc, what transformers itself
compares with its own metadata when it is imported (that says nothing about names), modules of tests and `__main__`, and
releases that do not fit the Python in use.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from knowngood.index.package_index import SimpleIndex
from knowngood_facts.facts import atlas_lookup
from knowngood_facts.facts.broken_use_answer import describe_use
from knowngood_facts.facts.broken_use_table import BrokenUse, list_table_packages, read_broken_uses
from knowngood_facts.facts.broken_uses import find_reached_modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from knowngood_facts.facts.atlas_lookup import AtlasLookup

PAIRS = Path(__file__).parent / "data" / "atlas_pairs.json"
PYTHON = "3.11"
COMPILED = frozenset(
    (
        *("flash-attn", "flash-attn-4", "deepspeed", "transformer-engine", "transformer-engine-torch", "triton"),
        *("openrlhf", "vllm", "sglang", "unsloth", "unsloth-zoo", "xformers", "megatron-core", "bitsandbytes"),
    )
)
CHECKED = frozenset(("transformers", name) for name in ("huggingface-hub", "tokenizers", "safetensors"))
TRIES = 400
MODULES = 4
FORETOLD = 2
_NO_MODULE = re.compile(r"(^|\.)(tests?|testing|test_\w+|conftest|__main__|setup|scripts?|benchmarks?)(\.|$)")


@dataclass(frozen=True, kw_only=True)
class PackagePair:
    """Two packages, of which the first imports the second, with the uses that fail at import time."""

    caller: AtlasLookup
    callee: AtlasLookup
    uses: tuple[BrokenUse, ...]

    @property
    def names(self) -> tuple[str, str]:
        """The two packages' names."""
        return self.caller.file.package, self.callee.file.package

    def breaks(self, caller: int, callee: int) -> list[BrokenUse]:
        """Return the uses that fail at import time with these two releases, given by their places."""
        return [use for use in self.uses if use.callers >> caller & 1 and use.callees >> callee & 1]


@cache
def list_package_pairs() -> list[PackagePair]:
    """Return the pairs of packages of the atlas with a use at import time that some of their releases break."""
    folder = atlas_lookup.atlas_folder()
    pairs = []
    for package in sorted(set(list_table_packages(folder)) - COMPILED):
        caller, table = atlas_lookup.open_atlas(package), read_broken_uses(package, folder)
        for name in sorted(table.callees.keys() - COMPILED) if table else ():
            callee = atlas_lookup.open_atlas(name)
            at_import = tuple(use for use in table.uses[name] if not use.place) if table else ()
            if caller is not None and callee is not None and at_import and (package, name) not in CHECKED:
                pairs.append(PackagePair(caller=caller, callee=callee, uses=at_import))
    return pairs


@cache
def read_releases(package: str) -> Mapping[str, str]:
    """Return release -> day of its upload, of the releases with a file for the Python in use."""
    days: dict[str, str] = {}
    for file in SimpleIndex().files(package):
        if PYTHON in SpecifierSet(file.requires_python or "", prereleases=True):
            days[str(file.version)] = max(days.get(str(file.version), ""), file.uploaded)
    return days


def foretell_module(pair: PackagePair, module: str, caller: int, broken: Iterable[BrokenUse]) -> list[str]:
    """Return the uses that make importing a module fail, as text; none when it is foretold to be imported."""
    reach = find_reached_modules(pair.caller, module)
    return sorted({f"{use.module}: {describe_use(use)}" for use in broken if reach.get(use.module, 0) >> caller & 1})


def draw_modules(pair: PackagePair, caller: int, broken: Iterable[BrokenUse], draw: random.Random) -> list[str]:
    """Return the modules to import: the top level, up to two with a foretold break, and random others."""
    root = pair.caller.file.root
    held = sorted({use.module for use in broken if not _NO_MODULE.search(use.module)} - {root})
    chosen = [root, *draw.sample(held, min(FORETOLD, len(held)))]
    others = [
        module
        for module in pair.caller.file.modules()
        if not module.startswith("@") and module not in chosen and not _NO_MODULE.search(module)
        if any(kind == "m" and mask >> caller & 1 for _, kind, _, mask in pair.caller.file.rows(module))
    ]
    return chosen + draw.sample(others, min(MODULES - len(chosen), len(others)))


def draw_pair(pair: PackagePair, *, breaking: bool, draw: random.Random) -> dict[str, Any] | None:
    """Return one pair of releases as a document, or `None` when the draw does not fit and is to be repeated."""
    caller = draw.randrange(len(pair.caller.file.releases))
    callee = draw.randrange(len(pair.callee.file.releases))
    broken = pair.breaks(caller, callee)
    if bool(broken) != breaking:
        return None
    releases = pair.caller.file.releases[caller], pair.callee.file.releases[callee]
    days = [read_releases(name).get(release, "") for name, release in zip(pair.names, releases, strict=True)]
    if not all(days):
        return None
    modules = draw_modules(pair, caller, broken, draw)
    return {
        "caller": f"{pair.names[0]}=={releases[0]}",
        "callee": f"{pair.names[1]}=={releases[1]}",
        "drawn_as": "breaking" if breaking else "sound",
        "days": days,
        "modules": {module: foretell_module(pair, module, caller, broken) for module in modules},
    }


def main() -> None:
    """Draw the pairs, foretell, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("breaking", type=int)
    parser.add_argument("sound", type=int)
    parser.add_argument("out", type=Path, nargs="?", default=PAIRS)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)  # noqa: S311 - a sample, not a secret
    draws = json.loads(arguments.out.read_text("utf-8"))["draws"] if arguments.out.exists() else []
    before = {(pair["caller"], pair["callee"]) for drawn in draws for pair in drawn["pairs"]}
    packages = list_package_pairs()
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for breaking, number in ((True, arguments.breaking), (False, arguments.sound)):
        deck: list[PackagePair] = []
        wanted = len(rows) + number
        while len(rows) < wanted:
            deck = deck or draw.sample(packages, len(packages))
            pair = deck.pop()
            for _ in range(TRIES):
                row = draw_pair(pair, breaking=breaking, draw=draw)
                if row is not None and (row["caller"], row["callee"]) not in before | rows.keys():
                    rows[row["caller"], row["callee"]] = row
                    print(row["drawn_as"], row["caller"], row["callee"], flush=True)
                    break
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout
    document = {
        "seed": arguments.seed,
        "python": PYTHON,
        "foretold_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "foretold_by": commit.strip(),
        "pairs": draw.sample(list(rows.values()), len(rows)),
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps({"draws": [*draws, document]}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
