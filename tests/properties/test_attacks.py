"""Files, names and addresses of others: none leads out of its folder, runs code or takes memory.

Every attack goes through a command or a function of the library, from outside.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import os
import random
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import faiss
import msgspec
import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from peft import LoraConfig, get_peft_model
from safetensors.numpy import load_file, save_file
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from transformers import AutoModel

import embedkit
from embedkit import pipeline, storage
from embedkit.classifiers.model import load_model, save_model
from embedkit.cli.main import cli
from embedkit.corpus.sources import Source
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.tokenizer import load_tokenizer, spelled_out
from embedkit.errors import CorpusError, DamagedError, ModelError, RecipeError, StorageError
from embedkit.finetuning import model
from embedkit.pipeline import fetch, read_recipe
from embedkit.storage import file_sums, path_inside, seal, without_secrets
from tests.conftest import Files
from tests.corpus_fixtures import read_corpus
from tests.encoding.test_checkpoint import write_modules
from tests.finetune_fixtures import corpus_of
from tests.models import state
from tests.processes import command, ends_with, succeed
from tests.run_fixtures import train
from tests.store_fixtures import extract_tiny, tiny_model

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def made(common: Path) -> Path:
    """A dataset with an index, a run of each kind, a checkpoint and their corpus."""
    corpus = corpus_of(common / "c.tsv")
    shutil.copytree(tiny_model(), common / "checkpoint")
    extract_tiny(corpus, common / "data")
    train(common / "data", out=common / "frozen", estimator="logreg", folds=2)
    embedkit.probe(common / "data", out=common / "probe", folds=2)
    settings: dict[str, Any] = {"epochs": 1, "validation": 0, "folds": 2}
    embedkit.finetune(corpus, out=common / "tuned", model=str(tiny_model()), **settings)
    embedkit.index(common / "data", kind="flat", metric="cosine")
    return common


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "here"))


def refused(*typed: str | Path, cwd: Path, told: str, code: int = 5) -> None:
    """Call a command that has to end with an exit code and to say why."""
    assert told in ends_with(code, *typed, cwd=cwd).stderr


# names that are read from a file

NAMES = (
    "/etc/passwd ../outside a/../../outside a/.. ./a a//b a/ .. . a\\..\\outside "
    "\\\\host\\share a\x00b link folder-link/passwd pipe folder zero"
)


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A sealed folder, then with links and pipes in it."""
    folder = tmp_path / "sealed"
    (folder / "folder").mkdir(parents=True)
    (folder / "a").write_text("a")
    seal(folder)
    links = {"link": "/etc/passwd", "zero": "/dev/zero", "folder-link": "/etc", "inner": "a"}
    for name, place in links.items():
        (folder / name).symlink_to(place)
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.parametrize("name", NAMES.split())
def test_a_name_in_a_file_leads_into_its_folder(sealed: Path, name: str) -> None:
    """By no command is the file behind it opened: a pipe and a device would never end."""
    with pytest.raises(ValueError, match=r"folder|regular"):
        path_inside(sealed, name)
    before = dict(file_sums(sealed))
    with (sealed / "SHA256SUMS").open("a", encoding="utf-8") as sink:
        sink.write(f"{'0' * 64}  {name}\n")
    with pytest.raises(DamagedError, match="SHA256SUMS is damaged"):
        file_sums(sealed)
    assert file_sums(sealed, torn=True) == before
    assert not embedkit.verify(sealed).ok
    done = ends_with(5, "verify", sealed, cwd=sealed.parent)
    assert "root:" not in done.stdout + done.stderr


def test_a_plain_name_is_a_path(sealed: Path) -> None:
    for name in ("a", "inner", "none", "new/deep/er", "모델", "a b", "..a", "a..", "x:y"):
        assert path_inside(sealed, name) == sealed / name


def test_the_sums_themselves_are_a_file_in_the_folder(sealed: Path) -> None:
    (sealed / "SHA256SUMS").unlink()
    os.mkfifo(sealed / "SHA256SUMS")
    with pytest.raises(DamagedError, match="regular"):
        file_sums(sealed)


@pytest.mark.parametrize("name", ["{}/evil.pth", "../../../../evil.pth", "a\\evil.pth"])
def test_a_remote_dataset_writes_into_its_copy_alone(tmp_path: Path, serve: Any, name: str) -> None:
    name = name.format(tmp_path / "site-packages")
    (tmp_path / "site-packages").mkdir()
    line = f"{hashlib.sha256(b'evil').hexdigest()}  {name}\n".encode()
    files = dict.fromkeys((f"/v/{name}", f"/v{name}", "/evil.pth"), b"evil")
    files |= {"/v/_embedkit/manifest.json": b"{}", "/v/SHA256SUMS": line}
    address = f"http://{serve(files)}/v"
    for use in (["info", address], ["verify", address], ["train", address]):
        assert command(*use, cwd=tmp_path).returncode in (2, 5)
    assert not list(tmp_path.rglob("evil*"))


def test_a_copy_is_readable_by_its_owner_alone(here: Path, tmp_path: Path, serve: Any) -> None:
    data = here / "data"
    files = {f"/v/{p.relative_to(data).as_posix()}": p for p in data.rglob("*") if p.is_file()}
    address = f"http://me:hunter2@{serve({n: p.read_bytes() for n, p in files.items()})}/v"
    np.testing.assert_array_equal(embedkit.load(address).X, embedkit.load(data).X)
    (copy,) = (tmp_path / "cache" / "embedkit").iterdir()
    assert copy.stat().st_mode & 0o077 == 0
    assert "hunter2" not in str(list(copy.rglob("*")))


# what JSON says, and names of code

TRAIN = "finetune c.tsv --model tuned --split tuned/split.parquet --validation 0 --epochs 2"
USES: dict[str, tuple[str, ...]] = {
    "data": ("info data", "search data --like 1 --index flat"),
    "frozen": ("info frozen", "predict frozen --text a", "compare frozen"),
    "probe": ("info probe", "compare probe frozen"),
    "tuned": (
        *("info tuned", "predict tuned --text a", "export tuned", TRAIN),
        "compare tuned --report r.html --overwrite",
    ),
    "checkpoint": ("info checkpoint", "tokenize bus --model checkpoint"),
}
VALUES: list[Any] = [None, -1, 2**63, 1e308, [], True, "../x", [[1]], {"a": [None]}, "\x1b"]
VALUES += [10**12, "evil:X", "it's", {}, GONE := object()]
"""What stands in a place of JSON instead of its value, or nothing; one names a module."""


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places in parsed JSON; of a list those in its first element."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value[:1]):
        yield (*place, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*place, key))


@pytest.mark.parametrize("count", [6, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("folder", USES)
def test_any_value_at_any_place_of_json(
    here: Path, folder: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that it names is imported, and no command ends with a traceback."""
    mark = here / "imported"
    (here / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nX = print\n")
    monkeypatch.syspath_prepend(here)
    files = [f for f in sorted((here / folder).rglob("*.json")) if f.stat().st_size < 50_000]
    cases = [(f, place) for f in files for place in places(msgspec.json.decode(f.read_bytes()))]
    draw = random.Random(0)
    for number in range(count):
        file, place = draw.choice(cases)
        content = msgspec.json.decode(original := file.read_bytes())
        parent = functools.reduce(lambda inner, key: inner[key], place[:-1], content)
        parent[place[-1]] = VALUES[number % len(VALUES)]
        if parent[place[-1]] is GONE:
            del parent[place[-1]]
        file.write_text(json.dumps(content))
        for sealed in (file.parent, here / folder):
            if (sealed / "SHA256SUMS").is_file():
                seal(sealed)
        for use in USES[folder]:
            done = command(*use.split(), cwd=here)  # a traceback would be raised
            assert not mark.exists(), (file, place, use)
            assert done.returncode in (0, 2, 3, 4, 5, 8), (file, place, number % len(VALUES), done)
        file.write_bytes(original)
    assert "evil" not in sys.modules


def with_head(run: Path, **fields: Any) -> None:
    """Rewrite ``head.json`` of all models of a run, sums included."""
    for file in run.glob("model/*/head.json"):
        state(file, **fields)
    seal(run)


@pytest.mark.parametrize("name", ["os:kill", "evil:X", "builtins:print", "os.path:join"])
def test_a_head_is_named_by_the_caller(
    here: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the command that allows it; another name than the recorded one does not."""
    monkeypatch.setattr(os, "kill", pytest.fail)
    with_head(here / "tuned", head=name, n_outputs=9)
    for more in ([], ["--head", "tests.finetuning.test_heads:Weighted"]):
        words = ("predict", "tuned", "--text", "a", *more)
        refused(*words, cwd=here, told=f"--head {name}", code=2)


def test_a_module_beside_a_corpus_is_not_run(tmp_path: Path) -> None:
    corpus_of(tmp_path / "c.tsv")
    (tmp_path / "types.py").write_text("open('mark', 'w')")
    options = ("--model", tiny_model(), "--workers", "2", "--out", "v")
    succeed("extract", "c.tsv", *options, cwd=tmp_path)
    assert not (tmp_path / "mark").exists()


def test_an_export_copies_no_link(here: Path) -> None:
    (here / "tuned/model/fold-0/extra.txt").symlink_to("/etc/passwd")
    assert command("export", "tuned", "--fold", "0", "--out", "plain", cwd=here).returncode == 0
    assert (here / "plain/config.json").is_file()
    assert not (here / "plain/extra.txt").exists()


# links where embedkit works


WORK = {
    "r": "train data --folds 2 --out r",
    "v": "extract c.tsv --model checkpoint --out v",
    "f": "finetune c.tsv --model checkpoint --epochs 1 --folds 2 --out f",
    "p.tsv": "predict frozen c.tsv --out p.tsv",
    "index": "index data",
}


@pytest.mark.parametrize("place", WORK)
def test_a_link_in_the_place_of_work_is_not_followed(here: Path, place: str) -> None:
    """Behind it everything would be emptied, written and deleted; also behind one that is in it."""
    words = WORK[place]
    if place == "index":
        (flat,) = (here / "data/_embedkit/index").iterdir()
        place = str(flat.relative_to(here)).replace("flat", "hnsw")
    hidden = "." * (place == "p.tsv")  # of a file
    own, work = here / "own", here / f"{hidden}{place}.incomplete"
    own.mkdir()
    (own / "mine").write_text("mine")
    work.symlink_to(own / "mine" if place == "p.tsv" else own)
    done = command(*words.split(), cwd=here)
    # extract says first that it is nothing of its own
    assert (done.returncode, "is a link" in done.stderr) in ((6, True), (8, False))
    work.unlink()
    if place != "p.tsv":
        work.mkdir()
        for name in ("model", "sentences", "index.faiss"):
            (work / name).symlink_to(own)
        done = command(*words.split(), cwd=here)
        assert (done.returncode, "is a link" in done.stderr) in ((6, True), (8, False))
    assert [file.read_text() for file in own.iterdir()] == ["mine"]


def test_a_link_in_a_dataset_leads_no_index_out_of_it(here: Path) -> None:
    shutil.rmtree(here / "data/_embedkit/index")
    (here / "own").mkdir()
    (here / "data/_embedkit/index").symlink_to(here / "own")
    refused("index", "data", cwd=here, told="by a link", code=2)
    assert not [*(here / "own").iterdir()]


# models


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("token_pattern", "(a+)+$", "a pattern of words"),
        ("ngram_range", {"tuple": [1, 10**9]}, "n-grams of any length"),
        ("ngram_range", {"tuple": [-(10**9), 4]}, "n-grams of any length"),
        ("n_jobs", 12, "a number of processes"),
    ],
)
def test_a_vectorizer_reads_texts_as_they_are(
    here: Path, name: str, value: Any, message: str
) -> None:
    train(here / "data", out=here / "tfidf", features="tfidf", folds=2)
    file = here / "tfidf/model/pipeline.safetensors"
    arrays = load_file(file)
    text = arrays["pipeline"].tobytes().decode()
    of_name = rf'"{name}": ("[^"]*"|{{[^}}]*}}|null)'
    changed = re.sub(of_name, f'"{name}": {json.dumps(value)}', text)
    assert changed != text
    save_file(arrays | {"pipeline": np.frombuffer(changed.encode(), np.uint8)}, file)
    seal(here / "tfidf")
    refused("predict", "tfidf", "--text", "/etc/passwd", cwd=here, told=message)


def test_a_model_that_would_unpack_to_a_thousand_times_its_size(here: Path) -> None:
    (here / "frozen/model/pipeline.safetensors").unlink()
    with zipfile.ZipFile(here / "frozen/model/pipeline.skops", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("schema.json", "{}")
        for number in range(1, 13):  # 1.2 GB
            packed.writestr(f"{number}.npy", bytes(100_000_000))
    seal(here / "frozen")
    refused("predict", "frozen", "--text", "a", cwd=here, told="much more than its size")


TREES: list[tuple[str, Any]] = [
    ("(left|right)_child=.*", lambda m: re.sub(r"-?\d+", "0", m[0])),  # which has no end
    (r"left_child=\S+", "left_child=100000000"),
    (r"split_feature=\S+", "split_feature=500000000"),
    ("(num_class|num_tree_per_iteration)=.*", r"\1=1000000000"),
    (r"decision_type=\d", "decision_type=3"),
    ("objective=.*", "objective=multiclass num_class:100000000"),
    ("num_class=.*", "num_class=3"),
    (r"num_leaves=(\d)", r"num_leaves=\1_0"),
    (r"num_leaves=(\d)", "num_leaves=20000000000"),
    (r"left_child=\S+", f"left_child={2**63}"),
    # what LightGBM reads otherwise than it stands here is not what it is given
    ("tree_sizes=.*", "tree_sizes=1"),
    ("(left_child=.*)", r"\1\n\1"),
    ("(version=.*)", r"\1\n=num_class=1000000000\n=tree_sizes=1\nnum_tree_per_iteration"),
    (r"\nparameters:[^$]*", "\nparameters:\nabc\n"),
    (r"\n\n+Tree=1\n", "\nTree=1\n"),
]


@pytest.mark.parametrize(("pattern", "instead"), TREES)
def test_trees_that_lead_elsewhere(here: Path, pattern: str, instead: Any) -> None:
    train(here / "data", out=here / "trees", estimator="lightgbm", folds=2, tune=False)
    words = "predict", "trees", "--text", "good film"
    expected, file = succeed(*words, cwd=here), here / "trees/model/booster.txt"
    text = file.read_text()
    changed = re.sub(pattern, instead, text)
    assert changed != text
    file.write_text(changed)
    seal(here / "trees")
    if re.match(r"tree_sizes|\(left_child|\(version|\\n", pattern):
        assert command(*words, cwd=here).stdout == expected.stdout
    else:
        refused(*words, cwd=here, told="booster.txt")


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_an_index_names_no_other_file(here: Path, kind: Any) -> None:
    info = embedkit.index(here / "data", kind=kind, overwrite=True)
    folder = here / f"data/_embedkit/index/mean_2.{kind}.cosine"
    lists = faiss.index_factory(info.width, "IVF1,Flat", faiss.METRIC_INNER_PRODUCT)
    lists.train(np.ones((40, info.width), np.float32))
    lists.ntotal = info.records
    on_disk = faiss.OnDiskInvertedLists(1, lists.code_size, str(here / "elsewhere"))
    lists.replace_invlists(on_disk, False)
    faiss.write_index(lists, str(folder / "index.faiss"))
    (here / "elsewhere").unlink(missing_ok=True)
    os.mkfifo(here / "elsewhere")
    seal(folder)
    reason = "index.faiss cannot be read" + ": it names another file" * (kind == "ivf")
    refused("search", "data", "good film", "--index", kind, cwd=here, told=reason)


def test_a_vectorizer_is_found_wherever_it_is(tmp_path: Path) -> None:
    texts = [f"{word} film {number}" for number in range(6) for word in ("good", "bad")]
    words = make_pipeline(CountVectorizer(), LogisticRegression())
    made = make_pipeline(CalibratedClassifierCV(words, cv=2)).fit(texts, [0, 1] * 6)
    storage.make_folder(tmp_path / "run")
    for kind in ("content", "filename"):
        for part in made[-1].calibrated_classifiers_:
            part.estimator.steps[0][1].input = kind
        save_model(tmp_path / "run", made)
        seal(tmp_path / "run")
        if kind == "content":
            assert load_model(tmp_path / "run")(["good film"]).shape == (1, 2)
    with pytest.raises(DamagedError, match="a vectorizer of files"):
        load_model(tmp_path / "run")


@pytest.mark.parametrize("fields", [{"n_outputs": 300_000_000}, {"cnn_widths": [100_000_000]}])
def test_a_head_of_any_stated_size(here: Path, fields: dict[str, Any]) -> None:
    with_head(here / "tuned", head="cnn", **fields)
    refused("predict", "tuned", "--text", "a", cwd=here, told="does not fit the weights")


@pytest.mark.parametrize(
    "sizes",
    [
        {"vocab_size": 9_999, "hidden_size": 9_996, "intermediate_size": 9_999},
        {"max_position_embeddings": 1 << 24},
        {"model_type": "gpt2", "n_inner": 200_000_000, "n_embd": 24, "n_head": 2, "n_layer": 3},
    ],
)
def test_a_model_of_any_stated_size(tmp_path: Path, sizes: dict[str, Any]) -> None:
    """Sizes of which each could be one of some model, before a number of it is made."""
    folder = checkpoint_with(tmp_path, "config.json", {"num_attention_heads": 1} | sizes)
    with pytest.raises(ModelError, match=r"it is of [\d,]+ weights, which are not in"):
        Encoder(folder, device="cpu")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_an_adapter_of_any_stated_rank(here: Path) -> None:
    lora = LoraConfig(r=2, target_modules=["query"])
    model = AutoModel.from_pretrained(here / "checkpoint")
    get_peft_model(model, lora).save_pretrained(str(here / "checkpoint"))
    state(here / "checkpoint/adapter_config.json", r=10_000_000)
    with pytest.raises(ModelError, match=r"r=10000000, which adapter_model\.safetensors does"):
        Encoder(here / "checkpoint", device="cpu")


# recipes

OUTSIDE = (
    "../evil /tmp/evil a/../../evil . x/.. linked/evil evil.py venv/lib/site-packages/evil.pth "
    ".git/hooks/post-commit"
)
STAGE = '[fetch]\nurl = "https://example.org/x"\nsha256 = "0"\nout = "{}"'
CORPUS = 'corpus = "c.tsv"'
RECIPES = f"""\
[extract]|{CORPUS}|out = "s3://bucket/x"
[extract]|{CORPUS}|out = "https://example.org/x"
[extract]|{CORPUS}|out = "file:///tmp/x"
[extract]|corpus = ["c.tsv", "--out=../evil"]|makes = "v"
[finetune]|{CORPUS}|head = "evil:Head"|out = "r"
[train]|dataset = "c.tsv"|estimator = "evil:X"|out = "r"
[predict]|run = "r"|{CORPUS}|head = "evil:X"
[extract]|{CORPUS}|engine = "ray"|out = "v"
[compare]|runs = ["r"]|report = "../r.html"
[index]|dataset = "../v"|makes = "i"
[search]|dataset = "v"|query = "q"|makes = "../v"
""".splitlines()


@pytest.mark.parametrize("table", [*map(STAGE.format, OUTSIDE.split()), *RECIPES])
def test_a_recipe_stays_in_its_folder(tmp_path: Path, table: str) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "linked").symlink_to(tmp_path)
    recipe = folder / "r.toml"
    recipe.write_text(table.replace("|", "\n"))
    with pytest.raises(RecipeError, match=r"r\.toml:1: .*(trust=True|expected a path)"):
        read_recipe(recipe, cli.commands)
    if "file:" not in table:
        stages = read_recipe(recipe, cli.commands, trust=True)
        assert stages[0].needs_trust
        done = succeed("run", recipe, "--dry-run", "--trust", cwd=tmp_path)
        assert f"--trust allows: [{stages[0].name}]" in done.stderr


def test_what_the_caller_sets_needs_no_trust(tmp_path: Path) -> None:
    recipe = tmp_path / "a" / "r.toml"
    recipe.parent.mkdir()
    recipe.write_text(
        '[set]\nout = "o"\nhead = "cls"\n[extract]\ncorpus = "c.tsv"\nout = "{out}/v"\n'
        '[finetune]\ncorpus = "c.tsv"\nhead = "{head}"\nout = "{out}/../../x"\n'
    )
    with pytest.raises(RecipeError, match=r"\[finetune\] writes to"):
        read_recipe(recipe, cli.commands)
    recipe.write_text(recipe.read_text().replace("/../../x", "/x"))
    head = "head=my.module:Head"
    for settings in (["out=../b"], ["out=s3://bucket/mine", head], [f"out={tmp_path}"]):
        assert not any(s.needs_trust for s in read_recipe(recipe, cli.commands, settings))
    recipe.write_text(recipe.read_text().replace("{out}/x", "{out}/../x"))
    for settings in (["out=../b"], ["out=s3://bucket/mine"]):
        with pytest.raises(RecipeError, match=r"\[finetune\] writes to"):
            read_recipe(recipe, cli.commands, settings)


# secrets

SECRETS = ("hunter2", "1f2e3d")


SHOWN = {
    "https://me:hunter2@host/a?s=1f2e3d": "https://host/a",
    "https://hunter2@host:80/a#1f2e3d": "https://host:80/a",
    "s3://key:hun/ter2@bucket/a": "s3://bucket/a",
    "https:/me:hunter2@host/a": "https:/host/a",
    "('https://host/a?1f2e3d', 3)": "('https://host/a', 3)",
    "http://host:8080/a@b": "http://host:8080/a@b",
    "hf://datasets/u/r@main/x": "hf://datasets/u/r@main/x",
    "--out=s3://b/x? --k": "--out=s3://b/x --k",
    "a@b: c? d://": "a@b: c? d://",
}


@pytest.mark.parametrize("text", SHOWN)
def test_addresses_are_shown_without_secrets(text: str) -> None:
    assert without_secrets(text) == SHOWN[text]


def test_secrets_reach_no_file_and_no_terminal(tmp_path: Path, serve: Any) -> None:
    """Of no command that reads a corpus, also of one that fails; nor of a recipe."""
    host = serve({"/c.tsv": corpus_of(tmp_path / "c.tsv").read_bytes()})
    address = f"http://me:{SECRETS[0]}@{host}/c.tsv?Signature={SECRETS[1]}"
    public = address.replace(f"me:{SECRETS[0]}@", "")
    fetched = ["--sha256", "0" * 64, "--out", "x"]
    model = f"--model={tiny_model()}"
    recipe = f'[split]\nsource = "{address}"\nfolds = 2\nout = "r/s.parquet"\n'
    uses: list[list[str]] = [
        ["extract", address, model],
        ["extract", address, model, "--out", "v"],
        ["split", address, "--folds", "2"],
        ["finetune", address, model, "--epochs", "1", "--folds", "2", "--label", "label"],
        ["extract", address.replace("c.tsv", "none.tsv"), model],
        ["extract", address.replace(host, "127.0.0.1:9"), model],
        ["info", address],
        ["fetch", address, *fetched],
        ["fetch", public, *fetched],
        ["fetch", public.replace("c.tsv", "none.tsv"), *fetched],
        ["extract", address, "--out", address.replace("http", "ftp")],
        ["run", "r.toml"],
        ["run", "r.toml", "--dry-run"],
    ]
    codes = []
    (tmp_path / "r.toml").write_text(recipe)
    for use in uses:
        done = command(*use, cwd=tmp_path)
        codes.append(done.returncode)
        assert not [s for s in SECRETS if s in done.stdout + done.stderr], (use, done)
    assert codes == [0, 0, 0, 0, 2, 2, 5, 2, 4, 6, 2, 0, 0]
    assert len(list(tmp_path.rglob("run.json"))) == 1
    (tmp_path / "r.toml").unlink()
    for path in tmp_path.rglob("*"):
        assert not [s for s in SECRETS if s in str(path)]
        if path.is_file():
            assert not [s for s in SECRETS if s.encode() in path.read_bytes()], path


# whose fault it is


@pytest.mark.parametrize("damage", ["not a number", "swapped", "missing"])
def test_a_column_of_predictions(here: Path, damage: str) -> None:
    file = here / "frozen" / "predictions.parquet"
    table = pq.read_table(file)
    *names, first, last = table.column_names
    if damage == "not a number":
        table = table.drop_columns([last]).append_column(last, pa.array([np.nan] * len(table)))
    else:
        table = table.select([*names, first] if damage == "missing" else [*names, last, first])
    pq.write_table(table, file)
    seal(file.parent)
    done = ends_with(5, "compare", "frozen", cwd=here)
    assert done.stdout == ""
    assert re.search(r"frozen/predictions\.parquet is damaged: .*proba", done.stderr)


USED_FILES = (
    (["verify", "data"], "data/sentences/part-00000000.parquet"),
    (["train", "data", "--out", "x"], "data/sentences/part-00000000.parquet"),
    (["info", "data"], "data/_embedkit/manifest.json"),
    (["info", "data"], "data/SHA256SUMS"),
    (["info", "frozen"], "frozen/run.json"),
    (["predict", "frozen", "--text", "a"], "frozen/model/pipeline.safetensors"),
    (["predict", "tuned", "--text", "a"], "tuned/model/fold-0/model.safetensors"),
    (["compare", "frozen"], "frozen/predictions.parquet"),
    (["search", "data", "--like", "1", "--index", "flat"], "data/_embedkit/index"),
    (["extract", "c.tsv", "--model", "checkpoint", "--out", "x"], "c.tsv"),
    (["run", "c.tsv"], "c.tsv"),
)


@pytest.mark.parametrize("number", [5, 13], ids=["broken", "not allowed"])
@pytest.mark.parametrize(("use", "name"), USED_FILES)
def test_an_error_of_the_disk(
    here: Path, use: list[str], name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way to open or read the file fails, which is no damage of what it holds."""
    broken = (here / name).resolve()
    if broken.is_dir():
        broken = next(broken.rglob("*.faiss"))

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **settings: Any) -> Any:
            if isinstance(path, str | Path) and (here / path).resolve() == broken:
                raise OSError(number, os.strerror(number), str(path))
            return original(path, *arguments, **settings)

        return call

    ways: list[tuple[Any, str]] = [(Path, name) for name in ("open", "read_bytes", "read_text")]
    ways += [(pq, "ParquetFile"), (pq, "read_metadata"), (faiss, "read_index")]
    for kind, attribute in [*ways, (model, "load_file")]:
        monkeypatch.setattr(kind, attribute, failing(getattr(kind, attribute)))
    done = command(*use, cwd=here)
    assert (done.returncode, "Traceback" in done.stderr) == (6, False), done
    assert "damaged" not in done.stderr


def test_an_export_on_a_full_disk(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix is written and not mapped, so that a full disk is an error of its own."""
    expected = embedkit.load(here / "data").X

    def failing(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "open_memmap", failing)
    out = embedkit.load(here / "data").export(here / "x.npy", to="npy")
    np.testing.assert_array_equal(np.load(out), expected)
    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", failing)
    words = ("export", "data", "--to", "npy", "--out", "y.npy")
    refused(*words, cwd=here, told="MB free", code=6)


# sizes


def checkpoint_with(folder: Path, name: str, content: Any) -> Path:
    """A copy of a small checkpoint with another JSON file; the fields of a dict are added."""
    copy = Path(shutil.copytree(tiny_model(), folder / "m"))
    if name == "config_sentence_transformers.json":
        write_modules(copy)  # without which nobody reads it
    if isinstance(content, dict):
        state(copy / name, **content)
    else:
        (copy / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return copy


SIZES = "num_hidden_layers vocab_size hidden_size intermediate_size num_labels type_vocab_size"
POOLING = "sentence_transformers.models.Pooling"


LONGER = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
CHARSMAP = base64.b64encode(bytes(4) + b"a" * 3_000 + b"\0").decode()

FILES: list[tuple[str, Any]] = [
    *(("config.json", {name: 10**9}) for name in SIZES.split()),
    ("config.json", {"max_position_embeddings": 10**12}),
    ("config.json", {"quantization_config": {"quant_method": "evil"}}),
    ("config.json", {"vocab_size": "x"}),
    ("config.json", '{"a":' + 100_000 * "[" + 100_000 * "]" + "}"),
    ("tokenizer.json", '{"model": 3}'),
    ("tokenizer.json", {"normalizer": {"type": "Sequence", "normalizers": [LONGER] * 4}}),
    ("tokenizer.json", {"normalizer": {"normalizers": [LONGER | {"normalizers": []}] * 4}}),
    ("tokenizer.json", {"pre_tokenizer": {"pretokenizers": [{"type": "ByteLevel"}] * 30}}),
    ("tokenizer.json", {"normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}}),
    ("tokenizer_config.json", {"model_max_length": "x"}),
    ("adapter_config.json", {"peft_type": "LORA", "megatron_core": "evil"}),
    *(("modules.json", content) for content in ([{"idx": 0}], [1, 2], {"a": 1})),
    *(("modules.json", [{"type": POOLING, "path": path}]) for path in ("../x", "..", "/etc", 3)),
    *(("config_sentence_transformers.json", {"prompts": p}) for p in (["a"], {"a": 3})),
    ("config_sentence_transformers.json", {"default_prompt_name": ["a"]}),
]


@pytest.mark.parametrize(("name", "content"), FILES, ids=lambda value: str(value)[:40])
def test_a_checkpoint_is_refused_before_it_is_built(
    tmp_path: Path, name: str, content: Any
) -> None:
    """By one line that says what is wrong with which file."""
    copy = checkpoint_with(tmp_path, name, content)
    if "tokenizer" not in name and content != {"vocab_size": "x"}:  # which transformers notice
        with pytest.raises(ModelError, match=r"\.json"):
            find_checkpoint(copy)
    for use in (["info", str(copy)], ["tokenize", "a bus", "--model", str(copy)]):
        done = command(*use, cwd=tmp_path)
        assert done.returncode in (2, 5), done
        assert re.match("embedkit: .*(json|tokenizer)", done.stderr.splitlines()[-1]), done


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "auto_map"])
def test_fields_that_name_code_are_dropped(tmp_path: Path, name: str) -> None:
    copy = checkpoint_with(tmp_path, "config.json", {name: "evil/kernels", "part": {name: "x"}})
    assert "evil" not in json.dumps(find_checkpoint(copy).config)
    assert find_checkpoint(copy).config["part"] == {}
    assert np.isfinite(embedkit.Encoder(str(copy), device="cpu").encode(["a bus"])).all()


def test_a_dense_layer_of_any_stated_size(tmp_path: Path) -> None:
    """Its weights are read before it is made."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")]
    modules = [{"type": f"sentence_transformers.models.{k}", "path": path} for k, path in kinds]
    copy = checkpoint_with(tmp_path, "modules.json", modules)
    sizes = {"in_features": 24, "out_features": 10**10, "bias": True}
    for folder, content in (("1_Pooling", {"pooling_mode": "mean"}), ("2_Dense", sizes)):
        state(copy / folder / "config.json", **content)
    shutil.copy(copy / "model.safetensors", copy / "2_Dense")
    with pytest.raises(ModelError, match="2_Dense"):
        embedkit.Encoder(str(copy), device="cpu").encode(["a bus"], pooling="sentence")


def workbook(path: Path, cells: dict[str, str]) -> Path:
    """A workbook of one sheet with cells such as ``A1``."""
    book = openpyxl.Workbook()
    for name, text in cells.items():
        book.active[name] = text
    book.save(path)
    return path


def test_a_workbook_with_a_stray_cell(tmp_path: Path) -> None:
    """The rectangle that holds all cells has 17 billion; the process goes on."""
    cells = {"C4": "text", "D4": "label", "C6": "a bus", "D6": "x", "C7": "a ship", "D7": "y"}
    data = embedkit.load(extract_tiny(workbook(tmp_path / "good.xlsx", cells), tmp_path / "v").out)
    assert (data.text, list(data.labels)) == (["a bus", "a ship"], ["x", "y"])
    stray = workbook(tmp_path / "stray.xlsx", cells | {"XFD1048576": "z"})
    assert stray.stat().st_size < 10_000
    with pytest.raises(CorpusError, match=r"stray\.xlsx.*memory"):
        extract_tiny(stray, tmp_path / "w")


class _Endless(Files, BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(bytes(1 << 16))
        except OSError:
            return


def test_a_download_without_end(
    tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "LARGEST", 5_000_000)
    with pytest.raises(StorageError, match="more than 5,000,000 bytes"):
        fetch(f"http://{serve({}, _Endless)}/x", sha256="0" * 64, out=tmp_path / "x")
    assert [p.name for p in tmp_path.iterdir()] in ([], ["cache"])


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["c.tsv", "c.csv", "c.jsonl", "c.txt"])
def test_blank_lines_are_skipped_in_blocks(
    tmp_path: Path, name: str, ending: str, calls_of: Any
) -> None:
    """Lines are numbered and counted as one by one; far fewer are looked at."""
    record = '{"text": "a bus"}' if name == "c.jsonl" else "a bus"
    lines = [*(["text"] if name[-3:] in ("tsv", "csv") else []), *[""] * 200_000, record]
    (tmp_path / name).write_bytes(ending.join([*lines, *[""] * 3, record, ""]).encode())
    looked = calls_of(Source, "__next__")
    found = read_corpus(tmp_path / name)
    assert found.lines == [len(lines), len(lines) + 4]
    assert found.reader.counts.blank_lines == 200_003
    assert len(looked) < 10_000


def test_a_whole_book_is_not_looked_at_for_its_letters(calls_of: Any) -> None:
    """Of a text of 15 MB the beginning tells as much as all of it."""
    tokenizer = load_tokenizer(find_checkpoint(tiny_model()))
    words = "the movie was good, 영화 배 bus home " * 1_000
    calls = calls_of(tokenizer, "encode")
    assert spelled_out(tokenizer, [words * 100]) == spelled_out(tokenizer, [words])
    assert max(len(text) for call in calls for text in call.arguments[0]) < 20_000


def test_millions_of_empty_comments_are_a_record_that_is_too_long(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "c.conllu.gz", "wb", 1) as file:
        for _ in range(10):
            file.write(b"#a\n" * 100_000)
        file.write(b"\n1\ta" + b"\t_" * 8 + b"\n")
    found = read_corpus(tmp_path / "c.conllu.gz", format="conllu")
    assert found.reasons == [(1, "record_too_long")]
    assert len(found.records) == 1


def test_a_name_is_no_html_in_the_card(tmp_path: Path) -> None:
    extract_tiny(corpus_of(tmp_path / "<img src=x onerror=a>.tsv"), tmp_path / "data")
    assert "<img" not in (tmp_path / "data/README.md").read_text("utf-8")
