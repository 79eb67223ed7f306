"""Wrong values are refused before a tokenizer, a model or an estimator is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

import embedkit
from embedkit.classifiers import folds, train
from embedkit.encoding import encoder, few_texts, model
from tests.finetune_fixtures import corpus_of, tuned
from tests.processes import command
from tests.store_fixtures import tiny_model

RUNS = {"extract": "extract c.tsv --out new", "finetune": "finetune c.tsv --out new",
        "train": "train data --out new", "probe": "probe data --out new",
        "split": "split data --out new.parquet", "search": "search data", "index": "index data",
        "predict": "predict run", "compare": "compare run", "words": "words data movie",
        "similarity": "similarity c.tsv --text text --text-pair id",
        "explore": "explore data --out m.html", "tokenize": "tokenize",
        "run": "run"}  # fmt: skip

# what is typed after the command, and what the message says of it
WRONG: list[tuple[str, str, str]] = [
    ("extract", "--max-length 0", "max-length 0"),
    ("extract", "--layers 99", "layers 99"),
    ("extract", "--layers nonsense", "nonsense"),
    ("extract", "--pooling avg", "avg"),
    ("extract", "--text nope", "nope"),
    ("extract", "--label nope", "nope"),
    ("extract", "--keep nope", "nope"),
    ("extract", "--batch-tokens 0", "batch-tokens 0"),
    ("extract", "--shard-rows 0", "shard-rows 0"),
    ("extract", "--sample 0", "sample 0"),
    ("extract", "--stride 3", "stride"),
    ("extract", "--min-chars -1", "min-chars -1"),
    ("extract", "--device gpu", "gpu"),
    ("extract", "--precision fp8", "fp8"),
    ("extract", "--out c.tsv/x", "c.tsv"),
    ("finetune", "--folds 0", "folds 0"),
    ("finetune", "--epochs 0", "epochs 0"),
    ("finetune", "--learning-rate 0", "learning-rate 0"),
    ("finetune", "--learning-rate -1", "learning-rate -1"),
    ("finetune", "--batch-size 0", "batch-size 0"),
    ("finetune", "--validation 1", "validation 1"),
    ("finetune", "--dropout 2", "dropout 2"),
    ("finetune", "--freeze-layers 99", "freeze-layers 99"),
    ("finetune", "--mix-layers 99", "mix-layers 99"),
    ("finetune", "--max-length 100000", "max-length 100000"),
    ("finetune", "--threshold f0", "f0"),
    ("finetune", "--threshold 2", "threshold 2"),
    ("finetune", "--select-by nope", "nope"),
    ("finetune", "--label nope", "nope"),
    ("finetune", "--split nope.parquet", "nope.parquet"),
    ("finetune", "--test nope.tsv", "nope.tsv"),
    ("finetune", "--test-sample 5", "test-sample"),
    ("finetune", "--patience 0", "patience 0"),
    ("finetune", "--seeds 0", "seeds 0"),
    ("finetune", "--lora 0", "lora 0"),
    ("finetune", "--lora 2 --freeze-layers 1", "lora"),
    ("finetune", "--label-smoothing 1", "label-smoothing 1"),
    ("finetune", "--accumulate 0", "accumulate 0"),
    ("finetune", "--warmup -1", "warmup -1"),
    ("finetune", "--layer-decay 0", "layer-decay 0"),
    ("finetune", "--cnn-widths a", "cnn-widths a"),
    ("finetune", "--cnn-widths 0", "cnn-widths"),
    ("finetune", "--head pool", "pool"),
    ("finetune", "--device gpu", "gpu"),
    ("finetune", "--device cuda", "cuda"),
    ("finetune", "--out c.tsv/x", "c.tsv"),
    ("finetune", "--resume", "resume"),
    ("train", "--folds 1000", "60 records are too few for 1000 folds"),
    ("train", "--folds 0", "folds 0"),
    ("train", "--view nope", "nope"),
    ("train", "--pca 0", "pca 0"),
    ("train", "--pca 1000", "pca 1000"),
    ("train", "--features tfidf --view mean_2", "view"),
    ("train", "--features tfidf --pca 3", "pca"),
    ("train", "--threshold f0", "f0"),
    ("train", "--metric nope", "nope"),
    ("train", "--estimator tree", "tree"),
    ("train", "--split nope.parquet", "nope.parquet"),
    ("train", "--test nope", "nope"),
    ("train", "--threads 0", "threads 0"),
    ("train", "--out c.tsv/x", "c.tsv"),
    ("probe", "--view nope", "nope"),
    ("probe", "--folds 0", "folds 0"),
    ("probe", "--shuffles -1", "shuffles -1"),
    ("probe", "--metric nope", "nope"),
    ("probe", "--out c.tsv/x", "c.tsv"),
    ("split", "--folds 0", "folds 0"),
    ("split", "--test 2", "test 2"),
    ("split", "--group nope", "nope"),
    ("split", "--repeats 0", "repeats 0"),
    ("search", "text --view nope", "nope"),
    ("search", "text -k 0", "k 0"),
    ("search", "text --where nope=1", "nope"),
    ("search", "--like 99999", "99999"),
    ("search", "", "give a QUERY"),
    ("search", "--queries nope.txt", "nope.txt"),
    ("index", "--view nope", "nope"),
    ("index", "--kind tree", "tree"),
    ("predict", "", "corpus"),
    ("predict", "c.tsv --text x", "--text"),
    ("predict", "nope.tsv", "nope.tsv"),
    ("predict", "--text x --label-names 9=a", "9"),
    ("predict", "--text x --label-names nonsense", "nonsense"),
    ("predict", "c.tsv --column nope", "nope"),
    ("predict", "c.tsv --out p.doc", "p.doc"),
    ("predict", "c.tsv --out c.tsv", "c.tsv"),
    ("predict", "c.tsv --submission a,b,c", "submission"),
    ("predict", "c.tsv --out c.tsv/p.tsv", "c.tsv is a file"),
    ("predict", "--text x --device gpu", "gpu"),
    ("compare", "nope", "nope"),
    ("compare", "--metric nope", "nope"),
    ("compare", "--baseline nope", "nope"),
    ("compare", "--report c.tsv/r.html", "c.tsv"),
    ("words", "--view nope", "nope"),
    ("words", "--layer 99", "99"),
    ("similarity", "--pooling avg", "avg"),
    ("explore", "--view nope", "nope"),
    ("explore", "--color nope", "nope"),
    ("explore", "--layers 99", "99"),
    ("explore", "--limit 0", "limit"),
    ("explore", "--out c.tsv/m.html", "c.tsv"),
    ("tokenize", "x --max-length 0", "max-length 0"),
    ("tokenize", "x --max-length 9999", "max-length 9999"),
    ("run", "nope.toml", "nope.toml"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("refusals")
    corpus = corpus_of(folder / "c.tsv")
    embedkit.extract(
        corpus, out=folder / "data", model=str(tiny_model()), words="mean", device="cpu"
    )
    tuned(corpus, folder / "run", folds=2, epochs=1)
    with pytest.MonkeyPatch.context() as patch:

        def loaded(*_: Any, **__: Any) -> None:
            raise AssertionError("something was loaded")

        patch.setattr(model, "load_module", loaded)
        patch.setattr(encoder, "open_tokenizer", loaded)
        patch.setattr(few_texts, "_read", loaded)
        for name in ("AutoTokenizer", "AutoModel"):
            patch.setattr(getattr(transformers, name), "from_pretrained", loaded)
        patch.setattr(folds, "cross_validate", loaded)
        patch.setattr(train, "cross_validate", loaded, raising=False)
        yield folder


def test_a_pooler_that_a_checkpoint_lacks_is_refused_before_anything_is_loaded(place: Path) -> None:
    model = str(tiny_model(pooler=False))
    done = command("extract", "c.tsv", "--pooling", "pooler", "--model", model, cwd=place)
    assert done.returncode == 2
    assert "has no pooler weights, so --pooling pooler would be random numbers" in done.stderr


@pytest.mark.parametrize(("name", "typed", "named"), WRONG)
def test_a_wrong_value_is_refused_before_anything_is_loaded(
    place: Path, name: str, typed: str, named: str
) -> None:
    takes_model = {"extract", "finetune", "similarity", "tokenize"}
    more = ["--model", str(tiny_model())] if name in takes_model else []
    done = command(*RUNS[name].split(), *typed.split(), *more, cwd=place)
    assert done.returncode in (2, 6, 8), done.stderr
    assert named in done.stderr
    assert not (place / "new").exists()
