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
    words = pd.read_parquet(outputs / "homonyms" / "words")
    marked = pd.read_parquet(
        outputs / "homonyms" / "sentences", columns=["row", "label", "word", "start"]
    )
    uses = words.merge(marked, on="row", suffixes=("", "_marked"))
    at = uses["start_marked"].astype(int)  # kept columns stay text, as they stand in the corpus
    uses = uses[(uses["start"] <= at) & (at < uses["end"])]
    uses = uses[uses["word_marked"].str.lower() == "bank"]
    vectors = np.stack(list(uses["layer_6"]))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = vectors @ vectors.T
    same = np.equal.outer(uses["label"].to_numpy(), uses["label"].to_numpy())
    off = ~np.eye(len(uses), dtype=bool)
    print(
        f"bank: cosine {cosine[same & off].mean():.3f} within a sense, "
        f"{cosine[~same].mean():.3f} across senses ({len(uses)} uses)"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs"))
