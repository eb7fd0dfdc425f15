"""`catalog.json`: everything that the site shows, for programs; its JSON schema is `docs/catalog.schema.json`. Pure.

A reader refuses another major schema. Within one, keys may be added, but none is removed or changes its meaning.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

CATALOG_SCHEMA: Literal["knowngood/catalog/1"] = "knowngood/catalog/1"
CatalogOutcome = Literal["pass", "fail", "refused", "not-run"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class CatalogDefect(_Model):
    """A check that fails as predicted."""

    check: str
    because: str
    incident: str | None = Field(description="the known failure that it shows")


class CatalogAttention(_Model):
    """What is known of an attention setting in a cell."""

    outcome: CatalogOutcome = Field(description="of the run that proves the most, wherever it ran")
    state: Literal["seen-on-gpu", "seen-on-cpu", "seen-emulated", "predicted", "refused", "wrong", "not-run"] = (
        "not-run"
    )
    text: str = Field("", description="the state in words")
    trains: bool = Field(False, description="whether it is offered: seen training, or nothing speaks against it")
    reason: str = Field("", description="the words of the refusal, the fault or the rule")
    rule: str | None = Field(None, description="the rule that predicts a refusal")
    limits: list[str] = Field([], description="plain checks that the GPU refused although another one trained")
    defects: list[CatalogDefect] = []
    step_ms: float | None = Field(None, description="median of a training step of 8,192 tokens")
    peak_bytes: int | None = None
    length: int | None = Field(None, description="tokens a sequence in that step")

    @property
    def mark(self) -> str:
        """The state, in which a predicted refusal is told apart."""
        return "predicted-refusal" if self.state == "predicted" and not self.trains else self.state


class CatalogRun(_Model):
    """One run of the smoke suite."""

    file: str = Field(description="its path in the folder of evidence")
    when: str
    where: str
    image: str | None = Field(description="digest of the image that ran; null for a bare environment")
    suite: str
    gpu: str | None
    sm: str | None = Field(None, description="the architecture of the GPU; null for a run on a CPU")
    ok: bool
    quick: bool
    verdict: str
    outcomes: dict[str, CatalogOutcome]


class CatalogImage(_Model):
    """A cell's image, by its committed record."""

    digest: str
    size: int = Field(description="bytes in a registry that has nothing of it")
    own: int = Field(description="bytes of the layers that no other cell has")


class CatalogRetirement(_Model):
    """Since when a cell is no longer built, published or offered."""

    on: str
    successor: str | None = Field(alias="for", description="the id of the cell to take instead")


class CatalogCell(_Model):
    """One point of the matrix."""

    id: str
    axes: dict[str, str]
    aliases: list[str]
    in_matrix: bool = Field(description="false: it has runs, but is not in matrix.yaml")
    tier: Literal["none", "resolved", "built", "trains-emulated", "trains-on-cpu", "trains-on-gpu"]
    tier_text: str = Field("", description="the tier in words")
    errors: list[dict[str, Any]] = Field([], description="why the rules forbid it; it is neither built nor published")
    driver_minimum: str | None = Field(description="the oldest driver for its CUDA release, by NVIDIA's table")
    reference: str | None = Field(description="the reference of the image for `docker run`")
    published: bool = Field(False, description="whether the reference is that of a registry")
    tag: str | None = Field(None, description="the tag that `publish` gives the image; null without a lock")
    compiled: list[str] = Field([], description="the wheels that are compiled for it and are on no index")
    image: CatalogImage | None
    attention: dict[str, CatalogAttention]
    evidence: str | None = Field(description="the run that `attention` comes from")
    proof: CatalogRun | None = Field(None, description="that run, which may be older than those that are listed")
    runs: list[CatalogRun] = Field(description="the newest runs, the oldest of them first")
    retired: CatalogRetirement | None = Field(None, description="null: it is maintained")
    runs_seen: int | None = Field(None, description="how many runs there are, including those that are not listed")


class CatalogLayer(_Model):
    """A layer of the recorded images."""

    name: str
    digest: str
    size: int
    cells: list[str]


class CatalogIncident(_Model):
    """A known failure with its signatures, cause and remedies."""

    id: str
    title: str
    kind: str
    severity: str
    component: str
    signatures: list[str]
    affected: list[dict[str, str]]
    because: str
    fix: list[dict[str, Any]]
    source: list[str]
    confidence: str


class CatalogTable(_Model):
    """A table rendered from facts."""

    title: str
    text: str
    head: list[str]
    rows: list[list[str]]


class Catalog(_Model):
    """All data that the site shows."""

    schema_: Literal["knowngood/catalog/1"] = Field(alias="schema")
    cells: list[CatalogCell]
    layers: list[CatalogLayer]
    incidents: list[CatalogIncident]
    compatibility: list[CatalogTable]
    build_time: str = Field("", description="how long the builds of images took that were measured, in words")
    left_out: list[str] = Field(description="evidence that could not be read or trusted, with the reasons")

    def render_json(self) -> str:
        """Return the text of `catalog.json`."""
        return self.model_dump_json(by_alias=True) + "\n"


def render_catalog_schema() -> str:
    """Return the JSON schema of the file, in which the models have their names without `Catalog`."""
    schema = Catalog.model_json_schema(by_alias=True)
    text = json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"
    return re.sub(r'"(#/\$defs/)?Catalog([A-Z]\w*)"', r'"\1\2"', text)
