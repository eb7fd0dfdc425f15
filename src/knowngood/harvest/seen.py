"""What at least one release has, so that a name that none has is told from one that some lack."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from knowngood.harvest.index import Unreadable

if TYPE_CHECKING:
    from knowngood import document
    from knowngood.contracts.model import Contract
    from knowngood.contracts.table import Verdict
    from knowngood.errors import Problem
    from knowngood.harvest.caller import Caller
    from knowngood.harvest.judge import Judge
    from knowngood.harvest.release import Release


@dataclass
class Seen:
    """What at least one release had, so that a name that none has is told from one that some lack."""

    callers: set[int] = field(default_factory=set)
    symbols: set[int] = field(default_factory=set)
    caller_files: bool = False
    callee_files: bool = False
    reasons: dict[str, int] = field(default_factory=dict)

    def noted(self, caller: Caller, release: Release, judge: Judge) -> Verdict:
        """The verdict of a pair, with a note of what was there."""
        verdict = judge.pair(caller, release)
        try:
            self._note(caller, release, judge)
        except Exception as error:  # noqa: BLE001 - the verdict has the reason
            self.reasons[str(error)] = self.reasons.get(str(error), 0) + 1
        return verdict

    def _note(self, caller: Caller, release: Release, judge: Judge) -> None:
        self.caller_files |= caller.path is not None
        for place, use in enumerate(judge.contract.uses):
            if place not in self.callers and caller.has_use and caller.asks(place, release.version):
                self.callers.add(place)
            if place not in self.symbols and judge.has_symbol(use, release):
                self.symbols.add(place)
        if not self.callee_files:
            self.callee_files = release.first(judge.contract.callee.files) is not None

    def problems(self, contract: Contract, source: document.Document) -> list[Problem]:
        """What no release at all has, as defects of the contract: an all-green table would hide them."""
        if self.reasons and not self.caller_files:
            raise Unreadable(f"no release of {contract.caller.package} could be read: {min(self.reasons)}")
        for key, there, side in (
            ("caller", self.caller_files, contract.caller),
            ("callee", self.callee_files, contract.callee),
        ):
            if not there:
                files = " or ".join(side.files)
                return [source.problem((key, "file"), f"no release of {side.package} has {files}; is the path right?")]
        found = []
        for place, use in enumerate(contract.uses):
            path = ("uses", place)
            if place not in self.callers:
                where = f" in {' or '.join(use.inside)}" if use.inside else ""
                said = f"{use.expressions[0].text} stands{where} in no release of {contract.caller.package}"
                found.append(source.problem((*path, "expression"), said))
            elif place not in self.symbols:
                what = f"a raise of {use.raises} saying {use.saying!r} is" if use.raises else f"{use.symbols[0]} is"
                said = f"{what} found in no release of {contract.callee.package}; is the name right?"
                found.append(source.problem((*path, "symbol"), said))
        return found
