"""Small models on disk, as Hugging Face folders, and what transformers answers with them.

`chain`, `hist`, `rand` and `poison` write a folder and return its path; each docstring says what the model makes
visible. All share the tokenizer of `save_tokenizer`: ids 0..3 are specials, 4 + b is byte b, 260 ids in all.
`oracle` is the reference: transformers, greedy, float32, one prompt alone.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SPECIALS = ("<|bos|>", "<|eos1|>", "<|eos2|>", "<|eos3|>")
BOS = 0
EOS_IDS = (1, 2, 3)
NUM_TOKENS = 260
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def token_ids(text: str) -> list[int]:
    """The ids of `text`, without bos: one per UTF-8 byte."""
    return [4 + byte for byte in text.encode()]


def save_tokenizer(folder: Path, chat_template: str | None = CHAT_TEMPLATE) -> None:
    """TOK: byte-level BPE with 256 byte tokens and no merges, four specials; adds no bos on its own.

    An emoji is 4 tokens, an accented letter 2, so an incremental detokenizer cannot cheat.
    """
    alphabet = _byte_alphabet()
    vocab = {token: number for number, token in enumerate(SPECIALS)}
    vocab |= {alphabet[byte]: 4 + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIALS[0],
        eos_token=SPECIALS[1],
        clean_up_tokenization_spaces=False,
    )
    if chat_template is not None:
        fast.chat_template = chat_template
    fast.save_pretrained(folder)


def chain(
    folder: Path,
    script: str | Sequence[int] = "abc",
    eos: int | None = 1,
    next_token: Mapping[int, int] | None = None,
    generation_eos: int | Sequence[int] | None = EOS_IDS,
) -> Path:
    """CHAIN: answers by an automaton "token t -> next(t)", whatever came before t.

    Identity embedding, muted o_proj and down_proj, `lm_head[next(t), t] = 1`, untied. `script` (text, or token ids) is
    what it says after any token the script does not contain; then `eos`, if given. Repeated tokens in the script must
    always be followed by the same token. `next_token` overrides single transitions. For detokenizing, stop strings,
    end-of-sequence ids and finish reasons.
    """
    ids = token_ids(script) if isinstance(script, str) else list(script)
    follows = dict.fromkeys(range(NUM_TOKENS), ids[0])
    scripted: dict[int, int] = {}
    for now, then in itertools.pairwise(ids):
        if scripted.setdefault(now, then) != then:
            raise ValueError(f"token {now} is followed by both {scripted[now]} and {then}: no automaton says that")
    if eos is not None:
        scripted.setdefault(ids[-1], eos)
    follows |= scripted | dict(next_token or {})
    model = LlamaForCausalLM(
        _llama_config(
            hidden_size=NUM_TOKENS,
            num_attention_heads=2,
            num_key_value_heads=1,
            num_hidden_layers=1,
            intermediate_size=8,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(NUM_TOKENS))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for now, then in follows.items():
            model.lm_head.weight[then, now] = 1.0
    return _save(model, folder, generation_eos)


def hist(folder: Path, seed: int = 0) -> Path:
    """HIST: the next token depends on the multiset of the context's tokens and on nothing else about them.

    One layer, q = k = 0 (uniform attention), v and o the identity, a random head: a missing, doubled or foreign
    key/value slot moves the answer, a reordering does not (the newest token aside, which also adds its own embedding).
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        _llama_config(
            hidden_size=NUM_TOKENS,
            num_attention_heads=2,
            num_key_value_heads=2,
            num_hidden_layers=1,
            intermediate_size=8,
            tie_word_embeddings=False,
        )
    )
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(NUM_TOKENS))
        attention.q_proj.weight.zero_()
        attention.k_proj.weight.zero_()
        attention.v_proj.weight.copy_(torch.eye(NUM_TOKENS))
        attention.o_proj.weight.copy_(torch.eye(NUM_TOKENS))
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.normal_()
        model.lm_head.weight.diagonal().sub_(6.0)  # what was said is said less often: no answer gets stuck
    return _save(model, folder, EOS_IDS)


def rand(
    folder: Path,
    seed: int = 0,
    architecture: str = "llama",
    generation_eos: int | Sequence[int] | None = EOS_IDS,
    max_shard_size: str = "5GB",
    **overrides: Any,
) -> Path:
    """RAND: three small layers with large random weights, tied, llama3 RoPE with an original context of 64.

    Sensitive to every prompt token and every position, with margins wide enough that equality of tokens with
    transformers in float32 is a fair test. `architecture` is llama, qwen2 or qwen3; `overrides` are config keys, such
    as tie_word_embeddings=False, attention_bias=True, mlp_bias=True, head_dim=24, vocab_size=288 (then the rows past
    the tokenizer's 260 ids are made large, so that whoever forgets to mask them samples them).
    """
    torch.manual_seed(seed)
    configs = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
    classes = {"llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM, "qwen3": Qwen3ForCausalLM}
    if architecture == "qwen3":
        overrides.setdefault("head_dim", 16)
    model = classes[architecture](_llama_config(configs[architecture], **overrides))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
            elif "norm" in name:
                parameter.normal_(mean=1.0, std=0.1)
        if model.config.vocab_size > NUM_TOKENS:
            model.lm_head.weight[NUM_TOKENS:] *= 5
    return _save(model, folder, generation_eos, max_shard_size)


def poison(folder: Path, poisoned_token: int = token_ids("!")[0], seed: int = 0) -> Path:
    """POISON: RAND, untied, whose embedding of one token is NaN: NaN logits, keys and values for whoever holds it.

    The head is a clean copy with the poisoned row zeroed, so that no other request ever samples that token.
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(_llama_config(tie_word_embeddings=False))
    with torch.no_grad():
        model.lm_head.weight[poisoned_token] = 0.0
        model.model.embed_tokens.weight[poisoned_token] = float("nan")
    return _save(model, folder, EOS_IDS)


def oracle(folder: Path, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
    """The new tokens transformers answers with, greedy, float32, sdpa, this prompt alone; the eos id included."""
    return list(_generated(Path(folder), tuple(prompt_ids), max_new_tokens))


def reference_model(folder: Path) -> PreTrainedModel:
    """transformers' model of a folder in float32, loaded once per test session."""
    return _reference_model(Path(folder))


@functools.cache
def _reference_model(folder: Path) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    return model.eval()


@functools.cache
def _generated(folder: Path, prompt_ids: tuple[int, ...], max_new_tokens: int) -> tuple[int, ...]:
    prompt = torch.tensor([prompt_ids])
    model = _reference_model(folder)
    untold = list(range(NUM_TOKENS, model.config.vocab_size))  # rows past the tokenizer must never be sampled
    with torch.inference_mode():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            pad_token_id=EOS_IDS[0],
            suppress_tokens=untold or None,
        )
    return tuple(output[0, len(prompt_ids) :].tolist())


def _llama_config(kind: type = LlamaConfig, **overrides: Any) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": NUM_TOKENS,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 8192,
        "initializer_range": 0.3,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope_parameters": dict(LLAMA3_ROPE),
        "bos_token_id": BOS,
        "eos_token_id": EOS_IDS[0],
        "pad_token_id": None,
    }
    return kind(**(sizes | overrides))


def _save(
    model: PreTrainedModel, folder: Path, generation_eos: int | Sequence[int] | None, max_shard_size: str = "5GB"
) -> Path:
    folder = Path(folder)
    model.to(torch.float32).save_pretrained(folder, max_shard_size=max_shard_size)
    generation_file = folder / "generation_config.json"
    generation_file.unlink(missing_ok=True)
    if generation_eos is not None:
        eos = generation_eos if isinstance(generation_eos, int) else list(generation_eos)
        generation_file.write_text(json.dumps({"bos_token_id": BOS, "eos_token_id": eos, "do_sample": False}))
    save_tokenizer(folder)
    return folder


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in alphabet]
    return alphabet | {byte: chr(256 + number) for number, byte in enumerate(others)}
