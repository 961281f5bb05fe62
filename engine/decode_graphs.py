"""Decode steps as CUDA graphs: captured for a few batch sizes, padded to the next, replayed without launching again.

Owns the graphs, the memory that they read, and what their padding rows are. Never knows requests, chunks or sampling. A
decode step of a small model launches a few hundred kernels of microseconds each; launched one by one from Python they
take longer than they run. The idea of padding to captured sizes is vLLM's and TensorRT-LLM's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.kv.device_attention import reader
from engine.kv.paged_attention import DecodeGroup, PagedAttention, table_width
from engine.kv.tensors import KVTensors
from engine.packing import PackedPass

log = logging.getLogger(__name__)

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

MIN_SLOTS = 256
"""Tables are captured for 256, 384, 512, 768, 1024, 1536 ... slots: at most a third of what is read is padding."""

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes a step that reads and writes fixed memory; answers with what replays it."""


class DecodeModel(Protocol):
    """What a graph computes with; see engine.torch_runner.Model."""

    def __call__(self, token_ids: Tensor, positions: Tensor, attend: Any) -> Tensor:
        """token_ids and positions (N,) -> hidden states (N, hidden)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(N, hidden) -> (N, vocab) float32."""


class DecodeGraphs:
    """The decode step of one model on one pool. A graph is captured when its size is first met."""

    def __init__(
        self,
        model: DecodeModel,
        kv: KVTensors,
        scale: float,
        vocab_size: int,
        capture: Capture,
        route: str = "gather",
    ) -> None:
        """`capture` is a `CUDAGraphCapture`, or `rehearse` without a card. `vocab_size` is the logits' width. `route`:
        how attention reads, see engine.kv.device_attention; where it cannot, graphs are captured with "gather"."""
        self.model, self.kv, self.scale, self.vocab_size = model, kv, scale, vocab_size
        self._capture = capture
        self._steps: dict[tuple[int, int], _StaticStep] = {}
        self._logits = torch.empty(0, vocab_size)
        self.route, self.is_broken = route, False

    def logits(self, one: PackedPass) -> Tensor | None:
        """(N, vocab) of a pass of decode rows alone, valid until the next call; None where no graph fits it.

        A pass that samples nothing has none: nobody would wait for the card before the next pass is filled in.
        """
        num_rows = one.num_rows
        if self.is_broken or one.chunks or len(one.decode) != 1 or not one.sampling or num_rows > BATCH_SIZES[-1]:
            return None
        size = next(size for size in BATCH_SIZES if size >= num_rows)
        width = table_width(_slots_to_capture(one.decode[0].tables.shape[1] * self.kv.block_size), self.kv.block_size)
        step = self._steps.get((size, width)) or self._captured(size, width)
        if step is None:
            return None
        step.fill(one)
        step.replay()
        return self._logits[:num_rows]

    def warm_up(self, max_batch_size: int) -> None:
        """Capture the graphs of all batches up to this size for the shortest tables."""
        width = table_width(MIN_SLOTS, self.kv.block_size)
        for size, smaller in zip(BATCH_SIZES, (0, *BATCH_SIZES), strict=False):
            if smaller < max_batch_size and (size, width) not in self._steps and not self.is_broken:
                self._captured(size, width)

    def _captured(self, size: int, width: int) -> _StaticStep | None:
        if not len(self._logits):
            device = self.kv.storage.device
            self._logits = torch.empty(BATCH_SIZES[-1], self.vocab_size, dtype=torch.float32, device=device)
        step = _StaticStep(self.kv, size, width)
        try:
            step.replay = self._capture(lambda: self._compute(step, size))
        except Exception as error:  # a compiler's failures have no common class
            words = (str(error) or type(error).__name__).splitlines()[0]
            if self.route != "gather":
                log.warning("Decode attention by %s failed, gathering from now on: %s", self.route, words)
                self.route = "gather"
                return self._captured(size, width)
            log.warning("CUDA graphs are off, decoding goes on without: %s", words)
            self.is_broken = True
            return None
        self._steps[size, width] = step
        return step

    def _compute(self, step: _StaticStep, size: int) -> None:
        token_ids, positions, slots = step.numbers.unbind()
        group = DecodeGroup(0, step.tables, step.lengths)
        attend = PagedAttention(self.kv, slots, [group], [], self.scale, decode_reader=reader(self.route))
        hidden = self.model(token_ids, positions, attend)  # (size, hidden)
        self._logits[:size].copy_(self.model.logits(hidden))


class _StaticStep:
    """The fixed memory that one graph reads: numbers (3, size), lengths (size,), tables (size, width), one after the
    other in one tensor, so that a step sends them in one copy."""

    def __init__(self, kv: KVTensors, size: int, width: int) -> None:
        self.kv, self.size, self.width = kv, size, width
        device = kv.storage.device
        self._host = torch.empty(size * (4 + width), dtype=torch.int64, pin_memory=device.type == "cuda")
        self._device = torch.empty_like(self._host, device=device)
        self._host_numbers, self._host_lengths, self._host_tables = self._parts(self._host)
        self.numbers, self.lengths, self.tables = self._parts(self._device)
        self.replay: Callable[[], None] = lambda: None
        self._pad(0)
        self._device.copy_(self._host)

    def _parts(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        numbers, lengths, tables = flat.split((3 * self.size, self.size, self.size * self.width))
        return numbers.view(3, self.size), lengths, tables.view(self.size, self.width)

    def fill(self, one: PackedPass) -> None:
        """Send a pass's numbers. Nothing waits; the caller reads tokens before it sends the next ones."""
        group, num_rows = one.decode[0], one.num_rows
        self._host_numbers[:, :num_rows] = one.numbers
        self._host_lengths[:num_rows] = group.lengths
        self._host_tables[:num_rows, : group.tables.shape[1]] = group.tables
        self._host_tables[:num_rows, group.tables.shape[1] :] = self.kv.null_block
        self._pad(num_rows)
        self._device.copy_(self._host, non_blocking=True)

    def _pad(self, first: int) -> None:
        """Rows from `first` on look at one NULL slot and write to TRASH."""
        self._host_numbers[:2, first:] = 0
        self._host_numbers[2, first:] = self.kv.trash_slot
        self._host_lengths[first:] = 1
        self._host_tables[first:] = self.kv.null_block


def _slots_to_capture(num_slots: int) -> int:
    captured = MIN_SLOTS
    while captured < num_slots:
        captured = captured * 3 // 2 if captured & (captured - 1) == 0 else captured // 3 * 4
    return captured


def rehearse(step: Callable[[], None]) -> Callable[[], None]:
    """A "graph" that computes the step again: the same fixed memory and padding, without a card."""
    step()
    return step


class CUDAGraphCapture:
    """Captures steps, all in one memory pool: they run one after the other, and what they answer is copied out."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        """Warm up on a stream of its own, as libraries set themselves up in their first calls, then capture."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads of the server may use the card while this one captures.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            step()
        return graph.replay
