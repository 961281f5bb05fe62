"""How far the served arithmetic is from float32, token by token on one fixed text.

For every position the distribution over the next token, by the readable pass in float32 and by what is served: the
Kullback-Leibler divergence between the two, and how often both like the same token best.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.loading import LoadedModel
from engine.model import checkpoint
from engine.model.attention import FullAttention
from engine.scheduling.plan import ScheduledRequest, StepPlan
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.torch_runner import TorchRunner

TEXT = """\
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or \
twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it, "and what \
is the use of a book," thought Alice, "without pictures or conversations?" So she was considering in her own mind \
(as well as she could, for the hot day made her feel very sleepy and stupid), whether the pleasure of making a \
daisy-chain would be worth the trouble of getting up and picking the daisies, when suddenly a White Rabbit with pink \
eyes ran close by her.

There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit \
say to itself, "Oh dear! Oh dear! I shall be late!" (when she thought it over afterwards, it occurred to her that \
she ought to have wondered at this, but at the time it all seemed quite natural); but when the Rabbit actually took \
a watch out of its waistcoat-pocket, and looked at it, and then hurried on, Alice started to her feet, for it \
flashed across her mind that she had never before seen a rabbit with either a waistcoat-pocket, or a watch to take \
out of it, and burning with curiosity, she ran across the field after it, and fortunately was just in time to see it \
pop down a large rabbit-hole under the hedge.

In another moment down went Alice after it, never once considering how in the world she was to get out again. The \
rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down, so suddenly that Alice had \
not a moment to think about stopping herself before she found herself falling down a very deep well.
"""
"""Lewis Carroll, 1865."""


def against_float32(path: Path, loaded: LoadedModel) -> dict[str, Any]:
    """`prompt` and `answer`: mean KL divergence (nats) and top-1 agreement of the forms that compute each of them."""
    token_ids = loaded.tokenizer.encode(TEXT, add_special_tokens=False)
    exact = _reference(path, token_ids)
    result: dict[str, Any] = {"num_tokens": len(token_ids)}
    for role, num_prompt_tokens in (("prompt", len(token_ids)), ("answer", 1)):
        served = _served(loaded.runner, token_ids, num_prompt_tokens)
        result[role] = compare(exact[-len(served) :], served)
    return result


def compare(exact: Tensor, served: Tensor) -> dict[str, float]:
    """Two (N, vocab) float32 logits: the mean KL divergence of the second from the first, and top-1 agreement."""
    divergence = F.kl_div(served.log_softmax(-1), exact.log_softmax(-1), reduction="batchmean", log_target=True)
    agreement = (exact.argmax(-1) == served.argmax(-1)).float().mean()
    return {"kl": divergence.item(), "top1": agreement.item()}


@torch.inference_mode()
def _reference(path: Path, token_ids: list[int]) -> Tensor:
    model, _ = checkpoint.load(path, torch.float32)
    ids = torch.tensor(token_ids)
    return model.logits(model(ids, torch.arange(len(ids)), FullAttention()))  # (N, vocab)


@torch.inference_mode()
def _served(runner: TorchRunner, token_ids: list[int], num_prompt_tokens: int) -> Tensor:
    """Logits of the text after its first `num_prompt_tokens` as a request whose answer is the rest (or all prompt)."""
    num_blocks = -(-len(token_ids) // 16)
    runner.reset_pool(num_blocks, 16)
    runner.kv.clear(range(num_blocks))
    request = Request(0, tuple(token_ids[:num_prompt_tokens]), SamplingParams(), 1, seed=0)
    scheduled = ScheduledRequest(request, tuple(token_ids), 0, range(num_blocks), samples=True, is_decode=False)
    passes = runner.passes(StepPlan(1, (scheduled,)))
    hidden = [runner.hidden(model, one) for model, one in passes]
    return runner.model.logits(hidden[-1]).cpu()


def in_words(accuracy: Any) -> str:
    """A line for each role, or nothing where it wasn't measured."""
    if not accuracy:
        return ""
    lines = [
        f"\n{role} tokens against float32: KL {accuracy[role]['kl']:.4f}, top-1 agreement {accuracy[role]['top1']:.1%}"
        for role in ("prompt", "answer")
    ]
    return f"\n\nOn a fixed text of {accuracy['num_tokens']} tokens:" + "".join(lines)
