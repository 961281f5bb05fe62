"""The command line: its options, their defaults, and which combinations cannot be.

Owns what `python app.py` accepts. Never imports torch or reads a weight: whatever is wrong with the options is said in
one line before anything is loaded.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from engine.scheduling.sampling_params import InvalidRequest
from engine.settings import DECODE_SELECTIONS, KV_LAYOUTS, POLICIES, POLICY_ALIASES, EngineSettings

API_KEY_VARIABLE = "TINY_VLLM_API_KEY"
ARGUMENTS_VARIABLE = "TINY_VLLM_ARGS"
"""Options for where no command line can be given, as on a Space; those on the command line win."""
ZERO_GPU = (
    "ZeroGPU lends a card to one call at a time and cannot hold an engine that keeps its model and its KV pool there; "
    f"give the Space hardware of its own, or set ${ARGUMENTS_VARIABLE} to "
    '"--replay assets/playground-trace.jsonl.gz" (a recorded run) or to "--device cpu"'
)
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = ("auto", "none", "int4")

DEFAULT_SIZES: dict[str, dict[str, int]] = {
    "cpu": {"num_blocks": 512, "max_num_seqs": 8, "max_num_batched_tokens": 512},
    "cuda": {"num_blocks": 4096, "max_num_seqs": 64, "max_num_batched_tokens": 4096},
}


class CannotStart(Exception):
    """What was asked for cannot be served; one line that says what is wrong and what to do. Exit code 2."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, parsed and checked. A size of None takes the device's or the model's default."""

    model: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "auto"
    policy: str = "continuous"
    decode_selection: str = "round_robin"
    kv_layout: str = "paged"
    block_size: int = 16
    num_blocks: int | None = None
    sizes_pool_from_memory: bool = False
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    max_queue: int = 256
    prefix_caching: bool = True
    served_model_name: str | None = None
    api_key: str | None = None
    lock_controls: bool = False
    check_invariants: bool = False
    host: str = "127.0.0.1"
    port: int = 7860
    record: Path | None = None
    replay: Path | None = None
    attach: str | None = None

    def engine_settings(self, device: str, max_model_len: int) -> EngineSettings:
        """The engine's settings on `device` ("cpu" or "cuda") for a model whose context is `max_model_len`.

        Where the pool is sized from memory, the device's default stands in its place. Raises InvalidRequest.
        """
        sizes = DEFAULT_SIZES[device]
        if self.max_model_len is not None and self.max_model_len > max_model_len:
            raise InvalidRequest(
                f"max_model_len ({self.max_model_len}) is more than the model was trained for ({max_model_len})",
                "max_model_len",
            )
        return EngineSettings(
            policy=self.policy,
            decode_selection=self.decode_selection,
            kv_layout=self.kv_layout,
            prefix_caching=self.prefix_caching,
            block_size=self.block_size,
            num_blocks=_given(self.num_blocks, sizes["num_blocks"]),
            max_num_seqs=_given(self.max_num_seqs, sizes["max_num_seqs"]),
            max_num_batched_tokens=_given(self.max_num_batched_tokens, sizes["max_num_batched_tokens"]),
            max_model_len=_given(self.max_model_len, max_model_len),
            max_queue=self.max_queue,
        )


def parse(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> Options:
    """The options of `arguments` (the process's own when None). Ends the process with code 2 and one line if wrong."""
    parser = _parser(environment)
    given = sys.argv[1:] if arguments is None else arguments
    values = vars(parser.parse_args([*_words(parser, environment.get(ARGUMENTS_VARIABLE, "")), *given]))
    values["sizes_pool_from_memory"] = values["num_blocks"] == "auto"
    if values["sizes_pool_from_memory"]:
        values["num_blocks"] = None
    options = Options(**values)
    try:
        _check(options)
    except InvalidRequest as error:
        parser.error(in_option_words(error))
    has_zero_gpu = environment.get("SPACES_ZERO_GPU", "").lower() in ("1", "true", "t")
    if has_zero_gpu and options.replay is None and options.device != "cpu":
        parser.error(ZERO_GPU)
    return options


def _words(parser: argparse.ArgumentParser, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        parser.error(f"${ARGUMENTS_VARIABLE} cannot be split into words ({error})")


def in_option_words(error: InvalidRequest) -> str:
    """The error's words with settings written as on the command line: `--block-size`, not `block_size`."""
    names = "|".join(field.name for field in fields(EngineSettings) if field.name != "policy")
    return re.sub(rf"\b({names})\b", lambda match: "--" + match[1].replace("_", "-"), str(error))


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line: the usage of two dozen options would hide it."""
        self.exit(2, f"{self.prog}: error: {message} ({self.prog} --help lists the options)\n")


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    d = Options()
    parser = _OneLineParser(
        prog="app.py",
        description="See how LLM serving works: a chat playground and an OpenAI-compatible server in one process.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", default=d.model, help="Hub id, local Hugging Face folder, .gguf file, or auto")
    add("--device", default=d.device, choices=DEVICES, help="where to compute; auto takes CUDA where there is a card")
    add("--dtype", default=d.dtype, choices=DTYPES, help="auto: what is fast and safe on the device")
    add(
        "--quantization",
        default=d.quantization,
        choices=QUANTIZATIONS,
        help="weight-only; auto uses a GGUF file's own 4-bit blocks where that is faster",
    )
    add("--policy", default=d.policy, choices=(*POLICY_ALIASES, *POLICIES), help="who runs next (default: %(default)s)")
    add(
        "--decode-selection",
        default=d.decode_selection,
        choices=DECODE_SELECTIONS,
        help="who decodes when not all fit a step (default: %(default)s)",
    )
    add("--kv-layout", default=d.kv_layout, choices=KV_LAYOUTS, help="where keys and values lie (default: %(default)s)")
    add("--block-size", type=_whole_number, default=d.block_size, help="tokens per KV block (default: %(default)s)")
    add(
        "--num-blocks",
        type=_number_or_auto,
        help="KV blocks (default: 512 on CPU, 4096 on CUDA), or auto: from free memory",
    )
    add("--max-num-seqs", type=_whole_number, help="most requests in one step (default: 8 on CPU, 64 on CUDA)")
    add(
        "--max-num-batched-tokens",
        type=_whole_number,
        help="most tokens in one step (default: 512 on CPU, 4096 on CUDA)",
    )
    add("--max-model-len", type=_whole_number, help="prompt + answer (default: the model's, capped by the pool)")
    add(
        "--max-queue",
        type=_whole_number,
        default=d.max_queue,
        help="requests that may wait; one more is refused with 429 (default: %(default)s)",
    )
    add("--no-prefix-caching", dest="prefix_caching", action="store_false", help="never reuse a prompt's blocks")
    add("--served-model-name", help="the model's name over HTTP (default: its own)")
    add(
        "--api-key",
        default=environment.get(API_KEY_VARIABLE) or None,
        help=f"also ${API_KEY_VARIABLE}; for /v1 and /engine",
    )
    add("--lock-controls", action="store_true", help="engine-wide switches can't be changed while it runs")
    add("--check-invariants", action="store_true", help="check the design's invariants after every step")
    host = "0.0.0.0" if "SPACE_ID" in environment else d.host
    add(
        "--host",
        default=environment.get("GRADIO_SERVER_NAME", host),
        help="also $GRADIO_SERVER_NAME (default: %(default)s)",
    )
    add(
        "--port",
        type=_port,
        default=environment.get("GRADIO_SERVER_PORT", str(d.port)),
        help="also $GRADIO_SERVER_PORT (default: %(default)s)",
    )
    add("--record", type=Path, metavar="FILE", help="write the run's trace")
    add("--replay", type=Path, metavar="FILE", help="show a saved trace, without a model")
    add("--attach", metavar="URL", help="put the page in front of an OpenAI-compatible server that runs already")
    return parser


def _check(options: Options) -> None:
    # What `auto` will be is known later. CUDA's sizes are the larger ones: what they refuse is wrong on both.
    device = "cpu" if options.device == "cpu" else "cuda"
    options.engine_settings(device, max_model_len=options.max_model_len or 1_000_000)
    if options.quantization not in ("auto", "none") and options.dtype == "float32":
        raise InvalidRequest(
            f"--quantization {options.quantization} rounds to bfloat16; it cannot go with --dtype float32"
        )
    if options.api_key is not None and (not options.api_key.isascii() or options.api_key.split() != [options.api_key]):
        raise InvalidRequest(
            f"--api-key (or ${API_KEY_VARIABLE}) must be a word of ASCII characters without spaces, and not empty"
        )
    if options.served_model_name == "":
        raise InvalidRequest("--served-model-name must not be empty")
    if options.replay is not None:
        _check_replay(options)
    if options.attach is not None:
        _check_attach(options)
    if options.record is not None and (options.record.is_dir() or not options.record.absolute().parent.is_dir()):
        raise InvalidRequest(f"--record {options.record}: not a file in a folder that exists")


def _check_replay(options: Options) -> None:
    if options.record is not None:
        raise InvalidRequest("--replay shows a saved run and records nothing; leave --record out")
    if options.model != "auto":
        raise InvalidRequest("--replay shows a saved run without a model; leave --model out")
    if options.replay is not None and not options.replay.is_file():
        raise InvalidRequest(f"--replay {options.replay}: there is no such file")


def _check_attach(options: Options) -> None:
    for name in ("record", "replay"):
        if getattr(options, name) is not None:
            raise InvalidRequest(f"--attach shows another server and knows no records of it; leave --{name} out")
    if options.model != "auto":
        raise InvalidRequest("--attach uses the other server's model; leave --model out")
    address = urlsplit(options.attach or "")
    if address.scheme not in ("http", "https") or not address.hostname:
        raise InvalidRequest("--attach needs an address such as http://127.0.0.1:8000")


def _given(value: int | None, default: int) -> int:
    return default if value is None else value


def _whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, got {text!r}")
    return int(text)


def _number_or_auto(text: str) -> Any:
    return text if text == "auto" else _whole_number(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, got {text!r}")
    return int(text)
