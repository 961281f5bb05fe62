"""Names, types, words and buckets of what `/metrics` shows.

Owns the list. The `vllm:` names, their labels and their buckets are vLLM's, so that its Grafana dashboards work
unchanged; what vLLM has no name for begins with `tiny_vllm:`. Never knows where a number comes from.
"""

from __future__ import annotations

from engine.telemetry.histogram import one_two_five
from engine.telemetry.record import Wait, WaitReason

LABEL_NAMES = ("model_name", "engine")

TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0,
    2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_GAP_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
LATENCY_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
STEP_TOKEN_BUCKETS = tuple(float(2**i) for i in (0, *range(3, 15)))
STEP_TIME_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LENGTH_BUCKETS = one_two_five(131072)

HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "vllm:time_to_first_token_seconds": ("Arrival to first token out.", TTFT_BUCKETS),
    "vllm:inter_token_latency_seconds": ("Each gap between two tokens of one request.", TOKEN_GAP_BUCKETS),
    "vllm:request_time_per_output_token_seconds": (
        "Per finished request: (last token - first token) / (tokens - 1).",
        TOKEN_GAP_BUCKETS,
    ),
    "vllm:e2e_request_latency_seconds": ("Arrival to the request's end.", LATENCY_BUCKETS),
    "vllm:request_queue_time_seconds": ("Arrival to first scheduled.", LATENCY_BUCKETS),
    "vllm:request_inference_time_seconds": ("First scheduled to last token.", LATENCY_BUCKETS),
    "vllm:request_prefill_time_seconds": ("First scheduled to first token.", LATENCY_BUCKETS),
    "vllm:request_decode_time_seconds": ("First token to last token.", LATENCY_BUCKETS),
    "vllm:iteration_tokens_total": ("Tokens computed in one step.", STEP_TOKEN_BUCKETS),
    "vllm:request_prompt_tokens": ("Prompt tokens of a finished request.", LENGTH_BUCKETS),
    "vllm:request_generation_tokens": ("Answer tokens of a finished request.", LENGTH_BUCKETS),
    "vllm:request_max_num_generation_tokens": ("Most answer tokens the request could get.", LENGTH_BUCKETS),
    "vllm:request_params_n": ("How many answers a request asked for.", (1.0, 2.0, 5.0, 10.0, 20.0)),
    "vllm:request_params_max_tokens": ("The request's token limit.", LENGTH_BUCKETS),
    "vllm:request_prefill_kv_computed_tokens": ("Prompt tokens not found in the prefix cache.", LENGTH_BUCKETS),
    "tiny_vllm:step_duration_seconds": ("Wall time of one engine step.", STEP_TIME_BUCKETS),
}

COUNTERS: dict[str, str] = {
    "vllm:prompt_tokens": "Prompt tokens of requests whose prompt is computed.",
    "vllm:prompt_tokens_cached": "Of those, tokens found in the prefix cache.",
    "vllm:generation_tokens": "Answer tokens sampled.",
    "vllm:prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "vllm:prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "vllm:num_preemptions": "Requests thrown out of memory to be computed again.",
    "tiny_vllm:requests_arrived": "Requests accepted, finished or not.",
    "tiny_vllm:kv_block_evictions": "Cached blocks given up for new ones.",
    "tiny_vllm:wasted_slot_steps": "Slots of static batches that computed nothing of use, one per step.",
    "tiny_vllm:engine_steps": "Steps the engine has run.",
}

GAUGES: dict[str, str] = {
    "vllm:num_requests_running": "Requests that hold keys and values.",
    "vllm:num_requests_waiting": "Requests that wait to be scheduled.",
    "vllm:kv_cache_usage_perc": "Blocks owned by requests / all blocks; 1 is full. Cached blocks count as free.",
    "tiny_vllm:kv_blocks_free": "Blocks that hold nothing.",
    "tiny_vllm:kv_blocks_cached": "Blocks without an owner that can be found by prefix.",
    "tiny_vllm:kv_blocks_active": "Blocks owned by requests.",
    "tiny_vllm:kv_internal_fragmentation": "1 - tokens stored / (blocks owned x block size).",
    "tiny_vllm:kv_external_fragmentation": "Free blocks that are enough in number but in no unbroken run.",
}

LABELLED: dict[str, str] = {
    "vllm:request_success": "Requests that ended, by reason.",
    "vllm:num_requests_waiting_by_reason": "Requests that wait, for want of capacity or held back.",
    "vllm:prompt_tokens_by_source": "Prompt tokens computed or found in the prefix cache.",
}
"""Metrics with one more label than the others."""

WAIT_KINDS = ("capacity", "deferred")
_CAPACITY = frozenset(
    {WaitReason.NO_SLOT, WaitReason.NO_BLOCKS, WaitReason.NO_RUN, WaitReason.NO_BUDGET, WaitReason.BEHIND}
)

FINISH_REASONS = ("stop", "length", "abort", "error")


def wait_kind(wait: Wait | None) -> str:
    """Which of vLLM's two kinds a reason to wait belongs to."""
    return "capacity" if wait is None or wait.reason in _CAPACITY else "deferred"
