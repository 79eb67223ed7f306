"""What people type first, and what they are told."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from unicodedata import normalize

import click
import fsspec
import numpy as np
import pandas as pd
import pytest

import embedkit
from embedkit.choices import EXPORTS
from embedkit.cli.main import cli
from embedkit.encoding.encoder import Encoder
from embedkit.errors import DamagedError, UsageError
from embedkit.predict import predict_file
from tests.finetune_fixtures import tuned
from tests.processes import command, ends_with, succeed
from tests.run_fixtures import edit_run, train, write_frame
from tests.store_fixtures import extract_tiny, load_quickly, tiny_model, tree, write_tsv

pytestmark = pytest.mark.usefixtures("quick")

TEXTS = ["good", "bad", "the movie", "a bus", "home", "rain", "was good", "bad bus"]


@pytest.fixture(scope="module")
def folder(common: Path) -> Path:
    """Corpora, and a dataset of each that is one."""
    objects = [{"text": t, "labels": {"label": i % 2}} for i, t in enumerate(TEXTS)]
    (common / "array.json").write_text(json.dumps(objects), "utf-8")
    (common / "header.tsv").write_text("id\ttext\n", "utf-8")
    (common / "same.tsv").write_text("id\ttext\n" + "7\ta bus\n" * 40, "utf-8")
    (common / "pairs.tsv").write_text("a\tb\nx\ty\n", "utf-8")
    write_tsv(common / "corpus.tsv")
    (common / "empty.tsv").touch()
    (common / "wide.csv").write_bytes("id,y_pred\n1,wide\n".encode("utf-16-le"))
    sms = [f"m{i},{i % 2},{'win money now' if i % 2 else 'see you soon'} {i}" for i in range(40)]
    (common / "train.csv").write_text("\n".join(["msg_id,target,sms", *sms, ""]), "utf-8")
    (common / "test.csv").write_text("msg_id,sms\nm900,win money\nm901,see you\n", "utf-8")
    extract_tiny(common / "train.csv", common / "sms", text="sms", label="target")
    train(common / "sms", features="tfidf", folds=2, out=common / "spam")
    write_tsv(common / "rare.tsv", [(str(i), text, f"l{i}") for i, text in enumerate(TEXTS)])
    for name, label in (("rare", "label"), ("array", None)):
        corpus = common / f"{name}.{'tsv' if label else 'json'}"
        extract_tiny(corpus, common / name, label=label)
    return common


TOLD = [
    ("extract array.json --label labels.label --dry-run", 0, "would write"),
    ("similarity array.json --text text --text-pair text --score zzz", 2, "--score zzz"),
    ("extract header.tsv", 2, "header.tsv has no records"),
    ("extract same.tsv --out same", 0, "39 records with an earlier id"),
    ("train rare --out m --folds 2 --task multilabel", 0, 'by --label-separator "|"'),
    ("extract corpus.tsv --keep label", 2, "itself. Leave it out"),
    ("search rare good --where \"lable = '1'\"", 2, "--where \"lable = '1'\""),
    ("extract corpsu.tsv", 2, "'corpus.tsv'?"),
    ("extract corpus.tsv --keep a --keep b", 2, "--keep is given twice"),
    ("predict spam --text x --head a:B", 2, "spam has no head"),
    ("predict spam test.csv --out s.csv --submission msg_id,1", 2, "is 1=1; call the labels"),
    ("search rare --duplicates 0.9 -k 3", 2, "-k 3 is for queries"),
    ("search rare good --like 3", 2, "QUERY"),
    ("search rare good --index hnsw", 2, "hnsw"),
    ("search rare good --out pairs.csv", 2, "--duplicates"),
    ("search rare --duplicates 0.9 --index hnsw", 2, "--index hnsw"),
    ("search rare --duplicates 1.5", 2, "--duplicates 1.5: expected"),
    ('search rare --duplicates 0.9 --where "row < 0"', 2, "no record of"),
    ("words", 2, "DATASET WORD"),
    ("words bus", 2, "DATASET WORD"),
    ("words bus --text 'the home'", 2, "'bus'"),
    ("words bus --text 'a bus' --layer 9", 2, "--layer 9: the model has layers 0"),
    ("extract --words rare.tsv", 2, "before --words"),
    ("train train.csv", 2, "with --text-pair (of embedkit extract)"),
    ("probe sms --text sms", 2, "--text sms is for a corpus"),
    ("train rare --out / --folds 2", 8, "/ exists"),
    ("predict spam --text x --id id", 2, "--id is for"),
    ("export sms", 2, "sms is a dataset. Name the format: --to csv"),
    ("explore sms --out train.csv/x.html", 6, "train.csv is a file. Name another place"),
    ("train rare --out s3://b/run --folds 2", 6, "cannot write s3://b/run: only extract"),
    ("export spam --view mean_2", 2, "--view mean_2: it is for a dataset"),
    ("verify spam --recompute 2", 2, "spam is no dataset"),
    ("train corpus.tsv --split part", 2, "--split part: corpus.tsv has no"),
    ("search sms x --index hnsw --metric dot", 2, "in Python with metric='dot'"),
    ("predict spam --text ' '", 2, "the text is empty."),
    ("export sms --format npy", 2, "No such option '--format'. See embedkit export"),
    ("train sms --out", 2, "Option '--out' requires an argument. See embedkit train"),
]


@pytest.mark.parametrize(("typed", "code", "told"), TOLD)
def test_what_is_told(
    folder: Path, typed: str, code: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that ends with a remedy or a question; nothing is changed by a mistake."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = shlex.split(typed)
    if words[0] in ("extract", "similarity", "words") and "--model" not in words and words[1:]:
        words += ["--model", str(tiny_model())]
    before = tree(folder)
    done = ends_with(code, *words, cwd=folder)
    assert told in " ".join((done.stdout + done.stderr).split())
    if code:
        assert done.stdout == ""
        assert done.stderr.splitlines()[-1].startswith("embedkit: ")
        assert done.stderr.endswith((".\n", "?\n"))
        assert tree(folder) == before


# the arguments of a command that could be done
RIGHT = dict.fromkeys(("info", "verify", "train", "probe", "export", "index"), "sms")
RIGHT |= dict.fromkeys(("extract", "split", "finetune"), "corpus.tsv")
RIGHT |= {"predict": "spam train.csv", "compare": "spam", "search": "sms good", "words": "sms good"}


@pytest.mark.parametrize("name", RIGHT)
def test_a_command_is_told_of_its_own_options(folder: Path, name: str) -> None:
    """Each option has a wrong value once; an option of another command is said to be its."""
    params = [p for p in cli.commands[name].params if isinstance(p, click.Option)]
    own = {option for p in params for option in (*p.opts, *p.secondary_opts)} | {"--help"}
    # a prefix may be any text
    wrong = [p.opts[-1] for p in params if not p.is_flag and p.name not in ("prefix", "out")]
    lines = [f"{RIGHT[name]} {option} zzz" for option in wrong]
    lines += [f"{first}{file}" for first in ("", "spam ") for file in ("wide.csv", "no.tsv")]
    for line in lines:
        model = ["--model", str(tiny_model())] if "--model" in own and "--model" not in line else []
        said = command(name, *line.split(), *model, cwd=folder).stderr
        named = re.findall(r"(?<![\w-])(--[a-z][a-z-]*)(?: \S+)?(?: \(of embedkit (\w+)\))?", said)
        for option, owner in named:
            theirs = {o for p in cli.commands[owner].params for o in p.opts} if owner else own
            # what stands behind this is of extract
            assert option in theirs or option in said.partition("tract it again")[2], (line, said)
        python = set(re.findall(r"(?<![\w.-])([a-z_]+)=", said))  # as in text='x'
        assert python.isdisjoint(str(p.name) for p in params), (line, said)


def test_predict_reads_the_columns_of_the_run(folder: Path, tmp_path: Path) -> None:
    # a column that is usually one of ids gives way to the one that was named
    pd.read_csv(folder / "test.csv").assign(index=[7, 8]).to_csv(tmp_path / "indexed.csv")
    for file in (folder / "test.csv", tmp_path / "indexed.csv"):
        predict_file(folder / "spam", file, out=tmp_path / "s.csv", submission="msg_id,target")
        assert (tmp_path / "s.csv").read_text("utf-8") == "msg_id,target\nm900,1\nm901,0\n"
        (tmp_path / "s.csv").unlink()
    # row numbers are no ids
    given: Any = {"out": tmp_path / "no.csv", "submission": "id,target"}
    with pytest.raises(UsageError, match=r"submission=: .*test\.csv has no column of ids"):
        predict_file(folder / "spam", folder / "test.csv", **given)
    assert not (tmp_path / "no.csv").exists()


DIALECTS: list[dict[str, Any]] = [
    {"header": False},
    {"delimiter": "~"},
    {"encoding": "cp949"},
    {"encoding": "utf-16"},
    {"sheet": "second"},
    {"sheet": "second", "header": False},
]


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_predict_reads_the_dialect_of_the_run(tmp_path: Path, dialect: dict[str, Any]) -> None:
    """A further file of the kind of the corpus; files of other kinds have their own."""
    header, mark = dialect.get("header", True), dialect.get("delimiter", "\t")
    names = ["n", "y", "t"] if header else ["0", "1", "2"]
    texts = [f"{text}, 좋아요" for text in TEXTS]
    rows = pd.DataFrame({names[0]: range(16), names[1]: [0, 1] * 8, names[2]: texts * 2})
    first = tmp_path / ("c.xlsx" if "sheet" in dialect else "c.tsv")
    if "sheet" in dialect:
        with pd.ExcelWriter(first) as book:
            rows[:2].to_excel(book, sheet_name="first", index=False, header=header)
            rows.to_excel(book, sheet_name="second", index=False, header=header)
    else:
        encoding = dialect.get("encoding", "utf-8")
        rows.to_csv(first, sep=mark, index=False, header=header, encoding=encoding)
    columns: Any = dict(zip(("id", "label", "text"), names, strict=True))
    train(first, out=tmp_path / "run", features="tfidf", folds=2, **columns, **dialect)
    rows.to_json(tmp_path / "c.jsonl", orient="records", lines=True)
    rows.to_csv(tmp_path / "c.csv", index=False, header=header)
    answers = set()
    headed = tmp_path / "headed.tsv"
    rows.set_axis(["id", "label", "text"], axis=1).to_csv(headed, sep="\t", index=False)
    if not header:  # a label, or a number, that texts are usually called is no header
        rows = rows.sort_values(names[1], ascending=False)
        rows.assign(**{names[1]: ["text", *rows[names[1]][1:]]}).to_csv(
            tmp_path / "labels.tsv", sep="\t", index=False, header=False
        )
        done = predict_file(tmp_path / "run", tmp_path / "labels.tsv", out=tmp_path / "labels.csv")
        assert done == (16, "text", {})
    for file in (first, headed, tmp_path / "c.jsonl", tmp_path / "c.csv"):
        answer = tmp_path / f"answers-{file.name}.csv"
        assert predict_file(tmp_path / "run", file, out=answer) == (16, "text", {})
        answers.add(answer.read_bytes())
    assert len(answers) == 1


@pytest.mark.parametrize("dialect", ["tsv", {"format": "tsv", "own": 1}], ids=str)
def test_a_dialect_of_a_file_is_data(tmp_path: Path, dialect: Any) -> None:
    """The folder of a run may come from anybody."""
    rows = pd.DataFrame({"text": TEXTS * 2, "label": [0, 1] * 8})
    run = train(
        write_frame(rows, tmp_path / "c.tsv"), out=tmp_path / "run", features="tfidf", folds=2
    )
    content = json.loads((run.out / "run.json").read_text("utf-8"))["dataset"]
    edit_run(run.out, dataset=content | {"reading": content["reading"] | {"dialect": dialect}})
    with pytest.raises(DamagedError, match=r"run\.json is damaged.*: dataset contradicts"):
        predict_file(run.out, tmp_path / "c.tsv", out=tmp_path / "a.tsv")


@pytest.mark.parametrize("encoding", ["utf-8", "cp949"])
def test_the_encoding_of_another_file_is_seen_wherever_it_shows(
    tmp_path: Path, encoding: str
) -> None:
    rows = pd.DataFrame({"text": [f"{text} 좋아요" for text in TEXTS * 2], "label": [0, 1] * 8})
    rows.to_csv(tmp_path / "c.csv", index=False, encoding="cp949")
    about: Any = {"features": "tfidf", "folds": 2, "encoding": "cp949"}
    train(tmp_path / "c.csv", out=tmp_path / "run", **about)
    late = pd.DataFrame({"text": ["an ordinary text of a review"] * 3000 + ["좋아요"]})
    late.to_csv(tmp_path / "late.csv", index=False, encoding=encoding)
    answers = tmp_path / "answers.csv"
    done = predict_file(tmp_path / "run", tmp_path / "late.csv", out=answers)
    assert done == (3001, "text", {})


@pytest.mark.parametrize("name", ["new.tsv", "new.txt"])
def test_commas_of_texts_make_no_table_of_another_file(tmp_path: Path, name: str) -> None:
    """Its columns are those of a table with commas too; ids may have another name there."""
    rows = pd.DataFrame({"id": range(16), "label": [0, 1] * 8, "text": [*TEXTS, *TEXTS]})
    rows.to_csv(tmp_path / "c.csv", index=False)
    rows = rows[["text"]].assign(text=rows["text"] + ", well, well", ID=range(900, 916))
    rows = rows[["text"]] if name == "new.txt" else rows
    rows.to_csv(tmp_path / name, sep="\t", index=False)
    about: Any = {"features": "tfidf", "folds": 2, "test": tmp_path / name}
    run = train(tmp_path / "c.csv", out=tmp_path / "run", **about)
    predictions = pd.read_parquet(run.out / "predictions.parquet")
    ids = predictions["id"][predictions["fold"] == "test"].tolist()
    answer = tmp_path / "answers.tsv"
    assert predict_file(run.out, tmp_path / name, out=answer) == (16, "text", {})
    assert [*map(str, ids)] == pd.read_csv(answer, sep="\t", dtype=str)["id"].tolist()
    assert [*map(int, ids)] == [*(range(900, 916) if "tsv" in name else range(16))]


def test_words_are_counted_where_no_spaces_stand_between_them(tmp_path: Path) -> None:
    """No clause of these Japanese texts is in two of them; half a character is in no text."""
    good, bad = "朝食が美味しかった", "部屋が狭くて残念だった"
    texts = [f"{chr(0x4E00 + i)}の{good if i % 2 else bad}{chr(0x5E00 + i)}" for i in range(20)]
    frame = pd.DataFrame({"text": texts, "label": [0, 1] * 10})
    run = train(frame, out=tmp_path / "run", features="tfidf", folds=2)
    predictor = embedkit.Predictor(run.out)
    assert [predictor.predict(text).label for text in (good, bad)] == ["1", "0"]
    with pytest.raises(UsageError, match="half of a character"):
        predictor.predict(f"{good}\udcc1")


def test_names_of_columns_are_composed_and_without_outer_spaces(tmp_path: Path) -> None:
    """As they are typed, also where stored columns are looked up later."""
    rows = pd.DataFrame({"text": TEXTS * 2, "label": [0, 1] * 8, "별점": range(16)})
    decomposed = rows.rename(columns={"별점": f" {normalize('NFD', '별점')}"})
    decomposed.to_csv(tmp_path / "c.csv", index=False)
    data = extract_tiny(tmp_path / "c.csv", tmp_path / "data", keep=["별점"]).out
    run = train(data, out=tmp_path / "run", columns=["별점"], folds=2)
    for file in (tmp_path / "c.csv", write_frame(rows, tmp_path / "composed.csv")):
        assert predict_file(run.out, file, out=file.with_suffix(".out.tsv")) == (16, "text", {})


def test_train_draws_the_sample_that_extract_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the vectors of a frame go
    rows = pd.DataFrame({"label": [0, 1] * 40, "text": [f"text {i}" for i in range(80)]})
    made = extract_tiny(rows, tmp_path / "data", sample=20, seed=3).out
    run = train(rows, out=tmp_path / "run", features="tfidf", folds=2, sample=20, seed=3)
    predicted = pd.read_parquet(run.out / "predictions.parquet")["row"]
    assert predicted.tolist() == embedkit.load(made).row.tolist()
    about: Any = {"model": str(tiny_model()), "layers": [1], "folds": 2, "sample": 20, "seed": 3}
    probed = embedkit.probe(rows, out=tmp_path / "probe", **about)
    splits = {(out / "split.parquet").read_bytes() for out in (run.out, probed.out)}
    assert len(splits) == 1


def test_a_frame_is_no_list_of_texts(folder: Path) -> None:
    predictor = embedkit.Predictor(folder / "spam")
    for read in (load_quickly(str(tiny_model())).encode, predictor.predict):
        with pytest.raises(TypeError, match="'text'"):
            read(pd.DataFrame({"text": TEXTS}))
    for describe, name in ((embedkit.verify, "path"), (embedkit.info, "what")):
        with pytest.raises(UsageError, match=f"{name}='DataFrame': expected a text or a path"):
            describe(pd.DataFrame({"text": TEXTS}))


def test_labels_are_numbers_where_all_are(tmp_path: Path) -> None:
    kinds = {"i": (["0", "12"], [0, 12]), "f": (["1.5", "2"], [1.5, 2]), "U": (["007", "1"], None)}
    for kind, (labels, values) in kinds.items():
        rows = [{"text": text, "label": label} for text, label in zip("ab", labels, strict=True)]
        data = embedkit.load(extract_tiny(rows, tmp_path / kind).out)
        assert data.y.dtype.kind == kind
        assert data.y.tolist() == (values or labels)
        assert data.labels.tolist() == labels


@pytest.fixture(scope="module")
def partly(folder: Path) -> Path:
    """Every fourth record has no label, and is marked ``test``."""
    number = pd.Series(range(40))
    frame = pd.DataFrame({"id": number, "text": [f"{TEXTS[i % 8]} {i}" for i in number]})
    frame["label"] = (number % 2).astype("Int64").mask(number % 4 == 3)
    frame["part"] = np.where(number % 4 == 3, "test", "train")
    frame.to_csv(folder / "partly.csv", index=False)
    return extract_tiny(folder / "partly.csv", folder / "partly", keep=["part"]).out


def test_records_without_a_label_are_left_out(
    partly: Path, tmp_path: Path, notes: list[str]
) -> None:
    rows = np.arange(40)
    known, unknown = rows[rows % 4 != 3].tolist(), rows[rows % 4 == 3].tolist()
    made = embedkit.split(partly, out=tmp_path / "s.parquet", folds=3)
    assert made.in_folds.tolist() == known
    same = embedkit.split(partly.with_suffix(".csv"), folds=3, label="label")
    assert same.fingerprint == made.fingerprint
    train(partly, out=tmp_path / "a", split=tmp_path / "s.parquet")
    assert "10 of 40 labels are missing" in " ".join(notes)
    train(partly, out=tmp_path / "b", split="part", folds=3)
    tuned(partly.with_suffix(".csv"), tmp_path / "c", split=tmp_path / "s.parquet", epochs=1)
    tuned(partly.with_suffix(".csv"), tmp_path / "d", split="part", folds=3, epochs=1)
    for name in "abcd":
        found = pd.read_parquet(tmp_path / name / "predictions.parquet")
        tested = found["fold"] == "test"
        assert sorted(found["row"][~tested]) == known
        assert found["row"][tested].tolist() == (unknown if name in "bd" else [])
        assert found["y_true"][tested].isna().all()
    again = extract_tiny(partly.with_suffix(".csv"), tmp_path / "again", model=str(tmp_path / "c"))
    assert len(embedkit.load(again.out)) == 40


def test_what_may_be_left_out(
    partly: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a run, the download of a file, and the method that loads an encoder."""
    succeed("train", partly, "--folds", "3", cwd=tmp_path)
    monkeypatch.setattr("embedkit.remote.PROTOCOLS", ("memory",))
    with fsspec.open("memory://bucket/new.tsv", "w") as target:
        target.write('text\na bus\n"home"\n')
    done = succeed("predict", "runs/partly-logreg", "memory://bucket/new.tsv", cwd=tmp_path)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["row", "0", "1"]
    done = command("split", partly.with_suffix(".csv"), "--out", "s.parquet", cwd=tmp_path)
    assert "note: id column: id\n" in done.stderr  # there is no option --id
    encoder = Encoder(str(tiny_model()), device="cpu")
    assert np.array_equal(encoder.encode(TEXTS), Encoder(tiny_model()).encode(TEXTS))
    with pytest.raises(UsageError, match="nothere"):
        Encoder("models/nothere", offline=True)


@pytest.mark.parametrize("to", EXPORTS)
def test_vectors_for_other_tools(partly: Path, tmp_path: Path, to: str) -> None:
    import faiss

    data, out = embedkit.load(partly), tmp_path / f"partly.{to}"
    assert "40 rows × 16" in succeed("export", partly, "--to", to, cwd=tmp_path).stdout
    if to == "npy":
        found = np.load(out)
    elif to == "csv":
        table = pd.read_csv(out)
        assert table["text"].tolist() == data.text
        found = table[[f"v{i}" for i in range(16)]].to_numpy(np.float32)
    else:
        index = faiss.read_index(str(out))
        found = np.stack([index.reconstruct(row) for row in data.row.tolist()])
        folder = extract_tiny(data.text[:3], tmp_path / "words", words="mean").out
        words = embedkit.load(folder, level="word")
        index = faiss.read_index(str(words.export(tmp_path / "words.faiss", to=to)))
        assert np.allclose(index.reconstruct_n(0, len(words)), words.X, rtol=1e-5)
    assert np.allclose(found, data.X, rtol=1e-5)
    assert embedkit.export(partly, out=out, to=to, overwrite=True) == out
    with pytest.raises(UsageError, match="to='xlsx'"):
        data.export(tmp_path / "other", to="xlsx")
