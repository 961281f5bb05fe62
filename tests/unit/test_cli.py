"""The command line: defaults, ranges, and one clear line for what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import cli
from engine.cli import Options


def parse(*arguments: str, **environment: str) -> Options:
    return cli.parse(arguments, environment)


def test_nothing_said_is_the_contracts_defaults() -> None:
    options = parse()
    assert options == Options()
    assert (options.host, options.port) == ("127.0.0.1", 7860)
    cpu, cuda = (options.engine_settings(device, 8192) for device in ("cpu", "cuda"))
    assert (cpu.num_blocks, cpu.max_num_seqs, cpu.max_num_batched_tokens) == (512, 8, 512)
    assert (cuda.num_blocks, cuda.max_num_seqs, cuda.max_num_batched_tokens) == (4096, 64, 4096)
    assert (cpu.policy, cpu.kv_layout, cpu.block_size, cpu.max_queue, cpu.prefix_caching) == (
        "mixed",
        "paged",
        16,
        256,
        True,
    )
    assert cpu.max_model_len == 8192


def test_every_option_reaches_the_settings() -> None:
    sizes = "--block-size 8 --num-blocks 99 --max-num-seqs 3 --max-num-batched-tokens 77 --max-model-len 300"
    switches = "--policy static --decode-selection sticky --kv-layout contiguous --max-queue 5 --no-prefix-caching"
    options = parse(*f"{sizes} {switches}".split())
    s = options.engine_settings("cpu", 8192)
    assert (s.policy, s.decode_selection, s.kv_layout, s.block_size) == ("static", "sticky", "contiguous", 8)
    assert (s.num_blocks, s.max_num_seqs, s.max_num_batched_tokens, s.max_model_len) == (99, 3, 77, 300)
    assert (s.max_queue, s.prefix_caching) == (5, False)


def test_the_environment_speaks_where_the_command_line_does_not() -> None:
    environment = {"GRADIO_SERVER_NAME": "::1", "GRADIO_SERVER_PORT": "81", "TINY_VLLM_API_KEY": "k"}
    options = parse(**environment)
    assert (options.host, options.port, options.api_key) == ("::1", 81, "k")
    options = parse("--host", "0.0.0.0", "--port", "82", "--api-key", "j", **environment)
    assert (options.host, options.port, options.api_key) == ("0.0.0.0", 82, "j")
    assert parse(SPACE_ID="someone/space").host == "0.0.0.0"
    assert parse(TINY_VLLM_API_KEY="").api_key is None


def test_options_may_stand_in_the_environment_and_the_command_line_wins() -> None:
    words = "--lock-controls --num-blocks 64 --served-model-name 'my model'"
    options = parse("--num-blocks", "32", TINY_VLLM_ARGS=words)
    assert (options.lock_controls, options.num_blocks, options.served_model_name) == (True, 32, "my model")


def test_options_in_the_environment_that_are_no_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(TINY_VLLM_ARGS="--model 'half")
    assert caught.value.code == 2
    assert "TINY_VLLM_ARGS" in capsys.readouterr().err


def test_zero_gpu_is_refused_and_told_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"SPACES_ZERO_GPU": "true", "SPACE_ID": "someone/space"}
    with pytest.raises(SystemExit) as caught:
        parse(**environment)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "--replay assets/playground-trace.jsonl.gz" in error
    trace = tmp_path / "t.jsonl"
    trace.touch()
    assert parse(**environment, TINY_VLLM_ARGS=f"--replay {trace}").replay == trace
    assert parse("--device", "cpu", **environment).device == "cpu"


def test_the_pool_may_be_sized_from_memory() -> None:
    options = parse("--num-blocks", "auto")
    assert options.sizes_pool_from_memory
    assert options.num_blocks is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--policy fast", "--policy"),
        ("--block-size 0", "--block-size"),
        ("--block-size -4", "--block-size"),
        ("--block-size 1.5", "--block-size"),
        ("--block-size 99999999999999999999", "--block-size"),
        ("--num-blocks many", "--num-blocks"),
        ("--max-num-seqs 0", "--max-num-seqs"),
        ("--max-queue 0", "--max-queue"),
        ("--max-model-len 1", "--max-model-len"),
        ("--port 65536", "--port"),
        ("--port x", "--port"),
        ("--dtype float8", "--dtype"),
        ("--device tpu", "--device"),
        ("--quantization int3", "--quantization"),
        ("--quantization int4 --dtype float32", "float32"),
        ("--policy static --device cpu --max-num-seqs 600", "--max-num-seqs"),
        ("--block-size 1 --num-blocks 1", "--num-blocks"),
        ("--api-key=", "--api-key"),
        ("--api-key=a\tb", "--api-key"),
        ("--api-key=schlüssel", "--api-key"),
        ("--served-model-name=", "--served-model-name"),
        ("--replay no-such-file", "no such file"),
        ("--record no-such-folder/file", "--record"),
        ("--polic static", "--polic"),
        ("stray", "stray"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(*arguments.split(" "))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_replay_is_for_a_saved_run_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "run.jsonl"
    trace.write_text("")
    assert parse("--replay", str(trace)).replay == trace
    for more in (["--model", "x"], ["--record", str(tmp_path / "y")]):
        with pytest.raises(SystemExit):
            parse("--replay", str(trace), *more)


def test_help_shows_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--help", TINY_VLLM_API_KEY="very-secret")
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--num-blocks" in said
    assert "very-secret" not in said


def test_a_context_longer_than_the_models_is_refused() -> None:
    with pytest.raises(ValueError, match="8192"):
        parse("--max-model-len", "9000").engine_settings("cpu", 8192)
