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
from embedkit.dataset.fold_models import FoldModels, SeenRecords
from embedkit.dataset.vector_settings import ModelSettings
from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.model import PlainModel, load_model
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText, TokenizerSettings
from embedkit.finetuning.data import RunRecords, TextData
from embedkit.finetuning.heads import EncoderWithHead, build_model, pooler_layer
from embedkit.finetuning.model_folder import write_model
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.results import ModelResult, RunPredictions, run_predictions
from embedkit.finetuning.training import Fold, predict_logits, saving, train_fold
from embedkit.finetuning.validation import Division, FoldRecords
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
from embedkit.runs.predictions import class_scores, reported_scores, write_predictions
from embedkit.runs.split_files import write_split
from embedkit.types import Int64, ProgressCallback

__all__ = ["FoldsOfRun", "model_name"]

logger = logging.getLogger(__name__)

_VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}


@dataclass(frozen=True)
class FoldsOfRun:
    """A run with all its settings; nothing is written before :meth:`complete`."""

    records: RunRecords
    checkpoint: Checkpoint
    tokenizer: TextTokenizer
    options: TrainingOptions
    device: torch.device
    progress: ProgressCallback

    def identity(self) -> dict[str, Any]:
        """Everything that shapes the run, as JSON holds it."""
        records = self.records
        return {
            "source": list(records.data.source),
            "reading": records.data.reading,
            "split": records.split.fingerprint,
            "test": list(records.test_data.source) if records.has_own_test_set else None,
            "model": dict(sorted(self.checkpoint.sha256.items())),
            **asdict(self.options),
            "device": self.device.type,
            "versions": {"embedkit": __version__, **_VERSIONS},
        }

    def check(self) -> None:
        """Raise a :class:`UsageError` if there are not enough validation records."""
        self.division.check(self.options.threshold)

    @cached_property
    def division(self) -> Division:
        """Training and validation records of every fold."""
        return Division(
            self.records.split, self.records.target, self.options.validation,
            self.options.chooses_threshold,
        )  # fmt: skip

    @cached_property
    def _texts(self) -> list[TokenizedText]:
        return self._tokenized(self.records.data)

    @cached_property
    def _test_texts(self) -> list[TokenizedText]:
        if self.records.has_own_test_set:
            return self._tokenized(self.records.test_data)
        return [self._texts[i] for i in self.records.test_index]

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
        options, target = self.options, self.records.target
        y = target.y[train]
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
        for index, fold in enumerate(self.division.folds):
            name = model_name(fold.repeat, fold.fold)
            file = folder / UNFINISHED / "folds" / f"{name}.json"
            if not file.is_file():
                work = folder / UNFINISHED / "checkpoints" / name
                content = json.dumps(asdict(self._one_fold(folder, work, index, fold))).encode()
                fsio.make_folder(file.parent)
                fsio.write_durably(file, content, scratch=file.parent)
                fsio.remove_tree(work)
            results.append(ModelResult(**json.loads(file.read_text("utf-8"))))
        return self._finish(folder, results)

    def _one_fold(self, folder: Path, work: Path, index: int, fold: FoldRecords) -> ModelResult:
        """Train a fold, keep its model and return its predictions."""
        split, seed = self.records.split, self.options.seed + 1_009 * index
        title = f"fold {fold.fold + 1} of {split.n_folds}"
        title += f", repeat {fold.repeat + 1}" if split.repeats > 1 else ""
        model = build_model(self._encoder, seed=seed, **self._head_settings(fold.train))
        model, trained = train_fold(
            Fold(
                name=title, texts=self._texts, target=self.records.target, train=fold.train,
                valid=fold.valid, seed=seed, options=self.options, device=self.device,
                pad_id=self.tokenizer.pad_id, work=work,
            ),
            model, progress=self.progress,
        )  # fmt: skip
        started = time.perf_counter()
        proba = self._proba(model, fold.held_out)
        predicted = time.perf_counter()
        shared = self.division.shared[1] if self.division.for_threshold else fold.threshold
        result = ModelResult(
            repeat=fold.repeat,
            fold=fold.fold,
            log=[{"repeat": fold.repeat, "fold": fold.fold, **line} for line in trained.log],
            epoch=trained.epoch,
            fit_seconds=trained.fit_seconds,
            predict_seconds=predicted - started,
            parameters=trained.parameters,
            proba=proba,
            test_proba=self._proba(model, None),
            valid_proba=self._proba(model, fold.valid),
            threshold_proba=self._proba(model, shared),
        )
        self._keep_model(model, folder, model_name(fold.repeat, fold.fold))
        return result

    def _proba(self, model: EncoderWithHead, index: Int64 | None) -> list[Any]:
        """Predictions for some records of the folds, or for the test set."""
        texts = self._test_texts if index is None else [self._texts[i] for i in index]
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
                model, self.tokenizer, ready, classes=self.records.target.classes,
                max_length=int(self.options.max_length or 0),
            )  # fmt: skip
        fsio.sync_tree(ready)
        fsio.publish_folder(ready, final)

    def _finish(self, folder: Path, results: Sequence[ModelResult]) -> FinetuneRun:
        """Write predictions, log, figures and ``run.json`` of folds that are all finished."""
        asked = self.options.threshold
        threshold = None if asked is None else Threshold.parse(asked)
        found = run_predictions(self.records, self.division, results, threshold)
        write_predictions(folder, found.predictions)
        log = [line for result in results for line in result.log]
        lines = "".join(json.dumps(line) + "\n" for line in log)
        fsio.write_durably(folder / "training.jsonl", lines.encode(), scratch=folder)
        self._keep_records(folder, results)
        draw_run(folder, found.predictions)
        classes = self.records.target.classes
        draw_training(folder, log, metric="macro-F1" if classes else "R²")
        content = self._content(folder, results, found)
        write_run(folder, content)
        return content

    def _keep_records(self, folder: Path, results: Sequence[ModelResult]) -> None:
        """Write the split, and beside the models which of them has not seen which record."""
        data, split = self.records.data, self.records.split
        write_split(split, folder / "split.parquet")
        models = FoldModels(
            models=tuple(model_name(result.repeat, result.fold) for result in results),
            fold_of_model=tuple(result.fold for result in results), split=split.fingerprint,
            source=data.source, repeats=split.repeats, prefix=self.options.prefix or "",
            max_length=int(self.options.max_length or 0),
        )  # fmt: skip
        keys = np.array(data.text_keys(), np.int64)
        SeenRecords(folder, models, split.row, keys, split.folds[:, 0]).write()

    def _content(
        self, folder: Path, results: Sequence[ModelResult], found: RunPredictions
    ) -> FinetuneRun:
        options, test, texts = self.options, self.records.test_data, self._texts
        settings = asdict(options) | {"head_learning_rate": options.head_rate}
        max_length = settings.pop("max_length")
        asked = settings.pop("threshold")
        parsed = Threshold(0.5, None) if asked is None else Threshold.parse(asked)
        on_gpu = self.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self.device) if on_gpu else peak_memory_bytes()
        split, predictions = self.records.split, found.predictions
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
            classes=self.records.target.classes,
            threshold=found.threshold,
            threshold_metric=parsed.metric,
            thresholds=found.thresholds,
            models=tuple(model_name(result.repeat, result.fold) for result in results),
            epochs=tuple(result.epoch for result in results),
            truncated=Truncated(
                records=sum(text.cut for text in texts),
                tokens=sum(text.n_tokens - text.n_kept for text in texts),
                tokens_all=sum(text.n_tokens for text in texts),
                limit=max_length,
            ),
            dataset=self._dataset(folder),
            split=SplitContent.of(split),
            records=RecordCounts(folds=len(split.in_folds), test=len(predictions.test)),
            test_set=None if not self.records.has_own_test_set else TestSetContent(
                source=test.source, rejected=sum(test.rejected.values()),
                seen_texts=count_seen(test.text_keys(), self.records.data.text_keys()),
            ),
            scores=reported_scores(predictions, seed=options.seed, beta=parsed.beta),
            per_class=class_scores(predictions),
            cost=Cost(
                fit_seconds=sum(result.fit_seconds for result in results),
                predict_seconds=sum(result.predict_seconds for result in results),
                peak_memory_bytes=int(peak),
                parameters=results[0].parameters,
                device=self.device.type,
            ),
            versions=versions() | _VERSIONS,
        )  # fmt: skip

    def _dataset(self, folder: Path) -> DatasetContent:
        data, checkpoint, identity = self.records.data, self.checkpoint, self.identity()
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


def model_name(repeat: int, fold: int) -> str:
    """Return the name of a model's folder."""
    return f"fold-{fold}" if not repeat else f"repeat-{repeat}-fold-{fold}"
