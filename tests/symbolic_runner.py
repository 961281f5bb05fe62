"""A runner that computes no tensors but keeps the books of a real one: which slot of which block holds what.

A slot holds a number that stands for the token and everything before it, as a deep layer's key would. Reading a wrong,
stale, missing or foreign slot is noted in `faults` and changes the answer, so that a whole engine can be held against
`answer`, which knows the tokens alone, thousands of steps a second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from engine.scheduling.plan import SampledToken, ScheduledRequest, StepOutput, StepPlan

VOCABULARY = 50


def after(memory: int, token_id: int) -> int:
    """What stands for everything up to and with this token."""
    return hash((memory, token_id))


def remembered(token_ids: Sequence[int]) -> list[int]:
    """What each token's slot has to hold."""
    memories = [0]
    for token_id in token_ids:
        memories.append(after(memories[-1], token_id))
    return memories[1:]


def next_token(memory: int, seed: int, output_index: int) -> int:
    digest = hashlib.blake2b(repr((memory, seed, output_index)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCABULARY


def answer(prompt: Sequence[int], max_tokens: int, seed: int, eos_token_ids: Sequence[int] = ()) -> list[int]:
    """What a request has to answer, whoever else there is."""
    memory, tokens = remembered(prompt)[-1], []
    while len(tokens) < max_tokens and not (tokens and tokens[-1] in eos_token_ids):
        tokens.append(next_token(memory, seed, len(tokens)))
        memory = after(memory, tokens[-1])
    return tokens


class SymbolicRunner:
    """See the module. `raises` is raised by the next step, `wrong` maps request ids to errors of their own."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.raises: BaseException | None = None
        self.wrong: dict[int, str] = {}
        self.plans: list[StepPlan] = []
        self.num_pools = 0
        self.refuses_pool: str | None = None

    def reset_pool(self, num_blocks: int, block_size: int) -> None:
        if self.refuses_pool is not None:
            raise MemoryError(self.refuses_pool)
        self.block_size = block_size
        self.num_pools += 1
        self.slots: list[list[int | None]] = [[-1] * block_size for _ in range(num_blocks)]  # what nobody cleared

    def run(self, plan: StepPlan) -> StepOutput:
        self.plans.append(plan)
        kept = [self.slots[copy.src][: copy.num_tokens] for copy in plan.copies]
        for copy, values in zip(plan.copies, kept, strict=True):
            self.slots[copy.dst] = values + [None] * (self.block_size - copy.num_tokens)
        for block_id in plan.new_block_ids:
            self.slots[block_id] = [None] * self.block_size
        if self.raises is not None:
            error, self.raises = self.raises, None
            raise error
        sampled, errors = {}, {}
        for item in plan.scheduled:
            memory = self._compute(item)
            if item.request_id in self.wrong and item.samples:
                errors[item.request_id] = self.wrong.pop(item.request_id)
            elif item.samples:
                request = item.request
                token = next_token(memory, request.seed, len(request.output_token_ids))
                sampled[item.request_id] = SampledToken(token)
        return StepOutput(sampled, errors)

    def _compute(self, item: ScheduledRequest) -> int:
        """Write the item's tokens, each upon what is read of those before it."""
        request, table = item.request, list(item.block_ids)
        expected = remembered(request.tokens(0, item.context_length))
        memory = 0
        for position in range(item.context_length):
            block, offset = table[position // self.block_size], position % self.block_size
            if position >= item.start:
                memory = after(memory, item.token_ids[position - item.start])
                self.slots[block][offset] = memory
            elif self.slots[block][offset] is not None:
                memory = self.slots[block][offset] or 0
            else:
                memory = 0
            if memory != expected[position]:
                where = f"request {request.request_id}, position {position}, block {block}"
                self.faults.append(f"step {len(self.plans)}: {where} holds something else")
                break
        for position in range(item.context_length, len(table) * self.block_size):  # masked, but multiplied all the same
            block, offset = table[position // self.block_size], position % self.block_size
            if (
                self.slots[block][offset] == -1
                and position < -(-item.context_length // self.block_size) * self.block_size
            ):
                self.faults.append(f"request {request.request_id} reads block {block}, which nobody has cleared")
                break
        return memory
