"""A saved trace behind the doors of an engine service: what watches an engine can watch a recording.

Owns what of an engine's doors a recording can answer. Never knows a scheduler or a model: nothing is decided here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving.service_errors import EngineDead
from engine.telemetry.journal import Journal
from engine.telemetry.player import TracePlayer
from engine.telemetry.record import StepRecord, Wait
from engine.telemetry.ring import RecordRing, Steps
from engine.telemetry.trace_file import Trace, load

MAX_SPEED = 100.0
MAX_STEP_DELAY_S = 10.0
MAX_STEP = (1 << 53) - 1
NO_ENGINE = (
    "this page shows a recorded run; there is no model behind it. Start the server without --replay to talk to one"
)


class ReplayService:
    """`EngineService`'s doors onto a recording that is being played.

    Read-only: `submit` raises EngineDead, `control` takes `paused`, `step`, `step_delay_s`, `speed` and `seek` (a step
    number) and raises InvalidRequest for anything else.
    """

    tokenizer = None

    def __init__(self, trace: Trace, clock: Callable[[], float] = time.monotonic, loops: bool = True) -> None:
        self.model_name = str(trace.header.model.get("model", "recorded run"))
        self._player = TracePlayer(trace, clock, loops)
        self._lock = threading.RLock()

    # -- what can be seen --------------------------------------------------------------------------------------

    @property
    def ring(self) -> RecordRing:
        """The records played so far."""
        return self._player.ring

    @property
    def journal(self) -> Journal:
        """What came in, as far as it was played."""
        return self._player.journal

    def steps(self, since: int | None = None, epoch: str | None = None, limit: int | None = None) -> Steps:
        """The records played so far, newer than `since`."""
        with self._lock:
            self._player.play()
            return self.ring.since(since, epoch, limit)

    def state(self) -> dict[str, Any]:
        """What `/engine/state` would have said at this moment of the run, and `replay`: where the playing stands."""
        with self._lock:
            player = self._player
            player.play()
            model = {name: value for name, value in player.trace.header.model.items() if name != "model"}
            return {
                **model,
                **_state(self.ring.last, player.settings, player.drains_for),
                "model": self.model_name,
                "epoch": self.ring.epoch,
                "paused": player.is_paused,
                "step_delay_s": player.step_delay_s,
                "failure": None,
                "replay": {"num_steps": len(player.trace.steps), "speed": player.speed, "round": player.num_rounds},
            }

    def add_listener(self, listener: Callable[[StepRecord], None]) -> None:
        """Call `listener` with every record when it is played."""
        self._player.listeners.append(listener)

    def health(self) -> str | None:
        """A recording is always there."""
        return None

    def queue_position(self, request_id: int) -> int | None:
        """Nobody of this page waits."""
        return None

    def wait_reason(self, request_id: int) -> Wait | None:
        """Nobody of this page waits."""
        return None

    # -- what can be done --------------------------------------------------------------------------------------

    def control(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Pause, go on, step, change the pace, jump. Raises InvalidRequest; then nothing has changed."""
        for name in changes:
            if name not in ("paused", "step", "step_delay_s", "speed", "seek"):
                raise InvalidRequest(f"{name} cannot be changed in a recorded run", name)
        paused = changes.get("paused")
        if paused is not None and not isinstance(paused, bool):
            raise InvalidRequest(f"paused must be true or false, got {paused!r}", "paused")
        step, seek = _whole(changes, "step", 1, 1000), _whole(changes, "seek", 0, MAX_STEP)
        speed = _number(changes, "speed", 0.01, MAX_SPEED)
        delay_s = _number(changes, "step_delay_s", 0.0, MAX_STEP_DELAY_S)
        with self._lock:
            player = self._player
            player.play()
            player.speed = player.speed if speed is None else speed
            player.step_delay_s = player.step_delay_s if delay_s is None else delay_s
            player.is_paused = player.is_paused if paused is None else paused
            if step is not None:
                player.is_paused = True
                player.show(step)
            if seek is not None:
                player.seek(seek)
            return self.state()

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams, *, client: str | None = None) -> NoReturn:
        """Raises EngineDead: nothing answers here."""
        raise EngineDead(NO_ENGINE)

    def abort(self, request_id: int) -> None:
        """Recorded requests end when they ended."""

    def abort_client(self, client: str) -> None:
        """Nobody has asked for anything."""

    def watch(self) -> None:
        """A recording stays paused without being watched."""

    def start(self) -> None:
        """It plays whenever somebody looks."""

    def stop(self, timeout_s: float = 0.0) -> None:
        """Nothing runs, so nothing has to end."""

    def restart(self) -> None:
        """Nothing can die."""


def build_replay_service(path: Path) -> ReplayService:
    """The service of `--replay FILE`. Raises TraceError, whose words do not name the file."""
    return ReplayService(load(path))


def _state(newest: StepRecord | None, settings: Mapping[str, Any], drains_for: Mapping[str, Any]) -> dict[str, Any]:
    record = newest or _before_the_first(settings)
    running = {*record.active_prefill, *record.pending_decode}
    return {
        "step": record.step,
        "policy": record.policy,
        "decode_selection": settings.get("decode_selection", "round_robin"),
        "kv_layout": record.kv_layout,
        "prefix_caching": settings.get("prefix_caching", True),
        "block_size": record.block_size,
        "num_blocks": record.num_blocks,
        "num_free_blocks": record.num_free_blocks,
        "num_cached_blocks": record.num_cached_blocks,
        "num_active_blocks": record.num_active_blocks,
        "pending_prefill": list(record.pending_prefill),
        "pending_decode": list(record.pending_decode),
        "active_prefill": list(record.active_prefill),
        "active_decode": list(record.active_decode),
        "queue": [request_id for request_id in record.pending_prefill if request_id not in running],
        "max_num_seqs": record.max_num_seqs,
        "max_num_batched_tokens": record.token_budget,
        "max_model_len": min(int(settings.get("max_model_len", MAX_STEP)), record.num_blocks * record.block_size),
        "max_queue": settings.get("max_queue", 256),
        "internal_fragmentation": record.internal_fragmentation,
        "external_fragmentation": record.external_fragmentation,
        "num_preemptions": record.num_preemptions,
        "draining": bool(drains_for),
        "draining_for": {name: value for name, value in drains_for.items() if settings.get(name) != value},
    }


def _before_the_first(settings: Mapping[str, Any]) -> StepRecord:
    return StepRecord(
        step=0,
        time_s=0.0,
        policy=str(settings.get("policy", "mixed")),
        kv_layout=str(settings.get("kv_layout", "paged")),
        token_budget=int(settings.get("max_num_batched_tokens", 1)),
        max_num_seqs=int(settings.get("max_num_seqs", 1)),
        num_blocks=int(settings.get("num_blocks", 1)),
        block_size=int(settings.get("block_size", 1)),
        num_free_blocks=int(settings.get("num_blocks", 1)),
    )


def _whole(changes: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = changes.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high):
        raise InvalidRequest(f"{name} must be a whole number from {low} to {high}, got {value!r}", name)
    return value


def _number(changes: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = changes.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InvalidRequest(f"{name} must be a number from {low:g} to {high:g}, got {value!r}", name)
    return float(value)
