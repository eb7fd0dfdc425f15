"""Whether a binary can be loaded, and in words why not. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from knowngood.doctor.system_state import InstalledBinary, SystemState

DRIVER_LIBRARIES = frozenset(
    {
        "libcuda.so",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libnvcuvid.so.1",
        "libnvidia-encode.so.1",
    }
)
"""Libraries that come with the driver, not with a package."""

LogDiagnosis = Callable[[str], tuple[str, ...]]
"""From a log to the ids of the incidents that it shows, best match first."""

_TORCH_SYMBOL = re.compile(r"_ZNK?(3c10|2at|5torch)")
_DRIVER_SYMBOL = re.compile(r"cu[A-Z]|nvml[A-Z]|cuvid[A-Z]|NvEncode")
_TORCH_LIBRARY = re.compile(r"lib(torch|c10)(_\w+)?\.so")
_OTHER_TORCH = {
    "flash-attn": "extension-other-torch",
    "vllm": "extension-other-torch",
    "xformers": "xformers-extensions-not-loaded",
}
"""Package -> the incident of a build for another torch, for packages that hide ld.so's own message."""
_WITHOUT_LIBRARY = {"bitsandbytes": "bitsandbytes-binary-missing", "xformers": "xformers-extensions-not-loaded"}
"""Package -> the incident of a build for another CUDA."""
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class LoadFailure:
    """Why a binary cannot be loaded."""

    because: str
    fix: tuple[str, ...]
    incidents: tuple[str, ...] = ()


def missing_libraries(binary: InstalledBinary) -> list[str]:
    """Return the names of the libraries that are not found, without those of the driver."""
    return list(dict.fromkeys(name for name, _ in binary.linked.missing if name not in DRIVER_LIBRARIES))


def undefined_symbols(binary: InstalledBinary, state: SystemState) -> list[str]:
    """Return the symbols that none of the libraries has.

    Where the driver is missing, its symbols do not count. Where another library is missing, only those count that
    torch would have.
    """
    if not missing_libraries(binary):
        return _without_driver_symbols(binary, binary.linked.undefined)
    return [text for text in binary.linked.undefined if _TORCH_SYMBOL.match(text)] if state.torch else []


def lazily_missed_symbols(binary: InstalledBinary) -> list[str]:
    """Return the symbols whose absence shows only in a call; where the driver is missing, its symbols do not count."""
    return _without_driver_symbols(binary, binary.linked.later)


def _without_driver_symbols(binary: InstalledBinary, symbols: tuple[str, ...]) -> list[str]:
    return [text for text in symbols if not (binary.linked.missing and _DRIVER_SYMBOL.match(text))]


def is_loadable(binary: InstalledBinary, state: SystemState) -> bool:
    """Return whether the binary could be loaded on a machine that has the driver."""
    spoilt = binary.damaged or binary.other_python or binary.linked.versions
    return not (spoilt or missing_libraries(binary) or undefined_symbols(binary, state))


def explain_load_failure(
    binary: InstalledBinary, package: str, state: SystemState, diagnose: LogDiagnosis
) -> LoadFailure:
    """Return the gravest cause, with the incidents that `diagnose` recognises in the message that ld.so would print."""
    if binary.linked.versions:
        version, library = binary.linked.versions[0]
        message = f"ImportError: {library}: version `{version}' not found (required by {binary.path})"
        return LoadFailure(
            because=f"it needs {version}, which {library} does not have",
            fix=("a newer base system (or image)", f"or a build of {package} made on this one"),
            incidents=diagnose(message),
        )
    lacking = undefined_symbols(binary, state)
    if not lacking:
        return _explain_missing_library(binary, package, state)
    message = "\n".join(f"ImportError: {binary.path}: undefined symbol: {text}" for text in lacking)
    incidents = diagnose(message)
    names = [binary.demangled.get(text, text) for text in lacking[:_SHOWN]]
    shown = "; ".join(names) + (f" and {len(lacking) - _SHOWN} more" if lacking[_SHOWN:] else "")
    torch = state.torch
    if torch is None or not any(map(_TORCH_SYMBOL.match, lacking)):
        return _explain_other_release(lacking, shown, package, incidents)
    own = [
        name for name, by in binary.linked.missing if name not in DRIVER_LIBRARIES and by.endswith(f"/{binary.path}")
    ]
    too = f"; {', '.join(own)} not found either" if own else ""
    if binary.cache:
        fix: tuple[str, ...] = (f"rm -r {binary.cache}; it is compiled again when it is used",)
    else:
        abi = f", C++11 ABI {str(torch.cxx11abi).lower()}" if torch.cxx11abi is not None else ""
        fix = (
            f"a build of {package} for torch {torch.version} (CUDA {torch.cuda}{abi})",
            f"or compile it: pip install --no-build-isolation --no-cache-dir --force-reinstall {package}",
        )
    because = f"it was compiled for another torch; {torch.version} lacks {len(lacking)} of its symbols: {shown}{too}"
    named = (_OTHER_TORCH[package],) if package in _OTHER_TORCH else ()
    return LoadFailure(because=because, fix=fix, incidents=incidents or named)


def _explain_other_release(lacking: list[str], shown: str, package: str, incidents: tuple[str, ...]) -> LoadFailure:
    """Explain symbols that are not torch's: as a rule their library is installed in another release."""
    libraries = sorted({version for text in lacking if ".so" in (version := text.partition(", version ")[2])})
    named = ", ".join(libraries)
    if libraries:
        because = f"symbols that it needs are not in the installed {named} ({len(lacking)}): {shown}"
        fix = f"the release of {named} that {package} was built with, or another release of {package}"
    else:
        because = f"symbols that it needs are in none of its libraries ({len(lacking)}): {shown}"
        fix = f"its requirements in the releases that {package} was built with, or another release of {package}"
    return LoadFailure(because=because, fix=(fix,), incidents=incidents)


def _explain_missing_library(binary: InstalledBinary, package: str, state: SystemState) -> LoadFailure:
    names, torch = missing_libraries(binary), state.torch
    if torch is None and any(map(_TORCH_LIBRARY.fullmatch, names)):
        because = "it is linked with torch, and torch is not installed"
        return LoadFailure(because=because, fix=("install the torch that it was built for",))
    stem = names[0].partition(".so")[0] + ".so"
    near = sorted({item.path.rpartition("/")[2] for item in state.binaries if f"/{stem}" in f"/{item.path}"})
    because = f"{', '.join(names)} not found" + (f"; installed is {', '.join(near)}" if near else "")
    if package == "torch":
        fix = "reinstall torch with everything it requires: pip install --force-reinstall torch"
    else:
        cuda = f" for CUDA {torch.cuda}" if torch and torch.cuda else ""
        fix = f"a build of {package}{cuda}, or the package that has {names[0]}"
    named = (_WITHOUT_LIBRARY[package],) if package in _WITHOUT_LIBRARY else ()
    return LoadFailure(because=because, fix=(fix,), incidents=named)
