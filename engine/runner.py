"""A step plan in, next tokens out: the seam between deciding and computing.

Two runners stand behind it: `engine.torch_runner.TorchRunner` computes with the model, and
`engine.simulated_runner.SimulatedRunner` answers from a cost model without weights. The scheduler cannot tell.
"""

from __future__ import annotations

from typing import Protocol

from engine.scheduling.plan import StepOutput, StepPlan


class Runner(Protocol):
    """What the engine asks of whatever computes."""

    def reset_pool(self, num_blocks: int, block_size: int) -> None:
        """Forget all keys and values and make room for `num_blocks` blocks of `block_size` tokens.

        Raises MemoryError, with the sizes in words, when that does not fit; the pool before stays usable then.
        """

    def run(self, plan: StepPlan) -> StepOutput:
        """Compute `plan`: carry out its copies, clear its new blocks, run its tokens, sample where asked.

        A request whose logits are not finite gets an entry in `errors`. Anything raised fails the whole step.
        """
