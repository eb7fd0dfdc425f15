"""The checks of trainers, with a real torch and a real trainer on the CPU: what they must notice.

`KNOWNGOOD_SMOKE_PYTHON` names an interpreter that has a trainer, torch and pytest; without it, the tests' own. That of
the image of a cell with a trainer will do, as `docker run --rm --volume /tmp:/tmp ... python`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[4]
PYTHON = os.environ.get("KNOWNGOOD_SMOKE_PYTHON", sys.executable)
TRAINERS = {"trl": "trl_sft", "llamafactory": "llamafactory_sft", "ms-swift": "ms_swift_sft"}
"""The distribution of a trainer, and the module with its supervised fine-tuning."""
FAULTY = """
import importlib, json, sys
from smoke_tests import worker
from smoke_tests.trainers import hugging_face, trainer_faults
from smoke_tests.trainers import worker as trainers
module = importlib.import_module(f"smoke_tests.trainers.{sys.argv[2]}")
detail = sys.argv[2].replace("_", "-")
plain = hugging_face.train
said = {}
def perform(subject, mode):
    check = {"topic": "trainer", "detail": f"{detail}/{subject}", "setting": "sdpa", "dtype": "fp32"}
    return worker.perform({**check, "layout": "padded", "mode": mode}, lambda document: None)
for name, mode in (("labels-shifted", "full"), ("mean-of-means", "full"), ("first-batch-lost", "full"),
                   ("adapter-frozen", "lora"), ("base-trained", "lora")):
    hugging_face.train = lambda start, _: plain(start, trainer_faults.FAULTS[name])
    said[name] = perform("qwen2", mode)
hugging_face.train = plain
trainer_faults.FAULTS["counted-twice"] = lambda trainer: None
said["harmless"] = perform("counted-twice", "full")
said["none"] = perform("qwen2", "full")
with open(sys.argv[1], "w") as file:
    json.dump({name: [result["outcome"], result["reason"]] for name, result in said.items()}, file)
"""
LOOPS = {
    "torchtitan": ("torchtitan_faults", "trainer/torchtitan-chat", "qwen3", "sdpa", "import torchtitan.trainer"),
    "megatron-core": ("megatron_core_faults", "trainer/megatron-core-gpt", "qwen2", "eager", "import megatron.core"),
    "verl": ("verl_faults", "trainer/verl-sft", "qwen3", "sdpa", "import verl"),
}
"""Trainers with a loop of their own: where its faults are, what a check of it is, and what must be importable."""
FAULTY_LOOP = """
import importlib, json, sys
from smoke_tests import worker
from smoke_tests.trainers import worker as trainers
_, file, faults, detail, family, setting = sys.argv
module = importlib.import_module(f"smoke_tests.trainers.{faults}")
said = {}
def perform(subject):
    check = {"topic": "trainer", "detail": f"{detail.removeprefix('trainer/')}/{subject}", "setting": setting}
    return worker.perform({**check, "dtype": "fp32", "layout": "padded", "mode": "full"}, lambda document: None)
if __name__ == "__main__":
    for name in ("labels-shifted", "mean-of-means", "first-batch-lost", "weight-frozen"):
        module.FAULTS[""] = module.FAULTS[name]
        said[name] = perform(family)
    del module.FAULTS[""]
    module.FAULTS["counted-twice"] = lambda trainer: None
    said["harmless"] = perform("counted-twice")
    said["none"] = perform(family)
    with open(file, "w") as written:
        json.dump({name: [result["outcome"], result["reason"]] for name, result in said.items()}, written)
"""


def skip_without(trainer, program):
    """Skip where the interpreter lacks a trainer, or pytest."""
    program = f"import importlib.metadata, pytest; importlib.metadata.version({trainer!r}); {program}"
    if subprocess.run([PYTHON, "-c", program], capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} has no {trainer} and pytest: name one that has in KNOWNGOOD_SMOKE_PYTHON")


@pytest.fixture(params=list(TRAINERS))
def trainer(request):
    """The distribution of each trainer that the interpreter has, and pytest with it."""
    skip_without(request.param, "")
    return request.param


@pytest.fixture
def folder(tmp_path):
    """A folder with the suite and the checks of all trainers in it."""
    shutil.copytree(ROOT / "smoke_tests/smoke_tests", tmp_path / "smoke_tests")
    shutil.copytree(ROOT / "smoke_tests/trainer_tests", tmp_path / "smoke_tests" / "trainers")
    tmp_path.chmod(0o777)
    return tmp_path


def test_a_fault_in_the_trainers_path_is_red_and_a_harmless_one_is_unnoticed(folder, trainer):
    words = ["", str(folder / "said.json"), TRAINERS[trainer]]
    script = f"import sys; sys.path.insert(0, {str(folder)!r}); sys.argv = {words!r}\n{FAULTY}"
    subprocess.run([PYTHON, "-c", script], check=True, timeout=900)
    said = json.loads((folder / "said.json").read_text())
    assert said.pop("none") == ["pass", ""]
    harmless = said.pop("harmless")
    assert harmless[0] == "fail"
    assert "went unnoticed" in harmless[1]
    assert len(said) == 5
    assert {outcome for outcome, _ in said.values()} == {"fail"}, said
    assert "was trained, and only adapters should be" in said["base-trained"][1]
    assert said["mean-of-means"][1].startswith("first-step-off: ")


def test_the_checks_of_trainers_are_in_the_suites_report(folder, trainer):
    report, subject = folder / "report.json", TRAINERS[trainer].replace("_", "-")
    command = [PYTHON, "-m", "pytest", str(folder / "smoke_tests"), "-q", "-p", "no:cacheprovider"]
    command += ["--report", str(report), "-k", f"{subject}/qwen3/sdpa/fp32/padded/full or toolchain/c"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert report.exists(), done.stdout + done.stderr
    checks = {check["id"]: check for check in json.loads(report.read_text())["checks"]}
    assert checks["toolchain/c"]["outcome"] == "pass"
    trained = checks[f"trainer/{subject}/qwen3/sdpa/fp32/padded/full"]
    assert (trained["outcome"], trained["framework"].partition(" ")[0]) == ("pass", trainer)
    assert trained["errors"]["gradient"] < 2e-5


@pytest.mark.parametrize("name", list(LOOPS))
def test_a_fault_in_a_loop_of_the_trainers_own_is_red_and_a_harmless_one_is_unnoticed(folder, name):
    *words, program = LOOPS[name]
    skip_without(name, program)
    script = folder / "faulty.py"
    script.write_text(FAULTY_LOOP)
    environment = os.environ | {"PYTHONPATH": str(folder)}
    subprocess.run([PYTHON, script, folder / "said.json", *words], check=True, timeout=900, env=environment)
    said = json.loads((folder / "said.json").read_text())
    assert said.pop("none") == ["pass", ""]
    assert said["harmless"][0] == "fail"
    assert "went unnoticed" in said.pop("harmless")[1]
    assert {outcome for outcome, _ in said.values()} == {"fail"}, said
    assert "stayed as it was" in said.pop("weight-frozen")[1]
    assert all(reason.startswith("first-step-off: ") for _, reason in said.values())


GENERATED = """
import json, sys, types
from collections import defaultdict
from pathlib import Path
import torch, transformers
from smoke_tests.outcomes import Failed
from smoke_tests.trainers import rollouts, tiny
_, folder = sys.argv
tiny.write_model(Path(folder) / "model", "qwen3")
built = transformers.AutoModelForCausalLM.from_pretrained(Path(folder) / "model", dtype=torch.float64)
torch.manual_seed(0)
drawn = [(tiny.tokens_of(prompt), torch.randint(0, tiny.VOCABULARY, (9 + 3 * number,)).tolist())
         for prompt, _ in tiny.split_rows()[:2] for number in range(rollouts.GROUP)]
groups = defaultdict(list)
for prompt, completion in drawn:
    groups[tuple(prompt)].append(rollouts.reward(completion))
def likelihoods(prompt, completion):
    logits = built(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]
total, loss = sum(len(completion) for _, completion in drawn), 0.0
for prompt, completion in drawn:
    rewards = torch.tensor(groups[tuple(prompt)], dtype=torch.float64)
    advantage = (rollouts.reward(completion) - rewards.mean()) / (rewards.std() + 1e-6)
    chosen = likelihoods(prompt, completion)
    loss = loss - (advantage * torch.exp(chosen - chosen.detach())).sum() / total  # the ratio of the old policy
loss.backward()
weights = {name: value.detach().clone() for name, value in built.named_parameters()}
value, gradients = rollouts.grpo_reference(types.SimpleNamespace(weights=weights), drawn, set(weights))
worst = max(((gradients[name] - item.grad).norm() / item.grad.norm()).item() for name, item in built.named_parameters())
with torch.no_grad():
    generated = [likelihoods(prompt, completion) for prompt, completion in drawn]
old = {name: item + 0.1 * torch.randn_like(item) for name, item in weights.items()}
said = {"loss": abs(value - loss.item()), "gradient": worst}
said |= rollouts.demand_sent(types.SimpleNamespace(weights=old, after=weights), drawn, generated)
try:
    rollouts.demand_sent(types.SimpleNamespace(weights=weights, after=old), drawn, generated)
except Failed as error:
    said["not-sent"] = str(error)
print(json.dumps(said))
"""


def test_the_reference_of_grpo_is_its_loss_and_notices_weights_that_were_not_sent(folder):
    skip_without("torch", "import torch, transformers")
    script = folder / "generated.py"
    script.write_text(GENERATED)
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [PYTHON, script, folder], capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["loss"] < 1e-12
    assert said["gradient"] < 1e-5
    assert said["after"] < 1e-5 < said["before"]
    assert said["not-sent"].startswith("weights-not-sent")


def test_faults_in_the_libraries_are_noticed_for_their_own_reason(folder, trainer):
    program, report = Path(__file__).with_name("library_faults.py"), folder / "faults.json"
    argv = [PYTHON, program, folder, TRAINERS[trainer].replace("_", "-"), report]
    subprocess.run(argv, check=False, timeout=3600, env=os.environ | {"OMP_NUM_THREADS": "1"})
    rows = json.loads(report.read_text())["rows"]
    assert sum(bool(row["fault"]) for row in rows) >= 50
    assert [row for row in rows if row["came"] not in ("pass", "noticed")] == []
