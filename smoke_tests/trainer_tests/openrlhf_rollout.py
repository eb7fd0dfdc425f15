"""The fixed rollout of OpenRLHF's checks: prompts and completions with rewards, as its SamplesGenerator gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smoke_tests.trainers import tiny

from smoke_tests import data

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP, GROUPS = 4, 2


@dataclass(frozen=True)
class Sample:
    """The tokens of a prompt and of one completion, with its end token, and its reward."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    reward: float

    @property
    def tokens(self) -> list[int]:
        """The tokens of prompt and completion."""
        return [*self.prompt, *self.completion]

    def answer(self) -> dict[str, Any]:
        """What the executor of an engine answers for it."""
        return {
            "prompt": tiny.text(list(self.prompt)),
            "label": "",
            "observation_tokens": self.tokens,
            "action_ranges": [(len(self.prompt), len(self.tokens))],
            "rollout_log_probs": None,
            "reward": self.reward,
            "scores": self.reward,
            "truncated": False,
        }


def samples() -> list[Sample]:
    """A group of completions for each of the prompts; no two of a group have the same length or reward."""
    return list(_samples())


def _samples() -> Iterator[Sample]:
    for group in range(GROUPS):
        prompt = tiny.rows()[group][: tiny.PROMPTS[group]]
        for place in range(GROUP):
            length = 12 + 7 * ((3 * place + group) % GROUP) + group
            completion = data.sequence(2 + group + 5 * place, length)
            reward = (0.9, -0.3, 0.2, 1.6)[place] - 0.5 * group * place
            yield Sample(tuple(prompt), (*completion, tiny.END), reward)
