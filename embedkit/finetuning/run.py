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
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embedkit import fsio
from embedkit._version import __version__
from embedkit.encoding.checkpoint import Checkpoint
from embedkit.encoding.model import PlainModel, load_model
from embedkit.encoding.tokenization import TextTokenizer, TokenizedText, TokenizerSettings
from embedkit.finetuning.batches import predict_logits
from embedkit.finetuning.calibration import divide_logits, fit_temperature
from embedkit.finetuning.data import RunRecords, TextData
from embedkit.finetuning.frozen import FrozenStates
from embedkit.finetuning.heads import EncoderWithHead, build_model, pooler_layer
from embedkit.finetuning.model_folder import model_name, write_model
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.results import ModelResult
from embedkit.finetuning.summary import LIBRARIES, RunSummary
from embedkit.finetuning.training import Fold, saving, train_fold
from embedkit.finetuning.validation import Division
from embedkit.runs.content import FinetuneRun
from embedkit.runs.folder import UNFINISHED
from embedkit.types import Int64, ProgressCallback

__all__ = ["FoldsOfRun"]

logger = logging.getLogger(__name__)

_FOLD_SEED = 1_009


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
            "test": self._test_identity(),
            "model": dict(sorted(self.checkpoint.sha256.items())),
            **asdict(self.options),
            "device": self.device.type,
            "versions": {"embedkit": __version__, **LIBRARIES},
        }

    def _test_identity(self) -> dict[str, Any] | None:
        test = self.records.test_data
        if not self.records.has_own_test_set:
            return None
        return {"source": list(test.source), "reading": test.reading}

    def check(self) -> None:
        """Raise a :class:`UsageError` if windows are empty or validation records too few."""
        self.tokenizer.room(self._tokens, paired=self.records.data.pairs is not None)
        self.division.check(self.options.threshold)

    @cached_property
    def division(self) -> Division:
        """Training and validation records of every fold."""
        return Division(
            self.records.split, self.records.target, self.options.validation,
            self.options.chooses_threshold,
        )  # fmt: skip

    @property
    def _tokens(self) -> TokenizerSettings:
        options = self.options
        assert options.max_length is not None
        return TokenizerSettings(
            options.max_length, options.on_long, options.stride or 0, options.prefix or ""
        )

    @cached_property
    def _texts(self) -> list[TokenizedText]:
        return self._tokenized(self.records.data)

    @cached_property
    def _test_texts(self) -> list[TokenizedText]:
        if self.records.has_own_test_set:
            return self._tokenized(self.records.test_data)
        return [self._texts[i] for i in self.records.test_index]

    def _tokenized(self, data: TextData) -> list[TokenizedText]:
        found = self.tokenizer.encode(data.texts, data.pairs, settings=self._tokens)
        if cut := sum(text.cut for text in found):
            logger.warning(
                "%s of %s texts of %s have more than max_length=%s tokens; what is beyond is not "
                "seen", f"{cut:,}", f"{len(found):,}", data.name, self.options.max_length,
            )  # fmt: skip
        return found

    @cached_property
    def _frozen(self) -> FrozenStates:
        return FrozenStates(self._texts, self.options, pad_id=self.tokenizer.pad_id)

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
        if options.dropout is not None:
            settings["dropout"] = options.dropout
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
        """Train the models that are not finished, and write the run into its folder."""
        results = []
        folds = self.division.folds
        for number, index in product(range(self.options.seeds), range(len(folds))):
            name = model_name(folds[index].repeat, folds[index].fold, number)
            file = folder / UNFINISHED / "folds" / f"{name}.json"
            result = _read_result(file, folder / "model" / name)
            if result is None:
                work = folder / UNFINISHED / "checkpoints" / name
                result = self._one_model(folder, work, index, number)
                fsio.make_folder(file.parent)
                content = json.dumps(_sealed(result, folder / "model" / name)).encode()
                fsio.write_durably(file, content, scratch=file.parent)
                fsio.remove_tree(work)
            results.append(result)
        return RunSummary(
            self.records, self.division, self.checkpoint, self.tokenizer, self.options, self.device,
            tuple(self._texts), self.identity(),
        ).write(folder, results)  # fmt: skip

    def _one_model(self, folder: Path, work: Path, index: int, number: int) -> ModelResult:
        """Train a fold with one of the seeds, keep its model and return its predictions."""
        split, fold, options = self.records.split, self.division.folds[index], self.options
        seed = options.seed + number + _FOLD_SEED * index
        title = f"fold {fold.fold + 1} of {split.n_folds}"
        title += f", repeat {fold.repeat + 1}" if split.repeats > 1 else ""
        title += f", seed {number + 1} of {options.seeds}" if options.seeds > 1 else ""
        model = build_model(self._encoder, seed=seed, **self._head_settings(fold.train))
        training = Fold(
            name=title, texts=self._texts, target=self.records.target, train=fold.train,
            valid=fold.valid, seed=seed, options=self.options, device=self.device,
            pad_id=self.tokenizer.pad_id, work=work, frozen=self._frozen,
        )  # fmt: skip
        model, trained = train_fold(training, model, progress=self.progress)
        temperature = self._calibrated(training, model) if options.calibrate else 1.0
        started = time.perf_counter()
        proba = self._proba(model, [self._texts[i] for i in fold.held_out])  # timed: all layers
        predicted = time.perf_counter()
        shared = self.division.shared[1] if self.division.for_threshold else fold.threshold
        position = {"repeat": fold.repeat, "fold": fold.fold, "seed": options.seed + number}
        result = ModelResult(
            **position,
            log=[{**position, **line} for line in trained.log],
            epoch=trained.epoch,
            fit_seconds=trained.fit_seconds,
            predict_seconds=predicted - started,
            parameters=trained.parameters,
            temperature=temperature,
            proba=proba,
            test_proba=self._proba(model, self._test_texts),
            valid_proba=_proba(model, training.logits(fold.valid, model)),
            threshold_proba=_proba(model, training.logits(shared, model)),
        )
        self._keep_model(model, folder, model_name(fold.repeat, fold.fold, number))
        return result

    def _calibrated(self, fold: Fold, model: EncoderWithHead) -> float:
        """Divide the logits of a model by the temperature that suits its validation records."""
        proba = _proba(model, fold.logits(fold.valid, model))
        temperature = fit_temperature(proba, self.records.target.y[fold.valid])
        divide_logits(model, temperature)
        return temperature

    def _proba(self, model: EncoderWithHead, texts: Sequence[TokenizedText]) -> list[Any]:
        logits = predict_logits(
            model, texts, pad_id=self.tokenizer.pad_id, precision=self.options.precision
        )
        return _proba(model, logits)

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
                max_length=int(self.options.max_length or 0), siblings=final.parent,
            )  # fmt: skip
        fsio.sync_tree(ready)
        fsio.publish_folder(ready, final)


def _read_result(file: Path, model: Path) -> ModelResult | None:
    """What an earlier attempt kept of a model; ``None`` if it is nothing, or a bit changed."""
    if not file.is_file():
        return None
    try:
        content = file.read_text("utf-8")
        result = ModelResult(**json.loads(content)["result"])
        if content == json.dumps(_sealed(result, model)):
            return result
    except (OSError, ValueError, KeyError, TypeError):
        pass
    logger.warning("%s is damaged: the model %s is trained again", model.parent.parent, model.name)
    return None


def _sealed(result: ModelResult, model: Path) -> dict[str, Any]:
    """A result with its hash, and those of the files of its model."""
    fields = asdict(result)
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    files = {p.name: fsio.file_sha256(p) for p in sorted(model.iterdir()) if p.is_file()}
    return {"result": fields, "sha256": digest, "files": files}


def _proba(model: EncoderWithHead, logits: torch.Tensor) -> list[Any]:
    return list(model.outputs(logits).tolist())
