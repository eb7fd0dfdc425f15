"""Which value a function, a data set or a configuration does not take, and the limits that a message states. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.last_errors import LastError, redact_secrets
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Incident, OwnComponent

_INDEX = lazy_pattern(r"index (?P<index>-?\d+) is out of bounds for (?:dimension|axis) \d+ with size (?P<size>\d+)")
_COUNTS_IMAGES = lazy_pattern(r"(?:image|video)\w*grid_thw\[|(?:image|video)_\w+\[(?:index|i|image_idx|\w*index)\]")
_INVOKED = lazy_pattern(
    r"supported: 1\. (?:self: \S+ )?(?P<name>[\w.]+)\((?P<takes>[^)]{0,600})\).{0,1500}?Invoked with: "
    r"(?P<given>.{1,300})"
)
_COLUMNS = lazy_pattern(
    r"column names? (?P<asked>.{1,120}?) not in the dataset\. Current columns in the dataset: "
    r"\[(?P<there>[^\]]{0,400})\]",
    re.IGNORECASE,
)
_REMOVED = lazy_pattern(
    r"Columns? to remove \[(?P<asked>[^\]]{1,200})\] not in the dataset\. Current columns in the dataset: "
    r"\[(?P<there>[^\]]{0,400})\]"
)
_ONE_SPLIT = lazy_pattern(
    r"Column (?P<asked>\w+) not in the dataset\. Current columns in the dataset: \[(?P<there>[^\]]{0,400})\]"
)
_SPLITS = frozenset(("train", "test", "validation", "valid", "val", "dev", "eval", "train_sft", "test_sft"))
"""How the splits of data sets are mostly called."""
_NESTED = lazy_pattern(r"features? ?\([`'\"](?P<column>\w+)[`'\"] in this case\)")
_PADDED = frozenset(("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask", "position_ids"))
"""Columns that a tokenizer makes and pads itself."""
_NO_TENSOR = lazy_pattern(
    r"(?P<function>\w+)\(\): argument '(?P<argument>\w+)' \(position \d+\) must be Tensor, not (?P<given>[\w.]+)"
)
_COLLATED = lazy_pattern(r"found <class '(?P<found>[\w.]+)'>")
_GIVEN_NONE = lazy_pattern(r"(?:^|, )None(?=,|$)")


def describe_no_tensor(incident: Incident, error: LastError) -> Incident | None:
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


def describe_collated(incident: Incident, error: LastError) -> Incident | None:
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


def describe_column(incident: Incident, error: LastError) -> Incident | None:
    """Which column is asked for, and which there are."""
    if (removed := _REMOVED.search(error.message)) is not None:
        return _describe_removed(incident, *(_list_quoted(removed[name]) for name in ("asked", "there")))
    if (split := _ONE_SPLIT.search(error.message)) is not None and split["asked"] in _SPLITS:
        return _describe_one_split(incident, split["asked"], ", ".join(_list_quoted(split["there"])))
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


def _list_quoted(text: str) -> list[str]:
    return [part.strip(" '\"") for part in text.split(",") if part.strip(" '\"")]


def _describe_removed(incident: Incident, wanted: list[str], there: list[str]) -> Incident:
    """Columns to remove that are not there: splits, where a dictionary of them was wanted for its columns."""
    names, has = ", ".join(wanted), ", ".join(there)
    if not wanted or not _SPLITS.issuperset(wanted):
        return replace(
            incident,
            title=f"The data set has no column {names} to remove; it has {has}",
            because="remove_columns names what this data set does not have: the list was written for another one, or "
            "the columns were renamed or removed before.",
            fix=(advise("remove_columns=dataset.column_names in map, of the very data set that is mapped"),),
        )
    return replace(
        incident,
        title=f"A dictionary of splits was taken for a data set: {names} is a split and no column",
        because=(
            f"load_dataset without split= returns a DatasetDict, whose names are its splits ({names}), each with the "
            f"columns {has}. list(dataset) or the keys of the dictionary gave {names} as the columns to remove, so the "
            "dictionary was passed where one data set is wanted (train_dataset of a trainer)."
        ),
        component=OwnComponent.YOUR_CODE,
        fix=(
            advise(f"Pass one split: dataset['{wanted[0]}'], or load_dataset(..., split='{wanted[0]}')"),
            advise(f"In map: remove_columns=dataset['{wanted[0]}'].column_names"),
        ),
    )


def _describe_one_split(incident: Incident, split: str, there: str) -> Incident:
    """A data set that is asked for one of its splits, and is one split itself."""
    return replace(
        incident,
        title=f"The data set is a single split already, and is asked for its split {split}",
        because=(
            f"dataset['{split}'] takes a split out of a dictionary of splits (DatasetDict). This one has the columns "
            f"{there}: it was loaded with split=..., or saved with save_to_disk as a single data set, "
            f"so {split} is taken "
            "for a column."
        ),
        component=OwnComponent.YOUR_CODE,
        fix=(
            advise(f"Leave ['{split}'] out; or load_dataset without split="),
            advise(f"DatasetDict({{'{split}': dataset}}).save_to_disk(FOLDER), when the program is not yours"),
        ),
    )


def describe_nested_column(incident: Incident, error: LastError) -> Incident | None:
    """The column that is no row of numbers: a text that was never tokenized, labels that nothing padded."""
    stated = _NESTED.search(error.message)
    if stated is None or stated["column"] in _PADDED:
        return None
    column = stated["column"]
    if column.startswith("label") or column.endswith("labels"):
        return replace(
            incident,
            title=f"The rows of {column} have other lengths, and the collator does not pad them",
            because=f"The tokenizer pads what it made itself. {column} is a list of its own for each row, and stays as "
            "long as it was.",
            fix=(
                advise("DataCollatorForSeq2Seq or DataCollatorForTokenClassification, which pad labels with -100"),
                advise(f"Or pad {column} in the function of map: to max_length, with -100"),
            ),
        )
    return replace(
        incident,
        title=f"The column {column} of the data reached the collator as it is: text or lists in place of token ids",
        because=(
            f"The message names {column}, which no tokenizer made. The rows still have the columns of "
            "the file: nothing "
            "tokenized them (the program looks for columns of other names or another case), or they were kept "
            "beside the tokens."
        ),
        component=OwnComponent.DATA,
        fix=(
            advise(
                f"Compare the name {column} with those that the program's tokenization reads (its "
                "example of the data): "
                "the same spelling and case"
            ),
            advise(
                f"dataset.map(tokenize, remove_columns=dataset.column_names); or dataset.remove_columns('{column}') "
                "before training; remove_unused_columns=True in the arguments"
            ),
            advise("padding=True and truncation=True do not help here: they concern the tokens only"),
        ),
    )


def describe_index(incident: Incident, error: LastError) -> Incident | None:
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


def describe_invoked(incident: Incident, error: LastError) -> Incident | None:
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


_REFUSED = lazy_pattern(
    r"validation errors? for (?P<owner>\S{1,80}) (?P<field>\S{1,120}) (?P<words>.{1,160}?) \[type=\w+"
    r"(?:, input_value=(?P<value>.{1,80}?), input_type=(?P<kind>\w{1,40})\])?"
)


def describe_fields(incident: Incident, error: LastError) -> Incident | None:
    """Return the failure with the first field that is refused, and why; `None` where the log does not say it."""
    refused = _REFUSED.search(error.message)
    if refused is None:
        return None
    sentence = f"Here it is {refused['field']} of {refused['owner']}: {refused['words']}"
    if refused["kind"]:
        sentence += f", and it was given a {refused['kind']} ({redact_secrets(refused['value'])})"
    return replace(incident, because=f"{incident.because} {sentence}.")


_SHARED = lazy_pattern(r"shared memory,? ?Required: (?P<wanted>\d+),? ?Hardware limit: (?P<limit>\d+)")
_LARGEST = 232_448
"""The most shared memory a block, in bytes, that a message stated: on an H200, in evidence/models/deepseek_v3."""
_LIMITS = ((_LARGEST, "H100 and H200"),)
"""Bytes and the cards that state them as their limit, the smallest first; what no message here stated is left out."""
_LISTED = lazy_pattern(r"['\"](?P<path>:+/[^'\"\n]{1,300}|/[^'\"\n:]{1,300}:/[^'\"\n]{0,300})/bin/nvcc['\"]")
_BOUND = lazy_pattern(
    r"failed to bind to (?:\[[^\]\s]*\]|[\w.-]+):(?P<port>\d{1,5})\b|"
    r"\(port: (?P<stated>\d{1,5})\)|(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\*):(?P<other>\d{1,5})\b.{0,80}in use",
)
_USUAL, _PRIVILEGED = 29_500, 1_024
_SERVICES = {22: "ssh", 80: "a web server", 111: "rpcbind", 443: "a web server", 631: "the printing service"}
_NEAR = 4_000


def describe_shared_memory(incident: Incident, error: LastError) -> Incident | None:
    """A demand of shared memory, compared with what GPUs have."""
    stated = _SHARED.search(error.message)
    if stated is None:
        return None
    wanted, limit = int(stated["wanted"]), int(stated["limit"])
    if wanted > _LARGEST:
        return replace(
            incident,
            title=f"A Triton kernel wants {wanted} bytes of shared memory a block, more than an H200 has",
            because=(
                f"This GPU has {limit} bytes a block, and an H200 {_LARGEST}: another card hardly ends it. "
                "The block of this kernel grows with a size of the model that it takes whole (the head dimension, the "
                "size of the state, the width of a row), with num_stages, and is twice as large in "
                "float32. One of these "
                "is set higher than the kernel was written for."
            ),
            fix=(
                advise(
                    "A smaller head dimension with more heads (headdim=64 or 128 in Mamba-2, not the whole inner "
                    "width; head_dim of attention at most 128 or 256), or a smaller d_state"
                ),
                advise(
                    "num_stages=1 and smaller blocks in the kernel's own list of settings (triton.Config; or "
                    "kernel_options of flex_attention)"
                ),
                advise("bf16 in the place of float32; or the implementation in plain torch of the same layer"),
            ),
        )
    has = next((names for most, names in _LIMITS if most >= wanted and most > limit), "")
    if not has:
        return None
    because = f"{incident.because} Here {wanted} bytes are wanted and the GPU has {limit}; {has} have enough."
    return replace(incident, because=because)


def describe_toolkit_path(incident: Incident, error: LastError) -> Incident | None:
    """A path of the CUDA toolkit that is a list with colons, as PATH is, where one folder is wanted."""
    stated = _LISTED.search(f"{error.message} {error.text}")
    if stated is None:
        return None
    path = stated["path"]
    folder = next((part for part in reversed(path.split(":")) if part), "/usr/local/cuda")
    return replace(
        incident,
        title=f"CUDA_HOME is written as a list: {path}",
        because=(
            f"nvcc is looked for in {path}/bin. A colon divides the folders of a list such as PATH, "
            "and CUDA_HOME is one "
            f"folder: it was set with something like export CUDA_HOME=$CUDA_HOME:{folder}, which "
            "leaves the colon when it "
            "was empty before."
        ),
        component=OwnComponent.YOUR_CODE,
        fix=(
            advise(
                f"export CUDA_HOME={folder} (without a colon, without $CUDA_HOME), also in ~/.bashrc "
                "or the Dockerfile; "
                f"ls {folder}/bin/nvcc shows whether it is there"
            ),
            advise("A ready wheel whose name matches torch, CUDA, Python and ABI needs no toolkit"),
        ),
    )


def describe_port(incident: Incident, error: LastError) -> Incident | None:
    """The number of the port that is taken, and whose it mostly is."""
    above = error.above[-_NEAR:].decode("utf-8", "replace")
    places = list(_BOUND.finditer(f"{above}\n{error.text} {error.message}"))
    port = int(next(text for text in places[-1].groups() if text)) if places else 0
    if not 0 < port < _PRIVILEGED:
        if not port or port == _USUAL:
            return None
        because = f"{incident.because} Here it is {port}: a free one is shown by ss -ltn."
        return replace(incident, title=f"The port of the rendezvous is taken: {port}", because=because)
    service = _SERVICES.get(port, "a service of the system")
    whose = f"is that of {service}" if port in _SERVICES else f"belongs to {service}"
    return replace(
        incident,
        title=f"The port of the rendezvous is {port}, which {whose} on this machine",
        because=(
            f"The launcher was told to listen on port {port}: by --master_port, or by a variable of the environment "
            "(PORT, MASTER_PORT) that a script takes over and that cloud machines and containers set for ssh or a web "
            "server. Ports below 1024 belong to services."
        ),
        component=OwnComponent.YOUR_CODE,
        fix=(
            advise(
                "A port of its own: PORT=29501 (or MASTER_PORT=29501) before the command, --master_port 29501; "
                "echo $PORT $MASTER_PORT shows what is set"
            ),
            advise("torchrun --rdzv-backend=c10d --rdzv-endpoint=localhost:0 takes a free one"),
        ),
    )
