"""What OpenRLHF's own processes keep for the checks: each of them imports this when it starts, by a ``sitecustomize``.

Of each update of the policy the samples are kept, of the first one also weights, gradients, loss and kernels. A fault
on purpose is put in here too, since nothing else of the checks is in that process. Nothing but the standard library is
imported before OpenRLHF's trainer is, since this is in every process of Ray's and vLLM's.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path
from typing import Any

TRAINER = "openrlhf.trainer.ray.ppo_actor"
FOLDER, FAULT = "KNOWNGOOD_OPENRLHF_FOLDER", "KNOWNGOOD_OPENRLHF_FAULT"
KEPT = ("trainer", "weights", "gradients", "after", "batches", "loss", "kernels")


def environment(folder: Path, suite: Path, fault: str) -> dict[str, str]:
    """The environment of a command whose processes are to be watched; ``suite`` is where the suite is imported from."""
    (folder / "sitecustomize.py").write_text(f"from {__name__} import watch\n\nwatch()\n", encoding="utf-8")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{suite}", FOLDER: str(folder), FAULT: fault}


def watch() -> None:
    """Watch OpenRLHF's trainer in this process, if it is ever imported."""
    sys.meta_path.insert(0, _Watcher())


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds OpenRLHF's trainer as Python does, and changes it once it was imported."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != TRAINER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        plain = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            plain(module)
            _watch_trainer(module.ActorPPOTrainer)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _watch_trainer(trainer: Any) -> None:
    import torch
    from smoke_tests.trainers import openrlhf_faults
    from smoke_tests.trainers.openrlhf_record import ActorRecord

    fault, plain = os.environ[FAULT], trainer.ppo_train
    updates: list[str] = []

    @functools.wraps(plain)
    def ppo_train(own: Any, *words: Any, **known: Any) -> Any:
        kept: dict[str, Any] = {"samples": [_copy(item) for item in own.replay_buffer.items]}
        first = not updates
        updates.append(f"update-{len(updates)}.pt")
        if first:
            openrlhf_faults.put_into_ppo(fault, own)
            record = ActorRecord(own.actor, type(own).__name__, torch.device("cuda"))
            record.begin()
        done = plain(own, *words, **known)
        if first:
            kept |= {name: getattr(record, name) for name in KEPT}
            kept["implementation"] = str(own.actor.model.module.config._attn_implementation)
        torch.save(kept, Path(os.environ[FOLDER]) / updates[-1])
        return done

    trainer.ppo_train = ppo_train
    if fault == "weights-not-sent":
        trainer.broadcast_to_vllm = lambda _own: None


def _copy(item: Any) -> tuple[Any, Any, Any]:
    """A sample's tokens, the mask of what is trained, and what vLLM said of them; both begin with the second token."""
    return item.sequences.clone(), item.action_mask.clone(), item.rollout_log_probs.clone()
