"""The GPUs of matrix.yaml, by card, family or compute capability: `H100 80GB HBM3`, `Volta`, `sm_70`, `7.0`.

Which GPU a name means: the names of NVML and `nvidia-smi`, of shops, and short ones (`4090`, `A6000`).

A name is a sequence of words. Words that do not tell the architecture (the maker, memory sizes, form factors) are left
out, and what remains has to be the name of a card as a whole: `p4d.24xlarge` is no P4, and `RTX 5000 Ada` is not the
Turing card RTX 5000. The browser decides in the same way, with the same data (`matching_data`,
`templates/site/static/gpu_names.js`); one table of cases tests both. So patterns are written in what Python and
JavaScript have in common.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from knowngood.core.errors import UnknownError, UsageError
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.nearest_names import count_mistakes

_CAPABILITY = "^(?:(?:sm|compute|cc|compute capability)[ _-]*)?([0-9]{1,2})[.]?([0-9])[af]?$"

_REPLACEMENTS = (
    ("[^a-z0-9.:*]+", " "),
    # A line of `nvidia-smi -L`.
    ("^ *gpu [0-9]+ *:", ""),
    (" uuid.*$", ""),
    # The number of GPUs: 8x H100, 2xA100, H100 x8, A100:8.
    ("^ *[0-9]+ *[x*] *(?=[a-z])", ""),
    ("^ *[0-9]{1,2} (?=[a-z])", ""),
    ("(?::[0-9]+| x *[0-9]{1,2}| *[*] *[0-9]+) *$", ""),
    # A part of a GPU (MIG), a virtual one (A40-8Q), memory sizes, sockets.
    (" mig .*$", ""),
    (" [0-9]+[abcq]$", ""),
    ("(^| )[0-9]+ ?(?:gb|gib|g)(?= |$)", " "),
    ("(^| )(?:sxm|nvl)[0-9]*(?= |$)", " "),
    # What is written without a space: RTX4090, 2080ti.
    ("(^| )(rtx|gtx|pro)(?=a?[0-9])", "$1$2 "),
    ("([0-9]{4})(?=(?:ti|super)(?: |$))", "$1 "),
    ("[:*]", " "),
)
"""Pattern and replacement, in this order, on the name in lower case; `$1` stands for the first group."""

_IGNORED = {"nvidia", "tesla", "grid", "graphics", "gpu", "gpus"}
_IGNORED |= {"card", "device", "generation", "architecture", "tensor", "core"}
_IGNORED |= {"jetson", "agx", "superchip", "grace", "sff", "corporation", "converged", "accelerator"}
"""Words that say nothing about the architecture."""

_FORMS = {"pcie", "hgx", "dgx", "server", "workstation", "laptop", "mobile", "max", "maxq", "embedded"}
_FORMS |= {"q", "edition", "with", "design", "hbm2", "hbm2e", "hbm3", "hbm3e"}
_FORMS |= {"super", "ti", "d", "nx", "nano", "nvgpu", "ac", "lc", "ls", "3e", "active", "collectors"}
"""Words that may stand beside the name of a card, and may also be part of one (`RTX 2080 Ti`)."""

CARDS_FILE = Path(__file__).with_name("gpu_cards.json")
"""Compute capability -> the words of further cards, as `card_words_beside_forms` gives them.

`packages/knowngood/scripts/gpu_cards.py` wrote it, from the list of PCI ids in Debian's `pci.ids` of 2026-10-24.
"""

_BRANDS = ((), ("geforce", "quadro"), ("geforce", "quadro", "rtx", "gtx"))
"""The words that are left out at the first, the second and the third attempt to find a card."""

_OTHER_MAKERS = {
    "AMD": "(^| )(?:amd|radeon|instinct|mi[0-9]{2,3}[a-z]?|gfx[0-9]+[a-z]?|rx [0-9]{4}|rx[0-9]{4}|vega|rocm)( |$)",
    "Intel": "(^| )(?:intel|arc|gaudi ?[0-9]?|habana|ponte vecchio|data center max)( |$)",
    "Apple": "(^| )(?:apple|m[1-9](?: (?:pro|max|ultra))?|mps)( |$)",
    "Google": "(^| )(?:tpu|tpu ?v?[0-9]+[a-z]?)( |$)",
    "Amazon": "(^| )(?:trainium ?[0-9]?|inferentia ?[0-9]?)( |$)",
    "Huawei": "(^| )(?:huawei|ascend)( |$)",
}
"""Maker -> the pattern of the names of its accelerators."""

_INSTANCES = (
    "^[a-z][a-z0-9-]*[.](?:[0-9]*x?large|medium|small|micro|nano|metal[a-z0-9-]*)$",
    "^[pg][0-9][a-z]{1,3}$",
    "^(?:standard_)?n[cdv][0-9]+[a-z]*_.*v[0-9]+$",
    "^standard_[a-z0-9_]+$",
    "^[a-z][0-9][a-z]?-(?:standard|highgpu|megagpu|ultragpu|edgegpu|highmem|highcpu|maxgpu)-[0-9]+[a-z]*$",
    "^(?:bm|vm)[.]gpu[a-z0-9.]*$",
)
"""The names of cloud instances of several providers, in lower case."""


class GpuNameKind(StrEnum):
    """What a name turned out to be."""

    KNOWN = "known"
    AMBIGUOUS = "ambiguous"
    """Cards of several architectures have this name."""
    ARCHITECTURE = "architecture"
    """It has the form of an architecture that the table does not have."""
    OTHER_MAKER = "other-maker"
    INSTANCE = "instance"
    """It is the name of a cloud instance."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class GpuNameMatch:
    """What the text that a user gives as the name of a GPU means."""

    kind: GpuNameKind
    capabilities: tuple[str, ...] = ()
    """`sm_90`, ...: one, or all of a family; the candidates when the name is ambiguous."""
    cards: tuple[str, ...] = ()
    """The cards of that name, as the table has them."""
    maker: str = ""

    def document(self) -> dict[str, Any]:
        """Return the match as plain data, as the browser's script has it."""
        capabilities, cards = list(self.capabilities), list(self.cards)
        return {"kind": str(self.kind), "capabilities": capabilities, "cards": cards, "maker": self.maker}


@dataclass(frozen=True)
class GpuNameTable:
    """The cards, families and architectures of matrix.yaml, and which of them a text names."""

    sections: Mapping[str, tuple[str, tuple[str, ...]]]
    """Compute capability -> its family and its cards."""
    further: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Compute capability -> more of its cards, which are understood and never shown as examples."""

    def match(self, text: str) -> GpuNameMatch:
        """Return what a name means; every text has an answer."""
        name = " ".join(text.lower().split())
        if number := re.search(_CAPABILITY, name):
            sm = f"sm_{number[1]}{number[2]}"
            kind = GpuNameKind.KNOWN if sm in self.sections else GpuNameKind.ARCHITECTURE
            return GpuNameMatch(kind=kind, capabilities=(sm,))
        words = name_words(name)
        if families := self._find_family(words):
            return GpuNameMatch(kind=GpuNameKind.KNOWN, capabilities=families)
        for brands in _BRANDS:
            if card := self._find_card(words, brands):
                return card
        if any(re.search(pattern, name) for pattern in _INSTANCES):
            return GpuNameMatch(kind=GpuNameKind.INSTANCE)
        plain = " ".join(words)
        for maker, pattern in _OTHER_MAKERS.items():
            if re.search(pattern, plain):
                return GpuNameMatch(kind=GpuNameKind.OTHER_MAKER, maker=maker)
        return GpuNameMatch(kind=GpuNameKind.UNKNOWN)

    def find_nearest(self, text: str) -> str:
        """Return the shown card or family that the fewest mistakes for its length turn into a text."""
        wanted = " ".join(word for word in name_words(" ".join(text.split())) if word not in _BRANDS[1])[:80]

        def distance(name: str) -> float:
            is_other = sorted(wanted) != sorted(name)  # of two, the one with the same letters is nearer
            return (count_mistakes(wanted, name) + is_other / 100) / max(len(wanted), len(name), 1)

        return min((min(map(distance, names)), shown) for shown, names in self._shown_names)[1]

    @cached_property
    def _shown_names(self) -> list[tuple[str, list[str]]]:
        """Each card and family as people read it, and what they may type for it: with and without its brand."""
        cards = [card for _, cards in self.sections.values() for card in cards]
        words = {card: self._card_words[card] for card in cards}
        names = {
            card: [[word for word in own if word not in left] for left in _BRANDS[1:]] for card, own in words.items()
        }
        families = {family: [family.lower().split()] for family, _ in self.sections.values() if family}
        return [(shown, [" ".join(own) for own in several]) for shown, several in (names | families).items()]

    def _find_family(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the architectures of a family: of its whole name, else of names that begin with these words."""
        families = {sm: family.lower().split() for sm, (family, _) in self.sections.items()}
        wanted = list(words)
        whole = tuple(sm for sm, family in families.items() if family == wanted)
        begun = tuple(sm for sm, family in families.items() if wanted and family[: len(wanted)] == wanted)
        # Of a family with one architecture each word tells it: Lovelace.
        single = tuple(sm for sm, family in families.items() if len(wanted) == 1 and wanted == family[-1:])
        return whole or begun or (single if len(single) == 1 else ())

    def _find_card(self, words: Sequence[str], brands: Sequence[str]) -> GpuNameMatch | None:
        """Return the card of which the name consists, besides words that may stand beside it.

        A bare number that cards of several architectures have in their names (`6000`) is ambiguous.
        """
        rest = [word for word in words if word not in brands]
        cards = {card: [word for word in own if word not in brands] for card, own in self._card_words.items()}
        for length in range(len(rest), 0, -1):
            for start in range(len(rest) - length + 1):
                window = rest[start : start + length]
                matches = [card for card, own in cards.items() if own == window]
                if matches and window[0].isdigit() and length == 1:
                    matches = [card for card, own in cards.items() if window[0] in own]
                capabilities = tuple(dict.fromkeys(self._sm_of_card[card] for card in matches))
                beside = [*rest[:start], *rest[start + length :]]
                if len(capabilities) > 1 and not beside and brands == _BRANDS[-1]:
                    kind = GpuNameKind.AMBIGUOUS
                    return GpuNameMatch(kind=kind, capabilities=capabilities, cards=tuple(matches))
                if len(capabilities) == 1 and self._may_stand_beside(beside, capabilities[0], cards):
                    return GpuNameMatch(kind=GpuNameKind.KNOWN, capabilities=capabilities, cards=tuple(matches))
        return None

    def _may_stand_beside(self, words: Sequence[str], sm: str, cards: Mapping[str, Sequence[str]]) -> bool:
        """Whether these words contradict no card of an architecture: forms, its family, or another of its cards."""
        family = self.sections[sm][0].lower().split()
        another = any(list(words) == own for card, own in cards.items() if self._sm_of_card[card] == sm)
        return another or all(word in _FORMS or word in family for word in words)

    @cached_property
    def _sm_of_card(self) -> dict[str, str]:
        shown = {card: sm for sm, (_, cards) in self.sections.items() for card in cards}
        return shown | {card: sm for sm in self.sections for card in self.further.get(sm, ())}

    @cached_property
    def _card_words(self) -> dict[str, list[str]]:
        shown = {card: name_words(card) for _, cards in self.sections.values() for card in cards}
        return shown | {card: card.split() for sm in self.sections for card in self.further.get(sm, ())}

    def matching_data(self) -> dict[str, Any]:
        """Return all that `match` uses as plain data, for the browser's script."""
        return {
            "capability": _CAPABILITY,
            "replacements": _REPLACEMENTS,
            "ignored": sorted(_IGNORED),
            "forms": sorted(_FORMS),
            "brands": _BRANDS,
            "families": [[sm, family.lower().split()] for sm, (family, _) in self.sections.items()],
            "cards": [[card, self._sm_of_card[card], words] for card, words in self._card_words.items()],
            "shown": self._shown_names,
            "makers": list(_OTHER_MAKERS.items()),
            "instances": _INSTANCES,
        }


def name_words(text: str) -> list[str]:
    """Return the words of a name that can tell cards apart, in lower case."""
    name = text.lower()
    for pattern, replacement in _REPLACEMENTS:
        name = re.sub(pattern, re.sub(r"\$(\d)", r"\\g<\1>", replacement), name)
    return [word for word in name.split() if word not in _IGNORED]


def card_words_beside_forms(text: str) -> list[str]:
    """Return the words of a card's name up to the first that only says its form: `rtx 3050` of an `RTX 3050 Laptop`."""
    words = name_words(text)
    return words[: next((place for place, word in enumerate(words) if place and word in _FORMS), None)]


class UncoveredGpuError(UnknownError):
    """An accelerator that exists and that the facts are not about (exit 3)."""


@dataclass(frozen=True, kw_only=True)
class GpuMachine:
    """Machines with GPUs of one architecture beside one kind of CPU; an image is for one such kind."""

    name: str
    """The architecture, and the host where the architecture has cards beside both kinds: `sm_90-aarch64`."""
    sm: str
    host: HostArchitecture
    cards: tuple[str, ...]
    query: str
    """The shortest text by which `GpuCatalog` means all of these and no others, for `--gpu`."""

    @property
    def known_cards(self) -> tuple[str, ...]:
        """Two cards by which people recognise them: the first, and the first GeForce or else the second."""
        rest = [card for card in self.cards[1:] if card.startswith(("RTX", "GTX"))] or list(self.cards[1:])
        return (*self.cards[:1], *rest[:1])

    @property
    def label(self) -> str:
        """The cards by which people recognise them, as text: `L4, RTX 4090`."""
        return ", ".join(self.known_cards)


@dataclass(frozen=True)
class GpuCatalog:
    """The GPUs of matrix.yaml."""

    sections: Mapping[str, tuple[str, tuple[str, ...]]]
    """Compute capability -> its family and its cards."""
    aarch64: frozenset[str] = field(default=frozenset())
    """The cards that are built together with a CPU of Arm: programs for x86-64 do not run on their hosts."""

    @property
    def names(self) -> list[str]:
        """The compute capabilities: `sm_70`, `sm_75`, ..."""
        return list(self.sections)

    def family(self, sm: str) -> str:
        """Return the family of a compute capability, such as `Hopper` for `sm_90`."""
        return self.sections[sm][0]

    def describe(self, sm: str) -> str:
        """Return a text such as `sm_90 (Hopper: H100, H200)`."""
        family, cards = self.sections[sm]
        return f"{sm} ({family}: {', '.join(cards)})"

    @cached_property
    def name_table(self) -> GpuNameTable:
        """What decides which GPU a name means."""
        return GpuNameTable(self.sections, json.loads(CARDS_FILE.read_text(encoding="utf-8")))

    def find_capabilities(self, text: str) -> list[str]:
        """Return the compute capabilities that a name means: one, or all of a family.

        Raises:
            UsageError: the text names no GPU of matrix.yaml, or several of different architectures.
            UncoveredGpuError: the text names an accelerator of another maker than NVIDIA.
        """
        match = self.name_table.match(text)
        if match.kind is GpuNameKind.KNOWN:
            return list(match.capabilities)
        if match.kind is GpuNameKind.OTHER_MAKER:
            raise UncoveredGpuError(
                f"{match.maker} is not covered: {text!r} is no GPU of NVIDIA, and all facts are about CUDA"
            )
        if match.kind is GpuNameKind.INSTANCE:
            raise UsageError(
                f"{text!r} looks like the name of a cloud instance, not of a GPU; "
                f"name its card, as `nvidia-smi -L` prints it there"
            )
        if match.kind is GpuNameKind.AMBIGUOUS:
            raise UsageError(
                f"there is no GPU {text!r}, but several with that name; say which: {', '.join(match.cards)}"
            )
        if match.kind is GpuNameKind.ARCHITECTURE:
            [sm] = match.capabilities
            raise UsageError(f"{text!r}: matrix.yaml has no {sm}; the nearest there is {self._nearest_sm(sm)}")
        raise UsageError(
            f"there is no GPU {text!r} in matrix.yaml; the nearest name is {self.name_table.find_nearest(text)} "
            f"(`nvidia-smi --query-gpu=compute_cap --format=csv` prints the architecture of any card)"
        )

    def host_architecture(self, text: str) -> str | None:
        """Return the architecture of the CPU beside a card, `x86_64` or `aarch64`.

        The result is `None` when the text names no card, but a whole family or architecture. Raises as
        `find_capabilities` does.
        """
        self.find_capabilities(text)
        cards = self.name_table.match(text).cards
        if not cards:
            return None
        return "aarch64" if self.aarch64.issuperset(cards) else "x86_64"

    def has_arm_host(self, text: str) -> bool:
        """Return whether a card, or every card that a text means, stands beside a CPU of Arm.

        Raises as `find_capabilities` does.
        """
        meant = self.find_capabilities(text)
        return self.host_architecture(text) == "aarch64" or self.has_only_arm_hosts(meant)

    @cached_property
    def machines(self) -> tuple[GpuMachine, ...]:
        """All kinds of machines, by architecture; one with a CPU of Arm comes after that of x86-64."""
        machines = []
        for sm, (_, cards) in self.sections.items():
            arm = tuple(card for card in cards if card in self.aarch64)
            usual = tuple(card for card in cards if card not in self.aarch64)
            if usual:
                machines.append(GpuMachine(name=sm, sm=sm, host=DEFAULT_HOST, cards=usual, query=sm))
            if arm:
                name, query = (f"{sm}-{HostArchitecture.AARCH64}", arm[0]) if usual else (sm, sm)
                machine = GpuMachine(name=name, sm=sm, host=HostArchitecture.AARCH64, cards=arm, query=query)
                machines.append(machine)
        return tuple(machines)

    def find_machines(self, text: str) -> list[GpuMachine]:
        """Return the kinds of machines that a name means; several for a family. Raises as `find_capabilities` does."""
        meant, arm = self.find_capabilities(text), self.has_arm_host(text)
        host = HostArchitecture.AARCH64 if arm else DEFAULT_HOST
        return [item for item in self.machines if item.sm in meant and item.host is host]

    def has_only_arm_hosts(self, capabilities: Iterable[str]) -> bool:
        """Return whether all cards of these architectures stand beside a CPU of Arm."""
        cards = {card for name in capabilities for card in self.sections[name][1]}
        return self.aarch64.issuperset(cards)

    def _nearest_sm(self, sm: str) -> str:
        wanted = int(sm.removeprefix("sm_"))
        return self.describe(min(self.sections, key=lambda name: abs(int(name.removeprefix("sm_")) - wanted)))


def gpu_catalog_from_sections(sections: Mapping[str, Mapping[str, object]]) -> GpuCatalog:
    """Return the table for the section `gpus` of matrix.yaml, given as plain data."""
    return GpuCatalog(
        {
            sm: (str(item.get("family", "")), tuple(map(str, _as_list(item.get("cards", [])))))
            for sm, item in sections.items()
        },
        aarch64=frozenset(str(card) for item in sections.values() for card in _as_list(item.get("aarch64", []))),
    )


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


_ARCH = lazy_pattern(r"(\d+)([af]?)")


def parse_capability(text: str) -> tuple[int, int]:
    """Return the major and minor number of a compute capability.

    `sm_90`, `90` and `90a` are (9, 0), `121` is (12, 1). Raises `ValueError` for anything else.
    """
    digits = _ARCH.fullmatch(text.removeprefix("sm_"))
    if digits is None:
        raise ValueError(f"{text!r} is not an architecture; write for example sm_90")
    return int(digits[1][:-1]), int(digits[1][-1])


def code_runs_on_gpu(gpu: str, sass: Iterable[str], ptx: Iterable[str] = ()) -> bool:
    """Whether a binary with this machine code (SASS) and PTX runs on a GPU.

    Machine code runs within its major version, from its own minor version upwards: 80 runs on 8.6, but 86 not on 8.0
    and 100 not on 12.0. With the suffix `a` it runs only on that very capability, with `f` within the family from that
    minor version upwards. The driver compiles PTX for any equal or newer capability; `a` and `f` restrict PTX in the
    same way as machine code.
    """
    capability = parse_capability(gpu)
    return any(_sass_runs(capability, text) for text in sass) or any(_ptx_runs(capability, text) for text in ptx)


def _sass_runs(capability: tuple[int, int], arch: str) -> bool:
    built = parse_capability(arch)
    if arch.endswith("a"):
        return capability == built
    return capability[0] == built[0] and capability[1] >= built[1]


def _ptx_runs(capability: tuple[int, int], arch: str) -> bool:
    return _sass_runs(capability, arch) if arch[-1] in "af" else capability >= parse_capability(arch)
