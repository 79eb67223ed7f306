"""Write predictions, log, figures and ``run.json`` of a run whose models are all trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from embedkit import fsio
from embedkit.classifiers.test_set import count_seen
from embedkit.dataset.fold_models import FoldModels, SeenRecords
from embedkit.dataset.vector_settings import ModelSettings
from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText
from embedkit.finetuning.data import RunRecords
from embedkit.finetuning.model_folder import model_name
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.results import (
    ModelResult,
    RunPredictions,
    run_predictions,
    uncalibrated,
)
from embedkit.finetuning.validation import Division
from embedkit.machine import peak_memory_bytes
from embedkit.runs.content import (
    Cost,
    DatasetContent,
    FinetuneRun,
    Names,
    RecordCounts,
    SplitContent,
    TestSetContent,
)
from embedkit.runs.figures import draw_run, draw_training
from embedkit.runs.folder import path_from, versions, write_run
from embedkit.runs.metrics import Threshold
from embedkit.runs.predictions import (
    Predictions,
    class_scores,
    metric_values,
    reported_scores,
    write_predictions,
)
from embedkit.runs.split_files import write_split
from embedkit.runs.training_content import (
    Calibration,
    EpochScores,
    ModelHistory,
    SeedScores,
    Tokens,
    Truncated,
)

__all__ = ["LIBRARIES", "RunSummary"]

LIBRARIES = {"torch": torch.__version__, "transformers": transformers.__version__}
"""Versions of the libraries that train."""

_CALIBRATION = ("calibration_error", "log_loss", "brier")
_EPOCH = ("train_loss", "train_accuracy", "valid_loss", "valid_accuracy", "valid_score")


@dataclass(frozen=True)
class RunSummary:
    """A run whose models are all trained.

    Attributes:
        records: of the run.
        division: of its training records.
        checkpoint: that training began from.
        tokenizer: of the checkpoint.
        options: of the training, with the values that were chosen for ``auto``.
        device: where it was trained.
        texts: the records of the split, tokenized.
        identity: everything that shaped the run.
    """

    records: RunRecords
    division: Division
    checkpoint: Checkpoint
    tokenizer: TextTokenizer
    options: TrainingOptions
    device: torch.device
    texts: tuple[TokenizedText, ...]
    identity: dict[str, Any]

    def write(self, folder: Path, results: Sequence[ModelResult]) -> FinetuneRun:
        """Write everything but the models into the folder of the run."""
        found = self._predictions(results)
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
        """Write the split, and beside the models which of them has not seen which record.

        Vectors come from the models of the first seed: those of several cannot be averaged.
        """
        data, split = self.records.data, self.records.split
        first = [result for result in results if result.seed == self.options.seed]
        write_split(split, folder / "split.parquet")
        models = FoldModels(
            models=tuple(self._name(result) for result in first),
            fold_of_model=tuple(result.fold for result in first), split=split.fingerprint,
            source=data.source, repeats=split.repeats, prefix=self.options.prefix or "",
            max_length=int(self.options.max_length or 0), on_long=self.options.on_long,
            stride=self.options.stride or 0,
        )  # fmt: skip
        keys = np.array(data.text_keys(), np.int64)
        SeenRecords(folder, models, split.row, keys, split.folds[:, 0]).write()

    def _predictions(self, results: Sequence[ModelResult]) -> RunPredictions:
        return run_predictions(self.records, self.division, results, self._threshold)

    @property
    def _threshold(self) -> Threshold | None:
        asked = self.options.threshold
        return None if asked is None else Threshold.parse(asked)

    def _values(self, predictions: Predictions) -> dict[str, dict[str, float]]:
        return metric_values(
            predictions, beta=None if self._threshold is None else self._threshold.beta
        )

    def _seeds(self, results: Sequence[ModelResult]) -> Iterator[SeedScores]:
        """Scores of each of several seeds by itself."""
        seeds = sorted({result.seed for result in results})
        for seed in seeds if len(seeds) > 1 else ():
            found = self._predictions([result for result in results if result.seed == seed])
            yield SeedScores(seed=seed, scores=self._values(found.predictions))

    def _calibration(
        self, results: Sequence[ModelResult], found: RunPredictions
    ) -> Calibration | None:
        if not self.options.calibrate:
            return None
        before = self._predictions(uncalibrated(results)).predictions
        scores = [
            {
                subset: {name: values[name] for name in _CALIBRATION}
                for subset, values in self._values(predictions).items()
            }
            for predictions in (before, found.predictions)
        ]
        temperatures = tuple(result.temperature for result in results)
        return Calibration(temperatures=temperatures, before=scores[0], after=scores[1])

    def _content(
        self, folder: Path, results: Sequence[ModelResult], found: RunPredictions
    ) -> FinetuneRun:
        options, test, texts = self.options, self.records.test_data, self.texts
        settings = asdict(options) | {"head_learning_rate": options.head_rate}
        max_length = settings.pop("max_length")
        settings.pop("threshold")
        threshold = self._threshold
        beta = threshold.beta if threshold else None
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
                prefix=settings.pop("prefix"), on_long=settings.pop("on_long"),
                stride=settings.pop("stride") or 0,
            ),
            settings=settings,
            views=(),
            classes=self.records.target.classes,
            threshold=found.threshold,
            threshold_metric=threshold.metric if threshold else None,
            thresholds=found.thresholds,
            models=tuple(self._name(result) for result in results),
            epochs=tuple(result.epoch for result in results),
            history=tuple(ModelHistory(self._name(r), _epochs(r.log)) for r in results),
            seeds=tuple(self._seeds(results)),
            calibration=self._calibration(results, found),
            truncated=Truncated(
                records=sum(text.cut for text in texts),
                tokens=sum(text.n_tokens - text.n_kept for text in texts),
                tokens_all=sum(text.n_tokens for text in texts),
                limit=max_length,
            ),
            dataset=self._dataset(folder),
            split=SplitContent.of(split),
            records=RecordCounts(folds=len(predictions.first_repeat), test=len(predictions.test)),
            test_set=None if not self.records.has_own_test_set else TestSetContent(
                source=test.source, rejected=sum(test.rejected.values()),
                seen_texts=count_seen(test.text_keys(), self.records.data.text_keys()),
            ),
            scores=reported_scores(predictions, seed=options.seed, beta=beta),
            per_class=class_scores(predictions),
            cost=Cost(
                fit_seconds=sum(result.fit_seconds for result in results),
                predict_seconds=sum(result.predict_seconds for result in results),
                peak_memory_bytes=int(peak),
                parameters=results[0].parameters,
                device=self.device.type,
            ),
            versions=versions() | LIBRARIES,
        )  # fmt: skip

    def _name(self, result: ModelResult) -> str:
        return model_name(result.repeat, result.fold, result.seed - self.options.seed)

    def _dataset(self, folder: Path) -> DatasetContent:
        data, checkpoint, identity = self.records.data, self.checkpoint, self.identity
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


def _epochs(log: Sequence[dict[str, Any]]) -> tuple[EpochScores, ...]:
    """Losses and scores of each epoch, from the lines of ``training.jsonl``."""
    found: dict[float, dict[str, float]] = {}
    for line in log:
        values = {name: line[name] for name in _EPOCH if name in line}
        if values:
            found.setdefault(line["epoch"], {}).update(values)
    return tuple(EpochScores(epoch=epoch, **found[epoch]) for epoch in sorted(found))
