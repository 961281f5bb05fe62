"""The real `openai` package against the real engine on scripted tiny models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.tiny_engine import serving_tiny
from tests.tiny_models import chain, oracle, rand, token_ids

# CHAIN says this after any byte that is not in it, then an end-of-sequence id.
SCRIPT = "one tw☃🎈,x"
CHAT_SCRIPT = SCRIPT.partition(" ")[2]  # the chat template ends with a space


@pytest.fixture(scope="module")
def chain_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = chain(tmp_path_factory.mktemp("chain"), SCRIPT)
    with serving_tiny(folder) as (url, _):
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def rand_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[openai.OpenAI, Path]]:
    folder = rand(tmp_path_factory.mktemp("rand"))
    with serving_tiny(folder) as (url, _):
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), folder


def say(client: openai.OpenAI, **more: Any) -> Any:
    settings: dict[str, Any] = {"model": "tiny", "prompt": "?", "max_tokens": 100, "temperature": 0}
    return client.completions.create(**(settings | more))


def test_models_list_names_the_model(chain_client: openai.OpenAI) -> None:
    assert [model.id for model in chain_client.models.list()] == ["tiny"]
    assert chain_client.models.retrieve("tiny").id == "tiny"


def test_completion_is_the_whole_text_with_usage(chain_client: openai.OpenAI) -> None:
    answer = say(chain_client)
    num_tokens = len(SCRIPT.encode()) + 1  # and the end-of-sequence id
    assert answer.choices[0].text == SCRIPT
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (1, num_tokens)
    assert answer.usage.total_tokens == 1 + num_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_stream_joins_to_the_same_text_and_never_shows_half_a_character(chain_client: openai.OpenAI) -> None:
    chunks = list(say(chain_client, stream=True, stream_options={"include_usage": True}))
    texts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    assert "".join(texts) == SCRIPT
    assert not any("�" in text for text in texts)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) <= {None}
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(SCRIPT.encode()) + 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_stream_without_usage_asked_has_none(chain_client: openai.OpenAI) -> None:
    assert all(chunk.choices and chunk.usage is None for chunk in say(chain_client, stream=True))


def test_chat_streamed_and_not_are_equal(chain_client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "?"}]}],
        "temperature": 0,
    }
    whole = chain_client.chat.completions.create(**asked)
    chunks = list(chain_client.chat.completions.create(stream=True, **asked))
    assert whole.choices[0].message.content == CHAT_SCRIPT
    assert whole.choices[0].message.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == CHAT_SCRIPT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len("system: s\nuser: ?\nassistant: ")


def test_stop_string_cuts_where_it_begins_and_is_never_seen(chain_client: openai.OpenAI) -> None:
    for stop in ("e t", ["zzz", "e t"]):
        assert say(chain_client, stop=stop).choices[0].text == "on"
        chunks = list(say(chain_client, stop=stop, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == "on"
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_held_back_text_comes_at_the_end(chain_client: openai.OpenAI) -> None:
    assert say(chain_client, stop="x!").choices[0].text == SCRIPT
    limited = list(say(chain_client, stop="one twenty", max_tokens=6, stream=True))
    assert "".join(chunk.choices[0].text for chunk in limited) == "one tw"
    assert limited[-1].choices[0].finish_reason == "length"


def test_max_tokens_one_is_one_token(chain_client: openai.OpenAI) -> None:
    answer = say(chain_client, max_tokens=1)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("o", "length")
    assert answer.usage.completion_tokens == 1


def test_sixteen_tokens_where_nothing_is_said(chain_client: openai.OpenAI) -> None:
    answer = chain_client.completions.create(model="tiny", prompt="?", extra_body={"ignore_eos": True}, temperature=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_chat_takes_what_the_context_leaves(rand_server: tuple[openai.OpenAI, Path]) -> None:
    client, _ = rand_server
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "x" * 200}],
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage is not None
    assert answer.usage.total_tokens == 256
    assert answer.choices[0].finish_reason == "length"


def test_every_prompt_form_and_the_oracle(rand_server: tuple[openai.OpenAI, Path]) -> None:
    client, folder = rand_server
    prompts = ["a first prompt", "another, longer second prompt"]
    expected = [oracle(folder, token_ids(prompt), 12) for prompt in prompts]
    forms: list[tuple[Any, list[list[int]]]] = [
        (prompts[0], expected[:1]),
        (prompts, expected),
        (token_ids(prompts[0]), expected[:1]),
        ([token_ids(prompt) for prompt in prompts], expected),
    ]
    for form, wanted in forms:
        answer = client.completions.create(
            model="tiny", prompt=form, max_tokens=12, temperature=0, extra_body={"return_token_ids": True}
        )
        assert [choice.token_ids for choice in answer.choices] == wanted  # type: ignore[attr-defined]
        assert [choice.index for choice in answer.choices] == list(range(len(wanted)))


def test_n_answers_of_each_prompt(rand_server: tuple[openai.OpenAI, Path]) -> None:
    client, _ = rand_server
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "temperature": 1.0, "seed": 5}
    answer = client.completions.create(prompt=["abc", "defgh"], n=3, **asked)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert len({choice.text for choice in answer.choices}) > 2
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 8
    texts = [""] * 6
    for chunk in client.completions.create(prompt=["abc", "defgh"], n=3, stream=True, **asked):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in answer.choices]


def test_seed_repeats_and_no_seed_does_not(rand_server: tuple[openai.OpenAI, Path]) -> None:
    client, _ = rand_server
    asked: dict[str, Any] = {"model": "tiny", "prompt": "abc", "max_tokens": 20, "temperature": 1.5}
    seeded = {client.completions.create(seed=7, **asked).choices[0].text for _ in range(3)}
    free = {client.completions.create(**asked).choices[0].text for _ in range(3)}
    assert len(seeded) == 1
    assert len(free) > 1


def test_logprobs_of_completions(rand_server: tuple[openai.OpenAI, Path]) -> None:
    client, _ = rand_server
    answer = client.completions.create(
        model="tiny", prompt="abc", max_tokens=4, temperature=0, logprobs=3, extra_body={"ignore_eos": True}
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.tokens or []) == len(logprobs.token_logprobs or []) == len(logprobs.text_offset or []) == 4
    for value, top in zip(logprobs.token_logprobs or [], logprobs.top_logprobs or [], strict=True):
        assert max(top.values()) == value  # greedy takes the best
        assert all(math.isfinite(each) and each <= 0 for each in top.values())


def test_logprobs_of_chat(chain_client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "temperature": 0}
    answer = chain_client.chat.completions.create(logprobs=True, top_logprobs=2, **asked)
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content or []
    assert bytes(byte for entry in entries[:-1] for byte in entry.bytes or []).decode() == CHAT_SCRIPT
    assert [len(entry.top_logprobs) for entry in entries] == [2] * len(entries)
    assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in entries)
    chunks = chain_client.chat.completions.create(logprobs=True, top_logprobs=2, stream=True, **asked)
    streamed = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content or []]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"model": "other"}, openai.NotFoundError, "no such model"),
        ({"prompt": ""}, openai.BadRequestError, "empty"),
        ({"prompt": []}, openai.BadRequestError, "empty"),
        ({"prompt": [5, 260]}, openai.BadRequestError, "0 to 259"),
        ({"prompt": [5, -1]}, openai.BadRequestError, "0 to 259"),
        ({"prompt": "x" * 256}, openai.BadRequestError, "256"),
        ({"prompt": "x" * 400}, openai.BadRequestError, "400"),
        ({"max_tokens": 0}, openai.BadRequestError, "at least 1"),
        ({"max_tokens": -5}, openai.BadRequestError, "at least 1"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"top_p": 1.5}, openai.BadRequestError, "top_p"),
        ({"n": 0}, openai.BadRequestError, "n must"),
        ({"logprobs": 300}, openai.BadRequestError, "20"),
        ({"stop": ""}, openai.BadRequestError, "empty"),
        ({"stop": ["a"] * 17}, openai.BadRequestError, "16"),
        ({"echo": True}, openai.BadRequestError, "echo is not supported"),
        ({"logit_bias": {"5": 1}}, openai.BadRequestError, "logit_bias is not supported"),
        ({"suffix": "x"}, openai.BadRequestError, "suffix is not supported"),
    ],
)
def test_refusals_are_the_clients_own_exceptions(
    chain_client: openai.OpenAI, asked: dict[str, Any], error: type[openai.APIStatusError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        say(chain_client, **asked)
    assert set(caught.value.body) == {"message", "type", "param", "code"}  # type: ignore[arg-type]
    assert say(chain_client).choices[0].text == SCRIPT  # the engine is as well as before


@pytest.mark.parametrize(
    "more",
    [
        {"messages": []},
        {"messages": [{"role": "wizard", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 21},
        {"max_completion_tokens": 0},
        {"stream_options": {"include_usage": True}},
        {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
    ],
)
def test_chat_refuses_what_it_cannot_do(chain_client: openai.OpenAI, more: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}]} | more
    with pytest.raises(openai.BadRequestError) as caught:
        chain_client.post("/chat/completions", body=body, cast_to=object)
    assert caught.value.message


def test_a_model_without_chat_template_says_what_to_do(tmp_path: Path) -> None:
    folder = chain(tmp_path / "base", SCRIPT)
    (folder / "chat_template.jinja").unlink()
    with serving_tiny(folder) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.BadRequestError, match="/v1/completions"):
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "?"}])
        assert say(client).choices[0].text == SCRIPT


def test_unknown_fields_are_ignored_and_null_means_the_default(chain_client: openai.OpenAI) -> None:
    body = dict.fromkeys(("top_p", "n", "seed", "stop", "logprobs", "presence_penalty", "tools"))
    answer = say(chain_client, extra_body={"my_own_field": {"a": 1}, "logit_bias": {}, **body})
    assert answer.choices[0].text == SCRIPT
