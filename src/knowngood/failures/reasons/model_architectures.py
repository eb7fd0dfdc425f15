"""Why vLLM refuses a model's class, as far as the class and the list of those that it has say. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from knowngood.compat.incident import Fix, Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise

_REFUSED = lazy_pattern(
    r"Model architectures \[(?P<refused>[^\]]{1,200})\] are not supported for now\.?(?P<rest>.{0,20000})", re.DOTALL
)
_NAME = lazy_pattern(r"['\"](?P<name>\w+)['\"]")
_REMOTE_CLASS = lazy_pattern(
    r"Unrecognized configuration class <class '(?P<module>transformers_modules\.[\w.-]*)\.(?P<name>\w+)'> "
    r"for this kind of AutoModel: (?P<auto>\w+)"
)
_WORKS = lazy_pattern(
    r"\bworks? (?:fine |well )?with (?:transformers )?v?(?P<old>\d[\w.]*\w),? but (?:not )?with (?:transformers )?"
    r"v?(?P<new>\d[\w.]*\w)"
)
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
        return replace(
            incident,
            title=f"{name} is the model without its head, which this vLLM does not serve",
            because=(
                f"config.json names {name}: the model was saved without its last layer, as for embeddings "
                f"(sentence-transformers). This vLLM has only {stem}ForCausalLM, which makes text."
            ),
            fix=(
                advise("A newer vLLM, which serves such a model for embeddings (--task embed, --runner pooling later)"),
                advise(f"To make text: save the whole {stem}ForCausalLM, and its name in architectures of config.json"),
            ),
        )
    if _OF_CLASSES.search(name) and f"{stem}ForCausalLM" in has:
        return replace(
            incident,
            title=f"{name} is a classifier or a reward model, which this vLLM does not have for {stem}",
            because=(
                f"This vLLM has {stem}ForCausalLM, which makes text. Classes that give a score came to it later, one "
                "by one."
            ),
            fix=(
                advise("A newer vLLM, which may have the class (its list of models for classification and rewards)"),
                advise("transformers itself, AutoModelForSequenceClassification, which needs no server for a score"),
            ),
        )
    return None


def describe_own_auto_class(incident: Incident, error: LastError) -> Incident | None:
    """The model's own code asks an auto class for one of its parts, in a transformers where that is not registered."""
    stated = _REMOTE_CLASS.search(error.message)
    if stated is None or stated["auto"] != "AutoModelForCausalLM":
        return None
    name, auto = stated["name"], stated["auto"]
    works = _WORKS.search(error.above.decode("utf-8", "replace"))
    because = (
        f"{name} is a class of the model's own code, and {auto} is what such code mostly registers it for. That it is "
        "not there means that the code is of another time than this transformers: it makes a part of itself with an "
        f"auto class, or registers the class, in a way that another release has. "
    )
    because += f"The log says that {works['old']} works, and {works['new']} does not." if works else ""
    fixes = [
        advise("The transformers that the model's config.json names (transformers_version), or that its page asks for"),
        advise("A newer revision of the model's code; or the model's class in transformers, without trust_remote_code"),
    ]
    if works:
        fixes.insert(
            0, Fix(change={"transformers": f"<{works['new']}"}, note="the last with which it works", cost="a pin")
        )
    title = f"The model's own code does not go with this transformers: {name} is not known to {auto}"
    return replace(incident, title=title, because=because.strip(), fix=tuple(fixes))
