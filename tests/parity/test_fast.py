"""The fast forward pass: transformers' tokens in float32, close to the simple one in bfloat16, and really fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from engine import loading
from engine.loading import load_model, open_model
from engine.model.checkpoint import load, open_weights
from engine.model.errors import ModelError
from engine.model.linears import has_float16_linear, has_int4_linear, has_measured_int4_linear, has_onednn_linear
from engine.model.loader import FastModel, assemble, load_fast
from engine.scheduling.plan import StepPlan
from engine.torch_runner import TorchRunner
from tests import gguf_files, real_model, tiny_models
from tests.unit.runner_driver import Driver, request

NUM_SLOTS = 4096
PROMPTS = [[4 + (7 * i + 3 * j) % 250 for i in range(n)] for j, n in enumerate((1, 5, 16, 33, 70, 150))]

DTYPE_HERE = torch.bfloat16 if has_onednn_linear(torch.bfloat16) else torch.float32
"""What this CPU computes in by default."""

needs_onednn = pytest.mark.skipif(not has_onednn_linear(DTYPE_HERE), reason="this torch packs no weights for this CPU")
needs_float16 = pytest.mark.skipif(not has_float16_linear(), reason="this torch has no float16 product for this CPU")
needs_int4 = pytest.mark.skipif(not has_int4_linear(), reason="this torch has no 4-bit product for this CPU")

SHAPES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied, explicit head size": {"tie_word_embeddings": False, "head_dim": 24},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one key head": {"num_key_value_heads": 1},
    "as many key heads": {"num_key_value_heads": 4},
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3"},
}


@pytest.fixture(scope="module")
def rand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.rand(tmp_path_factory.mktemp("rand"))


@pytest.fixture(scope="module")
def rand_q4_1(rand: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.convert(rand, tmp_path_factory.mktemp("gguf") / "rand.gguf", "Q4_1")


def driver(fast: FastModel, dtype: torch.dtype, block_size: int = 16, seed: int = 0) -> Driver:
    num_blocks = NUM_SLOTS // block_size
    runner = TorchRunner(fast.model, num_blocks, block_size, dtype, vocab_size=tiny_models.NUM_TOKENS)
    return Driver(runner, num_blocks, block_size, seed)


def dtype_of(fast: FastModel) -> torch.dtype:
    return fast.model.embedding.dtype


def record_logits(fast: FastModel) -> list[torch.Tensor]:
    """The rows of logits of every step from now on."""
    seen: list[torch.Tensor] = []
    model, logits = fast.model, fast.model.logits

    def recorded(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(logits(hidden))
        return seen[-1]

    model.logits = recorded  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_tokens_are_those_of_transformers(shape: str, tmp_path: Path) -> None:
    folder = tiny_models.rand(tmp_path, **SHAPES[shape])
    one = driver(load_fast(folder, torch.float32), torch.float32)
    requests = [request(i, prompt, 10) for i, prompt in enumerate(PROMPTS)]
    one.finish(requests, chunk=50)
    for r in requests:
        expected = tiny_models.oracle(folder, r.prompt_token_ids, 10)
        assert r.output_token_ids[: len(expected)] == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_is_close_to_the_simple_pass(shape: str, tmp_path: Path) -> None:
    folder = tiny_models.rand(tmp_path, **(SHAPES[shape] | {"initializer_range": 0.1}))
    exact = logits_of(load(folder, torch.float32)[0], torch.float32)
    simple = logits_of(load(folder, torch.bfloat16)[0], torch.bfloat16)
    fast = logits_of(load_fast(folder, torch.bfloat16).model, torch.bfloat16)
    assert (fast - exact).norm() < 1.2 * (simple - exact).norm()


@needs_float16
@pytest.mark.parametrize("shape", SHAPES)
def test_float16_weights_are_far_closer_than_bfloat16(shape: str, tmp_path: Path) -> None:
    folder = tiny_models.rand(tmp_path, **(SHAPES[shape] | {"initializer_range": 0.1}))
    exact = logits_of(load(folder, torch.float32)[0], torch.float32)
    simple = logits_of(load(folder, torch.bfloat16)[0], torch.bfloat16)
    fast = logits_of(load_fast(folder, torch.float32, weight_dtype=torch.float16).model, torch.float32)
    assert 0 < (fast - exact).norm() < 0.1 * (simple - exact).norm()


@needs_float16
def test_a_matrix_beyond_float16_is_kept_whole(rand: Path) -> None:
    config, weights = open_weights(rand)

    class Scaled:
        """The same model: what the up projection gains, the down projection loses."""

        def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
            factor = 2.0**24 if "up_proj" in name else 2.0**-24 if "down_proj" in name else 1.0
            return weights.read(name, dtype) * factor

        def shapes(self) -> Any:
            return weights.shapes()

    whole, half = (
        logits_of(assemble(config, Scaled(), torch.float32, "cpu", "none", dtype).model, torch.float32)
        for dtype in (torch.float32, torch.float16)
    )
    assert (half - whole).norm() < 1e-2 * whole.norm()


@needs_int4
def test_int4_is_close_to_the_same_weights_in_float32(rand_q4_1: Path) -> None:
    exact = logits_of(load(rand_q4_1, torch.float32)[0], torch.float32)
    rounded = logits_of(load(rand_q4_1, torch.bfloat16)[0], torch.bfloat16)
    fast = load_fast(rand_q4_1, torch.bfloat16, quantization="int4").model
    assert fast.answer_form is not None
    answers = logits_of(fast.answer_form, torch.bfloat16)
    assert (answers - exact).norm() < 2 * (rounded - exact).norm()


@torch.inference_mode()
def logits_of(model: Any, dtype: torch.dtype) -> torch.Tensor:
    """Of every position of a prompt, in one pass."""
    runner = TorchRunner(model, 20, 16, dtype)
    runner.answer_form = None
    one = Driver(runner, 20, 16)
    plan = StepPlan(1, (one.scheduled(request(0, PROMPTS[-1], 1), 1000),), tuple(one.new))
    runner.kv.clear(plan.new_block_ids)
    ((form, packed),) = runner.passes(plan)
    return model.logits(runner.hidden(form, packed))


class TestTheSameAnswerInAnyCompany:
    """Bitwise equal logits, alone and among others, however prompts are cut, blocks lie and requests are preempted."""

    @pytest.fixture(params=["float32", "bfloat16", pytest.param("float16 weights", marks=needs_float16), "int4"])
    def fast(self, request: pytest.FixtureRequest, rand: Path, rand_q4_1: Path) -> FastModel:
        if request.param == "float16 weights":
            return load_fast(rand, torch.float32, weight_dtype=torch.float16)
        is_int4 = request.param == "int4"
        dtype = DTYPE_HERE if is_int4 else getattr(torch, request.param)
        if dtype != DTYPE_HERE:
            pytest.skip("not what this CPU computes in by default")
        if not has_onednn_linear(dtype) or (is_int4 and not has_int4_linear()):
            pytest.skip(f"this torch has no fast {request.param} products for this CPU")
        return load_fast(rand_q4_1 if is_int4 else rand, dtype, quantization="int4" if is_int4 else "none")

    @pytest.fixture
    def alone(self, fast: FastModel) -> list[torch.Tensor]:
        """Of each prompt: the logits of its first six tokens, computed alone."""
        rows = []
        for i, prompt in enumerate(PROMPTS):
            seen = record_logits(fast)
            driver(fast, dtype_of(fast)).finish([request(i, prompt, 6)])
            rows.append(torch.cat(seen))
        return rows

    def steps(self, fast: FastModel, numbers: list[int], chunk: int, block_size: int, **finish: Any) -> list[Any]:
        """Run these prompts together; answers with each one's logits in order."""
        seen = record_logits(fast)
        one = driver(fast, dtype_of(fast), block_size, seed=chunk)
        requests = {i: request(i, PROMPTS[n], 6) for i, n in enumerate(numbers)}
        running, rows = list(requests), {i: [] for i in requests}
        step = 0
        while running:
            scheduled = [one.scheduled(requests[i], chunk) for i in running]
            output = one.run(scheduled, **finish)
            for i, row in zip(output.sampled, seen[-1] if output.sampled else [], strict=True):
                rows[i].append(row)
            step += 1
            if step == 9 and running:
                one.preempt(requests[running[-1]])
            running = [i for i in running if len(requests[i].output_token_ids) < 6]
        return [torch.stack(rows[i]) for i in requests]

    @pytest.mark.parametrize("numbers", [[0, 1], [5, 5, 5], [0, 1, 2, 3, 4, 5], [4, 0, 2] * 10 + [5]])
    @pytest.mark.parametrize(("chunk", "block_size"), [(1000, 16), (23, 16), (64, 5), (7, 1)])
    def test_alone_or_among_others(
        self, fast: FastModel, alone: list[torch.Tensor], numbers: list[int], chunk: int, block_size: int
    ) -> None:
        together = self.steps(fast, numbers, chunk, block_size, num_inactive=len(numbers) % 3)
        for number, rows in zip(numbers, together, strict=True):
            assert torch.equal(rows, alone[number])


@pytest.mark.slow
@pytest.mark.parametrize(
    "quantization", [pytest.param("int4", marks=[needs_int4, needs_onednn]), pytest.param("none", marks=needs_float16)]
)
def test_the_real_model_gives_the_same_bits_in_batches_of_1_2_8_and_32(quantization: str) -> None:
    weight_dtype = torch.float16 if quantization == "none" else None
    dtype = torch.float32 if quantization == "none" else DTYPE_HERE
    fast = load_fast(real_model.smollm2_gguf(), dtype, "cpu", quantization, weight_dtype)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 49152, (3 + 5 * (i % 9),), generator=generator).tolist() for i in range(32)]
    seen, rows = record_logits(fast), {}
    for size in (32, 8, 2, 1):
        for first in range(0, 8 if size < 32 else 32, size):
            one = Driver(TorchRunner(fast.model, 256, 16, dtype), 256, 16, seed=size)
            requests = [request(i, prompts[i], 3) for i in range(first, first + size)]
            for step in range(3):
                output = one.run([one.scheduled(r, 1000) for r in requests])
                for i, row in zip(output.sampled, seen[-1], strict=True):
                    assert torch.equal(rows.setdefault((i, step), row), row), (
                        f"request {i}, step {step}, {size} of them"
                    )


@needs_int4
@needs_onednn
def test_the_fast_operators_are_really_taken(rand_q4_1: Path) -> None:
    one = driver(load_fast(rand_q4_1, DTYPE_HERE, quantization="int4"), DTYPE_HERE)
    r = request(0, PROMPTS[3], 3)
    prompt, answer = operators(one, r), operators(one, r)
    layers = 3
    assert prompt["mkldnn::_linear_pointwise"] == 5 * layers + 1  # gate and up are two, with silu inside
    assert "aten::silu" not in prompt
    assert "aten::_weight_int4pack_mm_for_cpu" not in prompt
    assert answer["aten::_weight_int4pack_mm_for_cpu"] == 4 * layers
    assert answer["mkldnn::_linear_pointwise"] == 1
    assert answer["aten::native_layer_norm"] == 2 * layers + 1
    for names in (prompt, answer):
        assert names["aten::bmm"] == 2 * layers
        assert "aten::linear" not in names
        assert "aten::scaled_dot_product_attention" not in names


@needs_float16
@pytest.mark.parametrize("num_tokens", [1, 33])
def test_float16_weights_multiply_in_one_operator_each(rand: Path, num_tokens: int) -> None:
    one = driver(load_fast(rand, torch.float32, weight_dtype=torch.float16), torch.float32)
    r = request(0, PROMPTS[0] * num_tokens, 3)
    for names in (operators(one, r), operators(one, r)):
        assert names["quantized::linear_dynamic_fp16"] == 4 * 3 + 1
        assert not {"mkldnn::_linear_pointwise", "aten::linear", "aten::mm", "aten::addmm"} & names.keys()


@needs_onednn
def test_without_four_bits_every_product_is_a_packed_one(rand: Path) -> None:
    one = driver(load_fast(rand, DTYPE_HERE), DTYPE_HERE)
    r = request(0, PROMPTS[3], 3)
    for names in (operators(one, r), operators(one, r)):  # a step of the prompt, one of the answer
        assert names["mkldnn::_linear_pointwise"] == 4 * 3 + 1
        assert "aten::linear" not in names


def operators(one: Driver, r: Any) -> dict[str, int]:
    """How often each operator ran in one step."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        one.run([one.scheduled(r, 1000)])
    return {event.key: event.count for event in profiled.key_averages()}


class TestQuantization:
    @needs_int4
    def test_float32_with_four_bits_is_no_further_from_exact_than_bfloat16(self, rand_q4_1: Path) -> None:
        answers = load_fast(rand_q4_1, torch.float32, quantization="int4").model.answer_form
        assert answers is not None
        exact = logits_of(load(rand_q4_1, torch.float32)[0], torch.float32)
        rounded = logits_of(load(rand_q4_1, torch.bfloat16)[0], torch.bfloat16)
        assert (logits_of(answers, torch.float32) - exact).norm() < 1.2 * (rounded - exact).norm()

    @pytest.mark.slow
    @needs_int4
    def test_float32_that_was_asked_for_stays_exact(self) -> None:
        file = str(real_model.smollm2_gguf())
        asked = open_model(file, "cpu", "float32")
        assert load_model(asked, "auto", 4, 16).info["quantization"] == "none"
        with pytest.raises(ModelError, match="cannot go with --dtype float32"):
            load_model(asked, "int4", 4, 16)

    @pytest.mark.slow
    @needs_float16
    def test_auto_prefers_float16_weights_where_there_is_no_bfloat16(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loading, "has_fast_bfloat16", lambda: False)
        opened = open_model(str(real_model.smollm2_gguf()), "cpu", "auto")
        loaded = load_model(opened, "auto", 4, 16)
        assert loaded.info["dtype"] == "float32, weights float16"
        assert loaded.info["quantization"] == "none"
        assert loaded.runner.model.nbytes < 0.75 * 4 * 134_515_008  # embedding in float32, matrices in float16
        assert load_model(opened, "int4", 4, 16).info["quantization"] == "int4"

    def test_auto_takes_a_files_own_blocks_and_nothing_else(self, rand: Path, rand_q4_1: Path) -> None:
        expected = "int4" if has_int4_linear() and has_measured_int4_linear() else "none"
        assert load_fast(rand_q4_1, torch.bfloat16).quantization == expected
        assert load_fast(rand_q4_1, torch.float16).quantization == "none"
        assert load_fast(rand_q4_1, torch.bfloat16, quantization="none").model.answer_form is None
        assert load_fast(rand, torch.bfloat16).reason == "none: the file holds no 4-bit blocks (Q4_0 or Q4_1)"

    @pytest.mark.parametrize(
        ("dtype", "words"), [(torch.float16, "need bfloat16"), (torch.bfloat16, "no 4-bit blocks")]
    )
    def test_int4_that_cannot_be_is_refused_in_words(self, rand: Path, dtype: torch.dtype, words: str) -> None:
        with pytest.raises(ModelError, match=rf"--quantization int4: .*{words}.*; use --quantization none"):
            load_fast(rand, dtype, quantization="int4")

    def test_an_unknown_one_is_refused(self, rand: Path) -> None:
        with pytest.raises(ModelError, match="'int3' is not one of auto, none, int4"):
            load_fast(rand, torch.bfloat16, quantization="int3")
