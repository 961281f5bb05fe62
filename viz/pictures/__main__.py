"""`python -m viz.pictures [--out notes/pictures]`: draws every picture of the notes anew."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.telemetry.record import EventKind
from viz.pictures import benches, curves, diagrams, memory, scenes, strip

FOLDER = Path(__file__).resolve().parents[2] / "notes" / "pictures"


def static_vs_continuous() -> str:
    """The classic example, twice."""
    runs = [(name, scenes.uneven(policy).records) for name, policy in (("static", "static"), ("continuous", "mixed"))]
    return strip.picture(
        "The same eight requests on four slots",
        [(f"{name}: {len(records)} steps", records) for name, records in runs],
    )


def static_padding() -> str:
    """The rectangle of a padded prefill, and what follows."""
    return diagrams.rectangle(
        "A static batch is a rectangle: padding on the left, inactive slots on the right", scenes.padded().records
    )


def chunked_prefill() -> str:
    """A long prompt among short ones: whole, and in chunks."""
    return strip.picture(
        "A prompt of 96 tokens (D) comes while three requests decode",
        [
            ("prefill first: one step takes the whole prompt, everybody waits for it", _long("prefill_first", 128)),
            ("mixed, token budget 16: chunks, and nobody's next token waits", _long("mixed", 16)),
        ],
    )


def trade_off() -> str:
    """Who goes first when prompts and answers compete."""
    names = (("decode_first", "decode first"), ("prefill_first", "prefill first"), ("mixed", "mixed"))
    return strip.picture(
        "Eight requests, two slots, three policies",
        [
            (f"{name}: {len(scenes.trade(policy).records)} steps", scenes.trade(policy).records)
            for policy, name in names
        ],
    )


def contiguous_vs_paged() -> str:
    """The pool after the tenth step, with both layouts."""
    sides = []
    for layout in ("contiguous", "paged"):
        run = scenes.asked_for_much(layout)
        record = run.records[9]
        running, empty = len(record.num_tokens), record.internal_fragmentation
        about = f"step 10: {running} requests run; {empty:.0%} of what is owned is empty"
        sides.append((layout, about, memory.map_after(run.records, 10)))
    return memory.grids("Ten requests ask for memory: reserved at admission, and block by block", sides)


def holes() -> str:
    """External fragmentation: enough blocks, no run."""
    run = scenes.holes()
    record = next(r for r in run.records if any(wait.reason == "no_run" for wait in r.waiting.values()))
    wait = next(wait for wait in record.waiting.values() if wait.reason == "no_run")
    about = (
        f"step {record.step}: {record.num_free_blocks} blocks are free, "
        f"the longest run has {wait.available_blocks}, F needs {wait.needed_blocks}"
    )
    return memory.grids("Holes", [("contiguous", about, memory.map_after(run.records, record.step))], per_row=27)


def prefix_sharing() -> str:
    """Four tables that begin with the same three blocks."""
    run = scenes.shared()
    return memory.tables("Four prompts with the same beginning", memory.map_after(run.records, 6), (1, 2, 3, 4), 18)


def block_tables() -> str:
    """Tables of requests that took turns growing."""
    run = scenes.tight()
    return memory.tables("Block tables", memory.map_after(run.records, 8), (1, 2, 3, 4), 12)


def copy_on_write() -> str:
    """Three answers to one prompt, after each has written its own tokens."""
    run = scenes.forked()
    return memory.tables("One prompt, three answers", memory.map_after(run.records, 4), (1, 2, 3), 10)


def preemption() -> str:
    """A pool that is too small."""
    run = scenes.tight()
    count = sum(event.kind is EventKind.PREEMPTED for record in run.records for event in record.events)
    return strip.picture(
        "Four requests and 12 blocks", [(f"paged, 12 blocks of 8 tokens: {count} preempted", run.records)]
    )


def memory_over_time() -> str:
    """Owned and really used tokens, step by step, with both layouts."""
    series = []
    for layout in ("contiguous", "paged"):
        records = scenes.asked_for_much(layout).records
        series.append((f"{layout}: stored tokens", [(float(r.step), float(r.num_stored_tokens)) for r in records]))
    return curves.lines("What 48 blocks of 8 tokens hold", "step", "tokens stored", series)


def kv_cache_rows() -> str:
    """Rows that the linear layers compute for one answer, with and without a cache."""
    records = scenes.alone().records
    with_cache, without, total_with, total_without = [], [], 0, 0
    for record in records:
        total_with += sum(record.num_tokens.values())
        total_without += sum(record.computed.values())
        with_cache.append((float(record.step), float(total_with)))
        without.append((float(record.step), float(total_without)))
    return curves.lines(
        "A prompt of 32 tokens, an answer of 64",
        "token of the answer",
        "rows computed so far",
        [("without a cache", without), ("with a KV cache", with_cache)],
    )


def timeline() -> str:
    """One request's life with the names of its times."""
    return diagrams.timeline("The times of request F (continuous, four slots)", scenes.uneven("mixed").records, 6)


PICTURES: dict[str, Callable[[], str]] = {
    "static-vs-continuous": static_vs_continuous,
    "static-padding": static_padding,
    "chunked-prefill": chunked_prefill,
    "trade-off": trade_off,
    "contiguous-vs-paged": contiguous_vs_paged,
    "holes": holes,
    "block-tables": block_tables,
    "prefix-sharing": prefix_sharing,
    "copy-on-write": copy_on_write,
    "preemption": preemption,
    "memory-over-time": memory_over_time,
    "kv-cache-rows": kv_cache_rows,
    "timeline": timeline,
    "growth-scheduling": partial(benches.growth, "simulated"),
    "growth-real": partial(benches.growth, "real"),
    "profile": benches.profile,
}
"""Of simulated runs, and of what was measured once and kept: the same on every machine."""


def measured() -> dict[str, Callable[[], str]]:
    """Those for which the model's own code runs; they need torch."""
    from viz.pictures import model

    return {"rope-wavelengths": model.rope_wavelengths, "parity-error": model.parity_error}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m viz.pictures", description="Draw the notes' pictures anew.")
    parser.add_argument("--out", type=Path, default=FOLDER)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in (PICTURES | measured()).items():
        (out / f"{name}.svg").write_text(draw())
        print(out / f"{name}.svg")


def _long(policy: str, token_budget: int) -> scenes.Records:
    return scenes.long_prompt(policy, token_budget).records


if __name__ == "__main__":
    main()
