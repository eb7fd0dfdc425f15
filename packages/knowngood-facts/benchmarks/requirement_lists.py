"""Make random requirement lists around the field's trainers, and label each with what uv says of it.

    python requirement_lists.py COUNT SEED OUT.json [--until DATE] [--pins 5] [--apart]

A list starts from a real resolution: a few packages of the field, as they were on a random day or at random releases,
for a random Python. Some of the resolved pins are kept. In three of four lists one pin is then moved by a few releases.
uv judges the list on Linux x86_64 with the files that the index had at the end of DATE, from metadata alone:

- `sound`: it resolves;
- `direct`: it does not, and the metadata of a listed release itself says why: it excludes another pin of the list or
  the Python, or no file of it fits the Python;
- `deep`: it does not, for reasons that only the requirements of requirements show;
- `needs a build`: uv had to build a source distribution to know, and that failed;
- `undecided`: uv did not end within two minutes.

With `--apart` no release of a list requires another package of it, before one is moved, and one always is: what is
impossible there is mostly deep.

Five lists are taken from each start. OUT.json is written after each start; a run that was ended continues there. The
same seed and date give the same lists. `requirement_comparison.py` compares `knowngood check` with the
labels.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import date, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import uv
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from knowngood.core.errors import KnowngoodError
from knowngood.index.artefact import PublishedFile, UnreadableError
from knowngood.index.package_index import configured_index, file_version, open_http_session
from knowngood.index.remote_archive import RemoteSdist, RemoteWheel
from knowngood.index.wheel_metadata import CoreMetadata, read_metadata

TRAINERS = (
    *(
        "trl",
        "peft",
        "accelerate",
        "transformers",
        "unsloth",
        "axolotl",
        "llamafactory",
        "ms-swift",
        "verl",
        "openrlhf",
    ),
    *("xtuner", "lightning", "pytorch-lightning", "sentence-transformers", "torchtune", "deepspeed", "vllm", "sglang"),
    *("optimum", "diffusers", "lm-eval", "ray", "torch", "liger-kernel", "gptqmodel", "torchtitan"),
)
FIELD = (
    *TRAINERS,
    *(
        "torchvision",
        "torchaudio",
        "torchao",
        "tokenizers",
        "huggingface-hub",
        "safetensors",
        "datasets",
        "bitsandbytes",
    ),
    *(
        "xformers",
        "triton",
        "flash-attn",
        "flash-attn-4",
        "unsloth-zoo",
        "megatron-core",
        "transformer-engine",
        "kernels",
    ),
    *(
        "mamba-ssm",
        "causal-conv1d",
        "flashinfer-python",
        "autoawq",
        "auto-gptq",
        "compressed-tensors",
        "numpy",
        "scipy",
    ),
    *(
        "pandas",
        "pyarrow",
        "nvidia-cublas-cu12",
        "nvidia-cudnn-cu12",
        "nvidia-nccl-cu12",
        "outlines",
        "torchdata",
        "fsspec",
        "setuptools",
    ),
)
EXTRAS = {
    "transformers": ("torch", "sentencepiece", "accelerate", "tokenizers"),
    "trl": ("peft", "quantization", "deepspeed", "diffusers", "vllm"),
    "accelerate": ("deepspeed",),
    "axolotl": ("deepspeed", "flash-attn"),
    "datasets": ("audio", "vision"),
    "diffusers": ("torch", "training"),
    "huggingface-hub": ("hf-transfer", "hf-xet"),
    "llamafactory": ("torch", "metrics", "deepspeed", "bitsandbytes"),
    "lm-eval": ("hf", "vllm"),
    "optimum": ("onnxruntime",),
    "ray": ("default", "data", "train"),
    "sentence-transformers": ("train",),
    "vllm": ("audio",),
}
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
FIRST_DAY = date(2023, 4, 1)
PLATFORM = "x86_64-manylinux_2_36"
MACHINE = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
SECONDS = 120
OF_ONE_START = 5


@dataclass
class Release:
    """The files of one release of a package."""

    files: list[PublishedFile] = field(default_factory=list)
    day: str = "9999"
    yanked: bool = True


class IndexPage(HTMLParser):
    """Reads the releases of one project from its page in the index."""

    def __init__(self, until: str) -> None:
        super().__init__()
        self.until = until
        self.releases: dict[Version, Release] = {}
        self.attributes: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the attributes of a link."""
        self.attributes = {name: value or "" for name, value in attrs} if tag == "a" else {}

    def handle_data(self, data: str) -> None:
        """Add the file that a link names, unless it came after the last day."""
        version, day = file_version(data.strip()), self.attributes.get("data-upload-time", "9999")[:10]
        if version is None or day > self.until or not self.attributes:
            return
        url, _, digest = self.attributes["href"].partition("#sha256=")
        yanked = "data-yanked" in self.attributes
        release = self.releases.setdefault(version, Release())
        release.files.append(PublishedFile(name=data.strip(), url=url, sha256=digest, version=version, yanked=yanked))
        release.day = min(release.day, day)
        release.yanked &= yanked


class Registry:
    """What the index has of the packages that the lists name."""

    def __init__(self, until: str) -> None:
        self.until = until
        self.session = open_http_session()
        self.endpoint = configured_index().rstrip("/")
        self.lock = threading.Lock()
        self.files = functools.cache(self._releases)

    def releases(self, name: str) -> dict[Version, Release]:
        """Return the final releases that are not yanked, oldest first."""
        with self.lock:
            known = self.files(name)
        return {
            version: known[version]
            for version in sorted(known)
            if not version.is_prerelease and not known[version].yanked
        }

    def _releases(self, name: str) -> dict[Version, Release]:
        page = IndexPage(self.until)
        answer = self.session.get(
            f"{self.endpoint}/{name}/",
            headers={"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.1"},
            timeout=60,
        )
        if answer.ok:
            page.feed(answer.text)
        return page.releases

    def metadata(self, name: str, version: str) -> CoreMetadata | None:
        """Return the metadata of a release; `None` when no file of it has any."""
        release = self.files(name).get(Version(version))
        for file in sorted(release.files if release else (), key=lambda item: not item.is_wheel):
            archive = (RemoteWheel if file.is_wheel else RemoteSdist)(file, self.session)
            try:
                return read_metadata(archive)
            except UnreadableError:
                continue
            finally:
                archive.close()
        return None


def resolve(lines: list[str], python: str, until: str, *, build: bool) -> tuple[str, str]:
    """Return `sound`, `impossible`, `needs a build` or `undecided`, and what uv wrote."""
    command = [uv.find_uv_bin(), "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--no-progress"]
    command += ["--python", sys.executable, "--no-python-downloads", "--python-version", python]
    command += ["--python-platform", PLATFORM, "--exclude-newer", f"{until}T23:59:59Z"]
    try:
        done = subprocess.run(
            command if build else [*command, "--no-build"],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "MAX_JOBS": "1"},
        )
    except subprocess.TimeoutExpired:
        return "undecided", ""
    if done.returncode == 0:
        return "sound", done.stdout
    message = re.sub(r"\s+", " ", done.stderr)
    if "No solution found" not in message:
        return "needs a build" if re.search(r"build|setup|metadata", message, re.IGNORECASE) else "undecided", message
    return "impossible", message


def judge(lines: list[str], python: str, until: str) -> tuple[str, str]:
    """Return what uv says of a list; source distributions are built only where wheels alone do not decide."""
    label, message = resolve(lines, python, until, build=False)
    if label == "impossible" and re.search(r"usable wheels|Wheels are required|is disabled", message):
        return resolve(lines, python, until, build=True)
    return label, message


def direct_reason(lines: list[str], python: str, registry: Registry) -> str:
    """Return what the metadata of a listed release says against the list; empty when it is silent."""
    environment = MACHINE | {"python_version": python, "python_full_version": f"{python}.0"}
    pins = {canonicalize_name(item.name): item for item in map(Requirement, lines)}
    for name, pin in pins.items():
        version = str(pin.specifier).removeprefix("==")
        metadata = registry.metadata(name, version)
        if metadata is None:
            continue
        if metadata.requires_python and not SpecifierSet(metadata.requires_python).contains(f"{python}.0"):
            return f"{name} {version} requires Python {metadata.requires_python}"
        for requirement in metadata.requires:
            other = pins.get(canonicalize_name(requirement.name))
            needed = requirement.marker is None or any(
                requirement.marker.evaluate(environment | {"extra": extra}) for extra in ("", *pin.extras)
            )
            if (
                other is not None
                and needed
                and not requirement.specifier.contains(str(other.specifier)[2:], prereleases=True)
            ):
                return f"{name} {version} requires {requirement}"
        if not has_file_for(registry.files(name)[Version(version)], python):
            return f"{name} {version} has no file for Python {python}"
    return ""


def has_file_for(release: Release, python: str) -> bool:
    """Whether a release has an sdist, or a wheel for this Python on the platform."""
    version = tuple(int(part) for part in python.split("."))
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    tags = {
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, f"cp{version[0]}{version[1]}", platforms),
    }
    return any(not file.is_wheel or tags & parse_wheel_filename(file.name)[3] for file in release.files)


def random_start(choose: random.Random, registry: Registry) -> tuple[list[str], str]:
    """Return a few requirements to start from, and the last day whose files may be used."""
    names = choose.sample(TRAINERS, choose.choice((1, 2, 2, 3)))
    names += [name for name in choose.sample(FIELD, choose.choice((0, 1, 2))) if name not in names]
    days = (date.fromisoformat(registry.until) - FIRST_DAY).days
    day = str(FIRST_DAY + timedelta(days=choose.randrange(days)))
    if choose.random() < 0.6:
        return [with_extra(choose, name) for name in names], day
    lines = []
    for name in names[:2]:
        versions = [version for version, release in registry.releases(name).items() if release.day > str(FIRST_DAY)]
        if versions:
            lines.append(f"{with_extra(choose, name)}=={choose.choice(versions)}")
    return [*lines, *names[2:]], registry.until


def with_extra(choose: random.Random, name: str) -> str:
    """Return the name, now and then with one of its extras."""
    return f"{name}[{choose.choice(EXTRAS[name])}]" if name in EXTRAS and choose.random() < 0.12 else name


@dataclass(frozen=True)
class Start:
    """A resolution that lists are taken from."""

    python: str
    pins: dict[str, str]
    roots: dict[str, str]
    """Name -> the name with its extra, of what was asked for."""


@dataclass(frozen=True)
class Shape:
    """How many pins a list has, and how far its one wrong pin is moved: what the command line chooses."""

    most: int
    """The most pins of a list."""
    apart: bool
    """No release of a list requires another package of it, and one is always moved."""

    @property
    def reach(self) -> int:
        """How many releases a pin is moved at most."""
        return 40 if self.apart else 12


def resolve_start(seed: str, registry: Registry) -> Start:
    """Return the first random start of a seed that resolves."""
    for attempt in range(30):
        choose = random.Random(f"{seed}:{attempt}")  # noqa: S311 - a sample
        python = choose.choice(PYTHONS)
        lines, day = random_start(choose, registry)
        label, text = resolve(lines, python, day, build=False)
        pins = dict(line.split("==") for line in text.split() if "==" in line) if label == "sound" else {}
        if len(pins) > 1:
            return Start(
                python, pins, {line.partition("[")[0].partition("==")[0]: line.partition("==")[0] for line in lines}
            )
    raise KnowngoodError(f"no start of the seed {seed} resolves")


def take_list(choose: random.Random, start: Start, registry: Registry, shape: Shape) -> tuple[list[str], str] | None:
    """Return the pins of a list and which of them was moved; `None` where there is no release to move it to."""
    pins = dict(start.pins)
    weights = {name: 40 if name in start.roots else 4 if name in FIELD else 0.05 for name in pins}
    ordered = sorted(pins, key=lambda name: -(choose.random() ** (1 / weights[name])))
    count = choose.randint(2, shape.most)
    kept = keep_apart(ordered, pins, count, registry) if shape.apart else ordered[:count]
    if len(kept) < 2:
        return None
    moved = ""
    if shape.apart or choose.random() < 0.75:
        name = choose.choice([item for item in kept if item in FIELD] or kept)
        versions = list(registry.releases(name))
        place = versions.index(Version(pins[name])) if Version(pins[name]) in versions else -1
        steps = choose.choice([step for step in range(-shape.reach, shape.reach + 1) if step])
        if place < 0 or not 0 <= place + steps < len(versions):
            return None
        moved = f"{name} from {pins[name]}"
        pins[name] = str(versions[place + steps])
    return [f"{start.roots.get(name, name)}=={pins[name]}" for name in sorted(kept)], moved


def keep_apart(ordered: Sequence[str], pins: Mapping[str, str], count: int, registry: Registry) -> list[str]:
    """Return the first packages of which no release requires another one of them."""
    kept: list[str] = []
    required: set[str] = set()
    for name in ordered:
        metadata = registry.metadata(name, pins[name]) if name in FIELD else None
        own = {canonicalize_name(item.name) for item in metadata.requires} if metadata else set()
        if metadata and name not in required and not own & set(kept):
            kept.append(name)
            required |= own
        if len(kept) == count:
            break
    return kept


def label_list(python: str, lines: list[str], moved: str, registry: Registry) -> dict[str, Any]:
    """Return a list with its label, as the file has it."""
    label, message = judge(lines, python, registry.until)
    because = "" if label == "sound" else message[:700]
    if label == "impossible":
        reason = direct_reason(lines, python, registry)
        label, because = ("direct", reason) if reason else ("deep", because)
    return {"python": python, "requirements": lines, "moved": moved, "label": label, "because": because}


def make_labelled_lists(seed: str, registry: Registry, shape: Shape) -> list[dict[str, Any]]:
    """Return the labelled lists that are taken from one start: at most `OF_ONE_START`, no two the same."""
    start = resolve_start(seed, registry)
    made: dict[str, dict[str, Any]] = {}
    for number in range(4 * OF_ONE_START):
        choose = random.Random(f"{seed}:list:{number}")  # noqa: S311 - a sample
        taken = take_list(choose, start, registry, shape)
        if taken is not None and " ".join(taken[0]) not in made:
            made[" ".join(taken[0])] = label_list(start.python, *taken, registry)
        if len(made) == OF_ONE_START:
            break
    return list(made.values())


def main() -> None:
    """Make the lists that are missing in the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("seed")
    parser.add_argument("out", type=Path)
    parser.add_argument("--until", default=str(date.today()))  # noqa: DTZ011 - a day, for a person
    parser.add_argument("--pins", type=int, default=5, help="the most pins of a list")
    parser.add_argument("--apart", action="store_true", help="no release of a list requires another package of it")
    arguments = parser.parse_args()
    shape = Shape(arguments.pins, arguments.apart)
    starts: dict[str, list[dict[str, Any]]] = {}
    if arguments.out.exists():
        starts = json.loads(arguments.out.read_text("utf-8"))["starts"]
    registry = Registry(arguments.until)
    numbers = (str(number) for number in range(arguments.count) if str(number) not in starts)
    with ThreadPoolExecutor(2) as pool:
        pending: dict[Future[list[dict[str, Any]]], str] = {}
        while sum(map(len, starts.values())) < arguments.count:
            while len(pending) < 2 and (number := next(numbers, None)) is not None:
                seed = f"{arguments.seed}:{number}"
                pending[pool.submit(make_labelled_lists, seed, registry, shape)] = number
            for task in wait(pending, return_when=FIRST_COMPLETED).done:
                number = pending.pop(task)
                starts[number] = task.result()
                for item in starts[number]:
                    print(
                        number, item["label"], item["python"], *item["requirements"], item["because"][:120], flush=True
                    )
            write_lists(arguments, starts)


def write_lists(arguments: argparse.Namespace, starts: Mapping[str, list[dict[str, Any]]]) -> None:
    """Write the file, one list in each line."""
    head = json.dumps({"seed": arguments.seed, "until": arguments.until, "platform": PLATFORM})[1:-1]
    texts = (
        f"{json.dumps(number)}: [\n" + ",\n".join(map(json.dumps, starts[number])) + "\n]"
        for number in sorted(starts, key=int)
    )
    part = arguments.out.with_suffix(".part")
    part.write_text(f'{{{head},\n"starts": {{\n' + ",\n".join(texts) + "\n}}\n", encoding="utf-8")
    part.replace(arguments.out)


if __name__ == "__main__":
    main()
