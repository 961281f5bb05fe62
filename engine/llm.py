"""The engine without a server: prompts in, answers out, for notebooks and scripts.

Owns the loop that runs the engine until all prompts of a call are answered, in the caller's thread. The names are
vLLM's (`LLM`, `generate`, `chat`, `RequestOutput`), so that what is known of that works here. This is the fifth of the
inference modes that begin in `engine.model.generate`: continuous batching.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from engine.cli import Options
from engine.engine import Engine
from engine.loading import LoadedModel, load_model, open_model
from engine.scheduling.plan import SampledToken
from engine.scheduling.sampling_params import SamplingParams
from engine.serving.intake import Intake
from engine.serving.open_streams import OpenStreams
from engine.serving.stream import RequestMetrics, RequestStream, StreamChunk
from engine.settings import EngineSettings
from engine.telemetry.record import StepRecord

Prompt = str | Sequence[int]
"""Text, or token ids."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer. `logprobs` has an entry a token where they were asked for; `error` says what went wrong, if
    `finish_reason` is "error"."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    logprobs: tuple[SampledToken, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One prompt and its `n` answers. `prompt` is None for a prompt of token ids; `metrics` are the first answer's."""

    request_id: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics | None = None


class LLM:
    """A model with an engine around it. `records` are those of the last call's steps.

    `model` and `options` are the command line's: `LLM("auto", num_blocks=64, policy="static", dtype="float32")`.

    Raises ModelError when there is no such model, InvalidRequest for an option that cannot be.
    """

    def __init__(self, model: str = "auto", **options: Any) -> None:
        chosen = Options(model=model, **options)
        opened = open_model(chosen.model, chosen.device, chosen.dtype)
        settings = chosen.engine_settings(opened.device, opened.config.max_position_embeddings)
        loaded = load_model(opened, chosen.quantization, settings.num_blocks, settings.block_size)
        self._set_up(loaded, settings, chosen.check_invariants)

    @classmethod
    def of(cls, loaded: LoadedModel, settings: EngineSettings, check_invariants: bool = False) -> Self:
        """Around a model that is loaded already. Its pool becomes this engine's."""
        llm = cls.__new__(cls)
        llm._set_up(loaded, settings, check_invariants)
        return llm

    def _set_up(self, loaded: LoadedModel, settings: EngineSettings, check_invariants: bool) -> None:
        self.tokenizer = loaded.tokenizer
        self.engine = Engine(loaded.runner, settings, check_invariants=check_invariants)
        self.records: list[StepRecord] = []
        self._intake = Intake(loaded.tokenizer, loaded.eos_token_ids, loaded.vocab_size)
        self._next_id = 1

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer all prompts, continuously batched; one output a prompt, in order.

        `prompts` is one text or one list of token ids, or a list of such; `sampling_params` one for all, or one each
        (default: `SamplingParams()`, 16 tokens at temperature 1).

        Raises InvalidRequest, before anything is computed, for a prompt that cannot be answered.
        """
        asked = _as_list(prompts)
        tokens = [tuple(self.tokenizer.encode(one)) if isinstance(one, str) else tuple(one) for one in asked]
        outputs = self._answer(tokens, _one_each(sampling_params, len(asked)), use_tqdm)
        texts = [one if isinstance(one, str) else None for one in asked]
        return [_output(text, ids, family) for text, ids, family in zip(texts, tokens, outputs, strict=True)]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several. Raises TextError when the model has no chat template."""
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if is_one else messages
        prompts = [self.tokenizer.chat_tokens(one, **(chat_template_kwargs or {})) for one in conversations]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def _answer(
        self, prompts: Sequence[tuple[int, ...]], params: Sequence[SamplingParams], use_tqdm: bool
    ) -> list[list[tuple[RequestStream, StreamChunk]]]:
        for prompt in prompts:
            self.engine.check_fits(len(prompt))
            self._intake.check_vocabulary(prompt)
        streams = OpenStreams(self.tokenizer, self.engine.abort)
        families = []
        for prompt, one in zip(prompts, params, strict=True):
            limit, now_s = self.engine.context_limit, self.engine.clock()
            requests = self._intake.family(self._next_id, prompt, one, limit, now_s)
            self._next_id += one.n
            families.append([streams.open(request, None) for request in requests])
            for request in requests:
                self.engine.add(request)
        try:
            self._run(streams, sum(map(len, families)), use_tqdm)
        finally:  # interrupted: nobody waits for the rest any more
            for request_id in streams.ids():
                self.engine.abort(request_id)
        return [[(stream, stream.result(0)) for stream in family] for family in families]

    def _run(self, streams: OpenStreams, count: int, use_tqdm: bool) -> None:
        from tqdm import tqdm

        self.records = []
        with tqdm(total=count, desc="Answers", disable=not use_tqdm) as bar:
            while streams.ids():
                record = self.engine.step()
                if record is None:  # a static cohort is forming
                    time.sleep(max(0.0, (self.engine.next_wake_s() or 0.0) - self.engine.clock()))
                    continue
                streams.publish(record, self.engine.last_output.sampled)
                self.records.append(record)
                bar.update(count - len(streams.ids()) - bar.n)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    is_one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
    return [prompts] if is_one else list(prompts)  # type: ignore[list-item, arg-type]


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise ValueError(f"{len(params)} sampling_params for {count} prompts; give one, or one each")
    return list(params)


def _output(
    text: str | None, prompt: tuple[int, ...], family: Sequence[tuple[RequestStream, StreamChunk]]
) -> RequestOutput:
    outputs = [
        CompletionOutput(index, chunk.text, chunk.token_ids, chunk.finish_reason, chunk.logprobs, chunk.error)
        for index, (_, chunk) in enumerate(family)
    ]
    first_stream, first_chunk = family[0]
    return RequestOutput(first_stream.request_id, text, prompt, outputs, first_chunk.metrics)
