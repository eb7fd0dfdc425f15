"""Installed binaries: whole, for this Python, loadable, for this torch, with code for this GPU. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from knowngood.doctor.line import Line, Verdict
from knowngood.doctor.seen import Binary, Seen
from knowngood.doctor.unloadable import DRIVERS, Diagnose, later, loads, undefined, why
from knowngood.fatbin import Code, in_order
from knowngood.solving.relations import runs, sm

_SHOWN = 3
_NVIDIA = re.compile(r"nvidia-|cuda-")


def lines(seen: Seen, gpus: Sequence[str], diagnose: Diagnose) -> Iterator[Line]:
    """First torch, then a line for each distribution that has GPU code, is linked with torch or is broken."""
    groups: dict[str, list[Binary]] = defaultdict(list)
    for binary in seen.binaries:
        groups[binary.distribution or "installed by nobody"].append(binary)
    quiet: list[Binary] = []
    without: list[Binary] = []
    nvidia: list[tuple[str, Line]] = []
    made: list[Line] = []
    for name, binaries in sorted(groups.items(), key=lambda item: (not item[0].startswith("torch "), item[0])):
        group = _Group(name, binaries, seen, gpus, diagnose)
        line = group.line()
        of_interest = any(item.code or item.torch for item in binaries) or name.startswith("torch ")
        if line.verdict in (Verdict.OK, Verdict.NOT_APPLICABLE) and not of_interest:
            quiet += binaries
            without += group.unloadable()
        elif line.verdict is Verdict.OK and _NVIDIA.match(name):
            nvidia.append((name, line))
        else:
            made.append(line)
    yield from made
    if nvidia:
        yield Line(
            id="binary:nvidia",
            what="NVIDIA's libraries",
            seen=", ".join(re.sub(r"^nvidia-|-cu\d+(?= )", "", name) for name, _ in nvidia),
            verdict=Verdict.OK,
        )
    if quiet:
        yield _others(quiet, without)


def _others(binaries: Sequence[Binary], without: Sequence[Binary]) -> Line:
    """The line about all that is in order; `without` are optional modules that lack something."""
    count = len({item.distribution for item in binaries})
    shown = f"{len(binaries)} libraries of {count} distributions: whole"
    if without:
        names = ", ".join(item.path.rpartition("/")[2].partition(".cpython")[0] for item in without[:_SHOWN])
        more = f" and {len(without) - _SHOWN} more" if without[_SHOWN:] else ""
        shown += f"; optional modules that cannot be loaded here: {names}{more}"
    else:
        shown += ", and what they need is found"
    return Line(id="binary:others", what="other binaries", seen=shown, verdict=Verdict.OK)


class _Group:
    """The binaries of one distribution."""

    def __init__(
        self, name: str, binaries: Sequence[Binary], seen: Seen, gpus: Sequence[str], diagnose: Diagnose
    ) -> None:
        self.name, self.binaries, self.seen, self.gpus, self.diagnose = name, binaries, seen, gpus, diagnose
        self.package = name.partition(" ")[0]

    def line(self) -> Line:
        """The gravest of what is wrong, or that nothing is."""
        for judge in (self._damaged, self._python, self._unloadable, self._abi, self._numpy, self._gpu, self._later):
            if line := judge():
                return line
        return self._line(Verdict.OK)

    def _line(
        self,
        verdict: Verdict,
        because: str = "",
        *fix: str,
        seen: str = "",
        incidents: tuple[str, ...] = (),
    ) -> Line:
        return Line(
            id=f"binary:{self.package}",
            what=self.name.partition("+")[0],
            seen=seen or self._shown(),
            verdict=verdict,
            because=because,
            fix=fix,
            incidents=incidents,
        )

    def _shown(self) -> str:
        loadable = [item for item in self.binaries if self._loads(item)]
        codes = [item for item in loadable if item.code]
        if not codes:
            return f"{len(self.binaries)} libraries, no GPU code" if len(self.binaries) > 1 else "no GPU code"
        largest = max(codes, key=lambda item: sum(item.code.values()))
        code = next(iter(largest.code))
        text = carried(code)
        more = frozenset().union(*(frozenset(c.sass) for item in codes for c in item.code)) - code.sass
        text += f"; some kernels for {', '.join(in_order(frozenset(more)))} too" if more else ""
        others = len(self.binaries) - len(loadable)
        local = self.name.partition("+")[2]
        text += f"; build {local}" if local else ""
        return text + (f"; {others} of {len(self.binaries)} libraries are for other systems" if others else "")

    def unloadable(self) -> list[Binary]:
        """Modules that cannot be loaded here, which is no fault."""
        return [item for item in self.binaries if item.module and not item.other_python and not self._loads(item)]

    def _loads(self, binary: Binary) -> bool:
        return loads(binary, self.seen)

    def _reinstall(self) -> str:
        return f"reinstall it: pip install --force-reinstall --no-deps --no-cache-dir {self.name.replace(' ', '==')}"

    def _damaged(self) -> Line | None:
        damaged = [item for item in self.binaries if item.damaged]
        if not damaged:
            return None
        more = f" (and {len(damaged) - 1} more)" if damaged[1:] else ""
        return self._line(Verdict.BAD, f"{damaged[0].damaged}{more}", self._reinstall(), seen=damaged[0].path)

    def _python(self) -> Line | None:
        """Modules of another Python, where there is none of this one beside them."""
        tag = self.seen.python.tag if self.seen.python else ""
        stems = {_stem(item.path) for item in self.binaries if not item.other_python}
        wrong = [item for item in self.binaries if item.other_python and _stem(item.path) not in stems]
        if not wrong:
            return None
        because = f"it was compiled for {wrong[0].other_python.split('-x86')[0]}; this Python is {tag.split('-x86')[0]}"
        return self._line(
            Verdict.BAD,
            f"{because}, and does not see it",
            f"a wheel or a build of {self.package} for this Python",
            seen=wrong[0].path,
            incidents=("flash-attn-wheel-other-python",) if self.package == "flash-attn" else (),
        )

    def _unloadable(self) -> Line | None:
        """What Python loads for certain must load; of what is loaded on demand, one library with GPU code."""
        whole = [item for item in self.binaries if not item.other_python]
        failing = [item for item in whole if item.used and not self._loads(item)]
        own = [item for item in failing if self._own_fault(item)]
        if own and not self._grave(own, whole):
            return None
        if not own:
            with_code = [item for item in whole if item.code and not item.used]
            if failing:
                return self._line(
                    Verdict.BAD,
                    "torch itself cannot be loaded (its line says why)",
                    "mend torch first",
                    seen=failing[0].path,
                )
            if not with_code or any(self._loads(item) for item in with_code) or any(item.used for item in whole):
                return None
            own = with_code
        worst = max(own, key=lambda item: (sum(item.code.values()), len(undefined(item, self.seen))))
        cause = why(worst, self.package, self.seen, self.diagnose)
        return self._line(Verdict.BAD, cause.because, *cause.fix, seen=worst.path, incidents=cause.incidents)

    def _later(self) -> Line | None:
        """What is missed only when it is called, in the library with the most GPU code."""
        late = [(item, names) for item in self.binaries if (names := later(item))]
        if not late:
            return None
        worst, names = max(late, key=lambda pair: sum(pair[0].code.values()))
        shown = "; ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else "")
        because = f"it is loaded lazily, and fails when it calls what no library here has ({len(names)}): {shown}"
        return self._line(Verdict.WARN, because, seen=worst.path)

    def _grave(self, failing: Sequence[Binary], whole: Sequence[Binary]) -> bool:
        """Not only modules that a package tries and does without: numba's for TBB, mpi4py's for each MPI."""
        sure = any(item.torch or item.linked.versions for item in failing) or self.package == "torch"
        return sure or len(failing) == sum(item.used for item in whole)

    def _own_fault(self, binary: Binary) -> bool:
        """Not that of a library of another distribution which it needs."""
        paths = tuple(f"/{item.path}" for item in self.binaries)
        missing = [by for name, by in binary.linked.missing if name not in DRIVERS]
        return bool(undefined(binary, self.seen) or binary.linked.versions or any(by.endswith(paths) for by in missing))

    def _abi(self) -> Line | None:
        torch = self.seen.torch
        wrong = [item for item in self.binaries if torch and item.cxx11abi is not None and torch.cxx11abi is not None]
        wrong = [item for item in wrong if torch and item.cxx11abi != torch.cxx11abi]
        if not wrong or torch is None:
            return None
        because = f"its C++11 ABI is {str(wrong[0].cxx11abi).lower()}, torch's is {str(torch.cxx11abi).lower()}"
        return self._line(
            Verdict.BAD,
            because,
            f"a build of {self.package} with cxx11abi{str(torch.cxx11abi).upper()}",
            seen=wrong[0].path,
            incidents=("flash-attn-cxx11-abi",) if self.package == "flash-attn" else (),
        )

    def _numpy(self) -> Line | None:
        numpy = self.seen.packages.get("numpy", "1")
        old = [item for item in self.binaries if item.numpy_1]
        if not old or int(numpy.partition(".")[0]) < 2:
            return None
        return self._line(
            Verdict.BAD,
            f"it was compiled with NumPy 1 and fails with NumPy {numpy}",
            "pip install 'numpy<2', or a newer release of it",
            seen=old[0].path,
            incidents=("numpy-1-binary-on-numpy-2",),
        )

    def _gpu(self) -> Line | None:
        with_code = [item for item in self.binaries if item.code and self._loads(item)]
        if not with_code or _NVIDIA.match(self.name):  # whose libraries keep code in containers of their own, too
            return None
        for gpu in self.gpus:
            runnable = [item for item in with_code if any(runs(gpu, code.sass, code.ptx) for code in item.code)]
            lacking = sorted(item.path.rpartition("/")[2] for item in with_code if item not in runnable)
            if runnable and (self.package != "torch" or any("libtorch_cuda.so" in item.path for item in runnable)):
                if lacking:
                    because = f"{', '.join(lacking)} has no code that runs on {gpu}: what is in it does not work there"
                    return self._line(Verdict.WARN, because)
                continue
            new = self.package == "torch" and sm(gpu) >= (10, 0)
            return self._line(
                Verdict.BAD,
                f"it has no code that runs on {gpu}, whatever the driver",
                f"a build of {self.package} for {gpu}; knowngood pick --gpu {gpu} says which versions fit together",
                incidents=("torch-without-blackwell" if new else "cuda-no-kernel-image",),
            )
        return None


def carried(code: Code) -> str:
    """`sm_75, sm_80; PTX from 90`"""
    parts = [", ".join(f"sm_{arch}" for arch in in_order(code.sass))] if code.sass else []
    parts += [f"PTX {', '.join(in_order(code.ptx))}"] if code.ptx else []
    return "; ".join(parts)


def _stem(path: str) -> str:
    return path.partition(".cpython-")[0].partition(".abi3")[0].removesuffix(".so")
