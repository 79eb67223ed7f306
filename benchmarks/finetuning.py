"""Training beside a plain loop of transformers: speed, memory, and the distance of every weight.

    python -m benchmarks.finetuning
    python -m benchmarks.finetuning --model multilingual --corpora FOLDER

Four contestants train the same checkpoint with the same head on the same texts for at least 200
steps, which are the fewest by the defaults of ``embedkit finetune``: what it does once a fold, such
as to write the rows of the vocabulary that do not occur to a file, weighs as much as it does there.
Each is in a process of its own, in turn, round after round::

    trainer    AutoModel, mean, linear layer; texts in random order, batches padded to the longest
    plain      the same loop with the batches of embedkit, which are of similar lengths
    reversed   plain, the texts of each batch in reverse: the same sums in another order
    embedkit   what ``embedkit finetune`` runs for a fold

All have AdamW (fused) with the same rates and decay, warm-up, linear decay and clipped gradients.
Texts per second are of processor time, since other programs may use the cores; loading and
tokenizing are not counted. The distance of the weights is measured after 50 steps without
dropout, in a round of its own: embedkit's from plain's, tensor by tensor, beside that of reversed
from plain, which is the distance that rounding alone makes.

The plain loop does what the Trainer of transformers does in a step, and nothing else of its work:
the same optimizer (``adamw_torch_fused`` is its default), schedule and clipping.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.measure import describe, table
from benchmarks.texts import CORPORA, ROOT
from embedkit.choices import DEFAULT_MODEL, MULTILINGUAL
from embedkit.corpus.plan import CorpusOptions
from embedkit.encoding.checkpoint import Checkpoint, find_checkpoint, quiet_transformers
from embedkit.encoding.model import load_model
from embedkit.encoding.tokenizer import load_tokenizer
from embedkit.encoding.windows import TokenizedTexts, TokenizerSettings
from embedkit.finetuning.heads import build_model
from embedkit.finetuning.model import n_seen, padded, parameter_groups
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.training import Fold, LengthSampler, train_fold
from embedkit.machine import peak_memory_bytes, release_memory
from embedkit.units.target import Target
from embedkit.units.units import Units

STEPS, BATCH, ROUNDS = 200, 16, 3
APART = 50
LOOPS = ("trainer", "plain")
SHORT = str(ROOT / "data/requests_en.tsv")
# the longest text that is read, in tokens: of the last all have ten, so that nothing is padded
KINDS = {"reviews": 512, "requests": 512, "ten tokens": 10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="default: multilingual and MiniLM")
    parser.add_argument("--corpora", type=Path, default=CORPORA, help="with nsmc/ratings_train.txt")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--apart", type=int, default=APART, help="steps until weights are compared")
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--child", help=argparse.SUPPRESS)  # the contestant of this process
    parser.add_argument("--corpus", help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--weights", help=argparse.SUPPRESS)  # train without dropout, and keep them
    options = parser.parse_args()
    quiet_transformers()
    if options.child:
        print(json.dumps(_contestant(options)))
        return
    reviews = options.corpora / "nsmc/ratings_train.txt"
    long = str(reviews if reviews.is_file() else ROOT / "data/reviews_ko.tsv")
    models = [options.model] if options.model else [MULTILINGUAL, DEFAULT_MODEL]
    print(describe(["embedkit", "torch", "transformers", "accelerate"]), "\n")
    speeds, distances = [], []
    for model in models:
        for kind in [options.only] if options.only else KINDS:
            about = f"{model.rpartition('/')[2]}, {kind}"
            words = ["--model", model, "--corpus", long if kind == "reviews" else SHORT]
            words += ["--kind", kind]
            if options.rounds:
                row, padding = _speed(words, options)
                speeds.append([f"{about}, {padding}", *row])
            if options.apart:
                distances.append([about, *_distance(words, options.apart)])
    header = ["", *LOOPS, "embedkit", "× trainer", "× plain", "peak MB", "of trainer's"]
    print(table([*header[:1], *(f"{name}, texts/s" for name in header[1:4]), *header[4:]], speeds))
    print()
    print(table(["", "weights", "median ratio", "greatest ratio", "greatest distance"], distances))


def _speed(words: list[str], options: argparse.Namespace) -> tuple[list[str], str]:
    """Cells of medians and ratios, and the lengths and padding of the texts."""
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in (*LOOPS, "embedkit")}
    for _ in range(options.rounds):
        for name, found in measured.items():
            found.append(_run(name, options.steps, *words))

    def median(name: str, value: str) -> float:
        return float(statistics.median(one[value] for one in measured[name]))

    rates = {name: median(name, "rate") for name in measured}
    peaks = {name: median(name, "peak") / 1e6 for name in measured}
    ours = rates["embedkit"]
    cells = [f"{rate:.1f}" for rate in rates.values()]
    cells += [f"{ours / rates[name]:.2f}" for name in LOOPS]
    cells += [f"{peaks['embedkit']:,.0f}", f"{peaks['embedkit'] / peaks['trainer']:.2f}"]
    first = measured["trainer"][0]
    shares = f"{first['padding']:.0%}, in ours {measured['plain'][0]['padding']:.1%}"
    return cells, f"{first['tokens']:.0f} tokens (of a batch {shares} are padding)"


def _distance(words: list[str], steps: int) -> list[str]:
    """Distances of weights after training without dropout, as multiples of a plain rerun's."""
    with tempfile.TemporaryDirectory() as folder:
        weights = {}
        for name in ("plain", "reversed", "embedkit"):
            file = f"{folder}/{name}.safetensors"
            _run(name, steps, *words, "--weights", file)
            weights[name] = load_file(file)
    plain, other, ours = (weights[name] for name in ("plain", "reversed", "embedkit"))
    assert plain.keys() == ours.keys()
    ratios, greatest = [], 0.0
    for name, tensor in plain.items():
        exact = tensor.double()
        distance = float((ours[name].double() - exact).norm())
        rerun = float((other[name].double() - exact).norm())
        # a few ulp of the tensor: a rerun may leave a vector as it is by chance
        floor = 4 * torch.finfo(torch.float32).eps * float(exact.norm())
        ratios.append(distance / max(rerun, floor))
        greatest = max(greatest, float((ours[name].double() - exact).abs().max()))
    return [
        str(len(ratios)),
        f"{statistics.median(ratios):.2f}",
        f"{max(ratios):.2f}",
        f"{greatest:.1e}",
    ]


def _run(name: str, steps: int, *words: str) -> dict[str, Any]:
    """What a contestant prints, in a process of its own."""
    more = ["--child", name, "--steps", str(steps)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.finetuning", *words, *more],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    # as they come: a table is there after many minutes
    print(*words[1::2], name, result, file=sys.stderr, flush=True)
    return result


def _contestant(options: argparse.Namespace) -> dict[str, Any]:
    """Train, in this process; its rate, peak memory, lengths and padding."""
    checkpoint = find_checkpoint(options.model)
    label = "intent" if options.corpus.endswith(Path(SHORT).name) else None
    # of fewer texts every one, several times
    reading = CorpusOptions(min_chars=6, sample=options.steps * BATCH, label=label)
    data = Units.of_corpus(options.corpus, reading)
    count = len(data) // BATCH * BATCH  # whole batches, in all orders
    data = data.take(np.arange(count))
    length = TokenizerSettings(min(KINDS[options.kind], checkpoint.positions))
    texts = load_tokenizer(checkpoint).encode(data.texts(), settings=length)
    target, epochs = data.target(), math.ceil(options.steps * BATCH / count)
    train = _ours if options.child == "embedkit" else _loop
    weights, seconds, padding = train(checkpoint, texts, target, epochs, options)
    if options.weights:
        save_file({name: value.contiguous() for name, value in weights.items()}, options.weights)
    return {
        "rate": count * epochs / seconds,
        "peak": peak_memory_bytes(),
        "tokens": len(texts.ids) / count,
        "padding": padding,
    }


def _last_layer(width: int, outputs: int) -> nn.Linear:
    """The new layer, the same for all contestants."""
    layer = nn.Linear(width, outputs)
    with torch.no_grad():
        layer.weight.normal_(0, 0.02, generator=torch.Generator().manual_seed(0))
        layer.bias.zero_()
    return layer


def _without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


class _Plain(nn.Module):
    """An encoder of transformers, the mean of its states, dropout and a linear layer."""

    def __init__(self, checkpoint: Checkpoint, outputs: int) -> None:
        from transformers import AutoModel

        super().__init__()
        self.encoder = AutoModel.from_pretrained(
            checkpoint.folder, dtype=torch.float32, add_pooling_layer=False
        )
        self.dropout = nn.Dropout(0.1)
        self.classifier = _last_layer(self.encoder.config.hidden_size, outputs)

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = self.encoder(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(2).to(hidden.dtype)
        logits: torch.Tensor = self.classifier(self.dropout((hidden * mask).sum(1) / mask.sum(1)))
        return logits


def _loop(
    checkpoint: Checkpoint,
    texts: TokenizedTexts,
    target: Target,
    epochs: int,
    options: argparse.Namespace,
) -> tuple[dict[str, torch.Tensor], float, float]:
    """Weights, seconds and share of padding of the plain loop."""
    from transformers import get_linear_schedule_with_warmup

    model = _Plain(checkpoint, len(target.classes))
    if options.weights:
        _without_dropout(model)
    y, steps = torch.from_numpy(target.y), len(texts) // BATCH * epochs
    started = time.process_time()
    settings: Any = TrainingOptions()
    optimizer = torch.optim.AdamW(parameter_groups(model, settings), fused=True)  # type: ignore[arg-type]
    schedule = get_linear_schedule_with_warmup(optimizer, math.ceil(0.1 * steps), steps)
    model.train()
    real = all_of_them = 0
    for batch in _batches(options.child, n_seen(texts), epochs):
        inputs = padded(texts[batch])
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(inputs), y[batch])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        real += int(inputs["attention_mask"].sum())
        all_of_them += inputs["attention_mask"].numel()
    seconds = time.process_time() - started
    return model.state_dict(), seconds, 1 - real / all_of_them


def _batches(contestant: str, lengths: np.ndarray[Any, Any], epochs: int) -> Iterator[Any]:
    """Indices of the texts of each step."""
    sampler = LengthSampler(lengths, BATCH, 0)
    random = np.random.default_rng(0)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        trainer = contestant == "trainer"
        order = random.permutation(len(lengths)) if trainer else np.array([*sampler])
        for batch in order.reshape(-1, BATCH):
            yield batch[::-1].copy() if contestant == "reversed" else batch


def _ours(
    checkpoint: Checkpoint,
    texts: TokenizedTexts,
    target: Target,
    epochs: int,
    options: argparse.Namespace,
) -> tuple[dict[str, torch.Tensor], float, float]:
    """Weights and seconds of one fold that trains on everything."""
    cpu = torch.device("cpu")
    release_memory()
    plain = load_model(checkpoint, pad_id=texts.pad_id, device=cpu, dtype=torch.float32)
    settings = {"head": "mean", "n_outputs": len(target.classes), "dropout": 0.1}
    model = build_model(plain, seed=0, **settings)
    model.classifier = _last_layer(model.width, len(target.classes))
    if options.weights:
        _without_dropout(model)
    everything = np.arange(len(texts))
    none = everything[:0]
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryFile() as vocabulary:
        started = time.process_time()
        fold = Fold(
            name="one fold",
            model="fold-0",
            record=everything,
            texts=texts,
            target=target,
            train=everything,
            valid=none,
            choosing=none,
            held_out=none,
            seed=0,
            device=cpu,
            work=Path(work),
            vocabulary=vocabulary,
            options=TrainingOptions(
                epochs=epochs, batch_size=BATCH, validation=0, precision="fp32"
            ),
        )
        trained, _ = train_fold(fold, model)
        seconds = time.process_time() - started
    weights = trained.state_dict()
    return weights, seconds, 0.0


if __name__ == "__main__":
    main()
