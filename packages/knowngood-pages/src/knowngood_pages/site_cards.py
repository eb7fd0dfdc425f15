"""What a card on the pages says about a cell: title, badge, contents, commands. Pure.

The templates and the script of the first page show these texts; neither makes its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from knowngood.core.attention import ATTENTION
from knowngood.core.cell import NO_FLASH_ATTN, NO_FRAMEWORK, Cell, flash_attn_package, parse_cell, parse_framework
from knowngood_pages.run_commands import ImageOrigin, RunCommand, fill_run_command, list_run_commands

if TYPE_CHECKING:
    from knowngood_pages.catalog import CatalogAttention, CatalogCell

SETTING_NAMES: Mapping[str, str] = {
    "sdpa": "SDPA",
    "eager": "eager",
    "sdpa-math": "SDPA math",
    "sdpa-flash": "SDPA flash",
    "sdpa-efficient": "SDPA efficient",
    "sdpa-cudnn": "SDPA cuDNN",
    "flex": "FlexAttention",
    "fa2": "FlashAttention 2",
    "fa3": "FlashAttention 3",
    "fa4": "FlashAttention 4",
}
"""Each attention setting as people call it."""
_USUAL_PYTHON = "3.11"
"""The Python of Debian 12, which nearly all cells have: their headings do not name it."""
_PACKAGE_SETTINGS = {"flash-attn": "fa2", "flash-attn-4": "fa4"}
MARK_MEANINGS: Mapping[str, str] = {
    "seen-on-gpu": "A tiny Qwen2 trained with it on that card: the loss and every gradient were compared with an fp64 "
    "reference, and the profile shows the setting's own kernels.",
    "seen-on-cpu": "A tiny Qwen2 trained in this image on a CPU. No run had the card: what its kernels do there is "
    "predicted from the packages' files.",
    "seen-emulated": "A tiny Qwen2 trained in this image on an emulated CPU. No run had a CPU of its own host, or the "
    "card: what its kernels do there is predicted from the packages' files.",
    "predicted": "Rules that were read from the packages' own files allow it. No run has tried it.",
    "refused": "A run on the card ended with an error.",
    "predicted-refusal": "Rules that were read from the packages' own files say that it ends with an error. No run has "
    "tried it.",
    "wrong": "A run saw it train wrongly, or break.",
    "not-run": "The image has no package or no code for it.",
    "unbuilt": "Rules that were read from the packages' own files allow it. No image of it was built or run.",
}
"""What each badge means, in sentences."""


def lead_setting(flash: str, attention: Mapping[str, CatalogAttention] | None = None) -> str:
    """Return the attention setting by which a cell is introduced.

    That is the one of its flash-attn (`flash`, the value of the axis), if it has one; else SDPA. With what is known of
    its settings, it is the first of these that is offered.
    """
    package = "" if flash == NO_FLASH_ATTN else flash_attn_package(flash)
    order = dict.fromkeys([_PACKAGE_SETTINGS.get(package, "sdpa"), *ATTENTION])
    offered = [name for name in order if attention is None or (name in attention and attention[name].trains)]
    return next(iter(offered), "sdpa")


def describe_evidence(cell: CatalogCell, item: CatalogAttention) -> str:
    """Return the words of a badge: what is known of one setting of a cell, and from which run."""
    run = cell.proof
    if item.mark == "seen-on-gpu" and run:
        place = "" if run.image else ", outside an image"
        return f"seen training on {_name_with_article(run.gpu or 'a GPU')} on {_day(run.when)}{place}"
    if item.mark in ("seen-on-cpu", "seen-emulated") and run:
        cpu = "a CPU" if item.mark == "seen-on-cpu" else "an emulated CPU"
        return f"predicted; seen on {cpu} only, on {_day(run.when)}"
    if item.mark == "refused" and run:
        return f"refused on {_name_with_article(run.gpu or 'a GPU')} on {_day(run.when)}"
    if item.mark == "wrong" and run:
        place = _name_with_article(run.gpu) if run.gpu else "a CPU"
        return f"wrong or broken on {place} on {_day(run.when)}"
    if item.mark == "predicted" and run and run.sm is None and run.image:
        cpu = "an emulated CPU" if cell.tier == "trains-emulated" else "a CPU"
        return f"predicted; its image ran on {cpu} only, on {_day(run.when)}"
    return {
        "predicted": "predicted to train; never run",
        "predicted-refusal": "predicted to be refused; never run",
    }.get(item.mark, item.text or item.state)


def _day(when: str) -> str:
    """Return the day of an ISO time in words; other text stays as it is."""
    try:
        moment = datetime.fromisoformat(when)
    except ValueError:
        return when
    return f"{moment.day} {moment:%B %Y}"


_MAKERS = re.compile(r"\b(NVIDIA|GeForce|Tesla|Quadro)\b ?")
_FORM = re.compile(r"[ -](?=\d+ ?GB\b|SXM|PCIe|HBM|NVL)")


def _name_with_article(gpu: str) -> str:
    """Return the name of a card as in a sentence: `an H100` for `NVIDIA H100 80GB HBM3`."""
    name = _FORM.split(_MAKERS.sub("", gpu).strip(), maxsplit=1)[0] or gpu
    if name.startswith("a "):
        return name
    spelled = re.match(r"[A-Z]+(?![a-z])", name)
    return f"{'an' if spelled and name[0] in 'AEFHILMNORSX' else 'a'} {name}"


def short_version(version: str) -> str:
    """Return a version without the patch number that says nothing: `2.11` for `2.11.0`."""
    return version.removesuffix(".0") if version.count(".") > 1 else version


def describe_contents(axes: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return what is in an image, as (name, version), in the order in which people ask for it."""
    flash = axes.get("flash-attn", NO_FLASH_ATTN)
    named = [
        ("torch", axes.get("torch", "")),
        ("transformers", axes.get("transformers", "")),
        ("flash-attn", "" if flash == NO_FLASH_ATTN else flash),
        *_framework(axes),
        ("CUDA", axes.get("cuda", "")),
        ("triton", axes.get("triton", "")),
        ("Python", axes.get("python", "")),
    ]
    return [(name, version) for name, version in named if version]


def _framework(axes: Mapping[str, str]) -> list[tuple[str, str]]:
    framework = axes.get("framework", NO_FRAMEWORK)
    return [] if framework == NO_FRAMEWORK else [parse_framework(framework)]


@dataclass(frozen=True, kw_only=True)
class CellCard:
    """What a card says about one cell of the catalog."""

    cell: CatalogCell
    gpu: str
    """The cards that it is for, in a few words."""
    build_time: str = ""
    """How long a build takes, in words."""

    @property
    def lead(self) -> str:
        """The setting by which it is introduced."""
        return lead_setting(self.cell.axes.get("flash-attn", NO_FLASH_ATTN), self.cell.attention)

    @property
    def title(self) -> str:
        """Its heading: card, torch, attention, the framework if there is one, and an unusual Python."""
        axes = self.cell.axes
        words = [self.gpu, *([f"torch {short_version(axes['torch'])}"] if "torch" in axes else [])]
        flash = axes.get("flash-attn", NO_FLASH_ATTN)
        words += [SETTING_NAMES[self.lead]]
        if flash != NO_FLASH_ATTN and self.lead != _PACKAGE_SETTINGS[flash_attn_package(flash)]:
            words += [f"flash-attn {flash}"]
        words += [f"{name} {version}" for name, version in _framework(axes)]
        words += [f"Python {axes['python']}"] if axes.get("python", _USUAL_PYTHON) != _USUAL_PYTHON else []
        return " · ".join(words)

    @property
    def contents(self) -> list[tuple[str, str]]:
        """What is in the image, as (name, version)."""
        return describe_contents(self.cell.axes)

    def describe_setting(self, setting: str) -> tuple[str, str]:
        """Return the kind and the words of the badge of a setting."""
        item = self.cell.attention.get(setting)
        if item is None or (self.cell.tier in _UNBUILT and not item.state.startswith("seen")):
            return "unbuilt", UNBUILT_WORDS
        return item.mark, describe_evidence(self.cell, item)

    @property
    def mark(self) -> str:
        """The kind of its badge, a class of the pages."""
        return self.describe_setting(self.lead)[0]

    @property
    def badge(self) -> str:
        """The words of its badge, which state the evidence."""
        return self.describe_setting(self.lead)[1]

    @property
    def origin(self) -> ImageOrigin:
        """Where its image comes from."""
        if not self.cell.in_matrix:
            return ImageOrigin.ABSENT
        if self.cell.tier == "none":
            return ImageOrigin.UNLOCKED
        if self.cell.published and self.cell.tier not in _UNBUILT:
            return ImageOrigin.PUBLISHED
        return ImageOrigin.COMPILED_HERE if self.cell.compiled else ImageOrigin.BUILT_HERE

    @property
    def commands(self) -> list[RunCommand]:
        """How to get and run it, for each tool."""
        values = command_values(self.cell.id, self.cell.axes, self.cell.reference, self.cell.tag)
        return [
            RunCommand(tool=item.tool, note=item.note, text=fill_run_command(item.text, values))
            for item in list_run_commands(self.origin, self.build_time)
        ]

    @property
    def defects(self) -> dict[str, list[str]]:
        """Each known failure of the cell's settings (`incident` or the reason) to the checks that show it."""
        defects: dict[str, list[str]] = {}
        for item in self.cell.attention.values():
            for defect in item.defects:
                defects.setdefault(defect.incident or defect.because, []).append(defect.check)
        return defects


UNBUILT_WORDS = "predicted by rules; not built yet"
_UNBUILT = ("none", "resolved")


def command_values(cell: str, axes: Mapping[str, str], image: str | None, tag: str | None) -> dict[str, str]:
    """Return the values that the commands of a cell are filled with."""
    digits = axes.get("gpu", "").removeprefix("sm_")
    return {
        "id": cell,
        "image": image or f"knowngood:{cell}",
        "tag": tag or cell,
        "python": axes.get("python", ""),
        "major": digits[:-1],
        "minor": digits[-1:],
    }


@dataclass(kw_only=True)
class CardTable:
    """The cards of one GPU as the script of the first page has them; each text and each defect is stored once."""

    texts: dict[str, int] = field(default_factory=dict)
    defects: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def document(self, cells: Iterable[CatalogCell], others: Iterable[str]) -> dict[str, Any]:
        """Return the data about these cells of the catalog, and about cells (by id) that are not in it."""
        known = {cell.id: self._known(cell) for cell in cells}
        unbuilt = {name: _unbuilt(parse_cell(name)) for name in others if name not in known}
        return {
            "cells": known | unbuilt,
            "words": list(self.texts),
            "defects": [list(defect) for defect in self.defects],
        }

    def _known(self, cell: CatalogCell) -> dict[str, Any]:
        card = CellCard(cell=cell, gpu="")
        return {
            "contents": [list(item) for item in card.contents],
            "lead": card.lead,
            "tier": cell.tier,
            "driver": cell.driver_minimum,
            "size": f"{cell.image.size / 1e9:.2f} GB" if cell.image else None,
            "origin": str(card.origin),
            "values": command_values(cell.id, cell.axes, cell.reference, cell.tag),
            "run": cell.evidence,
            "settings": {name: self._setting(card, name, item) for name, item in cell.attention.items()},
        }

    def _setting(self, card: CellCard, name: str, item: CatalogAttention) -> list[Any]:
        """Return the kind and the words of a setting's badge, its reason, its defects, and its figures."""
        defects = [
            self.defects.setdefault((it.check, it.because, it.incident or ""), len(self.defects)) for it in item.defects
        ]
        figures = [item.step_ms, item.peak_bytes] if item.step_ms else []
        mark, words = card.describe_setting(name)
        return [mark, self._text(words), self._text(item.reason), defects, *figures]

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))


def _unbuilt(cell: Cell) -> dict[str, Any]:
    axes = {str(axis): value for axis, value in cell.axes().items()}
    return {
        "contents": [list(item) for item in describe_contents(axes)],
        "lead": lead_setting(cell.flash_attn),
        "tier": None,
        "origin": str(ImageOrigin.ABSENT),
        "values": {"id": str(cell)},
        "settings": {},
    }
