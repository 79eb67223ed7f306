"""Contrastive fine-tuning: pairs of texts tune the encoder, then a classifier is fitted on it.

With a dozen labels a class there are few texts but many pairs of them, and "alike or not" can be
learnt from each (SetFit; Tunstall et al. 2022, arXiv:2209.11055)::

    training texts ─── pairs: alike (1) or not (0) ─── encoder ─── cosines ─── loss
                  └─── vectors of the tuned encoder ─── default classifier of ``train`` ─┐
    head: mean of the tokens, of length 1 ─── linear layer ◄── its coefficients ─────────┘

The loss is that of sentence-transformers, the classifier is the one that frozen vectors get, and
the training is :func:`~embedkit.finetuning.training.train_fold`'s; only the pairs are made here.
What comes out is an encoder with a head like any other: scaling and coefficients of the classifier
are one linear layer, so that nothing else has to know of contrastive training.

Pairs and classifier are of the training records of a fold. Validation records choose no epoch:
they stay aside for thresholds and blends, and may be left out (``validation=0``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from sklearn.pipeline import Pipeline
from torch import Tensor, nn
from torch.utils.data import Sampler

from embedkit.classifiers.estimators import EstimatorSettings
from embedkit.classifiers.tuning import Subset, fit
from embedkit.finetuning.heads import EncoderWithHead
from embedkit.finetuning.model import padded, predict_logits
from embedkit.finetuning.training import Fold, FoldResult, FoldTrainer, Totals, train_fold
from embedkit.runs.split import Split
from embedkit.types import Int64, ProgressCallback, no_progress
from embedkit.units.units import Units

_UNSEEN = -30.0  # log-odds of a class that has no training records, as in tuning


def train_contrastive(
    fold: Fold,
    model: EncoderWithHead,
    *,
    units: Units,
    split: Split,
    progress: ProgressCallback = no_progress,
) -> tuple[EncoderWithHead, FoldResult]:
    """Tune an encoder by pairs, and fit the last layer on its vectors; as :func:`train_fold`.

    Args:
        fold: of records.
        model: with the contrastive head.
        units: all records.
        split: whose groups the inner folds of the classifier keep together.
        progress: called with the steps.
    """
    # what train_fold does not see cannot choose an epoch: the last one is kept
    model, result = train_fold(
        replace(fold, valid=fold.valid[:0]), model, trainer=PairTrainer, progress=progress
    )
    started = time.process_time()
    last = model.classifier
    # a head without a last layer gives its vectors
    model.classifier, model.config.n_outputs = nn.Identity(), model.width
    about: dict[str, Any] = {"pad_id": fold.pad_id, "precision": fold.options.precision}
    vectors = np.zeros((len(units), model.width), np.float32)
    vectors[np.sort(fold.train)] = predict_logits(model, fold.texts_of(fold.train), **about)
    settings = EstimatorSettings.of(
        None, task="classification", class_weight=fold.options.class_weight, seed=fold.options.seed
    )
    there = replace(units, inputs=vectors.__getitem__)
    fitted = fit(Subset(there, fold.target, split, fold.train, fold.held_out), settings, tune=True)
    model.classifier, model.config.n_outputs = last, len(fold.target.classes)
    _set_layer(last, fitted.pipeline)
    result.fit_seconds += time.process_time() - started
    return model, result


def _set_layer(layer: Any, pipeline: Pipeline) -> None:
    """Give a linear layer the logits of a fitted pipeline, for rows of length 1."""
    scale, estimator = pipeline["scale"], pipeline["estimator"]
    # (classes, width): what the scaling subtracts and divides by is in weights and biases
    coef = estimator.coef_ / scale.scale_
    bias = estimator.intercept_ - coef @ scale.mean_
    if len(estimator.classes_) == 2:  # scikit-learn keeps the log-odds of the second class
        coef, bias = (np.concatenate([0 * a, a]) for a in (coef, bias))
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(_UNSEEN)
        layer.weight[estimator.classes_] = torch.from_numpy(coef).to(layer.weight)
        layer.bias[estimator.classes_] = torch.from_numpy(bias).to(layer.bias)


class PairTrainer(FoldTrainer):
    """The Trainer of a fold whose items are pairs of texts, as one number: first * n + second.

    An epoch has two pairs for each text, one with a text of its class, one with a text of another.
    """

    per_text = 2

    def __init__(self, fold: Fold, model: EncoderWithHead, totals: Totals, *more: Any) -> None:
        # an import of seconds that nothing else needs
        from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

        self._texts = np.unique(fold.record[fold.train])
        super().__init__(fold, model, totals, *more)
        totals.pop("right", None)  # pairs have no predicted class

        # what the loss needs of a SentenceTransformer
        def embedded(batch: dict[str, Tensor]) -> Any:
            return {"sentence_embedding": model(**batch).hidden_states[0]}

        self._loss = CosineSimilarityLoss(cast("Any", embedded))

    def items(self) -> Sequence[int]:
        """Return the numbers of all pairs, of which an epoch takes some."""
        return range(len(self._texts) ** 2)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return PairSampler(self.fold.target.y[self._texts], self.fold.seed)

    def _collate(self, items: Sequence[int]) -> dict[str, Any]:
        fold, y = self.fold, self.fold.target.y
        first, second = (self._texts[part] for part in np.divmod(items, len(self._texts)))
        alike = torch.from_numpy((y[first] == y[second]).astype(np.float32))
        batches = [padded(fold.texts[part], fold.pad_id) for part in (first, second)]
        return {"pairs": batches, "labels": alike}

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any
    ) -> Any:
        """Compute the loss of a batch of pairs, and count it."""
        loss, totals = self._loss(inputs["pairs"], inputs["labels"]), self._totals
        totals["texts"] += len(inputs["labels"])
        totals["loss"] += loss.detach().double() * len(inputs["labels"])
        return (loss, {}) if return_outputs else loss


class PairSampler(Sampler[int]):
    """Pairs of an epoch in random order, by seed and epoch alone.

    >>> pairs = [divmod(pair, 4) for pair in PairSampler(np.array([0, 1, 0, 1]), seed=0)]
    >>> sorted(first for first, _ in pairs)
    [0, 0, 1, 1, 2, 2, 3, 3]
    """

    def __init__(self, y: Int64, seed: int) -> None:
        self._y, self._seed, self._epoch = y, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose pairs follow."""
        self._epoch = epoch

    def __len__(self) -> int:
        # a text that is the only one of its class has no partner in it
        sizes = np.bincount(self._y)
        return len(self._y) + int(sizes[sizes > 1].sum())

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self._seed, self._epoch])
        pairs = []
        for label in np.unique(self._y):
            members, others = np.flatnonzero(self._y == label), np.flatnonzero(self._y != label)
            pairs.append(members * len(self._y) + random.choice(others, len(members)))
            if (size := len(members)) > 1:
                # by a step of 1 to size - 1, so that no text is its own partner
                steps = random.integers(1, size, size)
                partners = members[(np.arange(size) + steps) % size]
                pairs.append(members * len(self._y) + partners)
        yield from random.permutation(np.concatenate(pairs)).tolist()
