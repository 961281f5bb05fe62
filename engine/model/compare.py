"""`python -m engine.model.compare MODEL`: this engine's forward pass beside transformers', activation by activation.

Answers the question one really has when the output is garbage: which tensor departs first? Owns the running of both and
the picture of the error by layer. Imports transformers and plotly only here, only when asked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.model.attention import FullAttention
from engine.model.checkpoint import load
from engine.model.collect import Collector
from engine.model.config import ModelConfig
from engine.model.errors import ModelError
from engine.model.llama import Llama
from engine.model.rope import RopeParameters
from engine.model.source import resolve

COMPARED = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.q_rope",
    "self_attn.k_rope",
    "self_attn.attention",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp",
)
"""What a layer computes, in order; the layer's own output follows."""


@dataclass(frozen=True, slots=True)
class Row:
    """One activation on both sides: the largest difference, absolute and relative to the largest reference value."""

    name: str
    max_error: float
    relative_error: float


@torch.inference_mode()
def our_activations(model: Llama, token_ids: Tensor) -> dict[str, Tensor]:
    """Every activation of one recomputing pass over `token_ids` (N,), and the logits, by name."""
    with Collector(model) as collector:
        positions = torch.arange(len(token_ids), device=token_ids.device)
        hidden = model(token_ids, positions, collector.watching(FullAttention()))
        collector.record("logits", model.logits(hidden))
    return collector.activations


@torch.inference_mode()
def reference_activations(reference: Any, token_ids: Tensor) -> dict[str, Tensor]:
    """The same from a transformers model, under our names (without the leading `model.`)."""
    activations: dict[str, Tensor] = {}

    def record(name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, Tensor):
                activations[name] = first.detach().float().cpu().squeeze(0)

        return hook

    hooks = [
        module.register_forward_hook(record(name.removeprefix("model.")))
        for name, module in reference.named_modules()
        if name.startswith("model.")
    ]
    usual_attention = reference.config._attn_implementation
    try:
        reference.set_attn_implementation(_register_recording_attention(activations))
        activations["logits"] = reference(token_ids[None]).logits[0].float().cpu()
    finally:
        reference.set_attn_implementation(usual_attention)
        for hook in hooks:
            hook.remove()
    return activations


def _register_recording_attention(activations: dict[str, Tensor]) -> str:
    """Give transformers an attention that notes q and k after RoPE and its answer; returns the name to ask for."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def recording(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Any:
        answer, weights = sdpa_attention_forward(module, query, key, value, mask, **kwargs)  # (1, N, H, D)
        name = f"layers.{module.layer_idx}.self_attn"
        activations[f"{name}.q_rope"] = query[0].transpose(0, 1).float().cpu()  # (N, H, D)
        activations[f"{name}.k_rope"] = key[0].transpose(0, 1).float().cpu()  # (N, Hkv, D)
        activations[f"{name}.attention"] = answer[0].flatten(1).float().cpu()  # (N, H * D)
        return answer, weights

    AttentionInterface.register("recording_sdpa", recording)
    AttentionMaskInterface.register("recording_sdpa", sdpa_mask)
    return "recording_sdpa"


def compare_activations(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], num_layers: int) -> list[Row]:
    """One row for each activation that both sides have, in the order of computation."""
    names = ["embed_tokens"]
    for layer in range(num_layers):
        names += [f"layers.{layer}.{part}" for part in COMPARED] + [f"layers.{layer}"]
    names += ["norm", "logits"]
    rows = []
    for name in names:
        if name not in ours or name not in theirs:
            continue
        error = (ours[name] - theirs[name].view_as(ours[name])).abs().max().item()
        rows.append(Row(name, error, error / max(theirs[name].abs().max().item(), 1e-12)))
    return rows


def first_departure(rows: Sequence[Row], tolerance: float) -> Row | None:
    """The first activation whose relative error is beyond `tolerance`, NaN included; None when all agree."""
    return next((row for row in rows if not row.relative_error <= tolerance), None)


def transformers_twin(model: Llama, config: ModelConfig, folder: Path | None) -> Any:
    """transformers' model: loaded from the folder by itself, or, for a GGUF file, given our weights.

    The second checks the computation alone, not the reading of the file.
    """
    import transformers

    if folder is not None:
        twin = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=model.embed_tokens.weight.dtype, attn_implementation="sdpa"
        )
        return twin.eval()
    if config.architecture != "LlamaForCausalLM" or config.rope != RopeParameters(config.rope.rope_theta):
        raise ModelError(
            "a GGUF file of this kind has no twin in transformers; compare its Hugging Face folder instead"
        )
    twin = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=config.tie_word_embeddings,
            attention_bias=config.attention_bias,
            mlp_bias=config.mlp_bias,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.rope_theta},
        )
    )
    weights = {("" if name.startswith("lm_head") else "model.") + name: p for name, p in model.named_parameters()}
    twin.load_state_dict(weights, strict=False)
    return twin.to(model.embed_tokens.weight.dtype).eval()


def write_picture(rows: Sequence[Row], title: str, out: Path) -> None:
    """An HTML page with the relative error of every activation, in the order of computation."""
    import plotly.graph_objects as go

    floor = 1e-9  # a logarithmic axis has no zero; exact agreement is drawn at the bottom
    kinds = sorted({_kind(row.name) for row in rows})
    figure = go.Figure()
    for kind in kinds:
        picked = [(index, row) for index, row in enumerate(rows) if _kind(row.name) == kind]
        figure.add_trace(
            go.Scatter(
                x=[index for index, _ in picked],
                y=[max(row.relative_error, floor) for _, row in picked],
                text=[row.name for _, row in picked],
                mode="lines+markers",
                name=kind,
                hovertemplate="%{text}<br>relative error %{y:.2e}<extra></extra>",
            )
        )
    figure.update_layout(
        title=title,
        xaxis_title="activation, in the order of computation",
        yaxis={"type": "log", "title": f"largest error / largest value ({floor:g} = equal)", "exponentformat": "power"},
        template="plotly_white",
    )
    figure.write_html(out, include_plotlyjs=True)


def _kind(name: str) -> str:
    """`layers.3.self_attn.q_proj` -> `self_attn.q_proj`; a layer itself -> `layer output`."""
    if not name.startswith("layers."):
        return name
    return name.split(".", 2)[2] if name.count(".") > 1 else "layer output"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, name the first departure, write the picture. Exit code 1 when something departs."""
    parser = argparse.ArgumentParser(prog="python -m engine.model.compare", description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="auto", help="Hub id, Hugging Face folder, .gguf file, or auto")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--num-tokens", type=int, default=150, help="length of the random prompt")
    parser.add_argument("--tolerance", type=float, help="relative; 1e-4 in float32, 5e-2 in bfloat16 unless given")
    parser.add_argument("--out", type=Path, default=Path("compare.html"))
    options = parser.parse_args(arguments)
    try:
        source = resolve(options.model, "cpu")
        model, config = load(source.path, getattr(torch, options.dtype))
        twin = transformers_twin(model, config, source.path if source.kind == "folder" else None)
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(0, config.vocab_size, (options.num_tokens,), generator=generator)
    rows = compare_activations(
        our_activations(model, token_ids), reference_activations(twin, token_ids), config.num_hidden_layers
    )
    tolerance = options.tolerance or (1e-4 if options.dtype == "float32" else 5e-2)
    departure = first_departure(rows, tolerance)
    for row in rows:
        mark = "  <- first beyond the tolerance" if row is departure else ""
        print(f"{row.name:36} max error {row.max_error:9.2e}   relative {row.relative_error:9.2e}{mark}")
    print(
        f"all {len(rows)} activations agree within {tolerance:g}"
        if departure is None
        else f"first departure: {departure.name}"
    )
    write_picture(rows, f"{source.name}, {options.dtype}: this engine against transformers", options.out)
    print(f"picture: {options.out}")
    return 0 if departure is None else 1


if __name__ == "__main__":
    sys.exit(main())
