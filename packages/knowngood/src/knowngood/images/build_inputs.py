"""What goes into a cell's image, read from the project and this machine: the shape, the build contexts, the secrets."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

from knowngood.core import local_files
from knowngood.core.image_record import ImageShape, text_digest
from knowngood.core.local_files import cache_folder
from knowngood.images.build_command import COMPRESSION, EPOCH, CellBuildPlan
from knowngood.images.dockerfile import render_dockerfile
from knowngood.index import index_settings
from knowngood.lock.lock_tree import CellLock
from knowngood.project.checkout import Project
from knowngood.smoke.suite_files import is_suite_litter


def plan_cell_build(  # noqa: PLR0913
    project: Project,
    locked_cell: CellLock,
    dockerfile: str,
    *,
    base_context: str,
    wheels: Path | None,
    builder_context: str | None = None,
    secrets: Mapping[str, Path] = MappingProxyType({}),
) -> CellBuildPlan:
    """Return the plan of a cell's image. `dockerfile` is the text of the file that lies beside the lock.

    `base_context` is the build context of the base, and ends with `@` and its digest. `builder_context` is that of the
    base on whose system the layers are made, where the Dockerfile names it (`base_image.find_builder_base`). `wheels`
    is the folder with the wheels that no index has, `None` for a cell that needs none.
    """
    contexts = {"base": base_context, "tools": str(stage_tools())}
    contexts |= {"builder": builder_context} if builder_context else {}
    contexts |= {"wheelhouse": str(wheels)} if wheels else {}
    base_digest = base_context.rpartition("@")[2]
    shape = image_shape(dockerfile, lock=locked_cell.digest, base=base_digest, recipe=read_recipe_digest(project))
    return CellBuildPlan(
        tag=f"knowngood:{locked_cell.cell}",
        dockerfile=project.tree.cell_folder(locked_cell.cell) / "Dockerfile",
        context=project.tree.folder,
        contexts=contexts,
        inputs=shape.inputs,
        secrets=secrets,
        host=locked_cell.cell.host,
        locked_cell=locked_cell,
        shape=shape,
    )


def read_image_shape(project: Project, locked_cell: CellLock, base_digest: str, recipe_digest: str) -> ImageShape:
    """Return the shape that the cell's image has now; `recipe_digest` comes from `read_recipe_digest`."""
    text = render_dockerfile(locked_cell, project.templates)
    return image_shape(text, lock=locked_cell.digest, base=base_digest, recipe=recipe_digest)


def image_shape(dockerfile: str, *, lock: str, base: str, recipe: str) -> ImageShape:
    """Return the shape of the image of a Dockerfile's text; the other arguments are digests."""
    return ImageShape(
        dockerfile=text_digest(dockerfile),
        lock=lock,
        base=base,
        recipe=recipe,
        uv=uv_version(),
        export=f"{COMPRESSION},epoch={EPOCH}",
    )


def read_recipe_digest(project: Project) -> str:
    """Return the digest of the folder `docker/recipe`, which shapes every image."""
    return digest_folder(project.tree.folder / "recipe")


def digest_folder(folder: Path) -> str:
    """Return the SHA-256 over the names, modes and bytes of a folder's files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if path.is_file() and not any(map(is_suite_litter, place.parts)):
            data = path.read_bytes()
            facts = [str(place), path.stat().st_mode & 0o111, len(data)]
            digest.update(json.dumps(facts).encode() + data)
    return digest.hexdigest()


def uv_version() -> str:
    """Return the version of uv, which resolves and installs."""
    return version("uv")


def stage_tools() -> Path:
    """Return a folder with the uv of this environment, with which the build installs wheels."""
    from uv import find_uv_bin

    return _stage_files([Path(find_uv_bin())], f"tools-{uv_version()}")


def stage_wheels(locked_cell: CellLock, wheel_folder: Path) -> Path | None:
    """Return a folder with only the wheels that the cell takes from the wheelhouse; `None` for a cell that takes none.

    The folder is a build context, and a build context is sent whole.
    """
    wheels = [item for item in locked_cell.distributions if item.made_here]
    name = "-".join(["wheel", *(item.sha256[:16] for item in wheels)])
    return _stage_files([wheel_folder / item.file for item in wheels], name) if wheels else None


def _stage_files(files: list[Path], name: str) -> Path:
    """Return a folder under the cache that holds these files and no others. It appears complete or not at all."""
    folder = cache_folder() / "contexts" / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            part = Path(temporary) / "part"
            part.mkdir()
            for file in files:
                try:
                    os.link(file.resolve(), part / file.name)
                except OSError:
                    shutil.copy2(file, part / file.name)
            with contextlib.suppress(OSError):  # another run made it first
                part.rename(folder)
    return folder


@contextlib.contextmanager
def host_secrets() -> Iterator[dict[str, Path]]:
    """Give the host's index, proxy and CA settings as secret files; the one written here ends with this process."""
    settings = index_settings.read_index_settings()
    secrets = dict(settings.files)
    with contextlib.ExitStack() as stack:
        if settings.env:
            secrets["env"] = stack.enter_context(local_files.private_file("env", settings.shell()))
        yield secrets
