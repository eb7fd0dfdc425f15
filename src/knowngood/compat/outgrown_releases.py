"""Old releases of frameworks beside newer packages than any release of the framework was made for. Pure.

xtuner 0.1.11 declares no upper bound on transformers, and xtuner 0.2.0 takes transformers 4.48.0 alone. So the old
release goes with transformers 5.23.0 by what it declares, and nobody would take the two together. `pick` never offers
such a pair unless the request names both releases; `check` warns of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from knowngood.compat.factbook import Factbook
from knowngood.compat.rule import Rule
from knowngood.compat.rule_boxes import Box
from knowngood.compat.value_domain import ValueDomain, iterate_bits

OUTGROWN = "outgrown:"
"""How the ids of these rules begin."""

_BOUNDED = ("torch", "transformers")


def boxes_of_outgrown_releases(
    book: Factbook, domains: Mapping[str, ValueDomain], frameworks: Iterable[str]
) -> Iterator[Box]:
    """Yield, for each framework, its older releases with what is newer than its newest release takes.

    Only releases that declare nothing against the newer package are in a box; the requirements of the others exclude
    it already.
    """
    for name in frameworks:
        domain = domains[name]
        final = [place for place in iterate_bits(domain.final) if not book.yanked(name, domain.values[place])]
        if not final:
            continue
        newest = domain.values[final[-1]]
        for package in _BOUNDED:
            bound = book.requires(name, newest).get(package, "")
            above = _above(domains[package], bound)
            older = [
                place
                for place in range(final[-1])
                if above & domains[package].mask(book.requires(name, domain.values[place]).get(package, ""))
            ]
            if above and older:
                rule = Rule(
                    id=f"{OUTGROWN}{name}:{package}",
                    require={},
                    because=(
                        f"{name} {{{name}}} declares nothing against {package} {{{package}}}, but its newest release, "
                        f"{newest}, takes {package}{bound}: no release of {name} was made for a newer {package}"
                    ),
                    source=(f"{{source:{name}}}", book.source(name, newest)),
                    severity="warning",
                )
                yield Box(rule=rule, masks={name: sum(1 << place for place in older), package: above})


def _above(domain: ValueDomain, bound: str) -> int:
    """Return the releases that are newer than all that `bound` takes; none without a bound."""
    taken = domain.mask(bound) & domain.some if bound else 0
    return domain.some & ~((1 << taken.bit_length()) - 1) if taken else 0
