"""GGUF files: the same model as the folder they were made from, 4-bit blocks as they are, damaged ones refused."""

import random
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from engine.model.checkpoint import load
from engine.model.errors import ModelError
from engine.model.gguf_file import GGUFFile
from engine.model.gguf_header import read_header
from engine.model.rope import inverse_frequencies
from tests import gguf_files, tiny_models

PLAIN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.rand(tmp_path_factory.mktemp("rand"), **PLAIN_ROPE)


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    return gguf_files.convert(folder, folder / "model.gguf")


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": False}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"head_dim": 24}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_a_file_holds_the_same_model_as_its_folder(tmp_path: Path, architecture: str, overrides: dict) -> None:
    folder = tiny_models.rand(tmp_path / "hf", architecture=architecture, **PLAIN_ROPE, **overrides)
    from_folder, folder_config = load(folder, torch.float32)
    from_file, file_config = load(gguf_files.convert(folder, tmp_path / "model.gguf"), torch.float32)
    theirs = dict(from_folder.named_parameters())
    for name, parameter in from_file.named_parameters():
        assert torch.equal(parameter, theirs.pop(name)), name
    assert not theirs
    for what in ("architecture", "head_dim", "rope", "qk_norm", "attention_bias", "tie_word_embeddings", "vocab_size"):
        assert getattr(file_config, what) == getattr(folder_config, what)
    assert file_config.rms_norm_eps == pytest.approx(folder_config.rms_norm_eps)
    assert (file_config.bos_token_id, file_config.eos_token_ids) == (0, (1, 2))


def test_rows_of_k_are_put_in_order_by_the_number_of_key_heads(folder: Path, file: Path) -> None:
    """With the query heads' count K would come out scrambled although its shape fits."""
    as_stored = dict(load(file, torch.float32)[0].named_parameters())["layers.0.self_attn.k_proj.weight"]
    right = dict(load(folder, torch.float32)[0].named_parameters())["layers.0.self_attn.k_proj.weight"]
    wrong = torch.from_numpy(gguf_files.interleave(right.numpy(), 4))
    assert torch.equal(as_stored, right)
    assert not torch.equal(wrong, torch.from_numpy(gguf_files.interleave(right.numpy(), 2)))


@pytest.mark.parametrize("matrix_type", ["Q4_0", "Q4_1"])
def test_four_bit_blocks_dequantize_to_what_the_package_says(folder: Path, tmp_path: Path, matrix_type: str) -> None:
    file = GGUFFile(gguf_files.convert(folder, tmp_path / "model.gguf", matrix_type))
    for name in (
        "layers.0.self_attn.q_proj.weight",
        "layers.1.self_attn.k_proj.weight",
        "layers.2.mlp.down_proj.weight",
    ):
        assert file.type_name(name) == matrix_type
        blocks = file.read_blocks(name)
        assert blocks is not None
        assert blocks.values.dtype == torch.uint8
        assert int(blocks.values.max()) <= 15
        scales, minima = (part.float().repeat_interleave(32, dim=1) for part in (blocks.scales, blocks.minima))
        assert torch.equal(blocks.values * scales + minima, file.read(name, torch.float32))
    assert file.read_blocks("norm.weight") is None


def test_quantized_rows_are_the_packages_dequantized_rows(folder: Path, tmp_path: Path) -> None:
    file = GGUFFile(gguf_files.convert(folder, tmp_path / "model.gguf", "Q8_0"))
    weight = dict(load(folder, torch.float32)[0].named_parameters())["layers.0.mlp.up_proj.weight"].numpy()
    expected = dequantize(quantize(weight, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
    assert np.array_equal(file.read("layers.0.mlp.up_proj.weight", torch.float32).numpy(), expected)
    assert file.read_blocks("layers.0.mlp.up_proj.weight") is None


@pytest.mark.parametrize("matrix_type", ["F16", "BF16"])
def test_half_precision_tensors_are_read(folder: Path, tmp_path: Path, matrix_type: str) -> None:
    model, _ = load(gguf_files.convert(folder, tmp_path / "model.gguf", matrix_type), torch.float32)
    reference, _ = load(folder, torch.float32)
    half = {"F16": torch.float16, "BF16": torch.bfloat16}[matrix_type]
    assert torch.equal(model.layers[0].mlp.up_proj.weight, reference.layers[0].mlp.up_proj.weight.to(half).float())


def test_tensors_larger_than_a_slice_are_whole(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_files.convert(folder, tmp_path / "model.gguf", "Q4_1")
    whole = dict(load(path, torch.float32)[0].named_parameters())
    monkeypatch.setattr("engine.model.gguf_file.SLICE_WEIGHTS", 200)
    for name, parameter in load(path, torch.float32)[0].named_parameters():
        assert torch.equal(parameter, whole[name])


def test_rope_divisors_are_part_of_the_model(folder: Path, tmp_path: Path) -> None:
    divisors = np.linspace(1, 8, 8, dtype=np.float32)
    path = gguf_files.convert(folder, tmp_path / "model.gguf", extra={"rope_freqs.weight": divisors})
    model, config = load(path, torch.float32)
    plain = GGUFFile(gguf_files.convert(folder, tmp_path / "plain.gguf")).config
    assert config.rope.frequency_divisors == tuple(divisors.tolist())
    assert torch.equal(model.rotary.inv_freq, inverse_frequencies(plain.rope, 16) / torch.from_numpy(divisors))


def test_a_foreign_tensor_is_listed(folder: Path, tmp_path: Path) -> None:
    path = gguf_files.convert(folder, tmp_path / "model.gguf", extra={"blk.0.ffn_moe.weight": np.zeros((2, 2))})
    with pytest.raises(ModelError, match=r"unexpected \(1\): blk\.0\.ffn_moe\.weight"):
        load(path, torch.float32)


def test_metadata_is_read_with_its_lists(file: Path) -> None:
    metadata = read_header(file).metadata
    assert metadata["tokenizer.ggml.tokens"] == ["a", "b", "ü"]
    assert metadata["tokenizer.ggml.scores"] == [0.5, 1.5, 2.5]
    assert metadata["llama.block_count"] == 3


def rewritten(file: Path, tmp_path: Path, old: bytes, new: bytes) -> Path:
    content = file.read_bytes()
    assert content.count(old) >= 1
    assert len(old) == len(new)
    path = tmp_path / "changed.gguf"
    path.write_bytes(content.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"GGUF", b"GGML", "does not begin with the letters GGUF"),
        (b"GGUF\x03", b"GGUF\x63", "GGUF version 99"),
        (
            b"general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00llama",
            b"general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00mamba",
            "architecture 'mamba'",
        ),
        (b"llama.block_count", b"llama.block_cant_", r"llama\.block_count must be a whole number"),
        (b"token_embd.weight", b"token_embX.weight", r"no token_embd\.weight"),
        (b"blk.1.attn_k.weight", b"blk.0.attn_k.weight", "twice"),
    ],
)
def test_a_file_that_is_not_what_it_seems_is_refused(
    file: Path, tmp_path: Path, old: bytes, new: bytes, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        load(rewritten(file, tmp_path, old, new), torch.float32)


@pytest.mark.parametrize("position", [8, 16])
@pytest.mark.parametrize("count", [2**17 + 1, 2**40, 2**63, 2**64 - 1])
def test_impossible_counts_are_refused_at_once(file: Path, tmp_path: Path, position: int, count: int) -> None:
    content = bytearray(file.read_bytes())
    content[position : position + 8] = struct.pack("<Q", count)
    (tmp_path / "lying.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="damaged or incomplete"):
        load(tmp_path / "lying.gguf", torch.float32)


@pytest.mark.parametrize("item_kind", [0, 4, 6, 8, 9, 77])  # small numbers, strings, nested lists, nonsense
def test_a_list_that_claims_to_be_endless_is_refused_at_once(tmp_path: Path, item_kind: int) -> None:
    key = b"general.list"
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    content += struct.pack("<IIQ", 9, item_kind, 2**60) + bytes(200)
    (tmp_path / "endless.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="damaged or incomplete"):
        load(tmp_path / "endless.gguf", torch.float32)


def test_a_header_of_ten_megabytes_is_read_or_refused_but_never_fatal(tmp_path: Path) -> None:
    key = b"general.big"
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    content += struct.pack("<IQ", 8, 10 * 2**20) + b"x" * (10 * 2**20)
    (tmp_path / "big.gguf").write_bytes(content)
    assert len(read_header(tmp_path / "big.gguf").metadata["general.big"]) == 10 * 2**20
    with pytest.raises(ModelError, match="GGUF architecture None"):
        load(tmp_path / "big.gguf", torch.float32)


def test_truncated_anywhere_a_file_is_called_damaged(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    cuts = [0, 3, 4, 10, 24, 30, *range(40, 4000, 97), len(content) // 2, len(content) - 1]
    for cut in cuts:
        (tmp_path / "cut.gguf").write_bytes(content[:cut])
        with pytest.raises(ModelError, match="damaged or incomplete"):
            load(tmp_path / "cut.gguf", torch.float32)


def test_flipped_bytes_in_the_header_give_a_model_or_a_model_error(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    chance = random.Random(0)
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(4, 3500)] = chance.randrange(256)
        (tmp_path / "flipped.gguf").write_bytes(damaged)
        try:
            load(tmp_path / "flipped.gguf", torch.float32)
            outcomes["loaded"] += 1
        except ModelError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 50
    assert outcomes["loaded"] > 0
