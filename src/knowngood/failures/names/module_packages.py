"""The distribution of a top-level module whose names differ. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

_BUILT_MODULES = {
    "amp_C": "apex",
    "apex_C": "apex",
    "causal_conv1d_cuda": "causal-conv1d",
    "dropout_layer_norm": "flash-attn",
    "flash_attn_2_cuda": "flash-attn",
    "flash_attn_3": "flash-attn-3",
    "flash_attn_cuda": "flash-attn",
    "flash_attn_interface": "flash-attn-3",
    "fused_layer_norm_cuda": "apex",
    "pkg_resources": "setuptools",
    "pywintypes": "pywin32",
    "rotary_emb": "flash-attn",
    "selective_scan_cuda": "mamba-ssm",
}
"""Modules that no published list of files has, because a build makes them or a newer release dropped them."""

FROM_REPOSITORIES = {"apex": "NVIDIA/apex", "clip": "openai/CLIP", "detectron2": "facebookresearch/detectron2"}
"""Packages that come from a repository: the package index has none of that name, or another project's (looked up on
2026-11-26: apex is a toolkit for web pages there, clip a clipboard)."""

FOLDERS_OF_PROJECTS = frozenset(
    (
        "utils",
        "util",
        "models",
        "model",
        "modules",
        "module",
        "trainer",
        "train",
        "training",
        "main",
        "data",
        "dataset",
        "dataloader",
        "dataloaders",
        "src",
        "lib",
        "libs",
        "core",
        "config",
        "configs",
        "tools",
        "scripts",
        "common",
        "layers",
        "networks",
        "network",
        "options",
        "losses",
        "evaluation",
        "engine",
        "args",
        "build",
        "constants",
        "env",
        "envs",
        "helper",
        "helpers",
        "loss",
        "misc",
        "parameters",
        "preprocess",
        "preprocessing",
        "settings",
    )
)
"""Top-level modules that are folders or files of a project."""


def find_distribution(module: str, names: Collection[str], installed: Mapping[str, str]) -> str | None:
    """Return the distribution that has a top-level module; `None` when nothing is known of one.

    Args:
        module: the module, or its top-level part.
        names: the distributions that there is metadata about.
        installed: module -> the distribution that installs it, as `WheelNames.modules` has it.
    """
    guess = module.replace("_", "-").lower()
    known = installed.get(module) or _BUILT_MODULES.get(module)
    return known or (guess if guess in names or guess in installed.values() else None)
