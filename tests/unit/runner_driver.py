"""A scheduler of a few lines to test runners with: chunks, padding, preemption, forks."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from engine.scheduling.plan import BlockCopy, ScheduledRequest, StepOutput, StepPlan
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.torch_runner import TorchRunner


def request(request_id: int, prompt: Sequence[int], max_tokens: int = 8, **params: object) -> Request:
    settings = SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, **params})  # type: ignore[arg-type]
    return Request(request_id, tuple(prompt), settings, max_tokens, seed=settings.seed or request_id)


class Driver:
    """Runs requests to their `max_tokens`, `chunk` prompt tokens at a time, over scattered blocks."""

    def __init__(self, runner: TorchRunner, num_blocks: int, block_size: int, seed: int = 0) -> None:
        self.runner, self.block_size = runner, block_size
        self.free = list(range(num_blocks))
        random.Random(seed).shuffle(self.free)
        self.tables: dict[int, list[int]] = {}
        self.step, self.new, self.copies = 0, [], []
        self.errors: dict[int, str] = {}

    def scheduled(self, r: Request, chunk: int, num_padding: int = 0) -> ScheduledRequest:
        count = min(r.num_uncomputed_tokens, chunk)
        stop = r.num_computed_tokens + count
        table = self.tables.setdefault(r.request_id, [])
        while len(table) * self.block_size < stop:
            self.new.append(self.free.pop(0))
            table.append(self.new[-1])
        tokens = r.tokens(r.num_computed_tokens, stop)
        is_decode = bool(r.output_token_ids) and count == 1
        samples = stop == r.num_tokens
        return ScheduledRequest(r, tokens, r.num_computed_tokens, tuple(table), samples, is_decode, num_padding)

    def run(self, scheduled: list[ScheduledRequest], num_inactive: int = 0) -> StepOutput:
        plan = StepPlan(self.step, tuple(scheduled), tuple(self.new), tuple(self.copies), num_inactive)
        self.step, self.new, self.copies = self.step + 1, [], []
        with torch.inference_mode():
            output = self.runner.run(plan)
        for s in scheduled:
            s.request.num_computed_tokens = s.context_length
            if s.request_id in output.sampled:
                s.request.output_token_ids.append(output.sampled[s.request_id].token_id)
        self.errors |= output.errors
        return output

    def finish(self, requests: Sequence[Request], chunk: int = 1000, num_inactive: int = 0) -> None:
        """Everybody at once until all are done; who fails or ends gives its blocks back."""
        running = list(requests)
        while running:
            self.run([self.scheduled(r, chunk) for r in running], num_inactive)
            for r in list(running):
                if r.request_id in self.errors or len(r.output_token_ids) >= r.max_tokens:
                    running.remove(r)
                    self.release(r)

    def preempt(self, r: Request) -> None:
        r.num_computed_tokens = 0
        self.release(r)

    def release(self, r: Request) -> None:
        self.free += self.tables.pop(r.request_id)

    def fork(self, parent: Request, child: Request) -> None:
        """The child shares the parent's full blocks and gets a copy of the last, partly filled one."""
        stored = parent.num_computed_tokens
        table = list(self.tables[parent.request_id][: -(-stored // self.block_size)])
        if stored % self.block_size:
            self.new.append(self.free.pop(0))
            self.copies.append(BlockCopy(table[-1], self.new[-1], stored % self.block_size))
            table[-1] = self.new[-1]
        self.tables[child.request_id] = table
        child.num_computed_tokens = stored
