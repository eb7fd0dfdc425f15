"""Whom a traceback blames: the code that asks, not the container, the pool or the package that is only in between."""

from __future__ import annotations

SITE = "/opt/conda/lib/python3.10/site-packages"


def traceback(*frames: tuple[str, str, str], error: str) -> str:
    lines = [f'  File "{path}", line 7, in {function}\n    {code}' for path, function, code in frames]
    return "\n".join(["Traceback (most recent call last):", *lines, error, ""])


def test_a_folder_of_the_project_that_is_called_datasets_is_not_the_package(first_match):
    log = traceback(
        ("/home/u/project/datasets/own_reader.py", "__init__", "self.count = int(next(reader))"),
        error="ValueError: invalid literal for int() with base 10: 'a.png'",
    )
    assert first_match(log)["component"] == "your-code"


def test_an_error_that_a_pool_raises_again_is_that_of_its_process(first_match):
    inner = traceback(("/home/u/project/preprocess.py", "encode", "text = data[key]"), error="KeyError: 'text'")
    outer = traceback(
        ("/home/u/project/preprocess.py", "<module>", "main()"),
        ("/usr/lib/python3.10/multiprocessing/pool.py", "next", "raise value"),
        error="KeyError: 'text'",
    )
    log = f'"""\n{inner}"""\n\nThe above exception was the direct cause of the following exception:\n\n{outer}'
    match = first_match(log)
    assert match["component"] == "your-code"
    assert "encode" in match["because"] or "text = data[key]" in match["because"]


def test_a_launchers_line_does_not_hide_the_error_before_it(first_match):
    log = traceback(
        (f"{SITE}/trl/scripts/grpo.py", "main", "reward_funcs=reward_model,"),
        error="UnboundLocalError: cannot access local variable 'reward_model'",
    ) + traceback(
        (f"{SITE}/accelerate/commands/launch.py", "launch", "raise subprocess.CalledProcessError(1)"),
        error="subprocess.CalledProcessError: Command 'grpo.py' returned non-zero exit status 1.",
    )
    assert first_match(log)["component"] == "trl"


def test_the_rank_before_each_line_does_not_hide_what_raises(first_match):
    log = traceback(
        ("/home/u/project/train.py", "main", "assert steps % world_size == 0"), error="AssertionError"
    ).replace("\n", "\n[rank0]: ")
    match = first_match(log)
    assert match["component"] == "your-code"
    assert "steps % world_size" in match["title"]


def test_an_option_of_from_pretrained_that_reaches_the_model_is_laid_to_transformers(first_match):
    log = traceback(
        ("/home/u/project/train.py", "main", "model = CLIPTextModel.from_pretrained(name, variant='fp16')"),
        (
            f"{SITE}/transformers/modeling_utils.py",
            "from_pretrained",
            "model = cls(config, *model_args, **model_kwargs)",
        ),
        error="TypeError: __init__() got an unexpected keyword argument 'variant'",
    )
    assert first_match(log)["component"] == "transformers"


def test_what_the_source_quotes_is_not_where_the_error_is_said(first_match):
    log = traceback(
        ("/home/u/project/recipe.py", "convert", "if model.own_part is None:"),
        (
            f"{SITE}/torch/nn/modules/module.py",
            "__getattr__",
            "raise AttributeError(f\"'{type(self).__name__}' object has no attribute '{name}'\")",
        ),
        error="AttributeError: 'OwnForConditionalGeneration' object has no attribute 'own_part'",
    )
    match = first_match(log)
    assert match["component"] == "your-code"
    assert "own_part" in match["title"]
