"""Prediction of new texts with a run, or with a checkpoint for classification.

Texts are encoded as the dataset of the run was.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain, islice
from operator import index
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from embedkit.arguments import accepts, strings_of
from embedkit.corpus.memory import InputFile, input_files
from embedkit.corpus.plan import CorpusOptions, CorpusPlan, names_texts, plan_further, spans_of
from embedkit.corpus.records import CorpusReader, Record, check_spans, sentence_spans
from embedkit.corpus.tables import BadRecordError
from embedkit.dataset.encoders import encode_as
from embedkit.dataset.format import dataset_folder, is_dataset
from embedkit.dataset.read import load
from embedkit.display import count_text
from embedkit.encoding.windows import match
from embedkit.encoding.words import Spans
from embedkit.errors import CorpusError, DamagedError, ModelError, Option, UsageError
from embedkit.prediction_files import (
    PredictedRecord,
    Prediction,
    Submission,
    check_file,
    check_submission,
    parse_submission,
    predictions_of,
    with_columns,
    write_prediction_file,
)
from embedkit.runs.folder import check_alike, is_run, read_run
from embedkit.runs.predictions import decide
from embedkit.runs.run import FinetuneRun, PredictionRun, TrainRun
from embedkit.types import AnyPath, Float64, Progress, ProgressCallback, Reloaded, no_progress
from embedkit.units.units import Units, beside_numbers, lacks_column

logger = logging.getLogger(__name__)

# records in memory at once: vectors are small, of texts a chunk fills the batches of an encoder
_CHUNK, _CHUNK_OF_TEXTS = 4_096, 256


class Predictor(Reloaded):
    """A run or a checkpoint that is ready to predict.

    Args:
        run: folder that ``train`` or ``finetune`` wrote; or folder or hub id of a
            ``*ForSequenceClassification`` checkpoint.
        label_names: readable names of labels, such as ``{"0": "negative"}``.
        device: where the encoder runs.
        model: another location of the checkpoint of a run on vectors, if it was moved.
        warm: load everything at once, and predict a text, so that the first answer is as fast as
            the second. Without it the encoder of a run on vectors is loaded for the first text,
            which stored vectors do not need.
        head: the class of the user's own with which the run was fine-tuned, or ``module:Class``. A
            file decides on no code that runs, so that such a run needs it again.

    Attributes:
        content: the content of ``run.json``; ``None`` for a checkpoint.
        names: readable names of the classes, by class number; empty for a regression.
        columns: numeric columns that the run reads beside the texts.
        reads_pairs: true for a run that was made on pairs of texts.
        labels_words: true for a run that labels the words of texts.
        marks: true if punctuation marks are words, as a treebank has them.

    Raises:
        UsageError: there is no such run, it holds no model, or it has no such label.
        ModelError: the checkpoint has no classifier that can be read.
        DamagedError: a file of the run cannot be read.
        MismatchError: the checkpoint is not the one that made the vectors.

    Example:
        >>> predictor = embedkit.Predictor("runs/logreg", label_names={"1": "river"})
        >>> predictor.predict("the river bank of town 20").label
        'river'
    """

    @accepts()
    def __init__(
        self,
        run: AnyPath,
        *,
        label_names: Mapping[str, str] | None = None,
        device: str = "auto",
        model: AnyPath | None = None,
        head: Any = None,
        warm: bool = True,
    ) -> None:
        super().__init__(locals())
        self.run, self._told, self._unseen = Path(run), set[str](), 0
        self._load(run, label_names or {}, device, model, head)
        content = self.content
        self.columns = () if content is None else content.columns
        self.reads_pairs = content is not None and content.dataset.pairs
        self.labels_words = content is not None and content.level == "word"
        self.marks = content is not None and content.dataset.marked_words
        # a text of no meaning, of the kind that the run takes; what comes out is not looked at
        if warm:
            numbers = {name: [0.0] for name in self.columns}
            units = Units.of_texts(
                ["warm"], ["warm"] if self.reads_pairs else None, columns=numbers
            )
            units = units.words_of([None], marks=self.marks) if self.labels_words else units
            self._model.predict(units)

    def _load(
        self, run: AnyPath, names: Mapping[str, str], device: str, model: AnyPath | None, head: Any
    ) -> None:
        content = None if _is_checkpoint(os.fspath(run)) else read_run(self.run)
        if not isinstance(content, TrainRun | FinetuneRun | None):
            raise UsageError(
                f"{self.run} is a {content.kind} run, which holds no model. Give one of train or "
                "finetune."
            )
        self.content = content
        if model is not None and not isinstance(content, TrainRun):
            raise UsageError(f"{self.run} has its own model. Leave it out.", model=model)
        if head is not None and isinstance(content, TrainRun):
            raise UsageError(f"{self.run} has no head. Leave it out.", head=head)
        if content is not None:
            self.names = _readable(content.classes, names)
        if isinstance(content, TrainRun):
            self._model: Any = _Trained(self.run, content, device=device, model=model)
            return
        # imported here: transformers takes seconds, which a run on vectors may not need
        from embedkit.finetuning.checkpoint import CheckpointClassifier, FinetunedRun

        if content is not None:
            self._model = FinetunedRun(self.run, content, device=device, head=head)
            return
        try:
            self._model = CheckpointClassifier(os.fspath(run), device=device)
        except ModelError as error:
            if self.run.exists() or "model" not in error.message.options:
                raise
            raise ModelError(f"{self.run} is no run here; {error.problem}") from error
        self.names = _readable(self._model.classes, names)

    def __repr__(self) -> str:
        return f"Predictor({str(self.run)!r}, classes={list(self.names)})"

    def predict_proba(
        self,
        texts: str | Iterable[str],
        pairs: str | Iterable[str] | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> Float64:
        """Return probabilities ``(n, classes)`` float64, or values ``(n,)`` of a regression.

        Args:
            texts: ``n`` texts; of one text that is not in a list, one row is returned. An empty
                text has a row like any other, though a corpus would reject it: the model reads
                its special tokens alone.
            pairs: ``n`` second texts, for a run that was made on pairs.
            columns: ``n`` values of each column that the run reads beside the texts, by its name:
                a ``dict``, or a data frame of pandas or Polars; of one text one value.

        Raises:
            UsageError: pairs were given or are missing, unlike in the run's dataset; or the run
                labels words; or a column is missing.
        """
        self._check_level("sentence")
        alone = isinstance(texts, str)
        strings = strings_of("texts", [texts] if isinstance(texts, str) else texts)
        self.check_pairs(pairs is not None)
        seconds = None
        if pairs is not None:
            seconds = strings_of("pairs", [pairs] if alone else pairs)  # type: ignore[list-item]
            if len(seconds) != len(strings):
                raise UsageError(f"there are {len(strings)} texts and {len(seconds)} second ones.")
        if not strings:
            return np.zeros((0, len(self.names)) if self.names else (0,))
        units = Units.of_texts(strings, seconds, columns=columns)
        proba = self._checked(self._model.predict(units)[1])
        self.warn_of_cuts()
        return proba[0] if alone else proba

    @overload
    def predict(  # type: ignore[overload-overlap]  # one text is texts of one letter too
        self, texts: str, pairs: str | None = None, columns: Mapping[str, Any] | None = None
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> list[Prediction]: ...

    def predict(
        self,
        texts: str | Iterable[str],
        pairs: str | Iterable[str] | None = None,
        columns: Mapping[str, Any] | None = None,
    ) -> Prediction | list[Prediction]:
        """Return the prediction for each text, or for one; arguments as for `predict_proba`.

        Returns:
            A list with the label and the probability of every label for each text, or those of one
            text; of a regression the value.
        """
        proba, single = self.predict_proba(texts, pairs, columns), isinstance(texts, str)
        predictions = list(self._predictions(proba[None] if single else proba))
        return predictions[0] if single else predictions

    @overload
    def predict_words(  # type: ignore[overload-overlap]
        self, texts: str, *, spans: Sequence[tuple[int, int]] | NDArray[Any] | None = None
    ) -> list[Prediction]: ...

    @overload
    def predict_words(
        self, texts: Iterable[str], *, spans: Spans | None = None
    ) -> list[list[Prediction]]: ...

    def predict_words(
        self, texts: str | Iterable[str], *, spans: Any = None
    ) -> list[Prediction] | list[list[Prediction]]:
        """Return the predictions for the words of each text, by a run that labels words.

        Args:
            texts: ``n`` texts, or one.
            spans: start and end of the words of each text; by default those between white space,
                of a run on words that a corpus marked runs of letters and digits, and each other
                character by itself, of a run on sentences these. A word that the model does not see
                has no prediction.

        Returns:
            A list of predictions for each text, or of one text its own, with the place of each word
            in the text.

        Raises:
            UsageError: the run labels texts; or spans that columns told, and none are given.

        Example:
            >>> predictor = embedkit.Predictor("runs/tagger")
            >>> words = predictor.predict_words("the river bank of town 20")
            >>> [(word.text, word.label) for word in words[:3]]
            [('the', 'DET'), ('river', 'NOUN'), ('bank', 'NOUN')]
        """
        if isinstance(texts, str):
            return self.predict_words([texts], spans=None if spans is None else [spans])[0]
        self._check_level("word")
        texts = strings_of("texts", texts)
        spans = self._spans(texts) if spans is None else _checked_spans(spans, texts)
        units, nothing = Units.of_texts(texts), [None] * len(texts)
        units = units.words_of(nothing, marks=self.marks) if spans is None else units.words(spans)
        # a list for each text, also for one without words that the model sees
        words: list[list[Prediction]] = [[] for _ in texts]
        # fewer units may come back: without the words that were cut
        units, predictions = self.predict_units(units)
        self.warn_of_cuts()
        assert units.word is not None
        assert units.span is not None
        places = zip(units.place.tolist(), units.word.tolist(), units.span.tolist(), strict=True)
        for (place, *word), form, answer in zip(places, units.texts(), predictions, strict=True):
            number, (start, end) = word
            about = {"word": number, "text": form, "start": start, "end": end}
            words[place].append(replace(answer, **about))
        return words

    def _spans(self, texts: Sequence[str]) -> Spans | None:
        """The spans that a run labels; ``None`` for those between white space, or by ``marks``."""
        kind = "none" if self.content is None else spans_of(self.content.dataset.reading)
        if kind == "columns":
            raise UsageError(
                f"{self.run} labels the spans that columns of its corpus tell. Predict a corpus or "
                "a dataset that has them, or give start and end of each to predict_words()."
            )
        return list(map(sentence_spans, texts)) if kind == "sentences" else None

    def check_pairs(self, pairs: bool, *, option: str = "pairs") -> None:
        """Raise a :class:`UsageError` if the run was made on single texts, unlike these, or not.

        The message names the ``option`` that second texts have for the caller.
        """
        if self.content is not None and self.reads_pairs != pairs:
            kind, advice = "pairs of texts", "pass second texts as"
            if pairs:
                kind, advice = "single texts", "leave out"
            raise UsageError(f"{self.run} was made on {kind}; {advice} {Option(option)}.")

    def warn_of_cuts(self) -> None:
        """Log a warning of what the model does not read; once, since lines go on."""
        if self._model.cut and "cut" not in self._told:
            self._told.add("cut")
            text, limit = count_text(self._model.cut, "text"), self._model.tokens.max_length
            logger.warning(f"{text} cut at {limit} tokens: the model reads no more")
        if self._unseen and "unseen" not in self._told:
            self._told.add("unseen")
            words = count_text(self._unseen, "word")
            logger.warning(f"no prediction of {words} without a token")

    def _check_level(self, level: str) -> None:
        if self.labels_words != (level == "word"):
            noun, use = ("words", "predict_words") if self.labels_words else ("texts", "predict")
            raise UsageError(f"{self.run} labels {noun}. Use {use}().")

    def predict_stored(
        self, dataset: AnyPath, *, progress: ProgressCallback = no_progress
    ) -> tuple[Units, Iterator[Prediction]]:
        """Return the records of a dataset, or its words, and an iterator of their predictions.

        A run on vectors reads the stored ones; nothing is encoded again.

        Raises:
            UsageError: the dataset does not hold what the run reads.
            MismatchError: its vectors were made with other settings than those of the run.
        """
        # empty for fine-tuned runs and TF-IDF, which read the stored texts
        views = [] if self.content is None else list(self.content.views)
        data = load(dataset, views or None, level="word" if self.labels_words else "sentence")
        if self.content is not None:
            name = os.fspath(dataset)
            check_alike(data, self.content.dataset, name=name, vectors=bool(views))
        units = Units.of_dataset(data)
        units = beside_numbers(units, self.columns) if views else units.with_texts()
        keys = [np.arange(0)]  # so that there is something to join without records
        predictions, done = list[Iterator[Prediction]](), 0
        progress(Progress("predicting", done, len(units), "records"))
        for part in units.parts(_CHUNK):
            seen, made_now = self.predict_units(part, stored=bool(views))
            keys.append(seen.keys)
            predictions.append(made_now)  # numbers until they are asked for, a tenth of the memory
            done += len(part)
            progress(Progress("predicting", done, len(units), "records"))
        # which units of the dataset these are, since some words may be missing
        place = match(np.concatenate(keys), units.keys)
        return units.take(place), chain.from_iterable(predictions)

    def predict_units(
        self, units: Units, *, stored: bool = False
    ) -> tuple[Units, Iterator[Prediction]]:
        """Return units and an iterator of their predictions.

        Words that the model does not see are left out. With ``stored`` their inputs are the vectors
        that the run reads.
        """
        if not len(units):
            return units, iter(())
        if stored:
            return units, self._predictions(self._model.apply(units.inputs(np.arange(len(units)))))
        cut = self._model.cut
        seen, values = self._model.predict(units)
        if self._model.cut == cut:  # else they stand where texts were cut, which is told too
            self._unseen += len(units) - len(seen)
        return seen, self._predictions(values)

    def _checked(self, values: Any) -> Float64:
        """Check the output of a model: a finite number for each class, or a value."""
        output = np.asarray(values, np.float64)
        expected = (len(self.names),) if self.names else ()
        # a damaged or foreign model gives its numbers without an error
        if output.shape[1:] != expected or not np.isfinite(output).all():
            raise DamagedError(
                f"the model in {self.run} gives {output.shape[1:] or 'values'} or no finite "
                f"numbers for the classes {', '.join(self.names) or '(none)'}. Make it again."
            )
        return output

    def _predictions(self, values: Any) -> Iterator[Prediction]:
        proba = self._checked(values)
        content, threshold, separator = self.content, None, ""
        if content is not None:
            threshold, separator = content.threshold, content.separator
        sets = content is not None and content.task == "multilabel"
        y_pred = decide(proba, threshold=threshold, sets=sets)
        return predictions_of(proba, y_pred, self.names, separator=separator)


class _Trained:
    """A pipeline of scikit-learn on vectors or on texts."""

    cut = 0  # as of the models of a fine-tuned run

    def __init__(self, run: Path, content: TrainRun, *, device: str, model: AnyPath | None) -> None:
        from embedkit.classifiers.model import load_model

        self.apply, self._content = load_model(run), content
        where: dict[str, Any] = {"owner": str(run), "device": device, "model": model}
        # loaded once, for the first text: stored vectors need none
        self._encoder = cache(partial(encode_as, content.dataset, content.views, **where))
        # pipelines refuse input without rows
        self._nothing = np.zeros((0, len(content.classes)) if content.classes else 0)

    def predict(self, units: Units) -> tuple[Units, Any]:
        """Return the units that it sees, and their probabilities, or values of a regression."""
        if self._content.views:
            encoder = self._encoder()
            units = units.encoded(encoder)
            self.cut, self.tokens = encoder.cut, encoder.settings
        # without views the texts themselves, which are the inputs of new units already
        units = beside_numbers(units, self._content.columns)
        values = self.apply(units.inputs(np.arange(len(units)))) if len(units) else self._nothing
        return units, values


def _is_checkpoint(name: str) -> bool:
    """True if a name is a folder of a checkpoint, or a hub id; what it lacks is told by its reader.

    ``owner/name`` is a hub id where there is no folder ``owner``; else a run is missing in it.
    """
    path = Path(name)
    if path.exists():
        # a run is told first, by its run.json
        files = ("config.json", "adapter_config.json", "modules.json")
        return any((path / name).is_file() for name in files) and not is_run(path)
    return name.count("/") == 1 and name[0] not in "./~" and not path.parent.exists()


def _readable(classes: Sequence[str], label_names: Mapping[str, str]) -> list[str]:
    # transformers calls classes LABEL_0 … where nobody has named them; 0 means the first
    texts = [(str(label), str(name)) for label, name in label_names.items()]
    by_class = {f"LABEL_{n}" if f"LABEL_{n}" in classes else n: v for n, v in texts}
    for name in by_class:
        if name not in classes:
            what = f"has the labels {', '.join(classes)}" if classes else "predicts values"
            raise UsageError(f"the run {what}.", label_names=name)
    names = [by_class.get(name, name) for name in classes]
    # probabilities are given by name, so that one of two would be lost
    if len(set(names)) < len(names):
        raise UsageError(f"two labels have the same name: {', '.join(names)}.", label_names=...)
    return names


def _checked_spans(spans: Spans, texts: Sequence[str]) -> Spans:
    """The spans of each text, as a corpus would take them."""
    expected = "expected a list for each text, with start and end of its words, in order and apart"
    try:
        lists = [[(index(start), index(end)) for start, end in pairs] for pairs in spans]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{expected}.", spans=spans) from error
    if len(lists) != len(texts):
        raise UsageError(f"{expected}; there are {len(texts)} and {len(lists)}.", spans=...)
    for number, (text, pairs) in enumerate(zip(texts, lists, strict=True)):
        try:
            check_spans(pairs, text)
        except BadRecordError as error:
            raise UsageError(f"of text {number}: {error}; {expected}.", spans=pairs) from error
    return lists


def parse_label_names(text: str | None) -> dict[str, str]:
    """Return ``0=negative,1=positive`` as a mapping.

    >>> parse_label_names("0=negative,1=positive")
    {'0': 'negative', '1': 'positive'}
    """
    pairs = [item.partition("=") for item in (text or "").split(",") if item.strip()]
    if not all(name.strip() for *_, name in pairs):
        raise UsageError("expected LABEL=NAME,LABEL=NAME.", label_names=text)
    return {label.strip(): name.strip() for label, _, name in pairs}


def predict_file(
    run: AnyPath,
    corpus: str | Path,
    *,
    label_names: Mapping[str, str] | None = None,
    device: str = "auto",
    head: str | None = None,
    reading: CorpusOptions | None = None,
    out: Path | None = None,
    submission: str | None = None,
    overwrite: bool = False,
    as_json: bool = False,
    progress: ProgressCallback = no_progress,
) -> tuple[int, str, dict[str, int]]:
    """Predict a corpus or a dataset into a file; a mistake is found before a model is loaded.

    Return how many are predicted, texts or words, and the rejected records by reason. The
    arguments are those of :class:`Predictor` and :func:`write_prediction_file`.
    """
    # all that can be wrong with names and places, in order of its cost: a model takes longest
    columns, corpus = parse_submission(submission), Path(corpus)
    if out is not None:
        check_file(out, corpus=corpus, overwrite=overwrite)
    # a corpus that is not a file is written to one for as long as it is read
    with ExitStack() as held:
        reading = reading or CorpusOptions()
        stored = is_dataset(corpus) and dataset_folder(corpus, reading.given) is not None
        if not stored:
            files = held.enter_context(input_files(corpus))
            plan = _plan_as(run, files, reading, columns)
            for notice in plan.notices:
                if "label" not in notice.options:  # the label is what is predicted
                    logger.info(notice)
        warm = not stored  # vectors that are stored need no encoder
        predictor = Predictor(run, label_names=label_names, device=device, head=head, warm=warm)
        check_submission(columns, predictor.names)
        of_words = predictor.labels_words
        if of_words and columns is not None:
            problem = f"it is for runs that label records; {run} labels words."
            raise UsageError(problem, submission=submission)
        if stored:
            data, predictions = predictor.predict_stored(corpus, progress=progress)
            records, rejected = _rows(data, predictions), data.rejected
        else:
            # an answer for each record, as competitions ask for; an empty text has no words
            reader = CorpusReader(plan, empty=not of_words)
            records, rejected = _predicted(predictor, reader, progress), reader.counts.rejected
        # the records are an iterator: a chunk is read and predicted when the writer asks for it
        count = write_prediction_file(
            records,
            predictor.names,
            out,
            as_json=as_json,
            submission=columns,
            overwrite=overwrite,
            extra_columns=("word", "text") if of_words else (),
        )
        predictor.warn_of_cuts()
        return count, "word" if of_words else "text", rejected


def _predicted(
    predictor: Predictor, reader: CorpusReader, progress: ProgressCallback
) -> Iterator[PredictedRecord]:
    """The prediction for every record; the corpus is read in chunks of rows, rejects included."""
    items, rejected = iter(reader), list[int]()
    while chunk := list(islice(items, _CHUNK_OF_TEXTS)):
        records = [item for item in chunk if isinstance(item, Record)]
        rejected += [item.row for item in chunk if not isinstance(item, Record)]
        units = Units.of_records(records, reader.plan)
        if predictor.labels_words:
            units = units.words_of([r.words for r in records], marks=predictor.marks)
        else:
            predictor.check_pairs(units.pairs, option="text_pair")
        yield from _rows(*predictor.predict_units(units))
        progress(Progress("predicting", round(100 * reader.fraction), 100, "%"))
    reader.plan.check_unchanged()
    if rejected:
        rows = f"{', '.join(map(str, rejected[:10]))}{', …' * (len(rejected) > 10)}"
        logger.warning(f"no prediction of rows {rows}")
    for notice in reader.counts.notices:  # known when everything was read
        logger.warning(notice)


def _rows(units: Units, predictions: Iterable[Prediction]) -> Iterator[PredictedRecord]:
    """Predictions with the numbers and ids of their records, and with the words."""
    # ids are text in files, whatever they were in the corpus
    columns: dict[str, Any] = {"row": units.row.tolist(), "id": map(str, units.ids)}
    if units.word is not None:
        columns |= {"word": units.word.tolist(), "text": units.texts()}
    return with_columns(predictions, **columns)


def _plan_as(
    run: AnyPath, files: Sequence[InputFile], reading: CorpusOptions, submission: Submission | None
) -> CorpusPlan:
    """The plan of a corpus with the columns that the run was made from, as far as it has them.

    The first name of a submission is the column of ids, unless another one was named: a file of
    answers is joined by these, and other values under that name would join the wrong records.
    """
    names: dict[str, Any] = {}
    content = None if _is_checkpoint(os.fspath(run)) else read_run(Path(run))
    if isinstance(content, PredictionRun):
        names = content.dataset.reading or {}
    # a file without a header, of other delimiters or a certain sheet has no option of predict; what
    # is no table tells its format itself
    dialect = names.get("dialect") or {}
    encoding = {name: dialect[name] for name in dialect if name == "encoding"}
    tabular = dialect.get("format") in ("tsv", "csv", "sheet")
    inputs = content.dataset.names.inputs if isinstance(content, PredictionRun) else ()
    name = next(iter(inputs), "")
    about: dict[str, Any] = {"name": name, "text": names.get("text")}
    headed = not dialect.get("header", True) and names_texts(files, reading, **about)
    dialect = encoding if headed or not tabular else dialect
    planned = partial(plan_further, files, dialect=dialect, name=name)
    # what the user names is not looked up
    roles = [name for name in ("id", "text", "text_pair") if getattr(reading, name) is None]
    named = {name: names.get(name) for name in roles}
    columns: dict[str, Any] = {}
    # the ids may have another name, and the text too; then all is guessed, as for any corpus
    for columns in (named, {n: c for n, c in named.items() if n != "id"}):
        with suppress(CorpusError):
            plan = planned(replace(reading, **columns))
            if not (plan.header or dialect.get("header", True)):
                said = f"{files[0].name} is read without a header, as the corpus of the run was"
                logger.info(said)
            break
    else:
        columns, planned = {}, partial(planned, dialect=encoding)
        plan = planned(reading)
    spans, words = tuple(names.get("spans") or ()), getattr(content, "level", "") == "word"
    if words and spans and not reading.spans:
        # else words would be predicted, under the numbers of spans
        cut = spans_of(names) == "sentences"
        if ({*spans} <= {*plan.columns}) is cut:
            raise UsageError(
                f"{files[0].name} has {'a' if cut else 'no'} column {', '.join(spans)}: {run} "
                f"labels {'sentences, cut by rule' if cut else 'the spans of such columns'}. "
                "Extract a dataset with those, and predict it."
            )
        columns |= {"spans": spans}
        plan = planned(replace(reading, **columns))
    if submission is not None and reading.id is None:
        first = next(iter(submission))
        if first in plan.columns:
            plan = planned(replace(reading, **columns | {"id": first}))
        elif plan.id is None:
            raise UsageError(
                f"{files[0].name} has no column of ids. Name it with {Option('id')}, or with the "
                "first name of the submission.",
                submission=...,
            )
    numbers = content.columns if isinstance(content, PredictionRun) else ()
    for name in numbers:
        if name not in plan.columns:
            raise lacks_column(files[0].name, name)
    # columns of spans are read as kept columns, the last ones
    return replace(plan, keep=(*numbers, *plan.keep))
