"""A thin image on a cell's image, with packages that a user adds; it is named by its content and made once.

The layer is made as a cell's own layers are: by the recipe, with the host's index and CA settings as build secrets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.core import local_files
from knowngood.core.notify import Notify
from knowngood.images import build_inputs, image_build, pipeline
from knowngood.images.build_command import BuildPlan
from knowngood.images.dockerfile import LABEL_PREFIX
from knowngood.launch.added_packages import AddedPackage
from knowngood.launch.image_access import RunnableImage

if TYPE_CHECKING:
    from pathlib import Path

    from knowngood.core.cell import Cell
    from knowngood.engine.container_engine import Engine
    from knowngood.project.checkout import Project

DERIVED_REPOSITORY = "knowngood-with"
"""The repository of all derived images in the engine."""
DERIVED_LABEL = LABEL_PREFIX + "with"
"""The label of a derived image: the cell that it adds packages to."""

_DOCKERFILE = """\
FROM {base} AS base
FROM base AS added
USER 0:0
RUN --mount=type=bind,from=tools,target=/tools --mount=type=bind,from=recipe,target=/recipe \\
    --mount=type=bind,source=layer,target=/layer \\
    --mount=type=secret,id=env --mount=type=secret,id=ca --mount=type=secret,id=netrc \\
    --mount=type=secret,id=uv-config \\
    ["/recipe/install-layer", "{layer}", "/out"]
FROM base
COPY --link --from=added /out/ /
LABEL {label}="{cell}"
"""


@dataclass(frozen=True, kw_only=True)
class DerivedImage:
    """An image that adds packages to a cell's image."""

    cell: Cell
    base: str
    """The id of the cell's image."""
    added: tuple[AddedPackage, ...]
    recipe: str
    """The digest of the recipe and of uv's version, which install."""

    @property
    def inputs(self) -> str:
        """The SHA-256 over everything that shapes the image."""
        document = [self.base, self.requirements, self.recipe, _DOCKERFILE]
        return hashlib.sha256(json.dumps(document).encode()).hexdigest()

    @property
    def name(self) -> str:
        """The name of the image in the engine."""
        return f"{DERIVED_REPOSITORY}:{self.inputs[:24]}"

    @property
    def requirements(self) -> str:
        """The pins of the layer, one a line."""
        return "".join(f"{item}\n" for item in self.added)

    def dockerfile(self) -> str:
        """Return the text of the Dockerfile."""
        layer = f"added-{hashlib.sha256(self.requirements.encode()).hexdigest()[:12]}"
        base = f"knowngood:{self.cell}"
        return _DOCKERFILE.format(base=base, layer=layer, label=DERIVED_LABEL, cell=self.cell)


def describe_derived_image(project: Project, cell: Cell, base: str, added: Sequence[AddedPackage]) -> DerivedImage:
    """Return the image with these packages on the image of a cell; `base` is the id of that."""
    recipe = build_inputs.digest_folder(_recipe(project))
    return DerivedImage(cell=cell, base=base, added=tuple(added), recipe=f"{recipe} {build_inputs.uv_version()}")


def make_derived_image(project: Project, derived: DerivedImage, engine: Engine, notify: Notify) -> RunnableImage:
    """Return a derived image in the engine; it is built unless it is there.

    Raises `KnowngoodError` when the build fails.
    """
    with local_files.scratch_folder() as folder:
        (folder / "layer").mkdir()
        (folder / "layer" / "requirements.txt").write_text(derived.requirements, encoding="utf-8")
        (folder / "Dockerfile").write_text(derived.dockerfile(), encoding="utf-8")
        plan = BuildPlan(
            tag=derived.name,
            dockerfile=folder / "Dockerfile",
            context=folder,
            contexts={"tools": str(build_inputs.stage_tools()), "recipe": str(_recipe(project))},
            inputs=derived.inputs,
        )
        log = pipeline.cell_log_path(derived.cell, "with")
        image = image_build.find_image(plan, engine) or image_build.work_with_secrets(
            lambda secrets: image_build.build_image(replace(plan, secrets=secrets), engine, log=log, notify=notify),
            (),
            notify,
        )
    return RunnableImage(name=image.tag, digest=image.digest, origin="built here" if image.built else "in the engine")


def _recipe(project: Project) -> Path:
    return project.tree.folder / "recipe"
