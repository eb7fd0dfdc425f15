"""transformers' own vision tower of Qwen2-VL, two layers of it: its gradients against eager attention in fp64."""

import json

import torch

GRID = (1, 4, 6)  # time, height and width of an image in patches
HEADS = 2
ALLOWED = 0.1  # bfloat16 with right attention is 1 to 4 % off
DEVICE = "cuda" if torch.cuda.device_count() else "cpu"


def make_tower(setting, width, dtype):
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

    sizes = {"depth": 2, "embed_dim": HEADS * width, "num_heads": HEADS, "hidden_size": 64, "mlp_ratio": 2}
    config = Qwen2VLVisionConfig(**sizes, initializer_range=0.1)
    torch.manual_seed(0)
    tower = Qwen2VisionTransformerPretrainedModel._from_config(
        config, attn_implementation=setting, dtype=torch.bfloat16
    )
    assert tower.config._attn_implementation == setting
    return tower.to(DEVICE, dtype)


def train(setting, width, images, dtype):
    """Return the tower's output for these images, and the gradients of a loss by parameter, all in fp64."""
    tower = make_tower(setting, width, dtype)
    torch.manual_seed(1)
    patches = GRID[0] * GRID[1] * GRID[2] * images
    pixels = torch.randn(patches, 3 * 2 * 14 * 14).bfloat16()
    weights = torch.randn(patches // 4, 64)
    grid = torch.tensor([GRID] * images, device=DEVICE)
    output = tower(pixels.to(DEVICE, dtype), grid_thw=grid).pooler_output.double()
    (output * weights.to(DEVICE).double()).sum().backward()
    return output.detach(), {name: weight.grad.double() for name, weight in tower.named_parameters()}


def difference(ours, theirs):
    return round(((ours - theirs).norm() / theirs.norm()).item(), 5)


def main(setting, width, images):
    """Print how far the tower is off under this setting; ends with an error where that is more than rounding."""
    output, gradients = train(setting, width, images, torch.bfloat16)
    expected_output, expected = train("eager", width, images, torch.float64)
    errors = {name: difference(gradient, expected[name]) for name, gradient in gradients.items()}
    last = "blocks.1.attn.qkv.weight"
    rows = zip(gradients[last].chunk(3), expected[last].chunk(3))
    found = {"output": difference(output, expected_output)}
    found |= {f"{part} of blocks.1": difference(*pair) for part, pair in zip(("query", "key", "value"), rows)}
    worst = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else float("inf"))
    found |= {"worst": worst, "worst_by": errors[worst]}
    print(json.dumps(found))
    parts = ", ".join(f"{part} {found[f'{part} of blocks.1']:.1%}" for part in ("query", "key", "value"))
    assert all(error <= ALLOWED for error in errors.values()), (
        f"under {setting} with {images} images and heads of {width} the output is off by {found['output']:.1%}, but "
        f"the gradient of {worst} by {errors[worst]:.1%} (in blocks.1: {parts})"
    )
