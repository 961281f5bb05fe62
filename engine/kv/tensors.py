"""The memory that keys and values lie in: one tensor for the whole pool, and what may be done to its slots.

Owns layout, clearing, copying and writing. Never knows who a block belongs to, which blocks are free, or how
attention reads. Letters: L layers, B blocks, H key/value heads, S slots (tokens) of a block, D head size, N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.scheduling.plan import BlockCopy


class KVTensors:
    """Keys and values of all layers, `(L, 2, (B + 2) * H, S, D)`.

    Rows are (block, head) pairs: one `index_select` on a layer's first dimension, with ids `block * H + head`, gathers
    a request's keys as `(H, blocks * S, D)`, the layout that `bmm` wants, without a transpose.

    Two blocks more than asked for: NULL is read where a block table is padded, is zero and never written; TRASH is
    written by rows that nobody asked for (padding, inactive slots) and never read by a real one.

    Raises MemoryError, with the size in words, when the pool does not fit.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs at least 1 block of 1 token, got {num_blocks} blocks of {block_size}")
        self.num_layers, self.num_blocks, self.block_size = num_layers, num_blocks, block_size
        self.num_kv_heads, self.head_dim = num_kv_heads, head_dim
        self.null_block, self.trash_block = num_blocks, num_blocks + 1
        shape = (num_layers, 2, (num_blocks + 2) * num_kv_heads, block_size, head_dim)
        self.storage = _allocate(shape, dtype, torch.device(device))
        self._by_block = self.storage.view(num_layers, 2, num_blocks + 2, num_kv_heads, block_size, head_dim)
        self.keys = [self.storage[layer, 0] for layer in range(num_layers)]
        self.values = [self.storage[layer, 1] for layer in range(num_layers)]
        self._keys_and_values = [self.storage[layer].view(-1, block_size, head_dim) for layer in range(num_layers)]
        self._key_slots = [keys.view(-1, head_dim) for keys in self.keys]  # a row for each (block, head, slot)
        self._value_slots = [values.view(-1, head_dim) for values in self.values]
        self.head_ids = torch.arange(num_kv_heads, device=self.storage.device)  # (H,)
        self.clear([self.null_block, self.trash_block])

    @property
    def nbytes(self) -> int:
        """Size of the pool in bytes, the two extra blocks included."""
        return self.storage.numel() * self.storage.element_size()

    def clear(self, block_ids: Sequence[int]) -> None:
        """Zero these blocks in every layer, whatever they held (NaN too)."""
        for first, stop in _runs(block_ids):  # a slice a run: several times faster than `index_fill_` over all
            self._by_block[:, :, first:stop].zero_()

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the first `num_tokens` slots of each `src` block to `dst`; the rest of `dst` becomes zero.

        A copy reads what `src` held before this call: chains need several calls.
        """
        if not copies:
            return
        kept = [self._by_block[:, :, c.src, :, : c.num_tokens].clone() for c in copies]  # (L, 2, H, n, D)
        self.clear([c.dst for c in copies])
        for c, values in zip(copies, kept, strict=True):
            self._by_block[:, :, c.dst, :, : c.num_tokens] = values

    def slots(self, block_ids: Sequence[int], start: int, stop: int) -> list[int]:
        """The numbers, for `slot_rows`, of the slots of positions `start` to `stop` under this block table."""
        size, found = self.block_size, list[int]()
        for index in range(start // size, -(-stop // size)):
            first = (block_ids[index] * self.num_kv_heads - index) * size  # where position 0 would be
            found += range(first + max(start, index * size), first + min(stop, (index + 1) * size))
        return found

    @property
    def trash_slot(self) -> int:
        """A slot that unwanted tokens may be written to."""
        return self.trash_block * self.num_kv_heads * self.block_size

    def slot_rows(self, slots: Tensor) -> Tensor:
        """Where `write` puts N tokens: `slots` (N,) are those of the first head -> (N, H), a row for each head."""
        return slots[:, None] + self.head_ids * self.block_size

    def block_rows(self, tables: Tensor) -> Tensor:
        """Block tables (R, B) -> rows of `keys` and `values`, head after head of each table: (R * H * B,)."""
        return (tables[:, None, :] * self.num_kv_heads + self.head_ids[:, None]).reshape(-1)

    def rows_of_both(self, block_rows: Tensor) -> Tensor:
        """Rows of `keys` (X,), which are rows of `values` too -> what `gather` takes for them: (2 * X,)."""
        return torch.cat((block_rows, block_rows + (self.num_blocks + 2) * self.num_kv_heads))

    def gather(self, layer: int, rows_of_both: Tensor, num_slots: int) -> tuple[Tensor, Tensor]:
        """Keys and values of whole tables, by one operator: each (tables * H, num_slots, D)."""
        gathered = self._keys_and_values[layer].index_select(0, rows_of_both)
        keys, values = gathered.view(2, -1, num_slots, self.head_dim).unbind()
        return keys, values

    def write(self, layer: int, k: Tensor, v: Tensor, slot_rows: Tensor) -> None:
        """Store keys and values of N tokens, each `(N, H, D)`, at the rows from `slot_rows`."""
        self._key_slots[layer].index_put_((slot_rows,), k)
        self._value_slots[layer].index_put_((slot_rows,), v)


def _runs(block_ids: Sequence[int]) -> list[tuple[int, int]]:
    """First and one past the last of each run of neighbouring ids."""
    runs: list[tuple[int, int]] = []
    for block_id in sorted(block_ids):
        if runs and runs[-1][1] == block_id:
            runs[-1] = (runs[-1][0], block_id + 1)
        else:
            runs.append((block_id, block_id + 1))
    return runs


def _allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that is not touched yet: a block costs pages only once it was handed out (and cleared)."""
    size = dtype.itemsize
    for n in shape:
        size *= n
    words = f"the KV pool needs {size / 2**30:.2f} GiB on {device}; use fewer or smaller blocks, or a smaller dtype"
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:  # torch's CPU allocator raises a plain RuntimeError
        raise MemoryError(words) from error
