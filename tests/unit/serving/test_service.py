"""The engine service: doors that any thread may use, one thread behind them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from engine.scheduling.sampling_params import InvalidRequest
from engine.serving.service import EngineService
from engine.serving.service_errors import EngineDead, QueueFull
from tests.symbolic_runner import answer
from tests.unit.serving.service_runs import PATIENCE_S, GatedRunner, greedy, make_service, num_live, running, until

PROMPTS = [[10 + i + j for j in range(3 + i)] for i in range(8)]


# -- answers ----------------------------------------------------------------------------------------------------


def test_requests_get_their_own_answers_in_their_own_streams() -> None:
    with running() as service:
        streams = [service.submit(prompt, greedy(5 + i))[0] for i, prompt in enumerate(PROMPTS)]
        for i, stream in enumerate(streams):
            result = stream.result(PATIENCE_S)
            assert list(result.token_ids) == answer(PROMPTS[i], 5 + i, 0)
            assert (result.finish_reason, result.error, stream.is_over) == ("length", None, True)
            assert result.metrics is not None
            assert result.metrics.num_output_tokens == 5 + i
            assert 0 <= (result.metrics.ttft_s or -1) <= result.metrics.e2e_s


def test_twenty_requests_in_the_first_moment() -> None:
    service = make_service()
    with pytest.raises(EngineDead, match="not started"):
        service.submit([1], greedy())
    assert service.health() == "the engine has not started"
    service.start()
    streams = [service.submit([1, i], greedy(3))[0] for i in range(20)]
    assert service.health() is None
    assert [list(s.result(PATIENCE_S).token_ids) for s in streams] == [answer([1, i], 3, 0) for i in range(20)]
    service.stop()


def test_many_threads_at_once() -> None:
    results: dict[int, list[int]] = {}

    def client(number: int) -> None:
        for turn in range(5):
            stream = service.submit([number, turn], greedy(4))[0]
            results[10 * number + turn] = list(stream.result(PATIENCE_S).token_ids)

    with running() as service:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {10 * n + t: answer([n, t], 4, 0) for n in range(8) for t in range(5)}


def test_choices_have_their_own_streams_and_seeds() -> None:
    with running() as service:
        streams = service.submit([1, 2, 3], greedy(6, n=3, seed=40, temperature=1.0))
        assert len({stream.request_id for stream in streams}) == 3
        for i, stream in enumerate(streams):
            assert list(stream.result(PATIENCE_S).token_ids) == answer([1, 2, 3], 6, 40 + i)


def test_without_a_seed_answers_differ_and_a_neighbours_seed_changes_nothing() -> None:
    with running() as service:
        seen = set()
        for _ in range(3):
            free = service.submit([1, 2], greedy(8, seed=None, temperature=1.0))[0]
            fixed = service.submit([1, 2], greedy(8, seed=1, temperature=1.0))[0]
            seen.add(free.result(PATIENCE_S).token_ids)
            assert list(fixed.result(PATIENCE_S).token_ids) == answer([1, 2], 8, 1)
    assert len(seen) == 3


def test_max_tokens_left_out_means_as_many_as_fit() -> None:
    with running(max_model_len=50) as service:
        assert len(service.submit([1] * 30, greedy(None))[0].result(PATIENCE_S).token_ids) == 20  # type: ignore[arg-type]


# -- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "words"),
    [([], "empty"), ([1] * 512, "512 tokens.*at most 512"), ([1000], "1000.*0 to 999"), ([5, -1], "-1")],
)
def test_prompts_that_cannot_be(prompt: list[int], words: str) -> None:
    with running() as service:
        with pytest.raises(InvalidRequest, match=words):
            service.submit(prompt, greedy())
        assert list(service.submit([1], greedy(2))[0].result(PATIENCE_S).token_ids) == answer([1], 2, 0)


def test_stop_strings_need_a_tokenizer() -> None:
    with running() as service, pytest.raises(InvalidRequest, match="tokenizer"):
        service.submit([1], greedy(stop=("x",)))


def test_the_queue_is_bounded_to_the_request() -> None:
    with running(max_queue=8) as service:
        service.control({"paused": True})
        streams = [service.submit([1, i], greedy(2))[0] for i in range(8)]
        for i in range(42):
            with pytest.raises(QueueFull, match="8 requests wait already and at most 8 may"):
                service.submit([1, i], greedy(2))
        service.control({"paused": False})
        for stream in streams:
            assert stream.result(PATIENCE_S).finish_reason == "length"


def test_a_family_comes_in_whole_or_not_at_all() -> None:
    with running(max_queue=4) as service:
        service.control({"paused": True})
        service.submit([1], greedy(n=2))
        with pytest.raises(QueueFull, match="would add 3"):
            service.submit([2], greedy(n=3))
        assert len(service.submit([3], greedy(n=2))) == 2
        until(lambda: num_live(service) == 4)
        with pytest.raises(InvalidRequest, match="n is 5, but at most 4") as refused:
            service.submit([1], greedy(n=5))  # trying again would never help
        assert refused.value.param == "n"


def test_many_threads_do_not_squeeze_past_the_bound() -> None:
    with running(max_queue=5) as service:
        service.control({"paused": True})
        accepted: list[Any] = []

        def client() -> None:
            for _ in range(20):
                with contextlib.suppress(QueueFull):
                    accepted.extend(service.submit([1], greedy(1)))

        threads = [threading.Thread(target=client) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(accepted) == 5


# -- aborts -----------------------------------------------------------------------------------------------------


def test_aborts_in_each_state() -> None:
    runner = GatedRunner()
    with running(runner, max_num_seqs=2, max_num_batched_tokens=16, block_size=4) as service:
        runner.gate.clear()
        decoding = service.submit([1, 2], greedy(500))[0]
        mid_prompt = service.submit([3] * 100, greedy(5))[0]
        waiting = service.submit([4, 5], greedy(5))[0]
        runner.at_gate.wait(PATIENCE_S)
        unheard = service.submit([6, 7], greedy(5))[0]  # in the inbox while a step runs
        for stream in (waiting, mid_prompt, decoding, unheard):
            stream.cancel()
            service.abort(stream.request_id)  # twice does no harm
        service.abort(10**9)
        runner.gate.set()
        results = [stream.result(PATIENCE_S) for stream in (decoding, mid_prompt, waiting, unheard)]
        assert [result.finish_reason for result in results] == ["abort"] * 4
        assert len(results[0].token_ids) <= 1
        assert num_live(service) == 0


def test_an_abort_in_the_very_step_that_ends_it() -> None:
    runner = GatedRunner()
    with running(runner) as service:
        runner.gate.clear()
        stream = service.submit([1, 2], greedy(1))[0]
        runner.at_gate.wait(PATIENCE_S)
        stream.cancel()
        runner.gate.set()
        result = stream.result(PATIENCE_S)
        assert (result.finish_reason, len(result.token_ids)) == ("length", 1)
        service.control({})  # the abort has been taken in by now
        assert list(service.submit([1, 2], greedy(3))[0].result(PATIENCE_S).token_ids) == answer([1, 2], 3, 0)


def test_all_requests_of_one_client() -> None:
    with running() as service:
        service.control({"paused": True})
        mine = [service.submit([1, i], greedy(5), client="me")[0] for i in range(3)]
        yours = service.submit([9], greedy(5), client="you")[0]
        service.abort_client("me")
        service.abort_client("nobody")
        service.control({"paused": False})
        assert {stream.result(PATIENCE_S).finish_reason for stream in mine} == {"abort"}
        assert yours.result(PATIENCE_S).finish_reason == "length"
        service.abort_client("me")  # they are gone


def how_they_ended(service: EngineService) -> list[str]:
    events = [event for record in service.steps().records for event in record.events]
    return [event.details["reason"] for event in events if event.kind == "finished"]


def test_a_reader_that_leaves_early_stops_the_engine_working_for_it() -> None:
    with running() as service:
        service.control({"step_delay_s": 0.01})  # or it would be done with all 500 before the reader is gone
        stream = service.submit([1], greedy(500))[0]
        items = iter(stream)
        for _ in range(3):
            next(items)
        items.close()  # type: ignore[attr-defined]
        until(lambda: num_live(service) == 0)
        assert how_they_ended(service) == ["abort"]
        assert service.state()["num_active_blocks"] == 0


def test_a_listening_task_that_is_cancelled_stops_the_engine_too() -> None:
    async def listen(service: EngineService) -> None:
        stream = service.submit([1], greedy(500))[0]
        async for _ in stream:
            break

    with running() as service:
        service.control({"step_delay_s": 0.01})
        asyncio.run(listen(service))
        until(lambda: num_live(service) == 0)
        assert how_they_ended(service) == ["abort"]


# -- streams ----------------------------------------------------------------------------------------------------


def test_a_slow_reader_stops_nobody_and_misses_nothing() -> None:
    with running() as service:
        slow = service.submit([1], greedy(300))[0]
        quick = service.submit([2], greedy(300))[0].result(PATIENCE_S)
        assert list(quick.token_ids) == answer([2], 300, 0)
        until(lambda: num_live(service) == 0)
        chunk = slow.read(0)
        assert list(chunk.token_ids) == answer([1], 300, 0)
        assert chunk.finish_reason == "length"


def test_every_token_comes_once_and_the_last_one_with_its_reason() -> None:
    with running() as service:
        service.control({"step_delay_s": 0.001})
        chunks = list(service.submit([1], greedy(30))[0])
        assert [token for chunk in chunks for token in chunk.token_ids] == answer([1], 30, 0)
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason == "length"
        assert chunks[-1].token_ids
        assert chunks[-1].metrics is not None


def test_asynchronous_readers() -> None:
    async def read(service: EngineService, number: int) -> list[int]:
        stream = service.submit([number], greedy(20))[0]
        return [token async for chunk in stream for token in chunk.token_ids]

    async def all_of_them(service: EngineService) -> list[list[int]]:
        return await asyncio.gather(*(read(service, number) for number in range(6)))

    with running() as service:
        assert asyncio.run(all_of_them(service)) == [answer([number], 20, 0) for number in range(6)]


def test_a_reader_that_waits_only_so_long() -> None:
    runner = GatedRunner()

    async def impatient(service: EngineService) -> Any:
        stream = service.submit([1], greedy(2))[0]
        nothing = await stream.read_async(0.01)
        runner.gate.set()
        first = None
        while first is None:
            first = await stream.read_async(0.01)
        return nothing, first.token_ids[0]

    with running(runner) as service:
        runner.gate.clear()
        stream = service.submit([1], greedy(2))[0]
        with pytest.raises(TimeoutError):
            stream.read(0.01)
        assert asyncio.run(impatient(service)) == (None, answer([1], 1, 0)[0])


# -- what is shown ----------------------------------------------------------------------------------------------


def test_the_state_has_the_contracts_keys() -> None:
    keys = {
        *("step", "policy", "kv_layout", "block_size", "num_blocks", "num_free_blocks", "num_cached_blocks"),
        *("num_active_blocks", "pending_prefill", "pending_decode", "active_decode", "max_num_seqs"),
        *("max_num_batched_tokens", "max_model_len", "max_queue", "prefix_caching", "internal_fragmentation"),
        *("external_fragmentation", "num_preemptions", "paused", "draining"),
    }
    with running() as service:
        assert keys <= set(service.state())
        service.submit([1], greedy(3))[0].result(PATIENCE_S)
        assert keys <= set(service.state())
        assert service.state()["step"] == 3


def test_why_a_request_waits_and_where() -> None:
    with running(max_num_seqs=1) as service:
        service.control({"paused": True})
        streams = [service.submit([i], greedy(50))[0] for i in range(3)]
        until(lambda: num_live(service) == 3)
        service.control({"step": 1})
        until(lambda: service.state()["pending_decode"])
        assert [service.queue_position(stream.request_id) for stream in streams] == [None, 1, 2]
        assert service.wait_reason(streams[0].request_id) is None
        assert service.wait_reason(streams[2].request_id).reason == "no_slot"  # type: ignore[union-attr]
        assert service.wait_reason(999) is None


def test_two_runs_of_one_service_are_alike() -> None:
    with running() as service:
        for _ in range(3):
            streams = [service.submit(prompt, greedy(4))[0] for prompt in PROMPTS]
            ids = [stream.request_id for stream in streams]
            assert ids == sorted(ids)
            got = [list(stream.result(PATIENCE_S).token_ids) for stream in streams]
            assert got == [answer(prompt, 4, 0) for prompt in PROMPTS]
