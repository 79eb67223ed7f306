"""Which layer and pooling is best: every stored view under the same folds, beside its controls.

The view that scores best over all folds is the lucky one of many, so its score says too much. The
nested score is honest: for each fold the view is chosen by inner folds of the training records, and
then scored on the held-out ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedkit.classifiers.estimators import LearnerSettings
from embedkit.classifiers.train import fit, predict_part, split_for, target_of
from embedkit.dataset.store import VectorData, load
from embedkit.encoding.views import parse_view
from embedkit.errors import UsageError
from embedkit.runs.folder import new_run, path_from, versions, write_run
from embedkit.runs.metrics import Score, classification_scores, regression_scores
from embedkit.runs.predictions import Target, baseline, check_folds
from embedkit.runs.splits import TEST, Split, check_seed, inner_folds, source_of

__all__ = ["ProbeResult", "ViewScore", "probe"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_INNER_FOLDS = 3


@dataclass(frozen=True, slots=True)
class ViewScore:
    """A view under the folds.

    Attributes:
        name: the view.
        score: on held-out records.
        shuffled: the same with labels shuffled before fitting: what a view gets by chance.
        chosen: in how many folds the inner folds chose it.
    """

    name: str
    score: Score
    shuffled: float
    chosen: int


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A finished probe.

    Attributes:
        out: its folder.
        measure: ``accuracy`` or ``r2``.
        majority: score of the majority class, or of the mean.
        views: every view, in stored order.
        nested: score of the view chosen inside the folds.
        random: score of every view of the same architecture with random weights, if asked for.
        seconds: how long it took.
    """

    out: Path
    measure: str
    majority: float
    views: tuple[ViewScore, ...]
    nested: Score
    random: dict[str, float]
    seconds: float


def probe(
    dataset: str | Path,
    *,
    out: str | Path,
    views: Sequence[str] | None = None,
    classifier: str = "logreg",
    task: str = "classification",
    split: str | Path | None = None,
    folds: int = 5,
    control: str | None = None,
    seed: int = 0,
    jobs: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ProbeResult:
    """Score every stored view under the same folds.

    Args:
        dataset: folder that ``extract`` wrote, with a label column.
        out: folder for the table and the figure.
        views: only these; by default all that are stored.
        classifier: what is fitted on each view.
        task: ``classification`` (scored by accuracy) or ``regression`` (by R²).
        split: file that ``embedkit split`` wrote; of several deals of the folds, the first.
        folds: number of folds where no split is given.
        control: ``random-weights`` encodes the texts by the same architecture with random weights
            too.
        seed: of folds, shuffles and learners.
        jobs: fits at the same time; by default as many as there are cores.
        overwrite: replace an earlier probe.
        progress: called with fits done and fits in all.

    Raises:
        UsageError: a view, label, setting or split cannot be used.
    """
    started = time.perf_counter()
    settings = LearnerSettings(classifier, "vectors", task, seed=seed)
    settings.check()
    check_seed(seed)
    if control not in (None, "random-weights"):
        raise UsageError(f"--control {control}: expected random-weights.")
    data = load(dataset)
    names = list(data.manifest.views) if views is None else [
        load(dataset, name).views[0] for name in views
    ]  # fmt: skip
    target = target_of(data, task)
    chosen = split_for(data, split, folds=folds, seed=seed)
    work = _Probe(data, target, chosen, settings, names, jobs, progress)
    with new_run(Path(out), overwrite=overwrite) as folder:
        result = work.run(Path(out), control == "random-weights", started)
        _write(folder, data, chosen, settings, result)
    return result


class _Probe:
    """All fits of one probe; each is one view, one fold, one set of labels."""

    def __init__(
        self,
        data: VectorData,
        target: Target,
        split: Split,
        settings: LearnerSettings,
        names: list[str],
        jobs: int | None,
        progress: Callable[[int, int], None],
    ) -> None:
        self._data, self._target, self._split = data, target, split
        self._settings, self._names, self._jobs = settings, names, jobs
        self._progress = progress
        self._done = 0
        random = np.random.default_rng(settings.seed)
        known = split.folds[:, 0] != TEST
        shuffled = target.y.copy()
        shuffled[known] = random.permutation(target.y[known])
        self._shuffled = Target(shuffled, target.classes)
        self._parts = [
            (np.flatnonzero((split.folds[:, 0] != fold) & known),
             np.flatnonzero(split.folds[:, 0] == fold))
            for fold in range(split.n_folds)
        ]  # fmt: skip
        check_folds(target, split.folds[:, :1])

    def run(self, out: Path, random_weights: bool, started: float) -> ProbeResult:
        held = {name: self._held_out(name) for name in self._names}
        measure = "accuracy" if self._target.classes else "r2"
        choice = [int(np.argmax([held[n].inner[f] for n in self._names]))
                  for f in range(len(self._parts))]  # fmt: skip
        nested = [held[self._names[c]].parts[f] for f, c in enumerate(choice)]
        views = tuple(
            ViewScore(
                name, self._score(held[name].parts)[measure],
                self._score(held[name].shuffled, samples=0)[measure].value,
                sum(self._names[c] == name for c in choice),
            )
            for name in self._names
        )  # fmt: skip
        majority = [baseline(self._target, train, len(test)) for train, test in self._parts]
        random = self._random_weights(measure) if random_weights else {}
        return ProbeResult(
            out, measure, self._score(majority, samples=0)[measure].value, views,
            self._score(nested)[measure], random, time.perf_counter() - started,
        )  # fmt: skip

    def _held_out(self, name: str) -> _Held:
        return self._fits(load(self._data.path, name).X, inner=True)

    def _fits(self, X: NDArray[np.float32], *, inner: bool) -> _Held:
        """Every fit of one view, at the same time as memory and cores allow."""
        from joblib import Parallel, delayed
        from threadpoolctl import threadpool_limits

        tasks = []
        for train, test in self._parts:
            tasks.append((self._target, train, test))
            if inner:
                tasks.append((self._shuffled, train, test))
                dealt = inner_folds(self._target.strata[train], self._split.group[train],
                                    _INNER_FOLDS, seed=self._settings.seed)  # fmt: skip
                tasks += [(self._target, train[a], train[b]) for a, b in dealt]
        with threadpool_limits(1):  # or the first fit to end would set the others' threads free
            found = Parallel(n_jobs=self._jobs or -1, prefer="threads")(
                delayed(_one_fit)(X, target, self._split, train, test, self._settings)
                for target, train, test in tasks
            )
        self._done += len(tasks)
        self._progress(self._done, len(tasks) * len(self._names))
        if not inner:
            return _Held(found, [], [])
        step = 2 + _INNER_FOLDS
        scores = []
        for start in range(0, len(tasks), step):
            inner_tests = [tasks[start + 2 + i][2] for i in range(_INNER_FOLDS)]
            outputs = found[start + 2 : start + step]
            scores.append(self._quality(np.concatenate(inner_tests), np.concatenate(outputs)))
        return _Held(found[::step], found[1::step], scores)

    def _quality(self, places: Integers, output: Floats) -> float:
        y = self._target.y[places]
        if self._target.classes:
            return float((output.argmax(1) == y).mean())
        return -float(((y - output) ** 2).mean())

    def _score(self, parts: Sequence[Floats], samples: int = 1_000) -> dict[str, Score]:
        places = np.concatenate([test for _, test in self._parts])
        order = np.argsort(places)
        output, y = np.concatenate(parts)[order], self._target.y[places[order]]
        seed = self._settings.seed
        if not self._target.classes:
            return regression_scores(y, output, seed=seed, samples=samples)
        return classification_scores(y, output, output.argmax(1), seed=seed, samples=samples)

    def _random_weights(self, measure: str) -> dict[str, float]:
        """Scores of the same views by the same architecture with random weights."""
        vectors = _encode_at_random(self._data, self._names, self._settings.seed)
        return {
            name: self._score(self._fits(X, inner=False).parts, samples=0)[measure].value
            for name, X in vectors.items()
        }


@dataclass(frozen=True, slots=True)
class _Held:
    """Outputs of a view for the held-out records of each fold, and its score in inner folds."""

    parts: list[Floats]
    shuffled: list[Floats]
    inner: list[float]


def _one_fit(
    X: NDArray[np.float32], target: Target, split: Split, train: Integers, test: Integers,
    settings: LearnerSettings,
) -> Floats:  # fmt: skip
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # of this thread; the fits run side by side
        learner = fit(X, target, split, train, settings, tune=False)
        return predict_part(learner, X, test, target)


def _encode_at_random(
    data: VectorData, names: Sequence[str], seed: int
) -> dict[str, NDArray[np.float32]]:
    import torch

    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.model import PlainModel
    from embedkit.encoding.tokenization import TokenizerSettings
    from embedkit.runs.splits import stored_texts

    texts = stored_texts(data)
    if texts is None or data.manifest.job["input"]["text_pair"]:
        raise UsageError(
            "--control random-weights encodes the stored texts again, and this dataset has none "
            "or has pairs."
        )
    vectors = data.manifest.job["vectors"]
    encoder = Encoder.load(
        data.manifest.names["model"], revision=data.manifest.names["revision"],
        max_length=vectors["max_length"], precision="fp32", forward="transformers",
    )  # fmt: skip
    assert isinstance(encoder.model, PlainModel)
    torch.manual_seed(seed)
    for module in encoder.model.module.modules():
        if hasattr(module, "weight") and not isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                torch.nn.init.zeros_(module.bias)
    settings = TokenizerSettings(
        vectors["max_length"], vectors["on_long"], vectors["stride"], vectors["prefix"]
    )
    wanted = [n for n in names if n != "pooler"]
    tokenized = encoder.tokenizer.encode(texts, settings=settings)
    shard = encoder.encode_shard(
        tokenized,
        views=[parse_view(n, n_layers=encoder.n_layers) for n in wanted],
        special_tokens=vectors["special_tokens"],
    )
    return {name: shard.views[name] for name in wanted}


def _write(
    folder: Path, data: VectorData, split: Split, settings: LearnerSettings, result: ProbeResult
) -> None:
    from embedkit.runs.figures import draw_probe

    draw_probe(folder, result)
    write_run(
        folder,
        {
            "kind": "probe",
            "learner": asdict(settings),
            "dataset": {"fingerprint": data.manifest.fingerprint, "source": list(source_of(data)),
                        "path": path_from(folder, data.path), "names": data.manifest.names},
            "split": {"fingerprint": split.fingerprint, **split.settings},
            "measure": result.measure,
            "majority": result.majority,
            "views": [asdict(view) for view in result.views],
            "nested": asdict(result.nested),
            "random_weights": result.random,
            "cost": {"seconds": result.seconds},
            "versions": versions(),
        },
    )  # fmt: skip
