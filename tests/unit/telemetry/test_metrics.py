"""What `/metrics` says, from records alone: names and types as vLLM has them, and counts that agree with each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.engine import Engine
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner
from engine.telemetry.histogram import Histogram, one_two_five
from engine.telemetry.metrics import Metrics
from engine.telemetry.record import Event, EventKind, StepRecord, Wait, WaitReason

TYPES = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:request_success": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_params_max_tokens": "histogram",
    "vllm:request_max_num_generation_tokens": "histogram",
    "vllm:request_params_n": "histogram",
    "vllm:request_prefill_kv_computed_tokens": "histogram",
    "vllm:num_requests_waiting_by_reason": "gauge",
    "vllm:prompt_tokens_by_source": "counter",
    "vllm:prompt_tokens_cached": "counter",
    "process_resident_memory_bytes": "gauge",
    "vllm:cache_config_info": "gauge",
}


def samples(metrics: Metrics) -> dict[str, float]:
    """Value by sample name; those with a label of their own carry it: `name{stop}`, `name{le}`."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            own = [v for k, v in sample.labels.items() if k in ("finished_reason", "le", "reason", "source")]
            found[sample.name + (f"{{{own[0]}}}" if own else "")] = sample.value
    return found


def record(step: int, events: Iterable[Event] = (), time_s: float = 0.0, **more: Any) -> StepRecord:
    return StepRecord(step, time_s, "mixed", "paged", 512, 8, 16, 16, events=tuple(events), **more)


def event(kind: EventKind, request_id: int, **details: Any) -> Event:
    return Event(kind, request_id, details)


def test_names_types_and_labels_are_vllms() -> None:
    families = {f.name: f for f in text_string_to_metric_families(Metrics("some-model").render().decode())}
    assert {name: families[name].type for name in TYPES} == TYPES
    for name, family in families.items():
        assert family.documentation, name
        for sample in family.samples:
            if name.startswith(("vllm:", "tiny_vllm:")) and name != "vllm:cache_config_info":
                assert (sample.labels["model_name"], sample.labels["engine"]) == ("some-model", "0")


def test_counters_end_in_total_and_reasons_are_there_from_the_start() -> None:
    found = samples(Metrics("m"))
    for name, kind in TYPES.items():
        assert any(key.startswith(name + ("_total" if kind == "counter" else "")) for key in found)
    for reason in ("stop", "length", "abort", "error"):
        assert found[f"vllm:request_success_total{{{reason}}}"] == 0


@pytest.mark.parametrize("name", ['m"\\\n', "<script>", "模型"])
def test_a_model_name_cannot_break_the_text(name: str) -> None:
    families = list(text_string_to_metric_families(Metrics(name).render().decode()))
    assert families[0].samples[0].labels["model_name"] == name


def test_one_requests_life() -> None:
    metrics = Metrics("m")
    arrived = event(EventKind.ARRIVED, 1, num_prompt_tokens=5, max_tokens=9)
    metrics.observe(record(1, [arrived]))
    assert (found := samples(metrics))["vllm:num_requests_waiting"] == 1
    assert found["vllm:num_requests_running"] == 0
    metrics.observe(
        record(
            2,
            [event(EventKind.ADMITTED, 1, cached_tokens=2), event(EventKind.FIRST_TOKEN, 1, ttft_s=0.3)],
            time_s=1.0,
            outputs={1: 1},
            num_tokens={1: 3},
            duration_s=0.5,
            num_active_blocks=4,
        )
    )
    found = samples(metrics)
    assert (found["vllm:num_requests_running"], found["vllm:num_requests_waiting"]) == (1, 0)
    assert found["vllm:kv_cache_usage_perc"] == 0.25
    assert (found["vllm:prompt_tokens_total"], found["vllm:prompt_tokens_cached_total"]) == (5, 2)
    metrics.observe(record(3, time_s=2.0, outputs={1: 2}, num_tokens={1: 1}, duration_s=0.25))
    end = event(
        EventKind.FINISHED, 1, reason="length", num_output_tokens=3, e2e_s=2, queue_s=0.1, prefill_s=0.2, decode_s=1
    )
    metrics.observe(record(4, [end], time_s=3.0, outputs={1: 3}, num_tokens={1: 1}, duration_s=0.5))
    found = samples(metrics)
    assert found["vllm:generation_tokens_total"] == 3
    assert found["vllm:inter_token_latency_seconds_count"] == 2
    assert found["vllm:inter_token_latency_seconds_sum"] == pytest.approx(0.75 + 1.25)
    assert found["vllm:request_time_per_output_token_seconds_sum"] == pytest.approx(0.5)
    assert found["vllm:time_to_first_token_seconds_bucket{0.25}"] == 0
    assert found["vllm:time_to_first_token_seconds_bucket{0.5}"] == 1
    assert found["vllm:request_success_total{length}"] == 1
    assert (found["vllm:num_requests_running"], found["vllm:num_requests_waiting"]) == (0, 0)


def test_a_restarted_engine_starts_with_nobody() -> None:
    metrics = Metrics("m")
    metrics.observe(record(7, [event(EventKind.ARRIVED, 1), event(EventKind.ADMITTED, 1)]))
    metrics.observe(record(1, [event(EventKind.ARRIVED, 1)]))
    found = samples(metrics)
    assert (found["vllm:num_requests_running"], found["vllm:num_requests_waiting"]) == (0, 1)
    assert found["tiny_vllm:requests_arrived_total"] == 2


@pytest.mark.parametrize("policy", ["static", "decode_first", "prefill_first", "mixed"])
def test_counts_agree_after_a_run_with_preemptions_and_aborts(policy: str) -> None:
    clock = SimulatedClock()
    settings = EngineSettings(policy=policy, num_blocks=12, block_size=4, max_num_seqs=4, max_model_len=40)
    engine = Engine(SimulatedRunner(clock), settings, clock)
    metrics = Metrics("m")
    requests = [
        Request(number, tuple(range(5 + number % 7)), SamplingParams(max_tokens=20), 20, seed=0, arrival_s=clock())
        for number in range(1, 13)
    ]
    for request in requests:
        engine.add(request)
    num_steps = 0
    while engine.can_work:
        made = engine.step()
        if made is not None:
            metrics.observe(made)
        else:
            clock.advance(0.05)
        num_steps += 1
        if num_steps in (3, 9):
            engine.abort(num_steps)
        assert num_steps < 2000
    if (news := engine.record_news()) is not None:
        metrics.observe(news)
    found = samples(metrics)
    with_token = [request for request in requests if request.output_token_ids]
    assert found["vllm:time_to_first_token_seconds_count"] == len(with_token)
    assert found["vllm:e2e_request_latency_seconds_count"] == len(requests)
    assert found["vllm:request_success_total{abort}"] == 2
    assert found["vllm:request_success_total{length}"] == 10
    assert found["vllm:generation_tokens_total"] == sum(len(request.output_token_ids) for request in requests)
    assert found["vllm:inter_token_latency_seconds_count"] == sum(len(r.output_token_ids) - 1 for r in with_token)
    assert found["vllm:num_preemptions_total"] == sum(request.num_preemptions for request in requests)
    assert (found["vllm:num_requests_running"], found["vllm:num_requests_waiting"]) == (0, 0)
    assert found["vllm:kv_cache_usage_perc"] == 0
    assert all(value >= 0 for value in found.values())


def test_waiting_is_split_into_capacity_and_held_back() -> None:
    metrics = Metrics("m")
    arrived = [event(EventKind.ARRIVED, number, num_prompt_tokens=5, max_tokens=9) for number in (1, 2, 3, 4)]
    arrived.append(event(EventKind.ARRIVED, 5, num_prompt_tokens=5, max_tokens=9, sibling_of=4))
    waiting = {1: Wait(WaitReason.NO_BLOCKS), 5: Wait(WaitReason.SIBLING)}
    metrics.observe(
        record(1, [*arrived, event(EventKind.ADMITTED, 4)], waiting=waiting, waiting_default=Wait(WaitReason.BEHIND))
    )
    found = samples(metrics)
    assert found["vllm:num_requests_waiting"] == 4
    assert found["vllm:num_requests_waiting_by_reason{capacity}"] == 3
    assert found["vllm:num_requests_waiting_by_reason{deferred}"] == 1
    assert (found["vllm:request_params_n_count"], found["vllm:request_params_n_sum"]) == (4, 5)


def test_histogram_counts_weights_and_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0, 3)
    histogram.observe(1.5)
    histogram.observe(9.0, 2)
    assert histogram.buckets() == [("1.0", 3.0), ("2.0", 4.0), ("+Inf", 6.0)]
    assert (histogram.count, histogram.sum) == (6, 22.5)


def test_one_two_five() -> None:
    assert one_two_five(100) == (1, 2, 5, 10, 20, 50, 100)
    assert one_two_five(99) == (1, 2, 5, 10, 20, 50)
