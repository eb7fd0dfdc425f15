"""Why a key is not there, by the table that is asked for it, and who asked. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.message_causes import MessageCause, describe_traceback, shorten_text
from knowngood_diagnose.failures.names.name_situation import REMOTE_CODE, advise
from knowngood_facts.compat.incident import Fix, IncidentKind, OwnComponent

if TYPE_CHECKING:
    from collections.abc import Callable

    from knowngood_diagnose.failures.logs.last_errors import LastError
    from knowngood_diagnose.failures.logs.logged_errors import CodeFrame

_KEY = lazy_pattern(r"^KeyError: (?P<quote>['\"])(?P<key>[^'\"]{1,120})(?P=quote)(?=$|\s)")
_NUMBER = lazy_pattern(r"^KeyError: (?P<key>-?\d{1,20})(?=$|\s)")
_MARK = ("\ufeff", "\\ufeff")
"""The mark of byte order with which some editors begin a file."""
_CHECKPOINT = lazy_pattern(
    r"\b\w*(?:checkpoint|ckpt|state_dict|pretrained|snapshot|loaded|resume)\w*(?:\[['\"]\w+['\"]\])*\[\s*['\"]|torch\.load\([^)]*\)\["
)
_VOCABULARY = lazy_pattern(
    r"\b\w*(?:vocab|(?:word|token|char|tok)(?:2|_to_)(?:id|idx|index|ix)|stoi|encoder|ids_of)\w*\[|_to_ids?\b"
)
_LABELS = lazy_pattern(
    r"\b\w*(?:label|class|tag|intent|category|cat)\w*(?:_map|2id|2idx|_to_id|_to_idx|_dict|_ids?|map)\w*\["
)
_COLLATES = lazy_pattern(r"collat", re.IGNORECASE)
_ROW = lazy_pattern(r"\b(?:example|ex|feature|f|item|instance|sample|x|d|b|inst)\w?\[")
_NOT_DEFINED = lazy_pattern(r"Non-existent config key: (?P<key>[\w.]+)$")
_BY_ID = lazy_pattern(r"\w\[\s*(?:int\()?(?:\w+\.)*\w*(?:id|idx|index|key|num|number|name)s?\)?\s*\]")
"""A table that is asked by a number which has the name of one."""
_READS_ROWS = lazy_pattern(
    r"^__getitem__$|collat|process|tokeni[sz]e|encode|format|convert|load|read|prepare", re.IGNORECASE
)
"""Functions that take rows of the data apart."""
_OWN_ROW = lazy_pattern(
    r"\b(?:self\.)?\w*(?:data|dataset|samples?|examples?|rows?|records?|items?|annotations?|list|df)\w*"
    r"(?:\[\w+\]|\.iloc\[\w+\])\[|\b(?:data|row|record|ex|example|sample|item|entry|feature|f|line|ann|conv\w*|source|d|x)\["
)
"""A row of the data, from which a field is taken."""
_CONFIGURATION = lazy_pattern(
    r"\b\w*(?:config|configs|cfg|conf|params|parameters|hparams|hyperparameters|opt|opts|options|settings|args)"
    r"(?:\[['\"]\w+['\"]\]|\.\w+)*\[\s*['\"]",
    re.IGNORECASE,
)
_DECODES = lazy_pattern(
    r"\b\w*(?:itos|(?:id|ids|idx|index|ix|int)(?:2|_to_|to)(?:word|token|char|str|label|sym|tok|s)\w*"
    r"|inv(?:erse)?_?vocab\w*|rev(?:erse)?_?vocab\w*)\["
)
"""A table that turns numbers back into text."""
_SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class _Table:
    """A kind of table that lacks a key."""

    name: str
    applies: Callable[[CodeFrame, LastError], bool]
    title: str
    because: str
    fixes: tuple[Fix, ...]
    component: str


def _has(pattern: re.Pattern[str]) -> Callable[[CodeFrame, LastError], bool]:
    return lambda frame, _: bool(pattern.search(frame.code))


def _is_row_of_own_data(frame: CodeFrame, error: LastError) -> bool:
    """Whether a data set of the program's own takes a field out of one of its rows."""
    key = _KEY.match(error.message)
    if key is None or not re.search(rf"\[\s*['\"]{re.escape(key['key'])}['\"]", frame.code):
        return False
    return not frame.installed and bool(_READS_ROWS.search(frame.function) and _OWN_ROW.search(frame.code))


def _is_processors_output(frame: CodeFrame, error: LastError) -> bool:
    """Whether the key is asked of what a processor of transformers made of one row."""
    made = any(item.installed[:2] == ("transformers", "feature_extraction_utils") for item in error.frames)
    return made and not frame.installed


def _is_collator(frame: CodeFrame, error: LastError) -> bool:
    named = _COLLATES.search(frame.path) or _COLLATES.search(frame.function)
    loads = any("transformers" in item.installed[:1] or item.parts[-1:] == ("fetch",) for item in error.frames)
    return bool(named and loads and _ROW.search(frame.code))


_TABLES = (
    _Table(
        name="processor-without-part",
        applies=_is_processors_output,
        title="The processor made no {key} of this row: it has no image, video or sound",
        because="{where} takes {key} out of what the processor of transformers returned. It returns that only where it "
        "was given such an input: this row of the data has only text, its file was not found, or its field has another "
        "name than the code passes on.",
        fixes=(
            advise(
                "Print the row that fails (its index), and leave rows without an image out; or ask first: "
                "if '{key}' in inputs"
            ),
            advise("A newer commit of the project, in which rows of text alone may be allowed"),
        ),
        component=OwnComponent.DATA,
    ),
    _Table(
        name="own-data-without-field",
        applies=_is_row_of_own_data,
        title="The data has no field {key}, which the program's data set reads",
        because="{where} takes {key} out of a row of the file. The file has other fields than the code reads: it is of "
        "another format or task, or the field has another name.",
        fixes=(
            advise(
                "Print the first row: rename its field to {key}, give the rows the structure of the project's example, "
                "or change the name in that line"
            ),
            advise("The data that the project's instructions name for this very script"),
        ),
        component=OwnComponent.DATA,
    ),
    _Table(
        name="configuration-without-key",
        applies=lambda frame, _: REMOTE_CODE not in frame.parts and bool(_CONFIGURATION.search(frame.code)),
        title="The configuration has no {key}, which this code reads",
        because="{where} takes {key} out of the configuration that was given. That is of another commit, release or "
        "task than the code that reads it: one of the two has the key renamed, moved or new.",
        fixes=(
            advise(
                "The code and the files of configuration of one commit: git submodule update --init, or the "
                "tag that the instructions name"
            ),
            advise("Add {key} to the file, as the example beside this very code has it"),
        ),
        component=OwnComponent.YOUR_CODE,
    ),
    _Table(
        name="checkpoint-without-part",
        applies=_has(_CHECKPOINT),
        title="The checkpoint has no part {key}: it was saved in another form than the program reads",
        because="{where} takes {key} out of the file of a checkpoint. The file holds other parts: only "
        "the weights (saved "
        "for inference, or by another script, without optimizer, epoch or EMA), or the parts of another program.",
        fixes=(
            advise(
                "python -c \"import torch; print(torch.load('FILE', map_location='cpu').keys())\" shows what is in it"
            ),
            advise(
                "For weights alone: load them without resuming (the option for pretrained weights, not that for "
                "resuming), and leave the line out; for resuming, the other file that the run saved beside it"
            ),
        ),
        component=OwnComponent.MODEL,
    ),
    _Table(
        name="data-collator-columns",
        applies=_is_collator,
        title="The rows that the collator gets have no {key}: mostly Trainer has removed the column",
        because="{where} asks each row for {key}. Trainer removes all columns that the model's forward does not name, "
        "unless remove_unused_columns is False; otherwise the data, or the function given to map, does not make it.",
        fixes=(
            advise("remove_unused_columns=False in the training arguments, when the data has the column {key}"),
            advise("print(dataset.column_names) before training: rename the column, or make it in map"),
        ),
        component=OwnComponent.YOUR_CODE,
    ),
    _Table(
        name="label-unknown",
        applies=_has(_LABELS),
        title="The data has a label {key} that the program's list of labels lacks",
        because="{where} looks each label up in a table that was made from another list: another file, task or version "
        "of the data, another spelling or case, a blank or a line of titles that counts as a label.",
        fixes=(
            advise("Print the table's keys and the set of labels in the data; take the list from the data itself"),
            advise("The data of the release that the project's instructions name, without its line of titles"),
        ),
        component=OwnComponent.DATA,
    ),
    _Table(
        name="token-unknown",
        applies=_has(_VOCABULARY),
        title="The vocabulary has no entry {key}: the data was made with another one",
        because="{where} looks each token up in the vocabulary. One that it lacks comes from data that was cut into "
        "tokens with another model or setting (cased and uncased, do_lower_case), or from new text without a token "
        "for unknown words.",
        fixes=(
            advise(
                "Make the data anew with the very tokenizer that is used here: the same model name, and the same "
                "do_lower_case"
            ),
            advise("vocab.get(token, vocab[UNK]) in a table of your own"),
        ),
        component=OwnComponent.DATA,
    ),
)


def explain_lost_key(error: LastError) -> MessageCause | None:
    """Return what lacks the key of the last error; `None` where the line of code does not tell."""
    number = _NUMBER.match(error.message)
    if number is not None:
        return _explain_row_label(error, number["key"])
    named = _KEY.match(error.message)
    frames = drop_lookups(error).frames
    if named is None or not frames:
        return None
    frame, key = frames[-1], named["key"]
    if (unknown := _NOT_DEFINED.match(key)) is not None:
        return _explain_undefined_key(error, unknown["key"])
    if key.startswith(_MARK):
        return _explain_mark(error, frame, key)
    table = next((table for table in _TABLES if table.applies(frame, error)), None)
    if table is None:
        return None
    where = f"Line {frame.line} of {'/'.join((frame.installed or frame.parts)[-2:])}.py"
    where += f" ({shorten_text(frame.code, _SHOWN)})"
    fixes = tuple(advise(fix.note.replace("{key}", key)) for fix in table.fixes)
    title, because = table.title.format(key=key), table.because.format(where=where, key=key)
    return _cause(error, table.name, title, because, fixes, table.component)


def _explain_mark(error: LastError, frame: CodeFrame, key: str) -> MessageCause:
    rest = key
    for mark in _MARK:
        rest = rest.removeprefix(mark)
    because = (
        f"The key is {rest!r} with U+FEFF before it: the file begins with a mark of byte order, which an editor or a "
        f"spreadsheet on Windows writes, and its first field is read with it (line {frame.line} of "
        f"{frame.parts[-1]}.py)."
    )
    fixes = (
        advise("Read it with encoding='utf-8-sig', or save the file as UTF-8 without BOM"),
        advise("sed -i '1s/^\\xEF\\xBB\\xBF//' FILE removes the mark"),
    )
    title = f"The file of data begins with a mark of byte order (BOM), so that its first field is not {rest!r}"
    return _cause(error, "byte-order-mark", title, because, fixes, OwnComponent.DATA)


def _explain_row_label(error: LastError, key: str) -> MessageCause | None:
    """A table of pandas that is asked for a row by its number, where rows were dropped before."""
    frames = [frame for frame in error.frames if frame.installed[:1] != ("pandas",)]
    last = error.frames[-1] if error.frames else None
    if last is not None and _DECODES.search(last.code):
        return _explain_decoding(error, last, key)
    in_pandas = any("pandas" in frame.parts for frame in error.frames)
    own = next((frame for frame in reversed(frames) if frame.path.endswith(".py") and not frame.installed), None)
    if not in_pandas and own is not None and own is frames[-1] and _BY_ID.search(own.code):
        return _explain_unknown_id(error, own, key)
    if not in_pandas or (frames and frames[-1].parts[-1:] == ("fetch",)):
        return None
    where = f" It is asked in {own.parts[-1]}.py, line {own.line} ({shorten_text(own.code, _SHOWN)})." if own else ""
    because = (
        f"A column of pandas looks {key} up among the labels of its rows, not by position. Rows were "
        "dropped, filtered, "
        f"shuffled or split off (train_test_split), and the index was not made anew, so it has gaps.{where}"
    )
    fixes = (
        advise("frame.reset_index(drop=True) after the rows are filtered or split, before the dataset is made of it"),
        advise("column.iloc[number] in __getitem__, or lists in the place of columns: column.tolist()"),
    )
    title = f"The table has no row with the label {key}: its index has gaps"
    return _cause(error, "row-label-missing", title, because, fixes, OwnComponent.YOUR_CODE)


def _explain_undefined_key(error: LastError, key: str) -> MessageCause:
    """A key of a file or of the command line that the program's own defaults do not define (yacs)."""
    because = (
        f"yacs merges a file of configuration into the program's defaults, and takes only what these define. {key} "
        "stands in the file or the command line and not in the defaults: the two are of different commits or tasks."
    )
    fixes = (
        advise(f"The file of configuration of this very commit; or leave {key} out of it"),
        advise(f"Define {key} in the program's defaults (config/defaults.py, default.py), as a newer commit does"),
        advise("A project of that name that is installed too may hide the checkout's defaults: pip uninstall it"),
    )
    title = f"The configuration has {key}, which the program's defaults do not define"
    return _cause(error, "configuration-key-undefined", title, because, fixes, OwnComponent.YOUR_CODE)


def _explain_decoding(error: LastError, frame: CodeFrame, key: str) -> MessageCause:
    """A model gave a token of which the table that decodes it has no entry."""
    if key.startswith("-"):
        return _explain_no_token(error, frame, key)
    because = (
        f"Line {frame.line} of {frame.short_file} ({shorten_text(frame.code, _SHOWN)}) looks the token "
        f"{key} up in the table that turns numbers back into text, and this has fewer entries. The model was trained "
        "with another vocabulary (another data set, or GPT-2's 50257 tokens) than the one whose table is read, such as "
        "the meta.pkl or vocab file that another prepare.py wrote."
    )
    fixes = (
        advise(
            "The table that was written with the data of this very checkpoint: print len(table) and the model's "
            "vocab_size; prepare that data set again, or name its folder (dataset, out_dir, init_from)"
        ),
        advise("Train anew with the data whose table is there, when the checkpoint in out_dir is left of another run"),
        advise("For a checkpoint with GPT-2's tokens: decode with tiktoken or its tokenizer, without the table"),
    )
    title = f"The table that decodes tokens has no entry {key}: it is of another vocabulary than the model"
    return _cause(error, "decoding-table-of-other-vocabulary", title, because, fixes, OwnComponent.DATA)


def _explain_no_token(error: LastError, frame: CodeFrame, key: str) -> MessageCause:
    """A number below zero in the place of a token: what was drawn is no token at all."""
    because = (
        f"Line {frame.line} of {frame.short_file} ({shorten_text(frame.code, _SHOWN)}) "
        f"decodes {key}, and no token is below zero. It was drawn from probabilities that are not numbers (a training "
        "that ended in nan), or the device's own function of drawing returned nonsense (older releases of torch on "
        "mps)."
    )
    fixes = (
        advise("Generate on the CPU (--device=cpu): when that works, a newer torch, or the CPU for the drawing"),
        advise("print(torch.isnan(logits).any()): when it is true, the checkpoint is of a training that diverged"),
    )
    title = f"The model's output is no token: {key}"
    return _cause(error, "drawn-token-below-zero", title, because, fixes, OwnComponent.MODEL)


def _explain_unknown_id(error: LastError, frame: CodeFrame, key: str) -> MessageCause:
    """A table that is asked by the number of a row, picture or class, and was made of other data."""
    because = (
        f"Line {frame.line} of {frame.short_file} ({shorten_text(frame.code, _SHOWN)}) looks the number "
        f"{key} up in a table that was made of another file. The two do not belong together: another split or version "
        "of the data, a file of features or labels that is not whole, numbers that begin at 0 on one side and at 1 on "
        "the other."
    )
    fixes = (
        advise("The two files of one split and version: compare their numbers (set(a) - set(b)) before training"),
        advise("Make the features or the index anew from the very file that is read, or leave out rows without them"),
    )
    title = f"The table has no entry for the number {key}: two files of the data do not belong together"
    return _cause(error, "id-unknown", title, because, fixes, OwnComponent.DATA)


def _cause(  # noqa: PLR0913, PLR0917 - the fields of an incident
    error: LastError, name: str, title: str, because: str, fixes: tuple[Fix, ...], component: str
) -> MessageCause:
    incident = describe_traceback(name, IncidentKind.CONFIG, component, title=title, because=because, fixes=fixes)
    return MessageCause(incident=incident, line=error.line, package="")


_FIELD_KEY = lazy_pattern(r"^(?:KeyError|Exception): (?P<quote>['\"])(?P<key>[^'\"]{1,100})(?P=quote)(?=$|\s)")
_FIELD_NUMBER = lazy_pattern(r"^KeyError: \d+(?=$|\s)")
_OF_DATA = frozenset(("datasets", "pandas"))
"""Packages whose rows and tables hold the data itself."""
_CONTAINERS = _OF_DATA | {"transformers", "omegaconf", "addict", "tensordict", "easydict"}
_COLUMNS = frozenset(
    ("instruction", "input_ids", "output", "messages", "conversations", "prompt", "completion", "chosen", "rejected")
)
"""The columns that trainers ask for: without a traceback such a key is mostly one of these."""
_ROW_OF_DATA = lazy_pattern(r"\b(?:examples?|samples?|features?)\[")
"""How a trainer's code names a row of the data, where rows are plain dicts."""
_LOOKS_UP = frozenset(("__getitem__", "__missing__", "__getattr__", "get_loc", "_get_item_cache", "_getitem_axis"))
"""Functions that only look a key up."""


def drop_lookups(error: LastError) -> LastError:
    """Return the error with the code that asked for the key as its innermost frame."""
    frames = list(_put_asker_last(error))
    while len(frames) > 1 and _FIELD_KEY.match(error.message) and _is_lookup(frames[-1]):
        frames.pop()
    return replace(error, frames=tuple(frames))


def _put_asker_last(error: LastError) -> tuple[CodeFrame, ...]:
    """The frames; where the quoted line that asks for the key belongs to none, with the program's own as the last.

    People paste tracebacks in pieces: the line of code stands above the error, and its frame elsewhere.
    """
    key = _FIELD_KEY.match(error.message)
    quoted = error.above.rstrip().rpartition(b"\n")[2].decode("utf-8", "replace").strip()
    lookup = key is not None and re.search(rf"\[\s*['\"]{re.escape(key['key'])}['\"]\s*\]", quoted)
    own = [frame for frame in error.frames if not frame.installed and frame.path.endswith(".py")]
    if not lookup or not own or any(frame.code == quoted for frame in error.frames):
        return error.frames
    return (*(frame for frame in error.frames if frame is not own[-1]), replace(own[-1], code=quoted))


def explain_missing_field(error: LastError) -> MessageCause | None:
    """Return that the data lacks a field, when a row or a table was asked for it; else `None`."""
    if _FIELD_NUMBER.match(error.message):
        return _explain_dataset(error)
    key = _FIELD_KEY.match(error.message)
    asking = drop_lookups(error).frames
    containers = error.frames[len(asking) :]
    if key is None or not asking:
        return _describe_field(error, key["key"]) if key and key["key"] in _COLUMNS else None
    frame, field = asking[-1], key["key"]
    if not any(_package(item) in _OF_DATA for item in containers) and not (
        frame.installed and _ROW_OF_DATA.search(frame.code)
    ):
        return None
    code = f" ({shorten_text(frame.code, 100)})" if frame.code else ""
    return _describe_field(error, field, f"Line {frame.line} of {frame.short_file}{code}")


def _describe_field(error: LastError, field: str, asker: str = "The program") -> MessageCause:
    because = (
        f"{asker} asks a row of the data for the field {field}, "
        "which the files do not have, have under another name, or have in another format than this code reads."
    )
    fixes = [
        advise(
            "Print dataset.column_names (or the first line of the file) and rename the field, or name yours in the "
            f"configuration (text_field, columns, field_messages and the like): the code asks for {field}"
        ),
        advise("The format of data that the instructions of the trainer, or of the chosen dataset type, ask for"),
    ]
    incident = describe_traceback(
        "missing-field",
        IncidentKind.CONFIG,
        OwnComponent.DATA,
        title=f"The data has no field {field}",
        because=because,
        fixes=fixes,
    )
    return MessageCause(incident=incident, line=error.line, package="")


def _explain_dataset(error: LastError) -> MessageCause | None:
    """A loader asks for a row by its number, and what it was given takes other keys."""
    rows = [frame for frame in error.frames if _package(frame) != "pandas"]
    if not rows or not rows[-1].path.endswith(("_utils/fetch.py", "_utils\\fetch.py")):
        return None
    incident = describe_traceback(
        "not-a-dataset",
        IncidentKind.CONFIG,
        OwnComponent.YOUR_CODE,
        title="What was given as dataset cannot be asked for a row by its number",
        because=(
            "torch's loader asks the dataset for rows by their numbers, and gets a KeyError: a dict, a DatasetDict "
            "with its splits, or a DataFrame was given as dataset."
        ),
        fixes=[
            advise("One split: dataset['train']; Dataset.from_pandas(frame) or Dataset.from_dict(columns)"),
            advise("A class of one's own needs __len__, and __getitem__ that takes a number (frame.iloc[number])"),
        ],
    )
    return MessageCause(incident=incident, line=error.line, package="")


def _package(frame: CodeFrame) -> str:
    return next(iter(frame.installed or frame.parts), "")


def _is_lookup(frame: CodeFrame) -> bool:
    package = _package(frame)
    return package in _CONTAINERS and (frame.function in _LOOKS_UP or frame.path.endswith((".pyx", ".pxi")))
