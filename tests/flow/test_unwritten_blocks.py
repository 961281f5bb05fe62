"""What was never written is never read: answers are right although the whole pool is filled with NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.scheduling.sampling_params import SamplingParams
from tests.tiny_engine import tiny_service
from tests.tiny_models import oracle, rand, token_ids

PROMPTS = [("a", 40), ("a prompt of some length", 3), ("another " * 10, 12), ("b" * 17, 30), ("a prompt of", 25)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand(tmp_path_factory.mktemp("rand"))


class _NaNPool:
    """A runner whose pool holds NaN wherever nothing was written, but for the block that padding reads."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._fill()

    def _fill(self) -> None:
        kv = self._real.kv
        kv.storage.fill_(float("nan"))
        kv.clear([kv.null_block])

    def reset_pool(self, num_blocks: int, block_size: int) -> None:
        self._real.reset_pool(num_blocks, block_size)
        self._fill()

    def run(self, plan: Any) -> Any:
        return self._real.run(plan)


@pytest.mark.parametrize("block_size", [1, 4, 16, 48])
@pytest.mark.parametrize("kv_layout", ["paged", "contiguous"])
@pytest.mark.parametrize("policy", ["static", "decode_first", "prefill_first", "mixed"])
def test_answers_do_not_depend_on_what_lay_in_the_pool(
    folder: Path, policy: str, kv_layout: str, block_size: int
) -> None:
    settings: dict[str, Any] = {"policy": policy, "kv_layout": kv_layout, "block_size": block_size}
    service = tiny_service(
        folder, _NaNPool, num_blocks=960 // block_size, max_num_seqs=3, max_num_batched_tokens=24, **settings
    )
    service.start()
    try:
        streams = [
            service.submit(token_ids(text), SamplingParams(max_tokens=n, temperature=0.0))[0] for text, n in PROMPTS
        ]
        answers = [stream.result(60) for stream in streams]
    finally:
        service.stop()
    assert [answer.error for answer in answers] == [None] * len(PROMPTS)
    told = [list(answer.token_ids) for answer in answers]
    assert told == [oracle(folder, token_ids(text), n) for text, n in PROMPTS]
