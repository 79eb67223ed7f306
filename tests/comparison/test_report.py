"""The report: it stands alone, shows the numbers, and corpus text stays text."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import embedkit
from embedkit import compare, probe, split
from embedkit.comparison.cases import find_lengths
from embedkit.comparison.report import _command, write_report
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import MismatchError, UsageError
from embedkit.pages import shown
from embedkit.runs.metrics import interval_text, metric_name, metric_text
from embedkit.runs.run import FinetuneRun
from tests.finetune_fixtures import tuned, write_lines
from tests.page_checks import json_block, page_of
from tests.run_fixtures import edit_run, random_runs, run_of, train
from tests.store_fixtures import extract_tiny

EVIL = "<script>document.title = 'owned'</script> <img src=x onerror=\"document.title='owned'\">"
N = 60


def corpus_of(path: Path, n: int = N) -> Path:
    lines = ["id\tdocument\tlabel"]
    random = np.random.default_rng(0)
    for i in range(n):
        words = " ".join(random.choice(["good", "bad", "movie", "rain", "bus"], 4))
        text = f"{EVIL} {i}" if i % 3 == 0 else f"{words} & {i} \u202e \x1b[31m 👨\u200d👩"
        lines.append(f"r{i}\t{text}\t{i % 2}")
    return write_lines(path, *lines)


def two_runs(folder: Path, n: int, **how: Any) -> dict[str, Any]:
    """Runs of a dataset of n records; the option for others on the same split."""
    extract_tiny(corpus_of(folder / "corpus.tsv", n), folder / "data", layers="all")
    split(folder / "data", out=folder / "s.parquet", folds=3, test=0.2)
    options: dict[str, Any] = {"split": folder / "s.parquet"}
    train(folder / "data", out=folder / "runs/tfidf", features="tfidf", **options, **how)
    train(folder / "data", out=folder / "runs/logreg", **options, **how)
    return options


@pytest.fixture(scope="module")
def shared(common: Path) -> Path:
    """A dataset, four runs, a probe and their report, made once."""
    options = two_runs(common, N)
    train(common / "data", out=common / "runs/knn", estimator="knn", view="mean_0", **options)
    probe(common / "data", out=common / "runs/probe", **options)
    tuned(common / "corpus.tsv", common / "runs/tuned", validation=0.2, folds=3, **options)
    write_report(compare(runs_of(common)), common / "report.html")
    return common


def runs_of(folder: Path) -> list[Path]:
    return [folder / "runs" / name for name in ("tfidf", "logreg", "knn", "tuned", "probe")]


class Seen(HTMLParser):
    """Elements, their attributes, and the text of cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_else(shared: Path) -> None:
    seen = Seen((shared / "report.html").read_text("utf-8"))
    for tag, attributes in seen.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action"):
                assert str(value).startswith(("#", "data:image/png")), (tag, name, value)
            assert "url(http" not in str(value)
    kinds = [a.get("type") for tag, a in seen.tags if tag == "script"]
    assert kinds == ["application/octet-stream", None]
    assert not [tag for tag, a in seen.tags if tag == "img"]


def test_numbers_of_the_comparison_are_shown(shared: Path) -> None:
    html = (shared / "report.html").read_text("utf-8")
    text = " ".join(Seen(html).text.split())
    for row in compare(runs_of(shared)).rows:
        for scores in (row.scores, row.test):
            for name, score in scores.items():
                if name == "calibration_error":  # the curve says more
                    assert "calibration error" not in text
                    continue
                shown = metric_text(score.value, name, unit=True) + interval_text(score, name)
                assert shown in text
                assert metric_name(name) in text
    manifest = embedkit.load(shared / "data").manifest
    assert f"{N} = {N} embedded + 0 rejected" in text
    assert f"{manifest.totals.ledger['records_truncated']} texts cut at 24" in text
    for anchor in ("forest", "cost", "layers-1", "calibration", "matrix", "classes", "cases"):
        assert f'id="{anchor}"' in html
    assert 'id="picture-training-1"' in html


def test_no_page_names_a_folder_of_this_machine(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands, datasets and models of runs were given by absolute paths."""
    monkeypatch.chdir(tmp_path)
    runs = [shutil.copytree(p, tmp_path / "runs" / p.name) for p in runs_of(shared)]
    typed = f"embedkit train {shared}/data --split={shared}/s.parquet --out"
    for run in runs:
        edit_run(run, command=f"{typed} {run}")
    html = page_of(compare(runs), tmp_path / "r.html", texts=shared / "data")
    assert "embedkit train" in html
    for text in (html, json.dumps(json_block(tmp_path / "r.html", "data"))):
        assert str(shared.parent) not in text
        assert str(tmp_path) not in text
        assert not re.search(r"[\s\"'=>]/(?:tmp|home|root|work|usr|var)/", text)


def test_the_records_are_all_there(shared: Path) -> None:
    """What the page reads is what the predictions say, with texts and lists."""
    compared = compare(runs_of(shared))
    data = json_block(shared / "report.html", "data")
    records = compared.records
    index = records.out_of_fold
    assert data["rows"] == records.row[index].tolist()
    assert data["y"] == records.y[index].tolist()
    # a run that reads less than the dataset does, or all of a text
    for on_long, limit in (("truncate", 9), ("window", 1_000)):
        tokens = TokenizerSettings(9, on_long)
        tuned_run = replace(run_of(shared / "runs/tuned", FinetuneRun), tokens=tokens)
        _, cut = find_lengths(records.row[index], compared.datasets, tuned_run)
        assert np.array_equal(np.array(cut), np.array(data["lengths"]) > limit)
    assert data["texts"] == [embedkit.load(shared / "data").text[row] for row in data["rows"]]
    for number, name in enumerate(data["methods"]):
        p = compared.predictions[name].take(index)
        assert data["predicted"][number] == p.y_pred.tolist()
        sure = p.proba[np.arange(len(index)), p.y_pred]
        assert data["confidence"][number] == np.round(sure * 1_000, 3).tolist()
    pairs = zip(data["predicted"][0], data["y"], strict=True)
    assert sorted(data["lists"]["wrong"]) == [i for i, (a, b) in enumerate(pairs) if a != b]


def test_neighbours_are_those_of_scikit_learn(shared: Path) -> None:
    from sklearn.neighbors import NearestNeighbors

    data = json_block(shared / "report.html", "data")
    X = embedkit.load(shared / "data", data["near"]["view"].split("+")).X[data["rows"]]
    distances, _ = NearestNeighbors(n_neighbors=4, metric="cosine").fit(X).kneighbors(X)
    assert data["near"]["of"]
    for i, found in data["near"]["of"].items():
        assert int(i) not in [j for j, _ in found]
        expected = sorted(1 - distances[int(i)])[::-1][1:]
        assert [cosine / 1_000 for _, cosine in found] == pytest.approx(expected, abs=2e-3)


# subsets of a font with East Asian signs take a second a figure
@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_figures_are_files_too(shared: Path, tmp_path: Path, kind: str) -> None:
    compared = compare(runs_of(shared))
    assert write_report(compared, tmp_path / "r.html") is None
    folder = write_report(compared, tmp_path / "r.html", figures=kind, overwrite=True)
    assert folder == tmp_path / "r.figures"
    names = {"forest", "cost", "layers-1", "geometry-1", "sure", "calibration", "training-1"}
    assert {p.name for p in folder.iterdir()} == {f"{name}.{kind}" for name in names}
    for file in folder.iterdir():
        content = file.read_bytes()
        if kind == "svg":
            title = ElementTree.fromstring(content).find("{http://www.w3.org/2000/svg}title")
            assert title is not None
        else:
            assert content.startswith({"pdf": b"%PDF", "png": b"\x89PNG"}[kind])
    with pytest.raises(UsageError, match="figures"):
        write_report(compared, tmp_path / "r.html", figures="eps", overwrite=True)


def test_files_that_need_another_package(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = compare(runs_of(shared))
    monkeypatch.setattr("embedkit.drawing.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="figures='pdf': it needs vl-convert-python"):
        write_report(compared, tmp_path / "r.html", figures="pdf")
    assert write_report(compared, tmp_path / "r.html", figures="svg") is not None


def test_the_same_comparison_is_the_same_page(shared: Path, tmp_path: Path) -> None:
    write_report(compare(runs_of(shared)), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == (shared / "report.html").read_bytes()


def test_signs_that_would_act_are_written_out() -> None:
    assert shown("a\u202eb\x1b[1m\x00\ud800") == "a\\u202eb\\x1b[1m\\x00\\ud800"
    assert shown("👨\u200d👩\nنص\u200c") == "👨\u200d👩\nنص\u200c"


def test_a_command_is_shown_without_folders_and_can_be_typed() -> None:
    for typed in ("embedkit train x --label-separator ' / '", "embedkit train --label=a 'a b'"):
        assert _command(typed) == typed
    assert shlex.split(_command(f"embedkit train {Path.cwd()}/k=v/x"))[2] == "k=v/x"
    assert shlex.split(_command(f"embedkit train '{Path.cwd()}/a b/x'"))[2] == "a b/x"


# where texts are from


def test_texts_are_left_out_when_the_dataset_is_not_the_one(shared: Path, tmp_path: Path) -> None:
    runs = [shutil.copytree(p, tmp_path / "runs" / p.name) for p in runs_of(shared)[:2]]
    assert "The texts are left out" in page_of(compare(runs), tmp_path / "r.html")
    assert set(json_block(tmp_path / "r.html", "data")["texts"]) == {None}
    for given in (shared / "data", shared / "corpus.tsv"):
        write_report(compare(runs), tmp_path / "r.html", texts=given, overwrite=True)
        assert "owned" in str(json_block(tmp_path / "r.html", "data")["texts"])
    # moved together they find each other again
    shutil.copytree(shared / "data", tmp_path / "data")
    write_report(compare(runs), tmp_path / "r.html", overwrite=True)
    assert "owned" in str(json_block(tmp_path / "r.html", "data")["texts"])


def test_other_texts_are_refused(shared: Path, tmp_path: Path) -> None:
    compared = compare(runs_of(shared))
    other = tmp_path / "corpus.tsv"
    other.write_text((shared / "corpus.tsv").read_text("utf-8") + "x\tmore\t1\n", "utf-8")
    with pytest.raises(MismatchError, match="texts="):
        write_report(compared, tmp_path / "r.html", texts=other)
    with pytest.raises(UsageError, match="texts="):
        write_report(compared, tmp_path / "r.html", texts=tmp_path / "none")
    with pytest.raises(UsageError, match="report="):
        write_report(compared, tmp_path / "report.pdf")
    assert not (tmp_path / "r.html").exists()


def test_labels_and_names_are_text_too(tmp_path: Path) -> None:
    labels = ("<b>$x$</b>", "_y&amp;")
    paths, *_ = random_runs(tmp_path, ["_<i>run$1$", "other"], n=40, labels=labels)
    seen = Seen(page_of(compare(paths), tmp_path / "r.html"))
    assert not [tag for tag, _ in seen.tags if tag in ("b", "i")]
    assert "_<i>run$1$" in seen.text
    assert "<b>$x$</b>" in seen.text


@pytest.mark.parametrize("kind", ["pdf", "svg"])
def test_signs_that_no_picture_can_hold(tmp_path: Path, kind: str) -> None:
    """Control letters in labels, and letters that no font has: neither error nor warning."""
    paths, *_ = random_runs(tmp_path, ["one", "결과"], n=40, labels=("a\x07b", "긍정\U000e0041"))
    folder: Any = write_report(compare(paths), tmp_path / "r.html", figures=kind, overwrite=True)
    assert list(folder.glob(f"*.{kind}"))
    for file in folder.glob("*.svg"):
        ElementTree.fromstring(file.read_bytes())


def test_texts_are_read_as_the_runs_read_them(tmp_path: Path) -> None:
    """A corpus whose columns nobody could guess; long texts are cut on the page."""
    long = "x" * 5_000
    lines = [f"{i}~first {i}~second {i} {long}~{i % 2}" for i in range(40)]
    corpus = write_lines(tmp_path / "c.dat", "a~b~c~d", *lines)
    source = [embedkit.storage.file_sha256(corpus)]
    paths, _, _ = random_runs(tmp_path / "runs", ["p", "q"], n=40)
    dialect = {"format": "csv", "encoding": "utf-8", "quoting": "csv", "delimiter": "~"}
    reading = {"text": "b", "text_pair": "c", "dialect": {**dialect, "header": True}}
    about = {"path": "../../c.dat", "source": source, "reading": reading}
    for path in paths:
        content = json.loads((path / "run.json").read_text("utf-8"))
        split = {**content["split"], "source": source}
        edit_run(path, split=split, dataset={**content["dataset"], **about})
    text = Seen(page_of(compare(paths), tmp_path / "r.html")).text
    assert "Texts from column 'b', 'c' of c.dat" in text
    for found in json_block(tmp_path / "r.html", "data")["texts"]:
        assert re.fullmatch(r"first (\d+)\nsecond \1 x{1900,} … \(\+3,\d\d\d\)", found)
