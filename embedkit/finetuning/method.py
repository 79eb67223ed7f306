"""Fine-tuning as a method of cross-validation: how a fold is divided, trained and predicted.

    a fold's training records ─┬─ trained on
                               └─ validation: stops the training, chooses the epoch and thresholds
    the fold's own records ──── predicted, once

Nothing is chosen on the records that a fold holds out. A finished fold is a file, so that a run
that was killed goes on with the next one, and a fold that was killed with its last checkpoint.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

from embedkit import storage
from embedkit.choices import HEADS, Pooling
from embedkit.dataset.fold_models import SeenRecords
from embedkit.dataset.settings import FoldRecord
from embedkit.encoding.checkpoint import Checkpoint, quiet_transformers
from embedkit.encoding.model import load_model, usable_length
from embedkit.encoding.tokenizer import TextTokenizer, load_tokenizer, note_if_spelled_out
from embedkit.encoding.windows import TokenizedTexts, TokenizerSettings
from embedkit.errors import DamagedError, Message, MismatchError, ModelError, Option, UsageError
from embedkit.finetuning.contrastive import train_contrastive
from embedkit.finetuning.heads import EncoderWithHead, build_model, head_settings, pooler_layer
from embedkit.finetuning.model import predict_logits, read_to_train, tokenized, write_model
from embedkit.finetuning.options import CONTRASTIVE, TrainingOptions, source_of
from embedkit.finetuning.training import Fold, FoldResult, model_name, saving, train_fold, undefined
from embedkit.machine import __version__, release_memory
from embedkit.runs.cross_validation import Fits, FoldFit, Problem
from embedkit.runs.figures import draw_training
from embedkit.runs.metrics import Threshold, beta_of, metrics_for
from embedkit.runs.predictions import Subset
from embedkit.runs.run import Cost, FinetuneRun
from embedkit.runs.scores import metrics_of
from embedkit.runs.split import TEST, UNUSED, Split, validation_records
from embedkit.scale import random_numbers_kept, undisturbed
from embedkit.storage import UNFINISHED
from embedkit.types import Bool, Float64, Int64, ProgressCallback
from embedkit.units.target import Target
from embedkit.units.units import Units

logger = logging.getLogger(__name__)


LIBRARIES = {"torch": torch.__version__, "transformers": transformers.__version__}


VALIDATION_SEED = 104_729
"""Added to the seed of the split: with that seed itself, validation records that all folds share
would all be of one fold."""


# so far apart that runs with the seeds 0, 1, 2 … share no seed among all their folds, nor do the
# models of one fold
_FOLD_SEED = 1_009
_MEMBER_SEED = 500_009


_FIELDS = frozenset(
    "task level head precision max_length prefix on_long stride threshold".split()  # noqa: SIM905
)
"""Options that are fields of ``run.json``; the others are in its ``settings``."""


def divide(split: Split, target: Target, options: TrainingOptions) -> list[dict[str, Int64]]:
    """Return the subsets of every :class:`Fold`.

    The division depends on the split and the fraction alone, so that runs on one split have the
    same validation records whatever their seeds. Where half of them choose thresholds, they are the
    same in every fold, so that no model is trained on them and the threshold for the mean of all
    models can be chosen on their mean predictions.
    """
    fraction, seed = options.held_back, split.settings.seed + VALIDATION_SEED
    chosen_from = partial(validation_records, group=split.group, strata=target.strata)
    parts = split.subsets()
    # none, unless a threshold is chosen
    by_epoch = by_threshold = split.in_folds[:0]
    if options.chooses_threshold:
        trains = [train for train, _ in parts]
        # the same for all folds, so that no model is trained on any of them; in halves, since an
        # epoch that was chosen by a record makes its predictions too good for a threshold
        chosen = chosen_from(split.in_folds, fraction, seed=seed, trains=trains)
        by_threshold = chosen_from(chosen, 0.5, seed=seed + 1)
        by_epoch = np.setdiff1d(chosen, by_threshold)
    divided = []
    for fold, (train, held_out) in enumerate(parts):
        # each fold leaves out those that it holds out itself
        valid = np.intersect1d(train, by_epoch)
        if fraction and not options.chooses_threshold:
            # other records in each fold, else a few would decide the epochs of all models
            fold_seed = seed + _FOLD_SEED * (1 + fold)
            valid = chosen_from(train, fraction, seed=fold_seed, trains=[train])
        # the threshold of a fold may not be chosen by its held-out records
        chooses = np.intersect1d(train, by_threshold)
        few = options.chooses_threshold and len(np.unique(target.y[chooses])) < 2
        if fraction and (few or not len(valid)):
            raise UsageError(
                f"the {len(train)} training records of fold {fold} are too few, or too similar, to "
                f"choose epoch or {Option('threshold')} by some of them. Pass more, or use fewer "
                "folds.",
                validation=fraction,
            )
        # also without the validation records of other folds, where these are shared
        rest = np.setdiff1d(train, np.concatenate([valid, by_epoch, by_threshold]))
        subsets = {"train": rest, "valid": valid, "choosing": by_threshold, "held_out": held_out}
        divided.append(subsets)
    return divided


def choose_thresholds(
    decision: Threshold | None, y: Int64, proba: Float64, held_out: Bool
) -> tuple[list[float | None], float | None]:
    """Return the threshold of every fold's model, and the threshold of the mean of all models.

    The mean needs its own: its probabilities are less spread than those of a single model. ``y``
    ``(n,)`` and ``proba`` ``(models, n, classes)`` are of validation records that no model was
    trained on; a model's own threshold is chosen without the records that it is scored on
    (``held_out`` ``(models, n)``). A fixed threshold, or none, is that of every model.
    """
    if decision is None or decision.value is not None:
        value = None if decision is None else decision.value
        return [value] * len(held_out), value
    proba = proba[:, :, 1]
    pairs = zip(proba, ~held_out, strict=True)
    each: list[float | None] = [decision.choose(y[rest], p[rest]) for p, rest in pairs]
    return each, decision.choose(y, proba.mean(axis=0))


class FineTuned(NamedTuple):
    """An encoder with a head: a model for each fold, kept in a folder as soon as it is trained.

    Fitting again with the same folder trains only the models that are not there.
    """

    checkpoint: Checkpoint
    options: TrainingOptions  # all decided
    device: torch.device
    tokens: TokenizerSettings  # by the options
    earlier: tuple[Path, FinetuneRun] | None  # run whose training goes on, and its folder
    folder: Path = Path()

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        options: TrainingOptions,
        data: Units,
        further: Units | None,
        *,
        earlier: tuple[Path, FinetuneRun] | None,
        device: torch.device,
        split: str | Path | Split | None,
        folds: int,
    ) -> tuple[Self, Problem]:
        """Return the method, with all options decided, and its problem.

        The problem is what is to be learnt: the units as tokens, in folds, and the test set, which
        is that of the split, or ``further`` units.
        """
        kind = checkpoint.model_type
        # T5EncoderModel says that it is none, but its configuration is that of T5
        if checkpoint.built_config().is_encoder_decoder or "t5" in kind:
            raise ModelError(
                f"{checkpoint.name} is a {kind}, an encoder with a decoder, which is not "
                "fine-tuned here. Give an encoder alone, or train a classifier on its vectors."
            )
        frozen = str(options.freeze_layers)
        if frozen.isdecimal() and int(frozen) > checkpoint.n_layers:
            count = checkpoint.n_layers
            raise UsageError(f"the encoder has {count} layers.", freeze_layers=int(frozen))
        if frozen == str(checkpoint.n_layers):
            options = replace(options, freeze_layers="all")
        # nothing keeps it: of a multilingual encoder it takes 0.3 GB, all the time of the training
        tokenizer = load_tokenizer(checkpoint)
        # a vocabulary that lacks the words of the texts is told before anything is trained
        note_if_spelled_out(checkpoint, tokenizer, data.records.column("text"))
        length = usable_length(checkpoint, tokenizer, options.max_length)
        stride = options.stride
        if options.on_long == "window" and stride is None:
            stride = length // 4
        prefix = checkpoint.prefix_or_own(options.prefix)
        options = replace(options, max_length=length, prefix=prefix, stride=stride)
        tokens = TokenizerSettings(length, options.on_long, stride or 0, prefix)
        method = cls(checkpoint, options, device, tokens, earlier)
        # raises if special tokens leave no room for a text, or windows would not advance
        tokenizer.room(method.tokens, paired=data.pairs)
        # words that the tokenizer's limit cuts off are left out here, before folds are made
        units = method._tokenized(data, tokenizer)
        problem = Problem.of(
            units,
            task=options.task,
            separator=options.label_separator,
            split=split,
            folds=folds,
            seed=options.seed,
        )
        options.check(problem.target)
        if further is not None:
            problem.split.check_test(further.name)
            further = method._tokenized(further, tokenizer)
            test = Subset.further(further, units, problem.target)
            problem = problem._replace(test=test)
        # the last of what is open: epochs depend on the number of training texts in the folds
        return method._decided(problem), problem

    def _tokenized(self, units: Units, tokenizer: TextTokenizer) -> Units:
        """Return units whose inputs are tokens, with a warning if texts are cut."""
        units = tokenized(units, tokenizer, self.tokens)
        texts, limit = _texts(units), Option("max_length", self.tokens.max_length)
        if cut := int(texts.cut.sum()):
            counts = f"{cut:,} of {len(texts):,} texts of {units.name}"
            logger.warning(Message(f"{counts} are cut at {limit} tokens"))
        return units

    def _decided(self, problem: Problem) -> Self:
        """Return the method with all options decided; raises what would end the fit."""
        units, target, split, _ = problem
        checkpoint, means = self.checkpoint, self.checkpoint.definition.pooling == Pooling.MEAN
        # the first token of a decoder sees nothing of the text
        decodes = checkpoint.model_type in CAUSAL.keys() - MASKED.keys()
        head = "mean" if decodes or (means and checkpoint.is_sentence_encoder) else "cls"
        options = self.options
        if self.earlier is not None:
            run = self.earlier[1]
            options = replace(options, objective=options.objective or run.settings.get("objective"))
            head = run.head if run.head in HEADS else head  # another one is code: named again

        # one number of epochs for all folds: that of the fold with the fewest texts, which needs
        # the most
        def decide(trains: list[Int64]) -> TrainingOptions:
            fewest = min(len(np.unique(units.place[train])) for train in trains)
            return options.decided(texts=fewest, classes=len(target.classes), head=head)

        decided = decide([train for train, _ in split.subsets()])
        divided = divide(split, target, decided)
        # again, without the validation records, but for the same objective
        options = replace(options, objective=decided.objective)
        decided = decide([subsets["train"] for subsets in divided])
        # here, before hours of training: an area has no value where all are of one class
        by, classes = decided.select_by, len(target.classes)
        for number, subsets in enumerate(divided if classes and by != "loss" else ()):
            y = target.y[subsets["valid"]]
            same = metrics_for(y, np.full((len(y), classes), 0.5), beta=beta_of(by))[by]
            if np.isnan(same.value(len(y))):
                raise undefined(by, len(y), f"fold {number + 1} of {len(divided)}")
        method = self._replace(options=decided)
        if self.earlier is None:
            return method
        folder, earlier = self.earlier
        columns = ("text", "text_pair", "label", "word_label")
        read = earlier.dataset.reading or units.reading
        for what, before, now in (
            *((f"{name} column", read.get(name), units.reading[name]) for name in columns),
            ("task", earlier.task, decided.task),
            ("split", earlier.split.fingerprint, split.fingerprint),
            ("label", earlier.classes, target.classes),
            ("head", earlier.head, decided.head_name),
            ("cnn_widths", earlier.settings.get("cnn_widths"), [*decided.cnn_widths]),
            ("one_logit", earlier.settings.get("one_logit"), decided.one_logit),
            ("input", earlier.tokens, self.tokens),
            ("validation", earlier.settings.get("validation"), decided.validation),
            ("threshold", earlier.threshold_metric is not None, decided.chooses_threshold),
            ("number of seeds", earlier.settings.get("seeds"), decided.seeds),
        ):
            if before != now:  # a model would be scored on records that it has seen
                raise MismatchError(
                    f"it was trained with another {what}: {before}, now {now}. Going on needs the "
                    f"same; repeat its options with {Option('split', folder / 'split.parquet')}.",
                    model=folder,
                )
        return method

    def identity(self, problem: Problem) -> dict[str, Any]:
        """Return everything that shapes a run."""
        units, _, split, test = problem
        # the test set of a split is of the same input, and a matter of the split
        further = None if test is None or test.content is None else test.units
        return {
            # an unfinished run goes on only where all of this is the same; versions too, since its
            # finished folds and the next ones stand in one table
            "source": list(units.source),
            "reading": units.reading,
            "split": split.fingerprint,
            "test": further and {"source": list(further.source), "reading": further.reading},
            "model": dict(sorted(self.checkpoint.sha256.items())),
            "earlier": self.earlier and storage.file_sums(self.earlier[0]),
            **asdict(self.options),
            "head_code": source_of(str(self.options.head)),
            "device": self.device.type,
            "versions": {"embedkit": __version__, **LIBRARIES},
        }

    def folds(self, problem: Problem, vocabulary: IO[bytes]) -> list[Fold]:
        """Return the folds; with several seeds each is there as often, one after the other."""
        units, target, split, _ = problem
        divided = divide(split, target, self.options)
        texts, seeds = _texts(units), self.options.seeds
        return [
            Fold(
                name=f"fold {number + 1} of {len(divided)}"
                + (f", seed {member + 1} of {seeds}" if seeds > 1 else ""),
                model=model_name(number, member),
                texts=texts,
                record=units.place,
                target=target,
                options=self.options,
                seed=self.options.seed + _FOLD_SEED * number + _MEMBER_SEED * member,
                device=self.device,
                # deleted with the folder of what is unfinished, at the latest when the run is
                # complete
                work=self.folder / UNFINISHED / "checkpoints" / model_name(number, member),
                vocabulary=vocabulary,
                **subsets,
            )
            for number, subsets in enumerate(divided)
            for member in range(seeds)
        ]

    # a notebook may begin with inference mode, or without gradients: both end here
    @torch.inference_mode(mode=False)
    @undisturbed()
    @random_numbers_kept()
    @quiet_transformers()
    def fit(self, problem: Problem, *, progress: ProgressCallback) -> Fits:
        """Train the models that are not finished; new units get the mean of all models.

        The inner predictions of a fold are of its validation units, by its own models, which were
        fitted neither on them nor on the fold. ``model`` of a fold are the results of its models,
        one for each seed, whose mean predicts.
        """
        target = problem.target
        with saving(self.folder):
            # without a name: nothing is left of it, however the training ends
            vocabulary = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
        with vocabulary:
            folds = self.folds(problem, vocabulary)
            # a model of which there is a result is finished
            results = [
                _read_result(self.folder, fold) or self._trained(fold, problem, progress)
                for fold in folds
            ]
        size = self.options.seeds
        # models of one fold stand together, and have the same records
        folds, choosing = folds[::size], folds[0].choosing
        every = [results[start : start + size] for start in range(0, len(results), size)]
        deciding = np.array([_mean(members, "choosing") for members in every])
        held_out = np.array([np.isin(choosing, fold.held_out) for fold in folds])
        y, decision = target.y[choosing], self.options.decision
        chosen, final = choose_thresholds(decision, y, deciding, held_out)
        fits = []
        # predictions are of all records that choose thresholds; those in the fold's held-out part
        # are no inner predictions of it
        each = zip(folds, every, deciding, ~held_out, chosen, strict=True)
        for fold, members, proba, seen, threshold in each:
            inner = [*_mean(members, "valid"), *proba[seen]]
            fits.append(
                FoldFit(
                    proba=_mean(members, "held_out"),
                    model=members,
                    inner=(np.concatenate([fold.valid, choosing[seen]]), np.array(inner))
                    if len(fold.valid)
                    else None,
                    threshold=threshold,
                )
            )
        return Fits(
            folds=fits,
            test=_mean(results, "test") if problem.test else None,
            threshold=final,
            cost=Cost(
                fit_seconds=sum(result.fit_seconds for result in results)
                + ((self.earlier and self.earlier[1].cost.fit_seconds) or 0.0),
                predict_seconds=sum(result.predict_seconds for result in results),
                # as many in every model
                parameters=results[0].parameters,
                device=self.device.type,
            ),
        )

    def _trained(self, fold: Fold, problem: Problem, progress: ProgressCallback) -> FoldResult:
        """Train a model, and keep it; nothing of it is left in memory for the next one."""
        options = fold.options
        settings = head_settings(options, fold.target, fold.target.y[fold.train])
        # what the tokenizer and the fold before have left
        release_memory()
        if self.earlier is None:
            # on the CPU, and read again for each fold: what the next ones start from would take as
            # much memory as a large vocabulary
            about: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
            encoder = load_model(self.checkpoint, pad_id=fold.texts.pad_id, **about)
            lacking = options.head == "pooler" and pooler_layer(encoder) is None
            if lacking and fold.model == model_name(0):
                message = "%s has no pooler weights; the head starts with random ones"
                logger.warning(message, self.checkpoint.name)
            start = build_model(encoder, seed=fold.seed, **settings)
        else:
            start = read_to_train(self.earlier[0] / "model" / fold.model, settings)
            # each fold starts from its own model, and shares no vocabulary
            fold.vocabulary.truncate(0)
        train: Callable[..., tuple[EncoderWithHead, FoldResult]] = train_fold
        if options.objective == CONTRASTIVE:
            train = train_contrastive
        # predicted before it is written: a fold is finished when its predictions are there too
        model, result = train(fold, start, progress=progress)
        _predict(fold, model, result, problem)
        self._keep(fold, model, result)
        storage.remove(fold.work)
        return result

    def _keep(self, fold: Fold, model: EncoderWithHead, result: FoldResult) -> None:
        """Write a fold's model, then its result, and last their checksums."""
        folder, classes, length = self.folder, fold.target.classes, self.tokens.max_length
        final, file = folder / "model" / fold.model, folder / _result_file(fold)
        # a model without a result, or with damaged files, of an attempt that was killed
        storage.remove(final)
        for place in (final, file.parent):
            storage.make_folder(place)
        with saving(final):
            tokenizer = load_tokenizer(self.checkpoint)
            write_model(model, tokenizer, final, classes=classes, max_length=length)
        storage.sync_tree(final.parent)  # model/ too, which holds the name of this folder
        storage.write_durably(file, json.dumps(asdict(result)).encode())
        written = {
            path.relative_to(folder).as_posix(): storage.file_sha256(path)
            for path in (file, *final.iterdir())
        }
        # last: a fold counts as finished if its files are listed here, and have these checksums.
        # Lines of earlier folds are kept
        storage.write_sums(folder, storage.file_sums(folder, torn=True) | written)

    def write(self, problem: Problem, fits: Fits) -> dict[str, Any]:
        """Write the log of the training, and which model has not seen which record.

        Return what ``run.json`` says of the method, and of its models.
        """
        units, target, split, _ = problem
        options, texts, seeds = self.options, _texts(units), self.options.seeds
        # fold after fold
        results = [result for fit in fits.folds for result in fit.model]
        names = tuple(model_name(*divmod(number, seeds)) for number in range(len(results)))
        lines = [
            {"fold": number // seeds} | ({"member": number % seeds} if seeds > 1 else {}) | line
            for number, result in enumerate(results)
            for line in result.log
        ]
        content = "".join(json.dumps(line) + "\n" for line in lines)
        storage.write_durably(self.folder / "training.jsonl", content.encode())
        metric = "macro-F1" if target.classes else "R²"
        draw_training(self.folder, [result.log for result in results], metric=metric)
        # of words the folds are those of their records
        of_records = split if split.records is None else split.records
        models = FoldRecord(
            models=names,
            fold_of_model=tuple(np.repeat(np.arange(split.n_folds), seeds).tolist()),
            split=split.fingerprint,
        )
        unseen = np.where(of_records.folds == UNUSED, TEST, of_records.folds)  # of no model
        columns = of_records.row, units.records.key, unseen
        SeenRecords(self.folder, models, self.tokens, units.source, *columns).write()
        settings = asdict(options) | {"head_learning_rate": options.head_rate}
        # epochs are counted on from those of the earlier run
        past = {} if self.earlier is None else self.earlier[1].history
        done = {name: past[name][-1]["epoch"] if past.get(name) else 0.0 for name in names}
        each = list(zip(names, results, strict=True))
        return {
            "libraries": LIBRARIES,
            "estimator": "finetune",
            "features": "text",
            "task": options.task,
            "head": options.head_name,
            "precision": options.precision,
            "tokens": self.tokens,
            "pad_id": int(texts.pad_id),
            "type_vocab": int(self.checkpoint.config.get("type_vocab_size") or 0),
            "settings": {name: value for name, value in settings.items() if name not in _FIELDS},
            "views": (),
            "models": names,
            "threshold": fits.threshold,
            # of each model that of its fold
            "thresholds": tuple(fit.threshold for fit in fits.folds for _ in fit.model),
            "seed_scores": self._seed_scores(problem, fits.folds),
            "epochs": tuple(done[name] + result.epoch for name, result in each),
            "history": {
                name: (*past.get(name, ()), *history_of(result.log, done[name]))
                for name, result in each
            },
            "truncated": {
                "records": int(texts.cut.sum()),
                "records_all": len(texts),
                "tokens": int(texts.n_tokens.sum()) - len(texts.ids),
                "tokens_all": int(texts.n_tokens.sum()),
            },
        }

    def _seed_scores(
        self, problem: Problem, fits: Sequence[FoldFit]
    ) -> dict[str, tuple[float, ...]]:
        """The scores that the models of each seed have alone; nothing where there is one seed."""
        decision, seeds = self.options.decision, self.options.seeds
        beta, scores = decision.beta if decision else None, dict[str, tuple[float, ...]]()
        for member in range(seeds if seeds > 1 else 0):
            alone = [fit._replace(proba=_mean([fit.model[member]], "held_out")) for fit in fits]
            predictions = problem.held_out(alone)
            for name, metric in metrics_of(predictions, beta=beta).items():
                scores[name] = (*scores.get(name, ()), metric.value(len(predictions.row)))
        return scores


def _mean(results: Sequence[FoldResult], name: str) -> Float64:
    """The mean of several models' predictions of a subset."""
    return np.asarray(np.mean([result.proba[name] for result in results], axis=0), np.float64)


def _texts(units: Units) -> TokenizedTexts:
    """The tokens of all records of units."""
    texts: TokenizedTexts = units.records.inputs(np.arange(len(units.records)))
    return texts


def _result_file(fold: Fold) -> str:
    return f"{UNFINISHED}/folds/{fold.model}.json"


def _read_result(folder: Path, fold: Fold) -> FoldResult | None:
    """Read the result of a fold; ``None`` if it is not finished, or damaged."""
    name = _result_file(fold)
    # torn: the file may be from an attempt that was killed, or be missing
    if name not in storage.file_sums(folder, torn=True):
        return None
    try:
        files = [name, f"model/{fold.model}"]
        storage.check_files(folder, files, advice="Its model is trained again.")
    except DamagedError as error:
        logger.warning(error.message)
        return None
    with suppress(TypeError):  # of another version
        return FoldResult(**json.loads((folder / name).read_text("utf-8")))
    return None


def _predict(fold: Fold, model: EncoderWithHead, result: FoldResult, problem: Problem) -> None:
    """Add the predictions of a fold's model to its result."""
    test = problem.test

    def outputs(texts: TokenizedTexts) -> torch.Tensor:
        return model.outputs(predict_logits(model, texts, precision=fold.options.precision))

    def proba(units: Int64) -> list[Any]:
        return list(outputs(fold.texts_of(units))[fold.among(units)].tolist())

    # the held-out records alone: how many others are predicted depends on options, and costs are
    # compared
    started = time.process_time()  # what else the machine does is no cost of the method
    result.proba["held_out"] = proba(fold.held_out)
    result.predict_seconds = time.process_time() - started
    result.proba |= {"valid": proba(fold.valid), "choosing": proba(fold.choosing)}
    if test is not None and test.content is None:
        result.proba["test"] = proba(problem.split.test)
    elif test is not None:  # of another corpus, of which all words have a label or none has one
        texts = test.units.inputs(np.arange(len(test.units)))
        result.proba["test"] = outputs(texts).tolist()


def history_of(log: Sequence[dict[str, Any]], done: float) -> tuple[dict[str, float], ...]:
    """Losses and scores of each epoch of a model, after those that an earlier run has done."""
    epochs: dict[float, dict[str, float]] = {}
    for line in log:
        # the other names are of steps within an epoch
        if values := {n: v for n, v in line.items() if n.startswith(("train_", "valid_"))}:
            epoch = done + line["epoch"]
            epochs.setdefault(epoch, {"epoch": epoch}).update(values)
    return tuple(epochs[epoch] for epoch in sorted(epochs))
