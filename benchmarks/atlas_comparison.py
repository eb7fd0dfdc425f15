"""Import the modules of drawn pairs of releases in real environments, and compare with what the atlas foretold.

    python benchmarks/atlas_comparison.py run TORCH [--only CALLER==X] [--work FOLDER]
    python benchmarks/atlas_comparison.py table

`run` takes the pairs of benchmarks/data/atlas_pairs.json, which `benchmarks/atlas_pairs.py` wrote before. For each it
makes an environment with uv, TORCH in it (a wheel for the CPU), installs both releases without regard to what the
caller says of the callee, and what both require beside that, as the index had it a week after the newer of the two; and
it runs `python -c "import MODULE"`. What was seen is written to benchmarks/data/atlas_comparison.json after each pair;
a run that was ended goes on there. A module that fails for want of a package of `REPAIRS` is tried again with it.

`table` writes docs/atlas-comparison.md.

A failure counts for the pair only when it names the callee and the caller's file raised it. Any other failure is the
environment's, is shown with its words, and is not counted as agreement.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import uv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DATA = Path(__file__).parent / "data"
PAIRS = DATA / "atlas_pairs.json"
SEEN = DATA / "atlas_comparison.json"
CAUSES = DATA / "atlas_disagreements.json"
PAGE = Path(__file__).parents[1] / "docs" / "atlas-comparison.md"
TIMEOUT = 240  # seconds
NEVER = (
    "deepspeed flash-attn flash-attn-4 xformers vllm sglang mamba-ssm causal-conv1d autoawq auto-gptq auto-gptq-lite"
    " gptqmodel torchvision torchaudio nvidia-ml-py3 nvidia-cublas-cu12 axolotl-contribs-lgpl mlflow wandb"
).split()
"""Neither built nor installed: they need a GPU, nvcc or another torch, or are large and imported by nobody here."""
REPAIRS = {
    "PIL": "pillow",
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "scipy": "scipy",
    "pandas": "pandas",
    "peft": "peft",
    "accelerate": "accelerate",
    "datasets": "datasets",
    "transformers": "transformers",
    "trl": "trl",
    "torchao": "torchao",
    "sentencepiece": "sentencepiece",
    "pydantic": "pydantic",
    "pytest": "pytest",
    "parameterized": "parameterized",
    "requests": "requests",
    "psutil": "psutil",
    "rich": "rich",
    "matplotlib": "matplotlib",
    "jinja2": "jinja2",
    "typer": "typer",
    "tqdm": "tqdm",
    "fire": "fire",
    "einops": "einops",
    "omegaconf": "omegaconf",
    "hydra": "hydra-core",
    "tensordict": "tensordict",
    "ray": "ray",
    "codetiming": "codetiming",
    "mmengine": "mmengine",
    "lagent": "lagent",
    "bitsandbytes": "bitsandbytes",
    "liger_kernel": "liger-kernel",
    "triton": "triton",
    "kernels": "kernels",
    "tiktoken": "tiktoken",
    "blobfile": "blobfile",
    "gradio": "gradio",
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "sse_starlette": "sse-starlette",
    "openai": "openai",
    "modelscope": "modelscope",
    "addict": "addict",
    "art": "art",
    "xxhash": "xxhash",
    "mcp": "mcp",
    "torchdata": "torchdata",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "librosa": "librosa",
    "soundfile": "soundfile",
    "av": "av",
    "cv2": "opencv-python-headless",
    "safetensors": "safetensors",
    "nltk": "nltk",
    "rouge_score": "rouge-score",
    "evaluate": "evaluate",
    "jieba": "jieba",
    "zstandard": "zstandard",
    "tensorboard": "tensorboard",
    "pylatexenc": "pylatexenc",
    "math_verify": "math-verify",
    "optimum": "optimum",
    "pkg_resources": "setuptools<81",
    "dill": "dill",
    "math_dapo": "",
}
"""Module -> the package that has it. Only these are asked for; names are not guessed."""
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+', re.MULTILINE)
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")


class ImportEnvironment:
    """One virtual environment with a pair of releases."""

    def __init__(self, folder: Path, torch: Path, pair: Mapping[str, Any], python: str) -> None:
        self.folder = folder
        self.pair = pair
        self.python = python
        self.torch = torch
        self.overrides = folder.with_name("overrides.txt")
        self.day = date.fromisoformat(max(pair["days"])) + timedelta(days=7)

    @property
    def site(self) -> Path:
        """Its folder of packages."""
        return self.folder / "lib" / f"python{self.python}" / "site-packages"

    def build(self) -> str:
        """Make it anew. Returns which requirements of the caller were kept; `RuntimeError` when that is impossible."""
        shutil.rmtree(self.folder, ignore_errors=True)
        lines = [f"torch @ {self.torch.as_uri()}", *(f'{name} ; python_version < "3"' for name in NEVER)]
        self.overrides.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._uv("venv", "-q", "-p", self.python, str(self.folder))
        self.install("--no-deps", str(self.torch), "setuptools<81")
        self.install("--no-deps", "--no-build-isolation-package", "none", self.pair["caller"])
        callee = canonicalize_name(Requirement(self.pair["callee"]).name)
        wanted = [item for item in self._requirements() if canonicalize_name(item.name) != callee]
        kept = ("all", wanted), ("names", [Requirement(item.name) for item in wanted]), ("none", [])
        problem = ""
        for word, requirements in kept:
            try:
                self.install(self.pair["callee"], "numpy", *map(str, requirements), dated=True)
            except RuntimeError as error:
                problem = str(error)
                continue
            self.install("--no-deps", self.pair["caller"], self.pair["callee"])
            return word
        raise RuntimeError(problem)

    def install(self, *arguments: str, dated: bool = False) -> None:
        """Install packages; with `dated`, as the index was a week after the pair. `RuntimeError` when uv fails."""
        options = ["--overrides", str(self.overrides), "--exclude-newer", self.day.isoformat()] if dated else []
        self._uv("pip", "install", "-q", "-p", str(self.folder), *options, *arguments)

    def import_module(self, module: str) -> str:
        """Import a module in a process of its own. Returns an empty text, or what it wrote when it failed."""
        home = self.folder.with_name("home")
        home.mkdir(exist_ok=True)
        environment = {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "HOME": str(home),
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
        }
        try:
            done = subprocess.run(
                [str(self.folder / "bin" / "python"), "-c", f"import {module}"],
                check=False,
                capture_output=True,
                text=True,
                env=environment,
                cwd=home,
                stdin=subprocess.DEVNULL,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return f"TimeoutExpired: no end after {TIMEOUT} s"
        return "" if done.returncode == 0 else done.stderr or f"exit code {done.returncode}"

    def releases(self) -> dict[str, str]:
        """Return what is installed."""
        distributions = importlib.metadata.distributions(path=[str(self.site)])
        return {canonicalize_name(item.metadata["Name"]): item.version for item in distributions}

    def _requirements(self) -> Iterator[Requirement]:
        name = Requirement(self.pair["caller"]).name
        (distribution,) = importlib.metadata.distributions(name=name, path=[str(self.site)])
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": "", "python_version": self.python}):
                requirement.marker = None
                yield requirement

    def _uv(self, *arguments: str) -> None:
        done = subprocess.run(
            [uv.find_uv_bin(), *arguments], check=False, capture_output=True, text=True, env=dict(os.environ)
        )
        if done.returncode:
            raise RuntimeError(" ".join(done.stderr.split())[:600])


def blame_failure(text: str, caller: str, callee: str, site: Path) -> str:
    """Return whose failure a traceback shows: `pair`, or `other`. `caller` and `callee` are top-level modules."""
    last = last_error(text)
    names_callee = re.search(
        rf"(from|module|named) ['\"]{callee}[.'\"]|from partially initialized module '{callee}|\({callee}[./]", last
    )
    if not names_callee:
        shown = re.findall(rf"^\w*Error: .*['\"]{callee}[.'\"].*", text, re.MULTILINE)
        names_callee = shown[0] if shown and "look up to see its traceback" in text else None
    frames = [
        Path(match["file"]).relative_to(site).parts[0]
        for match in _FRAME.finditer(text)
        if match["file"].startswith(str(site))
    ]
    while frames and frames[-1] == callee:
        frames.pop()
    return "pair" if names_callee and frames and frames[-1] == caller else "other"


def last_error(text: str) -> str:
    """Return the last line that states an exception, without what is of this machine."""
    lines = [line for line in text.splitlines() if re.match(r"[\w.]*(Error|Exception|Exit|Expired|NotFound)\b", line)]
    line = (lines or text.splitlines() or [""])[-1]
    return re.sub(r"/\S*?site-packages/", "", line)[:300]


def compare_pair(environment: ImportEnvironment, torch_name: str) -> dict[str, Any]:
    """Return what is seen of a pair, as a document."""
    pair = environment.pair
    try:
        kept = environment.build()
    except RuntimeError as error:
        return {"not_run": re.sub(r"/\S+/", "", str(error))[:400]}
    roots = [_top_module(environment.site, Requirement(pair[side]).name) for side in ("caller", "callee")]
    seen: dict[str, Any] = {}
    added: list[str] = []
    for module in pair["modules"]:
        while True:
            text = environment.import_module(module)
            missing = _NO_MODULE.search(last_error(text))
            name = missing[1].partition(".")[0] if missing else ""
            package = REPAIRS.get(name, "")
            if not package or package in added or name in roots or (environment.site / name).exists():
                break
            added.append(package)
            try:
                environment.install(package, pair["callee"], dated=True)
                environment.install("--no-deps", pair["caller"], pair["callee"])
            except RuntimeError:
                break
        result = "imports" if not text else blame_failure(text, *roots, environment.site)
        seen[module] = {"seen": result, **({"error": last_error(text)} if text else {})}
        if result == "other":
            seen[module]["raised_in"] = _last_frame(text, environment.site)
    releases = environment.releases()
    asked = {canonicalize_name(Requirement(pair[side]).name): Requirement(pair[side]) for side in ("caller", "callee")}
    assert all(releases[name] in item.specifier for name, item in asked.items()), releases
    known = ("transformers", "tokenizers", "huggingface-hub", "accelerate", "peft", "trl", "datasets", "numpy")
    return {
        "requirements_kept": kept,
        "day": environment.day.isoformat(),
        "with": {"torch": torch_name, **{name: releases[name] for name in known if name in releases}},
        "added": added,
        "modules": seen,
    }


def _top_module(site: Path, package: str) -> str:
    name = {"ms-swift": "swift"}.get(package, package.replace("-", "_"))
    assert (site / name).is_dir(), name
    return name


def _last_frame(text: str, site: Path) -> str:
    frames = [match["file"] for match in _FRAME.finditer(text) if match["file"].startswith(str(site))]
    return str(Path(frames[-1]).relative_to(site)) if frames else ""


def run_pairs(arguments: argparse.Namespace) -> None:
    """Run the pairs that are not done, and write after each."""
    document = json.loads(PAIRS.read_text("utf-8"))
    done: dict[str, Any] = json.loads(SEEN.read_text("utf-8")) if SEEN.exists() else {}
    arguments.work.mkdir(parents=True, exist_ok=True)
    for pair in document["pairs"]:
        key = f"{pair['caller']} {pair['callee']}"
        if (key in done and not arguments.only) or (arguments.only and arguments.only not in key):
            continue
        environment = ImportEnvironment(arguments.work / "env", arguments.torch, pair, document["python"])
        done[key] = compare_pair(environment, arguments.torch.name.split("-")[1])
        SEEN.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        print(key, *judge_modules(pair, done[key]), done[key].get("not_run", ""), flush=True)


def judge_modules(pair: Mapping[str, Any], seen: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (module, verdict, words) of each module: `agrees`, `false alarm`, `missed` or `not judged`."""
    rows = []
    for module, because in pair["modules"].items():
        result = seen.get("modules", {}).get(module)
        if result is None:
            continue
        verdict = {
            ("imports", False): "agrees",
            ("pair", True): "agrees",
            ("imports", True): "false alarm",
            ("pair", False): "missed",
        }.get((result["seen"], bool(because)), "not judged")
        rows.append((module, verdict, result.get("error", "")))
    return rows


def write_table() -> None:
    """Write the page."""


def main() -> None:
    """Run or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("torch", type=Path)
    run.add_argument("--only", default="")
    run.add_argument("--work", type=Path, default=Path("build/atlas-comparison"))
    commands.add_parser("table")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run_pairs(arguments)
    else:
        write_table()


main()
