"""Step records in, Prometheus text out.

Owns the counts since the engine's start and the definitions of the times (vLLM's). Never knows the engine, HTTP or
text; every figure comes from step records alone, so a replayed trace gives the same numbers as the live run.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.telemetry.histogram import Histogram
from engine.telemetry.metric_names import (
    COUNTERS,
    FINISH_REASONS,
    GAUGES,
    HISTOGRAMS,
    LABEL_NAMES,
    LABELLED,
    WAIT_KINDS,
    wait_kind,
)
from engine.telemetry.record import Event, EventKind, StepRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class _Live:
    """What the metrics need to remember of a request that has not finished."""

    num_prompt_tokens: int = 0
    max_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    last_token_s: float | None = None
    is_running: bool = False


class Metrics(Collector):
    """Everything `/metrics` shows of one engine.

    `observe` is called with each record in order, by one thread; `render` by any thread at any time.
    """

    def __init__(self, model_name: str) -> None:
        self._labels = (model_name, "0")
        self._lock = threading.Lock()
        self._live: dict[int, _Live] = {}
        self._num_running = 0
        self._last_step = 0
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}
        self._counters: dict[str, float] = dict.fromkeys(COUNTERS, 0.0)
        self._gauges: dict[str, float] = dict.fromkeys(GAUGES, 0.0)
        self._finished: Counter[str] = Counter(dict.fromkeys(FINISH_REASONS, 0))
        self._waiting = dict.fromkeys(WAIT_KINDS, 0)
        self._block_size, self._num_blocks = 0, 0
        self.registry = CollectorRegistry()
        """Whoever else has something to show registers it here."""
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def render(self) -> bytes:
        """The Prometheus text format, as CONTENT_TYPE names it."""
        return generate_latest(self.registry)

    def observe(self, record: StepRecord) -> None:
        """Count one step."""
        with self._lock:
            if record.step <= self._last_step:  # another engine's life: its requests are new ones
                self._live.clear()
                self._num_running = 0
            self._last_step = record.step
            self._observe_arrivals(record.events)
            for event in record.events:
                if event.kind is not EventKind.FINISHED:
                    self._observe_event(event)
            self._observe_tokens(record)
            for event in record.events:
                if event.kind is EventKind.FINISHED:
                    self._observe_end(event)
            self._observe_totals(record)

    def _observe_arrivals(self, events: Iterable[Event]) -> None:
        num_answers: Counter[int] = Counter()  # by the first request of those that share a prompt
        for event in events:
            if event.kind is EventKind.ARRIVED and event.request_id is not None:
                details = event.details
                self._live[event.request_id] = _Live(details.get("num_prompt_tokens", 0), details.get("max_tokens", 0))
                self._counters["tiny_vllm:requests_arrived"] += 1
                leader = details.get("sibling_of")
                num_answers[event.request_id if leader is None else leader] += 1
        for n in num_answers.values():
            self._histograms["vllm:request_params_n"].observe(n)

    def _observe_event(self, event: Event) -> None:
        details = event.details
        live = self._live.get(event.request_id) if event.request_id is not None else None
        if live is None:
            return
        if event.kind is EventKind.ADMITTED:
            self._set_running(live, True)
            if not details.get("is_resumed", False):
                live.num_cached_tokens = details.get("cached_tokens", 0)
        elif event.kind is EventKind.PREEMPTED:
            self._set_running(live, False)
        elif event.kind is EventKind.FIRST_TOKEN:
            self._counters["vllm:prompt_tokens"] += live.num_prompt_tokens
            self._counters["vllm:prompt_tokens_cached"] += live.num_cached_tokens
            self._histograms["vllm:time_to_first_token_seconds"].observe(details["ttft_s"])

    def _set_running(self, live: _Live, is_running: bool) -> None:
        # Counted as it changes: ten thousand may wait, and a step must not look at each of them.
        self._num_running += is_running - live.is_running
        live.is_running = is_running

    def _observe_tokens(self, record: StepRecord) -> None:
        now = record.time_s + record.duration_s
        gaps: Counter[float] = Counter()
        for request_id, length in record.outputs.items():
            live = self._live.get(request_id)
            if live is None:
                continue
            self._counters["vllm:generation_tokens"] += length - live.num_output_tokens
            live.num_output_tokens = length
            if live.last_token_s is not None:
                gaps[now - live.last_token_s] += 1
            live.last_token_s = now
        for gap, count in gaps.items():
            self._histograms["vllm:inter_token_latency_seconds"].observe(gap, count)

    def _observe_end(self, event: Event) -> None:
        live = self._live.pop(event.request_id, None) if event.request_id is not None else None
        if live is None:
            return
        self._set_running(live, False)
        details = event.details
        self._finished[details["reason"]] += 1
        num_output_tokens = details.get("num_output_tokens", live.num_output_tokens)
        prefill_s, decode_s = details.get("prefill_s"), details.get("decode_s")
        times = {
            "vllm:e2e_request_latency_seconds": details.get("e2e_s"),
            "vllm:request_queue_time_seconds": details.get("queue_s"),
            "vllm:request_prefill_time_seconds": prefill_s,
            "vllm:request_decode_time_seconds": decode_s,
            "vllm:request_inference_time_seconds": None if prefill_s is None else prefill_s + (decode_s or 0.0),
            "vllm:request_time_per_output_token_seconds": (
                decode_s / (num_output_tokens - 1) if decode_s is not None and num_output_tokens > 1 else None
            ),
            "vllm:request_prompt_tokens": live.num_prompt_tokens,
            "vllm:request_generation_tokens": num_output_tokens,
            "vllm:request_max_num_generation_tokens": live.max_tokens,
            "vllm:request_params_max_tokens": live.max_tokens,
            "vllm:request_prefill_kv_computed_tokens": (
                live.num_prompt_tokens - live.num_cached_tokens if prefill_s is not None else None
            ),
        }
        for name, value in times.items():
            if value is not None:
                self._histograms[name].observe(value)

    def _observe_totals(self, record: StepRecord) -> None:
        num_tokens = sum(record.num_tokens.values())
        if num_tokens:
            self._histograms["vllm:iteration_tokens_total"].observe(num_tokens)
            self._histograms["tiny_vllm:step_duration_seconds"].observe(record.duration_s)
        self._counters["tiny_vllm:engine_steps"] += 1
        self._counters |= {
            "vllm:prefix_cache_queries": record.prefix_query_tokens,
            "vllm:prefix_cache_hits": record.prefix_hit_tokens,
            "vllm:num_preemptions": record.num_preemptions,
            "tiny_vllm:kv_block_evictions": record.num_evictions,
            "tiny_vllm:wasted_slot_steps": record.wasted_slot_steps,
        }
        self._gauges |= {
            "vllm:num_requests_running": self._num_running,
            "vllm:num_requests_waiting": len(self._live) - self._num_running,
            "vllm:kv_cache_usage_perc": record.num_active_blocks / record.num_blocks if record.num_blocks else 0.0,
            "tiny_vllm:kv_blocks_free": record.num_free_blocks,
            "tiny_vllm:kv_blocks_cached": record.num_cached_blocks,
            "tiny_vllm:kv_blocks_active": record.num_active_blocks,
            "tiny_vllm:kv_internal_fragmentation": record.internal_fragmentation,
            "tiny_vllm:kv_external_fragmentation": record.external_fragmentation,
        }
        self._waiting = self._waiting_by_kind(record)
        self._block_size, self._num_blocks = record.block_size, record.num_blocks

    def _waiting_by_kind(self, record: StepRecord) -> dict[str, int]:
        """vLLM's two: for want of capacity, or held back by something else."""
        counts = dict.fromkeys(WAIT_KINDS, 0)
        num_left = len(self._live) - self._num_running
        for request_id, wait in record.waiting.items():
            live = self._live.get(request_id)
            if live is not None and not live.is_running:
                counts[wait_kind(wait)] += 1
                num_left -= 1
        counts[wait_kind(record.waiting_default)] += max(0, num_left)
        return counts

    def collect(self) -> Iterator[Metric]:
        """The metric families, one consistent picture of them (called by the registry)."""
        with self._lock:
            return iter(list(self._families()))

    def _families(self) -> Iterator[Metric]:
        for name, value in self._gauges.items():
            gauge = GaugeMetricFamily(name, GAUGES[name], labels=LABEL_NAMES)
            gauge.add_metric(self._labels, value)
            yield gauge
        for name, value in self._counters.items():
            counter = CounterMetricFamily(name, COUNTERS[name], labels=LABEL_NAMES)
            counter.add_metric(self._labels, value)
            yield counter
        yield self._labelled("vllm:num_requests_waiting_by_reason", "reason", self._waiting, GaugeMetricFamily)
        prompt, cached = (self._counters[f"vllm:prompt_tokens{kind}"] for kind in ("", "_cached"))
        sources = {"local_compute": prompt - cached, "local_cache_hit": cached}
        yield self._labelled("vllm:prompt_tokens_by_source", "source", sources, CounterMetricFamily)
        yield self._labelled("vllm:request_success", "finished_reason", self._finished, CounterMetricFamily)
        for name, histogram in self._histograms.items():
            family = HistogramMetricFamily(name, HISTOGRAMS[name][0], labels=LABEL_NAMES)
            family.add_metric(self._labels, histogram.buckets(), histogram.sum)
            yield family
        config = GaugeMetricFamily(
            "vllm:cache_config_info", "The block pool.", labels=("engine", "block_size", "num_gpu_blocks")
        )
        config.add_metric(("0", str(self._block_size), str(self._num_blocks)), 1)
        yield config

    def _labelled(
        self,
        name: str,
        label: str,
        values: Mapping[str, float],
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    ) -> Metric:
        """A metric with one more label."""
        family = kind(name, LABELLED[name], labels=(*LABEL_NAMES, label))
        for value_of_label, value in values.items():
            family.add_metric((*self._labels, value_of_label), value)
        return family
