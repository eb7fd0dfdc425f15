"""Foretell beside which torch published wheels load, from their symbols, and load them there for real.

    python packages/knowngood-facts/benchmarks/loading_window.py FOLDER 2.11.0 2.10.0

Each torch is installed with its CUDA libraries into FOLDER (7 GB, one at a time), so this needs uv, a network and
minutes. No GPU is needed: the dynamic linker resolves all symbols (RTLD_NOW). Libraries that link FFmpeg or SoX, which
no wheel brings, are left out. docs/decisions/0407 has what came out.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile

WHEELS = (
    *(f"torchvision=={release}" for release in ("0.21.0", "0.23.0", "0.24.1", "0.25.0", "0.26.0")),
    *(f"torchaudio=={release}" for release in ("2.6.0", "2.8.0", "2.9.1", "2.10.0", "2.11.0")),
    *(f"xformers=={release}" for release in ("0.0.29.post3", "0.0.32.post2", "0.0.33.post2", "0.0.34", "0.0.35")),
    *("torchao==0.12.0", "torchtext==0.18.0"),
)

OF_TORCH = re.compile(r"_Z\w*?(3c10|2at|5torch|6caffe2)|aoti_torch_|torch_|THP")
ELSEWHERE = ("libav", "libsw", "libsox")

LOAD = """
import ctypes, json, os, sys
sys.path.insert(0, sys.argv[1])
import torch
for wheel, libraries in json.loads(sys.argv[2]).items():
    if os.fork() == 0:
        try:
            [ctypes.CDLL(name, mode=os.RTLD_NOW) for name in libraries]
            print(json.dumps([wheel, ""]), flush=True)
        except OSError as error:
            print(json.dumps([wheel, str(error)]), flush=True)
        os._exit(0)
    os.wait()
"""


def install(words: list[str], folder: Path, *options: str) -> None:
    """Install distributions into a folder that is not there yet; raises `CalledProcessError` when uv fails."""
    if not folder.exists():
        command = ["uv", "pip", "install", "-q", "--python", sys.executable, "--target", str(folder), *options, *words]
        subprocess.run(command, check=True)


def read_library(path: Path) -> tuple[set[str], set[str], set[str]]:
    """Return the symbols of torch that a library has, those that it needs, and the libraries that it needs."""
    with path.open("rb") as opened:
        elf = ELFFile(opened)
        symbols = [item for item in elf.get_section_by_name(".dynsym").iter_symbols() if OF_TORCH.match(item.name)]
        needed = {
            tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags() if tag.entry.d_tag == "DT_NEEDED"
        }
    undefined = [item for item in symbols if item["st_shndx"] == "SHN_UNDEF"]
    strong = {item.name for item in undefined if item["st_info"]["bind"] != "STB_WEAK"}
    return {item.name for item in symbols if item["st_shndx"] != "SHN_UNDEF"}, strong, needed


def find_libraries(folder: Path) -> dict[Path, tuple[set[str], set[str], set[str]]]:
    """Return the libraries of a wheel that need torch and nothing that no wheel brings."""
    read = {path: read_library(path) for path in sorted(folder.rglob("*.so")) if ".libs" not in str(path)}
    own = {path.name for path in read}
    return {
        path: item
        for path, item in read.items()
        if item[1] and not item[2] & own and not any(name.startswith(ELSEWHERE) for name in item[2])
    }


def foretell(wheels: Path, torch: Path) -> Iterator[tuple[str, list[str], str]]:
    """Yield each wheel, its libraries, and why it does not load beside a torch; empty when it does."""
    exported = set[str]().union(*(read_library(path)[0] for path in (torch / "torch/lib").glob("*.so")))
    runtimes = {path.name for path in torch.glob("nvidia/**/libcudart.so.*")}
    for wheel in WHEELS:
        libraries = find_libraries(wheels / wheel)
        own = set[str]().union(*(defined for defined, _, _ in libraries.values()))
        missing = set[str]().union(*(needs for _, needs, _ in libraries.values())) - own - exported
        cuda = {name for *_, needed in libraries.values() for name in needed if name.startswith("libcudart.so.")}
        bundled = any((wheels / wheel).glob("*.libs/libcudart*"))
        why = min(missing, default="") or ("" if bundled else min(cuda - runtimes, default=""))
        yield wheel, [str(path) for path in libraries], why


def main() -> None:
    """Print a line for each pair: wheel, torch, what was foretold and what was seen; at the end how many agree."""
    folder, agreeing, pairs = Path(sys.argv[1]).resolve(), 0, 0
    for wheel in WHEELS:
        install([wheel], folder / "wheels" / wheel, "--no-deps")
    for release in sys.argv[2:]:
        torch = folder / "torch"
        install([f"torch=={release}", "numpy"], torch)
        foretold = {wheel: (libraries, why) for wheel, libraries, why in foretell(folder / "wheels", torch)}
        jobs = json.dumps({wheel: libraries for wheel, (libraries, _) in foretold.items() if libraries})
        command = [sys.executable, "-S", "-c", LOAD, str(torch), jobs]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for wheel, error in map(json.loads, output.splitlines()):
            why = foretold[wheel][1]
            pairs, agreeing = pairs + 1, agreeing + (bool(why) == bool(error))
            print(f"{wheel} beside torch {release}: foretold {why or 'loads'}; seen {error or 'loads'}")
        shutil.rmtree(torch)
    print(f"{agreeing} of {pairs} pairs came out as foretold")


if __name__ == "__main__":
    main()
