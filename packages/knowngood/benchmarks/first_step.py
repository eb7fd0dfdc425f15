"""Measure the way from a card to the first step: pick, pull, unpack, start, import, compile, first step, in seconds.

    python first_step.py [CELL] [--registry PROGRAM] [--json FILE]
    python first_step.py --smoke

A cell's image and a plain image with the same files in a single layer (as one `RUN pip install` gives, compressed with
gzip as `docker build` does) are pushed to a registry on this machine, and removed. Then each is pulled and run in an
engine that has neither. The columns:

    pick       `knowngood run --print`: the GPU, facts, rules, evidence, one cell
    pull       until the last layer is here
    unpack     from then until the engine has the image; layers that came earlier are unpacked meanwhile
    start      a container that does nothing
    import     torch and transformers' Trainer, in a new container with an empty cache
    again      the same in the next container, with the cache volume of the first
    step       the first training step of a tiny Qwen2, on the GPU if there is one
    compile    torch.compile of it and the first compiled step

Both images come from this machine's own engine, where the cell's must be (`knowngood build CELL`). It needs about four
times the size of the image on disk. `--smoke` does the same with a tiny image without torch, to show that it works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "packages/knowngood/tests/integration"))

import registry_server  # noqa: E402

from knowngood.base import base_image  # noqa: E402
from knowngood.core.formatting import format_table  # noqa: E402
from knowngood.engine import container_engine, embedded_engine  # noqa: E402
from knowngood.engine.container_engine import Engine  # noqa: E402
from knowngood.images.build_command import COMPRESSION  # noqa: E402
from knowngood.project.checkout import Project  # noqa: E402

COLUMNS = ("pull", "unpack", "start", "import", "again", "step", "compile")

PROGRAM = """
import json, time
start = time.perf_counter()
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer
seconds = {"import": time.perf_counter() - start}
device = "cuda" if torch.cuda.is_available() else "cpu"
shape = dict(vocab_size=260, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
def step(model, tokens=torch.randint(0, 260, (4, 64), device=device)):
    start = time.perf_counter()
    model(input_ids=tokens, labels=tokens).loss.backward()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
model = Qwen2ForCausalLM(Qwen2Config(num_key_value_heads=2, **shape)).to(device)
seconds["step"] = step(model)
seconds["compile"] = step(torch.compile(model))
print(json.dumps(seconds))
"""
SMOKE_PROGRAM = """
import json, time
start = time.perf_counter()
import asyncio, unittest
print(json.dumps({"import": time.perf_counter() - start, "step": 0.0, "compile": 0.0}))
"""


def docker(engine: Engine, *words: str, text: str | None = None) -> str:
    """Return what a docker command on an engine prints."""
    argv = [*engine.docker, *words]
    result = subprocess.run(argv, env=engine.environment(), input=text, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(argv[:6])} ... failed: {result.stderr[-2000:]}")
    return result.stdout


def build_images(engine: Engine, image: str, names: dict[str, str], folder: Path) -> None:
    """Push an image as it is, and the same files with the same settings as a single layer."""
    docker(engine, "tag", image, names["cell"])
    config = json.loads(docker(engine, "image", "inspect", image))[0]["Config"]
    variables = [f"ENV {key}={json.dumps(value)}" for key, _, value in (x.partition("=") for x in config["Env"])]
    user = [f"USER {config['User']}"] if config.get("User") else []
    lines = ["FROM scratch", f"COPY --from={image} / /", *variables, *user, "VOLUME /cache"]
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
    output = f"type=image,name={names['plain']},compression=gzip"
    docker(engine, "buildx", "build", "--provenance", "false", "--output", output, str(folder))
    for name in names.values():
        docker(engine, "push", name)
        docker(engine, "image", "rm", name)


def build_small_image(engine: Engine, folder: Path) -> str:
    """Return the name of an image of the default base alone, which has a Python."""
    project, name = Project(ROOT), "knowngood-benchmark:small"
    base = base_image.prepare_base(project, "debian12", locked=True, notify=print)
    (folder / "Dockerfile").write_text("FROM base\nRUN ln -s python3.11 /usr/bin/python && mkdir /cache\n")
    words = ["--network", engine.network, "--provenance", "false", "--build-context", f"base={base}"]
    docker(engine, "buildx", "build", *words, "--output", f"type=image,name={name},{COMPRESSION}", str(folder))
    return name


def measure_pull(engine: Engine, name: str) -> dict[str, float]:
    """Pull an image into an engine that lacks it, and return the seconds until all is here, and of the rest."""
    start = downloaded = time.perf_counter()
    repository, _, tag = name.rpartition(":")
    with container_engine.docker_client(engine) as client:
        for event in client.api.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in event:
                sys.exit(f"{name} cannot be pulled: {event['error']}")
            if event.get("status") in ("Downloading", "Download complete"):
                downloaded = time.perf_counter()
    return {"pull": downloaded - start, "unpack": time.perf_counter() - downloaded}


def measure_run(engine: Engine, name: str, program: str, *, gpu: bool) -> dict[str, float]:
    """Run the program twice with one cache volume, and return the seconds of its parts and of an empty container."""
    words = ["run", "--rm", "--interactive", "--network", "host", "--volume", "knowngood-benchmark:/cache"]
    words += ["--gpus", "all"] if gpu else []
    start = time.perf_counter()
    docker(engine, *words, name, "true")
    seconds = {"start": time.perf_counter() - start}
    seconds |= json.loads(docker(engine, *words, name, "python", "-", text=program).splitlines()[-1])
    seconds["again"] = json.loads(docker(engine, *words, name, "python", "-", text=program).splitlines()[-1])["import"]
    docker(engine, "volume", "rm", "knowngood-benchmark")
    return seconds


def measure_pick(gpu: str) -> float:
    """Return the seconds of a whole process that chooses a cell and prints the command."""
    start = time.perf_counter()
    argv = [sys.executable, "-m", "knowngood", "run", "--print", "--gpu", gpu, "--", "true"]
    subprocess.run(argv, check=True, capture_output=True, cwd=ROOT)
    return time.perf_counter() - start


@contextlib.contextmanager
def empty_engine() -> Iterator[Engine]:
    """Give a second embedded engine that has no images, and remove it."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, KNOWNGOOD_CACHE=folder):
        embedded_engine.start_embedded_engine(print)
        try:
            engine = container_engine.find_embedded_engine()
            assert engine is not None
            yield engine
        finally:
            embedded_engine.remove_embedded_engine(lambda _: None)


def main() -> None:
    """Measure, print a table, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", nargs="?", default="default")
    parser.add_argument("--registry", type=Path, help="the program docker-registry (default: Debian's, unpacked)")
    parser.add_argument("--gpu", action="store_true", help="give the containers the GPUs")
    parser.add_argument("--smoke", action="store_true", help="a tiny image without torch")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    [cell] = Project(ROOT).matrix.select_cells([options.cell])
    engine = container_engine.ensure_engine(notify=print)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        program = options.registry or registry_server.unpack(folder)
        server = registry_server.Server(program, folder)
        server.start()
        try:
            names = {kind: f"{server.address}/benchmark:{kind}" for kind in ("cell", "plain")}
            (folder / "build").mkdir()
            image = build_small_image(engine, folder / "build") if options.smoke else f"knowngood:{cell}"
            build_images(engine, image, names, folder / "build")
            seconds = {}
            for kind, name in names.items():
                with empty_engine() as fresh:
                    seconds[kind] = measure_pull(fresh, name)
                    code = SMOKE_PROGRAM if options.smoke else PROGRAM
                    seconds[kind] |= measure_run(fresh, name, code, gpu=options.gpu)
        finally:
            server.kill()
            if options.smoke:
                docker(engine, "image", "rm", "knowngood-benchmark:small")
    result = {"cell": str(cell), "pick": measure_pick(cell.gpu), "load": os.getloadavg()[0], "seconds": seconds}
    rows = [[kind, *(f"{values[name]:.1f}" for name in COLUMNS)] for kind, values in seconds.items()]
    print(f"{image}; pick {result['pick']:.1f} s; load of this machine {result['load']:.1f}")
    print(format_table(["image", *COLUMNS], rows))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
