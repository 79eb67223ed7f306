"""A file that was edited, or that another wrote, is one line that names it; never a traceback.

Checksums do not tell such a file: who writes one can seal it too.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import embedkit
from embedkit.checksums import seal
from embedkit.corpus import CorpusOptions, CorpusReader, InputFile, Record, Reject, plan_corpus
from embedkit.encoding.encoder import Encoder
from embedkit.errors import DamagedError
from embedkit.runs.folder import read_run
from tests.processes import Done, command
from tests.run_fixtures import train
from tests.store_fixtures import load_quickly, loading_quickly, tiny_model, write_tsv

WORDS = ["the", "movie", "was", "good", "bad", "bus", "home", "rain", "a", "i"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A dataset with an index and a split, and a run of each kind."""
    folder = tmp_path_factory.mktemp("hostile")
    random = np.random.default_rng(0)
    rows = [(str(i), " ".join(random.choice(WORDS, 5)), str(i % 2)) for i in range(60)]
    data, model = folder / "data", str(tiny_model())
    with loading_quickly():
        corpus = write_tsv(folder / "c.tsv", rows)
        embedkit.extract(corpus, out=data, model=model)
        train(data, out=folder / "frozen", estimator="logreg", folds=2)
        train(data, out=folder / "boosted", estimator="lightgbm", folds=2)
        embedkit.probe(data, out=folder / "probe", folds=2)
        options = embedkit.TrainingOptions(epochs=1, validation=0)
        embedkit.finetune(corpus, out=folder / "tuned", training=options, folds=2, model=model)
        embedkit.build_index(data, kind="flat", metric="cosine")
        yield folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Encoder, "load", load_quickly)
    return Path(shutil.copytree(made, tmp_path / "here"))


def refused(*arguments: str | Path, cwd: Path, code: int = 5) -> str:
    """The one line that a command ends with."""
    done: Done = command(*arguments, cwd=cwd)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, ""), done
    assert len(lines[-1:]) == 1
    assert lines[-1].startswith("embedkit: ")
    assert not [line for line in lines[:-1] if not line.startswith("note: ")], lines
    return lines[-1]


def refusal(read: Callable[[], object]) -> str:
    """The message of a file that is refused; empty if it is read."""
    try:
        read()
    except DamagedError as error:
        return str(error)
    return ""


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    """Change parsed JSON in a sealed folder, and seal it again."""
    content = json.loads(file.read_text("utf-8"))
    changed = change(content)
    file.write_text(json.dumps(content if changed is None else changed), "utf-8")
    seal(file.parent)


def put(path: str, value: Any) -> Callable[[Any], None]:
    """A change of one field."""

    def change(content: Any) -> None:
        *before, last = path.split("/")
        for key in before:
            content = content[int(key) if isinstance(content, list) else key]
        content[int(last) if isinstance(content, list) else last] = value

    return change


VALUES: tuple[Any, ...] = (
    None, -1, 2**63, 1e308, "x", [], {}, True, "../../x", [[1]], {"a": [None]}, ["x"], "a\nb\x1b",
)  # fmt: skip
"""What a field is replaced by, one after the other; some fields may have some of them."""

FIELDS = {
    "frozen": (
        "dataset", "dataset/model", "dataset/model/n_layers", "dataset/model/sha256",
        "dataset/names", "dataset/names/inputs", "dataset/vectors", "dataset/vectors/views",
        "dataset/vectors/max_length", "dataset/vectors/on_long", "dataset/vectors/stride",
        "dataset/storage", "dataset/unicode", "classes", "threshold", "views", "scores",
        "scores/cross_validation", "scores/cross_validation/accuracy", "per_class",
        "per_class/cross_validation/0/label", "split", "split/folds", "split/source", "task",
        "choices", "choices/0/scaling", "cost", "records", "features", "versions", "test_set",
    ),
    "tuned": ("models", "models/0", "tokens", "tokens/max_length", "tokens/on_long", "classes",
              "thresholds", "epochs", "precision", "head", "truncated", "calibration"),
    "probe": ("metric", "views", "views/0/score", "nested", "cka", "majority", "random_weights"),
}  # fmt: skip

USES = {
    "frozen": (["info", "frozen"], ["compare", "frozen"], ["predict", "frozen", "data"]),
    "tuned": (["info", "tuned"], ["predict", "tuned", "--text", "a bus"]),
    "probe": (["info", "probe"],),
}


@pytest.mark.parametrize(
    ("kind", "field"), [(k, f) for k, fields in FIELDS.items() for f in fields]
)
def test_a_field_of_run_json(here: Path, kind: str, field: str) -> None:
    """What is not refused by its name is a value that every command can do with."""
    file = here / kind / "run.json"
    original, refusals = file.read_bytes(), 0
    for value in VALUES:
        edit(file, put(field, value))
        if message := refusal(lambda: read_run(here / kind)):
            refusals += 1
            assert f"{kind}/run.json is damaged: " in message
        else:
            for use in USES[kind]:
                done = command(*use, cwd=here)  # raises what would be a traceback
                assert done.returncode in (0, 2, 4, 5), done
        file.write_bytes(original)
    assert refusals >= 3


CHECKPOINTS: list[tuple[str, dict[str, Any] | str, str]] = [
    ("config.json", {"num_attention_heads": -2}, "num_attention_heads in .* is -2, expected 1"),
    ("config.json", {"num_hidden_layers": -1}, "num_hidden_layers in .* is -1, expected 1"),
    ("config.json", {"num_hidden_layers": 0}, "num_hidden_layers in .* is 0, expected 1"),
    ("config.json", {"num_hidden_layers": 2**31}, "num_hidden_layers in .*, expected 1 to 1,000"),
    ("config.json", {"hidden_size": 2**40}, "hidden_size in .*, expected 1 to 65,536"),
    ("config.json", {"vocab_size": "x"}, "vocab_size in .* is 'x', not a number"),
    ("config.json", {"layer_norm_eps": "x"}, "layer_norm_eps"),
    ("config.json", {"layer_norm_eps": float("inf")}, "Infinity is no number of JSON"),
    ("config.json", '{"a":' + 100_000 * "[" + 100_000 * "]" + "}", "config.json .*nested too deep"),
    ("tokenizer_config.json", 100_000 * "[", "tokenizer_config.json .*nested too deep"),
    ("tokenizer_config.json", {"model_max_length": "x"}, "model_max_length in .* is 'x', not a"),
    ("config.json", {"model_type": ["bert"]}, r"model_type in .*config.json is \['bert'\], not a"),
    ("config.json", "[]", "config.json is damaged: expected a JSON object"),
    ("tokenizer.json", "", "tokenizer.json is damaged: it cannot be read as JSON"),
    ("tokenizer.json", "null", "tokenizer.json is damaged: expected a JSON object"),
    ("tokenizer.json", '{"model": 3}', "no tokenizer can be loaded from .*tokenizer.json"),
    ("tokenizer_config.json", {"do_lower_case": "x"}, "no tokenizer can be loaded from .*json"),
    ("tokenizer.json", 100_000 * "[", "tokenizer.json .*nested too deep"),
    ("tokenizer.json", '{"normalizer":' + 5_000 * '{"type":"Sequence","normalizers":['
     + 5_000 * "]}" + "}", "tokenizer.json .*nested too deep"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "content", "message"), CHECKPOINTS)
def test_a_file_of_a_checkpoint(
    tmp_path: Path, file: str, content: dict[str, Any] | str, message: str
) -> None:
    copy = Path(shutil.copytree(tiny_model(), tmp_path / "m"))
    if isinstance(content, dict):
        content = json.dumps(json.loads((copy / file).read_text("utf-8")) | content)
    (copy / file).write_text(content, "utf-8")
    for use in (["info", "m"], ["tokenize", "a bus", "--model", "m"]):
        assert re.search(message, refused(*use, cwd=tmp_path))


@pytest.mark.parametrize(("content", "message"), [
    (b"", "finds no vocabulary for a bert model in m/vocab.txt"),
    (b"\n", r"the tokenizer in m gives up \(WordPiece error: Missing \[UNK\]"),
    (b"\xff\xfe[\0U\0", "m/vocab.txt is damaged: it cannot be read as UTF-8"),
    (b"%PDF-1.4\n\0\1", "the tokenizer in m gives up"),
    (1_000 * b"a\n", "m/vocab.txt: the tokenizer has ids up to 999, but the model has only"),
])  # fmt: skip
def test_a_vocabulary(tmp_path: Path, content: bytes, message: str) -> None:
    copy = Path(shutil.copytree(tiny_model(), tmp_path / "m"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copy / name).unlink()
    (copy / "vocab.txt").write_bytes(content)
    assert re.search(message, refused("tokenize", "a bus", "--model", "m", cwd=tmp_path))


RECIPES: list[tuple[bytes, str]] = [
    (b"\xff", "recipe.toml cannot be read as UTF-8"),
    (b"a =", r"recipe.toml is not valid TOML: Invalid value"),
    (b"\0", r"recipe.toml is not valid TOML: .*line 1, column 1"),
    (b"a = " + 10_000 * b"[", "recipe.toml is not valid TOML: nested too deeply"),
    (b"x = " + 5_000 * b"{a = ", "recipe.toml is not valid TOML: nested too deeply"),
    (b"extract = 3", r"recipe.toml:1: \[extract\] a stage is a table"),
    (b"[extract]\ncorpus = [[1]]", r"recipe.toml:2: \[extract\] corpus: expected text"),
    (b"[extract]\ncorpus = 1979-05-27", r"recipe.toml:2: \[extract\] corpus: expected text"),
    (b'[extract]\ncorpus = "a\\u0000b"', r"recipe.toml:2: \[extract\] corpus: .* holds a NUL"),
    (b"[set]\na = {b = 1}\n[info]", r"recipe.toml:1: \[set\] \[set\] holds values, not tables"),
]


@pytest.mark.parametrize(("content", "message"), RECIPES)
def test_a_recipe(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "recipe.toml").write_bytes(content)
    assert re.search(message, refused("run", "recipe.toml", cwd=tmp_path))


BOOSTERS: list[tuple[Callable[[str], str], str]] = [
    (lambda text: "", "does not go from 'tree'"),
    (lambda text: "%PDF-1.4", "does not go from 'tree'"),
    (lambda text: text[: len(text) // 2], "does not go from 'tree' to 'end of trees'"),
    (lambda text: text.replace("num_class=1", "num_class=x"), "num_class is x"),
    (lambda text: text.replace("tree_sizes=", "tree_sizes=7 "), "trees where .* were written"),
    (lambda text: text.replace("Tree=1\n", "Tree=5\n"), "tree 1: its number is another"),
    (lambda text: re.sub("max_feature_idx=.*", "max_feature_idx=0", text), "split_feature is"),
    (lambda text: re.sub("left_child=.*", "left_child=99 99", text), "tree 0: left_child is 99 99"),
    (lambda text: re.sub("left_child=.*", "left_child=", text), "tree 0: left_child is "),
    (lambda text: re.sub("leaf_value=.*", "leaf_value=nan", text), "tree 0: leaf_value is nan"),
    (lambda text: re.sub("leaf_value=[^ ]*", "leaf_value=nan", text), "leaf_value is nan"),
    (lambda text: re.sub("num_cat=0", "num_cat=3", text), "tree 0: num_cat is not 0"),
    (lambda text: re.sub("num_leaves=.*", "num_leaves=99999999999", text), "num_leaves is 9999"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BOOSTERS)
def test_a_booster(here: Path, change: Callable[[str], str], message: str) -> None:
    """LightGBM ends the process on some of them."""
    file = here / "boosted" / "model" / "booster.txt"
    file.write_text(change(file.read_text("utf-8")), "utf-8")
    line = refused("predict", "boosted", "data", cwd=here)
    assert re.search(r"boosted/model/booster\.txt is damaged: its SHA-256", line)
    seal(here / "boosted")
    line = refused("predict", "boosted", "data", cwd=here)
    assert re.search(rf"boosted/model/booster\.txt cannot be read: .*{message}", line)


@pytest.mark.parametrize("changed", [{"chunk_size_feed_forward": 7}, {"architectures": 3}])
def test_what_a_checkpoint_may_say(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Neither decides a number."""
    copy = Path(shutil.copytree(tiny_model(), tmp_path / "m"))
    config = json.loads((copy / "config.json").read_text("utf-8"))
    (copy / "config.json").write_text(json.dumps(config | changed), "utf-8")
    assert command("info", "m", cwd=tmp_path).returncode == 0
    texts = ["the movie was good", "a bus"]
    wanted = Encoder.load(tiny_model(), device="cpu").encode(texts)
    assert np.array_equal(Encoder.load(copy, device="cpu").encode(texts), wanted)


def test_a_panic_of_the_tokenizer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Rust library that gives up raises what no ``except Exception`` catches."""

    class PanicException(BaseException):
        pass

    def panic(*_: Any, **__: Any) -> None:
        raise PanicException("retry-limit-in-match over")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", panic)
    line = refused("tokenize", "a bus", "--model", str(tiny_model()), cwd=tmp_path)
    assert " gives up (retry-limit-in-match over): its tokenizer.json or vocab.txt" in line


def column(name: str, change: Callable[[list[Any]], Any]) -> Callable[[pa.Table], pa.Table]:
    """A table with one column changed."""

    def edited(table: pa.Table) -> pa.Table:
        values = change(table[name].to_pylist())
        made = values if isinstance(values, pa.Array) else pa.array(values, table[name].type)
        return table.set_column(table.column_names.index(name), name, made)

    return edited


PREDICTIONS: list[tuple[str, Callable[[pa.Table], pa.Table], str]] = [
    ("inf", column("proba_1", lambda v: [float("inf"), *v[1:]]), "the probabilities of row"),
    ("-1", column("proba_1", lambda v: [-1.0, *v[1:]]), "the probabilities of row"),
    ("10", column("proba_1", lambda v: [10.0, *v[1:]]), "the probabilities of row"),
    ("nan", column("proba_1", lambda v: [float("nan"), *v[1:]]), "the probabilities of row"),
    ("no sum", column("proba_1", lambda v: [0.5 * x for x in v]), "the probabilities of row"),
    ("null", column("proba_1", lambda v: [None, *v[1:]]), "'proba_1' holds null"),
    ("text", column("proba_1", lambda v: pa.array(map(str, v))), "'proba_1' holds string"),
    ("missing", lambda t: t.drop_columns(["proba_1"]), "'proba_1' is missing"),
    ("swapped", lambda t: t.select([*t.column_names[:-2], *t.column_names[:-3:-1]]), "is moved"),
    ("fold null", column("fold", lambda v: [None, *v[1:]]), "'fold' holds null"),
    ("fold 2^63", column("fold", lambda v: [str(2**63), *v[1:]]), "is no fold or class"),
    ("fold word", column("fold", lambda v: ["x", *v[1:]]), "is no fold or class"),
    ("row text", column("row", lambda v: pa.array(map(str, v))), "'row' holds string"),
    ("row -1", column("row", lambda v: [-1, *v[1:]]), "row or repeat is negative"),
    ("class", column("y_true", lambda v: ["x", *v[1:]]), "'x' is no fold or class"),
    ("no class", column("y_pred", lambda v: [None, *v[1:]]), "'y_pred' holds null"),
]


@pytest.mark.parametrize(
    ("name", "change", "message"), PREDICTIONS, ids=[n for n, *_ in PREDICTIONS]
)
def test_a_column_of_predictions(
    here: Path, name: str, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    file = here / "frozen" / "predictions.parquet"
    pq.write_table(change(pq.read_table(file)), file)
    seal(file.parent)
    line = refused("compare", "frozen", cwd=here)
    assert re.search(rf"frozen/predictions\.parquet is damaged: .*{message}", line)


def test_swapped_classes(here: Path) -> None:
    """Everything in ``run.json`` agrees, but the predictions do not."""
    edit(here / "frozen" / "run.json", lambda c: c | {
        "classes": c["classes"][::-1],
        "per_class": {name: rows[::-1] for name, rows in c["per_class"].items()},
    })  # fmt: skip
    assert "predictions.parquet is damaged: the column 'proba_1' is moved" in refused(
        "compare", "frozen", cwd=here
    )


def test_a_model_of_another_run(here: Path) -> None:
    """One that predicts other classes, or reads other vectors, does not answer."""
    import skops.io
    from safetensors.numpy import save
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    random = np.random.default_rng(0)
    X, y = random.normal(size=(30, 16)), np.arange(30) % 3
    file = here / "frozen" / "model" / "pipeline.skops"
    arrays = file.with_name("linear.safetensors")
    arrays.write_bytes(save({"mean": X[0]}))
    seal(here / "frozen")
    assert "linear.safetensors cannot be read" in refused("predict", "frozen", "data", cwd=here)
    arrays.unlink()
    for made, message in (
        (LogisticRegression().fit(X, y), r"gives \(3,\) .* for the classes 0, 1"),
        (LogisticRegression().fit(X[:, :5], y % 2), "does not fit the run: X has 16 features"),
        (StandardScaler().fit(X), "holds StandardScaler, which predicts nothing"),
    ):
        skops.io.dump(made, file)
        seal(here / "frozen")
        assert re.search(message, refused("predict", "frozen", "data", cwd=here))


FOREIGN = {
    "a PDF": b"%PDF-1.4\nfoo\tbar\n", "a PNG image": b"\x89PNG\r\n\x1a\n" + 200 * b"abc",
    "a SQLite database": b"SQLite format 3\x00" + 200 * b"abc",
    "a tar archive": 257 * b"a" + b"ustar" + 2_000 * b"hello\tx\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("name", ["c.tsv", "c.csv", "c.jsonl", "c.tsv.gz"])
def test_a_file_that_is_no_text(tmp_path: Path, kind: str, name: str) -> None:
    content = FOREIGN[kind]
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    line = refused("extract", name, "--text", "x", "--model", str(tiny_model()), cwd=tmp_path,
                   code=2)  # fmt: skip
    assert line.startswith(f"embedkit: {name} is {kind}, and a text file was expected.")


def test_a_delimiter_inside_a_character(tmp_path: Path) -> None:
    r"""The second byte of ポ in Shift-JIS is 0x7C, which alone is ``|``."""
    rows = [("1", "ポ"), ("2", "ポスト"), ("3", "a")]
    text = "".join(f"{a}|{b}\n" for a, b in [("id", "text"), *rows])
    file = tmp_path / "c.csv"
    file.write_bytes(text.encode("shift_jis") + b"4|\x81\n")
    options = CorpusOptions(encoding="shift_jis", quoting="none")
    items = list(CorpusReader(plan_corpus([InputFile.of(file)], options)))
    assert [(r.id, r.text) for r in items if isinstance(r, Record)] == rows
    (reject,) = (item for item in items if isinstance(item, Reject))
    assert (reject.row, reject.line, reject.reason) == (3, 5, "invalid_encoding")


def test_the_line_of_a_reject_after_line_breaks_in_fields(tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_bytes(
        b'id,"te\nxt"\r\n1,"a\nb"\r\n2,\r\n3,"x\r\n\r\ny"\r\n4,a,b\r\n\r\n5,"a"b\r\n6,\n'
    )
    items = CorpusReader(plan_corpus([InputFile.of(file)], CorpusOptions(text="te\nxt")))
    rejects = [(item.line, item.reason) for item in items if isinstance(item, Reject)]
    assert rejects == [
        (5, "empty_text"), (9, "too_many_cells"), (11, "bad_quoting"), (12, "empty_text")
    ]  # fmt: skip


def _lines_and_rejects(
    folder: Path, ending: str, breaks: str, inside: str, *, bom: bool, compressed: bool
) -> tuple[list[bytes], list[Reject]]:
    """A corpus with line breaks in fields: its lines as ``sed -n Np`` counts them, its rejects."""
    long = f"good{inside}movie{inside}{inside}end"
    blank = f" {inside} "
    rows = [("1", long), ("2", ""), ("3", long), ("4", blank), ("5", "ok"), ("6", ""), ("7", long)]
    if ending == "jsonl":
        lines = [json.dumps({"id": a, "text": b}) for a, b in rows]
        lines.insert(3, "")
    else:
        mark = {"csv": ",", "tsv": "\t"}[ending]
        lines = [f"id{mark}text", *(f'{a}{mark}"{b}"' for a, b in rows)]
    content = breaks.join(lines).encode("utf-8-sig" if bom else "utf-8") + breaks.encode()
    file = folder / f"c.{ending}{'.gz' if compressed else ''}"
    file.write_bytes(gzip.compress(content) if compressed else content)
    items = CorpusReader(plan_corpus([InputFile.of(file)], CorpusOptions(quoting="csv")))
    return content.split(b"\n"), [item for item in items if isinstance(item, Reject)]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("breaks", ["\n", "\r\n"])
@pytest.mark.parametrize("inside", ["\n", "\r\n", "\r", "\u2028"])
@pytest.mark.parametrize(("bom", "compressed"), [(False, False), (True, False), (True, True)])
def test_the_line_of_a_reject_is_that_of_sed(
    tmp_path: Path, ending: str, breaks: str, inside: str, bom: bool, compressed: bool
) -> None:
    """The first line of a record, whatever breaks are in fields before it."""
    lines, rejects = _lines_and_rejects(
        tmp_path, ending, breaks, inside, bom=bom, compressed=compressed
    )
    starts = {"csv": b"%s,", "tsv": b"%s\t", "jsonl": b'{"id": "%s"'}[ending]
    for reject, name in zip(rejects, ("2", "4", "6"), strict=True):
        assert reject.line is not None
        assert lines[reject.line - 1].startswith(starts % name.encode())
