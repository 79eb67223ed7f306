"""The folds of one fine-tuning run: training, predictions, files.

A finished fold is kept in ``RUN.incomplete/unfinished`` until the run is complete, so that the same
call resumes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from embedkit import fsio
from embedkit._version import __version__
from embedkit.classifiers.test_set import count_seen
from embedkit.dataset.vector_settings import ModelSettings
from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.model import PlainModel, load_model
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText, TokenizerSettings
from embedkit.errors import UsageError
from embedkit.finetuning.data import TextData
from embedkit.finetuning.heads import EncoderWithHead, build_model, pooler_layer
from embedkit.finetuning.model_folder import write_model
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.training import Fold, predict_logits, saving, train_fold
from embedkit.finetuning.validation import choose_thresholds, validation_records
from embedkit.machine import peak_memory_bytes
from embedkit.runs.content import (
    Cost,
    DatasetContent,
    FinetuneRun,
    Names,
    RecordCounts,
    SplitContent,
    TestSetContent,
    Tokens,
    Truncated,
)
from embedkit.runs.figures import draw_run, draw_training
from embedkit.runs.folder import UNFINISHED, path_from, versions, write_run
from embedkit.runs.metrics import Threshold
from embedkit.runs.predictions import (
    Predictions,
    class_scores,
    reported_scores,
    write_predictions,
)
from embedkit.runs.split_files import TEST, Split
from embedkit.runs.targets import Target
from embedkit.types import Int64, ProgressCallback

__all__ = ["FoldsOfRun"]

logger = logging.getLogger(__name__)

_VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}


SHARED_SEED = 104_729
"""Added to the seed for validation records that all folds share: with the seed of the split itself
they would all be of one fold."""


@dataclass(frozen=True)
class FoldsOfRun:
    """A run with all its settings; nothing is written before :meth:`complete`."""

    data: TextData
    target: Target
    split: Split
    test_data: TextData
    test_target: Target
    test_index: Int64
    checkpoint: Checkpoint
    tokenizer: TextTokenizer
    options: TrainingOptions
    device: torch.device
    progress: ProgressCallback

    def identity(self) -> dict[str, Any]:
        """Everything that shapes the run, as JSON holds it."""
        return {
            "source": list(self.data.source),
            "reading": self.data.reading,
            "split": self.split.fingerprint,
            "test": list(self.test_data.source) if self.test_data is not self.data else None,
            "model": dict(sorted(self.checkpoint.sha256.items())),
            **asdict(self.options),
            "device": self.device.type,
            "versions": {"embedkit": __version__, **_VERSIONS},
        }

    def _folds(self) -> list[tuple[int, int]]:
        return [(r, f) for r in range(self.split.repeats) for f in range(self.split.n_folds)]

    def check(self) -> None:
        """Raise a :class:`UsageError` if a threshold has no records to be chosen on."""
        for repeat, fold in self._folds() if self.options.chooses_threshold else ():
            train, _ = self.split.fold(repeat, fold)
            here = np.intersect1d(train, self._shared_validation[1])
            if len(np.unique(self.target.y[here])) < 2:
                raise UsageError(
                    f"threshold={self.options.threshold!r}: the {len(here)} validation records of "
                    f"fold {fold} that choose it are not of both classes. Pass a larger validation="
                    f" than {self.options.validation:g}."
                )

    @cached_property
    def _shared_validation(self) -> tuple[Int64, Int64]:
        """Validation records that choose the epoch, and those that choose thresholds.

        They are the same in every fold, so that no model is trained on them and the threshold for
        the mean of all models can be chosen on their mean predictions.
        """
        trains = [self.split.fold(*fold)[0] for fold in self._folds()]
        seed = self.options.seed + SHARED_SEED
        both = self._validation(self.split.in_folds, self.options.validation, seed, trains)
        threshold = self._validation(both, 0.5, seed + 1, ())
        return np.setdiff1d(both, threshold), threshold

    def _divided(self, train: Int64, seed: int) -> tuple[Int64, Int64]:
        """Divide the training records of a fold into those to train on and to choose the epoch."""
        fraction = self.options.validation
        if not fraction:
            return train, train[:0]
        if self.options.chooses_threshold:
            epoch, threshold = self._shared_validation
            valid, rest = np.intersect1d(train, epoch), np.setdiff1d(train, [*epoch, *threshold])
        else:
            valid = self._validation(train, fraction, seed, [train])
            rest = np.setdiff1d(train, valid)
        if not len(valid):
            raise UsageError(
                f"validation={fraction:g}: the {len(train)} training records of a fold are too few"
                ", or too similar, to use some of them for validation. Pass validation=0."
            )
        return rest, valid

    def _validation(
        self, index: Int64, fraction: float, seed: int, trains: Sequence[Int64]
    ) -> Int64:
        return validation_records(
            index, fraction, seed=seed, trains=trains, group=self.split.group,
            strata=self.target.strata,
        )  # fmt: skip

    @cached_property
    def _texts(self) -> list[TokenizedText]:
        return self._tokenized(self.data)

    @cached_property
    def _test_texts(self) -> list[TokenizedText]:
        if self.test_data is self.data:
            return [self._texts[i] for i in self.test_index]
        return self._tokenized(self.test_data)

    def _tokenized(self, data: TextData) -> list[TokenizedText]:
        assert self.options.max_length is not None
        settings = TokenizerSettings(self.options.max_length, prefix=self.options.prefix or "")
        found = self.tokenizer.encode(data.texts, data.pairs, settings=settings)
        if cut := sum(text.cut for text in found):
            logger.warning(
                "%s of %s texts of %s have more than max_length=%s tokens; what is beyond is not "
                "seen", f"{cut:,}", f"{len(found):,}", data.name, self.options.max_length,
            )  # fmt: skip
        return found

    @cached_property
    def _encoder(self) -> PlainModel:
        plain = load_model(
            self.checkpoint, pad_id=self.tokenizer.pad_id, device=torch.device("cpu"),
            dtype=torch.float32,
        )  # fmt: skip
        if self.options.head == "pooler" and pooler_layer(plain) is None:
            logger.warning(
                "%s has no pooler weights; the head starts with random ones", self.checkpoint.name
            )
        return plain

    def _head_settings(self, train: Int64) -> dict[str, Any]:
        """Fields of the head's configuration; what depends on labels is of training records."""
        options, target, y = self.options, self.target, self.target.y[train]
        settings: dict[str, Any] = {
            "head": options.head, "mix_layers": options.mix_layers,
            "cnn_widths": list(options.cnn_widths), "label_smoothing": options.label_smoothing,
        }  # fmt: skip
        if not target.classes:
            scale = {"target_mean": float(y.mean()), "target_scale": float(y.std()) or 1.0}
            return {**settings, "problem": "value", "n_outputs": 1, **scale}
        if options.class_weight is not None:
            counts = np.bincount(y, minlength=len(target.classes))
            settings["class_weights"] = (len(y) / (len(counts) * counts)).tolist()
        if options.one_logit:
            return {**settings, "problem": "one_logit", "n_outputs": 1}
        return {**settings, "problem": "classes", "n_outputs": len(target.classes)}

    def complete(self, folder: Path) -> FinetuneRun:
        """Train the folds that are not finished, and write the run into its folder."""
        results = []
        for repeat, fold in self._folds():
            file = folder / UNFINISHED / "folds" / f"{_name(repeat, fold)}.json"
            if not file.is_file():
                content = json.dumps(self._one_fold(folder, repeat, fold)).encode()
                fsio.make_folder(file.parent)
                fsio.write_durably(file, content, scratch=file.parent)
                fsio.remove_tree(_checkpoints(folder, repeat, fold))
            results.append(json.loads(file.read_text("utf-8")))
        return self._finish(folder, results)

    def _one_fold(self, folder: Path, repeat: int, number: int) -> dict[str, Any]:
        """Train a fold, keep its model and return its predictions."""
        split, options = self.split, self.options
        train, held_out = split.fold(repeat, number)
        seed = options.seed + 1_009 * (repeat * split.n_folds + number)
        train, valid = self._divided(train, seed)
        title = f"fold {number + 1} of {split.n_folds}"
        title += f", repeat {repeat + 1}" if split.repeats > 1 else ""
        fold = Fold(
            name=title, texts=self._texts, target=self.target, train=train, valid=valid, seed=seed,
            options=options, device=self.device, pad_id=self.tokenizer.pad_id,
            work=_checkpoints(folder, repeat, number),
        )  # fmt: skip
        model = build_model(self._encoder, seed=seed, **self._head_settings(train))
        model, found = train_fold(fold, model, progress=self.progress)
        started = time.perf_counter()
        found["proba"] = self._proba(model, [self._texts[i] for i in held_out])
        found["predict_seconds"] = time.perf_counter() - started
        found["test_proba"] = self._proba(model, self._test_texts)
        if options.chooses_threshold:
            some = [self._texts[i] for i in self._shared_validation[1]]
            found["threshold_proba"] = self._proba(model, some)
        found["log"] = [{"repeat": repeat, "fold": number, **line} for line in found["log"]]
        self._keep_model(model, folder, _name(repeat, number))
        return found

    def _proba(self, model: EncoderWithHead, texts: Sequence[TokenizedText]) -> list[Any]:
        logits = predict_logits(
            model, texts, pad_id=self.tokenizer.pad_id, precision=self.options.precision
        )
        return list(model.outputs(logits).tolist())

    def _keep_model(self, model: EncoderWithHead, folder: Path, name: str) -> None:
        """Write a fold's model to its final place; what an earlier attempt left is deleted."""
        ready, final = folder / UNFINISHED / "model", folder / "model" / name
        for old in (ready, final):
            if old.is_dir():
                fsio.remove_tree(old)
        fsio.make_folder(ready)
        fsio.make_folder(final.parent)
        with saving(ready):
            write_model(
                model, self.tokenizer, ready, classes=self.target.classes,
                max_length=int(self.options.max_length or 0),
            )  # fmt: skip
        fsio.sync_tree(ready)
        fsio.publish_folder(ready, final)

    def _finish(self, folder: Path, results: list[dict[str, Any]]) -> FinetuneRun:
        """Write predictions, log, figures and ``run.json`` of folds that are all finished."""
        thresholds, final = self._thresholds(results)
        data = self.data
        found = [
            Predictions.of_fold(
                self.split.fold(repeat, fold)[1], np.array(result["proba"]), row=data.row,
                ids=data.ids, target=self.target, fold=fold, group=self.split.group, repeat=repeat,
                threshold=threshold,
            )
            for (repeat, fold), result, threshold
            in zip(self._folds(), results, thresholds, strict=True)
        ]  # fmt: skip
        if len(self.test_index):
            mean = np.mean([result["test_proba"] for result in results], axis=0)
            data, group = self.test_data, self.split.group
            found.append(Predictions.of_fold(
                self.test_index, mean, row=data.row, ids=data.ids, target=self.test_target,
                fold=TEST, group=group if data is self.data else None, threshold=final,
            ))  # fmt: skip
        predictions = Predictions.joined(found)
        write_predictions(folder, predictions)
        log = [line for result in results for line in result["log"]]
        lines = "".join(json.dumps(line) + "\n" for line in log)
        fsio.write_durably(folder / "training.jsonl", lines.encode(), scratch=folder)
        draw_run(folder, predictions)
        draw_training(folder, log, metric="macro-F1" if self.target.classes else "R²")
        content = self._content(folder, results, predictions, thresholds, final)
        write_run(folder, content)
        return content

    def _thresholds(
        self, results: list[dict[str, Any]]
    ) -> tuple[Sequence[float | None], float | None]:
        """Threshold of each fold, and that of the mean of all models."""
        if self.options.threshold is None:
            return [None] * len(results), None
        threshold = Threshold.parse(self.options.threshold)
        if threshold.value is not None:
            return [threshold.value] * len(results), threshold.value
        index = self._shared_validation[1]
        held_out = [np.isin(index, self.split.fold(*fold)[1]) for fold in self._folds()]
        proba = np.array([result["threshold_proba"] for result in results])[:, :, 1]
        return choose_thresholds(threshold, self.target.y[index], proba, np.array(held_out))

    def _content(
        self, folder: Path, results: list[dict[str, Any]], predictions: Predictions,
        thresholds: Sequence[float | None], final: float | None,
    ) -> FinetuneRun:  # fmt: skip
        options, test, texts = self.options, self.test_data, self._texts
        settings = asdict(options) | {"head_learning_rate": options.head_rate}
        max_length = settings.pop("max_length")
        asked = settings.pop("threshold")
        parsed = Threshold(0.5, None) if asked is None else Threshold.parse(asked)
        on_gpu = self.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self.device) if on_gpu else peak_memory_bytes()
        return FinetuneRun(
            estimator="finetune",
            features="text",
            task=settings.pop("task"),
            head=settings.pop("head"),
            precision=settings.pop("precision"),
            tokens=Tokens(
                max_length=max_length, pad_id=int(self.tokenizer.pad_id),
                type_vocab=int(self.checkpoint.config.get("type_vocab_size") or 0),
                prefix=settings.pop("prefix"),
            ),
            settings=settings,
            views=(),
            classes=self.target.classes,
            threshold=final,
            threshold_metric=parsed.metric,
            thresholds=tuple(thresholds),
            models=tuple(_name(*fold) for fold in self._folds()),
            epochs=tuple(result["epoch"] for result in results),
            truncated=Truncated(
                records=sum(text.cut for text in texts),
                tokens=sum(text.n_tokens - text.n_kept for text in texts),
                tokens_all=sum(text.n_tokens for text in texts),
                limit=max_length,
            ),
            dataset=self._dataset(folder),
            split=SplitContent.of(self.split),
            records=RecordCounts(folds=len(self.split.in_folds), test=len(predictions.test)),
            test_set=None if test is self.data else TestSetContent(
                source=test.source, rejected=sum(test.rejected.values()),
                seen_texts=count_seen(test.text_keys(), self.data.text_keys()),
            ),
            scores=reported_scores(predictions, seed=options.seed, beta=parsed.beta),
            per_class=class_scores(predictions),
            cost=Cost(
                fit_seconds=sum(result["fit_seconds"] for result in results),
                predict_seconds=sum(result["predict_seconds"] for result in results),
                peak_memory_bytes=int(peak),
                parameters=results[0]["parameters"],
                device=self.device.type,
            ),
            versions=versions() | _VERSIONS,
        )  # fmt: skip

    def _dataset(self, folder: Path) -> DatasetContent:
        data, checkpoint, identity = self.data, self.checkpoint, self.identity()
        shaping = json.dumps({n: identity[n] for n in ("source", "reading")}, sort_keys=True)
        return DatasetContent(
            fingerprint=hashlib.sha256(shaping.encode()).hexdigest(),
            path=path_from(folder, Path(data.name)),
            source=data.source,
            model=ModelSettings(
                type=checkpoint.model_type, n_layers=checkpoint.n_layers, width=checkpoint.width,
                sha256=identity["model"],
            ),
            unicode=data.reading["unicode"],
            pairs=data.pairs is not None,
            reading=data.reading,
            rejected=data.rejected,
            names=Names(
                model=checkpoint.name, revision=checkpoint.revision, inputs=(data.name,)
            ),
        )  # fmt: skip


def _name(repeat: int, fold: int) -> str:
    return f"fold-{fold}" if not repeat else f"repeat-{repeat}-fold-{fold}"


def _checkpoints(folder: Path, repeat: int, fold: int) -> Path:
    return folder / UNFINISHED / "checkpoints" / _name(repeat, fold)
