"""The Hub, as a small server on this machine: what is fetched, what is refused, and that nobody waits twice."""

import http.server
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from engine.model import hub as hub_module
from engine.model.checkpoint import load
from engine.model.errors import ModelError
from engine.model.hub import Hub, HubRefused, HubUnreachable, is_complete
from engine.model.source import resolve
from tests import tiny_models

SHA = "a" * 40


@dataclass
class FakeHub:
    """Answers the calls that `huggingface_hub` makes, from folders; counts what was asked."""

    repositories: dict[str, Path]
    gated: set[str] = field(default_factory=set)
    token: str = "hf_right"
    asked: list[str] = field(default_factory=list)
    broken_after: int | None = None

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        path = handler.path.split("?")[0]
        self.asked.append(path)
        if self.broken_after is not None and len(self.asked) > self.broken_after:
            return self.send(handler, 500, b"{}")
        for repo_id, folder in self.repositories.items():
            if path.startswith(f"/api/models/{repo_id}"):
                return self.send(handler, 200, json.dumps(self.listing(repo_id, folder, path)).encode())
            if path.startswith(f"/{repo_id}/resolve/{SHA}/"):
                if repo_id in self.gated and handler.headers.get("authorization") != f"Bearer {self.token}":
                    return self.send(handler, 401, b"", {"X-Error-Code": "GatedRepo"})
                content = (folder / path.rsplit("/", 1)[1]).read_bytes()
                return self.send(handler, 200, content, {"ETag": f'"{len(content)}"', "X-Repo-Commit": SHA})
        return self.send(handler, 404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def listing(self, repo_id: str, folder: Path, path: str) -> object:
        files = sorted(file.name for file in folder.iterdir())
        if "/tree/" in path:
            return [
                {"type": "file", "path": name, "size": (folder / name).stat().st_size, "oid": "b" * 40}
                for name in files
            ]
        return {"id": repo_id, "sha": SHA, "siblings": [{"rfilename": name} for name in files]}

    def send(
        self,
        handler: http.server.BaseHTTPRequestHandler,
        status: int,
        content: bytes,
        headers: dict[str, str] | None = None,
    ) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(content)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_models.rand(tmp_path_factory.mktemp("hub"), max_shard_size="100KB")
    (folder / "pytorch_model.bin").write_bytes(b"never fetched")
    (folder / "consolidated.safetensors").write_bytes(b"never fetched")
    (folder / "README.md").write_text("never fetched")
    return folder


@pytest.fixture
def fake(tiny: Path) -> Iterator[tuple[FakeHub, str]]:
    fake_hub = FakeHub({"org/tiny": tiny, "org/gated": tiny}, gated={"org/gated"})

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fake_hub.answer(self)

        do_HEAD = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield fake_hub, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def hub(fake: tuple[FakeHub, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    return Hub(endpoint=fake[1], cache_dir=tmp_path / "cache")


def test_a_model_is_downloaded_whole_and_loads(fake: tuple[FakeHub, str], hub: Hub, tiny: Path) -> None:
    assert hub.cached("org/tiny") is None
    folder = hub.download("org/tiny")
    assert is_complete(folder)
    wanted = {file.name for file in tiny.iterdir()} - {"pytorch_model.bin", "consolidated.safetensors", "README.md"}
    assert {file.name for file in folder.iterdir()} == wanted
    assert load(folder, torch.float32)[1] == load(tiny, torch.float32)[1]


def test_a_cached_model_asks_nobody(fake: tuple[FakeHub, str], hub: Hub) -> None:
    first = resolve("org/tiny", "cpu", hub)
    fake[0].asked.clear()
    second = resolve("org/tiny", "cpu", hub)
    assert fake[0].asked == []
    assert second.path == first.path
    assert (first.name, first.kind) == ("org/tiny", "folder")
    assert first.reason.endswith("from the Hub")
    assert second.reason.endswith("already downloaded")


def test_an_interrupted_download_is_not_taken_for_whole(fake: tuple[FakeHub, str], hub: Hub) -> None:
    folder = hub.download("org/tiny")
    next(folder.glob("model-00002-of-*.safetensors")).unlink()
    assert hub.cached("org/tiny") is None
    assert is_complete(hub.download("org/tiny"))


def test_a_gated_model_says_what_to_do(hub: Hub) -> None:
    with pytest.raises(HubRefused, match="gated: accept its licence on the Hub and set HF_TOKEN"):
        resolve("org/gated", "cpu", hub)


def test_the_token_opens_a_gated_model(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert is_complete(hub.download("org/gated"))


def test_an_unknown_model_says_what_to_check(hub: Hub) -> None:
    with pytest.raises(HubRefused, match="org/other was not found on the Hub: check the spelling"):
        resolve("org/other", "cpu", hub)
    assert hub.unreachable is None


def test_a_repository_without_safetensors_is_refused(fake: tuple[FakeHub, str], hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    fake[0].repositories["org/pickled"] = folder
    with pytest.raises(HubRefused, match="holds no safetensors weights"):
        hub.download("org/pickled")


def test_a_hub_in_trouble_counts_as_unreachable(fake: tuple[FakeHub, str], hub: Hub) -> None:
    fake[0].broken_after = 0
    with pytest.raises(HubUnreachable, match="the Hub answered 500"):
        hub.download("org/tiny")
    assert hub.unreachable == "the Hub answered 500"


def test_nobody_waits_twice_for_a_hub_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hub = Hub(endpoint=f"http://127.0.0.1:{port}", cache_dir=tmp_path)
    with pytest.raises(HubUnreachable, match="the Hub cannot be reached") as first:
        hub.download("org/tiny")
    hub.endpoint = "asking again would fail in another way"
    with pytest.raises(HubUnreachable) as second:
        hub.download("org/tiny")
    assert str(second.value) == str(first.value)


def test_a_hub_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.socket() as silent:  # accepts in the kernel's queue, never says a word
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        hub = Hub(endpoint=endpoint, cache_dir=tmp_path, answer_timeout_s=0.2)
        with pytest.raises(HubUnreachable, match=r"the Hub (did not answer|cannot be reached)"):
            hub.download("org/tiny")


def test_the_limit_holds_even_where_the_client_has_none() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError):
        hub_module._within(0.05, never.wait)
    never.set()


def test_an_unreachable_hub_is_explained_for_a_named_model(tmp_path: Path) -> None:
    hub = Hub(cache_dir=tmp_path, unreachable="the Hub cannot be reached (ConnectError)")
    with pytest.raises(ModelError, match=r"org/tiny is not on this machine and the Hub .* --model auto"):
        resolve("org/tiny", "cpu", hub)


def test_auto_takes_the_first_choice_the_hub_grants(
    fake: tuple[FakeHub, str], hub: Hub, tiny: Path, tmp_path: Path
) -> None:
    fake[0].repositories["meta-llama/Llama-3.2-1B-Instruct"] = tiny
    fake[0].repositories["HuggingFaceTB/SmolLM2-1.7B-Instruct"] = tiny
    fake[0].gated.add("meta-llama/Llama-3.2-1B-Instruct")
    source = resolve("auto", "cuda", hub, cache=tmp_path)
    assert source.name == "HuggingFaceTB/SmolLM2-1.7B-Instruct"
    assert "auto on cuda, from the Hub; meta-llama/Llama-3.2-1B-Instruct is gated" in source.reason
    fake[0].gated.clear()
    hub = Hub(endpoint=hub.endpoint, cache_dir=tmp_path / "another")
    assert resolve("auto", "cuda", hub, cache=tmp_path).name == "meta-llama/Llama-3.2-1B-Instruct"


def test_auto_on_a_cpu_takes_the_small_model(fake: tuple[FakeHub, str], hub: Hub, tiny: Path, tmp_path: Path) -> None:
    fake[0].repositories["HuggingFaceTB/SmolLM2-135M-Instruct"] = tiny
    assert resolve("auto", "cpu", hub, cache=tmp_path).name == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_completeness_needs_every_shard_a_config_and_a_tokenizer(tiny: Path, tmp_path: Path) -> None:
    for missing in ("config.json", "tokenizer.json", "model-00001-of-00003.safetensors"):
        folder = Path(shutil.copytree(tiny, tmp_path / missing))
        assert is_complete(folder)
        shard = next(folder.glob("model-00001-of-*.safetensors")).name if missing.startswith("model-") else missing
        (folder / shard).unlink()
        assert not is_complete(folder)
    (folder / "model.safetensors.index.json").write_text("[]")
    assert not is_complete(folder)
