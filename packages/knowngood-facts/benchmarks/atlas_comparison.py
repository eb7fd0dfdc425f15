"""Import the modules of drawn pairs of releases in real environments, and compare with what the atlas foretold.

    python atlas_comparison.py run [TORCH] [--only PATTERN] [--work FOLDER]
    python atlas_comparison.py table

`run` takes the pairs of data/atlas_pairs.json, which `atlas_pairs.py` wrote before. For each it
makes an environment with uv, TORCH in it (a wheel for the CPU; the pair's own torch from the index, where the callee is
torch, so that these need no TORCH), installs both releases without regard to what the
caller says of the callee, and what both require beside that, as the index had it at the end of the quarter of the
newer of the two; and it imports modules, each in a process of its own: the top level, the first module with a foretold
break, and the last of the list. What was seen is written to data/atlas_comparison.json after each pair; a
run that was ended goes on there. A module that fails for want of a package of `REPAIRS` is tried again with it. With
`--again`, what could not be judged is tried with the other packages as they were in the older release's quarter.

`table` writes docs/atlas-comparison.md. It judges the stored runs twice: by what was foretold before they ran, and by
the tables of broken uses as they are now.

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
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uv
from atlas_pairs import PackagePair, foretell_module
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from knowngood_facts.facts.atlas_lookup import atlas_folder, find_owner, open_atlas
from knowngood_facts.facts.broken_use_table import read_broken_uses

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

DATA = Path(__file__).parent / "data"
PAIRS = DATA / "atlas_pairs.json"
SEEN = DATA / "atlas_comparison.json"
CAUSES = DATA / "atlas_disagreements.json"
PAGE = Path(__file__).parents[3] / "docs" / "atlas-comparison.md"
TIMEOUT = 240  # seconds, for importing a module
PATIENCE = 300  # seconds, for uv
NEVER = (
    *("deepspeed", "flash-attn", "flash-attn-4", "xformers", "vllm", "sglang", "mamba-ssm", "causal-conv1d", "autoawq"),
    *("auto-gptq", "gptqmodel", "torchvision", "torchaudio", "axolotl-contribs-lgpl", "oci", "ocifs", "adlfs", "s3fs"),
    *("gcsfs", "lm-eval", "gradio", "mlflow", "art"),
)
"""Neither built nor installed: they need a GPU, nvcc or another torch, or are large and imported by nobody here."""
_OF_TORCH = "sympy", "typing-extensions"
"""These may be newer than the pair, because TORCH asks for it."""
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
    "posthog": "posthog",
    "wandb": "wandb",
    "numba": "numba",
    "optuna": "optuna",
}
"""Module -> the package that has it. Only these are asked for; names are not guessed."""
_IMPORTER = """
import importlib, os, signal, sys, traceback
for module in sys.argv[2].split(","):
    try:
        importlib.import_module(module)
    except BaseException:
        pass
for module in sys.argv[3:]:
    child = os.fork()
    if not child:
        signal.alarm(int(sys.argv[1]))
        log = open(module + ".log", "w")
        try:
            exec("import " + module)
        except BaseException:
            log.write("failed\\n" + traceback.format_exc())
        else:
            log.write("imported\\n")
        log.flush()
        os._exit(0)
    code = os.waitpid(child, 0)[1]
    if code:
        open(module + ".log", "w").write(f"ended with {code}\\n")
"""
_FIRST = "numpy", "torch", "transformers.modeling_utils"
"""These are imported once, if they can be, then each module in a fork of that process: it saves most of the time."""
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+', re.MULTILINE)
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")


def end_of_quarter(day: date) -> date:
    """Return the last day of a quarter: few days, so that pairs share the other packages."""
    month = (day.month + 2) // 3 * 3
    return date(day.year, month, 31 if month in {3, 12} else 30)


class ImportEnvironment:
    """One virtual environment with a pair of releases."""

    def __init__(self, folder: Path, torch: str, pair: Mapping[str, Any], python: str) -> None:
        """`torch` is what uv is asked for: `torch @ file:...` or `torch==2.1.2`."""
        self.folder = folder
        self.pair = pair
        self.python = python
        self.torch = torch
        self.overrides = folder.with_name("overrides.txt")
        self.day = end_of_quarter(date.fromisoformat(max(pair["days"])))

    @property
    def site(self) -> Path:
        """Its folder of packages."""
        return self.folder / "lib" / f"python{self.python}" / "site-packages"

    def build(self) -> str:
        """Make it anew. Returns which requirements of the caller were kept; `RuntimeError` when that is impossible."""
        shutil.rmtree(self.folder, ignore_errors=True)
        lines = [self.torch, *(f'{name} ; python_version < "3"' for name in NEVER)]
        self.overrides.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._uv("venv", "-q", "-p", self.python, str(self.folder))
        self.install("--no-deps", self.torch, "setuptools<81", self.pair["caller"])
        callee = canonicalize_name(Requirement(self.pair["callee"]).name)
        wanted = [item for item in self._requirements() if canonicalize_name(item.name) != callee]
        kept = ("all", wanted), ("names", [Requirement(item.name) for item in wanted]), ("none", [])
        problem = ""
        for word, requirements in kept:
            try:
                self.install(self.pair["callee"], "torch", "numpy", *map(str, requirements), dated=True)
            except RuntimeError as error:
                problem = str(error)
                continue
            if not self.has_pair():
                self.install("--no-deps", self.pair["caller"], self.pair["callee"])
            return word
        raise RuntimeError(problem)

    def install(self, *arguments: str, dated: bool = False) -> None:
        """Install packages; with `dated`, as the index was on the pair's day. `RuntimeError` when uv fails."""
        newer = [f"--exclude-newer-package={name}={datetime.now(UTC).date()}" for name in _OF_TORCH]
        options = ["--overrides", str(self.overrides), "--exclude-newer", self.day.isoformat(), *newer] if dated else []
        self._uv("pip", "install", "-q", "-p", str(self.folder), *options, *arguments)

    def import_modules(self, modules: Iterable[str]) -> dict[str, str]:
        """Import each module in a process of its own. Returns module -> what it wrote when it failed, else empty."""
        home = self.folder.with_name("home")
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        environment = {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "HOME": str(home),
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            "PYTHONPYCACHEPREFIX": str(self.folder.with_name("bytecode")),
        }
        caller = Requirement(self.pair["caller"]).name
        first = [module for module in _FIRST if module.partition(".")[0] != caller]
        subprocess.run(
            [str(self.folder / "bin" / "python"), "-c", _IMPORTER, str(TIMEOUT), ",".join(first), *modules],
            check=False,
            capture_output=True,
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
        )
        wrote = {}
        for module in modules:
            state, _, text = (home / f"{module}.log").read_text("utf-8", errors="replace").partition("\n")
            failure = text.replace(str(home), "~") or f"ImportError: the process ended: {state}"
            wrote[module] = "" if state == "imported" else failure
        return wrote

    def has_pair(self) -> bool:
        """Whether both releases are installed."""
        releases = self.releases()
        pair = (Requirement(self.pair[side]) for side in ("caller", "callee"))
        return all(releases.get(canonicalize_name(item.name), "0") in item.specifier for item in pair)

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
        command = [uv.find_uv_bin(), *arguments]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, env=dict(os.environ), timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"uv had no answer after {PATIENCE} s") from None
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


def compare_pair(environment: ImportEnvironment) -> dict[str, Any]:
    """Return what is seen of a pair, as a document."""
    pair = environment.pair
    try:
        kept = environment.build()
        roots = [_top_module(environment.site, Requirement(pair[side]).name) for side in ("caller", "callee")]
    except RuntimeError as error:
        return {"not_run": re.sub(r"/\S+/", "", str(error))[:400]}
    texts: dict[str, str] = {}
    added: list[str] = []
    modules = list(pair["modules"])
    todo = [modules[place] for place in sorted({0, min(1, len(modules) - 1), len(modules) - 1})]
    while todo:
        texts.update(environment.import_modules(todo))
        missing = {
            module: match[1].partition(".")[0]
            for module in todo
            if (match := _NO_MODULE.search(last_error(texts[module])))
        }
        packages = {
            REPAIRS[name]
            for name in missing.values()
            if name in REPAIRS and name not in roots and not (environment.site / name).exists()
        }
        new = sorted(packages - set(added))
        if not new:
            break
        added += new
        try:
            environment.install(*new, pair["callee"], dated=True)
            environment.install("--no-deps", pair["caller"], pair["callee"])
        except RuntimeError:
            break
        todo = list(missing)
    seen: dict[str, Any] = {}
    for module, text in texts.items():
        result = "imports" if not text else blame_failure(text, *roots, environment.site)
        seen[module] = {"seen": result, **({"error": last_error(text)} if text else {})}
        if result == "other":
            seen[module]["raised_in"] = _last_frame(text, environment.site)
    releases = environment.releases()
    for asked in (Requirement(pair["caller"]), Requirement(pair["callee"])):
        if releases[canonicalize_name(asked.name)] not in asked.specifier:
            raise RuntimeError(f"{asked} was replaced by {releases[canonicalize_name(asked.name)]}")
    known = ("torch", "transformers", "tokenizers", "huggingface-hub", "accelerate", "peft", "trl", "datasets", "numpy")
    return {
        "requirements_kept": kept,
        "day": environment.day.isoformat(),
        "with": {name: releases[name] for name in known if name in releases},
        "added": added,
        "modules": seen,
    }


def _top_module(site: Path, package: str) -> str:
    name = {"ms-swift": "swift"}.get(package, package.replace("-", "_"))
    if not (site / name).is_dir():
        raise RuntimeError(f"{package} has no folder {name}")
    return name


def _last_frame(text: str, site: Path) -> str:
    frames = [match["file"] for match in _FRAME.finditer(text) if match["file"].startswith(str(site))]
    return str(Path(frames[-1]).relative_to(site)) if frames else ""


def run_pairs(arguments: argparse.Namespace) -> None:
    """Run the pairs that are not done, and write after each."""
    draws = json.loads(PAIRS.read_text("utf-8"))["draws"]
    done: dict[str, Any] = json.loads(SEEN.read_text("utf-8")) if SEEN.exists() else {}
    arguments.work.mkdir(parents=True, exist_ok=True)
    for python, drawn in ((draw["python"], drawn) for draw in draws for drawn in draw["pairs"]):
        key = f"{drawn['caller']} {drawn['callee']}"
        before = done.get(key)
        if not re.search(arguments.only, key) or not _is_due(before, again=arguments.again):
            continue
        pair = {**drawn, "days": [min(drawn["days"])]} if arguments.again else drawn
        torch = drawn["callee"] if drawn["callee"].startswith("torch==") else arguments.torch
        if torch is None:
            raise SystemExit(f"{key}: give the wheel of torch to put in its environment")
        now = compare_pair(ImportEnvironment(arguments.work / "env", torch, pair, python))
        done[key] = join_runs(before, now) if before else now
        SEEN.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
        print(key, *judge_modules(drawn, done[key]), done[key].get("not_run", ""), flush=True)


def _is_due(before: Mapping[str, Any] | None, *, again: bool) -> bool:
    if before is None or not again:
        return before is None and not again
    rows = before.get("modules", {}).values()
    return "again" not in before and (not rows or any(row["seen"] == "other" for row in rows))


def join_runs(before: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """Return the first run, with what the second could judge and the first could not."""
    modules = {
        module: row if row["seen"] != "other" else again.get("modules", {}).get(module, row)
        for module, row in before.get("modules", again.get("modules", {})).items()
    }
    rest = {key: value for key, value in again.items() if key != "modules"}
    joined = {**(before if "modules" in before else rest), "again": rest}
    return {**joined, "modules": modules} if modules else joined


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
    """Write the page: totals, every disagreement with its cause, what could not be judged, and every pair."""
    draws = json.loads(PAIRS.read_text("utf-8"))["draws"]
    seen = json.loads(SEEN.read_text("utf-8"))
    causes = json.loads(CAUSES.read_text("utf-8")) if CAUSES.exists() else {}
    tallies = [_count_verdicts(draw["pairs"], seen) for draw in draws]
    everything = sum(tallies, Counter[str]())
    totals: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    differ, unjudged, rows = [], [], []
    for number, drawn in ((number, drawn) for number, draw in enumerate(draws, 1) for drawn in draw["pairs"]):
        key = f"{drawn['caller']} {drawn['callee']}"
        if key not in seen:
            rows.append(f"| {drawn['caller']} | {drawn['callee']} | {number} | | not run |")
            continue
        pair = foretell_again(drawn)
        verdicts = judge_modules(pair, seen[key])
        totals.update(verdict for _, verdict, _ in verdicts)
        state = judge_pair(pair, verdicts)
        pairs[state] += 1
        pairs["breaking"] += pair["drawn_as"] == "breaking" and state in {"agrees", "differs"}
        failing = sum(bool(pair["modules"][module]) for module, _, _ in verdicts)
        rows.append(f"| {pair['caller']} | {pair['callee']} | {number} | {failing} of {len(verdicts)} | {state} |")
        before = {module: verdict for module, verdict, _ in judge_modules(drawn, seen[key])}
        for module, verdict, words in verdicts:
            text = words.replace("|", "\\|")[:160]
            cause = causes.get(f"{key} {module}", causes.get(key, ""))
            if {verdict, before[module]} & {"false alarm", "missed"}:
                differ.append(f"| {key} | `{module}` | {before[module]} | {verdict} | {text} | {cause} |")
            if verdict == "not judged":
                other = find_other_pair(pair, module, seen[key])
                totals["foretold for another pair"] += bool(other)
                unjudged.append(f"| {key} | `{module}` | {text} | {f'foretold for {other}' if other else cause} |")
        if "not_run" in seen[key]:
            unjudged.append(f"| {key} | all | {seen[key]['not_run'][:160].replace('|', ' ')} | |")
    judged = totals["agrees"] + totals["false alarm"] + totals["missed"]
    PAGE.write_text(
        _PAGE.format(
            python=draws[0]["python"],
            draws="\n".join(
                f"| {draw['seed']} | {draw['foretold_at'].replace('T', ' ')[:16]} | {len(draw['pairs'])} "
                f"| {_render_tally(tally)} |"
                for draw, tally in zip(draws, tallies, strict=True)
            ),
            everything=_render_tally(everything),
            drawn=sum(len(draw["pairs"]) for draw in draws),
            today=_render_tally(pairs),
            judged=judged,
            module_share=totals["agrees"] / judged,
            totals=totals,
            differ="\n".join(differ),
            unjudged="\n".join(unjudged),
            rows="\n".join(rows),
        ),
        encoding="utf-8",
    )


def _render_tally(pairs: Mapping[str, int]) -> str:
    """Return how many pairs ran, were judged, were foretold to break, and are as foretold, as columns."""
    judged = pairs["agrees"] + pairs["differs"]
    ran, agrees = judged + pairs["not judged"], pairs["agrees"]
    return f"{ran} | {judged} | {pairs['breaking']} | {agrees} ({agrees / judged:.1%})" if judged else f"{ran} | 0 | | "


_PAGE = """# The atlas against real environments

`packages/knowngood-facts/benchmarks/atlas_pairs.py` draws pairs of releases by a seed and writes down what the atlas
foretells of importing modules of one beside the other, before any is run. `atlas_comparison.py` beside it then imports
them, on Python {python} without a GPU, and writes this page (`atlas_comparison.py table`).

**Foretold before any run**, with the tables of that day. A pair is as foretold when every judged module is; one that is
foretold to break is judged only by a module that is foretold to fail.

| seed | foretold (UTC) | drawn | run | judged | of them foretold to break | as foretold |
|---|---|---|---|---|---|---|
{draws}
| together | | {drawn} | {everything} |

**The same runs judged by the tables of today**, which were changed with these runs known, so this shows what was mended
and is no test:

| run | judged | of them foretold to break | as foretold |
|---|---|---|---|
| {today} |

Modules judged: {judged}. As foretold: {totals[agrees]} ({module_share:.1%}); false alarms: {totals[false alarm]};
missed: {totals[missed]}. Not judged, since something else failed first: {totals[not judged]}, of which the atlas
foretells {totals[foretold for another pair]} as failures of the caller beside that other package.

A module is not judged when what failed does not name the callee, or was not raised by the caller's own files: then
another package of the environment is at fault. Pairs with torch as the callee are drawn since the second seed, and run
with that torch from the index. Modules are imported in a fork of a process that has numpy, torch and, where the caller
is not transformers, `transformers.modeling_utils` already.

## What differed

| pair | module | before the run | today | seen | cause |
|---|---|---|---|---|---|
{differ}

## Not judged

| pair | module | seen | why |
|---|---|---|---|
{unjudged}

## Every pair

| caller | callee | draw | modules foretold to fail | verdict |
|---|---|---|---|---|
{rows}
"""


def find_other_pair(pair: Mapping[str, Any], module: str, seen: Mapping[str, Any]) -> str:
    """Return the pair for which the atlas foretells the failure that was seen, as `trl 0.7.10 x transformers 4.46.2`.

    Empty when the failure does not name another package of the environment, or is not foretold for it.
    """
    match = re.search(r"(?:from|module|named) '([\w.]+)'", seen["modules"][module].get("error", ""))
    package = find_owner(match[1].partition(".")[0]) if match else None
    caller, callee = Requirement(pair["caller"]), canonicalize_name(Requirement(pair["callee"]).name)
    for version in (run["with"].get(package) for run in (seen.get("again", {}), seen) if "with" in run):
        if package is not None and version is not None and package != callee:
            foretold = _foretell(pair["caller"], f"{package}=={version}", [module])
            if foretold and foretold[module]:
                return f"{caller.name} x {package} {version}"
    return ""


def foretell_again(pair: Mapping[str, Any]) -> dict[str, Any]:
    """Return a drawn pair with what today's tables foretell of its modules."""
    modules = _foretell(pair["caller"], pair["callee"], pair["modules"]) or pair["modules"]
    return {**pair, "modules": modules, "drawn_as": "breaking" if any(modules.values()) else "sound"}


def _foretell(caller: str, callee: str, modules: Iterable[str]) -> dict[str, list[str]]:
    """Return module -> the uses that make its import fail; nothing when the atlas lacks one of the releases."""
    names = [canonicalize_name(Requirement(text).name) for text in (caller, callee)]
    releases = [str(Requirement(text).specifier).removeprefix("==") for text in (caller, callee)]
    opened, other = open_atlas(names[0]), open_atlas(names[1])
    table = read_broken_uses(names[0], atlas_folder())
    if opened is None or other is None or table is None:
        return {}
    if releases[0] not in table.releases or releases[1] not in other.file.releases:
        return {}
    uses = tuple(use for use in table.uses.get(names[1], ()) if not use.place) if names[1] in table.callees else ()
    pair = PackagePair(caller=opened, callee=other, uses=uses)
    place = list(table.releases).index(releases[0])
    broken = pair.breaks(place, other.file.releases.index(releases[1]))
    return {module: foretell_module(pair, module, place, broken) for module in modules}


def _count_verdicts(drawn: Iterable[Mapping[str, Any]], seen: Mapping[str, Any]) -> Counter[str]:
    """Count the pairs by their verdicts; `breaking` has the judged pairs that are foretold to break."""
    pairs: Counter[str] = Counter()
    for pair in drawn:
        run = seen.get(f"{pair['caller']} {pair['callee']}")
        if run is None:
            continue
        verdicts = judge_modules(pair, run)
        state = judge_pair(pair, verdicts)
        pairs[state] += 1
        pairs["breaking"] += pair["drawn_as"] == "breaking" and state in {"agrees", "differs"}
    return pairs


def judge_pair(pair: Mapping[str, Any], verdicts: list[tuple[str, str, str]]) -> str:
    """Return `agrees`, `differs` or `not judged`.

    A pair that is foretold to break is judged only by a module that is foretold to fail.
    """
    states = {verdict for _, verdict, _ in verdicts}
    if states & {"false alarm", "missed"}:
        return "differs"
    told = [module for module, verdict, _ in verdicts if verdict == "agrees"]
    if pair["drawn_as"] == "breaking":
        told = [module for module in told if pair["modules"][module]]
    return "agrees" if told else "not judged"


def main() -> None:
    """Run or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("torch", nargs="?", type=lambda text: f"torch @ {Path(text).resolve().as_uri()}")
    run.add_argument("--only", default="", help="a pattern of the pairs to run")
    run.add_argument("--work", type=Path, default=Path("build/atlas-comparison"))
    run.add_argument("--again", action="store_true", help="try what was not judged with the older quarter's packages")
    commands.add_parser("table")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run_pairs(arguments)
    else:
        write_table()


if __name__ == "__main__":
    main()
