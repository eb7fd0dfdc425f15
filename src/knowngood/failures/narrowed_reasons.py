"""The reason of a failure of which the signature knows only the kind, where the words of the error say more. Pure.

A wide incident ("the shapes do not fit") is right of many logs and tells little. What the message, the numbers in it
and the line of code above it say of the reason is put in its place; where they say nothing, the answer is only likely.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from knowngood.compat.incident import Incident, OwnComponent
from knowngood.failures.json_reasons import describe_data_file
from knowngood.failures.last_errors import LastError
from knowngood.failures.name_situation import advise
from knowngood.failures.refused_fields import describe_fields
from knowngood.failures.tensor_shapes import GUESSED_CACHE, describe_shapes
from knowngood.failures.weight_shapes import describe_weight_shapes

_LOAD_KEY = re.compile(r"invalid load key, '(?P<key>.{1,6}?)'")
_KEYS_OF_LFS = frozenset(("v", "<", "{"))
_BATCH = re.compile(
    r"world_size (?P<total>\d+) != (?P<micro>\d+) \* (?P<steps>\d+) \* (?P<ranks>\d+)",
)
_LOADS_TOKENIZER = re.compile(
    r"Can't load (?P<what>tokenizer|the configuration of|image processor)\b.{0,8}?'(?P<where>[^']{1,200})'"
)
_INDEX = re.compile(r"index (?P<index>-?\d+) is out of bounds for (?:dimension|axis) \d+ with size (?P<size>\d+)")
_COUNTS_IMAGES = re.compile(r"(?:image|video)\w*grid_thw\[|(?:image|video)_\w+\[(?:index|i|image_idx|\w*index)\]")
_INVOKED = re.compile(
    r"supported: 1\. (?:self: \S+ )?(?P<name>[\w.]+)\((?P<takes>[^)]{0,600})\).{0,1500}?Invoked with: "
    r"(?P<given>.{1,300})"
)
_COLUMNS = re.compile(
    r"column names? (?P<asked>.{1,120}?) not in the dataset\. Current columns in the dataset: "
    r"\[(?P<there>[^\]]{0,400})\]",
    re.IGNORECASE,
)
_ACCELERATE_KEY = re.compile(
    r"had unknown keys \(\[(?P<keys>[^\]]{1,300})\]\)|unexpected keyword argument '(?P<key>\w+)'"
)
_MISMATCHES = re.compile(r"- ds (?P<name>[\w.]+)=(?P<own>\S+) vs hf \w+=(?P<other>\S+)")
_CHOICE = re.compile(
    r"error: argument (?P<what>\S{1,200}(?: \w+)?): invalid choice: '?(?P<choice>[^'\s]{1,60})'? "
    r"\(choose from (?P<there>[^)]{1,600})\)"
)
_NO_TENSOR = re.compile(
    r"(?P<function>\w+)\(\): argument '(?P<argument>\w+)' \(position \d+\) must be Tensor, not (?P<given>[\w.]+)"
)
_COLLATED = re.compile(r"found <class '(?P<found>[\w.]+)'>")
_GIVEN_NONE = re.compile(r"(?:^|, )None(?=,|$)")


def narrow_reason(incident: Incident, error: LastError | None) -> tuple[Incident, bool]:
    """Return a failure with what the log says of its reason, and whether the reason is left open.

    Args:
        incident: a known failure whose signature is in the log.
        error: the last error of the log.
    """
    describe = _REASONS.get(incident.id)
    if describe is None:
        return incident, incident.id in _OPEN
    narrowed = describe(incident, error) if error is not None else None
    is_open = incident.id in _OPEN and (narrowed is None or narrowed == incident)
    is_guess = narrowed is not None and (incident.id in _GUESSED or narrowed.title.endswith(GUESSED_CACHE))
    return narrowed or incident, is_open or is_guess


def _describe_load_key(incident: Incident, error: LastError) -> Incident | None:
    """A file in another format than a pickle, by the byte that pickle refuses."""
    stated = _LOAD_KEY.search(error.message)
    if stated is None or stated["key"] in _KEYS_OF_LFS:
        return None
    return replace(
        incident,
        title="torch.load reads a file that is no pickle: another format, most likely safetensors, or one cut off",
        because=(
            f"The first byte that is refused ({stated['key']}) begins no file of torch.save. A file of "
            "safetensors begins "
            "with the length of its header, which is any byte; an encrypted, compressed or broken file begins so too."
        ),
        fix=(
            advise(
                "For a file with the ending .safetensors, or one that was renamed from it: safetensors.torch.load_file "
                "in the place of torch.load; from_pretrained(use_safetensors=True)"
            ),
            advise("head -c 64 FILE | xxd shows what it is; compare its size with the hub's, and download it again"),
        ),
    )


def _describe_batch(incident: Incident, error: LastError) -> Incident | None:
    """How many processes DeepSpeed counts, and for how many the numbers were made."""
    stated = _BATCH.search(error.message)
    if stated is None:
        return _describe_equal_values(incident, error) or _describe_device_map(incident, error)
    total, micro, steps, ranks = (int(stated[name]) for name in ("total", "micro", "steps", "ranks"))
    if not micro or not steps or total % (micro * steps):
        return replace(
            incident,
            title=f"DeepSpeed's train_batch_size {total} is no product of the other numbers: {micro} x "
            f"{steps} x {ranks}",
            because="train_batch_size is the micro batch size times the accumulation steps times the number of "
            "processes; one of the three stands in the configuration with another value than the run has.",
        )
    meant = total // (micro * steps)
    if meant <= ranks:
        return None
    return replace(
        incident,
        title=f"DeepSpeed counts {ranks} process{'es' if ranks > 1 else ''}, and its batch size is that of {meant}",
        because=(
            f"{total} is {micro} x {steps} x {meant}, and the world size that DeepSpeed sees is {ranks}: "
            "the script was "
            f"started without a launcher for {meant} GPUs, or the configuration was read before the process group was "
            "set up (a Trainer and an accelerate whose releases do not fit)."
        ),
        fix=(
            advise(
                f"Start {meant} processes: torchrun --nproc_per_node={meant}, deepspeed --num_gpus={meant} "
                "or accelerate "
                'launch; or "auto" for train_batch_size in the DeepSpeed configuration'
            ),
            advise(
                "With torchrun and the Trainer already: pip install -U transformers accelerate together; in a program "
                "of your own, deepspeed.init_distributed() before the configuration is made"
            ),
        ),
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


def _describe_choice(incident: Incident, error: LastError) -> Incident | None:
    """A command or a value that the program's own list of choices lacks."""
    stated = _CHOICE.search(f"{error.text} {error.message}")
    if stated is None:
        return None
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


def _describe_no_tensor(incident: Incident, error: LastError) -> Incident | None:
    """What was given in the place of a tensor, by its class."""
    stated = _NO_TENSOR.search(error.message)
    if stated is None:
        return None
    function, argument, given = stated["function"], stated["argument"], stated["given"]
    own = next((frame for frame in reversed(error.frames) if not frame.installed and frame.path.endswith(".py")), None)
    where = f" Line {own.line} of {own.parts[-1]}.py ({own.code[:100]}) leads there." if own and own.code else ""
    title = f"{function} was given a {given} in place of a tensor ({argument})"
    if given.endswith(("Output", "OutputWithPast", "BatchEncoding")):
        because = f"A model of transformers returns an object ({given}), of which the tensor is a field."
        fixes = [advise("outputs.logits (or .last_hidden_state, .loss) in that line; return_dict=False gives a tuple")]
    elif given in {"tuple", "list"}:
        because = f"The step before returned a {given} of several values, of which the tensor is one."
        fixes = [advise("Take the one that is meant: x[0], or logits, aux = model(...); torch.stack for a list")]
    elif given == "NoneType":
        because = "The value was never set: an input, a field of the batch or a result of the step before is None."
        fixes = [advise("Follow it up in the traceback to where it is set: a field missing in the batch, an option")]
    elif given in {"int", "float", "str", "Image", "JpegImageFile", "numpy.ndarray", "ndarray"}:
        because = f"The data has a {given} that nothing turned into a tensor."
        fixes = [advise("transforms.ToTensor() for pictures, torch.as_tensor for arrays and numbers, in the dataset")]
    else:
        return None
    return replace(incident, title=title, because=because + where, fix=(*fixes, *incident.fix))


def _describe_collated(incident: Incident, error: LastError) -> Incident | None:
    """The class that torch's collator does not join, where it is not None."""
    stated = _COLLATED.search(error.message)
    if stated is None or stated["found"] == "NoneType":
        return None
    class_name = stated["found"]
    if "Image" in class_name:
        first = "transforms.ToTensor() (or pil_to_tensor) in the dataset's transform: __getitem__ returns tensors"
    else:
        first = f"Return tensors, numbers or texts from __getitem__, not {class_name}; or a collate_fn that joins them"
    return replace(
        incident,
        title=f"The dataset returns objects that the DataLoader cannot join: {class_name}",
        because="torch's default collator joins tensors, arrays, numbers, texts, dicts and lists. __getitem__ "
        f"returned {class_name}: no transform turned it into a tensor, or the dataset was given none.",
        fix=(advise(first), *incident.fix[1:]),
    )


def _describe_column(incident: Incident, error: LastError) -> Incident | None:
    """Which column is asked for, and which there are."""
    stated = _COLUMNS.search(error.message)
    if stated is None:
        return None
    column, there = (re.sub(r"[{}'\"]", "", stated[name]).strip() for name in ("asked", "there"))
    own = next((frame for frame in reversed(error.frames) if not frame.installed and frame.path.endswith(".py")), None)
    where = f" {own.parts[-1]}.py asks for it in line {own.line}." if own else ""
    if not there:
        return replace(
            incident,
            title=f"The data set is empty: it has no column at all, and {column} is asked for",
            because="Nothing was read or left: a filter or a search that gave nothing, a wrong split, an "
            f"empty file.{where}",
        )
    return replace(
        incident,
        title=f"The data set has no column {column}; it has {there}",
        because="The file has other names than the code asks for, or was read in another way (lines of "
        "text in place of "
        f"a table, when its only column is text).{where}",
    )


def _describe_accelerate_key(incident: Incident, error: LastError) -> Incident | None:
    """Which key of accelerate's saved configuration is not known."""
    stated = _ACCELERATE_KEY.search(error.message)
    if stated is None:
        return None
    key = stated["key"] or re.sub(r"['\" ]", "", stated["keys"])
    title = f"accelerate's saved configuration has {key}, which the accelerate that runs does not know"
    return replace(incident, title=title)


def _describe_device_map(incident: Incident, error: LastError) -> Incident | None:
    if "low_cpu_mem_usage" not in error.message:
        return None
    return replace(
        incident,
        title="The model is loaded with low_cpu_mem_usage or a device_map, which ZeRO-3 forbids",
        because="Under ZeRO-3 the weights are divided while the model is built; from_pretrained then takes neither "
        "low_cpu_mem_usage=True nor a device_map (nor a quantization, which sets both).",
    )


def _describe_place(incident: Incident, error: LastError) -> Incident | None:
    """A folder without the files that are looked for, where the name is a path of this machine."""
    stated = _LOADS_TOKENIZER.search(error.message)
    if stated is None or not re.match(r"[/.~]|[A-Za-z]:[\\/]|[^/]*/[^/]*/", stated["where"]):
        return None
    what = {"tokenizer": "tokenizer"}.get(stated["what"], "configuration")
    files = "tokenizer.json or the vocabulary" if what == "tokenizer" else "config.json"
    return replace(
        incident,
        title=f"The folder {stated['where']} has no files of a {what}, or is not there",
        because=(
            f"{stated['where']} is a path of this machine, where {files} was not found: what wrote the "
            "folder (training, "
            "a merge, a conversion) saved only the weights, or the folder does not exist where the job runs."
        ),
        component=OwnComponent.MODEL,
        fix=(
            advise(f"ls {stated['where']} where the job runs shows which of the two it is"),
            advise(
                "Without the files: copy tokenizer*, special_tokens_map.json, vocab and config.json from "
                "the base model "
                "into it, or AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)"
            ),
        ),
    )


def _describe_index(incident: Incident, error: LastError) -> Incident | None:
    """What is counted beyond its end: pictures of a text, classes from one on, padding."""
    stated = _INDEX.search(error.message)
    code = error.frames[-1].code if error.frames else ""
    if stated is None:
        return None
    index, size = int(stated["index"]), int(stated["size"])
    if _COUNTS_IMAGES.search(code):
        return replace(
            incident,
            title=f"The text has more places for images than the {size} that were given",
            because=(
                f"The processor puts an image's tokens in the place of each placeholder (such as <|image_pad|>), and "
                f"place {index + 1} has no image: the text writes the placeholder itself, once more than there are "
                "images, or an image of the row is missing."
            ),
            fix=(
                advise(
                    "One placeholder for each image: leave <|image_pad|> out of the text and let the chat "
                    "template write "
                    "it from {'type': 'image'} in the message"
                ),
                advise("Print the number of images and text.count of the placeholder for the row that fails"),
            ),
        )
    if index < 0 and index == -100:
        return replace(incident, title="The -100 of padded labels is used as an index")
    if index == size:
        return replace(
            incident,
            title=f"An index is one beyond the end: {index}, with {size} rows from 0 to {size - 1}",
            because=f"The largest label, token or position is {index}, so that {size + 1} rows are needed: labels that "
            "begin at 1, one class or token more than in the configuration, or a sequence of one too many.",
        )
    return None


def _describe_invoked(incident: Incident, error: LastError) -> Incident | None:
    """An argument that is None where the compiled function takes a value."""
    stated = _INVOKED.search(error.message)
    if stated is None or "None" in stated["takes"] or not _GIVEN_NONE.search(stated["given"]):
        return None
    given = [part.strip() for part in stated["given"].split(",")]
    takes = [part.strip() for part in stated["takes"].split(",")]
    at = given.index("None") if "None" in given else 0
    what = takes[at] if at < len(takes) else "one of its arguments"
    is_store = stated["name"].endswith("TCPStore")
    because = f"{stated['name']} takes ({stated['takes']}), and was called with ({stated['given'].strip()})."
    fixes = [advise(f"Look in the traceback where the program sets that value ({what}); give it, or do not pass it")]
    title = f"The program passes None to {stated['name']} where it takes {what}"
    if is_store:
        because += " It is the address of the first process, in init_method (tcp://HOST:PORT) or MASTER_ADDR."
        fixes.insert(
            0, advise("The address in the option: --dist_url tcp://127.0.0.1:PORT on one machine, or MASTER_ADDR")
        )
        title = "The address of the first process is empty in init_method (tcp://HOST:PORT)"
    return replace(incident, title=title, because=because, component=OwnComponent.YOUR_CODE, fix=tuple(fixes))


_REASONS: Mapping[str, Callable[[Incident, LastError], Incident | None]] = {
    "argument-must-be-tensor": _describe_no_tensor,
    "arguments-refused": _describe_choice,
    "accelerate-config-of-newer": _describe_accelerate_key,
    "binding-arguments-refused": _describe_invoked,
    "checkpoint-not-whole": _describe_load_key,
    "collate-none": _describe_collated,
    "data-column-unknown": _describe_column,
    "data-file-unreadable": describe_data_file,
    "deepspeed-config-mismatch": _describe_batch,
    "hub-no-such-repository": _describe_place,
    "index-outside": _describe_index,
    "state-dict-size-mismatch": describe_weight_shapes,
    "tensor-shapes": describe_shapes,
    "values-refused-by-pydantic": describe_fields,
}
"""The id of a known failure -> what says more of its reason."""
_GUESSED = frozenset(("checkpoint-not-whole",))
"""Known failures of which the words give the most likely reason only."""
_OPEN = frozenset(
    (
        "argument-must-be-tensor",
        "binding-arguments-refused",
        "bnb-cublaslt-failed",
        "data-file-unreadable",
        "index-outside",
        "padding-index-outside",
        "tensor-shapes",
    )
)
"""Known failures whose signature leaves the reason open: without more they are only likely."""
