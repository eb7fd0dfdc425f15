"""The GPUs of matrix.yaml, by card, family or compute capability: `H100 80GB HBM3`, `Volta`, `sm_70`, `7.0`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from knowngood.core.errors import UnknownError, UsageError
from knowngood.core.gpu_names import GpuNameKind, GpuNameTable, name_words


class UncoveredGpuError(UnknownError):
    """An accelerator that exists and that the facts are not about (exit 3)."""


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
        return GpuNameTable(self.sections)

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
            f"there is no GPU {text!r} in matrix.yaml; the nearest name is {self._nearest_name(text)} "
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

    def has_only_arm_hosts(self, capabilities: Iterable[str]) -> bool:
        """Return whether all cards of these architectures stand beside a CPU of Arm."""
        cards = {card for name in capabilities for card in self.sections[name][1]}
        return self.aarch64.issuperset(cards)

    def _nearest_sm(self, sm: str) -> str:
        wanted = int(sm.removeprefix("sm_"))
        return self.describe(min(self.sections, key=lambda name: abs(int(name.removeprefix("sm_")) - wanted)))

    def _nearest_name(self, name: str) -> str:
        import difflib  # only here, because its import takes a while

        known = {" ".join(name_words(card)): card for _, cards in self.sections.values() for card in cards}
        known |= {family.lower(): family for family, _ in self.sections.values()} | {sm: sm for sm in self.sections}
        near = difflib.get_close_matches(" ".join(name_words(name)) or name.lower(), known, 1, 0)
        return known[near[0]]


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
