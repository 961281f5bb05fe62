"""A chat run without a browser: what is sent, how the answer grows, and what Stop and a closed tab do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from engine.scheduling.plan import StepOutput, StepPlan
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.serving.service import EngineService
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner
from engine.telemetry.record import EventKind, Wait, WaitReason
from engine.text.tokenizer import Tokenizer
from tests.http_server import wait_until
from tests.tiny_models import save_tokenizer, token_ids
from tests.unit.viz.javascript import run_js
from viz import chat, wall
from viz.chat import Chat, ChatSettings, client_name
from viz.wall import Wall

HOSTILE = "<img src=x onerror=alert(1)> ${7*7} {{value}} **bold** <script>1</script>"


class Speaker(SimulatedRunner):
    """Says "one two three …" to everybody; waits at its gate before each step while that is closed."""

    text = "one two three"

    def __init__(self) -> None:
        super().__init__(SimulatedClock(), next_token=self._say)
        self.gate = threading.Event()
        self.gate.set()

    def _say(self, request: Request) -> int:
        ids = [*token_ids(self.text), 1]
        return ids[len(request.output_token_ids)]

    def run(self, plan: StepPlan) -> StepOutput:
        self.gate.wait(30)
        return super().run(plan)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tok")
    save_tokenizer(folder)
    return Tokenizer.load(folder)


@pytest.fixture
def speaker() -> Speaker:
    return Speaker()


@pytest.fixture
def service(speaker: Speaker, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineService]:
    monkeypatch.setattr(chat, "POLL_EVERY_S", 0.02)
    monkeypatch.setattr(wall, "POLL_EVERY_S", 0.02)
    service = EngineService(
        speaker, tokenizer, EngineSettings(num_blocks=64, max_num_seqs=2, max_queue=4), eos_token_ids=frozenset({1})
    )
    service.start()
    yield service
    speaker.gate.set()
    service.stop()


def collect(updates: Any, until: Callable[[Any], bool] | None = None) -> list[Any]:
    """Everything a handler yields; when `until` says so, it is left there, as Gradio leaves one whose tab closed."""

    async def run() -> list[Any]:
        seen = []
        async for update in updates:
            seen.append(update)
            if until is not None and until(update):
                await updates.aclose()
                break
        return seen

    return asyncio.run(run())


def is_skip(update: Any) -> bool:
    return update == gr.skip()


def test_an_answer_grows_to_its_end_with_its_figures(service: EngineService, tokenizer: Tokenizer) -> None:
    handler = Chat(service, tokenizer)
    updates = collect(handler.ask({}, "  Hello  ", ChatSettings(temperature=0.0)))
    user, answer = updates[-1]["turns"]
    assert user == {"role": "user", "text": "Hello"}
    assert answer["text"] == "one two three"
    assert answer["phase"] == "done"
    assert answer["request"] == 1
    assert answer["error"] is None
    figures = answer["metrics"]
    assert figures["num_output_tokens"] == len("one two three") + 1
    assert figures["finish_reason"] == "stop"
    for name in ("queue_s", "ttft_s", "tokens_per_s", "num_cached_tokens", "num_prompt_tokens"):
        assert name in figures


def test_the_conversation_so_far_and_the_system_prompt_are_part_of_the_prompt(
    service: EngineService, tokenizer: Tokenizer
) -> None:
    handler = Chat(service, tokenizer)
    first = collect(handler.ask({}, "Hello", ChatSettings(temperature=0.0)))[-1]
    second = collect(handler.ask(first, "Again", ChatSettings(temperature=0.0, system="Be kind.")))[-1]
    expected = tokenizer.chat_tokens(
        [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "one two three"},
            {"role": "user", "content": "Again"},
        ]
    )
    assert second["turns"][-1]["metrics"]["num_prompt_tokens"] == len(expected)
    assert [turn["has_earlier"] for turn in second["turns"] if turn["role"] == "assistant"] == [False, True]


def test_a_prompt_that_holds_earlier_messages_says_so() -> None:
    said = run_js(
        """
        const { noteTurns, promptWords } = await load("conversation.js");
        noteTurns([{ request: 1, has_earlier: false }, { role: "user" }, { request: 2, has_earlier: true }]);
        const first = [1, 2, 3].map((id) => promptWords(id, 308));
        noteTurns([{ request: 2 }]);
        return [...first, promptWords(2, 1)];
        """
    )
    assert said == ["308 tokens", "308 tokens, earlier messages included", "308 tokens", "1 token"]


def test_text_is_passed_on_as_it_is(service: EngineService, tokenizer: Tokenizer, speaker: Speaker) -> None:
    speaker.text = HOSTILE
    turns = collect(Chat(service, tokenizer).ask({}, HOSTILE, ChatSettings(temperature=0.0)))[-1]["turns"]
    assert [turn["text"] for turn in turns] == [HOSTILE, HOSTILE]


def test_regenerate_asks_the_last_question_again(service: EngineService, tokenizer: Tokenizer) -> None:
    handler = Chat(service, tokenizer)
    first = collect(handler.ask({"saved": ["kept"]}, "Hello", ChatSettings(temperature=0.0)))[-1]
    again = collect(handler.again(first, ChatSettings(temperature=0.0)))[-1]
    assert [turn["role"] for turn in again["turns"]] == ["user", "assistant"]
    assert again["turns"][1]["request"] == 2
    assert again["saved"] == ["kept"]


def test_stop_ends_the_answer_which_still_tells_its_figures(
    service: EngineService, tokenizer: Tokenizer, speaker: Speaker
) -> None:
    speaker.text = "a" * 500
    handler = Chat(service, tokenizer)
    last = None

    async def run() -> None:
        nonlocal last
        async for update in handler.ask({}, "Hello", ChatSettings(temperature=0.0, max_tokens=500)):
            if not is_skip(update):
                last = update
                if update["turns"][-1]["request"] and update["turns"][-1]["phase"] == "waiting":
                    handler.stop(update)
                    speaker.gate.set()

    speaker.gate.clear()
    asyncio.run(run())
    assert last is not None
    answer = last["turns"][-1]
    assert answer["phase"] == "done"
    assert answer["metrics"]["finish_reason"] == "abort"
    wait_until(lambda: service.state()["num_active_blocks"] == 0)


def test_a_closed_tab_frees_the_blocks(service: EngineService, tokenizer: Tokenizer, speaker: Speaker) -> None:
    speaker.gate.clear()
    collect(Chat(service, tokenizer).ask({}, "Hello", ChatSettings(temperature=0.0)), until=is_skip)
    speaker.gate.set()
    wait_until(lambda: service.state()["num_active_blocks"] == 0 and not service.state()["pending_decode"])


def test_something_is_yielded_while_waiting(service: EngineService, tokenizer: Tokenizer, speaker: Speaker) -> None:
    speaker.gate.clear()
    seen: list[Any] = []

    def third_skip(update: Any) -> bool:
        seen.append(update)
        return sum(map(is_skip, seen)) == 3

    collect(Chat(service, tokenizer).ask({}, "Hello", ChatSettings(temperature=0.0)), until=third_skip)
    assert sum(map(is_skip, seen)) == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (ChatSettings(temperature=-1.0), "temperature must be a number of at least 0"),
        (ChatSettings(max_tokens=0), "max_tokens must be at least 1"),
        (ChatSettings(top_p=3.0), "top_p"),
    ],
)
def test_a_refusal_stands_in_the_answer_in_words(
    service: EngineService, tokenizer: Tokenizer, settings: ChatSettings, words: str
) -> None:
    answer = collect(Chat(service, tokenizer).ask({}, "Hello", settings))[-1]["turns"][-1]
    assert words in answer["error"]
    assert answer["phase"] == "done"


def test_a_prompt_that_is_too_long_names_the_limit(service: EngineService, tokenizer: Tokenizer) -> None:
    answer = collect(Chat(service, tokenizer).ask({}, "x" * 3000, ChatSettings()))[-1]["turns"][-1]
    assert "at most 1024" in answer["error"]


@pytest.mark.parametrize("message", ["", "   ", "\n"])
def test_an_empty_message_is_refused(service: EngineService, tokenizer: Tokenizer, message: str) -> None:
    with pytest.raises(gr.Error, match="empty"):
        collect(Chat(service, tokenizer).ask({}, message, ChatSettings()))


@pytest.mark.parametrize("value", [None, "text", 7, {"turns": "x"}, {"turns": [1, None]}, {"saved": None}])
def test_any_value_from_a_browser_is_a_conversation(
    service: EngineService, tokenizer: Tokenizer, value: object
) -> None:
    turns = collect(Chat(service, tokenizer).ask(value, "Hello", ChatSettings(temperature=0.0)))[-1]["turns"]
    assert turns[-1]["text"] == "one two three"


def test_a_failed_answer_and_its_question_are_not_sent_again() -> None:
    turns = [
        {"role": "user", "text": "too long"},
        {"role": "assistant", "text": "", "error": "refused"},
        {"role": "user", "text": "short"},
    ]
    assert chat.messages_of(turns, "") == [{"role": "user", "content": "short"}]


@pytest.mark.parametrize(
    ("position", "wait", "words"),
    [
        (3, Wait(WaitReason.BEHIND, behind=2), "number 3 in the queue: first come, first served: B stands before it"),
        (1, Wait(WaitReason.NO_BLOCKS, needed_blocks=7, available_blocks=5), "needs 7 blocks, only 5 can be given"),
        (None, Wait(WaitReason.NO_BUDGET), "waits: this step's token budget"),
        (2, None, "number 2 in the queue"),
        (None, None, "its prompt is being read"),
    ],
)
def test_waiting_is_told_with_place_and_reason(position: int | None, wait: Wait | None, words: str) -> None:
    assert words in chat.queue_note(position, wait)


@pytest.mark.parametrize("client", [None, 7, "chat-1", "wall-1", ""])
def test_nobody_can_stop_what_others_asked(
    service: EngineService, tokenizer: Tokenizer, speaker: Speaker, client: object
) -> None:
    """The page's Stop sends back what the browser holds, and that can be forged."""
    speaker.gate.clear()
    (other,) = service.submit([1, 2, 3], SamplingParams(max_tokens=9, temperature=0.0), client=client_name("chat"))
    forged = {"request": other.request_id, "client": client}
    Chat(service, tokenizer).stop({"turns": [{"role": "assistant", "text": "", **forged}]})
    Wall(service, tokenizer, ["a"]).stop({"cards": [forged], **forged})
    speaker.gate.set()
    assert other.result(30).finish_reason == "length"


# -- many at once ------------------------------------------------------------------------------------------------


def test_the_wall_sends_all_prompts_in_one_moment(service: EngineService, tokenizer: Tokenizer) -> None:
    handler = Wall(service, tokenizer, [f"prompt {i}" for i in range(4)])
    final = collect(handler.send(handler.choose(4), ChatSettings(temperature=0.0)))[-1]
    assert [card["prompt"] for card in final["cards"]] == [f"prompt {i}" for i in range(4)]
    assert [card["text"] for card in final["cards"]] == ["one two three"] * 4
    assert [card["request"] for card in final["cards"]] == [1, 2, 3, 4]
    assert all(card["metrics"] for card in final["cards"])


def test_a_refused_card_says_so_and_the_others_go_on(service: EngineService, tokenizer: Tokenizer) -> None:
    handler = Wall(service, tokenizer, ["short", "y" * 3000])
    good, bad = collect(handler.send(["short", "y" * 3000], ChatSettings(temperature=0.0)))[-1]["cards"]
    assert good["text"] == "one two three"
    assert "at most 1024" in bad["error"]


def test_closing_the_tab_of_a_wall_aborts_all_of_it(
    service: EngineService, tokenizer: Tokenizer, speaker: Speaker
) -> None:
    speaker.gate.clear()
    handler = Wall(service, tokenizer, ["a", "b", "c"])
    collect(handler.send(handler.choose(3), ChatSettings(temperature=0.0)), until=is_skip)
    speaker.gate.set()

    def reasons() -> list[str]:
        events = [event for record in service.steps().records for event in record.events]
        return [event.details["reason"] for event in events if event.kind is EventKind.FINISHED]

    wait_until(lambda: len(reasons()) == 3)
    assert reasons() == ["abort"] * 3
    assert service.state()["num_active_blocks"] == 0


def test_the_example_prompts_are_many_different_and_short() -> None:
    prompts = wall.load_prompts()
    assert len(set(prompts)) == len(prompts) >= 16
    assert all(0 < len(prompt) < 200 for prompt in prompts)
