"""The compatibility tables of docs/compatibility.md and the site, rendered from facts.

A test renders the page again and fails when the committed one differs.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from knowngood_facts.facts import fact_store
from knowngood_facts.facts.driver_reader import DriverFacts
from knowngood_facts.facts.flash_attn_reader import FlashAttn4Facts, FlashAttnFacts
from knowngood_facts.facts.framework_reader import FrameworkFacts, TransformersFacts
from knowngood_facts.facts.kernel_reader import TransformerEngineFacts, TritonFacts
from knowngood_facts.facts.torch_reader import TorchFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Fact = TypeVar("Fact")
TableRow = tuple[str, ...]
TableSection = tuple[str, str, "Sequence[str]", "list[TableRow]"]
"""Title, text, head and rows of a table."""

TABLE_GPUS = {
    "60": "P100",
    "70": "V100",
    "75": "T4, RTX 20",
    "80": "A100",
    "86": "A10, RTX 30",
    "89": "L4, RTX 40",
    "90": "H100, H200",
    "100": "B200",
    "103": "B300",
    "120": "RTX 50",
}
"""The GPUs that the tables show, by architecture."""

_BANNER = """\
<!-- Generated from facts/ by `knowngood render`; do not edit. -->

# Compatibility, read from the published artefacts

Every cell is read from a wheel or sdist on the package registry; `facts/` has the file and the date of each, and
`knowngood harvest` reads them again. Releases that do not differ share a row; yanked ones are left out.
"?" means not known.
"""
_TORCH_CODE = """\
The machine code in `libtorch_cuda.so`. None of these releases carries PTX, so a GPU without machine code of its major
architecture cannot run them at all, however new the driver."""
_TORCH_PINS = """\
The wheel that the default index serves for Linux x86_64. The driver is NVIDIA's least for that CUDA with minor version
compatibility."""
_TRANSFORMERS = """\
"Declared" is in its metadata and prevents nothing; below "enforced" it behaves as if torch were not installed."""
_FLASH_ATTN = """\
No release writes PTX. "Runs beyond sm_90" is its own check at run time. "Backward limits" need exactly sm_80 or sm_90,
so consumer GPUs are excluded. "Extensions" are sources for `rotary`, `layer_norm` and the like in the sdist, which
installing flash-attn does not build. The last column: importing its rotary module needs triton."""
_FLASH_ATTN_4 = """\
What its own assertions accept; training needs the backward pass. transformers accepts it from 9.0 only."""
_TRITON = """\
The assembler decides the GPUs that it can compile for: that of CUDA 13 no longer knows sm_70. `libcuda` is the file it
links with when the first kernel runs."""


def find_gpu_code(sass: Iterable[str], ptx: Iterable[str], gpu: str) -> str | None:
    """Return the architecture whose code a GPU runs, or `None`.

    That is machine code for its own architecture or an older one of the same major version, else PTX. Code with a
    suffix (`90a`) runs on exactly its own architecture, so it is never an answer for another one.
    """

    def fits(arch: str) -> bool:
        return arch.isdigit() and int(arch) // 10 == int(gpu) // 10 and int(arch) <= int(gpu)

    machine = [arch for arch in sass if fits(arch)]
    if machine:
        return max(machine, key=int)
    portable = [arch for arch in ptx if arch.isdigit() and int(arch) <= int(gpu)]
    return f"{max(portable, key=int)} (PTX)" if portable else None


def rows_by_release(package: fact_store.PackageFacts[Fact], row: Callable[[Fact], TableRow]) -> list[TableRow]:
    """Return the rows of a table, newest first; successive releases with the same cells share a row.

    `row` gives the cells of a release; the first cell of each row names the releases.
    """
    known = [(version, row(release.facts)) for version, release in package.items() if not release.yanked]
    rows: list[TableRow] = []
    for cells, run in groupby(known, key=lambda pair: pair[1]):
        versions = [version for version, _ in run]
        name = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
        rows.append((name, *cells))
    return rows[::-1]


def render_markdown_table(head: Sequence[str], rows: Iterable[TableRow]) -> str:
    """Return a table as Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def torch_rows(
    package: fact_store.PackageFacts[TorchFacts], drivers: fact_store.PackageFacts[object]
) -> list[TableRow]:
    """Return the rows of torch x CUDA x triton x what its libraries need."""

    def row(torch: TorchFacts) -> TableRow:
        driver = drivers.get(torch.cuda or "")
        return (
            torch.cuda or "?",
            str(getattr(driver.facts, "minimum", None) or "?") if driver else "?",
            torch.triton_requires or "?",
            torch.cudnn or "?",
            _first_to_last(torch.pythons),
            torch.glibc or "?",
            {True: "yes", False: "no", None: "?"}[torch.cxx11abi],
        )

    return rows_by_release(package, row)


def gpu_rows(package: fact_store.PackageFacts[TorchFacts]) -> list[TableRow]:
    """Return the rows of torch x GPU: the machine code that each would run."""

    def cell(torch: TorchFacts, gpu: str) -> str:
        if torch.sass is None:
            return "?"
        code = find_gpu_code(torch.sass, torch.ptx or (), gpu)
        return "no" if code is None else "yes" if code == gpu else f"as sm_{code}"

    return rows_by_release(package, lambda torch: (torch.cuda or "?", *(cell(torch, gpu) for gpu in TABLE_GPUS)))


def transformers_rows(package: fact_store.PackageFacts[TransformersFacts]) -> list[TableRow]:
    """Return the rows of transformers x torch x attention x flash-attn."""

    def row(it: TransformersFacts) -> TableRow:
        attention = it.attention or ()
        families = [name.removeprefix("flash_attention_") for name in attention if name.startswith("flash_")]
        return (
            it.requires_python or "?",
            it.torch or ("any" if it.torch == "" else "?"),
            f">={it.torch_enforced}" if it.torch_enforced else "not checked",
            f">={it.flash_attn_minimum}" if it.flash_attn_minimum else "?",
            ", ".join(families) or "?",
            f"torch >={it.flex_torch}" if it.flex_torch else "yes" if "flex_attention" in attention else "no",
            ", ".join(f"FA{key}: sm_{value}0" for key, value in (it.flash_attention_min_major or {}).items())
            or "not checked",
        )

    return rows_by_release(package, row)


def flash_attn_rows(package: fact_store.PackageFacts[FlashAttnFacts]) -> list[TableRow]:
    """Return the rows of flash-attn x nvcc x architecture."""

    def row(it: FlashAttnFacts) -> TableRow:
        return (
            it.requires_python or "?",
            it.cuda_minimum or "?",
            ", ".join(f"sm_{arch} (nvcc {floor})" for arch, floor in (it.sass or {}).items()) or "?",
            {True: "yes", False: "no", None: "?"}[it.newer_than_sm90],
            it.backward_needs_sm80_or_sm90 or "none",
            ", ".join(it.extensions or ()) or "none",
            _rotary_needs_triton((it.needs or {}).get("flash_attn.layers.rotary", ())),
        )

    return rows_by_release(package, row)


def _rotary_needs_triton(needs: Sequence[str]) -> str:
    if "flash_attn.ops.triton.rotary" in needs:
        return "yes, but its file is missing"
    return "yes" if "triton" in needs else "no"


def flash_attn_4_rows(package: fact_store.PackageFacts[FlashAttn4Facts]) -> list[TableRow]:
    """Return the rows of flash-attn-4 x GPU."""

    def majors(of: tuple[int, ...] | None) -> str:
        return ", ".join(f"{major}.x" for major in of) if of else "?"

    def row(it: FlashAttn4Facts) -> TableRow:
        return (
            majors(it.forward_majors),
            majors(it.backward_majors),
            (it.requires or {}).get("nvidia-cutlass-dsl", "?"),
        )

    return rows_by_release(package, row)


def transformer_engine_rows(package: fact_store.PackageFacts[TransformerEngineFacts]) -> list[TableRow]:
    """Return the rows of TransformerEngine x flash-attn."""

    def row(it: TransformerEngineFacts) -> TableRow:
        if it.flash_attn_maximum is None:
            return ("?", "?")
        upper = f"<={it.flash_attn_maximum}" if it.flash_attn_maximum_included else f"<{it.flash_attn_maximum}"
        blackwell = it.flash_attn_minimum_blackwell
        return (f">={it.flash_attn_minimum},{upper}", f">={blackwell},{upper}" if blackwell else "not told apart")

    return rows_by_release(package, row)


def triton_rows(package: fact_store.PackageFacts[TritonFacts]) -> list[TableRow]:
    """Return the rows of triton x Python x assembler."""
    return rows_by_release(
        package,
        lambda it: (_first_to_last(it.pythons), it.ptxas or "?", it.ptxas_blackwell or "none", it.libcuda or "?"),
    )


def framework_rows(package: fact_store.PackageFacts[FrameworkFacts]) -> list[TableRow]:
    """Return the rows of xtuner or openrlhf x what it pins."""

    def row(it: FrameworkFacts) -> TableRow:
        names = ("torch", "transformers", "flash-attn")
        pins = ((it.requires or {}).get(name) for name in names)
        return (it.requires_python or "?", *("not named" if pin is None else pin or "any" for pin in pins))

    return rows_by_release(package, row)


def _first_to_last(pythons: tuple[str, ...] | None) -> str:
    return f"{pythons[0]} to {pythons[-1]}" if pythons else "?"


def render_compatibility_page() -> str:
    """Return the text of `docs/compatibility.md`."""
    return _BANNER + "".join(
        _render_section(title, text, render_markdown_table(head, rows))
        for title, text, head, rows in list_compatibility_tables()
    )


def list_compatibility_tables() -> list[TableSection]:
    """Return all tables, in the order of the page."""
    torch = fact_store.load_facts("torch", TorchFacts)
    gpus = " | ".join(f"sm_{gpu}<br>{name}" for gpu, name in TABLE_GPUS.items())
    sections: list[tuple[str, str, str, list[TableRow]]] = [
        ("torch: which GPUs its binaries carry code for", _TORCH_CODE, f"torch | CUDA | {gpus}", gpu_rows(torch)),
        (
            "torch: what it pins and needs",
            _TORCH_PINS,
            "torch | CUDA | driver | triton | cuDNN | Python | glibc | C++11 ABI",
            torch_rows(torch, fact_store.load_facts("drivers", DriverFacts)),
        ),
        (
            "transformers: torch, attention, flash-attn",
            _TRANSFORMERS,
            (
                "transformers | Python | torch declared | torch enforced | flash-attn 2 | flash attention families"
                " | FlexAttention | least GPU checked"
            ),
            transformers_rows(fact_store.load_facts("transformers", TransformersFacts)),
        ),
        (
            "flash-attn: what its sdist can build",
            _FLASH_ATTN,
            (
                "flash-attn | Python | nvcc | machine code | runs beyond sm_90 | backward limits | extensions"
                " | triton rotary"
            ),
            flash_attn_rows(fact_store.load_facts("flash-attn", FlashAttnFacts)),
        ),
        (
            "flash-attn-4: GPUs by compute capability",
            _FLASH_ATTN_4,
            "flash-attn-4 | forward | backward | CuTe DSL",
            flash_attn_4_rows(fact_store.load_facts("flash-attn-4", FlashAttn4Facts)),
        ),
        (
            "TransformerEngine: which flash-attn its code accepts",
            "",
            "transformer-engine | flash-attn | on sm_100 and newer",
            transformer_engine_rows(fact_store.load_facts("transformer-engine", TransformerEngineFacts)),
        ),
        (
            "triton: Python and assembler",
            _TRITON,
            "triton | Python | ptxas | ptxas for Blackwell | libcuda",
            triton_rows(fact_store.load_facts("triton", TritonFacts)),
        ),
    ]
    for name in ("xtuner", "openrlhf"):
        rows = framework_rows(fact_store.load_facts(name, FrameworkFacts))
        sections.append((f"{name}: what it demands", "", f"{name} | Python | torch | transformers | flash-attn", rows))
    return [(title, text, head.split(" | "), rows) for title, text, head, rows in sections]


def _render_section(title: str, text: str, body: str) -> str:
    return "\n".join(["", f"## {title}", "", *([text, ""] if text else []), body])
