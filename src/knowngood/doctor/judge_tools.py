"""Compilers, headers, libcuda: what Triton, Inductor and extensions compile with at run time. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from knowngood.doctor.library import number
from knowngood.doctor.line import Line, Verdict
from knowngood.doctor.seen import Seen, Tool

_IDS = {"C compiler": "cc", "C++ compiler": "cxx", "ninja": "ninja"}
_COMPILE = frozenset({"deepspeed"})
"""Packages that compile CUDA extensions when they are used."""


def lines(seen: Seen) -> Iterator[Line]:
    """All of them."""
    triton = seen.packages.get("triton")
    yield _cc(seen, triton)
    yield _cxx(seen)
    yield _python_h(seen, triton)
    yield _libcuda(seen, triton)
    yield _nvcc(seen)
    yield _ninja(seen)


def _cc(seen: Seen, triton: str | None) -> Line:
    because = "Triton compiles its launcher in C when the first kernel runs"
    line = _tool("C compiler", seen.machine.cc, because, "apt-get install gcc", needed=triton is not None)
    return line if triton else _without(line, "there is no triton that would use it")


def _cxx(seen: Seen) -> Line:
    because = "torch.compile (FlexAttention too) and extensions are compiled with it"
    tool, torch = seen.machine.cxx, seen.torch
    line = _tool("C++ compiler", tool, because, "apt-get install g++")
    if torch is None:
        return _without(line, "there is no torch that would use it")
    bounds = torch.gcc.get(torch.cuda or "")
    if line.verdict is not Verdict.OK or tool is None or not bounds or "clang" in tool.path or not seen.machine.nvcc:
        return line
    least, beyond = bounds
    if number(least) <= number(tool.version) < number(beyond):
        return line
    return Line(
        id="cxx",
        what="C++ compiler",
        seen=line.seen,
        verdict=Verdict.WARN,
        because=f"torch {torch.version} compiles CUDA {torch.cuda} extensions with g++ from {least} to below {beyond}",
        fix=(f"apt-get install g++-{int(beyond.split('.')[0]) - 1}, and CXX=g++-{int(beyond.split('.')[0]) - 1}",),
        source=("torch/utils/cpp_extension.py",),
    )


def _tool(what: str, tool: Tool | None, because: str, fix: str, *, needed: bool = False) -> Line:
    name, bad = _IDS[what], Verdict.BAD if needed else Verdict.WARN
    if tool is None:
        return Line(id=name, what=what, seen="none", verdict=bad, because=because, fix=(fix,))
    if tool.problem:
        text = f"{tool.problem}; {because[0].lower()}{because[1:]}" if because else tool.problem
        return Line(id=name, what=what, seen=tool.path, verdict=bad, because=text, fix=(fix,))
    return Line(id=name, what=what, seen=f"{tool.path} {tool.version}".strip(), verdict=Verdict.OK)


def _without(line: Line, because: str) -> Line:
    return Line(id=line.id, what=line.what, seen=line.seen, verdict=Verdict.NOT_APPLICABLE, because=because)


def _python_h(seen: Seen, triton: str | None) -> Line:
    what, python = "Python.h", seen.python
    if triton is None:
        because = "there is no triton that would include it"
        return Line(id="python-h", what=what, seen="not needed", verdict=Verdict.NOT_APPLICABLE, because=because)
    if python is None or seen.machine.python_h is None:
        return Line(id="python-h", what=what, seen="the interpreter does not tell", verdict=Verdict.UNKNOWN)
    if seen.machine.python_h:
        return Line(id="python-h", what=what, seen=python.include, verdict=Verdict.OK)
    short = ".".join(python.version.split(".")[:2])
    return Line(
        id="python-h",
        what=what,
        seen=f"not in {python.include}",
        verdict=Verdict.BAD,
        because="Triton compiles its launcher against it when the first kernel runs",
        fix=(f"apt-get install libpython{short}-dev (or the headers of that very Python)",),
        incidents=("python-h-missing",),
        source=("facts/triton.json (python_h)",),
    )


def _libcuda(seen: Seen, triton: str | None) -> Line:
    machine, what = seen.machine, "libcuda"
    if seen.torch is None or seen.torch.cuda is None:
        because = "no torch for CUDA would load it"
        return Line(id="libcuda", what=what, seen="not needed", verdict=Verdict.NOT_APPLICABLE, because=because)
    if machine.libcuda_stub:
        return Line(
            id="libcuda",
            what=what,
            seen=f"the stub in {machine.libcuda_stub}",
            verdict=Verdict.BAD,
            because="a toolkit's stub on LD_LIBRARY_PATH hides the driver's library: it links, and no call works",
            fix=(f"take {machine.libcuda_stub} out of LD_LIBRARY_PATH",),
        )
    if machine.libcuda:
        return Line(id="libcuda", what=what, seen=", ".join(machine.libcuda), verdict=Verdict.OK)
    with_gpu = bool(seen.nvidia.gpus) or seen.nvidia.loaded
    used = "torch and " + ("triton look" if triton else "others look")
    start = "start the container with the GPU (--gpus all)" if machine.container else "install the NVIDIA driver"
    return Line(
        id="libcuda",
        what=what,
        seen="neither libcuda.so.1 nor libcuda.so where ld.so looks",
        verdict=Verdict.BAD if with_gpu else Verdict.UNKNOWN,
        because=f"{used} for the driver's library" + ("" if with_gpu else "; a machine without the driver has none"),
        fix=("ldconfig, or TRITON_LIBCUDA_PATH to its folder", start) if with_gpu else (start,),
        incidents=("libcuda-cannot-found", "ld-cannot-find-lcuda") if with_gpu else (),
        source=("facts/triton.json (libcuda)",),
    )


def _nvcc(seen: Seen) -> Line:
    what, tool, torch = "nvcc", seen.machine.nvcc, seen.torch
    compiles = sorted(_COMPILE & seen.packages.keys())
    if tool is None or tool.problem:
        shown = tool.problem if tool else "none"
        if not compiles:
            because = "only needed to compile CUDA extensions (flash-attn from source, say)"
            return Line(id="nvcc", what=what, seen=shown, verdict=Verdict.NOT_APPLICABLE, because=because)
        cuda = torch.cuda if torch else None
        return Line(
            id="nvcc",
            what=what,
            seen=shown,
            verdict=Verdict.WARN,
            because=f"{', '.join(compiles)} compiles its operations when they are first used",
            fix=(f"a CUDA toolkit {cuda}, and CUDA_HOME" if cuda else "a CUDA toolkit of torch's CUDA, and CUDA_HOME",),
            incidents=("cuda-home-not-set",),
        )
    shown = f"{tool.path} {tool.version}"
    if torch is None or torch.cuda is None or number(torch.cuda) == number(tool.version):
        return Line(id="nvcc", what=what, seen=shown, verdict=Verdict.OK)
    same_major = number(torch.cuda)[:1] == number(tool.version)[:1]
    return Line(
        id="nvcc",
        what=what,
        seen=shown,
        verdict=Verdict.BAD if compiles and not same_major else Verdict.WARN,
        because=f"torch has CUDA {torch.cuda}: "
        + ("extensions compile with a warning" if same_major else "torch refuses to compile extensions with it"),
        fix=(f"CUDA_HOME to a toolkit {torch.cuda}",),
        incidents=() if same_major else ("cuda-toolkit-other-than-torch",),
    )


def _ninja(seen: Seen) -> Line:
    compiles = sorted(_COMPILE & seen.packages.keys())
    because = "torch compiles extensions with it (without: one file at a time, or not at all)"
    line = _tool("ninja", seen.machine.ninja, because, "pip install ninja, in the active environment")
    if line.verdict is Verdict.WARN and not compiles:
        return _without(line, "only needed to compile extensions")
    return line
