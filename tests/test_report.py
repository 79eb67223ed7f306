"""The report: it stands alone, shows the numbers, and corpus text stays text."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import embedkit
from embedkit.choices import REPORT_LANGUAGES
from embedkit.classifiers.probe import probe
from embedkit.comparison.compare import compare
from embedkit.comparison.effects import scale_of
from embedkit.comparison.phrases import Phrases
from embedkit.comparison.report import write_report
from embedkit.errors import MismatchError, OutputExistsError, UsageError
from embedkit.pages import shown
from embedkit.runs.splits import split
from tests.finetune_fixtures import tuned
from tests.run_fixtures import edit_run, many_runs, random_runs, train, write_fake_run
from tests.store_fixtures import loading_quickly, tiny_model

EVIL = "<script>document.title = 'owned'</script> <img src=x onerror=\"document.title='owned'\">"
N = 60


def corpus_of(path: Path, n: int = N) -> Path:
    lines = ["id\tdocument\tlabel"]
    random = np.random.default_rng(0)
    for i in range(n):
        words = " ".join(random.choice(["good", "bad", "movie", "rain", "bus"], 4))
        text = f"{EVIL} {i}" if i % 3 == 0 else f"{words} & {i} \u202e \x1b[31m 👨\u200d👩"
        lines.append(f"r{i}\t{text}\t{i % 2}")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, four runs, a probe and their report, made once."""
    folder = tmp_path_factory.mktemp("report")
    with loading_quickly():
        embedkit.extract(corpus_of(folder / "corpus.tsv"), out=folder / "data", layers="all",
                         model=str(tiny_model()))  # fmt: skip
    split(folder / "data", out=folder / "s.parquet", folds=3, test=0.2)
    options: dict[str, Any] = {"split": folder / "s.parquet"}
    train(folder / "data", out=folder / "runs/tfidf", features="tfidf", **options)
    train(folder / "data", out=folder / "runs/logreg", **options)
    train(folder / "data", out=folder / "runs/svm", estimator="svm", view="mean_0", **options)
    probe(folder / "data", out=folder / "runs/probe", threads=1, **options)
    tuned(folder / "corpus.tsv", folder / "runs/tuned", validation=0.2, folds=None, **options)
    write_report(compare(runs_of(folder)), folder / "report.html")
    return folder


def runs_of(folder: Path) -> list[Path]:
    return [folder / "runs" / name for name in ("tfidf", "logreg", "svm", "tuned", "probe")]


def payload(page: Path) -> dict[str, Any]:
    """The records as the page's script reads them."""
    found = re.search(r'id="data">([^<]+)<', page.read_text("utf-8"))
    assert found
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found.group(1))))
    return data


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
    assert kinds == ["application/json", "application/octet-stream", None]
    assert not [tag for tag, a in seen.tags if tag == "img"]


def test_ids_stand_there_once(shared: Path) -> None:
    seen = Seen((shared / "report.html").read_text("utf-8"))
    ids = [a["id"] for _, a in seen.tags if "id" in a]
    assert len(ids) == len(set(ids)) > 50
    for tag, attributes in seen.tags:
        for name in ("aria-labelledby", "for"):
            assert set((attributes.get(name) or "").split()) <= set(ids), tag


def test_numbers_of_the_comparison_are_shown(shared: Path) -> None:
    compared = compare(runs_of(shared))
    text = " ".join(Seen((shared / "report.html").read_text("utf-8")).text.split())
    words = Phrases("en", compared, scale_of(compared))
    for row in compared.table.rows:
        for scores in (row.scores, row.test):
            for name, score in scores.items():
                if (row.name, name) == ("majority", "calibration_error"):
                    assert math.isnan(score.value)  # it would say nothing
                    continue
                shown_score = words.score(score.value, name)
                assert f"{shown_score}{words.interval(score.low, score.high, name)}" in text
    manifest = embedkit.load(shared / "data").manifest
    assert f"{N} = {N} embedded + 0 rejected" in text
    assert f"{manifest.totals.ledger['records_truncated']} texts were cut at 24" in text
    html = (shared / "report.html").read_text("utf-8")
    for anchor in ("forest", "cost", "layers-1", "length", "calibration", "classes", "cases",
                   "numbers", "made", "picture-training-1"):  # fmt: skip
        assert f'id="{anchor}"' in html


def test_the_records_are_all_there(shared: Path) -> None:
    """What the page reads is what the predictions say, with texts and lists."""
    compared = compare(runs_of(shared))
    data = payload(shared / "report.html")
    records = compared.runs.records
    index = records.first_repeat
    assert data["rows"] == records.row[index].tolist()
    assert data["y"] == records.y[index].tolist()
    assert data["texts"] == [embedkit.load(shared / "data").text[row] for row in data["rows"]]
    for name, said, sure in zip(data["methods"], data["said"], data["confidence"], strict=True):
        kind = name.partition("(")[2].rstrip(")")
        p = compared.predictions[f"blend: {kind}" if kind else name].take(index)
        assert said == p.y_pred.tolist()
        assert sure == np.rint(p.proba[np.arange(len(said)), p.y_pred] * 1_000).tolist()
    wrong = [i for i, (a, b) in enumerate(zip(data["said"][0], data["y"], strict=True)) if a != b]
    assert sorted(data["lists"]["wrong"]) == wrong


def test_neighbours_are_those_of_scikit_learn(shared: Path) -> None:
    from sklearn.neighbors import NearestNeighbors

    data = payload(shared / "report.html")
    X = embedkit.load(shared / "data", data["near"]["view"].split("+")).X[data["rows"]]
    finder = NearestNeighbors(n_neighbors=4, metric="cosine").fit(X)
    distances, _ = finder.kneighbors(X)
    assert data["near"]["of"]
    for i, found in data["near"]["of"].items():
        assert int(i) not in [j for j, _ in found]
        expected = sorted(1 - distances[int(i)])[::-1][1:]
        assert [cosine / 1_000 for _, cosine in found] == pytest.approx(expected, abs=2e-3)


# subsets of a font with East Asian signs take a second a figure
@pytest.mark.parametrize("kind", [pytest.param("pdf", marks=pytest.mark.slow), "svg", "png"])
def test_figures_are_files_too(shared: Path, tmp_path: Path, kind: str) -> None:
    compared = compare(runs_of(shared))
    assert write_report(compared, tmp_path / "r.html") is None
    folder = write_report(compared, tmp_path / "r.html", figures=kind, overwrite=True)
    assert folder == tmp_path / "r.figures"
    names = {"forest", "cost", "layers-1", "length", "calibration", "training-1"}
    assert {p.name for p in folder.iterdir()} == {f"{name}.{kind}" for name in names}
    for file in folder.iterdir():
        content = file.read_bytes()
        if kind == "svg":
            assert (
                ElementTree.fromstring(content).find("{http://www.w3.org/2000/svg}title")
                is not None
            )
        else:
            assert content.startswith({"pdf": b"%PDF", "png": b"\x89PNG"}[kind])
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    write_report(compared, tmp_path / "r.html", figures=kind, overwrite=True)
    assert before == {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(UsageError, match="figures='eps'"):
        write_report(compared, tmp_path / "r.html", figures="eps", overwrite=True)


def test_the_same_comparison_is_the_same_page(shared: Path, tmp_path: Path) -> None:
    write_report(compare(runs_of(shared)), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == (shared / "report.html").read_bytes()


@pytest.mark.parametrize("lang", REPORT_LANGUAGES)
def test_the_page_speaks_its_language(shared: Path, tmp_path: Path, lang: str) -> None:
    names = {"0": "부정", "1": "よい"}
    write_report(compare(runs_of(shared)), tmp_path / "r.html", report_lang=lang, label_names=names)
    html = (tmp_path / "r.html").read_text("utf-8")
    assert f'<html lang="{lang}">' in html
    assert '<span lang="ko">0 부정</span>' in html
    assert '<span lang="ja">1 よい</span>' in html
    assert payload(tmp_path / "r.html")["labels"] == ["0 부정", "1 よい"]
    phrases = {"en": "Which records fail", "ko": "어떤 레코드에서 실패하는가",
               "ja": "どのレコードで失敗するか"}  # fmt: skip
    assert [name for name, text in phrases.items() if text in html] == [lang]


def test_unknown_language(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="report_lang='fr'"):
        write_report(compare(runs_of(shared)), tmp_path / "r.html", report_lang="fr")


def test_signs_that_would_act_are_written_out() -> None:
    assert shown("a\u202eb\x1b[1m\x00\ud800") == "a\\u202eb\\x1b[1m\\x00\\ud800"
    assert shown("👨\u200d👩\nنص\u200c") == "👨\u200d👩\nنص\u200c"


# where texts are from


def test_texts_are_left_out_when_the_dataset_is_not_the_one(shared: Path, tmp_path: Path) -> None:
    runs = [shutil.copytree(p, tmp_path / "runs" / p.name) for p in runs_of(shared)[:2]]
    write_report(compare(runs), tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text("utf-8")
    assert "The texts are left out" in html
    assert payload(tmp_path / "r.html")["texts"] == [None] * len(
        payload(tmp_path / "r.html")["rows"]
    )
    assert 'id="length"' not in html
    for given in (shared / "data", shared / "corpus.tsv"):
        write_report(compare(runs), tmp_path / "r.html", texts=given, overwrite=True)
        assert "owned" in str(payload(tmp_path / "r.html")["texts"])
    # moved together they find each other again
    shutil.copytree(shared / "data", tmp_path / "data")
    write_report(compare(runs), tmp_path / "r.html", overwrite=True)
    assert "owned" in str(payload(tmp_path / "r.html")["texts"])


def test_other_texts_are_refused(shared: Path, tmp_path: Path) -> None:
    compared = compare(runs_of(shared))
    other = tmp_path / "corpus.tsv"
    other.write_text((shared / "corpus.tsv").read_text("utf-8") + "x\tmore\t1\n", "utf-8")
    with pytest.raises(MismatchError, match="its bytes are not those of the corpus"):
        write_report(compared, tmp_path / "r.html", texts=other)
    with pytest.raises(UsageError, match=r"does not exist\. Give the dataset or the corpus"):
        write_report(compared, tmp_path / "r.html", texts=tmp_path / "none")
    with pytest.raises(OutputExistsError, match="pass overwrite=True"):
        write_report(compared, shared / "report.html")
    with pytest.raises(UsageError, match=r"expected a name ending in \.html"):
        write_report(compared, tmp_path / "report.pdf")
    assert not (tmp_path / "r.html").exists()


def test_labels_and_names_are_text_too(tmp_path: Path) -> None:
    labels = ("<b>$x$</b>", "_y&amp;")
    _, y, outputs = random_runs(tmp_path / "x", ["a", "b"], n=40)
    paths = [write_fake_run(tmp_path / name, [labels[i] for i in y], o, [i % 4 for i in range(40)],
                            classes=labels)
             for name, o in zip(("_<i>run$1$", "other"), outputs, strict=True)]  # fmt: skip
    write_report(compare(paths), tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text("utf-8")
    assert not [tag for tag, _ in Seen(html).tags if tag in ("b", "i")]
    assert "_<i>run$1$" in Seen(html).text
    assert "<b>$x$</b>" in Seen(html).text


@pytest.mark.parametrize("kind", [pytest.param("pdf", marks=pytest.mark.slow), "svg"])
def test_signs_that_no_picture_can_hold(tmp_path: Path, kind: str) -> None:
    """Control letters in labels, and letters that no font has: neither error nor warning."""
    labels = ("a\x07b", "긍정\U000e0041")
    _, y, outputs = random_runs(tmp_path / "x", ["a", "b"], n=40)
    paths = [write_fake_run(tmp_path / name, [labels[i] for i in y], o, [i % 4 for i in range(40)],
                            classes=labels)
             for name, o in zip(("one", "결과"), outputs, strict=True)]  # fmt: skip
    folder = write_report(compare(paths), tmp_path / "r.html", figures=kind, overwrite=True)
    assert folder is not None
    assert list(folder.glob(f"*.{kind}"))
    for file in folder.glob("*.svg"):
        ElementTree.fromstring(file.read_bytes())


def test_values_and_one_run(tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(size=40)
    for name, off in (("good", 0.1), ("flat", 0.0)):
        values = y + np.where(np.arange(40) % 2, off, -off) if off else np.zeros(40)
        write_fake_run(tmp_path / name, y, values, [i % 4 for i in range(40)], classes=())
    write_report(compare([tmp_path / "good", tmp_path / "flat"]), tmp_path / "two.html")
    two = Seen((tmp_path / "two.html").read_text("utf-8")).text
    assert "good is better than the mean of the values: RMSE −0." in two  # lower is better
    assert "Lower is better and lies to the right" in two
    assert "nan" not in two  # of values that are all the same there is no rank correlation
    assert 'id="picture-values"' in (tmp_path / "two.html").read_text("utf-8")
    write_report(compare([tmp_path / "good"]), tmp_path / "one.html")
    one = Seen((tmp_path / "one.html").read_text("utf-8")).text
    assert "There is only one run." in one
    assert "Two runs predict the same" not in one


def test_many_runs_classes_and_long_labels(tmp_path: Path) -> None:
    labels = tuple(f"매우 긴 분류 이름이 여기에 있습니다 {i:02}" for i in range(77))
    paths = many_runs(tmp_path, labels, n=400, strength=1, random=np.random.default_rng(0))
    write_report(compare(paths), tmp_path / "r.html")
    seen = Seen((tmp_path / "r.html").read_text("utf-8"))
    assert sum(a.get("class") == "rest" for tag, a in seen.tags if tag == "tr") == 77 - 15
    assert "Most confused" in seen.text
    assert len(payload(tmp_path / "r.html")["methods"]) == 12


def test_texts_are_read_as_the_runs_read_them(tmp_path: Path) -> None:
    """A corpus whose columns nobody could guess; long texts are cut on the page."""
    corpus = tmp_path / "c.dat"
    long = "x" * 5_000
    lines = [f"{i};first {i};second {i} {long};{i % 2}" for i in range(40)]
    corpus.write_text("a;b;c;d\n" + "\n".join(lines) + "\n", "utf-8")
    source = [embedkit.fsio.file_sha256(corpus)]
    paths, _, _ = random_runs(tmp_path / "runs", ["p", "q"], n=40)
    reading = {"text": "b", "text_pair": "c", "unicode": "none", "dialect": {
        "format": "csv", "encoding": "utf-8", "quoting": "csv", "header": True}}  # fmt: skip
    for path in paths:
        content = json.loads((path / "run.json").read_text("utf-8"))
        edit_run(path, split={**content["split"], "source": source},
                 dataset={**content["dataset"], "path": "../../c.dat", "source": source,
                          "reading": reading})  # fmt: skip
    write_report(compare(paths), tmp_path / "r.html")
    text = Seen((tmp_path / "r.html").read_text("utf-8")).text
    assert "Texts from column 'b', 'c' of c.dat" in text
    for found in payload(tmp_path / "r.html")["texts"]:
        assert re.fullmatch(r"first (\d+)\nsecond \1 x{1900,} … \(\+3,\d\d\d\)", found)
