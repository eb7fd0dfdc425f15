"""Whether a package can be compiled against a torch: the C++ standard that it passes against that of torch's headers.

A package with facts of its own has the rule among its boxes, so that `pick` avoids the release; of the others, the
rule is applied to the release that a query names. With a compiled wheel at hand (`--with wheel=true`) it says nothing.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from knowngood_facts.compat.query import WHEEL_AT_HAND
from knowngood_facts.compat.rule import Condition, Rule

if TYPE_CHECKING:
    from knowngood_facts.compat.factbook import Factbook

ReadBuilds = Callable[[str], Mapping[str, Mapping[str, Any]]]
"""Gives the facts about the builds of a package: release -> fact -> value; none for a package without such facts."""


def no_builds(_: str) -> Mapping[str, Mapping[str, Any]]:
    """Return nothing: no package has facts about its builds."""
    return {}


def list_build_rules(book: Factbook) -> Iterator[Rule]:
    """Yield the rule of each package whose facts have the C++ standard that its build passes."""
    for name in book.packages:
        if any(book.every(name, "cxx_standard")):
            require = {"torch.cxx_minimum": Condition(relation="spec", arguments=(f"<={{{name}.cxx_standard}}",))}
            yield _build_rule(name, f"{{{name}}}", f"{{{name}.cxx_standard}}", {"require": require})


def forecast_build(name: str, version: str, read: ReadBuilds) -> Iterator[tuple[Rule, Mapping[str, str]]]:
    """Yield the rule about one release of a package without other facts, and the combination that it forbids."""
    facts = read(name).get(version, {})
    if standard := facts.get("cxx_standard"):
        forbidden = {name: f"=={version}", "torch.cxx_minimum": f">{standard}"}
        parts: dict[str, Any] = {"require": {}, "forbid": (forbidden,)}
        parts |= {"severity": "warning"} if facts.get("compiled_when_used") else {}
        yield _build_rule(name, version, str(standard), parts), forbidden


def _build_rule(name: str, version: str, standard: str, parts: Mapping[str, Any]) -> Rule:
    artefact = f"{{source:{name}}}, setup.py" if parts["require"] else f"the sdist of {name} {version}"
    what = "its operators, which it compiles when they are first used," if parts.get("severity") else "it"
    return Rule(
        id=f"build:{name}:torch",
        when={name: Condition(relation="spec", arguments=("*",))} if parts["require"] else {},
        unless=dict([WHEEL_AT_HAND]),
        because=(
            f"{name} {version} passes -std=c++{standard} to the compiler, and the headers of torch {{torch}} demand "
            f"C++{{torch.cxx_minimum}}, so that {what} cannot be compiled against it; a wheel that somebody compiled "
            "with another flag is not meant (--with wheel=true)"
        ),
        source=(artefact, "{source:torch}, ATen/ATen.h"),
        **parts,
    )
