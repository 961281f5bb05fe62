"""Pictures for which the model's own code runs: RoPE's wavelengths, and how a wrong RoPE shows itself.

Owns the small models they are measured on. The only pictures that need torch and transformers.
"""

from __future__ import annotations

import math

import torch

from engine.model.compare import compare_activations, our_activations, reference_activations, transformers_twin
from engine.model.config import ModelConfig
from engine.model.llama import Llama
from engine.model.rope import RopeParameters, inverse_frequencies
from viz.pictures import curves

LLAMA_32 = RopeParameters(500_000.0, "llama3", 32.0, 1.0, 4.0, 8192)
"""Of Llama-3.2-1B, as its config.json has it; head size 64."""


def rope_wavelengths() -> str:
    """How many positions each rotated pair takes for a whole turn, unscaled and with llama3's scaling."""
    series = []
    for name, rope in (("rope_theta alone", RopeParameters(LLAMA_32.rope_theta)), ("with llama3 scaling", LLAMA_32)):
        turns = 2 * math.pi / inverse_frequencies(rope, 64)
        series.append((name, [(float(pair), float(turn)) for pair, turn in enumerate(turns)]))
    return curves.lines(
        "Llama 3.2 1B: positions for a whole turn", "pair of the head's dimensions", "positions", series, log_y=True
    )


def errors_by_activation() -> list[tuple[str, float]]:
    """(activation, relative error) of a random Llama whose RoPE is scaled, beside a twin whose RoPE is not."""
    config = ModelConfig.from_hf(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 260,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
            "rope_theta": 10_000.0,
        }
    )
    model = Llama(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.1 if "norm" in name else 0.3, generator=generator)
    twin = transformers_twin(model, config, None)
    scaled = RopeParameters(10_000.0, "llama3", 8.0, 1.0, 4.0, 64)
    model.rotary.inv_freq = inverse_frequencies(scaled, config.head_dim)
    tokens = torch.randint(0, 260, (150,), generator=generator)
    rows = compare_activations(our_activations(model, tokens), reference_activations(twin, tokens), 3)
    return [(row.name, row.relative_error) for row in rows]


def parity_error() -> str:
    """The same as a picture."""
    rows = errors_by_activation()
    first = next(index for index, (_, error) in enumerate(rows) if error > 1e-4)
    series = [("relative error", [(float(index), max(error, 1e-9)) for index, (_, error) in enumerate(rows)])]
    return curves.lines(
        "RoPE scaled on one side only: the error of every activation",
        "activation, in the order of computation",
        "relative error",
        series,
        log_y=True,
        marks=[(float(first), rows[first][1], f"{rows[first][0]}: the first that departs")],
    )
