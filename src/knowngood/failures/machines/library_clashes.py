"""Which two libraries of one process are of different releases, by the path in the dynamic linker's message. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from knowngood.compat.incident import Incident, IncidentKind
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.message_causes import shorten_text
from knowngood.failures.names.name_situation import advise

_CLASH = lazy_pattern(
    r"(?P<path>[^\s'\"()]{0,300}/(?P<file>lib[\w.+-]+\.so[\w.]*)): (?:undefined symbol: (?P<name>\w{1,300}), version "
    r"|symbol (?P<other>\w{1,300}),? version )(?P<needed>lib[\w+-]+\.so[\w.]*)"
)
_FRAME = lazy_pattern(
    r"(?:^|\] |\s)\[? ?\d+\]? +(?P<path>/\S{1,300}?/)?(?P<file>lib[\w.+-]+\.so[\w.]*)\(|(?:#\d+\s.{0,200}? "
    r"(?:from|in) )(?P<from>\S{1,300}\.so[\w.]*)"
)
_OF_C = lazy_pattern(r"^(?:libc|libpthread|libstdc\+\+|libgcc_s|libm|libdl|libpython\S*|ld-linux\S*)[.-]")
_SYSTEM = ("/usr/local/cuda", "/usr/lib", "/lib/", "/opt/")
_OWNERS = (
    (lazy_pattern(r"libnccl"), "nccl"),
    (lazy_pattern(r"libcuda\.so|libnvidia"), "driver"),
    (lazy_pattern(r"libtorch|libc10"), "torch"),
    (lazy_pattern(r"libcudnn|libcublas|libcusparse|libcusolver|libcufft|libnvrtc|libcudart"), "cuda"),
    (lazy_pattern(r"libbitsandbytes"), "bitsandbytes"),
    (lazy_pattern(r"libtriton"), "triton"),
)


def describe_clash(incident: Incident, error: LastError) -> Incident | None:
    """Which library asks for what another one lacks, and from which folder the first was loaded."""
    stated = _CLASH.search(error.log_end.decode("utf-8", "replace"))
    if stated is None:
        return None
    path, needed = stated["path"], stated["needed"]
    symbol = shorten_text(stated["name"] or stated["other"], 60)
    of_wheels = "/nvidia/" in path or "/torch/lib" in path
    of_system = path.startswith(_SYSTEM) and not of_wheels
    if of_system:
        because = (
            f"{path} was loaded, which is not that of torch's own wheels: LD_LIBRARY_PATH or the linker's "
            "list has its folder. It "
            f"and the {needed} that is loaded already are of two releases."
        )
    else:
        because = (
            f"{path} asks {needed} for {symbol}. The {needed} that the loader found first is another one, of "
            "an older toolkit in "
            "LD_LIBRARY_PATH, of conda, of the system, or loaded by another package (TensorFlow) before."
        )
    return replace(
        incident,
        title=f"{stated['file']} and {needed} in this process are of two releases: {symbol} is missing",
        because=because,
        fix=(
            advise(
                "unset LD_LIBRARY_PATH (or take the folders of CUDA out of it), so that torch finds the "
                "libraries of its own wheels"
            ),
            advise(
                f"find / -name '{needed}*' shows which there are; the folder site-packages/nvidia/*/lib "
                "first when the variable must stay"
            ),
            advise(
                "Reinstall torch with all of its nvidia-* wheels in a fresh environment; pip check names "
                "those that do not fit"
            ),
        ),
    )


_BUILT_FOR = lazy_pattern(
    r"xFormers was built for:\s*(?:\S+ STDERR: *)?PyTorch (?P<wanted>\d[\w.+]*) with CUDA \S+ \(you have "
    r"(?P<there>\d[\w.+]*)\)"
)


def describe_xformers(incident: Incident, error: LastError) -> Incident | None:
    """Which torch xformers was built for, and which is there; `None` where its warning does not say."""
    text = re.sub(r"(?m)^[\w ]{3,40} STDERR: ?", "", error.log_end.decode("utf-8", "replace"))
    stated = _BUILT_FOR.search(text)
    if stated is None or stated["wanted"] == stated["there"]:
        return None
    of_cpu = stated["there"].endswith("+cpu")
    wanted = stated["wanted"].partition("+")[0]
    fix = (
        (
            f"pip install torch=={wanted} --index-url of torch's index for CUDA "
            f"({stated['wanted'].partition('+')[2]}), after pip uninstall torch"
        )
        if of_cpu
        else (
            f"The xformers built for torch {stated['there']}, in one command with torch; or torch=={wanted} for "
            "this one"
        )
    )
    return replace(
        incident,
        title=f"xformers was built for torch {stated['wanted']}, and {stated['there']} is installed",
        component="torch" if of_cpu else "xformers",
        because=(
            "The warning states both. "
            f"{'This torch is a build for CPUs, without CUDA. ' if of_cpu else ''}An extension of torch is "
            "loaded only by the very release it was built with; without it xformers has no kernels, and "
            "callers fall back or fail later."
        ),
        fix=(advise(fix), *incident.fix[1:]),
    )


def describe_crash(incident: Incident, error: LastError) -> Incident | None:
    """In which library a process crashed, where the log has the frames of the crash."""
    text = error.log_end.decode("utf-8", "replace")
    for match in _FRAME.finditer(text):
        file = match["file"] or match["from"].rpartition("/")[2]
        if _OF_C.match(file):
            continue
        owner = next((name for pattern, name in _OWNERS if pattern.search(file)), "")
        path = f"{match['path'] or ''}{file}" if match["file"] else match["from"]
        return replace(
            incident,
            title=f"The process crashed inside of {file}",
            kind=IncidentKind.FAILS_INSIDE,
            component=owner or incident.component,
            because=(
                f"The innermost frame of the crash that is not of the C library is in {path}. Either that "
                "library has a defect that this "
                "machine or these inputs show, or it is another release than the one with which its callers were built."
            ),
            fix=(
                advise(
                    f"Another release of {file}, and only one of it in the process: ldd, and LD_LIBRARY_PATH "
                    "unset (torch's wheels bring their own)"
                ),
                *incident.fix[:2],
            ),
        )
    return None
