"""Which setting a program refuses or lacks: an argument, a key, a batch size, a model's class, a variable. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.nearest_names import find_nearest_name
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Incident, OwnComponent

if TYPE_CHECKING:
    from knowngood_diagnose.failures.logs.last_errors import LastError

_ACCELERATE_KEY = lazy_pattern(
    r"had unknown keys \(\[(?P<keys>[^\]]{1,300})\]\)|unexpected keyword argument '(?P<key>\w+)'"
)
_LOCAL_RANK = lazy_pattern(r"unrecognized arguments: .{0,200}?--(?P<given>local[-_]rank)\b")
_UNKNOWN = lazy_pattern(r"(?P<script>[\w./-]+): error: unrecognized arguments: (?P<rest>[^\n]{1,600})")
_UNUSED = lazy_pattern(
    r"Some (?:specified arguments|keys) are not used by the HfArgumentParser: \[(?P<keys>[^\]]{1,1000})\]"
)
_OF_TRAINING = frozenset(
    (
        "ddp_timeout",
        "do_eval",
        "do_predict",
        "do_train",
        "gradient_accumulation_steps",
        "learning_rate",
        "logging_steps",
        "num_train_epochs",
        "output_dir",
        "overwrite_output_dir",
        "per_device_eval_batch_size",
        "per_device_train_batch_size",
        "predict_with_generate",
        "save_steps",
    )
)
"""Arguments of every training of transformers, which a command that only loads a model has not."""
_FLAG = lazy_pattern(r"(?<![\w-])--?[A-Za-z][\w-]*")
_NEAR = 4_000
"""How far above the last line the usage of the script is looked for, in bytes."""
_FEWEST_TAKEN, _SHORT = 3, 5
"""A usage with fewer options says little; a flag of so few letters resembles any other."""
_CHOICE = lazy_pattern(
    r"error: argument (?P<what>\S{1,200}(?: \w+)?): invalid choice: '?(?P<choice>[^'\s]{1,60})'? "
    r"\(choose from (?P<there>[^)]{1,600})\)"
)


def describe_choice(incident: Incident, error: LastError) -> Incident | None:
    """A command or a value that the program's own list of choices lacks."""
    text = f"{error.above[-_NEAR:].decode('utf-8', 'replace')} {error.text} {error.message}"
    if (rank := _LOCAL_RANK.search(text)) is not None:
        return _describe_local_rank(incident, rank["given"], text)
    stated = _CHOICE.search(f"{error.text} {error.message}")
    if stated is None:
        return _describe_unused_keys(incident, error) or _describe_unknown_flags(incident, text)
    what, choice = stated["what"].strip("{}"), stated["choice"]
    there = [text.strip(" '\"") for text in stated["there"].split(",")]
    is_command = any(word in what.lower() for word in ("command", "cmd", "action", "mode")) or "," in what
    parts = {part for part in re.split(r"[_\W]+", choice) if part}
    near = next((name for name in there if name in parts or parts & set(re.split(r"[_\W]+", name))), "")
    because = f"It takes {', '.join(there[:12])}."
    because += (
        " The command is of the documentation of another release: an older release runs, which does not have it yet, "
        "or a newer one, which renamed it."
        if is_command
        else f" {choice} is a slip of the pen, or a choice that only another release of the program has."
    )
    fixes = [
        advise(
            "pip show PROGRAM (or git log -1) says which release runs; upgrade it to the one of the documentation "
            "(pip install -U), or read the documentation of the one that runs"
        )
    ]
    if near:
        fixes.append(advise(f"{near}, which is the nearest that this release has; --help of it lists its options"))
    return replace(
        incident.tell("choice", what="command" if is_command else f"{what}", choice=choice),
        because=because,
        fix=tuple(fixes),
    )


def _describe_unused_keys(incident: Incident, error: LastError) -> Incident | None:
    """Arguments that transformers' parser read, and that no class of the script's options has."""
    stated = _UNUSED.search(error.message) or _UNUSED.search(error.text)
    if stated is None:
        return None
    given = [text.strip(" '\"") for text in stated["keys"].split(",")]
    is_line = any(text.startswith("--") for text in given)
    names = [text.lstrip("-").partition("=")[0] for text in given if text.startswith("--") or not is_line]
    shown = ", ".join(names[:6])
    if len(_OF_TRAINING.intersection(names)) >= _FEWEST_TAKEN:
        return incident.tell("options-of-training", shown=shown)
    own = next((frame for frame in reversed(error.frames) if not frame.installed), None)
    where = f" ({own.short_file}, line {own.line})" if own is not None else ""
    because = (
        f"None of the classes into which the program puts its options{where} has {shown}: it is a slip of the pen, or "
        "the file or the command line is of another version of the program than the code that runs."
    )
    fixes = [
        advise(f"Leave {shown} out, or write the name that this version has: grep -rn in its classes of arguments"),
        advise("The file or the command of the instructions of the very commit or release that is installed"),
    ]
    return replace(incident.tell("unused-keys", shown=shown), because=because, fix=tuple(fixes))


def _describe_unknown_flags(incident: Incident, text: str) -> Incident | None:
    """Options that the printed usage lacks; `None` without them or without the usage."""
    stated = _UNKNOWN.search(text)
    usage = text[: stated.start()].rpartition("usage: ")[2] if stated else ""
    taken = list(dict.fromkeys(_FLAG.findall(usage)))
    given = list(dict.fromkeys(_FLAG.findall(stated["rest"]))) if stated else []
    if stated is None or not given or len(taken) < _FEWEST_TAKEN:
        return None
    script, names = stated["script"].rpartition("/")[2], " and ".join(given)
    near = {flag: nearest for flag in given if len(flag) > _SHORT and (nearest := find_nearest_name(flag, taken))}
    if near:
        pairs = ", ".join(f"{nearest} in place of {flag}" for flag, nearest in near.items())
        return replace(
            incident,
            title=f"{script} has no {names}: a slip of the pen, or the name of another release",
            because=f"The usage above the message lists what it takes, and the nearest is there: {pairs}.",
            fix=(advise(f"Write {pairs}"), *incident.fix[1:]),
        )
    return incident.tell("unknown-flags", script=script, names=names)


def _describe_local_rank(incident: Incident, given: str, usage: str) -> Incident:
    """The rank that a launcher adds to the command line, spelled otherwise than the script has it."""
    other = given.replace("-", "_") if "-" in given else given.replace("_", "-")
    has_other = f"--{other} " in usage or f"--{other}]" in usage
    because = (
        f"It is the launcher that adds --{given}, and not you: torch.distributed.launch does so in each process, with "
        "a hyphen since torch 2.0 and with an underscore before; torchrun adds nothing and sets LOCAL_RANK."
    )
    because += f" The script takes --{other}." if has_other else " The script takes neither."
    return replace(
        incident.tell("local-rank", given=given, but=f": it takes --{other}" if has_other else ""), because=because
    )


def describe_own_call(incident: Incident, error: LastError) -> Incident | None:
    """A keyword that the project's own file passes to Accelerator, and not the package that mostly does."""
    frame = error.frames[-1] if error.frames else None
    if frame is None or frame.installed or "Accelerator(" not in frame.code:
        return None
    because = (
        f"{frame.short_file}, line {frame.line}, makes the Accelerator itself, with arguments that accelerate 1.0 "
        "takes in a DataLoaderConfiguration only."
    )
    own = advise(
        "In that file: Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=..., split_batches=...))"
    )
    kept = tuple(fix for fix in incident.fix if "transformers" not in fix.change)
    title = "The project's own file passes dispatch_batches to Accelerator, which accelerate 1.0 does not take"
    return replace(incident, title=title, because=because, component=OwnComponent.YOUR_CODE, fix=(*kept, own))


def describe_accelerate_key(incident: Incident, error: LastError) -> Incident | None:
    """Which key of accelerate's saved configuration is not known."""
    stated = _ACCELERATE_KEY.search(error.message)
    if stated is None:
        return None
    key = stated["key"] or re.sub(r"['\" ]", "", stated["keys"])
    return incident.tell("accelerate-key", key=key)


_BATCH = lazy_pattern(
    r"world_size (?P<total>\d+) != (?P<micro>\d+) \* (?P<steps>\d+) \* (?P<ranks>\d+)",
)
_ACCUMULATION = lazy_pattern(r"gradient_accumulation_steps['\"]?[ =:]+(\d{1,5})\b")
_MISMATCHES = lazy_pattern(r"- ds (?P<name>[\w.]+)=(?P<own>\S+) vs hf \w+=(?P<other>\S+)")


def describe_batch(incident: Incident, error: LastError) -> Incident | None:
    """How many processes DeepSpeed counts, and for how many the numbers were made."""
    stated = _BATCH.search(error.message)
    if stated is None:
        return _describe_equal_values(incident, error) or _describe_device_map(incident, error)
    total, micro, steps, ranks = (int(stated[name]) for name in ("total", "micro", "steps", "ranks"))
    if not micro or not steps or total % (micro * steps):
        return incident.tell("no-product", total=total, micro=micro, steps=steps, ranks=ranks)
    meant = total // (micro * steps)
    if asked_steps := _find_accumulation(error, total // micro // ranks if ranks else 0, steps):
        return _describe_accumulation(incident, asked_steps, steps, (total, micro, ranks))
    if meant <= ranks:
        return None
    return incident.tell(
        "processes", ranks=ranks, plural="es" if ranks > 1 else "", meant=meant, total=total, micro=micro, steps=steps
    )


def _find_accumulation(error: LastError, fitting: int, steps: int) -> int:
    """The steps of accumulation that the command in the log states, where they and no others make the product right."""
    stated = [int(match[1]) for match in _ACCUMULATION.finditer(error.log_end.decode("utf-8", "replace"))]
    return fitting if fitting != steps and fitting in stated else 0


def _describe_accumulation(incident: Incident, asked_steps: int, steps: int, numbers: tuple[int, int, int]) -> Incident:
    total, micro, ranks = numbers
    return incident.tell(
        "accumulation",
        steps=steps,
        plural="s" if steps > 1 else "",
        asked_steps=asked_steps,
        total=total,
        micro=micro,
        ranks=ranks,
    )


def _describe_equal_values(incident: Incident, error: LastError) -> Incident | None:
    """A value of DeepSpeed's configuration that looks like the argument's and is of another type: a text."""
    pairs = _MISMATCHES.findall(error.message)
    equal = [(name, value) for name, value, other in pairs if value == other]
    if not equal:
        return None
    name, value = equal[0]
    return replace(
        incident,
        title=f'{name} is the text "{value}" in DeepSpeed\'s configuration, and the number {value} in the arguments',
        because=f"Both are shown as {value} and differ all the same, so they are of two types: the JSON file has the "
        f'number in quotes ("{value}"), and a text equals no number.',
        fix=(advise(f'"{name}": {value} without quotes in the JSON file, or "auto"'), *incident.fix[:1]),
    )


def _describe_device_map(incident: Incident, error: LastError) -> Incident | None:
    if "low_cpu_mem_usage" not in error.message:
        return None
    return incident.tell("device-map")


_REFUSED = lazy_pattern(
    r"Model architectures \[(?P<refused>[^\]]{1,200})\] are not supported for now\.?(?P<rest>.{0,20000})", re.DOTALL
)
_NAME = lazy_pattern(r"['\"](?P<name>\w+)['\"]")
_OF_CLASSES = lazy_pattern(r"For(?:Sequence|Token)Classification$|RewardModel$")


def describe_architecture(incident: Incident, error: LastError) -> Incident | None:
    """Return what the refused class is, beside those that are supported; `None` where the message has no list."""
    stated = _REFUSED.search(error.message) or _REFUSED.search(error.text)
    if stated is None:
        return None
    refused = [match["name"] for match in _NAME.finditer(stated["refused"])]
    has = {match["name"] for match in _NAME.finditer(stated["rest"])}
    name = next(iter(refused), "")
    stem = re.sub(r"(?:Model|For[A-Z]\w+)$", "", name)
    if name in has:
        return replace(
            incident,
            title=f"vLLM has {name}, and its look at the class failed: the reason stands further up",
            because=(
                f"{name} is in the very list of what this vLLM supports. To look at a class vLLM imports it in a "
                "process of its own, and that one failed: of an extension or a package that does not load there, or of "
                "a system for which vLLM is not made (Windows)."
            ),
            fix=(
                advise("python -m vllm.model_executor.models.registry shows the error of that process"),
                advise(f"The lines above with 'Error in inspecting model architecture {name!r}' have its traceback"),
                advise("On Windows: WSL or a container with Linux; else install vLLM anew in an empty environment"),
            ),
        )
    if f"{stem}ForCausalLM" in has and name == f"{stem}Model":
        return incident.tell("without-head", name=name, stem=stem)
    if _OF_CLASSES.search(name) and f"{stem}ForCausalLM" in has:
        return incident.tell("classifier", name=name, stem=stem)
    return None


def _one_process(name: str) -> str:
    values = {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return f"export {name}={values.get(name, '0')}"
