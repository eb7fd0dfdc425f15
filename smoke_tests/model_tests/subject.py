"""The model under test: a miniature of a configuration, with the same weights under every setting and precision."""

from __future__ import annotations

import math
from typing import Any

import torch
import transformers

from model_tests import miniature
from model_tests.attention_seam import is_text_attention, replace_attention
from model_tests.pictures import find_pictures
from smoke_tests import model as smoke_model

SHARPER = ("q_proj", "k_proj", "qkv", "query", "key", "c_attn", "q_b_proj", "q_norm", "k_norm", "q_layernorm")
ATTEMPTS = ((True, 2), (False, 2), (False, 4), (False, 16))
"""Miniatures to try: whether the hidden size is free of the heads, and the most heads of keys and values."""
SHARPEST, USUAL = 6.0, 2.25
"""The size of scores from which on they are made smaller, and that of a model which divides by the root of the width.

With a scale of 1 the softmax of random weights has one winner, and half precision keeps no gradient of the others."""
MOST_PARAMETERS = 120_000_000
"""In fp64, with gradients and other models beside it, that many take some 8 GB."""
SEES_LATER = 1e-3
"""The share by which what is predicted may differ when a later token is another: rounding only."""
WITH_IMAGES = ("qwen2_vl",)
"""The model types for which the suite makes images too."""


class ModelProblem(Exception):  # noqa: N818 - an answer, not an error of the suite
    """A configuration of which no miniature can be made; ``kind`` is unknown-model, not-causal, remote-code, broken."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def complete_config(given: dict[str, Any], *, remote_code: str | None = None) -> Any:
    """Return transformers' own object for a configuration, its defaults filled in.

    ``remote_code`` is the folder whose code may run. Raises ``ModelProblem``.
    """
    if remote_code is not None:
        return transformers.AutoConfig.from_pretrained(remote_code, trust_remote_code=True)
    kind = given.get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        version = f"transformers {transformers.__version__}"
        if given.get("auto_map"):
            raise ModelProblem("remote-code", f"{version} has no model_type {kind!r}; its code comes with the model")
        raise ModelProblem("unknown-model", f"{version} knows no model_type {kind!r}")
    fields = {name: value for name, value in given.items() if name not in (*miniature.DROPPED, "model_type")}
    try:
        return transformers.AutoConfig.for_model(kind, **fields)
    except Exception as error:
        raise ModelProblem("broken", f"transformers cannot read the configuration: {_words(error)}") from error


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


class Subject:
    """A miniature with its weights; it builds models of it."""

    def __init__(self, given: dict[str, Any], *, remote_code: str | None = None) -> None:
        self.remote_code = remote_code
        full = complete_config(given, remote_code=remote_code)
        self.notes: list[str] = _unread_rotary(given, full)
        self.full, self.auto = self._choose_class(full)
        full = self.full
        self.widths = miniature.head_widths(_text(full.to_dict()))
        self._make_first_that_runs(full.to_dict())
        self.pictures = find_pictures(self.config)

    def _choose_class(self, full: Any) -> tuple[Any, Any]:
        """The configuration to shrink, and the class that makes a trainable model of it."""
        if getattr(full, "is_encoder_decoder", False):
            raise ModelProblem(
                "not-causal", f"{full.model_type!r} has an encoder and a decoder; only causal models are tried"
            )
        auto = _auto_class(full, self.remote_code)
        text = full.get_text_config()
        if text is full or full.model_type in WITH_IMAGES or self.remote_code is not None:
            return full, auto
        alone = transformers.AutoModelForCausalLM
        if auto is not alone or type(text) in alone._model_mapping:
            self.notes.append(f"only the text part ({text.model_type}) is tried, without images")
            return text, _auto_class(text, self.remote_code)
        return full, auto

    def _make_first_that_runs(self, full: dict[str, Any]) -> None:
        """Make the smallest miniature that the model's class runs: some take no ``head_dim``, or not two heads."""
        for free_width, heads in ATTEMPTS:
            problem = self._try_to_make(full, free_width=free_width, heads=heads)
            if problem is None:
                return
        raise ModelProblem("broken", f"the miniature does not build: {_words(problem)}") from problem

    def _try_to_make(self, full: dict[str, Any], *, free_width: bool, heads: int) -> Exception | None:
        """Return why there is no such miniature; a class that cannot take a size says so in any way."""
        try:
            self._make(full, free_width=free_width, heads=heads)
        except ModelProblem:
            raise
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def _make(self, full: dict[str, Any], *, free_width: bool, heads: int) -> None:
        """Shrink, build and fill, and see that a step of the model is causal and has heads of the real width."""
        self.made = miniature.shrink(full, free_width=free_width, heads=heads)
        self.__dict__.pop("weights", None)
        size = self._count_parameters()
        if size > MOST_PARAMETERS:
            text = f"the miniature has {size / 1e9:.1f} billion parameters, of which no field known here makes fewer"
            raise ModelProblem("broken", text)
        model = self.build("eager", torch.float32, torch.device("cpu"))
        fill(model)
        widths, scores = _run_few_tokens(model)
        if scores > SHARPEST:
            _soften(model, scores)
        if free_width and self.widths and widths - self.widths:
            raise ValueError(f"heads are {sorted(widths)} wide, the configuration says {sorted(self.widths)}")
        self.weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def _count_parameters(self) -> int:
        """The miniature's parameters, before any is made; 0 where the class cannot be asked."""
        try:
            with torch.device("meta"):
                empty = self.build("eager", torch.float32, torch.device("meta"))
        except Exception:  # noqa: BLE001 - a class that computes with its own values on the way says so in any way
            return 0
        return sum(parameter.numel() for parameter in empty.parameters())

    @property
    def config(self) -> Any:
        """A fresh configuration object of the miniature, as a user's program would load it."""
        fields = {name: value for name, value in self.made.config.items() if name != "model_type"}
        made = type(self.full)(**fields)
        if self.remote_code is not None:
            # Where transformers looks for the model's class; the miniature's fields leave both out.
            made.auto_map, made.name_or_path = self.full.auto_map, self.remote_code
        return made

    def build(self, implementation: str, dtype: torch.dtype, device: torch.device, **named: Any) -> Any:
        """Build the model as a user does, and give it the miniature's weights."""
        if self.remote_code is not None:
            named["trust_remote_code"] = True
        built = self.auto.from_config(
            self.config, attn_implementation=implementation, **{smoke_model._dtype_argument(): dtype}, **named
        )
        if hasattr(self, "weights"):
            built.load_state_dict({name: value.to(dtype) for name, value in self.weights.items()}, strict=False)
        return built.to(device=device, dtype=dtype)


def _text(config: dict[str, Any]) -> dict[str, Any]:
    return config["text_config"] if isinstance(config.get("text_config"), dict) else config


def _auto_class(config: Any, remote_code: str | None) -> Any:
    """The class that makes a trainable model: of text alone, or of text and images."""
    if remote_code is not None or type(config) in transformers.AutoModelForCausalLM._model_mapping:
        return transformers.AutoModelForCausalLM
    both = transformers.AutoModelForImageTextToText
    if type(config) in both._model_mapping or config.get_text_config() is not config:
        return both
    raise ModelProblem(
        "not-causal",
        f"transformers {transformers.__version__} has no causal language model of model_type {config.model_type!r};"
        " a vision or encoder model has no attention that this suite tries",
    )


def _unread_rotary(given: dict[str, Any], full: Any) -> list[str]:
    """Say when a configuration written by transformers 5 meets a transformers that does not read its rotary part."""
    if given.get("rope_parameters") and int(transformers.__version__.split(".")[0]) < 5:
        used = f"rope_theta {getattr(full, 'rope_theta', None)} and rope_scaling {getattr(full, 'rope_scaling', None)}"
        return [f"transformers {transformers.__version__} does not read rope_parameters, and computes with {used}"]
    return []


def _run_few_tokens(model: Any) -> tuple[set[int], float]:
    """Run three tokens through the model; return the widths of the heads that call attention, and their largest scores.

    Raises ``ModelProblem`` where a token changes what is predicted before it.
    """
    seen: set[int] = set()
    sizes = [0.0]

    def wrap(function: Any) -> Any:
        def look(module: Any, query: Any, key: Any, *rest: Any, **named: Any) -> Any:
            if is_text_attention(module):
                width = query.shape[-1]
                seen.add(width)
                scale = named.get("scaling") or width**-0.5
                sizes.append(query.float().norm(dim=-1).mean().item() * key.float().norm(dim=-1).mean().item())
                sizes[-1] *= scale * width**-0.5  # what random directions leave of it
            return function(module, query, key, *rest, **named)

        return look

    model.eval()  # some mixtures of experts draw noise in training
    with replace_attention(model, "eager", wrap), torch.no_grad():
        one, other = (
            model(input_ids=torch.tensor([[1, 2, last]]), use_cache=False).logits[0, :2].float() for last in (3, 4)
        )
    if (one - other).norm() > SEES_LATER * one.norm():
        said = (
            " (its configuration says is_decoder: false)" if getattr(model.config, "is_decoder", True) is False else ""
        )
        kind = model.config.model_type
        raise ModelProblem("not-causal", f"{kind!r} is no causal model{said}: its tokens see those after them")
    return seen, max(sizes)


def _soften(model: Any, scores: float) -> None:
    """Make queries and keys smaller, or the norms behind them, until scores have a usual size."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in SHARPER):
                parameter.mul_((USUAL / scores) ** 0.5)


def fill(model: torch.nn.Module) -> None:
    """Set every parameter from a seed and its own name, as the smoke suite does, for any architecture.

    A vector that starts constant (the weight of a norm, a bias) keeps its value with noise on it; a matrix is drawn
    anew, those that make queries and keys larger, so that attention is far from uniform.
    """
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(smoke_model.SEED + sum(map(ord, name)))
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            sharper = 1.5 if any(part in name for part in SHARPER) else 1.0
            if name.endswith("A_log"):
                value = torch.log(1 + 7 * noise.abs())
            elif parameter.dim() < 2:
                first = parameter.detach().float().flatten()
                constant = first[0].item() if first.numel() and bool((first == first[0]).all()) else 0.0
                spread = 0.1 if constant else 0.2
                value = constant * sharper + (1.0 if name.endswith("sinks") else spread) * noise
            elif "embed" in name and parameter.dim() == 2:
                value = noise / (math.sqrt(parameter.shape[-1]) if tied else 1.0)
            else:
                fan_in = parameter.shape[-1] if parameter.dim() == 2 else sum(parameter.shape[1:3]) / 2
                value = sharper * noise / math.sqrt(fan_in)
            parameter.copy_(value)
