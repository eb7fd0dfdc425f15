"""Whether a binary could be loaded, and why not, in words. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from knowngood.doctor.seen import Binary, Seen

DRIVERS = frozenset({"libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1"})
"""Libraries that come with the driver, not with a package."""

Diagnose = Callable[[str], tuple[str, ...]]
"""The incidents that a log shows."""

_SYMBOL = re.compile(r"_ZNK?(3c10|2at|5torch)")
_OF_DRIVER = re.compile(r"cu[A-Z]|nvml[A-Z]|cuvid[A-Z]|NvEncode")
_TORCH = re.compile(r"lib(torch|c10)(_\w+)?\.so")
_OTHER_TORCH = {
    "flash-attn": "flash-attn-other-torch",
    "vllm": "vllm-other-torch",
    "xformers": "xformers-extensions-not-loaded",
}
"""What users see of a build for another torch, where it is not ld.so's own message."""
_WITHOUT_LIBRARY = {"bitsandbytes": "bitsandbytes-binary-missing", "xformers": "xformers-extensions-not-loaded"}
"""And of one for another CUDA."""
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a binary cannot be loaded."""

    because: str
    fix: tuple[str, ...]
    incidents: tuple[str, ...] = ()


def missing(binary: Binary) -> list[str]:
    """Libraries that are not found, but for the driver's."""
    return list(dict.fromkeys(name for name, _ in binary.linked.missing if name not in DRIVERS))


def undefined(binary: Binary, seen: Seen) -> list[str]:
    """Symbols that are in none of the libraries.

    Without the driver, the driver's do not count; where another library is missing, only those that torch would have.
    """
    if not missing(binary):
        without = bool(binary.linked.missing)
        return [text for text in binary.linked.undefined if not (without and _OF_DRIVER.match(text))]
    return [text for text in binary.linked.undefined if _SYMBOL.match(text)] if seen.torch else []


def later(binary: Binary) -> list[str]:
    """Symbols that are missed when they are called, but for the driver's where it is not there."""
    without = bool(binary.linked.missing)
    return [text for text in binary.linked.later if not (without and _OF_DRIVER.match(text))]


def loads(binary: Binary, seen: Seen) -> bool:
    """Whether it could be loaded, with the driver there."""
    spoilt = binary.damaged or binary.other_python
    return not (spoilt or missing(binary) or undefined(binary, seen) or binary.linked.versions)


def why(binary: Binary, package: str, seen: Seen, diagnose: Diagnose) -> Cause:
    """The gravest cause, and the incidents that ld.so's message would be found by."""
    lacking = undefined(binary, seen)
    if binary.linked.versions:
        version, library = binary.linked.versions[0]
        said = f"ImportError: {library}: version `{version}' not found (required by {binary.path})"
        fix = ("a newer base system (or image)", f"or a build of {package} made on this one")
        because = f"it needs {version}, which {library} does not have"
        return Cause(because=because, fix=fix, incidents=diagnose(said))
    if not lacking:
        return _without_library(binary, package, seen)
    log = "\n".join(f"ImportError: {binary.path}: undefined symbol: {text}" for text in lacking)
    incidents = diagnose(log)
    names = [binary.demangled.get(text, text) for text in lacking[:_SHOWN]]
    shown = "; ".join(names) + (f" and {len(lacking) - _SHOWN} more" if lacking[_SHOWN:] else "")
    torch = seen.torch
    if torch is None or not any(map(_SYMBOL.match, lacking)):
        return replace(_nowhere(lacking, shown, package), incidents=incidents)
    own = [name for name, by in binary.linked.missing if name not in DRIVERS and by.endswith(f"/{binary.path}")]
    too = f"; {', '.join(own)} not found either" if own else ""
    abi = f", C++11 ABI {str(torch.cxx11abi).lower()}" if torch.cxx11abi is not None else ""
    named = (_OTHER_TORCH[package],) if package in _OTHER_TORCH else ()
    because = f"it was compiled for another torch; {torch.version} lacks {len(lacking)} of its symbols: {shown}{too}"
    fixes = (
        f"a build of {package} for torch {torch.version} (CUDA {torch.cuda}{abi})",
        f"or compile it: pip install --no-build-isolation --no-cache-dir --force-reinstall {package}",
    )
    again = (f"rm -r {binary.cache}; it is compiled again when it is used",)
    return Cause(because=because, fix=again if binary.cache else fixes, incidents=incidents or named)


def _nowhere(lacking: list[str], shown: str, package: str) -> Cause:
    """Not torch's: of a library that is here in another release, as a rule."""
    libraries = sorted({version for text in lacking if ".so" in (version := text.partition(", version ")[2])})
    if not libraries:
        because = f"symbols that it needs are in none of its libraries ({len(lacking)}): {shown}"
        fix = (f"the releases that {package} was built with of what it requires, or another release of {package}",)
        return Cause(because=because, fix=fix)
    named = ", ".join(libraries)
    because = f"symbols that it needs are not in the {named} that is here ({len(lacking)}): {shown}"
    fix = (f"the release of {named} that {package} was built with, or another release of {package}",)
    return Cause(because=because, fix=fix)


def _without_library(binary: Binary, package: str, seen: Seen) -> Cause:
    names, torch = missing(binary), seen.torch
    if torch is None and any(map(_TORCH.fullmatch, names)):
        because = "it is linked with torch, and there is no torch"
        return Cause(because=because, fix=("install the torch that it was built for",))
    stem = names[0].partition(".so")[0] + ".so"
    near = sorted({item.path.rpartition("/")[2] for item in seen.binaries if f"/{stem}" in f"/{item.path}"})
    because = f"{', '.join(names)} not found" + (f"; here is {', '.join(near)}" if near else "")
    if package == "torch":
        fix = "reinstall torch with everything it requires: pip install --force-reinstall torch"
    else:
        cuda = f" for CUDA {torch.cuda}" if torch and torch.cuda else ""
        fix = f"a build of {package}{cuda}, or the package that has {names[0]}"
    named = (_WITHOUT_LIBRARY[package],) if package in _WITHOUT_LIBRARY else ()
    return Cause(because=because, fix=(fix,), incidents=named)
