"""The four policies: static, decode_first, prefill_first, mixed.

Each is one pure class; `engine.scheduling.policy` says what a policy may see and must answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.scheduling.policy import Choice, Policy, View, Work, wake_time
from engine.scheduling.request import Request
from engine.telemetry.record import WaitReason


class Mixed:
    """Continuous batching with chunked prefill: every running request decodes one token, prefill chunks fill what is
    left of the token budget (Orca, Yu et al. 2022; Sarathi-Serve, Agrawal et al. 2024)."""

    name = "mixed"
    closes_batch = False

    def holds_back(self, view: View) -> WaitReason | None:
        """One slot a request, and some budget left for it."""
        if view.num_running >= view.max_num_seqs:
            return WaitReason.NO_SLOT
        return None if _tokens_left(view) > 0 else WaitReason.NO_BUDGET

    def choose(self, view: View) -> Choice:
        """All decodes that fit, then chunks of prompts in order of admission."""
        decodes = view.select(view.decoding, min(view.max_num_seqs, view.token_budget))
        chunks = _chunks(view.prefilling, view.max_num_seqs - len(decodes), view.token_budget - len(decodes))
        work = (*_decode(decodes), *chunks)
        limit = _limit(work, view)
        return Choice(work, idle_prefill=limit, idle_decode=limit)


class PrefillFirst:
    """Prefill whenever something waits and fits, else decode: best time to first token, uneven gaps after it.

    One kind a step. Up to twice `max_num_seqs` requests may hold keys and values, so that decoding can have a queue.
    """

    name = "prefill_first"
    closes_batch = False

    def holds_back(self, view: View) -> WaitReason | None:
        """Room among the holders, and in this step's prefill."""
        return _prefill_step_full(view)

    def choose(self, view: View) -> Choice:
        """Prompts if there are any, else decodes."""
        return _prefill_step(view) if view.prefilling else _decode_step(view)


class DecodeFirst:
    """Decode until `prefill_threshold` requests wait for prefill, or nothing can decode: even gaps, later first tokens.

    One kind a step. Up to twice `max_num_seqs` requests may hold keys and values.
    """

    name = "decode_first"
    closes_batch = False

    def holds_back(self, view: View) -> WaitReason | None:
        """Nobody comes in during a decode step."""
        return _prefill_step_full(view) if self._is_prefill_turn(view) else WaitReason.DECODE_TURN

    def choose(self, view: View) -> Choice:
        """Prompts when it is their turn, else decodes."""
        return _prefill_step(view) if view.prefilling and self._is_prefill_turn(view) else _decode_step(view)

    @staticmethod
    def _is_prefill_turn(view: View) -> bool:
        return not view.decoding or view.num_queued + len(view.prefilling) >= view.prefill_threshold


class Static:
    """A cohort is formed from what waits, padded to its longest prompt, and runs until its longest member ends.

    Left-padded: members get their first token in the same step. A member that ends leaves an inactive slot, which
    goes on being computed for nothing; nobody joins before the cohort is over.
    """

    name = "static"
    closes_batch = True

    def holds_back(self, view: View) -> WaitReason | None:
        """A running cohort is closed; a new one closes when it is full or its first member has waited long enough."""
        is_new = view.num_running == view.num_admitted_now
        if not is_new or view.num_running >= view.max_num_seqs:
            return WaitReason.BATCH_CLOSED
        if view.num_running == 0 and view.num_queued < view.max_num_seqs and view.now_s < wake_time(view):
            return WaitReason.COHORT_FORMING
        return None

    def choose(self, view: View) -> Choice:
        """Prefill the padded rectangle, some columns a step, then decode every slot."""
        if view.prefilling:
            return self._prefill_columns(view)
        members = view.select(view.decoding, view.max_num_seqs)
        num_inactive = max(0, min(view.num_slots, view.max_num_seqs) - len(members)) if members else 0
        return Choice(_decode(members), num_inactive)

    @staticmethod
    def _prefill_columns(view: View) -> Choice:
        members = view.prefilling[: view.max_num_seqs]
        num_slots = max(len(members), min(view.num_slots, view.max_num_seqs))
        width = max(request.num_uncomputed_tokens for request in members)  # columns of the rectangle still to go
        num_columns = min(width, max(1, view.token_budget // num_slots))
        work = []
        for request in members:
            num_padding = min(num_columns, width - request.num_uncomputed_tokens)
            work.append(Work(request, num_columns - num_padding, num_padding))
        num_inactive = num_columns * (num_slots - len(members))
        return Choice(tuple(work), num_inactive, idle_decode=WaitReason.PREFILL_TURN)


POLICIES: dict[str, Policy] = {policy.name: policy for policy in (Static(), DecodeFirst(), PrefillFirst(), Mixed())}


def _decode(requests: Sequence[Request]) -> tuple[Work, ...]:
    return tuple(Work(request, 1) for request in requests)


def _chunks(requests: Sequence[Request], count: int, budget: int) -> tuple[Work, ...]:
    """The next chunk of each prompt in turn, until the budget or the slots are used up."""
    work = []
    for request in requests[: max(0, count)]:
        num_tokens = min(request.num_uncomputed_tokens, budget)
        if num_tokens <= 0:
            break
        work.append(Work(request, num_tokens))
        budget -= num_tokens
    return tuple(work)


def _tokens_left(view: View) -> int:
    """The token budget that decodes and the prompts already taken in leave in a mixed step."""
    return view.token_budget - len(view.decoding) - view.num_prefill_tokens


def _prefill_step_full(view: View) -> WaitReason | None:
    if view.num_running >= 2 * view.max_num_seqs or len(view.prefilling) >= view.max_num_seqs:
        return WaitReason.NO_SLOT
    return None if view.num_prefill_tokens < view.token_budget else WaitReason.NO_BUDGET


def _prefill_step(view: View) -> Choice:
    chunks = _chunks(view.prefilling, view.max_num_seqs, view.token_budget)
    return Choice(chunks, idle_prefill=_limit(chunks, view), idle_decode=WaitReason.PREFILL_TURN)


def _decode_step(view: View) -> Choice:
    work = _decode(view.select(view.decoding, min(view.max_num_seqs, view.token_budget)))
    return Choice(work, idle_prefill=WaitReason.DECODE_TURN, idle_decode=_limit(work, view))


def _limit(work: Sequence[Work], view: View) -> WaitReason:
    """Which of the two limits of a step keeps the next one out of it."""
    return WaitReason.NO_BUDGET if len(work) < view.max_num_seqs else WaitReason.NO_SLOT
