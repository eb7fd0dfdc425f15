"""A small matrix, its facts and its locks, for tests."""

from __future__ import annotations

import hashlib
from pathlib import Path

from knowngood.core import matrix
from knowngood.lock.cell_lock import Distribution

ROOT = Path(__file__).resolve().parents[4]

FA4 = "sm90-cu130-torch2.11.0-tf5.17.0-fa4.0.0b36-triton3.6.0-py311"
FA2 = "sm90-cu130-torch2.11.0-tf4.57.6-fa2.8.3.post2-triton3.6.0-py311"
FA0 = "sm90-cu130-torch2.11.0-tf4.57.6-fa0-triton3.6.0-py311"

MATRIX = """\
schema: 1
locked-at: 2026-11-20
gpus:
  sm_90: {family: Hopper, cards: [H100, H200]}
  sm_100: {family: Blackwell, cards: [B200]}
bases:
  debian12:
    python: 3.11
    glibc: 2.36
    bootstrap: {suite: bookworm, packages: [python3, gcc]}
everywhere: [pytest]
layers:
  torch: torch
  flash-attn: [flash-attn, flash-attn-4]
  python: "*"
amendments:
  - when: flash-attn=4.*,cuda>=13
    require: "flash-attn-4[cu13]"
    exclude: nvidia-cutlass-dsl-libs-cu12
    because: one CUDA in an image
cells:
  - gpu: sm_90
    torch: 2.11.0
    transformers: 5.17.0
    flash-attn: 4.0.0b36
    base: debian12
  - gpu: sm_90
    torch: 2.11.0
    transformers: 4.57.6
    flash-attn: [2.8.3.post2, none]
    base: debian12
aliases:
  default: sm90-cu130-torch2.11.0-tf5.17.0-fa4.0.0b36-triton3.6.0-py311
floors: {torch: 2.0}
"""

KNOWLEDGE = matrix.MatrixFacts(
    torch={
        "2.11.0": matrix.TorchPins(cuda="13.0", triton="3.6.0", pythons=("3.11", "3.12")),
        "2.10.0": matrix.TorchPins(cuda="12.8", triton="3.5.1", pythons=("3.12",)),
    },
    releases={
        "transformers": ["4.57.6", "5.17.0"],
        "flash-attn": ["2.8.3.post2"],
        "flash-attn-4": ["4.0.0b36"],
        "xtuner": ["0.1.23"],
    }.get,
)


def parsed(text: str = MATRIX) -> matrix.Matrix:
    return matrix.parse_matrix(text, "matrix.yaml", KNOWLEDGE)


def with_(*changes: tuple[str, str], text: str = MATRIX) -> str:
    """Return the text with the first occurrence of each old part replaced."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def distribution(name: str, version: str = "1.0", size: int = 1000) -> Distribution:
    sha256 = hashlib.sha256(f"{name} {version}".encode()).hexdigest()
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Distribution(name=name, version=version, file=file, sha256=sha256, size=size)


def distributions(identity: str) -> list[Distribution]:
    """Return the distributions of a lock that fits one of the three cells."""
    pins = {"torch": "2.11.0", "triton": "3.6.0", "nvidia-cuda-runtime": "13.0.96", "numpy": "2.4.6"}
    pins |= {
        FA4: {"transformers": "5.17.0", "flash-attn-4": "4.0.0b36"},
        FA2: {"transformers": "4.57.6", "flash-attn": "2.8.3.post2+cu13torch2.11cxx11abitrue.sm90"},
        FA0: {"transformers": "4.57.6"},
    }[identity]
    return [distribution(name, version) for name, version in pins.items()]
