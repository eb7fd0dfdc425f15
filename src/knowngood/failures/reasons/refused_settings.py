"""Which argument or key of a saved configuration a program does not know. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.compat.incident import Incident, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.core.nearest_names import find_nearest_name
from knowngood.failures.names.name_situation import advise, find_two_checkouts

if TYPE_CHECKING:
    from knowngood.failures.logs.last_errors import LastError

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
    title = f"The program that runs has no {'command' if is_command else f'{what}'} {choice}"
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
    return replace(incident, title=title, because=because, fix=tuple(fixes))


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
        return replace(
            incident,
            title=f"A command that does not train was given the options of a training: {shown}",
            because=(
                "What runs reads only the options of a model (a chat, an export, an API, a web page), so that those "
                "of the training are left over: the command is another one than that of which the file is."
            ),
            fix=(
                advise("Start the file with the command for training (llamafactory-cli train FILE), also to predict"),
                advise("For a chat or an export: a file of its own, without the options of the training"),
            ),
        )
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
    if (copies := find_two_checkouts(error.frames)) is not None:
        because, fixes = because + copies.words, [copies.fix, *fixes]
    return replace(incident, title=f"The script's options have no {shown}", because=because, fix=tuple(fixes))


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
    return replace(
        incident,
        title=f"{script} does not know {names}: what starts it is of another version than the script",
        because=(
            f"The usage above the message is that of the {script} which ran, and has no {names}. The "
            "command line (typed "
            "from instructions, or made by an interface such as a web page) is of another version, mostly a newer one: "
            f"{script} is older, because only a part of the files was updated or another checkout is found first."
        ),
        fix=(
            advise(
                f"Update the project as a whole (git pull, or the whole archive in a new folder), {script} and what "
                "starts it together"
            ),
            advise(
                f"Leave {names} out of the command, when you type it yourself; python {script} --help lists the rest"
            ),
        ),
    )


def _describe_local_rank(incident: Incident, given: str, usage: str) -> Incident:
    """The rank that a launcher adds to the command line, spelled otherwise than the script has it."""
    other = given.replace("-", "_") if "-" in given else given.replace("_", "-")
    has_other = f"--{other} " in usage or f"--{other}]" in usage
    because = (
        f"It is the launcher that adds --{given}, and not you: torch.distributed.launch does so in each process, with "
        "a hyphen since torch 2.0 and with an underscore before; torchrun adds nothing and sets LOCAL_RANK."
    )
    because += f" The script takes --{other}." if has_other else " The script takes neither."
    fixes = (
        advise("Start it with torchrun (--nproc_per_node=N script.py), and let it read int(os.environ['LOCAL_RANK'])"),
        advise(
            "In the script: parser.add_argument('--local_rank', '--local-rank', type=int, "
            "default=int(os.environ.get('LOCAL_RANK', 0)))"
        ),
    )
    title = f"The launcher passes --{given}, which the script does not take" + (
        f": it takes --{other}" if has_other else ""
    )
    return replace(incident, title=title, because=because, fix=fixes)


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
    title = f"accelerate's saved configuration has {key}, which the accelerate that runs does not know"
    return replace(incident, title=title)
