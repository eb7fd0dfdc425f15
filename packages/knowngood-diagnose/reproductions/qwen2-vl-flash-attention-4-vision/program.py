"""Qwen2-VL's vision tower under one attention setting, or calls of FlashAttention 4 alone, against mathematics in fp64.

program.py tower SETTING WIDTH IMAGES    (the tower's gradients with heads of WIDTH numbers, for images of 24 patches)
program.py calls WIDTH ...               (the functions of flash_attn.cute: outputs and gradients in a table)
"""

import sys

import attention_calls
import vision_tower

if sys.argv[1] == "tower":
    vision_tower.main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
else:
    attention_calls.main([int(width) for width in sys.argv[2:]])
