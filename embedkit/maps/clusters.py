"""Clusters of texts, named by the words that are typical of them: colours of a map without labels.

    vectors (n, width) ──► k-means ──► codes (n,)               0  0  1  0  2  1
    texts ──► words ──► the three of the highest weight         0: "tax, vat, invoice"

The weight is a kind of class-based TF-IDF (a cluster is one document), of shares of texts in place
of counts: a long text has no more votes than a short one, and words that all clusters have, such as
"the", weigh nothing, without a list of them for each language.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from embedkit.types import Float32, Int64

_MOST = 12  # clusters: a legend has as many colours that can be told apart
_FITTED = 20_000  # texts that the middles are fitted to; all others go to the nearest
_CHARACTERS = 1_000  # of a text whose words count
_NAMED_BY = 3  # words

# words with their letters; Chinese and Japanese have no spaces between theirs
_WORD, _UNSPACED = re.compile(r"\w+"), re.compile(r"[\u3040-\u30ff\u3400-\u9fff]+")
_HANGUL = re.compile(r"[\uac00-\ud7a3]{3,}")


def cluster_texts(unit: Float32, texts: Sequence[str], *, seed: int = 0) -> tuple[Int64, list[str]]:
    """Return the cluster of each text ``(n,)``, the largest first, and the names of the clusters.

    ``unit`` are ``(n, width)`` vectors of length 1. There are as many clusters as half the root of
    ``n / 2``, at least 2 and at most 12.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    k = min(max(round(math.sqrt(len(unit) / 8)), 2), _MOST, len(np.unique(unit, axis=0)))
    random = np.random.default_rng(seed)
    fitted = np.sort(random.choice(len(unit), min(len(unit), _FITTED), replace=False))
    # one thread: several add up their sums in the order in which they end, and a text between two
    # clusters would change its colour from one page to the next
    with threadpool_limits(1):
        middles = KMeans(k, n_init=4, random_state=seed).fit(unit[fitted]).cluster_centers_
        # the nearest middle: |x - m|² = 1 - 2 x·m + |m|²
        nearest = (unit @ middles.T - (middles**2).sum(axis=1) / 2).argmax(axis=1)
    _, codes, counts = np.unique(nearest, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    codes = np.argsort(order)[codes]
    return codes, _names(codes, texts, len(order))


def _names(codes: Int64, texts: Sequence[str], k: int) -> list[str]:
    """The typical words of each cluster."""
    having, everywhere = [Counter[str]() for _ in range(k)], Counter[str]()
    for code, text in zip(codes.tolist(), texts, strict=True):
        words = set(words_of(text))
        having[code].update(words)
        everywhere.update(words)
    names: list[str] = []
    sizes = np.bincount(codes, minlength=k).tolist()
    for size, counts in zip(sizes, having, strict=True):
        # a word of a single text is typical of that text alone
        weights = {
            word: _weight(n / size, everywhere[word] / len(texts))
            for word, n in counts.items()
            if n > 1
        }
        chosen: list[str] = []
        for word in sorted(weights, key=lambda word: (-weights[word], -len(word), word)):
            # "영화" says what "영화는" says
            if weights[word] > 0 and not any(word in one or one in word for one in chosen):
                chosen.append(word)
            if len(chosen) == _NAMED_BY:
                break
        name = ", ".join(chosen) or f"cluster {len(names) + 1}"
        names.append(f"{name} ({len(names) + 1})" if name in names else name)
    return names


def _weight(share: float, overall: float) -> float:
    """How typical a word is by its share of the texts of a cluster, and of all texts."""
    # the second factor is what TF-IDF has: rare words say more. The third, squared, is what a
    # cluster adds: without the square "been" and "our" of a few sentences come before "tax"
    return share * -math.log(overall) * max(math.log(share / overall), 0) ** 2


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text in lower case.

    Of Chinese and Japanese, pairs of characters; of Korean also the beginnings of words, since
    particles stand at their ends.

    >>> list(words_of("The Bus is late")), list(words_of("東京都")), list(words_of("영화는 3D"))
    (['the', 'bus', 'is', 'late'], ['東京', '京都'], ['영화는', '영화', '3d'])
    """
    for word in _WORD.findall(text[:_CHARACTERS].lower()):
        if unspaced := "".join(_UNSPACED.findall(word)):
            yield from (unspaced[i : i + 2] for i in range(max(len(unspaced) - 1, 1)))
        elif len(word) > 1:
            yield word
            if _HANGUL.fullmatch(word):
                yield from (word[:end] for end in range(2, len(word)))
