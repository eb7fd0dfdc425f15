"""Modules and names that are not there: whose they are, where they went, and which package installs them."""

from __future__ import annotations

import pytest

TRACEBACK = 'Traceback (most recent call last):\n  File "{file}", line 13, in <module>\n    {code}\n{error}\n'
PACKAGES = "/usr/local/lib/python3.11/site-packages"


@pytest.fixture
def ask(first_match):
    def diagnose(file: str, code: str, error: str):
        return first_match(TRACEBACK.format(file=file, code=code, error=error))

    return diagnose


def notes(match):
    return " ".join(fix["note"] for fix in match["fix"])


@pytest.mark.parametrize(
    ("code", "module", "package"),
    [
        ("from google.protobuf import descriptor as _descriptor", "google", "protobuf"),
        ("import cv2", "cv2", "opencv-python"),
        ("from PIL import Image", "PIL", "pillow"),
        ("from bs4 import BeautifulSoup", "bs4", "beautifulsoup4"),
        ("import sklearn.metrics", "sklearn", "scikit-learn"),
    ],
)
def test_the_package_of_a_module_is_told_by_the_files_of_its_wheel(ask, code, module, package):
    match = ask(f"{PACKAGES}/thing/part.py", code, f"ModuleNotFoundError: No module named '{module}'")
    assert match["component"] == package
    assert f"pip install {package}" in notes(match)


def test_a_part_of_a_shared_folder_that_is_not_installed_is_named(ask):
    error = "ModuleNotFoundError: No module named 'google.protobuf'"
    match = ask(f"{PACKAGES}/thing/part.py", "from google.protobuf import descriptor", error)
    assert (match["component"], match["kind"]) == ("protobuf", "not-installed")


def test_a_file_of_the_package_itself_is_not_offered_as_a_package(ask):
    match = ask(
        f"{PACKAGES}/tuning/sft_trainer.py",
        "from aim_loader import get_aimstack_callback",
        "ModuleNotFoundError: No module named 'aim_loader'",
    )
    assert (match["component"], match["certainty"]) == ("tuning", "likely")
    assert "from tuning.aim_loader import" in notes(match)


def test_a_module_with_a_submodule_of_its_name_is_a_package(ask):
    error = "ModuleNotFoundError: No module named 'rouge_score'"
    match = ask(f"{PACKAGES}/thing/a.py", "from rouge_score import rouge_scorer", error)
    assert (match["component"], match["certainty"]) == ("rouge_score", "likely")


def test_a_folder_that_the_traceback_shows_is_the_projects(ask):
    match = ask(
        "/home/u/repo/prismatic/vla/action.py",
        "from prismatic.vla.constants import NUM",
        "ModuleNotFoundError: No module named 'prismatic'",
    )
    assert match["component"] == "your-code"
    assert "PYTHONPATH=/home/u/repo" in notes(match)


def test_a_package_that_the_index_has_only_by_name_comes_from_its_repository(ask):
    match = ask("/home/u/run.py", "from apex import amp", "ModuleNotFoundError: No module named 'apex'")
    assert match["component"] == "apex"
    assert "git+https://github.com/NVIDIA/apex" in notes(match)
    assert "pip install apex)" in notes(match)  # as what not to do


def test_a_worker_of_ray_has_an_environment_of_its_own(first_match):
    match = first_match(
        f'  File "{PACKAGES}/ray/_private/worker.py", line 861, in get_objects\n    raise value.as_instanceof_cause()\n'
        "ray.exceptions.RayTaskError(ModuleNotFoundError): ray::Actor.fit() (pid=59379, ip=0.0.0.0)\n"
        f'  File "{PACKAGES}/openrlhf/trainer/ray/ppo_actor.py", line 85, in __init__\n    import vllm\n'
        "ModuleNotFoundError: No module named 'vllm'\n"
    )
    assert match["component"] == "vllm"
    assert "runtime-env" in notes(match)


def test_a_moved_module_is_named_with_its_new_place_and_an_older_release(ask):
    match = ask(
        f"{PACKAGES}/simpletransformers/model.py",
        "from transformers.models.mmbt.configuration_mmbt import MMBTConfig",
        "ModuleNotFoundError: No module named 'transformers.models.mmbt'",
    )
    assert "transformers.models.deprecated.mmbt" in match["title"]
    assert "An older transformers" in notes(match)
    assert "mamba" not in str(match)


def test_releases_that_the_python_of_the_log_cannot_have_are_no_cause(first_match):
    match = first_match(
        "Traceback (most recent call last):\n"
        '  File "<stdin>", line 1, in <module>\n'
        "ImportError: cannot import name 'glue_compute_metrics' from 'transformers' "
        "(/opt/conda/lib/python3.7/site-packages/transformers/__init__.py)\n"
    )
    assert match["kind"] == "api-not-yet"
    assert "3.7" in match["because"]
    assert match["fix"][0]["change"] == {"scikit-learn": "*", "scipy": "*"}


def test_what_a_package_asks_only_where_another_is_installed_ends_without_that(ask):
    match = ask(
        f"{PACKAGES}/transformers/trainer.py",
        "from apex import amp",
        f"ImportError: cannot import name 'amp' from 'apex' ({PACKAGES}/apex/__init__.py)",
    )
    assert {"transformers": ">=4.53.0"} in [fix.get("change") for fix in match["fix"]]
    assert "pip uninstall apex" in notes(match)


def test_a_patched_forward_is_the_projects_and_not_the_packages(first_match):
    match = first_match(
        "Traceback (most recent call last):\n"
        f'  File "{PACKAGES}/transformers/models/llama/modeling_llama.py", line 292, in forward\n'
        "    hidden_states, self_attn_weights, present_key_value = self.self_attn(\n"
        f'  File "{PACKAGES}/torch/nn/modules/module.py", line 1501, in _call_impl\n'
        "    return forward_call(*args, **kwargs)\n"
        "TypeError: forward() got an unexpected keyword argument 'position_ids'\n"
    )
    assert (match["component"], match["certainty"]) == ("your-code", "likely")
    assert "patched forward of transformers's LlamaAttention" in match["title"]


@pytest.mark.parametrize(
    ("file", "code", "module", "words"),
    [
        ("PointDA/trainer.py", "import utils.log", "utils", "in PointDA"),
        ("./scripts/train.py", "from attic_util.time_benchmark import Benchmark", "attic_util", "in scripts"),
        ("/app/launch.py", "from build.utils import process", "build", "names? that projects give|a name that"),
    ],
)
def test_a_folder_of_the_project_is_not_offered_as_a_package(ask, file, code, module, words):
    match = ask(file, code, f"ModuleNotFoundError: No module named '{module}'")
    assert match["component"] == "your-code"
    assert any(word in match["because"] for word in words.split("|"))
    assert not any(fix.get("change") for fix in match["fix"])


def test_an_error_that_is_repeated_is_read_where_its_traceback_is(first_match):
    match = first_match(
        "ray.exceptions.RaySystemError: System error: No module named 'env'\ntraceback: Traceback (most recent call "
        f'last):\n  File "{PACKAGES}/ray/_private/serialization.py", line 340, in deserialize_objects\n'
        "    obj = self._deserialize_object(data, metadata, object_ref)\nModuleNotFoundError: No module named 'env'\n"
    )
    assert match["component"] == "your-code"
    assert "working_dir" in notes(match)


@pytest.mark.parametrize("prefix", ["", '  File "a.py", line 1, in <module>\n    main()\n'])
def test_a_model_that_derives_from_an_older_one_names_the_release_that_passes_less(first_match, prefix):
    match = first_match(
        f"{prefix}TypeError: LlavaLlamaForCausalLM.forward() got an unexpected keyword argument 'cache_position'\n"
    )
    assert match["component"] == "your-code"
    assert {"transformers": "<4.38.0"} in [fix.get("change") for fix in match["fix"]]


def test_another_class_of_the_module_had_the_attribute(first_match):
    match = first_match("AttributeError: 'FieldInfo' object has no attribute 'required'\n")
    assert match["component"] == "pydantic"
    assert {"pydantic": "<=1.10.27"} in [fix.get("change") for fix in match["fix"]]


def test_the_last_line_of_a_kernel_is_compared_with_triton(first_match):
    match = first_match(
        "Traceback (most recent call last):\n"
        f'  File "{PACKAGES}/triton/compiler/compiler.py", line 113, in make_ir\n'
        "    return ast_to_ttir(self.fn, self, context=context)\n"
        "triton.compiler.errors.CompilationError: at 114:14:\n"
        "        qk = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)\n        qk += tl.dot(q, k, trans_b=True)\n"
    )
    assert "trans_b of tl.dot" in match["title"]


def test_a_package_whose_own_file_asks_for_what_is_not_there_is_mixed(ask):
    match = ask(
        f"{PACKAGES}/transformers/file_utils.py",
        'return importlib.import_module("." + module_name, self.__name__)',
        "ModuleNotFoundError: No module named 'transformers.models.bort'",
    )
    assert match["component"] == "transformers"
    assert "files are of two releases" in match["title"]
