"""The reference of optimizer steps, against torch's own optimizers in fp64 and fp32 and against steps made by hand.

`KNOWNGOOD_SMOKE_PYTHON` names an interpreter that has torch and transformers; without it, the tests' own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

SUITES = Path(__file__).resolve().parents[4] / "smoke_tests"
PYTHON = os.environ.get("KNOWNGOOD_SMOKE_PYTHON", sys.executable)
AGAINST_TORCH = """
import itertools, json
import torch
from transformers.optimization import get_scheduler
from smoke_tests import optimizer_reference as reference

SHAPES = {"a.weight": (64, 32), "a.bias": (64,), "norm.weight": (32,)}
SCHEDULES = {
    "linear": reference.linear_schedule(2, 10),
    "cosine": reference.cosine_schedule(2, 10),
    "constant_with_warmup": reference.constant_schedule(2),
}


def compare(dtype, schedule, clip):
    torch.manual_seed(0)
    trained = {name: torch.nn.Parameter(torch.randn(shape, dtype=dtype)) for name, shape in SHAPES.items()}
    recipe = reference.Recipe(reference.decay_all_but(1e-2, 0.1), schedule=SCHEDULES[schedule], clip=clip)
    expected = reference.OptimizerReference(trained, recipe)
    decayed, others = [trained["a.weight"]], [trained["a.bias"], trained["norm.weight"]]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    scheduler = get_scheduler(schedule, optimizer, 2, 10)
    skipped, distances = [], []
    for step in range(9):
        gradients = {name: torch.randn(shape, dtype=dtype) * 10.0 ** (step % 3 - 1) for name, shape in SHAPES.items()}
        if step == 4:
            gradients["a.bias"][0] = float("inf")
        if not expected.step(gradients):
            skipped.append(step)
            continue
        for name, parameter in trained.items():
            parameter.grad = gradients[name].clone()
        if clip:
            torch.nn.utils.clip_grad_norm_(trained.values(), clip)
        optimizer.step()
        scheduler.step()
        states = {name: optimizer.state[parameter] for name, parameter in trained.items()}
        first = {name: state["exp_avg"] for name, state in states.items()}
        second = {name: state["exp_avg_sq"] for name, state in states.items()}
        distances += expected.distances(trained, first, second)
    return skipped, max(found.over for found in distances), max(found.error for found in distances)


for dtype, schedule, clip in itertools.product((torch.float64, torch.float32), SCHEDULES, (None, 1.0)):
    skipped, over, error = compare(dtype, schedule, clip)
    print(json.dumps({"of": f"{dtype} {schedule} {clip}", "skipped": skipped, "over": over, "error": error}))
"""
BY_HAND = """
import math
import torch
from smoke_tests import optimizer_reference as reference

recipe = reference.Recipe(lambda name: reference.Group(0.5, decay=0.1, betas=(0.8, 0.9), eps=1e-3), clip=10.0)
expected = reference.OptimizerReference({"w": torch.tensor([2.0])}, recipe)
assert expected.step({"w": torch.tensor([4.0])})
# m = 0.8, v = 1.6; without their bias 4 and 16; 2 - 0.5 * 0.1 * 2 - 0.5 * 4 / (4 + 0.001)
assert math.isclose(expected.weights["w"].item(), 1.9 - 2.0 / 4.001, rel_tol=1e-12)
assert expected.step({"w": torch.tensor([20.0])})
# clipped to 10: m = 0.8 * 0.8 + 0.2 * 10 = 2.64, v = 0.9 * 1.6 + 0.1 * 100 = 11.44
assert math.isclose(expected.first["w"].item(), 2.64, rel_tol=1e-6), expected.first
assert math.isclose(expected.second["w"].item(), 11.44, rel_tol=1e-6), expected.second

halves = reference.accumulate([(0.25, {"w": torch.tensor([4.0])}), (0.75, {"w": torch.tensor([8.0])})])
assert halves["w"].item() == 7.0
rate = [reference.linear_schedule(2, 6)(step) for step in range(7)]
assert rate == [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0], rate
pure = reference.OptimizerReference({"w": torch.tensor([1.0])}, recipe=reference.Recipe(
    lambda name: reference.Group(1.0), optimizer="sgd"), dtype=torch.bfloat16)
pure.step({"w": torch.tensor([0.001])})  # less than half of a last place of bf16
assert pure.weights["w"].item() == 1.0
"""


@pytest.fixture(scope="module", autouse=True)
def torch_is_there():
    if subprocess.run([PYTHON, "-c", "import torch, transformers"], capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} has no torch and transformers: name one that has in KNOWNGOOD_SMOKE_PYTHON")


def run(program):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SUITES), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_steps_are_those_of_torch():
    compared = [json.loads(line) for line in run(AGAINST_TORCH).splitlines()]
    assert len(compared) == 12
    for found in compared:
        assert found["skipped"] == [4]
        assert found["over"] < 0.5, found
        assert found["error"] < (1e-12 if "float64" in found["of"] else 1e-4), found


def test_steps_are_those_made_by_hand():
    run(BY_HAND)
