"""The defaults of fine-tuning beside what people use instead, with few labels and many.

    python -m benchmarks.rivals --corpora FOLDER --out rivals.jsonl
    python -m benchmarks.rivals --corpora FOLDER --only trec --labels 16 --models MiniLM

A setting is a corpus, an encoder, a number of labels a class (``all``: every record) and a seed,
which draws the training records; the others, or the test file, are the test set. Methods:

    frozen       ``embedkit train``: the default classifier on the mean of the last layer
    embedkit     ``embedkit finetune``: its defaults, five folds, whose mean predicts the test set
    labels       ``embedkit finetune --objective labels``; the defaults are this or the next
    contrastive  ``embedkit finetune --objective contrastive``
    trainer      the Trainer of transformers with AutoModelForSequenceClassification: as many epochs
                 as embedkit's defaults, 5e-5, a tenth of warm-up, batches of 16, all records
    setfit       SetFit's procedure (Tunstall et al. 2022) by sentence-transformers: twenty pairs of
                 one class and twenty of two for each text, its cosine loss, one epoch, 2e-5,
                 batches of 16, then LogisticRegression; the package setfit itself is not used

The last two have the same time budget as ``embedkit``: as many steps as fit into the processor
time that its five folds have taken in the setting, with a schedule that ends there. What a step
takes is measured on ten. Where not all steps fit, and all would take at most three times as long,
the whole training is run too, and stands beside it in the table.

Corpora are ``FOLDER/NAME.tsv`` with columns text and label, with or without ``NAME.test.tsv``, and
the requests and reviews of ``data/``. Each result is a line of ``--out``, so that a run that was
interrupted goes on; the table is made from that file. Seconds are of processors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import chdir
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import embedkit
from benchmarks.measure import describe, table
from benchmarks.texts import ROOT
from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.encoding.checkpoint import find_checkpoint, quiet_transformers
from embedkit.finetuning.options import TrainingOptions

MODELS = {"MiniLM": DEFAULT_MODEL, "multilingual": MULTILINGUAL}
OWN = {f"{kind}_{language}" for kind in ("reviews", "requests") for language in ("en", "ko")}
COLUMNS = {"document": "text", "intent": "label"}
TEST = 500  # records at most
KEYS = ("corpus", "model", "labels", "seed", "method")
PAIRS = 20  # of each kind for a text
PROBE = 10  # steps whose time tells that of a step
WHOLE = 3  # times the budget that a whole training may take
# of both trainers: they write nothing, and compute where embedkit does
QUIET: dict[str, Any] = {
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "logging_strategy": "no",
    "use_cpu": True,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpora", type=Path, default=ROOT / "data")
    parser.add_argument("--out", type=Path, default=Path("rivals.jsonl"))
    parser.add_argument("--only", default="", help="names of corpora")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--labels", default="16,64,all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default=",".join(METHODS))
    options = parser.parse_args()
    quiet_transformers()
    names = {path.stem for path in options.corpora.glob("*.tsv") if ".test" not in path.stem} | OWN
    if options.only:
        names = set(options.only.split(","))
    done = [{key: one[key] for key in KEYS} for one in _results(options.out)]
    grid = product(
        range(options.seeds),
        sorted(names),
        options.models.split(","),
        options.labels.split(","),
        options.methods.split(","),
    )
    for seed, name, model, labels, method in grid:
        setting = dict(zip(KEYS, (name, model, labels, seed, method), strict=True))
        if setting not in done:
            result = {**setting, **_run(setting, options.corpora, _budget(setting, options.out))}
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
    packages = ["embedkit", "torch", "transformers", "sentence-transformers", "scikit-learn"]
    print(describe(packages), "\n")
    print(_table(_results(options.out)))


def _results(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _budget(setting: Mapping[str, Any], path: Path) -> float | None:
    """Seconds that the defaults took in a setting, if they have run."""
    same = {**setting, "method": "embedkit"}
    found = [one["seconds"] for one in _results(path) if {key: one[key] for key in KEYS} == same]
    return found[0] if found else None


def _run(setting: Mapping[str, Any], corpora: Path, budget: float | None) -> dict[str, Any]:
    """Accuracy, log-loss and seconds; ``whole``: those of a rival that the budget has cut."""
    train, test = draw(setting, corpora)
    about: dict[str, Any] = {"records": len(train), "test": len(test)}
    name, given = setting["method"], (train, test, MODELS[setting["model"]], setting["seed"])
    if name not in RIVALS:
        return about | _scored(train, test, lambda: METHODS[name](*given))
    classes = train["label"].nunique()
    rival, all_steps = METHODS[name], RIVALS[name](len(train), classes)
    if budget is None:
        return about | _scored(train, test, lambda: rival(*given, all_steps)[0])
    started = time.process_time()
    _, in_steps = rival(*given, PROBE)
    # model, prediction and classifier take as long after any number of steps
    rest, each = time.process_time() - started - in_steps, in_steps / PROBE
    steps = min(all_steps, max(int((budget - rest) / each), 1))
    about |= {"steps": steps, "all_steps": all_steps}
    about |= _scored(train, test, lambda: rival(*given, steps)[0])
    if steps < all_steps and rest + each * all_steps <= WHOLE * budget:
        about["whole"] = _scored(train, test, lambda: rival(*given, all_steps)[0])
    return about


def _scored(
    train: pd.DataFrame, test: pd.DataFrame, method: Callable[[], np.ndarray[Any, Any]]
) -> dict[str, float]:
    started = time.process_time()
    proba = method()
    seconds = time.process_time() - started
    classes = sorted(set(train["label"]))
    y = np.array([classes.index(label) for label in test["label"]])
    return {
        "accuracy": float((proba.argmax(1) == y).mean()),
        "log_loss": float(-np.log(np.maximum(proba[np.arange(len(y)), y], 1e-15)).mean()),
        "seconds": seconds,
    }


def draw(setting: Mapping[str, Any], corpora: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return training and test records of a corpus, so many labels a class, by a seed."""
    name, labels = setting["corpus"], setting["labels"]
    folder = ROOT / "data" if name in OWN else corpora
    random = np.random.default_rng(setting["seed"])

    def read(path: Path) -> pd.DataFrame:
        frame = pd.read_csv(path, sep="\t", dtype=str, quoting=3, keep_default_na=False)
        return frame.rename(columns=COLUMNS)[["text", "label"]].drop_duplicates("text")

    frame = read(folder / f"{name}.tsv")
    order = random.permutation(len(frame))
    place = frame.iloc[order].groupby("label").cumcount()  # of a record in its class
    file = folder / f"{name}.test.tsv"
    rest = read(file) if file.is_file() else None
    if labels == "all":
        chosen = np.ones(len(frame), bool) if rest is not None else np.arange(len(frame)) % 5 > 0
    else:
        chosen = (place < int(labels)).to_numpy()
    train = frame.iloc[order[chosen]]
    rest = frame.iloc[order[~chosen]] if rest is None else rest
    rest = rest[rest["label"].isin(set(train["label"])) & ~rest["text"].isin(set(train["text"]))]
    test = rest.iloc[np.random.default_rng(0).permutation(len(rest))[:TEST]]
    return train.reset_index(drop=True), test.reset_index(drop=True)


def _by_embedkit(
    make: Callable[..., Any], **settings: Any
) -> Callable[[pd.DataFrame, pd.DataFrame, str, int], np.ndarray[Any, Any]]:
    def proba(
        train: pd.DataFrame, test: pd.DataFrame, model: str, seed: int
    ) -> np.ndarray[Any, Any]:
        # vectors of records without a file go into the working folder
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            about = {"model": model, "seed": seed, "test": test, **settings}
            made = make(train, out=f"{folder}/run", **about)
            found = pd.read_parquet(made.out / "predictions.parquet").query("fold == 'test'")
        found = found.sort_values("row")
        return np.asarray(found[[f"proba_{name}" for name in made.content.classes]])

    return proba


def _trainer(
    train: pd.DataFrame, test: pd.DataFrame, model: str, seed: int, steps: int
) -> tuple[Any, float]:
    """Return probabilities of a plain script, and the seconds of its steps."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    folder, classes = find_checkpoint(model).folder, sorted(set(train["label"]))
    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    classifier = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=len(classes), dtype=torch.float32
    )

    def items(frame: pd.DataFrame) -> list[dict[str, Any]]:
        rows = tokenizer(frame["text"].tolist(), truncation=True, max_length=256)
        labels = [classes.index(label) for label in frame["label"]]
        keys = list(rows)
        return [
            {key: rows[key][i] for key in keys} | {"labels": label}
            for i, label in enumerate(labels)
        ]

    with tempfile.TemporaryDirectory() as work:
        trainer = Trainer(
            model=classifier,
            args=TrainingArguments(
                output_dir=work,
                max_steps=steps,
                per_device_train_batch_size=16,
                learning_rate=5e-5,
                warmup_steps=steps // 10,
                seed=seed,
                **QUIET,
            ),
            train_dataset=items(train),
            data_collator=DataCollatorWithPadding(tokenizer),
        )
        started = time.process_time()
        trainer.train()
        seconds = time.process_time() - started
        logits = torch.from_numpy(trainer.predict(items(test)).predictions)
    return logits.double().softmax(1).numpy(), seconds


def _setfit(
    train: pd.DataFrame, test: pd.DataFrame, model: str, seed: int, steps: int
) -> tuple[Any, float]:
    """Return probabilities by SetFit's procedure, and the seconds of its steps."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
    from sentence_transformers.sentence_transformer.training_args import (
        SentenceTransformerTrainingArguments,
    )
    from sklearn.linear_model import LogisticRegression
    from transformers import set_seed

    set_seed(seed)
    random = np.random.default_rng(seed)
    encoder = SentenceTransformer(str(find_checkpoint(model).folder), device="cpu")
    texts, labels = train["text"].to_numpy(), train["label"].to_numpy()
    pairs: list[tuple[str, str, float]] = []
    for text, label in zip(texts, labels, strict=True):
        for alike in (True, False):
            others = texts[(labels == label) == alike]
            pairs += [(text, other, float(alike)) for other in random.choice(others, PAIRS)]
    first, second, score = zip(*pairs, strict=True)
    dataset = Dataset.from_dict({"first": first, "second": second, "label": score})
    with tempfile.TemporaryDirectory() as work:
        trainer = SentenceTransformerTrainer(
            model=encoder,
            args=SentenceTransformerTrainingArguments(
                output_dir=work,
                max_steps=steps,
                per_device_train_batch_size=16,
                learning_rate=2e-5,
                warmup_steps=steps // 10,
                seed=seed,
                **QUIET,
            ),
            train_dataset=dataset,
            loss=CosineSimilarityLoss(encoder),
        )
        started = time.process_time()
        trainer.train()
        seconds = time.process_time() - started
    X, X_test = (
        encoder.encode(frame["text"].tolist(), show_progress_bar=False) for frame in (train, test)
    )
    return LogisticRegression(max_iter=1_000).fit(X, labels).predict_proba(X_test), seconds


METHODS: dict[str, Callable[..., Any]] = {
    "frozen": _by_embedkit(embedkit.train),
    "embedkit": _by_embedkit(embedkit.finetune),
    "labels": _by_embedkit(embedkit.finetune, objective="labels"),
    "contrastive": _by_embedkit(embedkit.finetune, objective="contrastive"),
    "trainer": _trainer,
    "setfit": _setfit,
}
RIVALS: dict[str, Callable[[int, int], int]] = {
    "trainer": lambda n, classes: -(-n // 16) * TrainingOptions().epochs_of(n, classes),
    "setfit": lambda n, _: -(-2 * PAIRS * n // 16),
}
"""Steps of a whole training, by the numbers of records and of classes."""


def _table(results: list[dict[str, Any]]) -> str:
    """Means over seeds, and how far embedkit's defaults are from the better of the two rivals."""
    methods = [name for name in METHODS if any(r["method"] == name for r in results)]
    rows, distances = [], []
    settings = dict.fromkeys(tuple(r[key] for key in KEYS[:3]) for r in results)
    for setting in settings:
        cells, means = [], {}
        here = [r for r in results if tuple(r[key] for key in KEYS[:3]) == setting]
        for method in methods:
            found = [r for r in here if r["method"] == method]
            if not found:
                cells.append("–")
                continue
            means[method] = statistics.mean(r["accuracy"] for r in found)
            loss = statistics.mean(r["log_loss"] for r in found)
            seconds = statistics.mean(r["seconds"] for r in found)
            text = f"{means[method]:.1%}, {loss:.3f}, {seconds:.0f} s"
            if whole := [r["whole"] for r in found if "whole" in r]:
                score = statistics.mean(r["accuracy"] for r in whole)
                seconds = statistics.mean(r["seconds"] for r in whole)
                text += f" (whole: {score:.1%}, {seconds:.0f} s)"
            cells.append(text)
        rivals = [means[name] for name in ("trainer", "setfit") if name in means]
        distance = "–"
        if rivals and "embedkit" in means:
            distances.append(100 * (means["embedkit"] - max(rivals)))
            distance = f"{distances[-1]:+.1f}"
        corpus, model, labels = setting
        seeds = len({r["seed"] for r in here})
        about = f"{corpus}, {model}, {labels} a class ({here[0]['records']} records, {seeds} seeds)"
        rows.append([about, *cells, distance])
    text = table(["accuracy, log-loss, time", *methods, "points to the better rival"], rows)
    if distances:
        mean, least = statistics.mean(distances), min(distances)
        text += (
            f"\n\nembedkit to the better rival: {mean:+.1f} points on average, least {least:+.1f}"
        )
    return text


if __name__ == "__main__":
    main()
