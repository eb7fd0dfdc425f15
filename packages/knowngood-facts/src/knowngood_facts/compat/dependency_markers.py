"""Requirements as packages publish them, for one target: markers, Requires-Python, tags of wheels. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from knowngood.core.errors import UsageError
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.package_names import canonical_name
from knowngood_facts.compat.value_domain import version_matches

_LINE = lazy_pattern(
    r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[([^\]]*)\])?\s*"
    r"(?:\(([^)]*)\)|(@)\s*\S+|([^;@]*?))\s*(?:;\s*(.*?)\s*)?"
)
_TOKEN = lazy_pattern(
    r"\s*(?:(\(|\))|(\band\b|\bor\b)|(===|==|~=|!=|<=|>=|<|>|\bnot\s+in\b|\bin\b)"
    r"|\"([^\"]*)\"|'([^']*)'|([a-z_.]+))"
)
_EXTRA = lazy_pattern(r"\bextra\s*[=!]=\s*['\"]([^'\"]*)|['\"]([^'\"]*)['\"]\s*[=!]=\s*extra\b")
_VERSION_VARIABLES = frozenset({"python_version", "python_full_version", "implementation_version"})


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """One requirement of a release."""

    name: str
    """The package, in lower case with single dashes (PEP 503)."""
    extras: tuple[str, ...]
    specifier: str
    marker: str
    """Its marker as text, empty when it has none."""
    marked_extras: frozenset[str]
    """The extras that the marker names: those of the package that has this requirement."""
    is_url: bool = False
    """It names an address instead of releases, so that its version is not known."""


@dataclass(frozen=True, kw_only=True)
class ResolutionTarget:
    """The machine and the Python for which requirements are resolved: CPython on Linux."""

    python: str
    """A release such as 3.11 or 3.11.4; without its third number it counts as the first of them."""
    machine: str = "x86_64"
    glibc: str | None = None
    """The newest glibc whose wheels can be used; `None` for any."""
    free_threaded: bool = False
    wheels_only: bool = False
    """Whether a release without a wheel cannot be installed, as where packages are added to an image."""
    present: frozenset[str] = frozenset()
    """The packages that are there already, so that they need no wheel."""
    _kept: dict[tuple[str, str], bool] = field(default_factory=dict, repr=False, compare=False)

    @property
    def minor(self) -> str:
        """The Python without its third number."""
        return ".".join(self.python.split(".")[:2])

    @property
    def full(self) -> str:
        """The Python with three numbers."""
        return self.python if self.python.count(".") > 1 else f"{self.python}.0"

    def with_python(self, python: str) -> ResolutionTarget:
        """Return the same machine with another Python, for which each marker is evaluated anew."""
        return ResolutionTarget(python=python, machine=self.machine, glibc=self.glibc, free_threaded=self.free_threaded)

    def variables(self) -> dict[str, str]:
        """Return the variables of markers (PEP 508) without `extra`."""
        return {
            "python_version": self.minor,
            "python_full_version": self.full,
            "sys_platform": "linux",
            "sys.platform": "linux",
            "platform_system": "Linux",
            "platform_machine": self.machine,
            "platform_release": "",
            "platform_version": "",
            "os_name": "posix",
            "os.name": "posix",
            "implementation_name": "cpython",
            "implementation_version": self.full,
            "platform_python_implementation": "CPython",
            "python_implementation": "CPython",
        }

    def fulfils(self, marker: str, extra: str = "") -> bool:
        """Whether a marker holds on this target when one extra, or none, is asked for."""
        key = (marker, extra)
        if key not in self._kept:
            self._kept[key] = not marker or _compile_marker(marker)({**self.variables(), "extra": extra})
        return self._kept[key]


@lru_cache(maxsize=50_000)
def parse_dependency(line: str) -> Dependency | None:
    """Parse one requirement as metadata has it (`numpy>=1.17; extra == "torch"`); `None` when it cannot be read."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    name, extras, bracketed, url, specifier, marker = match.groups()
    marker = marker or ""
    named = (
        frozenset(canonical_name(one or two) for one, two in _EXTRA.findall(marker))
        if "extra" in marker
        else frozenset()
    )
    return Dependency(
        name=canonical_name(name),
        extras=tuple(sorted(canonical_name(extra.strip()) for extra in (extras or "").split(",") if extra.strip())),
        specifier=_lenient_specifier(bracketed or specifier or ""),
        marker=marker,
        marked_extras=named,
        is_url=bool(url),
    )


def is_of_extra(line: str) -> bool:
    """Whether it is plain from a requirement's text that only an extra brings it; most of these are never parsed."""
    return 'extra == "' in line


def _lenient_specifier(text: str) -> str:
    """Return a specifier in the strict form: installers read `>=2.0.*` as `>=2.0`, and so do old releases mean it."""
    text = text.strip()
    return re.sub(r"((?:>=|<=|<|>|~=)\s*[^,\s]*?)\.\*", r"\1", text) if ".*" in text else text


_Test = Callable[[dict[str, str]], bool]


@lru_cache(maxsize=10_000)
def _compile_marker(text: str) -> _Test:
    """Return a function that evaluates a marker; a marker that cannot be read holds, as installers warn of it only."""
    tokens: list[tuple[str, str]] = []
    place = 0
    text = text.strip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            return _always
        bracket, junction, operator, double, single, variable = match.groups()
        if bracket:
            tokens.append(("bracket", bracket))
        elif junction:
            tokens.append(("junction", junction))
        elif operator:
            tokens.append(("operator", re.sub(r"\s+", " ", operator)))
        elif variable:
            tokens.append(("variable", variable))
        else:
            tokens.append(("text", double if double is not None else single))
        place = match.end()
    try:
        test, rest = _parse_any(tokens)
    except IndexError:
        return _always
    return _always if rest else test


def _always(_: dict[str, str]) -> bool:
    return True


_Tokens = list[tuple[str, str]]


def _parse_any(tokens: _Tokens) -> tuple[_Test, _Tokens]:
    """Parse tests that are joined by `or`, and return what is left over."""
    tests, tokens = _parse_joined(tokens, "or", _parse_all)
    return (lambda values: any(test(values) for test in tests)) if len(tests) > 1 else tests[0], tokens


def _parse_all(tokens: _Tokens) -> tuple[_Test, _Tokens]:
    """Parse tests that are joined by `and`, and return what is left over."""
    tests, tokens = _parse_joined(tokens, "and", _parse_test)
    return (lambda values: all(test(values) for test in tests)) if len(tests) > 1 else tests[0], tokens


def _parse_joined(
    tokens: _Tokens, word: str, parse: Callable[[_Tokens], tuple[_Test, _Tokens]]
) -> tuple[list[_Test], _Tokens]:
    """Parse one test and each further one behind `word`, and return them with what is left over."""
    one, tokens = parse(tokens)
    tests = [one]
    while tokens and tokens[0] == ("junction", word):
        other, tokens = parse(tokens[1:])
        tests.append(other)
    return tests, tokens


def _parse_test(tokens: _Tokens) -> tuple[_Test, _Tokens]:
    """Parse one comparison, or what stands in brackets."""
    if tokens[0] == ("bracket", "("):
        test, rest = _parse_any(tokens[1:])
        if rest[0] != ("bracket", ")"):
            raise IndexError
        return test, rest[1:]
    left, operator, right, *rest = tokens
    if operator[0] != "operator" or left[0] not in ("variable", "text") or right[0] not in ("variable", "text"):
        raise IndexError

    def holds(values: dict[str, str]) -> bool:
        one, two = (values.get(text, "") if kind == "variable" else text for kind, text in (left, right))
        versions = _VERSION_VARIABLES & {left[1], right[1]}
        if "extra" in (left[1], right[1]):
            one, two = canonical_name(one), canonical_name(two)
        return _compare(one, operator[1], two, swapped=left[0] == "text", versions=bool(versions))

    return holds, rest


_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _compare(left: str, operator: str, right: str, *, swapped: bool, versions: bool) -> bool:
    if operator in ("in", "not in"):
        return (left in right) is (operator == "in")
    if versions:
        version, bound = (right, left) if swapped else (left, right)
        try:
            return version_matches((_MIRRORED.get(operator, operator) if swapped else operator) + bound, version)
        except (UsageError, ValueError):
            pass
    if operator in ("==", "===", "~="):
        return left == right
    if operator == "!=":
        return left != right
    return left < right if operator == "<" else left > right if operator == ">" else operator in ("<=", ">=")


_PLATFORM = lazy_pattern(r"(?:many)?linux(?:_(\d+)_(\d+)|1|2010|2014)?_(.+)")
_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


def tag_fits(tag: str, target: ResolutionTarget) -> bool:
    """Whether a target can install a wheel with this tag, `cp311-cp311-manylinux_2_17_x86_64`.

    Each of the tag's three parts may be several, joined by dots.
    """
    return _tag_fits(tag, target.minor, target.machine, target.glibc, target.free_threaded)


@lru_cache(maxsize=20_000)
def _tag_fits(tag: str, python: str, machine: str, glibc: str | None, free_threaded: bool) -> bool:
    parts = tag.rsplit("-", 2)
    if len(parts) != 3:
        return False
    interpreters, abis, platforms = (part.split(".") for part in parts)
    return any(_platform_fits(platform, machine, glibc) for platform in platforms) and any(
        _python_fits(interpreter, abi, python, free_threaded) for interpreter in interpreters for abi in abis
    )


def _platform_fits(platform: str, machine: str, glibc: str | None) -> bool:
    if platform == "any":
        return True
    match = _PLATFORM.fullmatch(platform)
    if match is None or match[3] != machine:
        return False
    least = (int(match[1]), int(match[2])) if match[1] else _LEGACY.get(platform.partition("_")[0], (0, 0))
    return glibc is None or least <= tuple(int(number) for number in glibc.split(".")[:2])


def _python_fits(interpreter: str, abi: str, python: str, free_threaded: bool) -> bool:
    match = re.fullmatch(r"(py|cp)(\d)(\d*)", interpreter)
    if match is None:
        return False
    major, minor = (int(number) for number in python.split("."))
    kind, own_major, own_minor = match[1], int(match[2]), int(match[3]) if match[3] else None
    if own_major != major or (own_minor is not None and own_minor > minor):
        return False
    if kind == "py":
        return abi == "none"
    if abi == "none":
        return own_minor in (None, minor)
    if abi == "abi3":
        return not free_threaded
    # The ABI of Python 3.7 and older has a letter, as in cp37m.
    names = (f"cp{major}{minor}t",) if free_threaded else (f"cp{major}{minor}", f"cp{major}{minor}m")
    return own_minor == minor and abi in names
