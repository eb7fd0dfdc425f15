"""The atlas of all packages, asked by modules and files of a traceback: where a name is, and what stands near it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_facts.compat.incident import Fix
from knowngood_facts.facts.atlas_file import RowKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from knowngood_diagnose.failures.logs.logged_errors import CodeFrame
    from knowngood_facts.facts.atlas_lookup import AtlasLookup, NamePresence

_BUILT_MODULES = {
    "amp_C": "apex",
    "apex_C": "apex",
    "causal_conv1d_cuda": "causal-conv1d",
    "dropout_layer_norm": "flash-attn",
    "flash_attn_2_cuda": "flash-attn",
    "flash_attn_3": "flash-attn-3",
    "flash_attn_cuda": "flash-attn",
    "flash_attn_interface": "flash-attn-3",
    "fused_layer_norm_cuda": "apex",
    "pkg_resources": "setuptools",
    "pywintypes": "pywin32",
    "rotary_emb": "flash-attn",
    "selective_scan_cuda": "mamba-ssm",
}
"""Modules that no published list of files has, because a build makes them or a newer release dropped them."""

FROM_REPOSITORIES = {"apex": "NVIDIA/apex", "clip": "openai/CLIP", "detectron2": "facebookresearch/detectron2"}
"""Packages that come from a repository: the package index has none of that name, or another project's (looked up on
2026-11-26: apex is a toolkit for web pages there, clip a clipboard)."""

FOLDERS_OF_PROJECTS = frozenset(
    (
        "utils",
        "util",
        "models",
        "model",
        "modules",
        "module",
        "trainer",
        "train",
        "training",
        "main",
        "data",
        "dataset",
        "dataloader",
        "dataloaders",
        "src",
        "lib",
        "libs",
        "core",
        "config",
        "configs",
        "tools",
        "scripts",
        "common",
        "layers",
        "networks",
        "network",
        "options",
        "losses",
        "evaluation",
        "engine",
        "args",
        "build",
        "constants",
        "env",
        "envs",
        "helper",
        "helpers",
        "loss",
        "misc",
        "parameters",
        "preprocess",
        "preprocessing",
        "settings",
    )
)
"""Top-level modules that are folders or files of a project."""


def find_distribution(module: str, names: Collection[str], installed: Mapping[str, str]) -> str | None:
    """Return the distribution that has a top-level module; `None` when nothing is known of one.

    Args:
        module: the module, or its top-level part.
        names: the distributions that there is metadata about.
        installed: module -> the distribution that installs it, as `WheelNames.modules` has it.
    """
    guess = module.replace("_", "-").lower()
    known = installed.get(module) or _BUILT_MODULES.get(module)
    return known or (guess if guess in names or guess in installed.values() else None)


@dataclass(frozen=True, kw_only=True)
class AtlasShelf:
    """The atlas of all packages."""

    open: Callable[[str], AtlasLookup | None]
    """Opens the atlas of a package."""
    owner: Callable[[str], str | None]
    """Returns the package of a top-level module."""
    packages: Sequence[str] = ()
    distributions: Collection[str] = ()
    """The packages that there is metadata about, in the atlas or not."""
    pythons: Callable[[str], Mapping[str, str]] = lambda _: {}
    """Returns release -> the Pythons that it takes, for a package."""

    installed: Callable[[], Mapping[str, str]] = dict
    """Returns module -> the distribution that installs it, as wheels' lists of files have it."""

    def distribution_of(self, module: str) -> str | None:
        """Return the distribution that has a module, or `None`."""
        return find_distribution(module, self.distributions, self.installed())

    def lookup_of(self, module: str) -> AtlasLookup | None:
        """Return the atlas of the package that has a module, or `None`."""
        package = self.owner(module.partition(".")[0])
        return self.open(package) if package else None

    def module_of(self, frame: CodeFrame) -> str:
        """Return the module of a frame's file when its package is in the atlas, else an empty text.

        A file of a checkout counts when a folder in its path has the name of the package's top-level module, and the
        package has such a module.
        """
        parts = frame.installed
        if not parts:
            every = frame.parts
            places = [place for place, part in enumerate(every[:-1]) if self.owner(part)]
            parts = every[places[-1] :] if places else ()
        if not parts or self.owner(parts[0]) is None:
            return ""
        module = parts[:-1] if parts[-1] == "__init__" else parts
        return ".".join(module) if frame.installed or self._has_module(module) else ""

    def _has_module(self, parts: Sequence[str]) -> bool:
        """Whether a release has a module, or one beside it in a folder of its own.

        A project's own folder may be called `datasets` or `evaluate`.
        """
        lookup = self.lookup_of(parts[0])
        folder = parts[:-1] if len(parts) > 2 else parts
        return lookup is None or any(lookup.find_name(".".join(names)).present for names in (parts, folder))


_COMPANIONS = {"unsloth": ("unsloth-zoo",), "unsloth-zoo": ("unsloth",), "autoawq": ("autoawq-kernels",)}
"""Packages that are released together, so that one without the other does not fit."""
_UNKNOWN = lazy_pattern(
    r"does(?: not|n't) exist|\binvalid\b|\bunknown\b|\bun(?:supported|recogni[sz]ed|registered)\b"
    r"|\bnot (?:yet |currently )?(?:a )?(?:supported|implemented|recogni[sz]ed|registered|known|valid|available)\b"
    r"|\bnot in the list\b|only (?:supports?|works?)",
    re.IGNORECASE,
)
"""Words with which a package says that it does not know a value, which a newer release may."""


NEWER_OR_OLDER = "a newer release may know it; what was taken away is in the release that the code was written for"
"""What helps where a package does not know a value."""


def upgrade_package(package: str, note: str = "the newest release") -> Fix:
    """Return the remedy of a package's newest release, with what is released together with it."""
    names = (package, *_COMPANIONS.get(package, ()))
    return Fix(change=dict.fromkeys(names, "*"), note=f"{note}: pip install -U {' '.join(names)}")


def is_about_unknown_value(text: str) -> bool:
    """Whether a package's words say that it does not know, or does not support, what it was given."""
    return bool(_UNKNOWN.search(text))


@dataclass(frozen=True, kw_only=True)
class NamePlace:
    """A name that an error misses, as the atlas has it."""

    lookup: AtlasLookup
    dotted: str
    """The name with its module, as `knowngood api` takes it."""
    present: int
    """The releases in which the code of the error would not have failed for want of it, as bits."""
    possible: int
    """The releases in which the error can have come from: those with the module or class, but without the name."""
    what: str
    """What it is, for a sentence: `the name X`, `the keyword y of Z`."""
    refused: int = 0
    """The releases without the name that the Python of the log cannot have installed, as bits."""
    names: Mapping[str, int] = field(default_factory=dict)
    """What is in the same place, with its releases, for a suggestion."""
    uses: tuple[str, ...] = ()
    """How a caller's row of the atlas that uses it begins."""
    keyword: str = ""
    """The keyword that such a use passes."""
    elsewhere: tuple[str, ...] = ()
    """Where else releases without the name have one of that name."""
    words: tuple[str, ...] = ()
    """The deprecation's own words."""
    successor: str = ""
    """What those words name in its place."""
    inherited: bool = False
    """Whether it is the name of a base class in another package than that of the class in the error."""
    unclear: bool = False
    """Whether the sources do not say if a release has a module, because they have not even its folder."""
    derived: bool = False
    """Whether the class in the error is in no package, and its base is told by its name only."""


def list_names_in(lookup: AtlasLookup, module: str) -> Iterator[tuple[str, int]]:
    """Yield the names in a module, each with its releases."""
    for path, _, _, mask in lookup.file.rows(module):
        if path.isidentifier():
            yield path, mask


def list_modules_beside(lookup: AtlasLookup, module: str) -> Iterator[tuple[str, int]]:
    """Yield the modules in the folder of a module, each with its releases."""
    folder = module.rpartition(".")[0]
    for name in lookup.file.modules():
        if name.startswith(f"{folder}.") and name.count(".") == module.count("."):
            yield name, lookup.find_name(name).present


def find_other_homes(lookup: AtlasLookup, dotted: str, presence: NamePresence, where: int) -> tuple[str, ...]:
    """Return where releases without a name in its place have one of that name, the most likely place first.

    That is one which the newest release has, in or below the module that had it.
    """
    module, _, name = dotted.rpartition(".")
    newest = 1 << (len(lookup.file.releases) - 1)
    missing = where & ~presence.present
    homes: dict[str, int] = {}
    for home, mask in lookup.definitions_of(name):
        place = home.partition(":")[0]
        stands_in = place.startswith("@") or ".dummy_" in place  # such as transformers.utils.dummy_pt_objects
        if home.replace(":", ".") != dotted and mask & missing and not stands_in:
            homes[home] = homes.get(home, 0) | (mask & missing)
    best = sorted(
        homes,
        key=lambda home: (
            not homes[home] & newest,
            not (module.count(".") and f"{home.partition(':')[0]}.".startswith(f"{module}.")),
            -homes[home].bit_count(),
            home,
        ),
    )
    return tuple(home.replace(":", ".") for home in best[:3])


def find_moved_module(lookup: AtlasLookup, module: str, presence: NamePresence) -> tuple[str, ...]:
    """Return modules of the same last name that releases without the module have."""
    last, missing = module.rpartition(".")[2], lookup.every & ~presence.present
    others = (name for name in lookup.file.modules() if name.rpartition(".")[2] == last and name != module)
    return tuple(name for name in others if not name.startswith("@") and lookup.find_name(name).present & missing)[:3]


def list_foreign_bases(lookup: AtlasLookup, dotted: str) -> Iterator[str]:
    """Yield the bases of a class that are imported from other packages, as dotted names."""
    todo, known = [dotted], set()
    while todo:
        current = todo.pop()
        for home in lookup.find_name(current).homes:
            module, _, path = home.partition(":")
            if home in known:
                continue
            known.add(home)
            if module.partition(".")[0] != lookup.file.root:
                yield home.replace(":", ".")
                continue
            for name, kind, bases, _ in lookup.file.rows(module):
                if name == path and kind == RowKind.CLASS:
                    todo += [f"{module}.{base}" for base in bases.split(",") if base and base != "?"]


def open_shelf() -> AtlasShelf:
    """Return the shelf of the facts' own files; they are read when they are asked for."""
    # Not at the top: this module is imported for every log, and most need nothing of the facts.
    from knowngood.core import local_files
    from knowngood_facts.facts import atlas_lookup
    from knowngood_facts.facts.package_metadata import list_metadata_packages, read_package_metadata, read_wheel_names

    folder = local_files.data_folder() / local_files.FACTS_FOLDER / "metadata"

    def read_pythons(package: str) -> Mapping[str, str]:
        metadata = read_package_metadata(package, folder)
        return {text: item.requires_python for text, item in metadata.releases.items()} if metadata else {}

    return AtlasShelf(
        open=atlas_lookup.open_atlas,
        owner=atlas_lookup.find_owner,
        packages=atlas_lookup.list_atlas_packages(),
        distributions=frozenset(list_metadata_packages(folder)),
        pythons=read_pythons,
        installed=lambda: read_wheel_names().modules,
    )
