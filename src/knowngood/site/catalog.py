"""`catalog.json`: what the site shows, for programs; its schema is `templates/site/catalog.schema.json`. Pure.

A reader refuses another major schema. Keys may be added within one; none is removed or changes its meaning.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from knowngood.errors import UsageError

SCHEMA: Literal["knowngood/catalog/1"] = "knowngood/catalog/1"
Outcome = Literal["pass", "fail", "refused", "not-run"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Attention(_Model):
    """What a setting does in a cell."""

    outcome: Outcome
    reason: str = ""
    step_ms: float | None = Field(None, description="median of a training step of 8,192 tokens")
    peak_bytes: int | None = None
    length: int | None = Field(None, description="tokens a sequence in that step")


class Run(_Model):
    """One run of the smoke suite."""

    file: str = Field(description="below the folder of evidence")
    when: str
    where: str
    image: str | None = Field(description="digest of the image that ran; null for a bare environment")
    suite: str
    gpu: str | None
    ok: bool
    quick: bool
    verdict: str
    outcomes: dict[str, Outcome]


class Image(_Model):
    """What a cell's image is, by its committed record."""

    digest: str
    size: int = Field(description="bytes in a registry that has nothing of it")
    own: int = Field(description="bytes of the layers that no other cell has")


class Cell(_Model):
    """One point of the matrix."""

    id: str
    axes: dict[str, str]
    aliases: list[str]
    in_matrix: bool = Field(description="false: seen in a run, not in matrix.yaml")
    tier: Literal["none", "resolved", "built", "trains-on-cpu", "trains-on-gpu"]
    driver_minimum: str | None = Field(description="NVIDIA's least driver for its CUDA release")
    reference: str | None = Field(description="the image, as `docker run` takes it")
    image: Image | None
    attention: dict[str, Attention]
    evidence: str | None = Field(description="the run that `attention` is from")
    runs: list[Run] = Field(description="the newest, oldest of them first")
    runs_seen: int | None = Field(None, description="how many runs there are, those that are not listed too")


class Layer(_Model):
    """A layer of the recorded images."""

    name: str
    digest: str
    size: int
    cells: list[str]


class Incident(_Model):
    """A known failure."""

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


class Table(_Model):
    """A table rendered from facts."""

    title: str
    text: str
    head: list[str]
    rows: list[list[str]]


class Catalog(_Model):
    """The whole of it."""

    schema_: Literal["knowngood/catalog/1"] = Field(alias="schema")
    cells: list[Cell]
    layers: list[Layer]
    incidents: list[Incident]
    compatibility: list[Table]
    left_out: list[str] = Field(description="evidence that could not be read or trusted, and why")

    def text(self) -> str:
        """The file's content."""
        return self.model_dump_json(by_alias=True) + "\n"


def schema() -> str:
    """The JSON schema of the file."""
    made = Catalog.model_json_schema(by_alias=True)
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **made}, indent=1) + "\n"


def read(text: str | bytes, origin: str) -> Catalog:
    """A catalog; `UsageError` when it is none, or of another schema."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{origin} is no JSON ({error}); `knowngood site` writes catalog.json") from None
    said = stored.get("schema") if isinstance(stored, dict) else None
    if said != SCHEMA:
        raise UsageError(f"{origin}: schema {said!r}, this program reads {SCHEMA}")
    try:
        return Catalog.model_validate(stored)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{origin} is no sound catalog: {place}: {first['msg']}") from None
