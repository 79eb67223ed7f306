"""Predict labels of new texts with a run, or with a checkpoint for classification.

Texts are encoded as the dataset of the run was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit.dataset.store import VectorData, load
from embedkit.dataset.vector_settings import DatasetEncoder, encode_as, normal_form
from embedkit.encoding.tokenization import Spans
from embedkit.encoding.word_index import split_words, word_spans
from embedkit.errors import DamagedError, UsageError
from embedkit.runs.content import FinetuneRun, PredictionRun, Run, TrainRun
from embedkit.runs.folder import read_run
from embedkit.runs.predictions import decide
from embedkit.runs.reencoding import check_alike, dataset_content, joined_pairs, words_of_texts
from embedkit.types import Float64, Progress, ProgressCallback, no_progress

__all__ = ["Prediction", "Predictor", "WordPrediction", "parse_label_names", "predictions_of"]


_Place = tuple[int, int, int, int]
"""Number of a text, of a word in it, and the start and end of the word."""

_CHUNK = 4_096


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one text.

    Attributes:
        label: the likeliest label, of two the one that the run's threshold decides on; of a
            regression the value as text.
        proba: probability of every label by its readable name; empty for a regression.
        value: value of a regression; ``None`` for labels.
    """

    label: str
    proba: dict[str, float]
    value: float | None = None


@dataclass(frozen=True, slots=True)
class WordPrediction:
    """The prediction for one word.

    Attributes:
        word: its number in the text.
        text: the word.
        start: its first character in the text.
        end: the one after its last.
        prediction: label and probabilities.
    """

    word: int
    text: str
    start: int
    end: int
    prediction: Prediction


class Predictor:
    """A run or a checkpoint that is ready to predict.

    Args:
        run: folder that ``train`` or ``finetune`` wrote; or folder or hub id of a
            ``*ForSequenceClassification`` checkpoint.
        label_names: readable names of labels, such as ``{"0": "negative"}``.
        device: where the encoder runs.
        model: another location of the checkpoint of a run on vectors, if it was moved.
        few_texts: be ready soon, where the encoder of a run can do without torch; many texts take
            longer.
        verify: compare the models of a run with their checksums; without, damage goes unnoticed.

    Attributes:
        content: the content of ``run.json``; ``None`` for a checkpoint.
        names: readable names of the classes, by class number; empty for a regression.

    Raises:
        UsageError: there is no such run, it holds no model, or a label has no such name.
        ModelError: the checkpoint has no classifier that can be read.
        DamagedError: a file of the run cannot be read.
        MismatchError: the checkpoint found is not the one that made the vectors.

    Example:
        >>> predictor = embedkit.Predictor("runs/logreg", label_names={"1": "river"})
        >>> predictor.predict(["the river bank of town 20"])[0].label
        'river'
    """

    def __init__(
        self,
        run: str | Path,
        *,
        label_names: Mapping[str, str] | None = None,
        device: str = "auto",
        model: str | None = None,
        few_texts: bool = False,
        verify: bool = True,
    ) -> None:
        self.run = Path(run)
        self.content: PredictionRun | None = None
        if _is_checkpoint(str(run)):
            self._model, classes = _checkpoint(str(run), device=device, model=model)
        else:
            content = read_run(self.run)
            if type(content) not in _MODELS:
                raise UsageError(
                    f"{self.run} is a {content.kind} run, which holds no model. "
                    "Give a run of embedkit train or finetune."
                )
            assert isinstance(content, PredictionRun)
            self.content, classes = content, content.classes
            _readable(classes, label_names or {})  # before a model is loaded
            self._model = _MODELS[type(content)](
                self.run, content, device=device, model=model, few_texts=few_texts, verify=verify
            )
        self.names = _readable(classes, label_names or {})

    def __repr__(self) -> str:
        return f"Predictor({str(self.run)!r}, classes={list(self.names)})"

    @property
    def takes_pairs(self) -> bool | None:
        """Whether the run was made on pairs of texts; ``None`` for a checkpoint: it takes both."""
        return None if self.content is None else self.content.dataset.pairs

    def predict_proba(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Float64:
        """Return probabilities ``(n, classes)`` float64, or values ``(n,)`` of a regression.

        Args:
            texts: ``n`` texts.
            pairs: ``n`` second texts, for a run that was made on pairs.

        Raises:
            TypeError: ``texts`` or ``pairs`` is a single string.
            UsageError: pairs were given or are missing, unlike in the run's dataset; or the run
                labels words.
        """
        self._check_level("sentence")
        for name, value in (("texts", texts), ("pairs", pairs)):
            if isinstance(value, str):
                raise TypeError(f"{name}={value!r} is a string; pass a list of strings.")
        if self.takes_pairs not in (None, pairs is not None):
            made, wanted = "single texts", "one"
            if self.takes_pairs:
                made, wanted = "pairs of texts", "a second text too (pairs=)"
            raise UsageError(f"{self.run} was made on {made}; give {wanted}.")
        if not texts:
            return np.zeros((0, len(self.names)) if self.names else (0,))
        form = "none" if self.content is None else self.content.dataset.unicode
        first = [normal_form(text, form) for text in texts]
        second = None if pairs is None else [normal_form(text, form) for text in pairs]
        return self._checked(self._model.predict_proba(first, second))

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Prediction]:
        """Return the prediction for each text; arguments and errors as for `predict_proba`."""
        return self._predictions(self.predict_proba(texts, pairs))

    def predict_words(
        self, texts: Sequence[str], *, spans: Spans | None = None
    ) -> list[list[WordPrediction]]:
        """Return the predictions for the words of each text, by a run that labels words.

        Args:
            texts: ``n`` texts.
            spans: start and end of the words of each text; by default those between white space,
                of a run on words that a corpus marked runs of letters and digits, and each other
                character by itself. A word that the model does not see has no prediction.

        Raises:
            TypeError: ``texts`` is a single string.
            UsageError: the run labels texts.

        Example:
            >>> predictor = embedkit.Predictor("runs/tagger")
            >>> (words,) = predictor.predict_words(["the river bank of town 20"])
            >>> [(word.text, word.prediction.label) for word in words[:3]]
            [('the', 'DET'), ('river', 'NOUN'), ('bank', 'NOUN')]
        """
        if isinstance(texts, str):
            raise TypeError(f"texts={texts!r} is a string; pass a list of strings.")
        self._check_level("word")
        assert self.content is not None
        if spans is None:
            texts = [normal_form(text, self.content.dataset.unicode) for text in texts]
            divide = split_words if self.content.dataset.marked_words else word_spans
            spans = [divide(text) for text in texts]
        places, values = self._model.predict_words(texts, spans)
        made: list[list[WordPrediction]] = [[] for _ in texts]
        for (record, word, start, end), one in zip(places, self._predictions(values), strict=True):
            text = texts[record][start:end]
            made[record].append(WordPrediction(word, text, start, end, one))
        return made

    @property
    def labels_words(self) -> bool:
        """Whether the run labels the words of texts, not texts."""
        return self.content is not None and self.content.level == "word"

    def _check_level(self, level: str) -> None:
        if self.labels_words != (level == "word"):
            what, use = ("words", "predict_words") if self.labels_words else ("texts", "predict")
            raise UsageError(f"{self.run} labels {what}. Use {use}().")

    def predict_stored(
        self, dataset: str | Path, *, progress: ProgressCallback = no_progress
    ) -> tuple[VectorData, list[Prediction]]:
        """Return a dataset and the prediction for each of its records, or of its words.

        A run on vectors reads the stored ones; nothing is encoded again.

        Args:
            dataset: folder that ``extract`` wrote.
            progress: called after every chunk of records.

        Raises:
            UsageError: the dataset does not hold what the run reads.
            MismatchError: its vectors were made with other settings than those of the run.
        """
        views = [] if self.content is None else list(self.content.views)
        level = "sentence" if self.content is None else self.content.level
        data = load(dataset, views or None, level=level)
        if self.content is not None:
            check_alike(
                dataset_content(data), self.content.dataset, name=str(dataset),
                vectors=bool(views), level=level,
            )  # fmt: skip
        if views:
            X = data.X
            return data, self._in_chunks(
                len(X), lambda part: self._model.predict_vectors(X[part]), progress
            )
        if not data.manifest.job.storage.text:
            raise UsageError(f"{dataset} stores no texts; give the corpus file itself.")
        paired = data.manifest.job.input.text_pair is not None
        pairs = [str(text) for text in data.column("text_pair")] if paired else None
        texts = data.text
        return data, self._in_chunks(
            len(texts),
            lambda part: self._model.predict_proba(texts[part], pairs and pairs[part]),
            progress,
        )

    def _in_chunks(
        self, n: int, predict: Callable[[slice], Any], progress: ProgressCallback
    ) -> list[Prediction]:
        found: list[Prediction] = []
        progress(Progress("predicting", 0, n, "records"))
        for start in range(0, n, _CHUNK):
            found += self._predictions(predict(slice(start, start + _CHUNK)))
            progress(Progress("predicting", min(start + _CHUNK, n), n, "records"))
        return found

    def _checked(self, values: Any) -> Float64:
        """What a model gave: a finite number for each class, or a value."""
        found = np.asarray(values, np.float64)
        if found.shape[1:] != (len(self.names),) * bool(self.names) or not np.isfinite(found).all():
            raise DamagedError(
                f"the model in {self.run} gives {found.shape[1:] or 'values'} or no finite numbers "
                f"for the classes {', '.join(self.names) or '(none)'}. Make it again."
            )
        return found

    def _predictions(self, values: Any) -> list[Prediction]:
        proba = self._checked(values)
        threshold = None if self.content is None else self.content.threshold
        y_pred = decide(proba, threshold=threshold)
        return list(predictions_of(proba, y_pred, self.names))


def predictions_of(
    proba: Float64, y_pred: NDArray[Any], names: Sequence[str]
) -> Iterator[Prediction]:
    """Yield predictions for probabilities ``(n, classes)`` and decisions, or values ``(n,)``."""
    for row, decided in zip(proba, y_pred, strict=True):
        if names:
            by_name = dict(zip(names, row.tolist(), strict=True))
            yield Prediction(names[decided], by_name)
        else:
            yield Prediction(f"{row:.6g}", {}, float(row))


class _Trained:
    """A scikit-learn pipeline on vectors or on texts."""

    def __init__(
        self, run: Path, content: TrainRun, *, device: str, model: str | None, few_texts: bool,
        verify: bool,
    ) -> None:  # fmt: skip
        from embedkit.classifiers.saved import load_model

        self.predict_vectors = load_model(run, verify=verify)
        self._encoder: DatasetEncoder | None = None
        self._nothing = np.zeros((0, len(content.classes)) if content.classes else 0)
        if content.views:
            self._encoder = encode_as(
                content.dataset, content.views, owner=str(run), device=device, model=model,
                few_texts=few_texts,
            )  # fmt: skip

    def predict_proba(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Any:
        if self._encoder is None:
            return self.predict_vectors(joined_pairs(texts, pairs))
        return self.predict_vectors(self._encoder(texts, pairs))

    def predict_words(self, texts: Sequence[str], spans: Spans) -> tuple[list[_Place], Any]:
        """The words that are predicted, and their probabilities or values."""
        if self._encoder is None:
            record, word, words = words_of_texts(texts, spans)
            ends = np.concatenate([np.empty((0, 2), int), *map(np.asarray, spans)])
            features: Any = words
        else:
            found = self._encoder.words(texts, spans=spans)
            record, word, features = found.row, found.word.astype(np.int64), found.X
            ends = np.stack([found.start, found.end], axis=1)
        columns = (values.tolist() for values in (record, word, ends[:, 0], ends[:, 1]))
        places = list(zip(*columns, strict=True))
        return places, self.predict_vectors(features) if places else self._nothing


def _finetuned(
    run: Path, content: FinetuneRun, *, device: str, model: str | None, few_texts: bool,
    verify: bool,
) -> Any:  # fmt: skip
    if model is not None:
        raise UsageError(f"model={model!r}: {run} is a fine-tuned run, which has its own models.")
    if few_texts and device in ("auto", "cpu"):
        from embedkit.finetuning.few_texts import FewTextsRun

        if (found := FewTextsRun.load(run, content, verify=verify)) is not None:
            return found
    from embedkit.finetuning.inference import FinetunedRun

    return FinetunedRun(run, content, device=device, verify=verify)


def _checkpoint(name: str, *, device: str, model: str | None) -> tuple[Any, Sequence[str]]:
    """A checkpoint for classification, and its labels."""
    from embedkit.finetuning.classifier import CheckpointClassifier

    if model is not None:
        raise UsageError(f"model={model!r}: {name} is a checkpoint itself.")
    found = CheckpointClassifier(name, device=device)
    return found, found.classes


_MODELS: Mapping[type[Run], Callable[..., Any]] = {TrainRun: _Trained, FinetuneRun: _finetuned}
"""Opens the model of each kind of run that has one."""


def _is_checkpoint(name: str) -> bool:
    """Whether a name is that of a checkpoint: a folder with ``config.json``, or a hub id.

    ``owner/name`` is a hub id where there is no folder ``owner``; else a run is missing in it.
    """
    path = Path(name)
    if path.exists():
        return (path / "config.json").is_file() and not (path / "run.json").is_file()
    return name.count("/") == 1 and name[0] not in "./~" and not path.parent.exists()


def _readable(classes: Sequence[str], label_names: Mapping[str, str]) -> list[str]:
    for name in label_names:
        if name not in classes:
            raise UsageError(
                f"label_names=: the run has no label {name!r}; it has "
                f"{', '.join(classes) or 'values, not labels'}."
            )
    names = [label_names.get(name, name) for name in classes]
    if len(set(names)) < len(names):
        raise UsageError(f"label_names=: two labels have the same name: {', '.join(names)}.")
    return names


def parse_label_names(text: str | None) -> dict[str, str]:
    """Return ``0=negative,1=positive`` as a mapping.

    >>> parse_label_names("0=negative,1=positive")
    {'0': 'negative', '1': 'positive'}

    Raises:
        UsageError: it is not of that form.
    """
    names = {}
    for item in (text or "").split(","):
        if not item.strip():
            continue
        label, equals, name = item.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"label_names={text!r}: expected LABEL=NAME,LABEL=NAME.")
        names[label.strip()] = name.strip()
    return names
