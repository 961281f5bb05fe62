"""Model folders from the Hugging Face Hub: what is cached is used without asking, the Hub itself is asked once.

Owns which files of a repository are wanted, how long an answer may take, and the words for a refusal. Never knows which
model is a good choice.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.model.config import read_json_object
from engine.model.errors import ModelError
from engine.model.progress import log_growth

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 4.0
"""How long the Hub may take to answer at all. Its client would retry for 23 s where no network answers."""

WANTED_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)
"""Only what is read: no pickled weights, no second copy of the weights in another format."""


class HubUnreachable(ModelError):
    """The Hub did not answer in time, or going online is switched off."""


class HubRefused(ModelError):
    """The Hub answered, and the answer was no: gated, private or not there."""


@dataclass
class Hub:
    """One start's view of the Hub. The first failure to reach it is remembered, so nothing waits for it twice.

    `endpoint` and `cache_dir` default to what `HF_ENDPOINT` and `HF_HOME` say; the token is `HF_TOKEN`, or the one that
    `hf auth login` saved.
    """

    endpoint: str | None = field(default_factory=lambda: os.environ.get("HF_ENDPOINT"))
    cache_dir: Path | None = None
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    unreachable: str | None = None

    def cached(self, repo_id: str) -> Path | None:
        """The folder of a wholly downloaded model, or None; asks nobody."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            path = snapshot_download(
                repo_id, cache_dir=self.cache_dir, local_files_only=True, allow_patterns=list(WANTED_FILES)
            )
        except (LocalEntryNotFoundError, ValueError):  # ValueError: no valid repository id
            return None
        return Path(path) if is_complete(Path(path)) else None

    def download(self, repo_id: str) -> Path:
        """The folder of a model, downloaded where it is not there yet.

        Raises HubUnreachable, or HubRefused with what to do about it.
        """
        from huggingface_hub import snapshot_download

        self._ask(repo_id)
        log.info("downloading %s from the Hugging Face Hub", repo_id)
        with log_growth(self._cache_folder(repo_id), repo_id):
            path = self._in_words(
                repo_id,
                lambda: snapshot_download(
                    repo_id, cache_dir=self.cache_dir, endpoint=self.endpoint, allow_patterns=list(WANTED_FILES)
                ),
            )
        if not is_complete(Path(path)):
            raise HubRefused(
                f"{repo_id} on the Hub holds no safetensors weights with a config.json; choose another model"
            )
        return Path(path)

    def _ask(self, repo_id: str) -> None:
        """One question with a short time limit, before the patient client of the download is let loose."""
        from huggingface_hub import HfApi

        if self.unreachable is not None:
            raise HubUnreachable(self.unreachable)
        api = HfApi(endpoint=self.endpoint)
        self._in_words(
            repo_id,
            lambda: _within(self.answer_timeout_s, lambda: api.model_info(repo_id, timeout=self.answer_timeout_s)),
        )

    def _in_words(self, repo_id: str, call: Callable[[], Any]) -> Any:
        """Run `call`; its failures become HubRefused or HubUnreachable, the latter remembered."""
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

        try:
            return call()
        except GatedRepoError:
            raise HubRefused(
                f"{repo_id} is gated: accept its licence on the Hub and set HF_TOKEN to a token of that account"
            ) from None
        except RepositoryNotFoundError:
            raise HubRefused(
                f"{repo_id} was not found on the Hub: check the spelling, or set HF_TOKEN if it is private"
            ) from None
        except HFValidationError:
            raise HubRefused(f"{repo_id!r} is no Hub id: it must read organisation/name") from None
        except HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else "an error"
            if status in (401, 403):
                raise HubRefused(f"the Hub refused {repo_id} ({status}): check HF_TOKEN") from None
            self.unreachable = f"the Hub answered {status}"
        except TimeoutError:
            self.unreachable = f"the Hub did not answer within {self.answer_timeout_s:g} s"
        except Exception as error:  # network libraries raise many kinds; each means that there is no Hub to be had
            self.unreachable = f"the Hub cannot be reached ({type(error).__name__})"
        raise HubUnreachable(self.unreachable)

    def _cache_folder(self, repo_id: str) -> Path:
        from huggingface_hub import constants

        return Path(self.cache_dir or constants.HF_HUB_CACHE) / f"models--{repo_id.replace('/', '--')}"


def is_complete(folder: Path) -> bool:
    """Whether configuration, tokenizer and every shard are there; each file appears in the cache only when whole."""
    tokenizers = ("tokenizer.json", "tokenizer.model", "vocab.json")
    if not (folder / "config.json").is_file() or not any((folder / name).is_file() for name in tokenizers):
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return (folder / "model.safetensors").is_file()
    try:
        shards = set(read_json_object(index).get("weight_map", {}).values())
    except (ModelError, AttributeError, TypeError):
        return False
    return bool(shards) and all(isinstance(name, str) and (folder / name).is_file() for name in shards)


def _within(limit_s: float, call: Callable[[], Any]) -> Any:
    """`call`'s result, or TimeoutError: the looking up of a name alone can outlast every timeout of the client."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = call()
        except Exception as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, name="hub-question", daemon=True)
    thread.start()
    thread.join(limit_s)
    if "error" in outcome:
        raise outcome["error"]
    if "value" not in outcome:
        raise TimeoutError
    return outcome["value"]
