"""What `make run` ends with: open the vectors it made and look at them.

python pipelines/first_look.py outputs
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import embedkit


def main(outputs: Path) -> None:
    """Open sentence, word and token vectors; score two layers; compare two uses of a word."""
    for table in ("sentences", "words", "tokens"):
        frame = pd.read_parquet(outputs / "homonyms" / table)
        print(f"{table}: {len(frame):,} rows, columns {', '.join(frame.columns[:9])} …")

    # --- sentence vectors: which layer tells praise from complaint? -----------------------------
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    for view in ("mean_3", "mean_6"):
        data = embedkit.load(outputs / "quickstart" / "vectors", view=view)
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
        scores = cross_val_score(model, data.X, data.y, cv=folds)
        majority = max(np.unique(data.y, return_counts=True)[1]) / len(data.y)
        print(f"{view}: accuracy {scores.mean():.3f} over 5 folds (majority class {majority:.3f})")

    # --- word vectors: the two senses of "bank" --------------------------------------------------
    words = embedkit.load(outputs / "homonyms", level="word", view="6")
    sentences = embedkit.load(outputs / "homonyms")
    record = np.searchsorted(sentences.row, words.row)  # the record of every word
    marked = np.array(sentences.column("word"))[record]
    at = np.array(sentences.column("start"), int)[record]  # kept columns are strings
    bank = (np.char.lower(marked) == "bank") & (words.start <= at) & (at < words.end)
    vectors, senses = words.X[bank], words.y[bank]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = vectors @ vectors.T
    same = np.equal.outer(senses, senses)
    off = ~np.eye(len(senses), dtype=bool)
    print(
        f"bank: cosine {cosine[same & off].mean():.3f} within a sense, "
        f"{cosine[~same].mean():.3f} across senses ({len(senses)} uses)"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs"))
