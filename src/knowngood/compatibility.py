"""The compatibility tables, rendered from facts by `knowngood render`.

Pure: facts in, Markdown out. A test renders them anew and fails when the committed page differs.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from knowngood import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from knowngood.models import FlashAttn, FlashAttn4, Framework, Torch, TransformerEngine, Transformers, Triton

Fact = TypeVar("Fact")
Row = tuple[str, ...]
Section = tuple[str, str, "Sequence[str]", "list[Row]"]
"""Title, text, head and rows of a table."""

GPUS = {
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
`knowngood harvest` reads them again. Rows of releases that do not differ are joined, yanked ones left out.
"?" means not known.
"""
_TORCH_CODE = """\
The machine code in `libtorch_cuda.so`. None of these releases carries PTX, so a GPU without machine code of its major
architecture cannot run them at all, however new the driver."""
_TORCH_PINS = """\
The wheel that the default index serves for Linux x86_64. The driver is NVIDIA's least for that CUDA with minor version
compatibility."""
_TRANSFORMERS = """\
"Declared" stands in its metadata and stops nothing; below "enforced" it acts as if torch were not there."""
_FLASH_ATTN = """\
No release writes PTX. "Runs beyond sm_90" is its own check at run time. "Backward limits" need exactly sm_80 or sm_90,
so not consumer GPUs. "Extensions" are sources for `rotary`, `layer_norm` and the like in the sdist, which installing
flash-attn does not build. The last column: importing its rotary module needs triton."""
_FLASH_ATTN_4 = """\
What its own assertions let pass; training needs the backward pass. transformers lets it pass from 9.0 only."""
_TRITON = """\
The assembler decides the GPUs that it can compile for: CUDA 13's knows no sm_70 any more. `libcuda` is the file it
links with when the first kernel runs."""


def code_for(sass: Iterable[str], ptx: Iterable[str], gpu: str) -> str | None:
    """The code that a GPU runs: machine code of its own or an older minor release of its major, else PTX, else none.

    Code with a suffix (`90a`) runs on exactly its own architecture, so it never serves another.
    """

    def fits(arch: str) -> bool:
        return arch.isdigit() and int(arch) // 10 == int(gpu) // 10 and int(arch) <= int(gpu)

    machine = [arch for arch in sass if fits(arch)]
    if machine:
        return max(machine, key=int)
    portable = [arch for arch in ptx if arch.isdigit() and int(arch) <= int(gpu)]
    return f"{max(portable, key=int)} (PTX)" if portable else None


def ranges(package: facts.Package[Fact], row: Callable[[Fact], Row]) -> list[Row]:
    """One row a run of releases with the same cells, newest first; its first cell names the run."""
    known = [(version, row(release.facts)) for version, release in package.items() if not release.yanked]
    found: list[Row] = []
    for cells, run in groupby(known, key=lambda pair: pair[1]):
        versions = [version for version, _ in run]
        name = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
        found.append((name, *cells))
    return found[::-1]


def table(head: Sequence[str], rows: Iterable[Row]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def torch_rows(package: facts.Package[Torch], drivers: facts.Package[object]) -> list[Row]:
    """Rows of torch x CUDA x triton x what its libraries need."""

    def row(torch: Torch) -> Row:
        driver = drivers.get(torch.cuda or "")
        return (
            torch.cuda or "?",
            str(getattr(driver.facts, "minimum", None) or "?") if driver else "?",
            torch.triton_requires or "?",
            torch.cudnn or "?",
            _span(torch.pythons),
            torch.glibc or "?",
            {True: "yes", False: "no", None: "?"}[torch.cxx11abi],
        )

    return ranges(package, row)


def gpu_rows(package: facts.Package[Torch]) -> list[Row]:
    """Rows of torch x GPU: the machine code that each would run."""

    def cell(torch: Torch, gpu: str) -> str:
        if torch.sass is None:
            return "?"
        code = code_for(torch.sass, torch.ptx or (), gpu)
        return "no" if code is None else "yes" if code == gpu else f"as sm_{code}"

    return ranges(package, lambda torch: (torch.cuda or "?", *(cell(torch, gpu) for gpu in GPUS)))


def transformers_rows(package: facts.Package[Transformers]) -> list[Row]:
    """Rows of transformers x torch x attention x flash-attn."""

    def row(it: Transformers) -> Row:
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

    return ranges(package, row)


def flash_attn_rows(package: facts.Package[FlashAttn]) -> list[Row]:
    """Rows of flash-attn x nvcc x architecture."""

    def row(it: FlashAttn) -> Row:
        return (
            it.requires_python or "?",
            it.cuda_minimum or "?",
            ", ".join(f"sm_{arch} (nvcc {floor})" for arch, floor in (it.sass or {}).items()) or "?",
            {True: "yes", False: "no", None: "?"}[it.newer_than_sm90],
            it.backward_needs_sm80_or_sm90 or "none",
            ", ".join(it.extensions or ()) or "none",
            _rotary((it.needs or {}).get("flash_attn.layers.rotary", ())),
        )

    return ranges(package, row)


def _rotary(needs: Sequence[str]) -> str:
    if "flash_attn.ops.triton.rotary" in needs:
        return "yes, but its file is missing"
    return "yes" if "triton" in needs else "no"


def flash_attn_4_rows(package: facts.Package[FlashAttn4]) -> list[Row]:
    """Rows of flash-attn-4 x GPU."""

    def majors(of: tuple[int, ...] | None) -> str:
        return ", ".join(f"{major}.x" for major in of) if of else "?"

    def row(it: FlashAttn4) -> Row:
        return (
            majors(it.forward_majors),
            majors(it.backward_majors),
            (it.requires or {}).get("nvidia-cutlass-dsl", "?"),
        )

    return ranges(package, row)


def transformer_engine_rows(package: facts.Package[TransformerEngine]) -> list[Row]:
    """Rows of TransformerEngine x flash-attn."""

    def row(it: TransformerEngine) -> Row:
        if it.flash_attn_maximum is None:
            return ("?", "?")
        upper = f"<={it.flash_attn_maximum}" if it.flash_attn_maximum_included else f"<{it.flash_attn_maximum}"
        blackwell = it.flash_attn_minimum_blackwell
        return (f">={it.flash_attn_minimum},{upper}", f">={blackwell},{upper}" if blackwell else "not told apart")

    return ranges(package, row)


def triton_rows(package: facts.Package[Triton]) -> list[Row]:
    """Rows of triton x Python x assembler."""
    return ranges(
        package,
        lambda it: (_span(it.pythons), it.ptxas or "?", it.ptxas_blackwell or "none", it.libcuda or "?"),
    )


def framework_rows(package: facts.Package[Framework]) -> list[Row]:
    """Rows of xtuner or openrlhf x what it pins."""

    def row(it: Framework) -> Row:
        names = ("torch", "transformers", "flash-attn")
        pins = ((it.requires or {}).get(name) for name in names)
        return (it.requires_python or "?", *("not named" if pin is None else pin or "any" for pin in pins))

    return ranges(package, row)


def _span(pythons: tuple[str, ...] | None) -> str:
    return f"{pythons[0]} to {pythons[-1]}" if pythons else "?"


def readme() -> str:
    """The short table of the README: each torch with its CUDA, triton and GPUs."""
    torch = facts.load("torch")
    gpus = ("70", "75", "80", "90", "100", "120")

    def row(it: Torch) -> Row:
        runs = (code_for(it.sass or (), it.ptx or (), gpu) for gpu in gpus)
        return (
            it.cuda or "?",
            it.triton or "?",
            *("?" if it.sass is None else "yes" if code else "no" for code in runs),
        )

    return table(["torch", "CUDA", "triton", *(f"sm_{gpu}<br>{GPUS[gpu]}" for gpu in gpus)], ranges(torch, row))


def page() -> str:
    """The whole of `docs/compatibility.md`."""
    return _BANNER + "".join(_section(title, text, table(head, rows)) for title, text, head, rows in sections())


def sections() -> list[Section]:
    """The tables."""
    torch = facts.load("torch")
    return [
        (
            "torch: which GPUs its binaries carry code for",
            _TORCH_CODE,
            ["torch", "CUDA", *(f"sm_{gpu}<br>{name}" for gpu, name in GPUS.items())],
            gpu_rows(torch),
        ),
        (
            "torch: what it pins and needs",
            _TORCH_PINS,
            ["torch", "CUDA", "driver", "triton", "cuDNN", "Python", "glibc", "C++11 ABI"],
            torch_rows(torch, facts.load("drivers")),
        ),
        (
            "transformers: torch, attention, flash-attn",
            _TRANSFORMERS,
            [
                "transformers",
                "Python",
                "torch declared",
                "torch enforced",
                "flash-attn 2",
                "flash attention families",
                "FlexAttention",
                "least GPU checked",
            ],
            transformers_rows(facts.load("transformers")),
        ),
        (
            "flash-attn: what its sdist can build",
            _FLASH_ATTN,
            [
                "flash-attn",
                "Python",
                "nvcc",
                "machine code",
                "runs beyond sm_90",
                "backward limits",
                "extensions",
                "triton rotary",
            ],
            flash_attn_rows(facts.load("flash-attn")),
        ),
        (
            "flash-attn-4: GPUs by compute capability",
            _FLASH_ATTN_4,
            ["flash-attn-4", "forward", "backward", "CuTe DSL"],
            flash_attn_4_rows(facts.load("flash-attn-4")),
        ),
        (
            "TransformerEngine: which flash-attn its code accepts",
            "",
            ["transformer-engine", "flash-attn", "on sm_100 and newer"],
            transformer_engine_rows(facts.load("transformer-engine")),
        ),
        (
            "triton: Python and assembler",
            _TRITON,
            ["triton", "Python", "ptxas", "ptxas for Blackwell", "libcuda"],
            triton_rows(facts.load("triton")),
        ),
        *(
            (
                f"{name}: what it demands",
                "",
                [name, "Python", "torch", "transformers", "flash-attn"],
                framework_rows(facts.load(name)),
            )
            for name in ("xtuner", "openrlhf")
        ),
    ]


def _section(title: str, text: str, body: str) -> str:
    return "\n".join(["", f"## {title}", "", *([text, ""] if text else []), body])
