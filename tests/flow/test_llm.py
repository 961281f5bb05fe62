"""The engine without a server, and the five inference modes side by side."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import engine
from engine import LLM, SamplingParams
from engine.loading import LoadedModel, OpenedModel, load_model
from engine.model import checkpoint, generate
from engine.model.source import ModelSource
from engine.scheduling.sampling_params import InvalidRequest
from engine.settings import EngineSettings
from tests import real_model, tiny_models
from tests.flow.tiny_runs import EOS, prompt

OFFLINE = (generate.singleton_no_kv, generate.singleton_kv, generate.static_batch_no_kv, generate.static_batch_kv)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def llm(folder: Path, **options: Any) -> LLM:
    sizes = {"dtype": "float32", "device": "cpu", "max_model_len": 512, "check_invariants": True}
    return LLM(str(folder), **(sizes | options))


GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


# -- the fifth mode ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_all_five_modes_answer_as_each_prompt_alone(tmp_path: Path, seed: int) -> None:
    folder = tiny_models.rand(tmp_path, seed=seed, tie_word_embeddings=seed == 0)
    prompts = [prompt(10 * seed + i, length) for i, length in enumerate((1, 9, 16, 33, 70, 140))]
    expected = [tiny_models.oracle(folder, one, 8) for one in prompts]
    model, _ = checkpoint.load(folder, torch.float32)
    for mode in OFFLINE:
        assert mode(model, prompts, 8, EOS).token_ids == expected
    outputs = llm(folder).generate(prompts, GREEDY, use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected


@pytest.mark.slow
def test_all_five_modes_on_smollm2() -> None:
    path = real_model.smollm2_gguf()
    made = LLM(str(path), dtype="float32", device="cpu", max_model_len=512, num_blocks=64, max_num_batched_tokens=48)
    texts = ["The capital of France is", "One, two, three,", "Water is made of hydrogen and"]
    prompts = [made.tokenizer.encode(text) for text in texts]
    model, config = checkpoint.load(path, torch.float32)
    expected = generate.singleton_no_kv(model, prompts, 5, config.eos_token_ids).token_ids
    for mode in OFFLINE[1:]:
        assert mode(model, prompts, 5, config.eos_token_ids).token_ids == expected
    outputs = made.generate(texts, SamplingParams(temperature=0.0, max_tokens=5), use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected
    assert "Paris" in outputs[0].outputs[0].text
    with torch.inference_mode():
        for one, answer in zip(prompts, expected, strict=True):
            theirs = real_model.smollm2_reference()(torch.tensor([[*one, *answer]])).logits[0]
            assert answer == theirs[len(one) - 1 : -1].argmax(dim=-1).tolist()


# -- what it answers --------------------------------------------------------------------------------------------


def test_text_in_text_out(tmp_path: Path) -> None:
    made = llm(tiny_models.chain(tmp_path, "wxyz"))
    outputs = made.generate(["ab", "w"], SamplingParams(temperature=0.0, max_tokens=10), use_tqdm=False)
    assert [output.prompt for output in outputs] == ["ab", "w"]
    assert outputs[1].prompt_token_ids == tuple(tiny_models.token_ids("w"))
    assert [output.outputs[0].text for output in outputs] == ["wxyz", "xyz"]
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop", "stop"]
    assert outputs[1].outputs[0].token_ids == (*tiny_models.token_ids("xyz"), 1)
    assert outputs[0].metrics is not None
    assert outputs[0].metrics.num_output_tokens == 5


def test_one_prompt_in_each_form(tmp_path: Path) -> None:
    made = llm(tiny_models.chain(tmp_path, "wxyz"))
    ids = tiny_models.token_ids("w")
    for one in ("w", ids, tuple(ids), ["w"], [ids]):
        assert [output.outputs[0].text for output in made.generate(one, GREEDY, use_tqdm=False)] == ["xyz"]
    assert made.generate([], GREEDY, use_tqdm=False) == []


def test_settings_for_all_or_one_each(tmp_path: Path) -> None:
    made = llm(tiny_models.chain(tmp_path, "wxyz"))
    each = [SamplingParams(temperature=0.0, max_tokens=n) for n in (1, 3)]
    outputs = made.generate(["w", "w"], each, use_tqdm=False)
    assert [output.outputs[0].text for output in outputs] == ["x", "xyz"]
    with pytest.raises(ValueError, match="2 sampling_params for 3 prompts"):
        made.generate(["w"] * 3, each, use_tqdm=False)
    assert len(made.generate("w", use_tqdm=False)[0].outputs[0].token_ids) <= 16


def test_stop_strings_and_choices(tmp_path: Path) -> None:
    made = llm(tiny_models.chain(tmp_path, "wxyz", eos=None, next_token={tiny_models.token_ids("z")[0]: 119 + 4}))
    params = SamplingParams(temperature=0.0, max_tokens=10, stop=("yz",), n=3)
    output = made.generate("ab", params, use_tqdm=False)[0]
    assert [(one.index, one.text, one.finish_reason) for one in output.outputs] == [(i, "wx", "stop") for i in range(3)]


def test_log_probabilities(rand: Path) -> None:
    output = llm(rand).generate(prompt(1, 9), SamplingParams(temperature=0.0, logprobs=2), use_tqdm=False)[0].outputs[0]
    assert len(output.logprobs) == len(output.token_ids)
    assert [one.token_id for one in output.logprobs] == list(output.token_ids)
    assert all(one.top_logprobs[0][0] == one.token_id for one in output.logprobs)


def test_conversations(tmp_path: Path) -> None:
    made = llm(tiny_models.chain(tmp_path, "hello"[:3]))
    hi = [{"role": "user", "content": "hi"}]
    one = made.chat(hi, GREEDY, use_tqdm=False)
    two = made.chat([hi, [*hi, {"role": "assistant", "content": "x"}, *hi]], GREEDY, use_tqdm=False)
    assert [len(one), len(two)] == [1, 2]
    assert made.tokenizer.decode(one[0].prompt_token_ids) == "user: hi\nassistant: "
    assert one[0].outputs[0].text == two[0].outputs[0].text == "hel"


@pytest.mark.parametrize("policy", ["static", "mixed"])
def test_calls_in_a_row_are_alike(rand: Path, policy: str) -> None:
    made = llm(rand, policy=policy, num_blocks=16, max_num_seqs=4)
    prompts = [prompt(i, 10 + i) for i in range(9)]
    first = made.generate(prompts, GREEDY, use_tqdm=False)
    second = made.generate(prompts[::-1], GREEDY, use_tqdm=False)[::-1]
    for one, two, ids in zip(first, second, prompts, strict=True):
        expected = tiny_models.oracle(rand, ids, 8)
        assert list(one.outputs[0].token_ids) == list(two.outputs[0].token_ids) == expected
        assert one.prompt_token_ids == two.prompt_token_ids == tuple(ids)
    assert made.engine.scheduler.kv.num_active_blocks == 0
    assert made.records[0].step == made.records[-1].step - len(made.records) + 1
    assert made.records[0].step > 1


def test_what_cannot_be_answered_is_refused_before_anything_runs(rand: Path) -> None:
    made = llm(rand)
    for bad, words in (([], "empty"), ([1] * 600, "600 tokens"), ([260], "vocabulary")):
        with pytest.raises(InvalidRequest, match=words):
            made.generate([prompt(1, 5), bad], GREEDY, use_tqdm=False)
    assert made.engine.num_steps == 0
    assert not made.engine.can_work


def test_an_interrupted_call_leaves_nothing_behind(rand: Path) -> None:
    made = llm(rand)
    run, steps = made.engine.runner.run, []

    def interrupted(plan: Any) -> Any:
        steps.append(plan)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return run(plan)

    made.engine.runner.run = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.generate([prompt(i, 20) for i in range(5)], GREEDY, use_tqdm=False)
    assert not made.engine.can_work
    assert made.engine.scheduler.kv.num_active_blocks == 0
    output = made.generate(prompt(1, 20), GREEDY, use_tqdm=False)[0]
    assert list(output.outputs[0].token_ids) == tiny_models.oracle(rand, prompt(1, 20), 8)


def test_a_failed_step_is_told_in_the_output(rand: Path) -> None:
    made = llm(rand)
    run = made.engine.runner.run
    made.engine.runner.run = lambda plan: 1 // 0  # type: ignore[method-assign, assignment, return-value]
    output = made.generate("x", GREEDY, use_tqdm=False)[0].outputs[0]
    assert output.finish_reason == "error"
    assert "ZeroDivisionError" in (output.error or "")
    made.engine.runner.run = run  # type: ignore[method-assign]
    assert made.generate("x", GREEDY, use_tqdm=False)[0].outputs[0].finish_reason == "length"


def test_progress_is_shown_if_wanted(rand: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = llm(rand)
    made.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert capfd.readouterr().err == ""
    made.generate(["a", "b"], GREEDY)
    assert "2/2" in capfd.readouterr().err


def test_around_a_model_that_is_loaded_already(rand: Path) -> None:
    config, _ = checkpoint.open_weights(rand)
    opened = OpenedModel(ModelSource(rand, "folder", "rand", "a test"), config, "cpu", torch.float32)
    loaded: LoadedModel = load_model(opened, "none", 32, 16)
    made = LLM.of(loaded, EngineSettings(num_blocks=20, max_model_len=256), check_invariants=True)
    assert list(made.generate(prompt(1, 20), GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == tiny_models.oracle(
        rand, prompt(1, 20), 8
    )


# -- the package ------------------------------------------------------------------------------------------------


def test_names_come_lazily() -> None:
    assert engine.SamplingParams is SamplingParams
    assert set(engine.__all__) == {"LLM", "RequestOutput", "SamplingParams"}
    with pytest.raises(AttributeError, match="nonsense"):
        engine.nonsense  # noqa: B018
    code = "import sys; from engine import SamplingParams; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
