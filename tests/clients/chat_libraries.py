"""LangChain's and LiteLLM's chat models against a running server.

pip install langchain-openai litellm
python -m tests.clients.chat_libraries --url http://127.0.0.1:7860
"""

from __future__ import annotations

import argparse
import sys

import pytest

QUESTION = "What is the capital of France?"


def with_langchain(url: str, model: str) -> None:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=40, timeout=120)
    whole = chat.invoke(QUESTION)
    streamed = "".join(str(chunk.content) for chunk in chat.stream(QUESTION))
    assert whole.content == streamed, (whole.content, streamed)
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] > 0
    both = chat.batch([QUESTION, "Say hello."])
    assert both[0].content == whole.content
    print(f"LangChain: {whole.content!r}, {whole.usage_metadata['total_tokens']} tokens")


def with_litellm(url: str, model: str) -> None:
    import litellm

    asked = {
        "model": f"openai/{model}",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 40,
    }
    whole = litellm.completion(**asked)
    chunks = list(litellm.completion(**asked, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert whole.choices[0].message.content == streamed
    assert whole.usage.completion_tokens > 0
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**(asked | {"temperature": -1}))
    print(f"LiteLLM: {streamed!r}, {whole.usage.total_tokens} tokens")


def main() -> int:
    import httpx

    parser = argparse.ArgumentParser(prog="python -m tests.clients.chat_libraries")
    parser.add_argument("--url", default="http://127.0.0.1:7860")
    url = parser.parse_args().url
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    with_langchain(url, model)
    with_litellm(url, model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
