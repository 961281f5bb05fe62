"""The panels alone on a bare page, over the real service with a runner that computes nothing but takes its time.

For looking at them while working on them, and for the browser tests:

    python -m tests.ui.harness --port 7999 --load
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time

import uvicorn
from fastapi import FastAPI, Response

from engine.scheduling.plan import StepOutput, StepPlan
from engine.scheduling.sampling_params import SamplingParams
from engine.serving.service import EngineService
from engine.serving.simulate import simulate
from engine.serving.workload import Arrivals, WorkloadSpec, generate
from engine.settings import EngineSettings
from engine.simulated_runner import CostModel, SimulatedClock, SimulatedRunner
from engine.telemetry.record import StepRecord
from viz import panels

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>panels</title>
<link rel="icon" href="data:,"><meta name="viewport" content="width=device-width, initial-scale=1">
<style>body {{ margin: 0; padding: 16px; font-family: system-ui, sans-serif; background: #f6f7f9 }}
body.dark {{ background: #0d1117 }} .away {{ position: absolute; left: -9999px }}</style></head>
<body class="{theme}"><main><h1 class="away">Panels</h1><h2 class="away">Live</h2>
<div id="here"><div class="engine-panels"></div></div></main>
<script>
const element = document.getElementById('here'); window.errors = [];
window.addEventListener('error', (e) => window.errors.push(e.message));
window.addEventListener('unhandledrejection', (e) => window.errors.push(String(e.reason)));
{script}
</script></body></html>"""


class PacedRunner(SimulatedRunner):
    """The simulated runner, but its time really passes."""

    def __init__(self, cost_model: CostModel | None = None) -> None:
        super().__init__(SimulatedClock(), cost_model)

    def run(self, plan: StepPlan) -> StepOutput:
        before = self.clock.now_s
        output = super().run(plan)
        time.sleep(self.clock.now_s - before)
        return output


def make_service(settings: EngineSettings | None = None, cost_model: CostModel | None = None) -> EngineService:
    runner = PacedRunner(cost_model or CostModel(step_s=0.015, row_s=0.0005))
    return EngineService(runner, None, settings or EngineSettings(), model_name="simulated", info={"device": "none"})


def make_app(service: EngineService, theme: str = "") -> FastAPI:
    app = FastAPI()

    @app.get("/")
    def page(dark: bool = theme == "dark") -> Response:
        text = PAGE.format(theme="dark" if dark else "", script=panels.mount_script("live"))
        return Response(text, media_type="text/html")

    feed = panels.register_routes(app, service)

    @app.get("/compare")
    def compare(dark: bool = False) -> Response:
        runs = [{"id": feed.add_run(run), "label": label} for label, run in example_runs().items()]
        script = panels.mount_script("compare").replace("watch('value', () => panels.setValue(props.value)); ", "")
        text = PAGE.format(
            theme="dark" if dark else "", script=f"const props = {{value: {{runs: {json.dumps(runs)}}}}};\n" + script
        )
        return Response(text, media_type="text/html")

    return app


def example_runs() -> dict[str, tuple[StepRecord, ...]]:
    """The scheduler example of the project's beginning: 32 against 20 steps."""
    lengths = tuple((1, n) for n in (16, 4, 4, 4, 16, 4, 4, 4))
    workload = generate(WorkloadSpec(num_requests=8, arrivals=Arrivals.AT_ONCE, lengths=lengths))
    settings = EngineSettings(max_num_seqs=4, num_blocks=64, policy="static", kv_layout="contiguous")
    other = settings.changed({"policy": "mixed", "kv_layout": "paged"})
    return {
        "static + contiguous": simulate(workload, settings).records,
        "continuous + paged": simulate(workload, other).records,
    }


def keep_busy(service: EngineService, rate: float, seed: int = 1) -> None:
    """Requests at random, for ever."""
    rng = random.Random(seed)
    system = tuple(rng.randrange(1000) for _ in range(64))

    def run() -> None:
        while True:
            prompt = tuple(rng.randrange(1000) for _ in range(rng.choice([8, 30, 60, 120, 700])))
            prompt = system + prompt if rng.random() < 0.5 else prompt
            params = SamplingParams(max_tokens=rng.choice([20, 60, 120, 200]), temperature=0.0)
            try:
                stream = service.submit(prompt, params)[0]
                threading.Thread(target=stream.result, daemon=True).start()
            except Exception as error:
                print("refused:", error)
            time.sleep(rng.expovariate(rate))

    threading.Thread(target=run, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=7999)
    parser.add_argument("--load", type=float, default=0.0, help="requests per second")
    parser.add_argument("--policy", default="mixed")
    parser.add_argument("--kv-layout", default="paged")
    parser.add_argument("--num-blocks", type=int, default=256)
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--step-s", type=float, default=0.015)
    args = parser.parse_args()
    settings = EngineSettings(
        policy=args.policy,
        kv_layout=args.kv_layout,
        num_blocks=args.num_blocks,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=256,
    )
    service = make_service(settings, CostModel(step_s=args.step_s, row_s=0.0002))
    service.start()
    if args.load:
        keep_busy(service, args.load)
    uvicorn.run(make_app(service), port=args.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
