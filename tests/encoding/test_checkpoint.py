"""Finding checkpoints: folders, the packaged copy, the cache, the hub; and what is refused."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from safetensors.torch import load_file, save_file
from torch.torch_version import TorchVersion

from embedkit.choices import DEFAULT_MODEL
from embedkit.encoding.checkpoint import FAMILIES, find_checkpoint
from embedkit.encoding.definition import read_data
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.tokenizer import choose_max_length
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import DamagedModelError, ModelError, UsageError
from tests.models import TEXTS, EncoderOf, build_old, distance, state, trusted_reader

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "someone/tiny-bert"


@pytest.fixture
def copy(tiny_bert: Path, tmp_path: Path) -> Path:
    """A copy of the tiny BERT that a test may change."""
    return Path(shutil.copytree(tiny_bert, tmp_path / "tiny"))


def test_folder(copy: Path) -> None:
    (copy / "1_Pooling").mkdir()
    (copy / "1_Pooling" / "config.json").write_text("{}", "utf-8")
    (copy / "README.md").write_text("not hashed", "utf-8")
    found = find_checkpoint(str(copy))
    assert (found.source, found.revision, found.folder) == ("folder", None, copy)
    assert (found.model_type, found.n_layers, found.width, found.positions) == ("bert", 3, 24, 160)
    assert (found.weights, found.is_pickle) == (("model.safetensors",), False)
    assert set(found.sha256) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",  # no module, since there is no modules.json
    }
    for file, digest in found.sha256.items():
        assert digest == hashlib.sha256((copy / file).read_bytes()).hexdigest()


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "distilbert"])
def test_all_positions_can_be_used_and_no_more(family: str, encoder_of: EncoderOf) -> None:
    encoder = encoder_of(family)
    (tokens,) = encoder.tokenizer.encode(["a " * 500], settings=TokenizerSettings(160))
    assert len(tokens.ids) == 160
    assert encoder.encode(["a " * 500], max_length=160).shape == (1, 24)
    with pytest.raises(UsageError, match="max_length=161"):
        encoder.encode(["a"], max_length=161)
    with pytest.raises(UsageError, match="max_length=161"):
        Encoder(encoder.checkpoint.name, device="cpu", max_length=161)


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_positions_of_mpnet_begin_behind_1(padding: int, copy: Path) -> None:
    """transformers has the number in its code, and does not read that of the configuration."""
    state(copy / "config.json", model_type="mpnet", pad_token_id=padding)
    assert find_checkpoint(str(copy)).positions == 158


def of_length(limit: int) -> Any:
    """A tokenizer for so many tokens."""
    return SimpleNamespace(hf=SimpleNamespace(model_max_length=limit), n_special=2)


LIMITS: dict[str, Any] = {
    "led": ({"max_encoder_position_embeddings": 900, "d_model": 24}, 900, 900),
    "mpt": ({"max_seq_len": 900}, 512, 900),
    "bloom": ({}, 512, None),
    "t5": ({"n_positions": 512}, 512, None),
    "xlnet": ({}, 512, None),
}


@pytest.mark.parametrize("kind", LIMITS)
def test_limits_of_families(kind: str, copy: Path) -> None:
    """A default of 512 is no limit where a family has no table of positions."""
    stated, default, limit = LIMITS[kind]
    state(copy / "config.json", model_type=kind, max_position_embeddings=None, **stated)
    length = partial(choose_max_length, find_checkpoint(str(copy)), of_length(10**30))
    assert (length(None), length(limit or 5_000)) == (default, limit or 5_000)
    if limit is not None:
        with pytest.raises(UsageError, match=f"max_length=901: .* has positions for {limit} tok"):
            length(901)


def write_modules(folder: Path) -> None:
    """Say that sentence-transformers' settings are read, as they are not without it."""
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps([module]), "utf-8")


@pytest.mark.parametrize(
    ("stated", "tokenizer_limit", "length"),
    [
        ({"max_seq_length": 40}, 100, 40),
        ({"max_seq_length": 400}, 100, 160),
        ({"max_seq_length": None}, 100, 100),
        (None, 100, 100),
        (None, 10**30, 160),
    ],
)
def test_default_max_length(
    stated: dict[str, Any] | None, tokenizer_limit: int, length: int, copy: Path
) -> None:
    if stated is not None:
        state(copy / "sentence_bert_config.json", **stated)
        write_modules(copy)
    tokenizer = of_length(tokenizer_limit)
    assert choose_max_length(find_checkpoint(str(copy)), tokenizer, None) == length


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("tokenizer_config.json", "model_max_length", 0),
        ("tokenizer_config.json", "model_max_length", -5),
        ("sentence_bert_config.json", "max_seq_length", 2),
    ],
)
def test_a_limit_without_room_for_text_is_the_files(
    file: str, key: str, value: int, copy: Path
) -> None:
    state(copy / file, **{key: value})
    write_modules(copy)
    with pytest.raises(DamagedModelError, match=f"{file} .*{key}={value}"):
        Encoder(copy, device="cpu")
    assert Encoder(copy, device="cpu", max_length=20).max_length == 20


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"\xff"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        ("model.safetensors", None),
    ],
)
def test_damaged_files(file: str, content: bytes | None, copy: Path) -> None:
    (copy / file).unlink()
    if content is not None:
        (copy / file).write_bytes(content)
    with pytest.raises(ModelError, match=file):
        find_checkpoint(str(copy))


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("XLMRobertaForMaskedLM", "xlm-roberta"), ("DebertaV2Model", "deberta-v2")],
)
def test_model_type_by_architecture(architecture: str, kind: str, tmp_path: Path) -> None:
    folder = build_old(tmp_path, "cased", model_type=None, architectures=[architecture])
    assert find_checkpoint(folder).model_type == kind
    assert kind in FAMILIES


NO_FOLDERS: dict[str, Any] = {
    "revision='main'": ("{}", {"revision": "main"}),
    r"config\.json'": ("{}/config.json", {}),
    "Did you mean '.*/tiny'": ("{}/../tinny", {}),
    "model='~/no": ("~/no-such-folder-of-mine", {}),
}


@pytest.mark.parametrize("message", NO_FOLDERS)
def test_names_of_no_folder(message: str, copy: Path) -> None:
    name, options = NO_FOLDERS[message]
    with pytest.raises(ModelError, match=message):
        find_checkpoint(name.format(copy), **options)


@pytest.mark.parametrize("version", ["2.6.0+cu124", "2.9.1"])
def test_pickles_are_refused_where_their_reader_has_a_hole(
    copy: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    Encoder(str(copy), device="cpu")  # safetensors are read all the same
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"2\.10"):
        Encoder(str(copy), device="cpu")


@trusted_reader
@pytest.mark.parametrize("form", ["torch", "legacy", "pickle"])
def test_a_pickle_cannot_run_code(form: str, copy: Path) -> None:
    mark = copy / "was-run"

    class Evil:
        """Leaves a mark when it is unpickled."""

        def __reduce__(self) -> Any:
            return (Path.touch, (mark,))

    content = {**load_file(copy / "model.safetensors"), "evil": Evil()}
    (copy / "model.safetensors").unlink()
    if form == "pickle":
        (copy / "pytorch_model.bin").write_bytes(pickle.dumps(content, protocol=2))
    else:
        new = form == "torch"
        torch.save(content, copy / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin"):
        Encoder(str(copy), device="cpu")
    assert not mark.exists()
    with (copy / "pytorch_model.bin").open("rb") as stream:  # the trap itself works
        (torch.load(stream, weights_only=False) if form != "pickle" else pickle.load(stream))
    assert mark.exists()


def test_sharded_weights(copy: Path, tiny_bert: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for part, keys in parts.items():
        save_file({key: weights[key] for key in keys}, copy / part, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {k: part for part, keys in parts.items() for k in keys}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    found = find_checkpoint(str(copy))
    assert found.weights == tuple(parts)
    assert set(parts) < set(found.sha256)
    ours = Encoder(str(copy), device="cpu").encode(TEXTS)
    assert distance(ours, Encoder(str(tiny_bert), device="cpu").encode(TEXTS)).max() == 0
    (copy / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors"):
        find_checkpoint(str(copy))
    for content in ({}, {"weight_map": ["a"]}, {"weight_map": {"a": "../tiny/model"}}):
        (copy / "model.safetensors.index.json").write_text(json.dumps(content), "utf-8")
        with pytest.raises(ModelError, match=r"index\.json"):
            find_checkpoint(str(copy))


def test_code_of_a_checkpoint_is_not_run(copy: Path) -> None:
    mark = copy / "was-run"
    code = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
    for name in ("configuration_own", "modeling_own", "tokenization_own"):
        (copy / f"{name}.py").write_text(code + "class Own: pass\n", "utf-8")
    own = {"AutoConfig": "configuration_own.Own", "AutoModel": "modeling_own.Own"}
    state(copy / "config.json", auto_map=own)
    tokenizers = {"AutoTokenizer": ["tokenization_own.Own", "tokenization_own.Own"]}
    state(copy / "tokenizer_config.json", auto_map=tokenizers)
    encoder = Encoder(str(copy), device="cpu")
    with pytest.raises(ModelError, match="code of the checkpoint"):
        encoder.encode(["a"])
    assert encoder.encode(["a"], pooling="mean").shape == (1, 24)
    assert not mark.exists()
    assert not [file for file in encoder.checkpoint.sha256 if file.endswith(".py")]


@pytest.mark.parametrize("name", [DEFAULT_MODEL, "all-MiniLM-L6-v2"])
def test_packaged(name: str) -> None:
    found = find_checkpoint(name, offline=True)
    assert (found.source, found.revision, found.name) == ("package", None, name)
    assert (found.n_layers, found.width, found.positions) == (6, 384, 512)
    assert read_data(found.transformer / "sentence_bert_config.json")["max_seq_length"] == 256
    assert read_data(found.transformer / "no_such.json") == {}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and no network."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return folder


class FakeHub:
    """The hub's functions that a download uses, for one checkpoint; remembers what was fetched."""

    def __init__(self, source: Path, cache: Path) -> None:
        self.source, self.cache = source, cache
        self.fetched: list[str] = []

    def find(self, name: str, revision: str | None) -> None:
        error: Any = RevisionNotFoundError if name == NAME else RepositoryNotFoundError
        if name != NAME or revision not in (None, "main", COMMIT):
            raise error("404", response=Mock())

    def model_info(self, name: str, revision: str | None) -> Any:
        self.find(name, revision)
        files = [file for file in self.source.rglob("*") if file.is_file()]
        names = [file.relative_to(self.source).as_posix() for file in files]
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in names])

    def snapshot_download(
        self, name: str, *, revision: str | None, allow_patterns: list[str]
    ) -> str:
        self.find(name, revision)
        repo = self.cache / f"models--{NAME.replace('/', '--')}"
        snapshot = repo / "snapshots" / COMMIT
        (repo / "refs").mkdir(parents=True, exist_ok=True)
        (repo / "refs" / "main").write_text(COMMIT, "utf-8")
        for file in allow_patterns:
            self.fetched.append(file)
            (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.source / file, snapshot / file)
        return str(snapshot)


@pytest.fixture
def hub(tiny_bert: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A hub that has the tiny BERT, and beside it files that must not be fetched."""
    source = Path(shutil.copytree(tiny_bert, tmp_path / "source"))
    kinds = (("", "Transformer"), ("mine", "Pooling"))  # 1_Pooling is a habit
    modules = [{"path": p, "type": f"sentence_transformers.models.{kind}"} for p, kind in kinds]
    (source / "modules.json").write_text(json.dumps(modules), "utf-8")
    others = "mine/config.json 1_Pooling/config.json README.md modeling_own.py pytorch_model.bin"
    others += " training_args.bin tf_model.h5 onnx/config.json openvino/model.safetensors"
    for name in f"{others} adapter.safetensors".split():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(b'{"pooling_mode_mean_tokens": true}')
    hub = FakeHub(source, cache)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


WANTED = {
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    "modules.json",
    "mine/config.json",
}


def test_download(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_checkpoint(NAME)
    assert (found.source, found.revision, found.weights) == ("hub", COMMIT, ("model.safetensors",))
    assert sorted(hub.fetched) == sorted(WANTED)
    assert hub.fetched[-1] == "model.safetensors"  # a snapshot with weights is complete
    assert Encoder(found.folder, device="cpu").encode(["a"]).shape == (1, 24)
    # from now on by name, without the hub
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for revision in (None, "main", COMMIT):
        assert find_checkpoint(NAME, revision=revision) == found
    assert len(hub.fetched) == len(WANTED)
    assert found.sha256 == find_checkpoint(str(found.folder)).sha256
    # nor is there anything else
    (found.folder / "model.safetensors").unlink()
    for name in (NAME, "no such model", "a/b?", "-x", "a..b"):
        with pytest.raises(ModelError, match=r"model='.*'"):
            find_checkpoint(name)


@trusted_reader
def test_download_of_a_checkpoint_with_pickles_only(hub: FakeHub) -> None:
    (hub.source / "model.safetensors").unlink()
    assert find_checkpoint(NAME).weights == ("pytorch_model.bin",)
    assert sorted(hub.fetched) == sorted(WANTED - {"model.safetensors"} | {"pytorch_model.bin"})


def test_what_the_hub_does_not_have(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, revision, told in ((NAME, "v9", "v9"), ("someone/else", None, "someone/else")):
        with pytest.raises(ModelError, match=told):
            find_checkpoint(name, revision=revision)
    monkeypatch.setattr(hub, "find", Mock(side_effect=OSError("no route")))
    with pytest.raises(ModelError, match="no route"):
        find_checkpoint(NAME)
