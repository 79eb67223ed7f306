"""Heads: BERT's own classifier reproduced, padding without effect, losses, what is trained."""

from __future__ import annotations

import copy
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from embedkit.choices import DEFAULT_MODEL, HEADS
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.products import LinearToTrain
from embedkit.errors import ModelError, UsageError
from embedkit.finetuning.heads import EncoderWithHead
from embedkit.finetuning.model import add_lora, freeze, padded, predict_logits
from embedkit.finetuning.options import source_of
from embedkit.finetuning.training import LengthSampler
from tests.encoding.test_other_families import build
from tests.finetune_fixtures import built, check_test_set, corpus_of, predictions, tuned
from tests.finetuning.test_vocabulary import KEEPS
from tests.models import Tiny, check_near, save_other, slow
from tests.store_fixtures import tiny_model


@pytest.mark.parametrize("model", [str(tiny_model()), *slow(DEFAULT_MODEL)], ids=["tiny", "minilm"])
def test_the_pooler_head_is_berts_own_classifier(model: str) -> None:
    ours, texts = built(model, head="pooler", n_outputs=3)
    folder = find_checkpoint(model).folder
    theirs = BertForSequenceClassification.from_pretrained(folder, num_labels=3)
    assert torch.equal(theirs.bert.pooler.dense.weight, ours.head.dense.weight)
    with torch.no_grad():  # the last layer is random in both; the same numbers from here on
        theirs.classifier.load_state_dict(ours.classifier.state_dict())
    batch = padded(texts)
    labels = torch.arange(len(texts)) % 3

    def logits(model: Any) -> torch.Tensor:
        with torch.inference_mode():
            return model.eval()(**batch).logits

    before = logits(ours)
    check_near(before, logits(theirs), logits(copy.deepcopy(theirs).double()))
    for one in (ours, theirs):
        optimizer = torch.optim.AdamW(one.train().parameters(), lr=1e-3)
        torch.manual_seed(11)
        one(**batch, labels=labels).loss.backward()
        optimizer.step()
    after = logits(ours)
    assert float((after - before).abs().max()) > 1e-3
    assert float((after - logits(theirs)).abs().max()) <= 1e-5


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "family", ["bert", "roberta", "electra", "distilbert", "modernbert", "decoder"]
)
def test_padding_and_company_change_nothing(
    tiny: Tiny, tmp_path: Path, head: str, family: str
) -> None:
    """Neither of a text that has no token, as without special ones."""
    folder = build("gpt2", tmp_path) if family == "decoder" else tiny(family)
    model, texts = built(folder, head=head)
    assert (texts.n_kept == 0).any() == (family == "decoder")
    model.requires_grad_(False)
    together = model(**padded(texts)).logits
    alone = torch.cat([model(**padded(text)).logits for text in texts])
    assert float(together.std(0).min()) > 0  # it does look at the texts
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(predict_logits(model, texts), alone, atol=1e-5)


def test_segments_are_no_words(tmp_path: Path) -> None:
    """Neither in training nor in a classifier of transformers, as in the frozen encoder."""
    ours, texts = built(build("gpt2", tmp_path), head="mean")
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path, pad_token_id=0).eval()
    for model in (ours, theirs):
        batches = [padded(text) for text in texts if len(text.ids)]
        with torch.inference_mode():
            alone = [
                model(input_ids=b["input_ids"], attention_mask=b["attention_mask"]).logits
                for b in batches
            ]
        found = predict_logits(model, texts)[np.flatnonzero(texts.n_kept)]
        assert torch.allclose(found, torch.cat(alone), atol=1e-5)


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("squeezebert", {"embedding_size": 24}, "a squeezebert encoder has no linear layers"),
        ("xmod", {"languages": ["a", "b"], "default_language": "a", "type_vocab_size": 1}, ""),
    ],
)
def test_families_with_other_layers_are_trained(
    family: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """One calls its pooler, the other has layers that no row of a batch enters."""
    save_other(tmp_path, family, "roberta_wordpiece", pad_token_id=1, **settings)
    model, texts = built(tmp_path)
    model.train()(**padded(texts), labels=torch.zeros(len(texts)).long()).loss.backward()
    found = [weight.grad for weight in model.encoder.parameters() if weight.grad is not None]
    assert all(bool(gradient.isfinite().all()) for gradient in found)
    with pytest.raises(ModelError, match=message) if message else nullcontext():
        add_lora(model, 2, seed=0)


def test_a_convolution_sees_windows_of_its_width() -> None:
    model, texts = built(tiny_model(), head="cnn", cnn_widths=[3])
    model.requires_grad_(False)
    batch = padded(texts[:1])
    states = model.encoder(**batch).last_hidden_state[0]
    convolution = model.head.convolutions[0]
    longer = torch.cat([states, torch.zeros(2, states.shape[1])])
    windows = [
        torch.einsum("tw,owt->o", longer[i : i + 3], convolution.weight) + convolution.bias
        for i in range(len(states))
    ]
    expected = torch.relu(torch.stack(windows)).max(0).values
    vector = model.head(states[None], mask := batch["attention_mask"], mask, [1])[0]
    assert torch.allclose(vector, expected, atol=1e-5)


def test_losses_are_those_of_the_books() -> None:
    random = torch.Generator().manual_seed(3)
    y = torch.tensor([0, 1, 1, 0, 1])
    weights = torch.tensor([0.4, 1.6])

    def model(**settings: Any) -> EncoderWithHead:
        return built(tiny_model(), **settings)[0]

    two = torch.randn(5, 2, generator=random)
    weighted, smoothed = {"class_weights": [0.4, 1.6]}, {"label_smoothing": 0.2}
    each = -torch.log_softmax(two, 1)[torch.arange(5), y]
    expected = (each * weights[y]).sum() / weights[y].sum()
    assert torch.allclose(model(**weighted).loss(two, y), expected)
    target = functional.one_hot(y, 2) * 0.8 + 0.1
    expected = -(target * torch.log_softmax(two, 1)).sum(1).mean()
    assert torch.allclose(model(**smoothed).loss(two, y), expected)

    # one logit is the difference of two
    one = (two[:, 1] - two[:, 0])[:, None]
    for options in ({}, weighted, smoothed, weighted | smoothed):
        first = model(problem="one_logit", n_outputs=1, **options)
        second = model(**options)
        assert torch.allclose(first.loss(one, y), second.loss(two, y), atol=1e-5)
        assert torch.allclose(first.outputs(one), second.outputs(two))

    value = model(problem="value", n_outputs=1, target_mean=3.0, target_scale=2.0)
    assert torch.allclose(value.outputs(torch.tensor([[0.5]])), torch.tensor([4.0]).double())
    loss = value.loss(torch.tensor([[0.5]]), torch.tensor([5.0]))
    assert loss.item() == pytest.approx(0.25)


def trained(model: EncoderWithHead) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


class Weighted(torch.nn.Module):
    """Tokens summed by learnt weights; a number that is no weight, and a layer in two places."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.weigh, self.out = torch.nn.Linear(width, 1), torch.nn.Linear(width, outputs)
        torch.nn.init.constant_(self.out.bias, 7.0)
        assert bool(self.out.weight.isfinite().all())  # when it is read, too
        self.first = self.second = torch.nn.Linear(width, width)
        self.times: torch.Tensor
        self.register_buffer("times", torch.tensor(2))

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> Any:
        weights = self.weigh(hidden).masked_fill(~mask.bool().unsqueeze(2), -1e9).softmax(1)
        return self.out((self.times * weights * self.second(self.first(hidden)).tanh()).sum(1))


class Several(Weighted):
    """Gives more than logits, as recurrent layers do."""

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> Any:
        return super().forward(hidden, mask), hidden


def test_a_head_may_be_any_module(tmp_path: Path) -> None:
    """Given as a class or by its name; its own initial weights are kept, and it is saved."""
    name = "tests.finetuning.test_heads:Weighted"
    model, some = built(tiny_model(), head=name, n_outputs=2)
    assert (model.head.module.out.bias == 7).all()
    alone = torch.cat([predict_logits(model, text) for text in some])
    assert torch.allclose(predict_logits(model, some), alone, atol=1e-5)
    for wrong in ("os:system", "math:hypot"):
        with pytest.raises(UsageError, match=f"head='{wrong}': expected a class"):
            built(tiny_model(), head=wrong, n_outputs=2)
    for wrong in ("torch.nn:Linear", f"{Several.__module__}:Several"):  # the former takes no mask
        other = built(tiny_model(), head=wrong, n_outputs=2)[0]
        with pytest.raises(UsageError, match=f"{wrong}': called with hidden states .*, it says: "):
            predict_logits(other, some)
    corpus = corpus_of(tmp_path / "c.tsv")
    for number, head in enumerate((Weighted, name)):
        tuned(corpus, tmp_path / str(number), head=head, epochs=1, test=corpus)
    pd.testing.assert_frame_equal(predictions(tmp_path / "0"), predictions(tmp_path / "1"))
    check_test_set(tmp_path / "0", corpus, head=name)
    with pytest.raises(UsageError, match="head="):
        tuned(corpus, tmp_path / "x", head=lambda width, outputs: torch.nn.Linear(width, outputs))


def test_a_head_of_ones_own_that_fails_or_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its errors name it; a run that was interrupted does not go on with other code."""
    monkeypatch.syspath_prepend(tmp_path)
    head, corpus = tmp_path / "heads_of_a_user.py", corpus_of(tmp_path / "c.tsv")
    code = "import torch\nclass Own(torch.nn.Linear):\n    def forward(self, hidden, mask):\n"
    head.write_text(f"{code}        raise ValueError('too few')\n")
    given: dict[str, Any] = {"head": "heads_of_a_user:Own", "epochs": 1}
    with pytest.raises(UsageError, match=r"it says: too few"):
        tuned(corpus, tmp_path / "run", **given)
    before = source_of(given["head"])
    head.write_text(f"{code}        return super().forward(hidden[:, 0])\n")
    assert len({before, source_of(given["head"]), source_of("cls"), None}) == 3


def test_families_that_train_in_another_way(tiny: Tiny, tmp_path: Path) -> None:
    corpus, of_labels = corpus_of(tmp_path / "c.tsv"), {"objective": "labels", "epochs": 1}
    albert = {**of_labels, "model": str(tiny("albert")), "gradient_checkpointing": True}
    with pytest.raises(UsageError, match="gradient_checkpointing=True: it is not for this"):
        tuned(corpus, tmp_path / "a", **albert)
    decoder = {**of_labels, "model": str(tiny("qwen3")), "head": None}
    assert tuned(corpus, tmp_path / "b", **decoder).content.head == "mean"


def test_what_is_frozen(tiny: Tiny) -> None:
    for family in (*KEEPS, "qwen3"):
        model = built(tiny(family))[0]
        freeze(model, "2")
        ends = ("classifier.", "encoder.final_norm.", "encoder.norm.")
        names = {name for name, _ in model.named_parameters()}
        last = {name for name in names if re.search(r"\.layers?\.2\.", name)}
        assert last
        assert trained(model) == last | {n for n in names if n.startswith(ends)}, family
        freeze(model, "all")
        assert trained(model) == {"classifier.weight", "classifier.bias"}
    model = built(tiny("bert"))[0]
    freeze(model, "embeddings")
    names = {name for name, _ in model.named_parameters()}
    assert names - trained(model) == {n for n in names if n.startswith("encoder.embeddings.")}
    with pytest.raises(UsageError, match=r"albert.*freeze_layers"):
        freeze(built(tiny("albert"))[0], "1")


def test_an_epochs_order_is_of_seed_and_epoch_alone() -> None:
    lengths = np.random.default_rng(1).integers(5, 100, 1_003)
    sampler = LengthSampler(lengths, 16, seed=4)
    first = list(sampler)
    assert first == list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(1_003))
    spread = [np.ptp(lengths[second[i : i + 16]]) for i in range(0, 992, 16)]
    assert np.median(spread) < 8  # of 95 that batches at random would have


def test_products_are_trained_as_those_of_torch() -> None:
    """Result and gradients are as near to float64 as torch's own are.

    As torch's own, the result may be changed in place: DeBERTa and Longformer do so.
    """
    torch.manual_seed(0)
    plain, x, g = torch.nn.Linear(96, 192), torch.randn(5, 33, 96), torch.randn(5, 33, 192)
    ours, exact = copy.deepcopy(plain), copy.deepcopy(plain).double()
    ours.__class__ = LinearToTrain
    found: list[list[Any]] = []
    for layer in (ours, plain, exact):
        rows = x.to(layer.weight.dtype).clone().requires_grad_()
        y = layer(rows).mul_(2)
        y.backward(g.to(y.dtype))
        found.append([y.detach(), rows.grad, layer.weight.grad, layer.bias.grad])
    for mine, theirs, right in zip(*found, strict=True):
        assert (mine - right).norm() <= 1.5 * (theirs - right).norm()
