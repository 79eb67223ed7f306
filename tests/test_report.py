"""The report: it stands alone, shows the numbers, and corpus text stays text."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest

import embedkit
from embedkit.classifiers.probe import probe
from embedkit.classifiers.train import train
from embedkit.comparison.compare import compare
from embedkit.comparison.report import disputed, shown, write_report
from embedkit.encoding.encoder import Encoder
from embedkit.errors import MismatchError, OutputExistsError, UsageError
from embedkit.runs.splits import split
from tests.run_fixtures import SOURCE, edit_run, random_runs, write_fake_run
from tests.store_fixtures import load_quickly, tiny_model

EVIL = "<script>document.title = 'owned'</script> <img src=x onerror=\"document.title='owned'\">"
N = 60


def corpus_of(path: Path) -> Path:
    lines = ["id\tdocument\tlabel"]
    random = np.random.default_rng(0)
    for i in range(N):
        words = " ".join(random.choice(["good", "bad", "movie", "rain", "bus"], 4))
        text = f"{EVIL} {i}" if i % 3 == 0 else f"{words} & {i} \u202e \x1b[31m 👨\u200d👩"
        lines.append(f"r{i}\t{text}\t{i % 2}")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, three runs, a probe, a training log and their report, made once."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "load", load_quickly)
        embedkit.extract(corpus_of(folder / "corpus.tsv"), out=folder / "data", layers="all",
                         model=str(tiny_model()))  # fmt: skip
    split(folder / "data", out=folder / "s.parquet", folds=3, test=0.2)
    options: dict[str, Any] = {"split": folder / "s.parquet"}
    train(folder / "data", out=folder / "runs/tfidf", features="tfidf", **options)
    train(folder / "data", out=folder / "runs/logreg", **options)
    train(folder / "data", out=folder / "runs/svm", estimator="svm", view="mean_0", **options)
    probe(folder / "data", out=folder / "runs/probe", threads=1, **options)
    log = [{"repeat": 0, "fold": f, "seed": 0, "step": e, "epoch": float(e), "loss": 1 / e,
            "learning_rate": 1e-4} for f in range(3) for e in (1, 2)]  # fmt: skip
    log += [{"repeat": 0, "fold": 0, "seed": 0, "step": 2, "epoch": 2.0, "valid_loss": 0.6,
             "valid_score": 0.7}]  # fmt: skip
    (folder / "runs/svm/training.jsonl").write_text(
        "".join(json.dumps(entry) + "\n" for entry in log), "utf-8"
    )
    write_report(compare(runs_of(folder)), folder / "report.html")
    return folder


def runs_of(folder: Path) -> list[Path]:
    return [folder / "runs" / name for name in ("tfidf", "logreg", "svm", "probe")]


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
    assert sum(tag == "script" for tag, _ in seen.tags) == 1
    assert not [tag for tag, a in seen.tags if tag == "img"]


def test_ids_stand_there_once(shared: Path) -> None:
    seen = Seen((shared / "report.html").read_text("utf-8"))
    ids = [a["id"] for _, a in seen.tags if "id" in a]
    assert len(ids) == len(set(ids)) > 50
    named = {a["href"] for tag, a in seen.tags if tag == "a"}
    assert {str(name)[1:] for name in named} <= set(ids)
    drawn = {str(a["xlink:href"])[1:] for _, a in seen.tags if "xlink:href" in a
             and str(a["xlink:href"]).startswith("#")}  # fmt: skip
    assert drawn
    assert drawn <= set(ids)


def test_numbers_of_the_comparison_are_shown(shared: Path) -> None:
    table = compare(runs_of(shared)).table
    text = " ".join(Seen((shared / "report.html").read_text("utf-8")).text.split())
    for row in table.rows:
        for score in (*row.scores.values(), *row.test.values()):
            assert f"{score.value:.3f}{score.low:.3f} to {score.high:.3f}" in text
    manifest = embedkit.load(shared / "data").manifest
    assert f"{N} = {N} embedded + 0 rejected" in text
    assert f"{manifest.totals.ledger['records_truncated']} texts were cut at 24" in text
    assert "view chosen inside the folds" in text
    for anchor in ("layers", "training", "confusion", "reliability", "truncation"):
        assert f'id="{anchor}"' in (shared / "report.html").read_text("utf-8")


def test_pictures_are_files_too(shared: Path) -> None:
    files = {p.name for p in (shared / "report.figures").iterdir()}
    names = {"score_and_cost", "layers-probe", "reliability", "precision_recall", "confusion",
             "training-svm"}  # fmt: skip
    assert files == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    for file in (shared / "report.figures").iterdir():
        head = file.read_bytes()[:8]
        assert head == b"\x89PNG\r\n\x1a\n" if file.suffix == ".png" else head.startswith(b"<?xml")


def test_the_same_comparison_is_the_same_page(shared: Path, tmp_path: Path) -> None:
    write_report(compare(runs_of(shared)), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == (shared / "report.html").read_bytes()


def test_signs_that_would_act_are_written_out() -> None:
    assert shown("a\u202eb\x1b[1m\x00\ud800") == "a\\u202eb\\x1b[1m\\x00\\ud800"
    assert shown("👨\u200d👩\nنص\u200c") == "👨\u200d👩\nنص\u200c"


# disputed records


def test_the_most_disputed_come_first(tmp_path: Path) -> None:
    one = np.array([[0.9, 0.1], [0.4, 0.6], [0.9, 0.1], [0.2, 0.8]])
    two = np.array([[0.1, 0.9], [0.6, 0.4], [0.8, 0.2], [0.1, 0.9]])
    paths = [write_fake_run(tmp_path / n, "1001", o, [0, 0, 1, 1])
             for n, o in (("a", one), ("b", two))]  # fmt: skip
    cases = disputed(compare(paths), 10)
    assert [case.row for case in cases] == [0, 1]  # the others are decided alike
    assert [case.spread for case in cases] == pytest.approx([0.4, 0.1])
    assert cases[0].wrong == (0,)
    assert [a.text for a in cases[1].answers] == ["1", "0"]
    assert cases[1].truth == "0"
    assert len(disputed(compare(paths), 1)) == 1


def test_values_are_disputed_by_their_distance(tmp_path: Path) -> None:
    y = np.arange(8.0)
    paths = [write_fake_run(tmp_path / n, y, y + shift, [0, 1] * 4, classes=())
             for n, shift in (("a", 0.0), ("b", np.array([0, 1, 0, 0, 3, 0, 0, 0])))]  # fmt: skip
    cases = disputed(compare(paths), 10)
    assert [case.row for case in cases] == [4, 1]
    write_report(compare(paths), tmp_path / "r.html")
    assert "RMSE" in (tmp_path / "r.html").read_text("utf-8")


# where texts are from


def test_texts_are_left_out_when_the_dataset_is_not_the_one(shared: Path, tmp_path: Path) -> None:
    runs = [shutil.copytree(p, tmp_path / "runs" / p.name) for p in runs_of(shared)[:2]]
    write_report(compare(runs), tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text("utf-8")
    assert "The texts are left out" in html
    assert "owned" not in html
    assert "nothing can be said of truncation" in html
    for given in (shared / "data", shared / "corpus.tsv"):
        write_report(compare(runs), tmp_path / "r.html", texts=given, overwrite=True)
        assert "owned" in (tmp_path / "r.html").read_text("utf-8")
    # moved together they find each other again
    shutil.copytree(shared / "data", tmp_path / "data")
    write_report(compare(runs), tmp_path / "r.html", overwrite=True)
    assert "owned" in (tmp_path / "r.html").read_text("utf-8")


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


def test_signs_that_no_picture_can_hold(tmp_path: Path) -> None:
    """Control letters in labels, and letters that no font has: neither error nor warning."""
    labels = ("a\x07b", "긍정\U000e0041")
    _, y, outputs = random_runs(tmp_path / "x", ["a", "b"], n=40)
    paths = [write_fake_run(tmp_path / name, [labels[i] for i in y], o, [i % 4 for i in range(40)],
                            classes=labels)
             for name, o in zip(("one", "결과"), outputs, strict=True)]  # fmt: skip
    folder = write_report(compare(paths), tmp_path / "r.html")
    for file in folder.glob("*.svg"):
        ElementTree.fromstring(file.read_bytes())


def test_folds_of_a_column(tmp_path: Path) -> None:
    paths, _, _ = random_runs(tmp_path, ["a", "b"], n=40)
    for path in paths:
        edit_run(path, split={"fingerprint": "s", "source": SOURCE, "column": "part", "folds": 5,
                              "repeats": 1, "seed": 0, "stratified": False})  # fmt: skip
    write_report(compare(paths), tmp_path / "r.html")
    text = Seen((tmp_path / "r.html").read_text("utf-8")).text
    assert "5 folds by the column part of the corpus" in text


def test_words_fit_the_number_of_runs_and_the_score(tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(size=40)
    for name, off in (("good", 0.1), ("flat", 0.0)):
        values = y + np.where(np.arange(40) % 2, off, -off) if off else np.zeros(40)
        write_fake_run(tmp_path / name, y, values, [i % 4 for i in range(40)], classes=())
    write_report(compare([tmp_path / "good", tmp_path / "flat"]), tmp_path / "two.html")
    two = Seen((tmp_path / "two.html").read_text("utf-8")).text
    assert "Best on RMSE: good" in " ".join(two.split())  # lower is better
    assert "nan" not in two  # of values that are all the same there is no rank correlation
    write_report(compare([tmp_path / "good"]), tmp_path / "one.html")
    one = Seen((tmp_path / "one.html").read_text("utf-8")).text
    assert "Comparison of 1 run\n" in one
    assert "runs predict the same" not in one


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
    assert "Texts from column 'b' and 'c' of c.dat" in text
    assert re.search(r"first (\d+)\nsecond \1 x{1900}", text)
    assert re.search(r"x … \(3,\d\d\d more characters\)", text)
    assert long not in text


# in a browser


def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("no chromium, chromium-browser or google-chrome is installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = chromium()
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(shared: Path, browser: Any, width: int, scheme: str) -> None:
    """Nothing of the corpus runs, nothing is loaded or overflows, and the table filters."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    messages: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((shared / "report.html").as_uri())
    assert messages == []
    assert asked == [(shared / "report.html").as_uri()]
    assert page.title() == "Comparison of 3 runs"
    assert page.evaluate("document.documentElement.scrollWidth") == width

    rows = page.locator("#cases tbody tr")
    texts = rows.locator(".text").all_inner_texts()
    evil = [text for text in texts if text.startswith("<script>document.title")]
    assert evil
    assert page.locator("#cases script, #cases img").count() == 0
    visible = page.locator("#cases tbody tr:visible")
    assert visible.count() == len(texts)

    page.fill("#filter-text", "ONERROR")
    assert visible.count() == len(evil) < len(texts)
    assert page.inner_text("#filter-count") == f"{len(evil)} of {len(texts)} records"
    page.fill("#filter-text", "")
    page.select_option("#filter-truth", "1")
    truths = rows.evaluate_all("all => all.map(row => row.dataset.truth)")
    assert 0 < visible.count() == truths.count("1") < len(texts)
    page.select_option("#filter-wrong", label="logreg")
    wrong = rows.evaluate_all(
        "all => all.filter(row => row.dataset.truth === '1' &&"
        " row.querySelectorAll('.said')[1].classList.contains('wrong')).length"
    )
    assert visible.count() == wrong
    page.select_option("#filter-truth", "")
    page.select_option("#filter-wrong", "")
    page.select_option("#filter-held", "test")
    held = rows.evaluate_all("all => all.map(row => row.dataset.held)")
    assert visible.count() == held.count("test")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = min(int(part) for part in re.findall(r"\d+", background)[:3]) > 128
    assert light == (scheme == "light")
    context.close()


def test_the_policy_stops_a_script_that_escaping_would_miss(
    shared: Path, browser: Any, tmp_path: Path
) -> None:
    html = (shared / "report.html").read_text("utf-8")
    planted = html.replace("</main>", f"{EVIL}</main>")
    assert planted != html
    (tmp_path / "planted.html").write_text(planted, "utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "planted.html").as_uri())
    assert page.title() == "Comparison of 3 runs"
    page.select_option("#filter-truth", "1")  # the page's own script still runs
    assert page.locator("#cases tbody tr:visible").count() < page.locator("#cases tbody tr").count()
    page.close()


def test_predictions_are_read_as_they_stand(shared: Path) -> None:
    """What the page counts as wrong is what the files say."""
    compared = compare(runs_of(shared))
    tables = [pq.read_table(p / "predictions.parquet").to_pandas().set_index("row")
              for p in runs_of(shared)[:3]]  # fmt: skip
    for case in disputed(compared, 1_000):
        wrong = tuple(i for i, t in enumerate(tables)
                      if t.loc[case.row, "y_true"] != t.loc[case.row, "y_pred"])  # fmt: skip
        assert case.wrong == wrong
