"""The package of a compiled extension, by the path of its file in a log. Pure."""

from __future__ import annotations

import re

from knowngood.core.lazy_patterns import lazy_pattern

_BINARY = lazy_pattern(rb"([^\s'\"():,]{1,300}\.so)(?:\.\d+)*\s{0,2}:\s{0,2}(?:undefined symbol|symbol)")
_OPERATOR = lazy_pattern(rb"operator (\w{1,60})::\w{1,80}(?: does not exist)?")
_REFUSED_FILE = lazy_pattern(
    rb"(?:Requested|package '|package `|Failed to install: |has wheel `) ?([A-Za-z][\w.-]{0,80}?)(?:==|-\d| from |['`])"
)
"""How pip and uv name the package of a file that they refuse."""
_INSTALLED = lazy_pattern(rb"(?:site|dist)-packages[/\\]{1,4}(\w{1,80})")
_TORCH_ITSELF = lazy_pattern(rb"from torch\._C import|\b_load_global_deps\b|\b_preload_cuda_deps\b")
"""What torch does while it is imported itself: the library that is missing is one of its own."""
_SUFFIX = lazy_pattern(r"(?:_\d+)?(?:_(?:cuda|gpu|ext|C|kernels?|lib))*$")
_OTHER_NAMES = {
    "selective-scan": "mamba-ssm",
    "dropout-layer-norm": "flash-attn",
    "rotary-emb": "flash-attn",
    "fused-layer-norm": "apex",
    "amp-C": "apex",
    "awq": "autoawq-kernels",
    "nvidia": "torch",
    "C": "vllm",
    "flash-attn-2": "flash-attn",
    "transformer-engine-extensions": "transformer-engine",
    "scaled-upper-triang-masked-softmax": "apex",
    "scaled-masked-softmax": "apex",
    "scaled-softmax": "apex",
    "fused-weight-gradient-mlp": "apex",
}
"""Extensions whose file has another name than their package."""


def find_extension_package(text: bytes) -> str:
    """Return the package of the extension that a text of a log names last, or `a compiled extension`.

    It is the package whose file an installer refuses, the file before `undefined symbol`, or the library of an operator
    that does not exist, else the installed package in the traceback above, which is torch only where its own import
    fails.
    """
    if b"version" in text and (refused := _REFUSED_FILE.findall(text)):
        return str(refused[-1].decode()).replace("_", "-").lower()
    binaries, operators = _BINARY.findall(text), _OPERATOR.findall(text)
    if operators and not binaries:
        library: str = operators[-1].decode().lstrip("_").replace("_", "-")
        return _OTHER_NAMES.get(library, library)
    if binaries:
        path = binaries[-1].decode("utf-8", "replace").replace("\\", "/")
        folder = re.search(r"(?:site|dist)-packages/(\w+)/", path)
        name = folder[1] if folder else path.rpartition("/")[2].partition(".")[0].removeprefix("lib")
        if "/fused_kernels/build/" in path:  # Megatron compiles these itself
            return "megatron-lm"
        if not folder and name in {"_C", "_C_flashattention"}:
            name = path.rpartition("/")[0].rpartition("/")[2]
    else:
        installed = [name for name in _INSTALLED.findall(text) if name != b"torch"]
        if not installed:
            return "torch" if _TORCH_ITSELF.search(text) else "a compiled extension"
        name = installed[-1].decode()
    return name_package(name)


def name_package(module: str) -> str:
    """Return the package that a compiled module belongs to, by the module's name."""
    name = (_SUFFIX.sub("", module) or module).replace("_", "-")
    return _OTHER_NAMES.get(name, name)
