"""The whole engine on a tiny model, and each request's own answer: by transformers, or by a fresh engine, alone."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.model import checkpoint
from engine.model.llama import Llama
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.torch_runner import TorchRunner
from tests import tiny_models
from tests.engine_driver import Driver

EOS = tiny_models.EOS_IDS


class DirtyRunner(TorchRunner):
    """Its whole pool is NaN before anything is written: what is read without having been cleared shows."""

    def reset_pool(self, num_blocks: int, block_size: int) -> None:
        super().reset_pool(num_blocks, block_size)
        self.kv.storage[:, :, : num_blocks * self.kv.num_kv_heads] = torch.nan


def driver(folder: Path, **settings: Any) -> Driver:
    """An engine on the model in `folder`, float32."""
    sizes = {"num_blocks": 64, "block_size": 16} | settings
    runner = DirtyRunner(_model(folder), sizes["num_blocks"], sizes["block_size"], torch.float32, "cpu", 260)
    return Driver(runner, **sizes)


def prompt(seed: int, length: int) -> list[int]:
    """A random text of `length` tokens, without specials."""
    return random.Random(seed).choices(range(36, 120), k=length)


def alone(folder: Path, request: Request) -> list[int]:
    """The answer of the same request when nobody else is there."""
    params = replace(request.params, n=1, max_tokens=request.max_tokens)
    if params == SamplingParams(temperature=0.0, max_tokens=params.max_tokens):
        return tiny_models.oracle(folder, request.prompt_token_ids, request.max_tokens)
    return list(_sampled_alone(folder, request.prompt_token_ids, params, request.seed))


def assert_right(folder: Path, requests: Sequence[Request]) -> None:
    """Each has answered what it answers alone, and ended for the right reason."""
    for request in requests:
        expected = alone(folder, request)
        assert request.output_token_ids == expected, f"request {request.request_id}"
        assert request.finish_reason == ("stop" if expected[-1] in EOS else "length")


@functools.cache
def _model(folder: Path) -> Llama:
    return checkpoint.load(folder, torch.float32)[0]


@functools.cache
def _sampled_alone(folder: Path, prompt: tuple[int, ...], params: SamplingParams, seed: int) -> tuple[int, ...]:
    engine = driver(folder, num_blocks=512, max_num_batched_tokens=4096, max_model_len=8192)
    request = Request(0, prompt, params, params.max_tokens or 16, seed, frozenset(EOS))
    engine.engine.add(request)
    engine.run()
    return tuple(request.output_token_ids)
