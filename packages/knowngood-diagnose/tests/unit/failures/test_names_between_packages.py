"""Errors about names between packages: whose name it is, which release runs, and what is only a warning."""

from __future__ import annotations

BEGIN = "Traceback (most recent call last):\n"
PACKAGES = "/opt/conda/lib/python3.10/site-packages"
OWN = '  File "/home/u/project/train.py", line 51, in main\n'


def test_a_release_in_which_something_was_deprecated_is_not_the_one_that_runs(answer):
    log = (
        f"{BEGIN}{OWN}    tmp = [np.float(i) for i in line.split()]\n"
        f'  File "{PACKAGES}/numpy/__init__.py", line 305, in __getattr__\n'
        "    raise AttributeError(__former_attrs__[attr])\n"
        "AttributeError: module 'numpy' has no attribute 'float'.\n"
        "The aliases was originally deprecated in NumPy 1.20; for more details and guidance see the release note\n"
    )
    found = answer(log)
    assert "numpy" not in found["versions"]
    assert found["matches"][0]["incident"] == "numpy-aliases-gone"


def test_an_error_that_a_warning_quotes_in_its_next_line_is_no_failure(answer):
    log = (
        f"(pid=8) {PACKAGES}/vllm/connections.py:8: RuntimeWarning: Failed to read commit hash:\n(pid=8) No module "
        "named 'vllm._version'\n(pid=8)   from vllm.version import __version__ as VLLM_VERSION\nstep 1 loss 0.33\n"
    )
    assert answer(log)["outcome"] == "no-failure"


def test_an_error_that_comes_only_with_what_is_not_used_is_no_failure(answer):
    log = (
        "[INFO:swift] No vLLM installed, if you are using vLLM, you will get "
        "`ImportError: cannot import name 'get_vllm_engine' from 'swift.llm'`\n"
        "Train:   1%|          | 1/100 [00:03<05:00,  3.03s/it]\n{'loss': 0.4}\n"
    )
    assert answer(log)["outcome"] == "no-failure"


def test_a_script_with_the_name_of_a_package_hides_it(first_match):
    match = first_match(
        f'{BEGIN}  File "{PACKAGES}/ctranslate2/converters/transformers.py", line 449, in <module>\n    main()\n'
        f'  File "{PACKAGES}/ctranslate2/converters/transformers.py", line 51, in _load\n'
        "    config = transformers.AutoConfig.from_pretrained(self._model_name_or_path)\n"
        "AttributeError: module 'transformers' has no attribute 'AutoConfig'\n- transformers: 4.21.0\n"
    )
    assert (match["component"], match["kind"]) == ("your-code", "shadowed")


def test_a_method_of_a_class_that_moved_within_its_package_is_in_every_release(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    unet.enable_gradient_checkpointing()\n"
        f'  File "{PACKAGES}/torch/nn/modules/module.py", line 1207, in __getattr__\n'
        "    raise AttributeError(\"'{}' object has no attribute '{}'\".format(\n"
        "AttributeError: 'UNet2DConditionModel' object has no attribute 'enable_gradient_checkpointing'\n"
    )
    assert (match["component"], match["kind"]) == ("diffusers", "api-not-yet")


def test_what_moved_within_its_package_is_named_first_where_it_was_before(first_match):
    match = first_match("ImportError: cannot import name 'FlexibleArgumentParser' from 'vllm.utils'\n")
    assert "vllm.utils.argparse_utils.FlexibleArgumentParser" in match["fix"][0]["note"]
    module = first_match(
        f"{BEGIN}{OWN}    unet: diffusers.models.unet_2d_condition.UNet2DConditionModel\n"
        "AttributeError: module diffusers.models has no attribute unet_2d_condition.\n"
    )
    assert "diffusers.models.unets.unet_2d_condition" in module["fix"][0]["note"]


def test_a_module_in_whose_place_a_plugin_may_have_put_an_empty_one_is_only_likely_hidden(first_match):
    log = "ModuleNotFoundError: No module named '{0}.ops'; '{0}' is not a package\n"
    assert first_match(log.format("flash_attn"))["certainty"] == "likely"
    assert first_match(log.format("transformers"))["certainty"] == "sure"


def test_a_package_that_asks_an_unread_one_is_of_another_time(first_match):
    match = first_match(
        f'{BEGIN}  File "{PACKAGES}/transformers/activations_tf.py", line 53, in <module>\n'
        '    "swish": tf.keras.activations.swish,\n'
        "AttributeError: module 'tensorflow_core.python.keras.api._v2.keras.activations' has no attribute 'swish'\n"
    )
    assert match["component"] == "transformers"


def test_an_error_about_a_name_counts_without_its_class(first_match):
    match = first_match(
        f'{BEGIN}  File "{PACKAGES}/sglang/srt/entrypoints/engine.py", line 42, in <module>\n'
        "    from sglang.srt.managers.data_parallel_controller import (\n"
        "cannot import name 'awq_dequantize' from 'sgl_kernel'\n"
    )
    assert match["component"] == "sglang"


def test_a_call_with_a_keyword_that_is_gone_names_the_last_release_that_has_it(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    self.accelerator = Accelerator(\n"
        "TypeError: Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches'\n"
    )
    assert "until 0.34.2" in match["because"]


def test_a_cached_data_set_in_the_place_of_the_hub_s_is_no_failure(answer):
    log = "Using the latest cached version of x since it couldn't be found on the Hub\nloss: 0.4\n"
    assert answer(log)["outcome"] == "no-failure"


def test_a_demand_in_words_names_the_release(first_match):
    match = first_match("ValueError: Using torch.compile requires PyTorch 2.0 or higher\ntorch == 1.12.1\n")
    assert (match["component"], "torch>=2.0" in match["title"]) == ("torch", True)
