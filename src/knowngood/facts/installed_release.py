"""What a guard can ask of the package that is installed, in one release of it at a time. Pure.

It notes whether an answer depended on the package, and on which release it is. A question of another package's own
(`is_peft_available` imported from transformers) has no source here and is answered by its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from knowngood.facts.atlas_lookup import AtlasLookup
from knowngood.facts.guard_values import (
    SIGNS,
    SOMETHING,
    UNKNOWN,
    GuardError,
    LibraryName,
    merge_values,
    parse_version_value,
)

_ASKS = re.compile(r"available|installed|exists|has|have|support|import", re.IGNORECASE)
_ASKING_WORDS = re.compile(
    r"^(?:is|has|have|can|use|import|imported|importable|available|installed|exists|support|supports|supported|package"
    r"|library|module|or|newer|\d*)$"
)
"""Words of a name beside the package's own that ask for nothing else than whether it is there."""

_COMPARES = re.compile(r"version|greater|_ge$|gte|least|min", re.IGNORECASE)


class InstalledRelease:
    """The package of interest, installed in one release."""

    def __init__(self, package: AtlasLookup) -> None:
        self.package = package
        self.root = package.file.root
        self.asks_release = False
        """Whether an answer depended on which release it is."""
        self.asks_package = False
        """Whether an answer depended on whether the package is installed, or in which release."""
        self.is_guess = False
        """Whether an answer came from the name of a function whose source is not the caller's."""
        self._place = 0
        self._names = {package.file.package, canonicalize_name(self.root)}
        self._named = re.compile(rf"(?:^|_){re.escape(self.root.lower())}(?:_|$)")

    def select_release(self, place: int) -> None:
        """Answer for the release at a place from now on."""
        self._place = place

    def read_release(self) -> str:
        """Return the release as text."""
        self.asks_package = self.asks_release = True
        return self.package.file.releases[self._place]

    def read_name(self, path: str) -> Any:
        """Return a name of the package, or `UNKNOWN`; `GuardError` where the release certainly lacks it."""
        if "." not in path:
            return LibraryName(path)
        if path == f"{self.root}.__version__":
            return self.read_release()
        presence = self.package.find_name(path)
        if presence.present != self.package.every:
            self.asks_release = True
        if presence.present >> self._place & 1:
            return LibraryName(path)
        if presence.unclear >> self._place & 1 or not presence.present:
            return UNKNOWN
        raise GuardError

    def find_spec(self, target: str) -> Any:
        """Answer `importlib.util.find_spec`: `None` where the module is not there."""
        if target.partition(".")[0] != self.root:
            return SOMETHING if target == "torch" else UNKNOWN
        self.asks_package = True
        try:
            return UNKNOWN if self.read_name(target) is UNKNOWN else SOMETHING
        except GuardError:
            return None

    def has_name(self, path: str) -> Any:
        """Answer `hasattr`: whether the release has a name, or `UNKNOWN`."""
        try:
            return UNKNOWN if self.read_name(path) is UNKNOWN else True
        except GuardError:
            return False

    def is_named(self, text: object) -> bool:
        """Return whether a text is the package's name, or that of its module."""
        return isinstance(text, str) and canonicalize_name(text) in self._names

    def note_question(self, name: str) -> None:
        """Note that a function of the package itself was asked, such as `torch.cuda.is_available`."""
        self.asks_package |= bool(_ASKS.search(name))

    def guess_flag(self, name: str) -> Any:
        """Return `True` for a flag or function of another package that only asks for this one, else `UNKNOWN`."""
        words = f"_{name.lower()}_".replace(f"_{self.root.lower()}_", "_").split("_")
        if self._named.search(name.lower()) and _ASKS.search(name) and all(map(_ASKING_WORDS.match, words)):
            self.asks_package = self.is_guess = True
            return True
        return UNKNOWN

    def compare_release(self, sign: str, literal: str) -> Any:
        """Compare the release with a literal."""
        release, wanted = parse_version_value(self.read_release()), parse_version_value(literal)
        return UNKNOWN if UNKNOWN in {release, wanted} else SIGNS[sign](release, wanted)

    def compare_shape(self, arguments: Sequence[Any]) -> Any:
        """Answer `compare_versions("lib", ">=", "1.2")`, also with a release in the name's place; else `UNKNOWN`."""
        match arguments:
            case [Version() as release, str(sign), (str() | Version()) as other] if sign in SIGNS:
                wanted = parse_version_value(other)
                return UNKNOWN if wanted is UNKNOWN else SIGNS[sign](release, wanted)
            case [str(package), str(sign), str(literal)] if sign in SIGNS and self.is_named(package):
                return self.compare_release(sign, literal)
        return UNKNOWN

    def answer_by_name(self, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Answer `is_lib_available("1.2")`, `is_installed("lib")` and their kin by what they are called."""
        texts = [item for item in arguments if not self.is_named(item)]
        is_named = len(texts) < len(arguments)
        if not is_named and not self._named.search(name.lower()):
            asks_torch = list(arguments) in (["torch"], []) and re.fullmatch(r"_?is_(?:package|torch)_available", name)
            return True if asks_torch else UNKNOWN
        self.asks_package = True
        if not texts and keywords.get("return_version") is True:
            return True, self.read_release()
        if keywords or not all(isinstance(text, str) for text in texts):
            return UNKNOWN
        if texts:
            return self._compare_by_name(name.lower(), texts)
        if is_named and _ASKS.search(name):
            self.is_guess = True
            return True
        return self.guess_flag(name)

    def _compare_by_name(self, name: str, texts: Sequence[str]) -> Any:
        match texts:
            case [sign, literal] if sign in SIGNS:
                return self.compare_release(sign, literal)
            case [least] if re.search(r"available|_ge$|gte|equal|min", name):
                return self.compare_release(">=", least)
            case [least] if "greater" in name:  # at the release itself the name does not tell
                return merge_values([self.compare_release(">", least), self.compare_release(">=", least)])
        return UNKNOWN

    def refine_by_name(self, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Answer for a function whose source did not decide: by its name when that compares releases.

        One that asks whether something is there may ask for more, so it can only be false by its name.
        """
        answer = self.answer_by_name(name, arguments, keywords) if arguments else UNKNOWN
        return answer if answer is False or _COMPARES.search(name) else UNKNOWN
