"""What a scheduler does with a paged layout, in words short enough for tests."""

from __future__ import annotations

import itertools

from engine.kv.layout import Admission
from engine.kv.paged import PagedLayout
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams

IDS = itertools.count()
PROMPT = tuple(range(10, 30))  # 20 tokens: with blocks of 4, five blocks


def a_request(prompt: tuple[int, ...] = PROMPT, output: tuple[int, ...] = ()) -> Request:
    request = Request(next(IDS), prompt, SamplingParams(), 100, 0)
    request.output_token_ids = list(output)
    return request


def admit(kv: PagedLayout, request: Request, promised: int = 0) -> Admission:
    admission = kv.admit(request, promised)
    assert isinstance(admission, Admission)
    request.num_computed_tokens = admission.num_cached_tokens
    return admission


def write(kv: PagedLayout, request: Request, num_tokens: int | None = None) -> None:
    """What a step does: make room, compute, tell; by default all there is to compute."""
    count = request.num_uncomputed_tokens if num_tokens is None else num_tokens
    assert kv.extend(request, count) is None
    request.num_computed_tokens += count
    kv.written(request)
    kv.check()


def decode(kv: PagedLayout, request: Request, *tokens: int) -> None:
    for token in tokens:
        request.output_token_ids.append(token)
        write(kv, request)


def run(kv: PagedLayout, prompt: tuple[int, ...] = PROMPT) -> Request:
    """Admit and compute a whole prompt."""
    request = a_request(prompt)
    admit(kv, request)
    write(kv, request)
    return request


def fork(kv: PagedLayout, parent: Request, promised: int = 0) -> Request:
    child = a_request(parent.prompt_token_ids)
    admission = kv.fork(child, parent, promised)
    assert isinstance(admission, Admission)
    child.num_computed_tokens = admission.num_cached_tokens
    return child


def blocks(kv: PagedLayout, request: Request) -> list[int]:
    return list(kv.table(request.request_id))
