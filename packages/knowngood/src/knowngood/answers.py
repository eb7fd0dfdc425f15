"""The supported Python interface: what `pick`, `check` and `diagnose` answer, as their documents of `--json`.

Each function answers as the command of its name, in this process. `pick` and `check` need `knowngood-facts`, `diagnose`
needs `knowngood-diagnose`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knowngood.cli import main


def pick(*packages: str, gpu: str | None = None, driver: str | None = None, attn: str | None = None) -> dict[str, Any]:
    """Return the best cells for a request, or the demands that contradict each other.

    Args:
        packages: requirements, such as `transformers==5.17.0`.
        gpu: a card, a family or an architecture: `RTX 4090`, `Hopper`, `sm_90`.
        driver: the version of the NVIDIA driver.
        attn: the attention setting that must train: `sdpa`, `fa2`, `flash_attention_2`.

    Returns:
        The document of `knowngood pick --json`: `cells` (the best first) or `conflict`.

    Raises:
        UsageError: a name or a version cannot be read; the message has the nearest.
        KnowngoodError: anything else that the command ends with; `exit_code` is the command's.
    """
    return _ask("pick", *packages, *_options(gpu=gpu, driver=driver, attn=attn))


def check(*packages: str, gpu: str | None = None, driver: str | None = None, attn: str | None = None) -> dict[str, Any]:
    """Return whether a combination works: `verdict` is `verified`, `compatible`, `broken` or `unknown`.

    Takes and raises what `pick` does. `findings` has the reasons, `suggestion` the smallest change that works.
    """
    return _ask("check", *packages, *_options(gpu=gpu, driver=driver, attn=attn))


def diagnose(log: Path) -> dict[str, Any]:
    """Return the known failures in a log file, the best match first; `matches` is empty where none is known."""
    return _ask("diagnose", str(log))


def _options(**values: str | None) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def _ask(*words: str) -> dict[str, Any]:
    answer, arguments = main.answer_words(words)
    document: dict[str, Any] = main.with_schema(answer.document, arguments)
    return document
