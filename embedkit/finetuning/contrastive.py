"""Contrastive fine-tuning: pairs of texts tune the encoder, then a classifier is fitted on it.

With a dozen labels a class there are few texts but many pairs of them, and "alike or not" can be
learnt from each (Tunstall et al. 2022, arXiv:2209.11055)::

    training texts ─── batch ─── encoder ─── cosines of all its pairs: alike (1) or not (0) ─── loss
                  └─── vectors of the tuned encoder ─── logistic regression ─┐
    head: mean of the tokens, of length 1 ─── linear layer ◄── coefficients ─┘

A batch of 16 texts has 120 pairs, each of which counts, whereas pairs drawn one by one pass two
texts through the encoder for one cosine. Two texts of a class stand together in the order of an
epoch, so that batches have pairs of both kinds however many classes there are.

The training is :func:`~embedkit.finetuning.training.train_fold`'s; only the loss and the order are
made here. What comes out is an encoder with a head like any other: the coefficients are a linear
layer, so that nothing else has to know of contrastive training.

The strength of the regression is not chosen in inner folds, as that of the classifier of frozen
vectors is: the encoder has been tuned with the labels of all of them, so that every penalty seems
too strong. Of 96 questions the log-loss of held-out ones was 1.21 so, and 0.52 with this strength.

Pairs and classifier are of the training records of a fold. Validation records would choose no
epoch, so that there are none by default; ``validation=0.1`` keeps some for stacked blends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import Sampler

from embedkit.errors import UsageError
from embedkit.finetuning.heads import EncoderWithHead
from embedkit.finetuning.model import predict_logits
from embedkit.finetuning.training import Fold, FoldResult, FoldTrainer, LengthSampler, train_fold
from embedkit.types import Int64, ProgressCallback, no_progress

_STRENGTH = 10.0  # C of the regression on vectors of length 1
_UNSEEN = -30.0  # log-odds of a class that has no training records, as in tuning


def train_contrastive(
    fold: Fold, model: EncoderWithHead, *, progress: ProgressCallback = no_progress
) -> tuple[EncoderWithHead, FoldResult]:
    """Tune an encoder by pairs, and fit the last layer on its vectors; as :func:`train_fold`.

    Args:
        fold: of records.
        model: with the contrastive head.
        progress: called with the steps.

    Raises:
        UsageError: all training records are of one class.
    """
    y = fold.target.y[fold.train]
    if len(np.unique(y)) < 2:
        problem = f"{fold.name}: its {len(y)} training records are of one class, and two are needed"
        raise UsageError(f"{problem}. Take labels, or another split.", objective="contrastive")
    # what train_fold does not see cannot choose an epoch: the last one is kept
    model, result = train_fold(
        replace(fold, valid=fold.valid[:0]), model, trainer=PairTrainer, progress=progress
    )
    started = time.process_time()
    last = model.classifier
    # a head without a last layer gives its vectors
    model.classifier, model.config.n_outputs = nn.Identity(), model.width
    texts, precision = fold.texts_of(fold.train), fold.options.precision
    vectors = predict_logits(model, texts, precision=precision).numpy()
    model.classifier, model.config.n_outputs = last, len(fold.target.classes)
    weights = fold.options.class_weight
    regression = LogisticRegression(C=_STRENGTH, class_weight=weights, max_iter=1_000)
    _set_layer(last, regression.fit(vectors, y))
    result.fit_seconds += time.process_time() - started
    return model, result


def _set_layer(layer: Any, regression: LogisticRegression) -> None:
    """Give a linear layer the logits of a fitted regression."""
    coef, bias = regression.coef_, regression.intercept_
    if len(regression.classes_) == 2:  # scikit-learn keeps the log-odds of the second class
        coef, bias = (np.concatenate([0 * a, a]) for a in (coef, bias))
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(_UNSEEN)
        layer.weight[regression.classes_] = torch.from_numpy(coef).to(layer.weight)
        layer.bias[regression.classes_] = torch.from_numpy(bias).to(layer.bias)


class PairTrainer(FoldTrainer):
    """The Trainer of a fold whose loss is of the pairs of texts in a batch."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        fold = self.fold
        return CoupleSampler(fold.target.y[np.unique(fold.record[fold.train])], fold.seed)

    def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
        """Compute the loss of a batch's pairs, and count it."""
        labels, totals = inputs.pop("labels"), self._totals
        loss = pair_loss(model(**inputs).hidden_states[0].float(), labels)
        totals["texts"] += len(labels)
        # no "right" ones: pairs have no predicted class
        totals["loss"] += loss.detach().double() * len(labels)
        return loss


def pair_loss(vectors: Tensor, labels: Tensor) -> Tensor:
    """Return how far the cosines of all pairs are from 1 in a class, and from 0 between classes.

    It is the mean square of the former and that of the latter, half each: there are as many times
    more of the latter as there are classes.

    >>> alike, other = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> float(pair_loss(torch.cat([alike, other]), torch.tensor([0, 0, 1])))
    0.0

    Args:
        vectors: ``(texts, width)``, of length 1.
        labels: ``(texts,)``.
    """
    first, second = torch.triu_indices(len(labels), len(labels), offset=1, device=labels.device)
    alike = (labels[first] == labels[second]).to(vectors.dtype)
    squares = ((vectors[first] * vectors[second]).sum(1) - alike).square()
    kinds = torch.stack([alike, 1 - alike])
    # a small batch may lack one kind
    return ((kinds * squares).sum(1) / kinds.sum(1).clamp(min=1)).mean()


class CoupleSampler(LengthSampler):
    """Order of an epoch, by seed and epoch alone; two texts of a class stand together.

    >>> y = np.array([0, 1, 0, 1])
    >>> [y[text].item() for text in CoupleSampler(y, seed=0)] in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """

    def __init__(self, y: Int64, seed: int) -> None:
        super().__init__(y, 1, seed)

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self._seed, self._epoch])
        couples: list[Int64] = []
        for label in np.unique(self._values):
            members = random.permutation(np.flatnonzero(self._values == label))
            # the last one of an odd number stands alone
            couples += np.split(members, range(2, len(members), 2))
        random.shuffle(couples)
        yield from np.concatenate(couples).tolist()
