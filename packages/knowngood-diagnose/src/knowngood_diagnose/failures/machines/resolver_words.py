"""Why packages cannot be installed, by what pip and uv say: requirements that exclude each other, no wheel. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.package_names import canonical_name
from knowngood_diagnose.failures.names.message_causes import MessageCause
from knowngood_diagnose.failures.names.name_situation import advise, describe_failure
from knowngood_facts.compat.incident import Fix, Incident, IncidentKind, OwnComponent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knowngood_diagnose.failures.logs.last_errors import LastError

_NAME = r"[A-Za-z](?:[\w.-]*\w)?(?:\[[\w, -]+\])?(?:\{[^{}]{1,200}\})?"
_RANGE = r"(?:[<>=!~]=?=?[\w.+*]*\w\*?(?:,\s?[<>=!~]=?=?[\w.+*]*\w\*?)*)"
_PIP_LINE = lazy_pattern(
    rf"^\s*(?P<who>The user requested|{_NAME} \d[\w.+!]*)(?: \(from [^()]*\))? (?:\(constraint\) )?"
    rf"(?:depends on )?(?P<name>{_NAME})(?P<range>(?: ?\(?{_RANGE}\)?)?)(?:;[^\n]{{0,120}})?(?: and "
    rf"(?P<more>{_RANGE}))?\s*$"
)
_UV_DEMAND = lazy_pattern(
    rf"(?P<who>your project|you|all versions of {_NAME}|{_NAME}(?:{_RANGE})?) (?:depends? on|requires?) "
    rf"(?P<what>{_NAME}(?:{_RANGE})?"
    rf"(?:(?:,? and (?:one of: )?|, )(?!we can|you |your |all |because ){_NAME}(?:{_RANGE})?)*)"
)
_UV_ABSENT = lazy_pattern(
    rf"there (?:is|are) no versions? of (?P<name>{_NAME})(?P<range>{_RANGE})?"
    rf"|(?P<absent>{_NAME})(?P<version>{_RANGE})? was not found in the (?P<where>package registry|cache|"
    r"provided package locations)"
)
_UV_WHEEL = lazy_pattern(
    rf"(?P<name>{_NAME})(?P<range>{_RANGE})? has no (?:usable wheels|wheels with a matching (?P<what>[\w "
    r"]+?) tag(?: \(e\.g\., `?(?P<tag>[\w.]+)`?\))?)"
)
_UV_PYTHON = lazy_pattern(
    r"(?:the (?:current|requested) Python version \((?P<python>[^()]{1,40})\) does not satisfy "
    rf"Python(?P<wanted>{_RANGE}))"
)
_ONE = lazy_pattern(rf"(?P<name>[A-Za-z][\w.-]*?)(?:\[[\w, -]+\])?(?:\{{[^{{}}]*\}})?(?P<range>{_RANGE})?$")
_BEGIN = lazy_pattern(
    r"The conflict is caused by:|No solution found when resolving|Cannot install |Because [a-z]|because "
    r"these package versions"
)
_LONGEST = 12_000
_ASKED = lazy_pattern(r"Cannot install ([^\n]{1,200}?) because|you require ([\w.-]+)")
_PLAIN_NAME = lazy_pattern(r"[A-Za-z](?:[\w.-]*\w)?")
_OWN = frozenset(("the list", "the project"))
_UNSATISFIED = lazy_pattern(
    r"Could not find a version that satisfies the requirement (?P<name>[A-Za-z][\w.-]*)(?:\[[\w, "
    r"-]+\])?(?P<range>[^\n(]{0,80}?)"
    r" ?(?:\(from [^()\n]*(?:\([^()\n]*\)[^()\n]*)*\) )?\(from versions: (?P<there>[^()\n]{1,20000})\)"
)
_ONE_DEMAND = lazy_pattern(r"(?P<sign>==|~=|[<>]=?)(?P<version>\d[\w.]*)")
_TORCH_FOLDER = lazy_pattern(r"Looking in indexes?: [^\n]*/whl/(?:nightly/)?(?P<folder>cu\d{2,3}|rocm[\d.]+|cpu|xpu)\b")
_OWN_INDEX = lazy_pattern(
    r"(?:satisfies the requirement|matching distribution found for) (?P<name>torch(?:vision|audio)?)"
    r"==(?P<version>\d[\d.]*)\+(?P<build>cu\d+|cpu|rocm[\d.]+)\b"
)
"""A build of torch's that PyPI has not: its version names the folder of torch's own index."""
_FIRST_NUMBER = lazy_pattern(r"(?:==)?(?P<major>\d+)")
_OTHER_PYTHON = lazy_pattern(
    r"Ignored the following versions that require a different python version: (?P<versions>[^\n]{1,4000})"
)
_LOCAL_FILE = lazy_pattern(r"(?P<file>[\w.+-]+\.whl) is not a supported wheel on this platform")
_TAGS = lazy_pattern(r"-(?P<python>cp\d+|py\d)-(?P<abi>\w+)-(?P<platform>\w+?)\.whl$")


@dataclass(frozen=True, kw_only=True)
class ResolverDemand:
    """What one package, or the user, asks of another."""

    who: str
    name: str
    range: str
    """A specifier such as `>=2.6`; empty for any release."""

    @property
    def text(self) -> str:
        """The demand as words of a sentence."""
        return f"{self.who} wants {self.name}{self.range}"


def describe_resolution(incident: Incident, error: LastError) -> Incident | None:
    """Which demands exclude each other, or which package has nothing to install; `None` where the log does not say."""
    text = error.log_end.decode("utf-8", "replace")
    begin = next((match.start() for match in _BEGIN.finditer(text)), -1)
    if begin < 0:
        return None
    block = re.sub(r"[\u2502\u2570\u2500\u25b6\u251c\u00d7]+", " ", text[begin : begin + _LONGEST])
    demands = _read_pip(block)
    if demands is None:
        flat = " ".join(block.split())
        if special := _describe_absence(incident, flat):
            return special
        demands = _read_uv(flat)
    pair = find_conflict(demands)
    if pair is None:
        return _describe_only_wanted(incident, demands)
    one, other = pair
    name = canonicalize_name(one.name)
    return replace(
        incident,
        title=f"No release of {name} suits both: {one.text}, {other.text}",
        component=_name_side(block, one, other),
        because=(
            f"The requirements conflict, as the resolver's own lines say: {one.text}, and {other.text}. No release of "
            f"{name} is in both ranges, so the two cannot be in one environment as they are asked for."
        ),
        fix=(
            *_fixes_of(one, other),
            advise(
                f"Without the bound of one side, when it is yours: ask for {name} without a version and let "
                "the resolver choose"
            ),
            advise(
                "knowngood check -r requirements.txt names releases of all that go together; two "
                "environments when nothing does"
            ),
        ),
    )


def _name_side(block: str, one: ResolverDemand, other: ResolverDemand) -> str:
    """Whose demands they are: the list's, or those of the package that was asked for, else of the first."""
    if {one.who, other.who} & _OWN:
        return OwnComponent.YOUR_CODE
    wanted = canonicalize_name(" ".join(match[1] or match[2] for match in _ASKED.finditer(block)))
    matches = (_PLAIN_NAME.match(side.who) for side in (one, other))
    names = [canonicalize_name(match[0]) for match in matches if match]
    return next((name for name in names if name in wanted), names[0] if names else OwnComponent.YOUR_CODE)


def _describe_only_wanted(incident: Incident, demands: Sequence[ResolverDemand]) -> Incident | None:
    """A package for which every line of pip asks, in any release: the index has nothing of it for this machine."""
    names = {canonicalize_name(demand.name) for demand in demands}
    if len(names) != 1 or len(demands) < 2 or any(demand.range for demand in demands):
        return None
    name = names.pop()
    return incident.tell("only-wanted", name=name)


def find_conflict(demands: Sequence[ResolverDemand]) -> tuple[ResolverDemand, ResolverDemand] | None:
    """Return two demands for one package whose ranges have nothing in common, the last such; `None` without any."""
    conflict = None
    for place, one in enumerate(demands):
        for other in demands[place + 1 :]:
            if (
                canonicalize_name(one.name) == canonicalize_name(other.name)
                and one.who != other.who
                and _exclude(one.range, other.range)
            ):
                conflict = conflict or (one, other)
    return conflict


def _exclude(one: str, other: str) -> bool:
    """Whether no version at the bounds of two ranges is in both."""
    try:
        first, second = SpecifierSet(one, prereleases=True), SpecifierSet(other, prereleases=True)
    except InvalidSpecifier:
        return False
    if not one or not other:
        return False
    tried: list[Version] = []
    for part in (*first, *second):
        try:
            bound = Version(part.version.removesuffix(".*"))
        except InvalidVersion:
            return False
        above = Version(f"{bound.public}.post999") if not bound.is_postrelease else bound
        release = bound.release
        below = (
            Version(".".join(map(str, (*release[:-1], release[-1] - 1, 999))))
            if release[-1]
            else Version(
                ".".join(map(str, (*(release[:-2] or ()), max((release[-2] if len(release) > 1 else 0) - 1, 0), 999)))
            )
        )
        tried += [bound, above, below]
    return not any(first.contains(item) and second.contains(item) for item in tried)


def _read_pip(block: str) -> list[ResolverDemand] | None:
    """The demands of pip's list; `None` when the text is not pip's."""
    at = block.find("The conflict is caused by:")
    if at < 0:
        return None
    demands = []
    for line in block[at:].splitlines()[1:]:
        if not line.strip() or line.startswith(("To fix", "Additionally", "ERROR")):
            break
        stated = _PIP_LINE.match(line)
        if stated is None:
            continue
        who = "the list" if stated["who"].startswith("The user") else stated["who"].strip()
        wanted = stated["range"].strip(" ()")
        if stated["more"]:
            wanted = f"{wanted},{stated['more']}"
        demands.append(ResolverDemand(who=who, name=stated["name"].partition("[")[0], range=wanted.replace(" ", "")))
    return demands


def _read_uv(flat: str) -> list[ResolverDemand]:
    """The demands of uv's sentences."""
    demands = []
    for stated in _UV_DEMAND.finditer(flat):
        who = re.sub(r"\{[^{}]*\}", "", stated["who"]).removeprefix("all versions of ")
        who = {"you": "the list", "your project": "the project"}.get(who, who)
        for item in re.split(r",? and (?:one of: )?|, ", stated["what"]):
            one = _ONE.match(item.strip().rstrip(",."))
            demands += [ResolverDemand(who=who, name=one["name"], range=one["range"] or "")] if one else []
    return demands


def _describe_absence(incident: Incident, flat: str) -> Incident | None:
    """A package of which there is nothing that could be installed here."""
    if wheel := _UV_WHEEL.search(flat):
        name = canonicalize_name(_plain(wheel["name"]))
        what = wheel["what"] or "platform"
        return incident.tell(
            "no-wheel",
            name=name,
            range=wheel["range"] or "",
            what=what,
            tag=" than " + wheel["tag"] if wheel["tag"] else "",
            at_fault=OwnComponent.PYTHON if "python" in what.lower() else name,
        )
    if python := _UV_PYTHON.search(flat):
        return incident.tell("other-python", python=python["python"], wanted=python["wanted"])
    absent = _UV_ABSENT.search(flat)
    if absent is None:
        return None
    name = canonicalize_name(_plain(absent["name"] or absent["absent"]))
    wanted = absent["range"] or absent["version"] or ""
    return incident.tell(
        "no-release",
        name=name,
        asked=wanted or "on the index in use",
        wanted=wanted,
        at_fault=name if wanted.startswith("==") else OwnComponent.YOUR_CODE,
    )


def _plain(name: str) -> str:
    return name.partition("[")[0].partition("{")[0].strip()


def _fixes_of(one: ResolverDemand, other: ResolverDemand) -> list[Fix]:
    """A newer or older release of each side that is a package."""
    fixes = []
    for side, wanted in ((one, other), (other, one)):
        match = re.match(r"(?P<name>[A-Za-z][\w.-]*)", side.who)
        if match and side.who not in _OWN:
            fixes.append(
                advise(f"Another release of {_plain(match['name'])}, one that takes {wanted.name}{wanted.range}")
            )
        else:
            fixes.append(advise(f"Ask for {wanted.name}{wanted.range} in the list, instead of {side.name}{side.range}"))
    return fixes


def describe_unsatisfied(incident: Incident, error: LastError) -> Incident | None:
    """Which release pip was asked for, and which there are; `None` where it does not say."""
    text = error.log_end.decode("utf-8", "replace")
    if wheel := _LOCAL_FILE.search(text):
        return _describe_file(incident, wheel["file"])
    if build := _OWN_INDEX.search(text):
        return incident.tell("own-index", name=build["name"], version=build["version"], build=build["build"])
    stated = _UNSATISFIED.search(text)
    if stated is None:
        return None
    name, wanted = canonicalize_name(stated["name"]), stated["range"].partition(";")[0].replace(" ", "")
    there = [item.strip() for item in stated["there"].split(",")]
    others = _OTHER_PYTHON.search(text)
    if others and (there == ["none"] or _has(wanted, others["versions"])):
        exact = re.escape(wanted.removeprefix("==")) if wanted.startswith("==") else ""
        bound = re.search(rf"{exact} Requires-Python ([<>=!~\d.,* ]{{3,40}})", others["versions"])
        return incident.tell(
            "other-python",
            name=name,
            wanted=wanted,
            bound=f" ({bound[1].strip(chr(32) + chr(44))})" if bound else "",
            others=", ".join(there[-3:]) if there != ["none"] else "an older one",
        )
    if there == ["none"]:
        return incident.tell("no-release", name=name)
    return _describe_offered(incident, name, wanted, there, text)


def _describe_offered(incident: Incident, name: str, wanted: str, there: Sequence[str], text: str) -> Incident:
    """What the releases that pip offers in the place of the one that was asked for say of this Python."""
    newest = there[-1]
    oldest, side = there[0], _find_side(wanted, there)
    folder = _TORCH_FOLDER.search(text)
    if side == "newer" and folder is not None:
        return incident.tell("newer-in-folder", name=name, wanted=wanted, there=oldest, folder=folder["folder"])
    if side == "newer":
        return incident.tell("newer-only", name=name, wanted=wanted, there=oldest, newest=newest)
    if side == "older" and folder is not None:
        return incident.tell("older-in-folder", name=name, wanted=wanted, newest=newest, folder=folder["folder"])
    if side == "older":
        return incident.tell("too-old-python", name=name, wanted=wanted, there=oldest, newest=newest)
    alike = [item for item in there if _first_number(item) >= _first_number(wanted)]
    asked_for = wanted or "what was asked for"
    near = ", ".join(alike[-4:])
    return (
        incident.tell(
            "not-there", name=name, wanted=wanted, there=there[0], newest=newest, asked_for=asked_for, last=near
        )
        if alike
        else incident.tell("older-only", name=name, wanted=wanted, there=there[0], newest=newest, asked_for=asked_for)
    )


def _find_side(wanted: str, there: Sequence[str]) -> str:
    """Whether all that is there is newer or older than what is asked for, in one word; empty if neither.

    Stubs (0.1.2 of torch) and releases before the final one, which indexes delete, decide nothing.
    """
    demand = _ONE_DEMAND.fullmatch(wanted)
    try:
        versions = sorted(Version(item) for item in there)
        wanted_release = Version(demand["version"]) if demand else None
    except InvalidVersion:
        return ""
    if demand is None or wanted_release is None or wanted_release.is_prerelease or wanted_release.is_postrelease:
        return ""
    if versions[0] > wanted_release and demand["sign"] in {"==", "~=", "<=", "<"}:
        return "newer"
    is_stub = wanted_release.major > 0 == versions[-1].major
    return (
        "older" if versions[-1] < wanted_release and not is_stub and demand["sign"] in {"==", "~=", ">=", ">"} else ""
    )


def _first_number(version: str) -> int:
    """Return the first number of a version or an exact demand; 0 for any other text."""
    first = _FIRST_NUMBER.match(version)
    return int(first["major"]) if first else 0


def _has(wanted: str, versions: str) -> bool:
    """Whether an exact version that was asked for is in a list of them."""
    return bool(wanted.startswith("==") and wanted.removeprefix("==") in versions) or not wanted.startswith("==")


def _describe_file(incident: Incident, file: str) -> Incident | None:
    tags = _TAGS.search(file)
    if tags is None:
        return None
    digits = tags["python"].removeprefix("cp")
    python = (
        f"Python {digits[0]}.{digits[1:]}" if tags["python"].startswith("cp") and len(digits) > 1 else tags["python"]
    )
    return incident.tell(
        "wheel-of-other", file=file, python=python, platform=tags["platform"], tag=tags["python"], abi=tags["abi"]
    )


_CONFLICT = lazy_pattern(
    r"(?P<who>[A-Za-z][\w.-]*) (?P<version>\d[\w.+]*) (?:requires|has requirement) "
    r"(?P<name>[A-Za-z][\w.-]*)(?:\[[\w,-]+\])?(?P<range>[<>=!~][^\s;]*?(?:, ?[<>=!~][^\s;]*?)*)?"
    r"(?:; [^,]{1,80})?, (?:but you(?:'ll)? have (?P<other>[A-Za-z][\w.-]*) (?P<installed>\d[\w.+]*)"
    r"|which is not installed)"
)


def explain_pip_conflict(error: LastError) -> MessageCause | None:
    """Return what the first line of pip's list of conflicts says; `None` for another error."""
    line = _CONFLICT.search(error.message)
    if line is None:
        return None
    name, who = canonical_name(line["name"]), canonical_name(line["who"])
    wanted = (line["range"] or "").replace(" ", "")
    try:
        SpecifierSet(wanted)
    except InvalidSpecifier:
        wanted = ""
    demand = f"{who} {line['version']} requires {name}{wanted}"
    there = f"{line['installed']} is installed" if line["installed"] else "it is not installed"
    fixes = [
        Fix(change={name: wanted or "*"}, note=f"as {who} {line['version']} requires"),
        advise(
            f"Or a newer {who}, made for the {name} that is there; or, when nothing uses {who}: pip uninstall {who}"
        ),
        advise("knowngood check -r requirements.txt names releases of all that go together; one environment a project"),
    ]
    incident = describe_failure(
        f"pip-conflict:{who}:{name}",
        IncidentKind.BOUNDS,
        name,
        title=f"{demand}, and {there}",
        because="pip has installed what it was asked for, and names what does not fit it any more.",
        fixes=fixes,
        source="pip's own list of conflicts",
    )
    return MessageCause(incident=incident, line=error.line, package=name, version=line["installed"] or "")


_BUILT = lazy_pattern(
    r"(?:Failed building wheel for|Failed to (?:download and )?build|Building wheel for|build wheels? for) "
    r"[`'\"]?(?P<name>[A-Za-z][\w.-]*\w)(?:==(?P<version>\d[\w.+]*\w))?"
)
_SOURCE = lazy_pattern(r"(?:^|[\s/])(?P<name>[A-Za-z][\w.-]*?)-(?P<version>\d[\w.]*?)\.(?:tar\.gz|zip)\b", re.MULTILINE)
_PYTHON = lazy_pattern(
    r"(?:cpython-|[-_]cp|lib/python|Python|python)(?P<major>3)\.?(?P<minor>\d{1,2})\b(?=[-/\\.\s_]|$)"
)
_WINDOWS = lazy_pattern(r"win_amd64|win-amd64|\[WinError|[A-Z]:\\|Visual C\+\+")
_MAC = lazy_pattern(r"macosx|/Users/|/private/var/")
_NOT_ONE = frozenset(("installable", "wheels", "some", "one", "more", "editable", "the"))
_WITH_KERNELS = frozenset(
    (
        "flash-attn",
        "xformers",
        "apex",
        "mamba-ssm",
        "causal-conv1d",
        "deepspeed",
        "transformer-engine",
        "auto-gptq",
        "vllm",
    )
)
"""Packages whose builds ask for nvcc and torch: a Python with a wheel is not their remedy."""


def describe_unbuilt(incident: Incident, error: LastError) -> Incident | None:
    """Name the package that did not build, with the Python and the system that have no wheel of it."""
    text = error.log_end.decode("utf-8", "replace")
    names = [match for match in _BUILT.finditer(text) if match["name"].lower() not in _NOT_ONE]
    if not names:
        return None
    name = canonicalize_name(names[-1]["name"])
    if name in _WITH_KERNELS:
        return None
    version = next((match["version"] for match in reversed(names) if match["version"]), "")
    for match in _SOURCE.finditer(text):
        if canonicalize_name(match["name"]) == name:
            version = match["version"]
    pythons = [f"3.{match['minor']}" for match in _PYTHON.finditer(text)]
    python = max(set(pythons), key=pythons.count) if pythons else ""
    system = "Windows" if _WINDOWS.search(text) else "macOS" if _MAC.search(text) else ""
    where = " and ".join(part for part in (f"Python {python}" if python else "", system) if part)
    where = where or "this Python and system"
    named = f"{name} {version}".strip()
    return replace(
        incident,
        title=f"{named} has no wheel for {where}, and did not build",
        component=name,
        because=(
            f"pip took the sources of {name}, because this release of it has no ready wheel for {where}. An older "
            "release that another package pins mostly has none for a newer Python. Compiling it then failed, for "
            "want of a compiler, cmake or a library, or because its sources are older than this Python."
        ),
        fix=(
            advise(
                f"A Python for which {named} has a wheel, mostly one or two older than the newest "
                "(conda create python=3.11, uv venv --python 3.11)"
            ),
            advise(f"A newer {name}, which has a wheel for this Python; and a newer release of what pins the old one"),
            *incident.fix[:1],
        ),
    )
