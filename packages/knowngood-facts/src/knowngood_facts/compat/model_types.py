"""Which releases of transformers have a model, from the registry of each. Pure, but for the atlas that it reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from knowngood.evidence.model_judgement import model_name_of_type
from knowngood_facts.compat.demands import Demand
from knowngood_facts.compat.findings import Finding
from knowngood_facts.compat.value_domain import iterate_bits
from knowngood_facts.facts.atlas_answer import REGISTRIES, describe_spans, spans_of_mask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood_facts.compat.query_placement import QueryPlacement
    from knowngood_facts.compat.value_domain import ValueDomain
    from knowngood_facts.facts.atlas_lookup import AtlasLookup


@dataclass(frozen=True)
class ModelTypes:
    """The model types of the releases of transformers whose names were read."""

    lookup: AtlasLookup

    @cached_property
    def releases(self) -> Mapping[str, int]:
        """Name of a model, as conditions of use have it -> the releases that have it, as bits."""
        having: dict[str, int] = {}
        for place in REGISTRIES["model type"]:
            module, _, table = place.removesuffix("[{}]").rpartition(".")
            for path, _, _, mask in self.lookup.file.rows(module):
                if path.startswith(f"{table}["):
                    name = model_name_of_type(path[len(table) + 1 : -1])
                    having[name] = having.get(name, 0) | mask
        return having

    @cached_property
    def read(self) -> int:
        """The releases whose registry was read, as bits."""
        read = 0
        for mask in self.releases.values():
            read |= mask
        return read

    def find_lacking(self, model: str, domain: ValueDomain) -> int:
        """Return the values of transformers' releases that lack a model; none where no release is known to have it.

        A release that was not read lacks what the releases before and after it lack; of the oldest, the one after it.
        """
        having = self.releases.get(model)
        if not having:
            return 0
        lacking, before = 0, True
        previous = ""
        for place, text in enumerate(self.lookup.file.releases):
            lacks = bool(self.read & ~having & 1 << place)
            if lacks:
                lacking |= domain.mask(f"=={text}")
            if lacks and before:
                lacking |= domain.mask(f">{previous},<{text}" if previous else f"<{text}")
            before, previous = lacks, text
        return lacking

    def find_having(self, model: str, domain: ValueDomain) -> int:
        """Return the values of transformers' final releases whose registry was read and has a model."""
        texts = (self.lookup.file.releases[place] for place in iterate_bits(self.releases.get(model, 0)))
        return domain.final & sum(domain.mask(f"=={text}") for text in texts)

    def describe(self, model: str) -> str:
        """Return the releases that have a model, as in `since 4.57.1`."""
        return describe_spans(spans_of_mask(self.releases[model], self.lookup.file.releases))


def demand_model(placement: QueryPlacement, model: str) -> None:
    """Demand a transformers that has a model; a pinned one that lacks it is an error."""
    types = placement.universe.model_types()
    domain = placement.universe.index.domains["transformers"]
    lacking = types.find_lacking(model, domain) if types is not None else 0
    if types is None or not lacking:
        return
    because = (
        f"transformers has the model type {re.sub('-', '_', model)} {types.describe(model)}; code of the model's own "
        "repository (trust_remote_code) is not meant"
    )
    place = placement.assignment.get("transformers", -1)
    is_pinned = place >= 0 and lacking >> place & 1
    near = domain.nearest_places(types.find_having(model, domain), 1 << place)[:1] if is_pinned else ()
    finding = Finding(
        id=f"model-type:{model}",
        kind="fact",
        severity="error",
        packages={"transformers": domain.text(place)} if is_pinned else {},
        because=because,
        source=("the registries of transformers (`knowngood api`)",),
        confidence="artefact",
        fix=tuple(
            {"change": {"transformers": domain.text(item)}, "note": "the nearest release that has it"} for item in near
        ),
    )
    if is_pinned:
        placement.findings.append(finding)
    mask = domain.all & ~lacking
    demand = Demand(text=f"model={model}", variable="transformers", mask=mask, reason=finding)
    placement.implied_demands.append(demand)
