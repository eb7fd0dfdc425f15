"""The interpreter, the metadata, distributions that disturb each other, and versions by `check`. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from knowngood.doctor.line import Line, Verdict
from knowngood.doctor.seen import Distribution, Overlap, Seen

if TYPE_CHECKING:
    from knowngood.solving.findings import Finding
    from knowngood.solving.verdict import Result

_OWN = frozenset({"driver-for-cuda", "torch-runs-on-gpu", "binary:torch:glibc"})
"""Findings of `check` that lines of the doctor say better, having seen the binary itself."""
_TRIFLES = ("tests/", "test/", "docs/", "examples/", "benchmarks/", "LICENSE", "README", "licenses/")


def lines(seen: Seen, checked: Result | None) -> Iterator[Line]:
    """All of them."""
    yield _python(seen)
    yield _torch(seen)
    yield _metadata(seen)
    yield from _twice(seen, checked)
    yield from _shared(seen)
    if checked is not None:
        yield from _versions(seen, checked)


def _python(seen: Seen) -> Line:
    python = seen.python
    if python is None:
        return Line(id="python", what="Python", seen="not looked at", verdict=Verdict.NOT_APPLICABLE)
    shown = f"{python.version or '?'}, {python.path} ({python.why})"
    if python.problem:
        fix = "make the environment anew, or name another interpreter with --python"
        return Line(id="python", what="Python", seen=shown, verdict=Verdict.BAD, because=python.problem, fix=(fix,))
    return Line(id="python", what="Python", seen=shown, verdict=Verdict.OK)


def _torch(seen: Seen) -> Line:
    torch = seen.torch
    if torch is None:
        return Line(id="torch", what="torch", seen="not installed", verdict=Verdict.NOT_APPLICABLE)
    abi = {True: ", C++11 ABI", False: ", old C++ ABI", None: ""}[torch.cxx11abi]
    installed = seen.packages.get("torch", "")
    shown = f"{torch.version}, CUDA {torch.cuda}{abi}" if torch.cuda else f"{torch.version}, a CPU build{abi}"
    if installed and installed.partition("+")[0] != torch.version.partition("+")[0]:
        return Line(
            id="torch",
            what="torch",
            seen=shown,
            verdict=Verdict.BAD,
            because=f"its metadata says {installed}, its files are of {torch.version}",
            fix=(f"pip install --force-reinstall --no-cache-dir torch=={installed.partition('+')[0]}",),
        )
    if torch.cuda is None and seen.nvidia.gpus:
        because = "there is a GPU, and this torch has no CUDA"
        fix = "reinstall torch from the default index, without +cpu"
        return Line(id="torch", what="torch", seen=shown, verdict=Verdict.BAD, because=because, fix=(fix,))
    return Line(id="torch", what="torch", seen=shown, verdict=Verdict.OK)


def _metadata(seen: Seen) -> Line:
    count = f"{len(seen.distributions)} distributions"
    if not seen.broken:
        return Line(id="metadata", what="metadata", seen=count, verdict=Verdict.OK)
    path, why = next(iter(seen.broken.items()))
    more = f" (and {len(seen.broken) - 1} more)" if len(seen.broken) > 1 else ""
    return Line(
        id="metadata",
        what="metadata",
        seen=f"{count}; {path}{more}",
        verdict=Verdict.WARN,
        because=f"{why}; pip, and programs that ask for versions, go wrong on it",
        fix=(f"remove {path}, and install what it was again",),
    )


def _twice(seen: Seen, checked: Result | None) -> Iterator[Line]:
    """A distribution that is installed more than once: Python takes the first, its files may be the other's.

    In different folders (Debian's, the user's) that is normal, and told of what has binaries or facts.
    """
    told = {(item.distribution or "").partition(" ")[0] for item in seen.binaries}
    told |= seen.packages.keys() - checked.uncovered.keys() if checked else set()
    found: dict[str, list[Distribution]] = defaultdict(list)
    for item in seen.distributions:
        found[item.name].append(item)
    for name, items in found.items():
        places = {item.info.rpartition("/")[0] for item in items}
        together = len(places) == 1
        versions = {item.version for item in items}
        if len(items) < 2 or (together and len(versions) == 1):  # Debian's have .dist-info and .egg-info of one release
            continue
        if not together and name not in told:
            continue
        yield Line(
            id=f"twice:{name}",
            what=f"{name} installed twice",
            seen=", ".join(item.info for item in items),
            verdict=Verdict.BAD if together else Verdict.WARN,
            because="two releases in one folder: of some files nobody knows whose they are"
            if together
            else f"Python takes {items[0].version} of {items[0].info.rpartition('/')[0]}"
            + ("; the other one is never seen" if len(versions) > 1 else ""),
            fix=(f"pip uninstall -y {name}, until it says that there is none; then install one",),
            incidents=("flash-attn-two-installations",) if name == "flash-attn" and len(versions) > 1 else (),
        )


def _shared(seen: Seen) -> Iterator[Line]:
    """Different distributions that wrote the same files."""
    harmless: list[Overlap] = []
    for item in seen.overlaps:
        first, second = (text.partition(" ")[0] for text in (item.first, item.second))
        if first == second:
            continue  # the line about two installations
        paths = [_inside(seen, path) for path in item.paths]
        if not [path for path in paths if not path.startswith(_TRIFLES) and path.count("/")]:
            harmless.append(item)
            continue
        more = f" and {len(paths) - 1} more files" if paths[1:] else ""
        flash = {first, second} == {"flash-attn", "flash-attn-4"}
        yield Line(
            id=f"shared:{first}:{second}",
            what="files of two distributions",
            seen=f"{item.first} and {item.second}: {paths[0]}{more}",
            verdict=Verdict.WARN,
            because="both wrote them, and not the same: the last one won; to uninstall one breaks the other",
            fix=(
                f"install {second} last (flash_attn/cute is its own)"
                if flash
                else f"uninstall {first} or {second}, and install the other again",
            ),
        )
    if harmless:
        names = ", ".join(f"{item.first} and {item.second}" for item in harmless[:2])
        yield Line(
            id="shared",
            what="files of two distributions",
            seen=f"only tests, examples or licences ({names})",
            verdict=Verdict.OK,
        )


def _inside(seen: Seen, path: str) -> str:
    folders = seen.python.folders if seen.python else ()
    return next((path.removeprefix(f"{folder}/") for folder in folders if path.startswith(f"{folder}/")), path)


def _versions(seen: Seen, checked: Result) -> Iterator[Line]:
    graver = {"error": Verdict.BAD, "warning": Verdict.WARN}
    told = [item for item in checked.findings if item.id not in _OWN and item.severity in graver]
    findings = [item for item in told if not item.when]
    first = next((item for item in findings if item.severity == "error"), None)
    for item in findings:
        yield _finding(item, graver[item.severity], checked.changes if item is first else None)
    if conditional := [item for item in told if item.when]:
        yield _conditional(conditional)
    if first is not None:
        return
    known = len(seen.packages) - len(checked.uncovered)
    shown = f"{known} of {len(seen.packages)} distributions have facts"
    word = str(checked.verdict)
    verdict = {"unknown": Verdict.UNKNOWN}.get(word, Verdict.OK)
    if word == "broken":  # by what lines of their own say
        word, verdict = "no rule but those above is broken", Verdict.OK
    elif known <= 0:
        verdict = Verdict.NOT_APPLICABLE
    unknown = [item.because for item in checked.findings if item.id.startswith("unknown:")]
    yield Line(
        id="versions",
        what="versions",
        seen=f"{word}; {shown}",
        verdict=verdict,
        because=unknown[0] if verdict is Verdict.UNKNOWN and unknown else "",
        fix=("knowngood check --here says it in full",) if verdict is Verdict.UNKNOWN else (),
        source=checked.evidence,
    )


def _conditional(findings: list[Finding]) -> Line:
    """What fails in a certain use only, of which nothing is seen here."""
    keys = sorted({key for item in findings for key in item.when})
    return Line(
        id="versions:use",
        what="ways of use that fail",
        seen=f"{len(findings)} are known of these versions, by {', '.join(keys)}; "
        "knowngood check --here --with KEY=VALUE judges yours",
        verdict=Verdict.OK,
        incidents=tuple(item.id for item in findings if item.kind == "incident"),
    )


def _finding(item: Finding, verdict: Verdict, changes: Mapping[str, str] | None) -> Line:
    packages = " ".join(f"{name} {version}" for name, version in item.packages.items())
    fixes = [_fix(fix) for fix in item.fix]
    if changes:
        fixes.append("that would mend all: " + ", ".join(f"{name} {version}" for name, version in changes.items()))
    return Line(
        id=f"versions:{item.id}",
        what="versions",
        seen=packages,
        verdict=verdict,
        because=item.because,
        fix=tuple(fixes),
        incidents=(item.id,) if item.kind == "incident" else (),
        source=item.source,
    )


def _fix(fix: Any) -> str:
    change = ", ".join(f"{name} {version}" for name, version in (fix.get("change") or {}).items())
    return ": ".join(filter(None, [change, str(fix.get("note", ""))]))
