"""The conditions of use that a query states (`--with dtype=bf16`), checked and in the form in which rules ask for them.

Which keys and values there are follows from the rules and incidents; only what no rule can say is written here: other
spellings, values under which no rule holds, and the names of models. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from knowngood.core.attention import parse_attention
from knowngood.core.errors import UsageError
from knowngood.core.gpus import UncoveredGpuError
from knowngood_facts.compat.query import DEFAULT_MACHINE, MACHINE, Query
from knowngood_facts.compat.universe import Universe

_OTHER_KEYS = {"attn-implementation": "attn", "attention": "attn", "torch-dtype": "dtype", "precision": "dtype"}
"""Other names of keys, with hyphens."""

_OTHER_VALUES: Mapping[str, Mapping[str, str]] = {
    "dtype": {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
    | {"float64": "fp64", "double": "fp64", "bf16-pure": "bf16", "pure-bf16": "bf16", "pure-fp16": "fp16-pure"},
    "weights": {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
    "weights-file": {"pickle": "bin", "pytorch-model.bin": "bin", "model.safetensors": "safetensors"},
    "cp_comm_type": {"all-gather": "all_gather"},
    MACHINE: {"arm64": "aarch64", "amd64": DEFAULT_MACHINE, "x86-64": DEFAULT_MACHINE},
}
"""Key -> other spelling of a value -> the value."""

_VALUES_WITHOUT_RULE: Mapping[str, tuple[str, ...]] = {
    "weights": ("bf16", "fp16"),
    "weights-file": ("safetensors",),
    "padding": ("left",),
    "lengths": ("equal",),
    "cp_comm_type": ("p2p", "a2a", "a2a+p2p"),
    "labels": ("completions",),
    "llamafactory.flash_attn": ("auto", "disabled", "sdpa"),
    MACHINE: (DEFAULT_MACHINE,),
}
"""Key -> values that exist and under which no rule holds."""

_FRACTIONS = frozenset({"dropout"})
"""The numeric keys whose value is between 0 and 1; the others are whole numbers."""

_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})

_MODELS = (
    ("distill-qwen", "qwen2"),
    ("distill-llama", "llama"),
    ("qwen-?2-?vl", "qwen2-vl"),
    ("qwen-?2[.-]5-?vl", "qwen2-5-vl"),
    ("qwen-?2(?:[.-]5)?-?audio", "qwen2-audio"),
    ("qwen-?2[.-]5-?omni", "qwen2-5-omni"),
    ("qwen-?(?:1[.]5|2)-?(?:.*-)?(?:moe|a[0-9]+)", "qwen2-moe"),
    ("(?:qwen-?(?:1[.]5|2|2[.-]5)|qwq)(?![0-9.])", "qwen2"),
    ("qwen-?3-?vl", "qwen3-vl"),
    ("qwen-?3-?next", "qwen3-next"),
    ("qwen-?3[.-]5(?![0-9])", "qwen3-5"),
    ("qwen-?3-?(?:.*-)?(?:moe|a[0-9]+)", "qwen3-moe"),
    ("qwen-?3(?![0-9.])", "qwen3"),
    ("qwen(?![0-9.]|-?[0-9][.])", "qwen"),
    ("(?:meta-)?llama-?4", "llama4"),
    ("smollm-?3", "smollm3"),
    ("(?:meta-|code|tiny)?-?llama|vicuna|smollm|yi-", "llama"),
    ("mixtral", "mixtral"),
    ("mistral|ministral|zephyr", "mistral"),
    ("gemma-?4", "gemma4"),
    ("gemma-?3n", "gemma3n"),
    ("gemma-?3", "gemma3"),
    ("gemma-?2", "gemma2"),
    ("gemma", "gemma"),
    ("phi-?[34]", "phi3"),
    ("phi", "phi"),
    ("internlm-?3", "internlm3"),
    ("internlm-?2", "internlm2"),
    ("internlm", "internlm"),
    ("deepseek-?(?:v3|r1)", "deepseek-v3"),
    ("deepseek-?v2", "deepseek-v2"),
    ("command-r|cohere|aya", "cohere"),
    ("glm-?4(?:[.-][0-9])?-?moe", "glm4-moe"),
    ("glm-?4(?![0-9.])", "glm4"),
    ("chatglm|glm", "glm"),
    ("gpt-?oss", "gpt-oss"),
    ("gpt-?2", "gpt2"),
    ("gpt-?neox|pythia", "gpt-neox"),
    ("baichuan", "baichuan"),
    ("falcon-?h1", "falcon-h1"),
    ("falcon-?mamba", "falcon-mamba"),
    ("falcon", "falcon"),
    ("granite-?moe-?hybrid", "granitemoehybrid"),
    ("granite$", "granite"),
    ("olmo-?3", "olmo3"),
    ("olmo-?2", "olmo2"),
    ("olmoe", "olmoe"),
    ("olmo", "olmo"),
    ("bloom", "bloom"),
    ("lfm-?2(?:[.-]?5)?(?:-[0-9.]+b)?-(?:moe|[0-9]*b?-?a[0-9]+)", "lfm2-moe"),
    ("lfm-?2", "lfm2"),
    ("hunyuan-?(?:.*-)?(?:moe|a[0-9]+)", "hunyuan-v1-moe"),
    ("opt-?[0-9.]", "opt"),
    ("starcoder-?2", "starcoder2"),
    ("(?:distil|ro|mod|modern)?berta?(?![a-z])", "bert"),
    ("(?:flan-|m)?t5", "t5"),
)
"""The beginning of a model's name or class, in lower case and with hyphens -> its architecture; the first counts."""


@dataclass(frozen=True, kw_only=True)
class ConditionForm:
    """What the value of a condition of use may be, as far as rules say."""

    names: tuple[str, ...] = ()
    """The values that rules and incidents name."""
    boolean: bool = False
    number: bool = False
    open: bool = False
    """Some rule holds for all values but one, so that there are values which no rule names."""


@dataclass(frozen=True, kw_only=True)
class SettledQuery:
    """A query whose conditions of use are in the form in which rules ask for them."""

    query: Query
    notes: tuple[str, ...] = field(default_factory=tuple)
    """What could not be used of the conditions, and why."""


def settle_query(universe: Universe, query: Query) -> SettledQuery:
    """Return the query with normalized conditions of use; `attn` among them is the attention setting.

    A GPU whose host has a CPU of Arm states the machine. A key that no rule asks about, and a model whose architecture
    its name does not say, are left out with a note.

    Raises:
        UsageError: a value is none that its key can have; the text has the nearest.
    """
    if _has_arm_host(universe, query):
        query = replace(query, conditions={MACHINE: "aarch64", **query.conditions})
    if not query.conditions:
        return SettledQuery(query=query)
    forms: Mapping[str, ConditionForm] = universe.cached("condition forms", lambda: condition_forms(universe))
    keys = {key.replace("_", "-"): key for key in forms} | _OTHER_KEYS
    attn, notes, conditions = query.attn, list[str](), dict[str, str]()
    for written, value in query.conditions.items():
        key = keys.get(written.strip().lower().replace("_", "-"), written)
        if key == "attn":
            attn = _one_attention(attn, value)
        elif key not in forms:
            near = difflib.get_close_matches(key, forms, 1)
            notes.append(f"no rule asks about {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        elif key == "model":
            types = universe.model_types()
            model = parse_model(value, (*universe.models, *(types.releases if types is not None else ())))
            if model is None:
                notes.append(
                    f"the name {value!r} does not say the model's architecture, so rules about models are left open; "
                    f"name the architecture, as in model=qwen2"
                )
            else:
                conditions[key] = model
        else:
            conditions[key] = _parse_value(key, value, forms[key])
    return SettledQuery(query=replace(query, attn=attn, conditions=conditions), notes=tuple(notes))


def _has_arm_host(universe: Universe, query: Query) -> bool:
    try:
        return query.gpu is not None and universe.gpus.has_arm_host(query.gpu)
    except UncoveredGpuError:
        return False


def _one_attention(stated: str | None, value: str) -> str:
    setting = parse_attention(value)
    if stated not in (None, setting):
        raise UsageError(f"the attention setting is stated twice: {stated} and {setting}; state one")
    return setting


def condition_forms(universe: Universe) -> dict[str, ConditionForm]:
    """Return the form of each condition of use that a rule or an incident asks about."""
    texts: dict[str, dict[str, None]] = {key: {} for key in sorted(universe.conditions)}
    for rule in universe.rules:
        for key, text in (*rule.given.items(), *rule.unless.items()):
            texts[key][text.strip().lower()] = None
    return {key: _condition_form(key, list(conditions)) for key, conditions in texts.items()}


def _condition_form(key: str, texts: list[str]) -> ConditionForm:
    numbers = [text for text in texts if text[:1] in "<>=~" or text.startswith("!=")]
    named = [text.removeprefix("!") for text in texts if text not in numbers]
    names = {_OTHER_VALUES.get(key, {}).get(name, name) for text in named for name in map(str.strip, text.split("|"))}
    return ConditionForm(
        names=tuple(sorted({*names, *_VALUES_WITHOUT_RULE.get(key, ())} - {"true", "false"})),
        boolean=bool(names & {"true", "false"}),
        number=bool(numbers),
        open=any(text.startswith("!") for text in texts if text not in numbers),
    )


def _parse_value(key: str, text: str, form: ConditionForm) -> str:
    """Return a value in the form in which rules ask for it; raises `UsageError` with the values that there are."""
    value = text.strip().lower()
    if form.number:
        return _parse_number(key, value)
    if form.boolean and value in _TRUE | _FALSE:
        return "true" if value in _TRUE else "false"
    value = value.removeprefix("torch.")
    spellings = {**{name.replace("_", "-"): name for name in form.names}, **_OTHER_VALUES.get(key, {})}
    value = spellings.get(value.replace("_", "-"), value)
    if value in form.names:
        return value
    legal = [*form.names, *(["true", "false"] if form.boolean else [])]
    near = difflib.get_close_matches(value, [*legal, *spellings], 1, 0.8 if form.open else 0)
    if form.open and not near:
        return value
    nearest = spellings.get(near[0], near[0])
    raise UsageError(f"{key}={text}: {key} cannot be {text!r}; the nearest is {nearest} (known: {', '.join(legal)})")


def _parse_number(key: str, text: str) -> str:
    if key in _FRACTIONS:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number <= 1:
            raise UsageError(f"{key}={text}: {key} is a number from 0 to 1, as in {key}=0.1")
        return f"{number:.9f}".rstrip("0").rstrip(".")
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(f"{key}={text}: {key} is a whole number, as in {key}=2")
    return str(int(text))


def parse_model(text: str, known: Iterable[str] = ()) -> str | None:
    """Return the architecture of a model, such as `qwen2` for `Qwen/Qwen2.5-7B`, `qwen2.5` or `Qwen2ForCausalLM`.

    `known` are further architectures that have a name of their own. The result is `None` when the name does not say
    it. Raises `UsageError` for a misspelled architecture.
    """
    name = text.strip().rstrip("/").rpartition("/")[2].lower().replace("_", "-").replace(" ", "-")
    name = re.sub("(?:for[a-z]+|model|config)$", "", name)
    names = (*dict.fromkeys(model for _, model in _MODELS), *known)
    if name.removesuffix("-text") in names:
        return name.removesuffix("-text")
    for pattern, model in _MODELS:
        if re.match(pattern if not pattern.startswith("distill") else f".*{pattern}", name):
            return model
    near = difflib.get_close_matches(name, names, 1, 0.8)
    if near and "/" not in text:
        raise UsageError(f"model={text}: there is no model {text!r} in the rules; the nearest is {near[0]}")
    return None
