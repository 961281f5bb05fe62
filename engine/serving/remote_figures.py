"""What a server's `/metrics` tells of it, whichever engine it is.

Owns the names under which vLLM (and this project), SGLang and llama.cpp show the same things. Never fetches anything.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from prometheus_client.parser import text_string_to_metric_families

MAX_METRICS_BYTES = 4 << 20
MAX_VALUE = 1e15

_NAMES: dict[str, tuple[str, ...]] = {
    "num_running": ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"),
    "num_waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio"),
    "num_preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "prefix_query_tokens": ("vllm:prefix_cache_queries_total",),
    "prefix_hit_tokens": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "llamacpp:prompt_tokens_total"),
    "output_tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
    ),
    "ttft_sum_s": ("vllm:time_to_first_token_seconds_sum", "sglang:time_to_first_token_seconds_sum"),
    "ttft_count": ("vllm:time_to_first_token_seconds_count", "sglang:time_to_first_token_seconds_count"),
}
_POOL = ("vllm:cache_config_info", "num_gpu_blocks", "block_size")


@dataclass(frozen=True, slots=True)
class RemoteFigures:
    """Totals over all engines of a server; None where it does not say."""

    num_running: float | None = None
    num_waiting: float | None = None
    kv_usage: float | None = None
    num_preemptions: float | None = None
    prefix_query_tokens: float | None = None
    prefix_hit_tokens: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    ttft_sum_s: float | None = None
    ttft_count: float | None = None
    num_blocks: float | None = None
    block_size: float | None = None

    @property
    def mean_ttft_s(self) -> float | None:
        """Over the server's life."""
        return self.ttft_sum_s / self.ttft_count if self.ttft_sum_s is not None and self.ttft_count else None

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was understood."""
        return all(getattr(self, field.name) is None for field in fields(self))


def read_figures(text: str) -> RemoteFigures:
    """The figures in a Prometheus text. What cannot be read counts as not said; nothing in it is trusted."""
    wanted = {name: field for field, names in _NAMES.items() for name in names}
    totals: dict[str, list[float]] = {}
    try:
        for family in text_string_to_metric_families(text[:MAX_METRICS_BYTES]):
            for sample in family.samples:
                if sample.name in wanted and 0 <= sample.value < MAX_VALUE:
                    totals.setdefault(wanted[sample.name], []).append(sample.value)
                elif sample.name == _POOL[0]:
                    for field, label in zip(("num_blocks", "block_size"), _POOL[1:], strict=True):
                        if (value := sample.labels.get(label, "")).isdecimal():
                            totals.setdefault(field, []).append(float(value))
    except ValueError:
        return RemoteFigures()
    averaged = ("kv_usage", "block_size")
    return RemoteFigures(
        **{field: sum(values) / (len(values) if field in averaged else 1) for field, values in totals.items()}
    )
