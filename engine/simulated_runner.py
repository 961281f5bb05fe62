"""A runner without weights: it answers at once and says how long the step would have taken.

Owns a cost model and a clock of its own. Behind the same scheduler as the real runner, so that what it shows of
scheduling and memory is not a copy of the real thing but the real thing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.scheduling.plan import SampledToken, StepOutput, StepPlan
from engine.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of one step: `step_s + row_s * rows + context_s * (query, key) pairs that attention looks at`."""

    step_s: float = 0.008
    row_s: float = 0.0004
    context_s: float = 2e-8

    def cost(self, plan: StepPlan) -> float:
        """Seconds that `plan` would take."""
        pairs = sum(
            (len(item.token_ids) + item.num_padding) * (item.start + len(item.token_ids)) for item in plan.scheduled
        )
        return self.step_s + self.row_s * plan.num_rows + self.context_s * pairs


class SimulatedClock:
    """A monotonic clock that only moves when told to."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Seconds so far."""
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Move forward."""
        self.now_s += seconds


def next_number(request: Request) -> int:
    """Token 1, 2, 3 …: no answer ever meets an end-of-sequence id by chance."""
    return len(request.output_token_ids) + 1


class SimulatedRunner:
    """Answers with `next_token(request)` and moves `clock` by what `cost_model` says."""

    def __init__(
        self,
        clock: SimulatedClock,
        cost_model: CostModel | None = None,
        next_token: Callable[[Request], int] = next_number,
    ) -> None:
        self.clock = clock
        self.cost_model = cost_model or CostModel()
        self.next_token = next_token

    def reset_pool(self, num_blocks: int, block_size: int) -> None:
        """Nothing is stored, so there is nothing to reset."""

    def run(self, plan: StepPlan) -> StepOutput:
        """A token for everyone who samples, after the step's time."""
        seconds = self.cost_model.cost(plan)
        self.clock.advance(seconds)
        sampled = {
            item.request_id: SampledToken(self.next_token(item.request)) for item in plan.scheduled if item.samples
        }
        return StepOutput(sampled, forward_s=seconds)
