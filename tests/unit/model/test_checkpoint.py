"""Reading folders: what fits is loaded exactly, what doesn't is listed before anything is served."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model.attention import FullAttention
from engine.model.checkpoint import load
from engine.model.errors import ModelError
from tests import tiny_models

State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.rand(tmp_path_factory.mktemp("tied"))


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.rand(tmp_path_factory.mktemp("untied"), tie_word_embeddings=False)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_models.rand(tmp_path_factory.mktemp("sharded"), max_shard_size="100KB")
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    return folder


def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def edit(folder: Path, tmp_path: Path, change: Callable[[State], None]) -> Path:
    """A copy of a folder whose weights `change` has had its way with."""
    target = copy(folder, tmp_path)
    state = load_file(target / "model.safetensors")
    change(state)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, target / "model.safetensors")
    return target


@torch.inference_mode()
def logits(folder: Path) -> torch.Tensor:
    model, _ = load(folder, torch.float32)
    ids = torch.arange(4, 60)
    return model.logits(model(ids, torch.arange(len(ids)), FullAttention()))


def test_a_loaded_model_is_ready_and_takes_no_gradients(untied: Path) -> None:
    model, config = load(untied, torch.bfloat16)
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad or parameter.is_meta for parameter in model.parameters())
    assert config.eos_token_ids == tiny_models.EOS_IDS
    stored = load_file(untied / "model.safetensors")
    assert torch.equal(model.lm_head.weight, stored["lm_head.weight"].bfloat16())
    assert torch.equal(model.layers[2].mlp.up_proj.weight, stored["model.layers.2.mlp.up_proj.weight"].bfloat16())


def test_loading_changes_no_global_state(untied: Path) -> None:
    load(untied, torch.bfloat16)
    assert torch.get_default_dtype() is torch.float32
    assert torch.get_default_device().type == "cpu"
    assert torch.is_grad_enabled()


def test_tied_without_a_head_in_the_file(tied: Path) -> None:
    assert "lm_head.weight" not in load_file(tied / "model.safetensors")
    model, _ = load(tied, torch.float32)
    assert model.output_weight is model.embed_tokens.weight


def test_tied_with_another_head_in_the_file_ignores_it(tied: Path, tmp_path: Path) -> None:
    def add_head(state: State) -> None:
        state["lm_head.weight"] = torch.randn_like(state["model.embed_tokens.weight"])

    assert torch.equal(logits(edit(tied, tmp_path, add_head)), logits(tied))


def test_untied_uses_the_head_of_the_file(untied: Path, tmp_path: Path) -> None:
    def double_head(state: State) -> None:
        state["lm_head.weight"] *= 2

    assert torch.allclose(logits(edit(untied, tmp_path, double_head)), 2 * logits(untied))


def test_shards_give_the_same_model_as_one_file(tied: Path, sharded: Path) -> None:
    assert torch.equal(logits(sharded), logits(tied))


def test_stray_files_beside_the_shards_are_ignored(sharded: Path, tmp_path: Path) -> None:
    folder = copy(sharded, tmp_path)
    save_file({"junk": torch.zeros(3)}, folder / "consolidated.safetensors")
    save_file({"model.norm.weight": torch.zeros(64)}, folder / "model.safetensors")  # an older, single-file copy
    (folder / "pytorch_model.bin").write_bytes(b"no pickle is ever opened")
    assert torch.equal(logits(folder), logits(sharded))


def test_a_missing_shard_is_named(sharded: Path, tmp_path: Path) -> None:
    folder = copy(sharded, tmp_path)
    victim = sorted(folder.glob("model-*-of-*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(ModelError, match=victim.name):
        load(folder, torch.float32)


def test_a_shard_without_its_promised_tensor_is_named(sharded: Path, tmp_path: Path) -> None:
    folder = copy(sharded, tmp_path)
    victim = sorted(folder.glob("model-*-of-*.safetensors"))[0]
    save_file({"other": torch.zeros(1)}, victim)
    with pytest.raises(ModelError, match=rf"{victim.name} lacks tensors the index promises"):
        load(folder, torch.float32)


@pytest.mark.parametrize(
    "name", ["../copy/model.safetensors", "/etc/passwd", "sub/../../x", "..", "a\\b", "", 7, None, ["x"]]
)
def test_an_index_cannot_name_files_elsewhere(sharded: Path, tmp_path: Path, name: object) -> None:
    folder = copy(sharded, tmp_path)
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"names .*, which is no \.safetensors file of this folder"):
        load(folder, torch.float32)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": []}', '{"weight_map": {}}', "nonsense", "[1]"])
def test_a_damaged_index_is_named(sharded: Path, tmp_path: Path, index: str) -> None:
    folder = copy(sharded, tmp_path)
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json"):
        load(folder, torch.float32)


def test_names_and_shapes_that_do_not_fit_are_all_listed(untied: Path, tmp_path: Path) -> None:
    def spoil(state: State) -> None:
        state["model.layers.0.mlp.gate.weight"] = state.pop("model.layers.0.mlp.gate_proj.weight")
        state["model.layers.1.mlp.up_proj.weight"] = state["model.layers.1.mlp.up_proj.weight"].T
        del state["lm_head.weight"]

    with pytest.raises(ModelError) as refusal:
        load(edit(untied, tmp_path, spoil), torch.float32)
    words = str(refusal.value)
    assert "missing (2): layers.0.mlp.gate_proj.weight, lm_head.weight" in words
    assert "unexpected (1): layers.0.mlp.gate.weight" in words
    assert "wrong shape (1): layers.1.mlp.up_proj.weight is 64x128, needs 128x64" in words
    assert "\n" not in words


def test_a_long_list_of_faults_is_cut_short(untied: Path, tmp_path: Path) -> None:
    def lose_nearly_everything(state: State) -> None:
        for name in list(state)[1:]:
            del state[name]

    with pytest.raises(ModelError, match=r"missing \(29\): (\S+, ){5}\.\.\.$"):
        load(edit(untied, tmp_path, lose_nearly_everything), torch.float32)


def test_inverse_frequencies_in_the_file_are_harmless(untied: Path, tmp_path: Path) -> None:
    def add_buffer(state: State) -> None:
        for layer in range(3):
            state[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.full((8,), 99.0)

    assert torch.equal(logits(edit(untied, tmp_path, add_buffer)), logits(untied))


def test_biases_that_the_config_denies_are_refused_not_dropped(tmp_path: Path) -> None:
    folder = tiny_models.rand(tmp_path / "biased", attention_bias=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_bias": False}))
    with pytest.raises(ModelError, match=r"unexpected \(12\): .*bias"):
        load(folder, torch.float32)


def test_integer_weights_are_refused(untied: Path, tmp_path: Path) -> None:
    def quantize(state: State) -> None:
        state["model.layers.0.mlp.up_proj.weight"] = state["model.layers.0.mlp.up_proj.weight"].to(torch.int8)

    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.up_proj\.weight is I8"):
        load(edit(untied, tmp_path, quantize), torch.float32)


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, 5000, -1])
def test_a_truncated_file_is_called_damaged(untied: Path, tmp_path: Path, kept: int) -> None:
    folder = copy(untied, tmp_path)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:kept])
    with pytest.raises(ModelError, match=r"model\.safetensors .*damaged or incomplete"):
        load(folder, torch.float32)


def header(entries: object, padding: int = 0, data: int = 64) -> bytes:
    text = json.dumps(entries).encode() + b" " * padding
    return len(text).to_bytes(8, "little") + text + bytes(data)


@pytest.mark.parametrize(
    "content",
    [
        (2**63).to_bytes(8, "little") + b"{}",
        (2**64 - 1).to_bytes(8, "little") + b"{}",
        header({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 64]}}),
        header({"a": {"dtype": "F32", "shape": [16], "data_offsets": [0, 2**40]}}),
        header({"a": {"dtype": "F32", "shape": [16], "data_offsets": [64, 0]}}),
        header({"a": {"dtype": "F99", "shape": [16], "data_offsets": [0, 64]}}),
        header({"a": {"dtype": "F32", "shape": [-16], "data_offsets": [0, 64]}}),
        header([]),
        header({"a": 1}),
        b"\x10\x00\x00\x00\x00\x00\x00\x00" + b"\xff" * 80,
        b"\x80\x02pickle" * 20,
    ],
)
def test_a_lying_header_is_refused(untied: Path, tmp_path: Path, content: bytes) -> None:
    folder = copy(untied, tmp_path)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors .*damaged or incomplete"):
        load(folder, torch.float32)


def test_a_header_of_ten_megabytes_is_refused(untied: Path, tmp_path: Path) -> None:
    folder = copy(untied, tmp_path)
    (folder / "model.safetensors").write_bytes(header({}, padding=10 * 2**20))
    with pytest.raises(ModelError, match=r"claims a header of \d+ bytes"):
        load(folder, torch.float32)


def test_a_path_that_is_no_model_says_what_would_be(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"give a Hugging Face folder or a \.gguf file"):
        load(tmp_path / "nothing", torch.float32)
    (tmp_path / "weights.pt").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"neither a model folder nor a \.gguf file"):
        load(tmp_path / "weights.pt", torch.float32)


def test_a_folder_without_safetensors_says_so(untied: Path, tmp_path: Path) -> None:
    folder = copy(untied, tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no weights in .*pickled \.bin files are not read"):
        load(folder, torch.float32)
