"""Synthetic data that a model with attention can learn: arithmetic progressions over the vocabulary.

Every sequence has a stride of its own, so the next token follows from two earlier ones and not from the last
alone.
"""

from __future__ import annotations

VOCABULARY = 128
DENSE = (128, 128, 128, 128)
RAGGED = (128, 97, 55, 73)  # odd on purpose: real batches are not multiples of eight
IGNORED = -100  # torch's default ignore_index


def sequence(number: int, length: int) -> list[int]:
    """The number-th sequence."""
    start, stride = 11 + 29 * number, 3 + 4 * number
    return [(start + stride * step) % VOCABULARY for step in range(length)]


def sequences(lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    """One sequence for each length; those of another seed are others."""
    return [sequence(number, length) for number, length in enumerate(lengths, len(lengths) * seed)]


def targets(tokens: list[int]) -> list[int]:
    """What each position must predict: the next token of its own sequence, nothing at the last."""
    return [*tokens[1:], IGNORED]
