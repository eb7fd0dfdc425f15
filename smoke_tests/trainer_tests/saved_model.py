"""What a trainer saves, and the model as its users load it: the files, logits, and what it generates.

Checkpoints, the folder of ``save_model`` and a merged model hold the trained weights bit for bit, a checkpoint the
optimizer's moments too. Loaded by ``from_pretrained``, logits are those of the trained model and of the fp64 reference,
and greedy generation of prompts of different lengths, filled on the left, gives the reference's tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers
from smoke_tests.trainers import demands, fp64, tiny

from smoke_tests import model, reference, training
from smoke_tests.outcomes import Failed

if TYPE_CHECKING:
    from pathlib import Path

    from smoke_tests.trainers.step_record import StepRecord, TrainingRecord, Weights

LOGITS = 2e-5
"""How far logits in fp32 may be from the reference's, as a norm and a part of theirs."""
MERGED = 2e-6
"""The same of a merged weight."""
CLOSE = 1e-3
"""Where the reference's two highest logits are nearer to each other than this, either token may be generated."""
PROMPTS, GENERATED = (0, 2, 4), 12
"""The rows whose prompts are gone on with, and by how many tokens."""


def demand_saved(
    check: demands.Check, trainer: Any, record: TrainingRecord, folder: Path, report: dict[str, Any]
) -> None:
    """Everything that is asked of what a training in ``folder`` has saved, and of what its users make of that."""
    trained = demands.trained_names(check, record.steps[0])
    for number in _checkpoints(folder / "out"):
        if not 0 < number <= len(record.steps):
            raise Failed(f"saved-elsewhere: there is a checkpoint of step {number}, of {len(record.steps)} steps")
        place = folder / "out" / f"checkpoint-{number}"
        _demand_stored(place, _only(record.steps[number - 1].after, trained))
        if record.has_moments:
            _demand_moments(place, trainer, record.steps[number - 1])
    last = record.steps[-1].after
    final = folder / "final"
    trainer.save_model(str(final))
    _demand_stored(final, _only(last, trained))
    base = {name: value for name, value in read_weights(folder / "model").items() if name not in trained}
    expected = reference._with_adapters({name: value.double() for name, value in (base | _only(last, trained)).items()})
    report["saved"] = {"logits": 0.0, "tokens": 0, "checkpoints": _checkpoints(folder / "out")}
    for setting, built in _loaded(check, final, expected):
        _demand_logits(built, setting, expected, report)
        for cached in (True, False) if setting == "sdpa" else (True,):
            report["saved"]["tokens"] += _demand_generated(final, (setting, built), expected, cached=cached)
    _demand_same_logits(trainer, expected, report)


def read_weights(folder: Path) -> Weights:
    """The tensors of a model's or adapter's folder, by the names that weights have without what peft adds."""
    from safetensors.torch import load_file

    found: Weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= {model.plain_name(name): value for name, value in load_file(file).items()}
    return found


def _checkpoints(out: Path) -> list[int]:
    return sorted(int(place.name.rpartition("-")[2]) for place in out.glob("checkpoint-*"))


def _only(weights: Weights, names: set[str]) -> Weights:
    return {name: weights[name] for name in sorted(names)}


def _demand_stored(folder: Path, wanted: Weights) -> None:
    """A folder has these weights, bit for bit, and no others."""
    found = read_weights(folder)
    if strange := sorted(set(found) ^ set(wanted)):
        raise Failed(
            f"saved-elsewhere: {folder.name} {'has' if strange[0] in found else 'lacks'} {strange[0]}"
            f" ({len(strange)} such weights)"
        )
    for name, value in wanted.items():
        stored = found[name]
        if stored.dtype != value.dtype:
            raise Failed(
                f"saved-elsewhere: {folder.name} has {name} as {stored.dtype}, it was trained as {value.dtype}"
            )
        if not torch.equal(stored, value):
            off = ((stored.double() - value.double()).norm() / value.double().norm()).item()
            raise Failed(f"saved-elsewhere: in {folder.name} {name} is not the trained one, it is off by {off:.1e}")


def _demand_moments(place: Path, trainer: Any, step: StepRecord) -> None:
    """A checkpoint has the optimizer's moments, bit for bit, by the places that weights have in its groups."""
    stored = torch.load(place / "optimizer.pt", map_location="cpu", weights_only=True)["state"]
    names = {parameter: model.plain_name(name) for name, parameter in trainer.model.named_parameters()}
    order = [names[parameter] for group in trainer.optimizer.param_groups for parameter in group["params"]]
    for number, name in enumerate(order):
        held = stored.get(number, {})
        for part, wanted in (("exp_avg", step.first), ("exp_avg_sq", step.second)):
            if name in wanted and (part not in held or not torch.equal(held[part], wanted[name])):
                raise Failed(f"saved-elsewhere: {place.name} has another {part} of {name} than the optimizer had")


def _loaded(check: demands.Check, final: Path, expected: Weights) -> Any:
    """The saved model as its users load it, with each setting of attention that runs everywhere."""
    device = training.device_here()
    options = {"dtype": torch.float32}
    if not demands.is_adapted(check):
        for setting in ("eager", "sdpa"):
            built = transformers.AutoModelForCausalLM.from_pretrained(final, attn_implementation=setting, **options)
            yield setting, built.to(device).eval()
        return
    import peft

    adapted = peft.AutoPeftModelForCausalLM.from_pretrained(final, attn_implementation="eager", **options)
    yield "eager", adapted.to(device).eval()
    merged = final.with_name("merged")
    adapted.merge_and_unload().save_pretrained(merged)
    _demand_merged(merged, expected)
    built = transformers.AutoModelForCausalLM.from_pretrained(merged, attn_implementation="sdpa", **options)
    yield "sdpa", built.to(device).eval()


def _demand_merged(merged: Path, expected: Weights) -> None:
    found = read_weights(merged)
    if strange := sorted(set(found) ^ set(expected)):
        raise Failed(f"merged-elsewhere: {strange[0]} is in one of the merged model and the reference only")
    for name, value in expected.items():
        off = ((found[name].double() - value).norm() / value.norm()).item()
        if not off <= MERGED:
            raise Failed(f"merged-elsewhere: {name} is off by {off:.1e} ({MERGED:.0e} is allowed)")


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of different lengths, filled on the left, and their mask."""
    rows = [tiny.rows()[number] for number in PROMPTS]
    longest = max(map(len, rows))
    ids = torch.tensor([[tiny.PAD] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


@torch.no_grad()
def _logits_of(built: Any) -> list[torch.Tensor]:
    ids, mask = (part.to(training.device_here()) for part in _batch())
    given = built(input_ids=ids, attention_mask=mask).logits.double().cpu()
    return [line[kept.bool()] for line, kept in zip(given, mask.cpu())]


def _demand_logits(built: Any, setting: str, expected: Weights, report: dict[str, Any]) -> None:
    worst = 0.0
    for number, given in zip(PROMPTS, _logits_of(built)):
        wanted = fp64.logits_of(expected, tiny.rows()[number], demands.SHAPE)
        off = ((given - wanted).norm() / wanted.norm()).item()
        worst = off if not off <= worst else worst
    report["saved"]["logits"] = max(report["saved"]["logits"], worst)
    if not worst <= LOGITS:
        raise Failed(
            f"loaded-elsewhere: loaded with {setting}, logits are off by {worst:.1e} from the reference's of the"
            f" trained weights ({LOGITS:.0e} is allowed)"
        )


@torch.no_grad()
def _demand_generated(final: Path, loaded: tuple[str, Any], expected: Weights, *, cached: bool) -> int:
    """Prompts, read by the tokenizer that was saved, go on with the reference's likeliest tokens; returns how many.

    The logits by which each token is chosen are the reference's too: a model that has learned its rows goes on with
    the same tokens when its cache loses one.
    """
    with_base = (final / "adapter_config.json").is_file() and not (final / "tokenizer_config.json").is_file()
    place = final.with_name("model") if with_base else final  # ms-swift leaves an adapter's tokenizer to its base
    tokenizer = transformers.AutoTokenizer.from_pretrained(place, padding_side="left")
    prompts = [tiny.split_rows()[number][0] for number in PROMPTS]
    given = tokenizer(prompts, return_tensors="pt", padding=True).to(training.device_here())
    begun = {name: given[name] for name in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": GENERATED, "do_sample": False, "use_cache": cached}
    made = loaded[1].generate(**begun, **options, output_logits=True, return_dict_in_generate=True)
    lines = made.sequences[:, begun["input_ids"].shape[1] :].tolist()
    logits = torch.stack(made.logits, dim=1).double().cpu()
    count = 0
    for prompt, line, given_logits in zip(prompts, lines, logits):
        tokens = line[: line.index(tiny.END) + 1] if tiny.END in line else line
        asked = tiny.tokens_of(prompt)
        wanted = fp64.logits_of(expected, [*asked, *tokens[:-1]], demands.SHAPE)[len(asked) - 1 :]
        behind = (wanted.max(-1).values - wanted.gather(-1, torch.tensor(tokens)[:, None])[:, 0]).max().item()
        off = ((given_logits[: len(tokens)] - wanted).norm() / wanted.norm()).item()
        if not (behind <= CLOSE and off <= LOGITS):
            raise Failed(
                f"generated-elsewhere: with {loaded[0]}, {'with' if cached else 'without'} a cache, {prompt[:8]!r} goes"
                f" on with {tokens}, the least likely of them {behind:.1e} below the reference's; logits are off by"
                f" {off:.1e} ({LOGITS:.0e} is allowed)"
            )
        count += len(tokens)
    return count


def _demand_same_logits(trainer: Any, expected: Weights, report: dict[str, Any]) -> None:
    """The model that was trained, as it is in memory, has them too, if it computes in fp32 outside of autocast."""
    built = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False).eval()
    if all(parameter.dtype == torch.float32 for parameter in built.parameters()):
        _demand_logits(built, "the trainer", expected, report)
