"""The distribution of a top-level module whose names differ. Pure."""

from __future__ import annotations

from collections.abc import Collection

_OTHER_NAMES = {
    "PIL": "pillow",
    "amp_C": "apex",
    "apex_C": "apex",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "causal_conv1d_cuda": "causal-conv1d",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "dropout_layer_norm": "flash-attn",
    "fairseq": "fairseq",
    "flash_attn_2_cuda": "flash-attn",
    "flash_attn_3": "flash-attn-3",
    "flash_attn_cuda": "flash-attn",
    "flash_attn_interface": "flash-attn-3",
    "flashinfer": "flashinfer-python",
    "fused_layer_norm_cuda": "apex",
    "git": "gitpython",
    "gradio": "gradio",
    "pkg_resources": "setuptools",
    "pytorch_lightning": "pytorch-lightning",
    "pywintypes": "pywin32",
    "qwen_vl_utils": "qwen-vl-utils",
    "rotary_emb": "flash-attn",
    "selective_scan_cuda": "mamba-ssm",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "timm": "timm",
    "torchvision": "torchvision",
    "yaml": "pyyaml",
}
"""Top-level module -> its distribution, where that has another name or no metadata here."""

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
    )
)
"""Top-level modules that are folders or files of a project."""


def find_distribution(module: str, names: Collection[str]) -> str | None:
    """Return the distribution that has a top-level module; `None` when nothing is known of one.

    Args:
        module: the top-level module.
        names: the distributions that there is metadata about.
    """
    guess = module.replace("_", "-").lower()
    return _OTHER_NAMES.get(module) or (guess if guess in names else None)
