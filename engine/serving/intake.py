"""From a prompt and what was asked of it to requests: checked, with resolved lengths, seeds and stop tests.

Owns what makes one prompt a family of `n` requests. Never knows queues, threads or streams.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass

from engine.scheduling.request import Request
from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.text.assembler import stop_checker
from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Intake:
    """What all requests of one model have in common. `vocab_size` None: any token id will do."""

    tokenizer: Tokenizer | None
    eos_token_ids: frozenset[int] = frozenset()
    vocab_size: int | None = None

    def check_vocabulary(self, prompt: tuple[int, ...]) -> None:
        """Raise InvalidRequest for a token id that the model does not have."""
        most = self.vocab_size - 1 if self.vocab_size is not None else sys.maxsize
        wrong = next((token_id for token_id in prompt if not 0 <= token_id <= most), None)
        if wrong is not None:
            raise InvalidRequest(f"token id {wrong} is not in the vocabulary (0 to {most})", "prompt")

    def family(
        self, first_id: int, prompt: tuple[int, ...], params: SamplingParams, context_limit: int, arrival_s: float
    ) -> list[Request]:
        """`params.n` requests with ids from `first_id` on; each has a seed of its own, and all but the first share the
        first one's prompt. That the prompt is shorter than `context_limit` was checked before.

        Raises InvalidRequest for stop strings without a tokenizer.
        """
        limit = max(1, context_limit - len(prompt))
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        return [
            Request(
                request_id=first_id + i,
                prompt_token_ids=prompt,
                params=params,
                max_tokens=min(params.max_tokens or limit, limit),
                seed=seed + i,
                eos_token_ids=self.eos_token_ids,
                completes_stop=self._stop_checker(params),
                sibling_of=first_id if i else None,
                arrival_s=arrival_s,
            )
            for i in range(params.n)
        ]

    def _stop_checker(self, params: SamplingParams) -> Callable[[int], bool] | None:
        if not params.stop:
            return None
        if self.tokenizer is None:
            raise InvalidRequest("stop strings need a tokenizer, and this engine has none", "stop")
        return stop_checker(self.tokenizer, params.stop, params.min_tokens)
