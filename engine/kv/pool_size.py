"""How many blocks of keys and values memory can hold.

Owns the arithmetic of `--num-blocks auto` and the question whether a pool fits before anything is loaded. Never
allocates; imports no torch, so whoever knows the device hands in what is free there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CPU_SHARE = 0.25
CPU_CAP_BYTES = 8 << 30
"""A machine's memory belongs to others too: on a CPU the pool takes a quarter of what is free, at most this."""
CUDA_SHARE = 0.9
CUDA_GRAPHS_BYTES = 1 << 30
"""What captured graphs and the allocator's own rounding take on a card, beside what the model does."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What a model needs beside its pool, in bytes, and what its keys and values need per token.

    `work_bytes` is what one step needs at most for a moment: activations and float32 logits.
    """

    weight_bytes: int
    work_bytes: int
    kv_bytes_per_token: int

    def pool_bytes(self, num_blocks: int, block_size: int) -> int:
        """Keys and values of all blocks, and of two more: one to read zeros from, one to write scratch to."""
        return (num_blocks + 2) * block_size * self.kv_bytes_per_token


def blocks_that_fit(memory: ModelMemory, block_size: int, device: str, free_bytes: int, most: int) -> int:
    """Blocks for a pool sized from memory, at most `most`. Raises MemoryError, with the sizes, when not even one fits.

    `free_bytes` is what is free on the device now: what other processes hold is not counted, and before the weights
    are there.
    """
    if device == "cuda":
        room = int(free_bytes * CUDA_SHARE) - memory.weight_bytes - memory.work_bytes - CUDA_GRAPHS_BYTES
    else:
        room = min(int((free_bytes - memory.weight_bytes - memory.work_bytes) * CPU_SHARE), CPU_CAP_BYTES)
    num_blocks = room // (block_size * memory.kv_bytes_per_token) - 2
    if num_blocks < 1:
        raise MemoryError(
            f"the model needs {_gib(memory.weight_bytes + memory.work_bytes)} and {_gib(free_bytes)} are free on "
            f"{device}: no room is left for keys and values; use a smaller model or a smaller dtype"
        )
    return min(num_blocks, most)


def check_fits(memory: ModelMemory, num_blocks: int, block_size: int, device: str, free_bytes: int) -> None:
    """Raise MemoryError, with the sizes, when the weights and a pool of this size cannot be in memory together."""
    pool_bytes = memory.pool_bytes(num_blocks, block_size)
    if memory.weight_bytes + pool_bytes > free_bytes:
        raise MemoryError(
            f"{num_blocks} blocks of {block_size} tokens take {_gib(pool_bytes)} and the weights "
            f"{_gib(memory.weight_bytes)}, but {_gib(free_bytes)} are free on {device}; "
            "use a smaller --num-blocks (or auto) or a smaller --dtype"
        )


def free_cpu_bytes() -> int:
    """Memory this process could still take: what the system has to spare, or the container's limit where that is less.

    Where the system does not tell, half of what it has.
    """
    spare = _meminfo_available()
    if spare is None:
        spare = _half_of_all()
    limit = _container_room()
    return spare if limit is None else min(spare, limit)


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _container_room() -> int | None:
    """What cgroup v2 still allows."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = (folder / "memory.max").read_text().strip(), (folder / "memory.current").read_text()
    except OSError:
        return None
    return max(0, int(limit) - int(used)) if limit.isdigit() else None


def _half_of_all() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 4 << 30


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
