"""The comparison: one seeded workload under two settings, on simulated time or on the real model.

Owns the handlers. Never knows how the engine schedules (`engine.serving.simulate`, `.measured_run`) nor how the result
is drawn (`static/page/compare.js` and the panels).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.serving.cost_fit import fit_cost_model
from engine.serving.load import LoadBusy, LoadRunner
from engine.serving.measured_run import MeasuredRun, measure
from engine.serving.simulate import simulate
from engine.serving.workload import Arrivals, Workload, WorkloadError, WorkloadSpec, generate
from engine.settings import EngineSettings
from engine.simulated_runner import CostModel
from engine.telemetry.figures import Targets, figures_of
from engine.telemetry.record import StepRecord
from viz.chat import REFUSALS, in_words
from viz.compare_presets import WORKLOADS
from viz.compare_words import Side, headline, reasons, table
from viz.cost_words import cost_words
from viz.served import SERVED, served_here

if TYPE_CHECKING:
    from engine.serving.service import EngineService

MAX_REQUESTS = 400
SIZES = ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens")
POLICY_NAMES = {
    "static": "static",
    "mixed": "continuous",
    "decode_first": "decode first",
    "prefill_first": "prefill first",
}


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """What a person asked to be compared. `a` and `b` hold policy, kv_layout and prefix_caching."""

    workload: str
    seed: int
    a: Mapping[str, Any]
    b: Mapping[str, Any]
    sizes: Mapping[str, int]
    targets: Targets
    on_real_model: bool = False


class Comparison:
    """The handlers of the comparison. `add_run` keeps a run's records for the panels and gives an id for them."""

    def __init__(self, service: EngineService, runner: LoadRunner, locked: bool) -> None:
        self._service = service
        self._runner = runner
        self._locked = locked
        self._is_measuring = False
        self._own: set[tuple[str, int]] = set()
        """(epoch, id) of the requests that measured comparisons sent: nobody means these by "just served"."""
        self.add_run: Callable[[Sequence[StepRecord]], str] | None = None

    async def run(self, asked: CompareRequest) -> AsyncIterator[dict[str, Any]]:
        """Compare; yields results as `static/page/compare.js` takes them: first `status` alone, then all."""
        yield {"status": "working …"}
        try:
            workload = self._workload(asked)
            if asked.on_real_model:
                async for result in self._measured(asked, workload):
                    yield result
            else:
                yield await self._simulated(asked, workload)
        except (*REFUSALS, LoadBusy, TimeoutError) as error:
            yield {"error": in_words(error)}

    def sizes_now(self) -> dict[str, int]:
        """The engine's present sizes."""
        state = self._service.state()
        return {key: state[key] for key in SIZES}

    def stop(self) -> None:
        """End a comparison on the real model."""
        self._runner.stop()

    def _workload(self, asked: CompareRequest) -> Workload:
        state = dict(self._service.state()) | dict(asked.sizes)
        if asked.workload == SERVED:
            spec = self._served(state["max_model_len"])
        elif asked.workload in WORKLOADS:
            spec = WORKLOADS[asked.workload](state)
        else:
            raise WorkloadError("choose one of the workloads")
        spec = replace(spec, seed=asked.seed)
        if spec.num_requests > MAX_REQUESTS:
            raise WorkloadError(
                f"a comparison takes at most {MAX_REQUESTS} requests, and this workload has {spec.num_requests} with "
                f"{state['max_num_seqs']} slots; set fewer slots"
            )
        return generate(spec)

    def _served(self, max_model_len: int) -> WorkloadSpec:
        steps = self._service.steps()
        own = frozenset(request_id for epoch, request_id in self._own if epoch == steps.epoch)
        return served_here(steps.records, max_model_len, without=own)

    async def _simulated(self, asked: CompareRequest, workload: Workload) -> dict[str, Any]:
        fit = fit_cost_model(self._service.steps().records)
        model = fit.model if fit else CostModel()
        state = self._service.state()
        base = {key: state[key] for key in SIZES} | dict(asked.sizes)
        sides = []
        for settings in (asked.a, asked.b):
            engine_settings = EngineSettings(
                **base, **settings, max_model_len=max(state["max_model_len"], 64), max_queue=MAX_REQUESTS
            )
            # In a thread of its own, so that answers go on streaming meanwhile.
            run = await asyncio.to_thread(simulate, workload, engine_settings, model)
            sides.append(run.records)
        basis = f"The real scheduler and memory, on a simulated clock: {cost_words(model, fit)}"
        return self._result(asked, workload, sides, basis, "Simulated")

    async def _measured(self, asked: CompareRequest, workload: Workload) -> AsyncIterator[dict[str, Any]]:
        if self._locked:
            raise WorkloadError("this needs the engine's switches, and they are locked here; compare in simulation")
        if self._is_measuring:
            raise WorkloadError("a comparison is already running on the real model; wait for it or stop it")
        state = self._service.state()
        before = {key: state[key] for key in ("policy", "kv_layout", "prefix_caching", "step_delay_s", *SIZES)}
        self._is_measuring = True
        sides = []
        try:
            for name, settings in zip(_names(asked.a, asked.b), (asked.a, asked.b), strict=True):
                run = MeasuredRun()
                changes = dict(asked.sizes) | dict(settings)
                async for progress in measure(self._service, self._runner, workload, changes, run):
                    yield {"status": f"{name}: {progress.finished} of {progress.total} finished; watch it live"}
                if self._runner.progress().stopped or not run.records:
                    raise WorkloadError(f"stopped while {name} ran, so there is nothing to compare")
                sides.append(run.records)
                self._own |= {(state["epoch"], request_id) for request_id in self._runner.request_numbers}
        finally:
            self._is_measuring = False
            await asyncio.to_thread(self._service.control, before)
        basis = "Measured on the real model, one after the other, each from an empty prefix cache."
        if workload.spec.asked_tokens_factor > 1:
            basis += " There nobody's answer ends early, so that everybody asks for exactly what it gets."
        yield self._result(asked, workload, sides, basis, "Measured on the real model")

    def _result(
        self, asked: CompareRequest, workload: Workload, sides: Sequence[Sequence[StepRecord]], basis: str, how: str
    ) -> dict[str, Any]:
        names = _names(asked.a, asked.b)
        if not all(sides):
            raise WorkloadError("no request of this workload fits these sizes; raise the number of blocks")
        a, b = (Side(name, figures_of(records, asked.targets)) for name, records in zip(names, sides, strict=True))
        runs = []
        if self.add_run is not None:
            for side, records in zip((a, b), sides, strict=True):
                runs.append({"id": self.add_run(records), "label": side.name})
        return {
            "headline": f"{how}: {headline(a, b)}",
            "reasons": reasons(a, b, asked.targets),
            "basis": f"{_workload_words(asked, workload)} {basis}",
            "labels": [*names, f"{b.name} ÷ {a.name}"],
            "rows": table(a, b, asked.targets),
            "runs": runs,
        }


def _names(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, str]:
    """Each side in the words of what differs between the two; by their order, where nothing does."""
    differing = [key for key in a if a[key] != b[key]]
    return (_name(a, differing), _name(b, differing)) if differing else ("the first", "the second")


def _name(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    words = {
        "policy": POLICY_NAMES[settings["policy"]],
        "kv_layout": str(settings["kv_layout"]),
        "prefix_caching": "sharing on" if settings["prefix_caching"] else "sharing off",
    }
    return " + ".join(words[key] for key in keys)


def _workload_words(asked: CompareRequest, workload: Workload) -> str:
    prompts = [request.num_prompt_tokens for request in workload.requests]
    outputs = [request.num_output_tokens for request in workload.requests]
    come = {
        Arrivals.AT_ONCE: "all at once",
        Arrivals.POISSON: f"{workload.spec.rate_per_s:g} a second",
        Arrivals.BURST: "in bursts",
        Arrivals.CLOSED: "each user after an answer",
        Arrivals.TRACE: "as they came" if asked.workload == SERVED else "as scripted",
    }[workload.spec.arrivals]
    return (
        f"{len(prompts)} requests ({come}), prompts of {_span(prompts)}, answers of "
        f"{_span(outputs)}; {asked.sizes['max_num_seqs']} slots, {asked.sizes['num_blocks']} blocks of "
        f"{asked.sizes['block_size']} tokens, {asked.sizes['max_num_batched_tokens']} tokens a step; seed {asked.seed}."
    )


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    words = f"{low}" if low == high else f"{low} to {high}"
    return f"{words} token{'' if high == 1 else 's'}"
