"""Several runs as one: the mean of their probabilities, or a model stacked on them.

The stacked model is a logistic regression (for values: a ridge regression) on the log-odds of the
runs. For the records of a fold it is fitted on the out-of-fold predictions of the other folds, so
that a record's own label never helps to predict it. The runs themselves have seen that label when
they predicted the other folds; fitting them once more inside every fold would be needed to remove
this second-order dependence, which a model of so few weights can hardly use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedkit import fsio
from embedkit.comparison.load import Outcome, Records
from embedkit.errors import DamagedError, MismatchError, OutputExistsError, UsageError
from embedkit.runs.metrics import best_threshold
from embedkit.runs.splits import TEST

__all__ = ["BLENDS", "Blend", "blend", "read_answers", "write_blend"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BLENDS = ("mean", "stacked")
_TINY = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Blend:
    """Several runs made one.

    Attributes:
        outcome: what it says of the records.
        runs: how many runs it is made of.
        threshold: from which probability of the second class on it decides for that class, learnt
            on all out-of-fold predictions; ``None``: it decides for the likeliest class.
        apply: outputs of the runs for other records, in the order of the runs → blended output.
    """

    outcome: Outcome
    runs: int
    threshold: float | None
    apply: Callable[[Sequence[Floats]], Floats]

    def decide(self, output: Floats) -> NDArray[Any]:
        """``(n,)`` class numbers of probabilities ``(n, classes)``; values stay what they are."""
        return _decide(output, self.threshold)


def blend(kind: str, records: Records, outcomes: Sequence[Outcome], *, cut: bool = False) -> Blend:
    """Blend runs.

    Args:
        kind: one of :data:`BLENDS`.
        records: what they predicted.
        outcomes: their predictions.
        cut: choose a threshold for two classes, for every fold on the other folds.

    Raises:
        UsageError: there is no such kind.
    """
    if kind not in BLENDS:
        raise UsageError(f"--blend {kind}: expected {' or '.join(BLENDS)}.")
    outputs = [outcome.output for outcome in outcomes]
    apply: Callable[[Sequence[Floats]], Floats] = _mean
    output = _mean(outputs)
    if kind == "stacked":
        output, apply = _stack(records, outputs)
    threshold = None
    decided = _decide(output, None)
    if cut and len(records.classes) == 2:
        decided, threshold = _decide_by_fold(records, output)
    return Blend(Outcome(f"blend: {kind}", output, decided), len(outputs), threshold, apply)


def read_answers(paths: Sequence[Path], classes: Sequence[str]) -> tuple[Any, list[Floats]]:
    """Files that ``embedkit predict`` wrote for the same corpus.

    Returns:
        A table of ``row`` and ``id``, and the probabilities ``(n, classes)`` of each file.

    Raises:
        UsageError: a file is missing or has no probabilities of these classes.
        MismatchError: the files are about other records.
    """
    first: Any = None
    outputs = []
    for path in paths:
        table = _answer_table(path)
        names = ["row", "id", *(f"proba_{name}" for name in classes)]
        missing = [name for name in names if name not in table.column_names]
        if missing:
            raise UsageError(
                f"{path} has no column {missing[0]!r}; expected what embedkit predict writes to a "
                ".tsv or .parquet file, without --label-names."
            )
        about = table.select(["row", "id"])
        if first is not None and not about.equals(first):
            raise MismatchError(
                f"{path} is about other records than {paths[0]}. Predict the same corpus by every "
                "run."
            )
        first = about
        outputs.append(np.stack([table[n].to_numpy() for n in names[2:]], axis=1))
    return first, outputs


def write_blend(
    made: Blend,
    records: Records,
    out: Path,
    *,
    answers: Sequence[Path] = (),
    overwrite: bool = False,
) -> int:
    """Write blended labels and probabilities, of the split's records or of new ones.

    Args:
        made: the blend.
        records: what it was made on.
        out: ``.tsv`` or ``.parquet`` file.
        answers: what ``predict`` wrote of new records, one file per run, in the order of the runs.
        overwrite: replace the file.

    Returns:
        Number of records.

    Raises:
        UsageError: the file has another ending, the runs predict values, or an answer is unusable.
        OutputExistsError: the file exists.
    """
    import pyarrow as pa

    if out.suffix not in (".tsv", ".parquet"):
        raise UsageError(f"--write-blend {out}: expected a name ending in .tsv or .parquet.")
    if out.exists() and not overwrite:
        raise OutputExistsError(f"{out} exists. Choose another name, or give --overwrite.")
    if answers and not records.classes:
        raise UsageError("--answers needs runs that predict labels; these predict values.")
    if answers and len(answers) != made.runs:
        raise UsageError(
            f"--answers is given {len(answers)} times for {made.runs} runs. Give one file for "
            "every run, in their order."
        )
    if answers:
        about, outputs = read_answers(answers, records.classes)
        columns = {"row": about["row"], "id": about["id"]}
        output = made.apply(outputs)
        decided = made.decide(output)
    else:
        chosen = np.concatenate([records.first, records.test])
        columns = {
            "row": pa.array(records.row[chosen]),
            "id": pa.array([records.ids[i] for i in chosen]),
            "fold": pa.array(["test" if f == TEST else str(f) for f in records.fold[chosen]]),
        }
        output, decided = made.outcome.output[chosen], made.outcome.decided[chosen]
    if records.classes:
        columns["label"] = pa.array([records.classes[i] for i in decided])
        for i, name in enumerate(records.classes):
            columns[f"proba_{name}"] = pa.array(output[:, i])
    else:
        columns["value"] = pa.array(output)
    _write(pa.table(columns), out)
    return len(output)


def _mean(outputs: Sequence[Floats]) -> Floats:
    return np.asarray(np.mean(np.stack(outputs), axis=0), np.float64)


def _stack(
    records: Records, outputs: Sequence[Floats]
) -> tuple[Floats, Callable[[Sequence[Floats]], Floats]]:
    X = _features(outputs)
    result = np.empty_like(outputs[0])
    for repeat in np.unique(records.repeat[records.held]):
        here = (records.repeat == repeat) & (records.fold != TEST)
        for fold in np.unique(records.fold[here]):
            held = here & (records.fold == fold)
            known = here & ~held
            result[held] = _fitted(records, X, known)(X[held])
    whole = _fitted(records, X, records.fold != TEST)
    if len(records.test):
        result[records.test] = whole(X[records.test])
    return result, lambda given: whole(_features(given))


def _fitted(records: Records, X: Floats, known: NDArray[np.bool_]) -> Callable[[Floats], Floats]:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if not records.classes:
        values = make_pipeline(StandardScaler(), Ridge()).fit(X[known], records.y[known])
        return lambda given: np.asarray(values.predict(given), np.float64)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))
    model.fit(X[known], records.y[known])
    there = model[-1].classes_  # a rare class may be missing from the other folds

    def apply(given: Floats) -> Floats:
        found = np.zeros((len(given), len(records.classes)))
        found[:, there] = model.predict_proba(given)
        return found

    return apply


def _features(outputs: Sequence[Floats]) -> Floats:
    """Log-odds of every class but the last against it, of every run side by side."""
    if outputs[0].ndim == 1:
        return np.stack(outputs, axis=1)
    logs = [np.log(np.clip(output, _TINY, 1)) for output in outputs]
    return np.concatenate([log[:, :-1] - log[:, -1:] for log in logs], axis=1)


def _decide(output: Floats, threshold: float | None) -> NDArray[Any]:
    if output.ndim == 1:
        return output
    if threshold is None:
        return np.asarray(output.argmax(1), np.int64)
    return (output[:, 1] >= threshold).astype(np.int64)


def _decide_by_fold(records: Records, output: Floats) -> tuple[Integers, float]:
    """Decisions with a threshold learnt on the other folds, and the one learnt on all."""
    decided = np.empty(len(output), np.int64)
    for repeat in np.unique(records.repeat[records.held]):
        here = (records.repeat == repeat) & (records.fold != TEST)
        for fold in np.unique(records.fold[here]):
            held = here & (records.fold == fold)
            known = here & ~held
            cut = best_threshold(records.y[known], output[known, 1], beta=1)
            decided[held] = output[held, 1] >= cut
    whole = best_threshold(records.y[records.held], output[records.held, 1], beta=1)
    decided[records.test] = output[records.test, 1] >= whole
    return decided, whole


def _answer_table(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UsageError(f"{path} does not exist. Make it with embedkit predict RUN CORPUS --out.")
    try:
        if path.suffix == ".parquet":
            return pq.read_table(path, page_checksum_verification=True)
        return csv.read_csv(
            path,
            parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=csv.ConvertOptions(
                column_types={"row": pa.int64(), "id": pa.string(), "label": pa.string()},
                strings_can_be_null=False,
            ),
        )
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(f"{path} cannot be read: {error}. Make it again.") from error


def _write(table: Any, out: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    fsio.make_folder(out.parent)
    if out.suffix == ".parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        fsio.write_durably(out, memoryview(sink.getvalue()), scratch=out.parent)
        return
    lines = ["\t".join(_field(name) for name in table.column_names)]
    for line in zip(*(table[name].to_pylist() for name in table.column_names), strict=True):
        lines.append("\t".join(_field(v) for v in line))
    fsio.write_durably(out, ("\n".join(lines) + "\n").encode(), scratch=out.parent)


def _field(value: object) -> str:
    """A TSV field; what would break the line becomes a space."""
    text = f"{value:.6f}" if isinstance(value, float) else str(value)
    return text.replace("\t", " ").replace("\r", " ").replace("\n", " ")
