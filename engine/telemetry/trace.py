"""Traces: what the rest of the house needs to know of them, and `python -m engine.telemetry.trace`.

    python -m engine.telemetry.trace info FILE
    python -m engine.telemetry.trace replay FILE --check
    python -m engine.telemetry.trace export FILE --format perfetto|csv [--out PATH]

Owns no format itself: lines are `engine.telemetry.trace_format`, files `trace_file` and `recorder`, other programs'
forms `perfetto` and `frames`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from engine.telemetry import perfetto
from engine.telemetry.checked import TraceError
from engine.telemetry.record import StepRecord
from engine.telemetry.recorder import Recorded, TraceRecorder, header_of
from engine.telemetry.ring import Steps
from engine.telemetry.trace_file import Trace, TraceReader, load
from engine.telemetry.trace_format import Header, base_line, header_line, step_line

__all__ = ["Header", "Trace", "TraceError", "TraceReader", "TraceRecorder", "iter_jsonl", "iter_perfetto", "load"]


class Traced(Recorded, Protocol):
    """What a trace of a running service is made from."""

    def steps(self, since: int | None = None, epoch: str | None = None, limit: int | None = None) -> Steps:
        """Records newer than `since`."""


def iter_jsonl(service: Traced) -> Iterator[str]:
    """The trace of what the ring holds, line by line (each ends in a newline); taken at the first `next`.

    It can be replayed with `--check` as long as the ring still holds the first step.
    """
    header, journal = header_of(service), service.journal
    steps = service.steps()
    yield header_line(header) + "\n"
    if steps.base is not None and steps.base.step > 0:
        yield base_line(steps.base) + "\n"
    entries = {entry.step: entry for entry in journal.entries(steps.oldest, steps.newest)}
    for record in steps.records:
        yield step_line(record, entries.get(record.step)) + "\n"


def iter_perfetto(service: Traced) -> Iterator[str]:
    """The same as one JSON document in Chrome's trace format, in pieces; opens in the Perfetto UI."""
    steps = service.steps()
    return perfetto.iter_json(steps.records, header_of(service).model)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. 0 all right, 1 a replay that differs, 2 a file that cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m engine.telemetry.trace", description="Look at saved traces.")
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="what a trace holds")
    replay = commands.add_parser("replay", help="run its arrivals through the scheduler again")
    replay.add_argument("--check", action="store_true", help="only say whether every decision is the same")
    export = commands.add_parser("export", help="write it in another program's form")
    export.add_argument("--format", choices=("perfetto", "csv"), required=True)
    export.add_argument("--out", type=Path, help="a file, or for csv a folder (default: beside FILE)")
    for command in (info, replay, export):
        command.add_argument("file", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        if options.command == "info":
            return _info(options.file)
        if options.command == "replay":
            return _replay(options.file, options.check)
        return _export(options.file, options.format, options.out)
    except TraceError as error:
        print(f"{options.file.name}: {error}", file=sys.stderr)
        return 2


def _info(path: Path) -> int:
    from engine.telemetry import frames

    trace = load(path, max_steps=10_000_000)
    steps, requests = frames.steps_frame(trace.records), frames.requests_frame(trace.records, trace.header.start_s)
    seconds = trace.records[-1].time_s + trace.records[-1].duration_s if trace.records else 0.0
    print(f"run {trace.header.epoch}, {', '.join(f'{k} {v}' for k, v in trace.header.model.items())}")
    print(f"settings: {', '.join(f'{k} {v}' for k, v in trace.header.settings.items())}")
    print(f"{len(steps)} steps in {seconds:.2f} s, {len(requests)} requests")
    print(f"ended: {trace.ending or ('in the middle of a line' if trace.is_cut else 'after a whole step')}")
    return 0


def _replay(path: Path, check: bool) -> int:
    from engine.replay import replay  # it knows the scheduler, which this room otherwise does not

    num_steps = 0
    with TraceReader(path) as reader:
        for step, difference in replay(reader):
            num_steps += 1
            if difference is not None:
                print(f"The replay differs at {difference}")
                return 1
            if not check:
                print(_in_words(step.record))
    print(f"{num_steps} steps replayed, every decision as recorded")
    return 0


def _in_words(record: StepRecord) -> str:
    events = " ".join(f"{event.kind}:{event.request_id}" for event in record.events if event.request_id is not None)
    return f"{record.step:>6} prefill {list(record.active_prefill)} decode {list(record.active_decode)} {events}"


def _export(path: Path, form: str, out: Path | None) -> int:
    from engine.telemetry import frames

    trace = load(path, max_steps=10_000_000)
    if form == "csv":
        folder = out or path.parent
        folder.mkdir(parents=True, exist_ok=True)
        stem = path.name.split(".")[0]
        for name, frame in (
            ("steps", frames.steps_frame(trace.records)),
            ("requests", frames.requests_frame(trace.records, trace.header.start_s)),
        ):
            target = folder / f"{stem}-{name}.csv"
            frame.to_csv(target, index=False)
            print(target)
        return 0
    target = out or path.with_name(path.name.split(".")[0] + ".perfetto.json")
    with target.open("w") as file:
        file.writelines(perfetto.iter_json(trace.records, trace.header.model))
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
