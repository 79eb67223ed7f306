"""Checks every bitwise statement of the README in this process; for test_same_bits.py.

Instruction sets are chosen when torch is loaded, so every setting of them needs a process of its
own: ``python -m tests.same_bits CHECKPOINT...`` checks all statements for all checkpoints under the
environment variables that it is given, with one and with two threads, and prints one JSON object:

- ``wrong``: statements that do not hold, empty if all do;
- ``capability``, ``forwards``, ``arithmetic``: what was chosen here, for whoever reads the output.

``python -m tests.same_bits --share CHECKPOINT`` takes seconds: it prints how many per cent of the
texts have equal bits in any company, by precision.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embedkit.choices import Pooling
from embedkit.dataset.extract import extract
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.views import View, parse_layers, parse_view, views_of
from embedkit.encoding.windows import TokenizerSettings
from tests.models import TEXTS
from tests.store_fixtures import manifest_of, tree

Vectors = dict[str, list[NDArray[np.float32]]]
"""For every view and every layer of tokens, one array per text."""

MAX_LENGTH = 130
ACROSS_THREADS = 1e-5
"""Relative L2 distance between thread counts where a trial of the job finds other bits."""


def texts() -> list[str]:
    """Texts of many lengths; several have the same."""
    return [*TEXTS, *("the good bus " * n + "배" * (n % 5) for n in (0, 1, 2, 2, 3, 5, 8, 13, 50))]


def asked(encoder: Encoder) -> dict[str, tuple[list[View], bool]]:
    """What is asked by one call: views, and whether also the tokens of all layers.

    All but the first need no more than the first tokens of their highest layer.
    """
    specs = parse_layers("all", n_layers=encoder.n_layers)
    everything = list(views_of(specs, list(Pooling), n_layers=encoder.n_layers))
    alone = {"last": ["cls_-1", "pooler"], "first": ["cls_1"], "embeddings": ["cls_0"]}
    parsed = {
        key: ([parse_view(name, n_layers=encoder.n_layers) for name in names], False)
        for key, names in alone.items()
    }
    return {"everything": (everything, True), **parsed}


def vectors(
    encoder: Encoder, given: Sequence[str], views: list[View], *, tokens: bool, budget: int
) -> Vectors:
    """Vectors of texts by one call, text by text."""
    encoder.batch_tokens = budget
    tokenized = encoder.tokenizer.encode(given, settings=TokenizerSettings(MAX_LENGTH))
    layers = parse_layers("all", n_layers=encoder.n_layers) if tokens else ()
    found = encoder.encode_shard(tokenized, views=views, token_layers=layers)
    ends = tokenized.ends[1:-1]
    result = {name: list(values.copy()) for name, values in found.views.items()}
    for name, values in found.tokens.items():
        result[f"tokens of layer {name}"] = np.split(values.copy(), ends)
    return result


def companies(n: int) -> Iterator[tuple[str, list[int], int]]:
    """Name, places of the texts and tokens of a batch: budgets, orders, selections."""
    every = list(range(n))
    for budget in (64, 300, 8_192):
        yield f"in batches of {budget} tokens", every, budget
    for seed in (1, 2):
        yield f"in order {seed}", np.random.default_rng(seed).permutation(n).tolist(), 2_048
    yield "without every other one", every[::2], 2_048
    for place in every:
        yield "alone", [place], 2_048


def moved(
    encoder: Encoder, together: Vectors, views: list[View], *, tokens: bool
) -> Iterator[tuple[str, str, int]]:
    """Company, view and text wherever bits are not those of all texts ``together``."""
    given = texts()
    for company, places, budget in companies(len(given)):
        chosen = [given[place] for place in places]
        ours = vectors(encoder, chosen, views, tokens=tokens, budget=budget)
        for name, values in ours.items():
            for vector, place in zip(values, places, strict=True):
                if not np.array_equal(vector, together[name][place]):
                    yield company, name, place


def check_company(encoder: Encoder) -> tuple[list[str], dict[str, Vectors]]:
    """What differs in other company, order or batch budget; and the vectors of all texts."""
    wrong: dict[str, None] = {}
    every: dict[str, Vectors] = {}
    for key, (views, tokens) in asked(encoder).items():
        every[key] = vectors(encoder, texts(), views, tokens=tokens, budget=2_048)
        for company, name, _ in moved(encoder, every[key], views, tokens=tokens):
            wrong[f"{key}: {name} has other bits {company}"] = None
        for name, values in every[key].items():
            if not all(map(np.array_equal, values, every["everything"][name])):
                wrong[f"{key}: {name} has other bits beside other views"] = None
    return list(wrong), every


def share(model: str, precision: str) -> float:
    """Per cent of the texts of which all views and tokens have the same bits in any company."""
    encoder = Encoder(model, device="cpu", precision=precision)
    views, tokens = asked(encoder)["everything"]
    together = vectors(encoder, texts(), views, tokens=tokens, budget=2_048)
    places = {place for _, _, place in moved(encoder, together, views, tokens=tokens)}
    return 100 * (1 - len(places) / len(texts()))


def job(model: str, precision: str, folder: Path) -> tuple[dict[str, bytes], str]:
    """All files that a job makes, and what its trial of the arithmetic gave."""
    corpus = folder / "corpus.tsv"
    lines = [f"{n}\t{' '.join(text.split()) or '-'}" for n, text in enumerate(texts())]
    corpus.write_text("id\ttext\n" + "\n".join(lines) + "\n", "utf-8")
    out = Path(tempfile.mkdtemp(dir=folder), "out")
    extract(
        corpus,
        out=out,
        model=model,
        device="cpu",
        layers="all",
        pooling=["cls", "mean"],
        tokens=True,
        shard_rows=9,
        max_length=MAX_LENGTH,
        precision=precision,
    )
    return tree(out), manifest_of(out)["environments"][0]["environment"]["arithmetic"]


def far(a: Vectors, b: Vectors) -> float:
    """Largest relative L2 distance of a text's vectors, 0 only for equal bits."""
    pairs = [(x, y) for name in a for x, y in zip(a[name], b[name], strict=True)]
    if all(np.array_equal(x, y) for x, y in pairs):
        return 0.0
    distances = [np.linalg.norm(x - y) / max(float(np.linalg.norm(y)), 1e-12) for x, y in pairs]
    return max(1e-12, *map(float, distances))


def check(model: str, precision: str, scratch: Path, report: dict[str, list[str]]) -> None:
    """All statements for one checkpoint in one precision."""
    seen: dict[str, list[Any]] = {"vectors": [], "files": [], "trial": []}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        where = f"{Path(model).name}, {precision}, threads: {threads}: "
        encoder = Encoder(model, device="cpu", precision=precision)
        wrong, found = check_company(encoder) if precision in ("fp32", "int8") else ([], {})
        first, second = (job(model, precision, scratch) for _ in range(2))
        if first != second:
            wrong.append("the same job gave other bytes the second time")
        report["wrong"] += [where + what for what in wrong]
        report["forwards"].append(where + encoder.model.name)
        report["arithmetic"].append(where + first[1])
        for key, value in zip(seen, (found, *first), strict=True):
            seen[key].append(value)
    (one, two), where = seen["vectors"], f"{Path(model).name}, {precision}, 1 and 2 threads: "
    distance = max((far(one[key], two[key]) for key in one), default=0.0)
    if seen["trial"][0] == seen["trial"][1]:
        if distance or seen["files"][0] != seen["files"][1]:
            report["wrong"].append(where + f"other bits ({distance:.1e}) after equal trials")
    elif distance > ACROSS_THREADS:
        report["wrong"].append(where + f"{distance:.1e} apart")


def main(models: Sequence[str]) -> None:
    report: dict[str, list[str]] = {"wrong": [], "forwards": [], "arithmetic": []}
    with tempfile.TemporaryDirectory() as scratch:
        for model in models:
            for precision in ("fp32", "bf16", "int8"):
                check(model, precision, Path(scratch), report)
    print(json.dumps({"capability": torch.backends.cpu.get_cpu_capability(), **report}, indent=1))


if __name__ == "__main__":
    if sys.argv[1] == "--share":
        print(json.dumps({name: share(sys.argv[2], name) for name in ("fp32", "int8")}))
    else:
        main(sys.argv[1:])
