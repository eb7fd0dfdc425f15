"""A thin image on a cell's image, with packages that a user adds, or with a compiler: its dev variant.

It is named by its content and made once. The layer of packages is made as a cell's own layers are: by the recipe, with
the host's index and CA settings as build secrets.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core import local_files
from knowngood.core.notify import Notify
from knowngood.images import build_inputs, image_build, pipeline
from knowngood.images.build_command import BuildPlan, Image
from knowngood.images.dockerfile import LABEL_PREFIX
from knowngood.launch import dev_toolkit_inside
from knowngood.launch.added_packages import AddedPackage
from knowngood.launch.image_access import RunnableImage

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.engine.container_engine import Engine
    from knowngood.launch.dev_toolkit import DevToolkit
    from knowngood.project.checkout import Project

DERIVED_REPOSITORY = "knowngood-with"
"""The repository of all derived images in the engine."""
DERIVED_LABEL = LABEL_PREFIX + "with"
"""The label of a derived image: the cell that it adds packages to."""

_ADDED_STAGE = """\
FROM base AS added
USER 0:0
RUN --mount=type=bind,from=tools,target=/tools --mount=type=bind,from=recipe,target=/recipe \\
    --mount=type=bind,source=layer,target=/layer \\
    --mount=type=secret,id=env --mount=type=secret,id=ca --mount=type=secret,id=netrc \\
    --mount=type=secret,id=uv-config \\
    ["/recipe/install-layer", "{layer}", "/out"]
"""
_TOOLKIT_STAGE = """\
FROM base AS toolkit
USER 0:0
RUN --mount=type=bind,from=cuda,target=/toolkit --mount=type=bind,from=recipe,target=/recipe \\
    --mount=type=bind,source={script},target=/{script} \\
    /opt/venv/bin/python /{script} /toolkit /out && /recipe/normalize /out
"""
_TOOLKIT_ENVIRONMENT = """\
COPY --link --from=toolkit /out/ /
ENV CUDA_HOME=/{home} PATH=/{home}/bin:$PATH TORCH_CUDA_ARCH_LIST={architecture}
"""


@dataclass(frozen=True, kw_only=True)
class DerivedImage:
    """An image that adds packages to a cell's image, and a CUDA toolkit to the dev variant of the cell."""

    cell: Cell
    base: str
    """The id of the cell's image."""
    added: tuple[AddedPackage, ...]
    recipe: str
    """The digest of the recipe and of uv's version, which install."""
    toolkit: DevToolkit | None = None

    @property
    def inputs(self) -> str:
        """The SHA-256 over everything that shapes the image."""
        document = [self.base, self.requirements, self.recipe, self.dockerfile()]
        document += [self.toolkit.inputs] if self.toolkit else []
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
        stages, image = [f"FROM knowngood:{self.cell} AS base\n"], ["FROM base\n"]
        if self.toolkit:
            home, script = dev_toolkit_inside.CUDA_HOME, Path(dev_toolkit_inside.__file__).name
            stages.append(_TOOLKIT_STAGE.format(script=script))
            image.append(_TOOLKIT_ENVIRONMENT.format(home=home, architecture=self.toolkit.architecture))
        if self.added:
            stages.append(_ADDED_STAGE.format(layer=layer))
            image.append("COPY --link --from=added /out/ /\n")
        return "".join([*stages, *image, f'LABEL {DERIVED_LABEL}="{self.cell}"\n'])


def describe_derived_image(
    project: Project, cell: Cell, base: str, added: Sequence[AddedPackage], toolkit: DevToolkit | None = None
) -> DerivedImage:
    """Return the image with these packages, and this toolkit, on the image of a cell; `base` is the id of that."""
    recipe = f"{build_inputs.digest_folder(_recipe(project))} {build_inputs.uv_version()}"
    return DerivedImage(cell=cell, base=base, added=tuple(added), recipe=recipe, toolkit=toolkit)


def make_derived_image(project: Project, derived: DerivedImage, engine: Engine, notify: Notify) -> RunnableImage:
    """Return a derived image in the engine; it is built unless it is there.

    Raises `KnowngoodError` when the build fails.
    """
    with local_files.scratch_folder() as folder:
        plan = _plan_build(project, derived, folder)
        image = image_build.find_image(plan, engine) or _build_derived_image(plan, derived, engine, notify)
    return RunnableImage(name=image.tag, digest=image.digest, origin="built here" if image.built else "in the engine")


def _plan_build(project: Project, derived: DerivedImage, folder: Path) -> BuildPlan:
    """Write the context of the build into a folder, and return the plan without the toolkit."""
    (folder / "layer").mkdir()
    (folder / "layer" / "requirements.txt").write_text(derived.requirements, encoding="utf-8")
    (folder / "Dockerfile").write_text(derived.dockerfile(), encoding="utf-8")
    if derived.toolkit:
        shutil.copy(dev_toolkit_inside.__file__, folder)
    return BuildPlan(
        tag=derived.name,
        dockerfile=folder / "Dockerfile",
        context=folder,
        contexts={"tools": str(build_inputs.stage_tools()), "recipe": str(_recipe(project))},
        inputs=derived.inputs,
    )


def _build_derived_image(plan: BuildPlan, derived: DerivedImage, engine: Engine, notify: Notify) -> Image:
    """Build the image; the toolkit is installed now, since an image that is there needs none."""
    if derived.toolkit:
        plan = replace(plan, contexts={**plan.contexts, "cuda": str(derived.toolkit.install(notify))})
    log = pipeline.cell_log_path(derived.cell, "with")
    return image_build.work_with_secrets(
        lambda secrets: image_build.build_image(replace(plan, secrets=secrets), engine, log=log, notify=notify),
        (),
        notify,
    )


def _recipe(project: Project) -> Path:
    return project.tree.folder / "recipe"
