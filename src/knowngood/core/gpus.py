"""GPUs by card, family or compute capability: `H100 80GB HBM3`, `RTX 5000 16GB`, `Volta`, `sm_70`, `7.0`.

The cards are those of matrix.yaml. A name is a sequence of words. Memory sizes, form factors and the maker's prefixes
do not determine the architecture and are ignored. `RTX 5000` is Turing, but `RTX 5000 Ada` is not, and neither is a
GeForce of the 50 series. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from knowngood.core.errors import UsageError

_PREFIXES = {"nvidia", "grid", "geforce", "quadro", "tesla", "graphics", "gpu", "device", "generation"}
_FORMS = {"pcie", "nvl", "hgx", "dgx", "spark", "server", "workstation", "laptop", "mobile", "max", "q", "edition"}
_FORMS |= {"hbm2", "hbm2e", "hbm3", "hbm3e", "super", "ti", "d"}
_SIZE = re.compile(r"\d+ ?(gb|gib|g)\b|\bsxm\d?\b|\b\d+x\b")


@dataclass(frozen=True)
class GpuCatalog:
    """The GPUs of matrix.yaml."""

    sections: Mapping[str, tuple[str, tuple[str, ...]]]
    """Compute capability -> its family and its cards."""

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
    def _cards(self) -> dict[tuple[str, ...], str]:
        return {_words(card): sm for sm, (_, cards) in self.sections.items() for card in cards}

    def find_capabilities(self, text: str) -> list[str]:
        """Return the compute capabilities that a name means: one, or all of a family.

        Raises `UsageError` with the nearest known name when the text names no GPU of matrix.yaml.
        """
        name = text.strip()
        number = re.fullmatch(r"(?:sm|compute)?[_ -]?(\d{1,2})\.?(\d)[af]?", name.lower())
        if number:
            sm = f"sm_{number[1]}{number[2]}"
            if sm in self.sections:
                return [sm]
            raise UsageError(f"{text!r}: matrix.yaml has no {sm}; the nearest there is {self._nearest_sm(sm)}")
        families = [sm for sm, (family, _) in self.sections.items() if family.lower() == name.lower()]
        if families:
            return families
        words = _words(name)
        for length in range(len(words), 0, -1):
            card_sm = self._cards.get(words[:length])
            if card_sm and set(words[length:]) <= _FORMS:
                return [card_sm]
        # `Quadro` and `GeForce` tell cards apart that share a number. Without them the number decides.
        for length in range(len(words), 0, -1):
            bare = _bare(words[:length])
            matches = {sm for card, sm in self._cards.items() if _bare(card) == bare}
            if bare and len(matches) == 1 and set(words[length:]) <= _FORMS:
                return sorted(matches)
        raise UsageError(f"there is no GPU {text!r} in matrix.yaml; the nearest name is {self._nearest_name(name)}")

    def _nearest_sm(self, sm: str) -> str:
        wanted = int(sm.removeprefix("sm_"))
        return self.describe(min(self.sections, key=lambda name: abs(int(name.removeprefix("sm_")) - wanted)))

    def _nearest_name(self, name: str) -> str:
        known = {" ".join(_words(card)): card for _, cards in self.sections.values() for card in cards}
        known |= {family.lower(): family for family, _ in self.sections.values()} | {sm: sm for sm in self.sections}
        near = difflib.get_close_matches(" ".join(_words(name)) or name.lower(), known, 1, 0)
        return known[near[0]]


def _words(text: str) -> tuple[str, ...]:
    cleaned = re.sub(r"\b(rtx|gtx)(?=\d)", r"\1 ", _SIZE.sub(" ", re.sub(r"[-_/()]", " ", text.lower())))
    words = re.findall(r"[a-z0-9.]+", cleaned)
    return tuple(word for word in words if word not in _PREFIXES - {"quadro", "geforce"})


def _bare(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(word for word in words if word not in _PREFIXES)


def gpu_catalog_from_sections(sections: Mapping[str, Mapping[str, object]]) -> GpuCatalog:
    """Return the table for the section `gpus` of matrix.yaml, given as plain data."""
    return GpuCatalog(
        {
            sm: (str(item.get("family", "")), tuple(map(str, _as_list(item.get("cards", [])))))
            for sm, item in sections.items()
        }
    )


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
