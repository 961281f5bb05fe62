"""A step plan as tensors: which rows a forward pass computes, where their keys and values go, what they may see.

Owns the order of rows and the tensors of block tables, all of it on the CPU until a pass is sent to a device as a
whole. Never knows weights, sampling or why a plan is as it is.
Letters: N packed rows, R decode rows, B blocks of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.kv.paged_attention import Chunk, DecodeGroup, table_width
from engine.kv.tensors import KVTensors
from engine.scheduling.plan import ScheduledRequest, StepPlan

MIN_SPLIT_SLOTS = 1536
"""Decode rows less than half as long as the longest get a group of their own once padding them would read this many
slots more; below, one more group costs more than the padding."""

MIN_SPLIT_SLOTS_ON_CARD = 131_072
"""On a card a second group also means a step without a captured graph."""


@dataclass(frozen=True, slots=True)
class PackedPass:
    """One forward pass over N rows: decode rows first, longest context first, then the chunks.

    `numbers` (3, N) are token ids, positions, and slots to write (see `KVTensors.slot_rows`). `sample_rows` (M,) are
    the rows whose logits are wanted, in the order of `sampling`.
    """

    numbers: Tensor  # (3, N)
    decode: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]
    sample_rows: Tensor  # (M,)
    sampling: tuple[ScheduledRequest, ...]

    @property
    def num_rows(self) -> int:
        """N."""
        return self.numbers.shape[1]

    def to(self, device: torch.device) -> PackedPass:
        """The same on `device`; nothing waits for the copies."""
        if device.type == "cpu":
            return self
        return PackedPass(
            to_device(self.numbers, device),
            tuple(
                DecodeGroup(g.first_row, to_device(g.tables, device), to_device(g.lengths, device)) for g in self.decode
            ),
            tuple(replace(c, table=to_device(c.table, device)) for c in self.chunks),
            to_device(self.sample_rows, device),
            self.sampling,
        )


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`, by way of pinned memory on a CUDA card: a copy from ordinary memory would wait for it."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


class BlockTables:
    """Block tables of the running requests, a row each, kept from step to step: only what changed is written.

    Row 0 stands for no request: all NULL. The tensor stays on the CPU; a step sends the part that it needs.
    """

    NULL_ROW = 0

    def __init__(self, kv: KVTensors) -> None:
        self.kv = kv
        self._row_of: dict[int, int] = {}
        self._known: dict[int, list[int]] = {}
        self._free: list[int] = []
        self.tensor = torch.empty(0, 0, dtype=torch.int64)  # (rows, width)
        self._grow(num_rows=1 + 16, width=32)

    def rows(self, scheduled: Sequence[ScheduledRequest]) -> list[int]:
        """Bring these requests' tables up to date; answers with their rows of `tensor`."""
        self._make_room(scheduled)
        found = []
        for s in scheduled:
            row = self._row_of.get(s.request_id)
            if row is None:
                row = self._row_of[s.request_id] = self._free.pop()
                self._known[s.request_id] = []
            # A contiguous run reaches past what is written; its unwritten blocks were never cleared, and what is masked
            # is still multiplied. So a row names the blocks that hold tokens, and NULL from there on.
            new = list(s.block_ids[: -(-s.context_length // self.kv.block_size)])
            if new != self._known[s.request_id]:
                self._update(row, self._known[s.request_id], new)
                self._known[s.request_id] = new
            found.append(row)
        return found

    def _update(self, row: int, known: list[int], new: list[int]) -> None:
        """A table that only grew is written from its old end on; one that was replaced is written whole."""
        first = len(known) if new[: len(known)] == known else 0
        self.tensor[row, first : len(new)] = torch.tensor(new[first:], dtype=torch.int64)
        self.tensor[row, len(new) : max(len(new), len(known))] = self.kv.null_block

    def _make_room(self, scheduled: Sequence[ScheduledRequest]) -> None:
        """Make the tensor wide enough, and find a row for each new request: first those of requests not here."""
        longest = max((len(s.block_ids) for s in scheduled), default=0) + 16  # 16: what `table_width` may add
        if longest > self.tensor.shape[1]:
            self._grow(self.tensor.shape[0], 2 * longest)
        here = {s.request_id for s in scheduled}
        num_new = len(here - self._row_of.keys())
        if num_new > len(self._free):
            for request_id in [r for r in self._row_of if r not in here]:
                row = self._row_of.pop(request_id)
                del self._known[request_id]
                self.tensor[row] = self.kv.null_block
                self._free.append(row)
        if num_new > len(self._free):
            self._grow(2 * (self.tensor.shape[0] + num_new), self.tensor.shape[1])

    def _grow(self, num_rows: int, width: int) -> None:
        old, rows_before = self.tensor, self.tensor.shape[0]
        self.tensor = torch.full((num_rows, width), self.kv.null_block, dtype=torch.int64)
        self.tensor[:rows_before, : old.shape[1]] = old
        self._free += range(max(rows_before, 1), num_rows)


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one pass computes of one request."""

    scheduled: ScheduledRequest
    table_row: int
    start: int
    token_ids: tuple[int, ...]
    num_padding: int
    samples: bool

    @property
    def length(self) -> int:
        return self.start + len(self.token_ids)

    @property
    def is_decode(self) -> bool:
        return len(self.token_ids) == 1 and self.num_padding == 0


def pack(plan: StepPlan, tables: BlockTables, min_split_slots: int = MIN_SPLIT_SLOTS) -> PackedPass | None:
    """All of a step in one pass; None when it computes nothing."""
    return _pack(_pieces(plan, tables), plan.num_inactive_rows, tables, min_split_slots)


def pack_by_role(plan: StepPlan, tables: BlockTables) -> tuple[PackedPass | None, PackedPass | None]:
    """Two passes, to be computed in this order: the prompts' tokens, then the answers' tokens.

    For a model that has two forms of its weights. Which of them computes a token must not depend on who else is in
    the step, nor on whether an answer's tokens come one by one or, after a preemption, all at once: so it depends on
    nothing but the token's place in its own request.
    """
    prompts, answers = [], []
    for piece in _pieces(plan, tables):
        cut = piece.scheduled.request.num_prompt_tokens - piece.start
        if not piece.token_ids or cut >= len(piece.token_ids):
            prompts.append(piece)
        elif cut <= 0:
            answers.append(piece)
        else:
            s, tokens = piece.scheduled, piece.token_ids
            prompts.append(_Piece(s, piece.table_row, piece.start, tokens[:cut], 0, False))
            start = piece.start + cut
            answers.append(_Piece(s, piece.table_row, start, tokens[cut:], piece.num_padding, piece.samples))
    return _pack(prompts, 0, tables), _pack(answers, plan.num_inactive_rows, tables)


def _pieces(plan: StepPlan, tables: BlockTables) -> list[_Piece]:
    rows = tables.rows(plan.scheduled)
    return [
        _Piece(s, row, s.start, s.token_ids, s.num_padding, s.samples)
        for s, row in zip(plan.scheduled, rows, strict=True)
        if s.token_ids or s.num_padding
    ]


def _pack(
    pieces: list[_Piece], num_inactive: int, tables: BlockTables, min_split_slots: int = MIN_SPLIT_SLOTS
) -> PackedPass | None:
    """Rows in order: inactive slots and decode rows by falling length, then chunks with their padding."""
    if not pieces and not num_inactive:
        return None
    kv = tables.kv
    decode = sorted((p for p in pieces if p.is_decode), key=lambda p: -p.length)
    token_ids, positions, slots = [0] * num_inactive, [0] * num_inactive, [kv.trash_slot] * num_inactive
    sampled, chunks = [], []
    for p in decode + [p for p in pieces if not p.is_decode]:
        if not p.is_decode:
            width = table_width(p.length, kv.block_size)
            table = tables.tensor[p.table_row if p.length else tables.NULL_ROW, :width]
            chunks.append(Chunk(len(token_ids), p.start, len(p.token_ids), p.num_padding, table))
        if p.samples:
            sampled.append((len(token_ids) + len(p.token_ids) - 1, p.scheduled))
        token_ids += p.token_ids
        positions += range(p.start, p.length)
        slots += kv.slots(p.scheduled.block_ids, p.start, p.length)
        if p.num_padding:
            token_ids += [0] * p.num_padding
            positions += [max(0, p.length - 1)] * p.num_padding
            slots += [kv.trash_slot] * p.num_padding

    numbers = torch.tensor((token_ids, positions, slots), dtype=torch.int64)
    return PackedPass(
        numbers,
        tuple(_decode_groups(decode, num_inactive, tables, min_split_slots)),
        tuple(chunks),
        torch.tensor([row for row, _ in sampled], dtype=torch.int64),
        tuple(s for _, s in sampled),
    )


def _decode_groups(
    decode: list[_Piece], num_inactive: int, tables: BlockTables, min_split_slots: int
) -> list[DecodeGroup]:
    """Cut the rows where padding to the longest would cost more than another group. Inactive slots read NULL blocks,
    as many as the longest row: a static batch computes for them, and what it computes is paid for here too."""
    lengths = [1] * num_inactive + [p.length for p in decode]
    rows = [tables.NULL_ROW] * num_inactive + [p.table_row for p in decode]
    groups, first = [], 0
    while first < len(rows):
        longest, stop = max(lengths[first:]), len(rows)
        for i in range(max(first, num_inactive), len(rows)):
            if 2 * lengths[i] < longest and (len(rows) - i) * (longest - lengths[i]) > min_split_slots:
                stop = i
                break
        width = table_width(longest, tables.kv.block_size)
        table = tables.tensor[torch.tensor(rows[first:stop]), :width]  # (R, B)
        group_lengths = torch.tensor(lengths[first:stop], dtype=torch.int64)
        groups.append(DecodeGroup(first, table, group_lengths))
        first = stop
    return groups
