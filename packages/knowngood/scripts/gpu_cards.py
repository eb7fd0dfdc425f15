"""Write the names of NVIDIA's cards since Pascal, by compute capability, from the list of PCI ids.

    python packages/knowngood/scripts/gpu_cards.py /usr/share/misc/pci.ids

The list (Debian's package `pci.ids`) names the chip of each card. The capability of a chip is that of the cards of
matrix.yaml that have it; a chip without such a card has the capability of its siblings (TU117: of TU116), when these
agree. Only names that the table does not understand without them are kept.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

from knowngood.core.gpus import CARDS_FILE, GpuNameKind, GpuNameTable, card_words_beside_forms
from knowngood.core.yaml_document import parse_yaml_data

_CARD = re.compile(r"\t[0-9a-f]{4}  ((?:G[PVAHB]|TU|AD)[0-9]{2,3}B?)[A-Z]* ?(?:/ [^\[]*)?\[(.+)\]")
_NO_NAMES = re.compile(
    r"(?i)reserved|initial|switch|engineering|sku|skinny|generic|tegra|drive|hash rate|rev[.] |n1x"
    r"|^(?:ac )?(?:ad|g[ah])10\d|^gb300-|^rtx 2000$|^(?:max-?q|mobile)"
)
"""What is no name of a card for an ordinary host, or not a whole one (`RTX 2000 / 2000E Ada Generation`)."""


def read_cards(path: Path) -> list[tuple[str, str]]:
    """Return chip and card of each device of NVIDIA in the list of PCI ids, in its order."""
    vendor, cards = "", list[tuple[str, str]]()
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.match(r"[0-9a-f]{4} ", line):
            vendor = line[:4]
        match = _CARD.fullmatch(line) if vendor == "10de" else None
        if match:
            cards += [(match[1], name) for name in match[2].split(" / ") if not _NO_NAMES.search(name)]
    return cards


def find_capabilities(cards: list[tuple[str, str]], table: GpuNameTable) -> dict[str, str]:
    """Return chip -> capability; raises `ValueError` when cards of matrix.yaml on one chip disagree."""
    known: dict[str, set[str]] = defaultdict(set)
    for chip, name in cards:
        match = table.match(name)
        if match.kind is GpuNameKind.KNOWN and len(match.capabilities) == 1:
            known[chip].update(match.capabilities)
    if torn := [chip for chip, own in known.items() if len(own) > 1]:
        raise ValueError(f"cards of matrix.yaml with the chip {torn[0]} have different capabilities")
    capabilities = {chip: min(own) for chip, own in known.items()}
    for chip in sorted({chip for chip, _ in cards} - known.keys()):
        # Chips that end in 0 are for data centres, and have a capability of their own: GP100, GA100.
        siblings = {sm for other, sm in capabilities.items() if re.fullmatch(rf"{chip[:4]}[1-9]B?", other)}
        if len(siblings) == 1 and not chip.endswith("0"):
            capabilities[chip] = min(siblings)
    return capabilities


def main() -> None:
    """Write the file; the first argument is the list of PCI ids."""
    root = Path(__file__).parents[3]
    sections = parse_yaml_data((root / "matrix.yaml").read_text(), "matrix.yaml")["gpus"]
    own = {sm: (str(item["family"]), tuple(map(str, item["cards"]))) for sm, item in sections.items()}
    cards = read_cards(Path(sys.argv[1]))
    capabilities = find_capabilities(cards, GpuNameTable(own))
    added: dict[str, list[str]] = {sm: [] for sm in own}
    names = {
        (" ".join(card_words_beside_forms(name)).removesuffix(" blackwell"), capabilities.get(chip, ""))
        for chip, name in cards
    }
    for name, sm in sorted(names, key=lambda item: (len(item[0]), item)):
        if sm and name and GpuNameTable(own, added).match(name).capabilities != (sm,):
            added[sm].append(name)
    rows = ",\n".join(f"{json.dumps(sm)}: {json.dumps(sorted(names))}" for sm, names in added.items() if names)
    CARDS_FILE.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
