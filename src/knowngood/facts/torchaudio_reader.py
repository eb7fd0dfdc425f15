"""torchaudio's wheels: which functions of torch's stable C interface its libraries call.

From 2.11 on torchaudio declares no requirement on torch, because its libraries call nothing but that interface. Which
of its functions a torch has is in `TorchFacts.stable_functions`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from knowngood.facts.fact_reader import FactReader, IndexedRelease, ReleaseReading, choose_wheel_by
from knowngood.index.artefact import Artefact, UnreadableError

_PREFIX = "torch_"
"""How the names of the functions begin; those of the older interface (`aoti_torch_`) are not looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchaudioFacts:
    """torchaudio's wheel for Linux x86_64."""

    torch_functions: tuple[str, ...] | None
    """The functions of torch's stable C interface that its libraries call, sorted; their dynamic symbols."""


def read_torchaudio(artefact: Artefact, _: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `TorchaudioFacts`)."""
    libraries = [member for member in artefact.members if member.endswith(".so")]
    reading.take(
        "torch_functions",
        lambda: sorted({name for member in libraries for name in find_called_functions(artefact, member)}),
    )


def find_called_functions(artefact: Artefact, member: str) -> list[str]:
    """Return the functions of torch's stable C interface that a library calls.

    Raises `UnreadableError` when it is no ELF file, or has no dynamic symbols.
    """

    def find() -> list[str]:
        try:
            table = ELFFile(io.BytesIO(artefact.read(member))).get_section_by_name(".dynsym")
        except ELFError as error:
            raise UnreadableError(f"{member} is not a shared library: {error}") from None
        if not isinstance(table, SymbolTableSection):
            raise UnreadableError(f"{member} has no dynamic symbols")
        called = (symbol for symbol in table.iter_symbols() if symbol["st_shndx"] == "SHN_UNDEF")
        needed = (symbol.name for symbol in called if symbol["st_info"]["bind"] != "STB_WEAK")
        return sorted(name for name in needed if name.startswith(_PREFIX))

    names: list[str] = artefact.derived(f"torch-functions of {member}", find)
    return names


READERS = (
    FactReader(
        package="torchaudio",
        revision=1,
        model=TorchaudioFacts,
        choose=choose_wheel_by("-cp311-cp311-", "-cp310-cp310-", "-cp312-cp312-"),
        read=read_torchaudio,
    ),
)
