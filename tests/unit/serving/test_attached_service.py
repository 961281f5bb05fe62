"""The attached service's look at the other server: what goes wrong in it does not end it."""

from __future__ import annotations

from engine.serving.attached_service import AttachedService
from engine.serving.remote_figures import read_figures
from engine.serving.remote_records import MAX_OTHERS, RemoteRecords
from engine.telemetry.record import StepRecord


def service() -> AttachedService:
    made = AttachedService("http://127.0.0.1:9", "m")
    made._failure = None
    return made


def test_a_listener_that_raises_is_dropped_and_the_others_go_on() -> None:
    attached, seen = service(), []

    def broken(record: StepRecord) -> None:
        raise ValueError("broken")

    attached.add_listener(broken)
    attached.add_listener(seen.append)
    attached._publish()
    attached._publish()
    assert [record.step for record in seen] == [1, 2]
    attached._loop.close()


def test_no_number_that_a_server_tells_is_too_large() -> None:
    metrics = """vllm:num_requests_running 1e14
vllm:num_requests_waiting +Inf
vllm:kv_cache_usage_perc 57
vllm:num_preemptions_total -5
vllm:cache_config_info{num_gpu_blocks="99999999999999999999",block_size="16"} 1
"""
    record = RemoteRecords(lambda: 0.0).next(read_figures(metrics), [])
    assert len(record.pending_decode) == MAX_OTHERS
    assert record.pending_prefill == ()
    assert record.num_active_blocks == record.num_blocks <= 10_000_000
    assert record.num_preemptions == 0
