"""When an answer is over: an end-of-sequence id, a stop string, its full length.

Owns the order in which these are asked. Never knows text (a request brings its own test for stop strings), nor blocks.
"""

from __future__ import annotations

from engine.scheduling.request import FinishReason, Request


def why_finished(request: Request) -> tuple[FinishReason | None, str | None]:
    """Whether the newest token ends the answer, and why; with words if finding that out failed."""
    token_id = request.output_token_ids[-1]
    is_long_enough = len(request.output_token_ids) >= request.params.min_tokens
    if token_id in request.eos_token_ids and not request.params.ignore_eos and is_long_enough:
        return FinishReason.STOP, None
    try:
        if request.completes_stop is not None and request.completes_stop(token_id):
            return FinishReason.STOP, None
    except Exception as error:  # it reads text: whatever goes wrong there is this request's alone
        return FinishReason.ERROR, f"looking for a stop string failed ({type(error).__name__})"
    return FinishReason.LENGTH if len(request.output_token_ids) >= request.max_tokens else None, None
