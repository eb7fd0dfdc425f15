"""Errors about names between packages: whose name it is, which release runs, and what is only a warning."""

from __future__ import annotations

import pytest

BEGIN = "Traceback (most recent call last):\n"
PACKAGES = "/opt/conda/lib/python3.10/site-packages"
OWN = '  File "/home/u/project/train.py", line 51, in main\n'


def notes(match):
    return " ".join(fix["note"] for fix in match["fix"])


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


def test_an_attribute_that_another_step_of_the_package_sets_is_not_of_an_older_release(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    accelerator.end_training()\n"
        f'  File "{PACKAGES}/accelerate/accelerator.py", line 2499, in end_training\n'
        "    for tracker in self.trackers:\n"
        "AttributeError: 'Accelerator' object has no attribute 'trackers'\n"
    )
    assert "did not set its own `trackers`" in match["title"]
    assert "Call first what sets trackers" in notes(match)


GETATTRIBUTE = (
    f'  File "{PACKAGES}/transformers/configuration_utils.py", line 164, in __getattribute__\n'
    "    return super().__getattribute__(key)\n"
)


def test_settings_of_generation_are_gone_from_configurations_since_transformers_5(first_match):
    match = first_match(
        f'{BEGIN}  File "{PACKAGES}/amrlib/models/parse_xfm/inference.py", line 46, in __init__\n'
        f"    if self.model.config.no_repeat_ngram_size != 0:\n{GETATTRIBUTE}"
        "AttributeError: 'BartConfig' object has no attribute 'no_repeat_ngram_size'\n"
    )
    assert match["component"] == "amrlib"
    assert match["fix"][0]["install"] == 'pip install "transformers==4.57.6"'
    assert "model.generation_config.no_repeat_ngram_size" in notes(match)


def test_a_field_of_one_part_is_not_in_the_configuration_of_the_whole(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    vocab = model.config.vocab_size\n{GETATTRIBUTE}"
        "AttributeError: 'Gemma3Config' object has no attribute 'vocab_size'\n"
    )
    assert match["component"] == "your-code"
    assert "config.get_text_config().vocab_size" in notes(match)


def test_an_engine_learns_a_model_s_own_configuration_in_a_later_release(first_match):
    match = first_match(
        f'{BEGIN}  File "/sgl-workspace/sglang/python/sglang/srt/configs/model_config.py", line 201, in __init__\n'
        f"    self.hf_text_config.hidden_size // self.hf_text_config.num_attention_heads,\n{GETATTRIBUTE}"
        "AttributeError: 'POINTSV15ChatConfig' object has no attribute 'hidden_size'\n"
    )
    assert match["component"] == "sglang"
    assert "has POINTSV15ChatConfig" in notes(match)


def test_what_moved_within_its_package_is_named_first_where_it_was_before(first_match):
    match = first_match("ImportError: cannot import name 'FlexibleArgumentParser' from 'vllm.utils'\n")
    assert "vllm.utils.argparse_utils.FlexibleArgumentParser" in match["fix"][0]["note"]
    module = first_match(
        f"{BEGIN}{OWN}    unet: diffusers.models.unet_2d_condition.UNet2DConditionModel\n"
        "AttributeError: module diffusers.models has no attribute unet_2d_condition.\n"
    )
    assert "diffusers.models.unets.unet_2d_condition" in module["fix"][0]["note"]


@pytest.mark.parametrize(("layer", "instead"), [("lm_head", "get_output_embeddings"), ("embed_tokens", "get_input_e")])
def test_a_layer_that_a_model_s_own_code_calls_otherwise(first_match, layer, instead):
    match = first_match(f"AttributeError: 'InternLM2ForCausalLM' object has no attribute '{layer}'\n")
    assert instead in notes(match)


def test_a_function_that_a_package_puts_in_another_s_place_takes_the_keyword_in_a_later_release(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    model.generate(**inputs)\n"
        f'  File "{PACKAGES}/torch/nn/modules/module.py", line 1747, in _call_impl\n'
        "    return forward_call(*args, **kwargs)\n"
        "TypeError: lce_forward() got an unexpected keyword argument 'cache_position'\n"
    )
    assert match["component"] == "liger-kernel"


def test_a_module_in_whose_place_a_plugin_may_have_put_an_empty_one_is_only_likely_hidden(first_match):
    log = "ModuleNotFoundError: No module named '{0}.ops'; '{0}' is not a package\n"
    assert first_match(log.format("flash_attn"))["certainty"] == "likely"
    assert first_match(log.format("transformers"))["certainty"] == "sure"


UNUSED = "ValueError: Some specified arguments are not used by the HfArgumentParser: "


def test_an_argument_that_a_later_transformers_renamed_comes_before_the_refusal(first_match):
    match = first_match(f"{BEGIN}{OWN}    parse()\n{UNUSED}['--evaluation_strategy', 'no']\n")
    assert match["component"] == "transformers"
    assert "eval_strategy" in match["fix"][0]["note"]


def test_two_checkouts_of_a_project_are_seen_in_the_paths(first_match):
    match = first_match(
        f'{BEGIN}  File "/home/u/TokenPacker/llava/train/train_mem.py", line 13, in <module>\n    train()\n'
        '  File "/home/u/LLaVA/llava/train/train.py", line 793, in train\n    parser.parse_args_into_dataclasses()\n'
        f"{UNUSED}['--scale_factor', '2']\n"
    )
    assert "no scale_factor" in match["title"]
    assert "pip install -e . in /home/u/TokenPacker" in notes(match)


def test_the_options_of_a_training_are_given_to_a_command_that_does_not_train(first_match):
    match = first_match(
        "ValueError: Some keys are not used by the HfArgumentParser: "
        "['ddp_timeout', 'do_predict', 'output_dir', 'per_device_eval_batch_size']\n"
    )
    assert "command that does not train" in match["title"]


def test_a_setting_that_diffusers_ignored_shows_that_it_is_older_than_the_model(first_match):
    match = first_match(
        "The config attributes {'use_linear_projection': True} were passed to UNet2DConditionModel, but are not "
        f"expected and will be ignored.\n{BEGIN}{OWN}    unet = UNet2DConditionModel.from_pretrained(path)\n"
        f'  File "{PACKAGES}/diffusers/models/unet_2d_blocks.py", line 554, in __init__\n'
        "    out_channels // attn_num_head_channels,\n"
        "TypeError: unsupported operand type(s) for //: 'int' and 'list'\n"
    )
    assert (match["incident"], match["component"]) == ("ignored-setting", "diffusers")


def test_a_package_that_asks_an_unread_one_is_of_another_time(first_match):
    match = first_match(
        f'{BEGIN}  File "{PACKAGES}/transformers/activations_tf.py", line 53, in <module>\n'
        '    "swish": tf.keras.activations.swish,\n'
        "AttributeError: module 'tensorflow_core.python.keras.api._v2.keras.activations' has no attribute 'swish'\n"
    )
    assert match["component"] == "transformers"


LAZY = (
    f'  File "{PACKAGES}/transformers/utils/import_utils.py", line 2044, in __getattr__\n'
    "    module = self._get_module(self._class_to_module[name])\n"
)


def test_a_file_that_asks_for_something_else_is_not_the_one_that_asks(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    from transformers import AutoProcessor, set_seed\n{LAZY}"
        "ImportError: cannot import name 'HybridCache' from 'transformers'\n"
    )
    assert "train.py that asks" not in match["because"]
    assert "peft since" in match["because"]


def test_a_private_name_of_a_private_module_is_asked_for_by_its_own_package(first_match):
    match = first_match(
        "RuntimeError: Failed to import transformers.data.data_collator because of the following error:\n"
        f"cannot import name '_center' from 'numpy._core.umath' ({PACKAGES}/numpy/_core/umath.py)\n"
    )
    assert match["component"] == "numpy"
    assert "two releases" in match["title"]


def test_what_every_package_has_is_missing_in_a_bare_folder(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    vllm_version = vllm.__version__\n"
        "AttributeError: module 'vllm' has no attribute '__version__'\n"
    )
    assert (match["kind"], match["certainty"]) == ("shadowed", "likely")


def test_a_part_whose_import_was_passed_over(first_match):
    match = first_match(
        f'{BEGIN}  File "{PACKAGES}/megatron/core/extensions/transformer_engine.py", line 94, in <module>\n'
        "    class TELinear(te.pytorch.Linear):\n"
        "AttributeError: module 'transformer_engine' has no attribute 'pytorch'\n"
    )
    assert match["component"] == "transformer-engine"
    assert "transformer-engine[pytorch]" in notes(match)


def test_an_error_about_a_name_counts_without_its_class(first_match):
    match = first_match(
        f'{BEGIN}  File "{PACKAGES}/sglang/srt/entrypoints/engine.py", line 42, in <module>\n'
        "    from sglang.srt.managers.data_parallel_controller import (\n"
        "cannot import name 'awq_dequantize' from 'sgl_kernel'\n"
    )
    assert match["component"] == "sglang"


def test_an_object_was_given_for_a_name(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    llm = LLM(model=model, tokenizer=tokenizer)\n"
        f'  File "{PACKAGES}/vllm/entrypoints/llm.py", line 240, in __init__\n'
        "    self.llm_engine = self.engine_class.from_engine_args(\n"
        "AttributeError: Qwen2Tokenizer has no attribute lower\n"
    )
    assert match["component"] == "your-code"
    assert "Qwen2Tokenizer has no attribute lower" in match["title"]


def test_a_name_was_given_for_an_object(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    collator = DataCollator(**settings)\n"
        f'  File "{PACKAGES}/transformers/data/data_collator.py", line 832, in __post_init__\n'
        "    if self.mlm and self.tokenizer.mask_token is None:\n"
        "AttributeError: 'str' object has no attribute 'mask_token'\n"
    )
    assert (match["component"], "data_collator.py, line 832" in match["title"]) == ("your-code", True)


def test_the_project_s_own_call_of_accelerator_is_its_own(first_match):
    match = first_match(
        f"{BEGIN}{OWN}    self.accelerator = Accelerator(\n"
        "TypeError: Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches'\n"
    )
    assert match["component"] == "your-code"


def test_a_cached_data_set_in_the_place_of_the_hub_s_is_no_failure(answer):
    log = "Using the latest cached version of x since it couldn't be found on the Hub\nloss: 0.4\n"
    assert answer(log)["outcome"] == "no-failure"


@pytest.mark.parametrize(
    ("names", "has", "words"),
    [
        ("LlamaModel", "'LlamaForCausalLM'", "without its head"),
        ("Qwen2ForSequenceClassification", "'Qwen2ForCausalLM'", "classifier"),
        ("LlamaForCausalLM", "'LlamaForCausalLM'", "its look at the class failed"),
    ],
)
def test_what_the_refused_class_is_beside_the_supported_ones(first_match, names, has, words):
    match = first_match(
        f"ValueError: Model architectures ['{names}'] are not supported for now. Supported architectures: [{has}]\n"
    )
    assert words in match["title"]


def test_a_setting_of_a_trl_trainer_is_not_in_plain_arguments(first_match):
    match = first_match("AttributeError: 'TrainingArguments' object has no attribute 'model_init_kwargs'\n")
    assert (match["component"], "its own configuration" in match["title"]) == ("your-code", True)


def test_a_demand_in_words_names_the_release(first_match):
    match = first_match("ValueError: Using torch.compile requires PyTorch 2.0 or higher\ntorch == 1.12.1\n")
    assert (match["component"], "torch>=2.0" in match["title"]) == ("torch", True)


def test_a_model_s_own_configuration_of_a_known_name_lost_what_its_base_had(first_match):
    match = first_match("AttributeError: 'BertConfig' object has no attribute 'pad_token_id'\n")
    assert "from which the model's own BertConfig derives" in match["title"]
