"""Heads: BERT's own classifier reproduced, padding without effect, losses, what is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import BertForSequenceClassification

from embedkit.choices import HEADS
from embedkit.encoding.checkpoint import (
    DEFAULT_MODEL,
    Checkpoint,
    find_checkpoint,
    quiet_transformers,
)
from embedkit.encoding.model import PlainModel, load_model
from embedkit.encoding.tokenization import TokenizedText, TokenizerSettings
from embedkit.encoding.vocabulary import load_tokenizer
from embedkit.errors import UsageError
from embedkit.finetuning.batches import LengthSampler, batches_by_length, predict_logits
from embedkit.finetuning.heads import _HEADS, EncoderWithHead, build_model, pooler_layer
from embedkit.finetuning.options import TrainingOptions
from embedkit.finetuning.parameters import freeze, parameter_depth, parameter_groups
from tests.models import TEXTS
from tests.store_fixtures import tiny_model

quiet_transformers()


def built(model: str | Path, **settings: Any) -> tuple[EncoderWithHead, list[TokenizedText], int]:
    """A model with a head, and texts tokenized for it."""
    checkpoint = find_checkpoint(str(model))
    tokenizer = load_tokenizer(checkpoint)
    texts = tokenizer.encode(list(TEXTS[:10]), settings=TokenizerSettings(24))
    return build_model(plain_of(checkpoint), seed=5, **settings).eval(), texts, tokenizer.pad_id


def plain_of(checkpoint: Checkpoint) -> PlainModel:
    return load_model(checkpoint, pad_id=0, device=torch.device("cpu"), dtype=torch.float32)


def batch_of(texts: list[TokenizedText], pad_id: int) -> dict[str, torch.Tensor]:
    longest = max(text.n_kept for text in texts)
    ids = torch.full((len(texts), longest), pad_id)
    types, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for i, text in enumerate(texts):
        ids[i, : text.n_kept] = torch.from_numpy(text.ids)
        types[i, : text.n_kept] = torch.from_numpy(text.windows[0].type_ids)
        mask[i, : text.n_kept] = 1
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}


@pytest.mark.parametrize("model", [str(tiny_model()), DEFAULT_MODEL], ids=["tiny", "minilm"])
def test_the_pooler_head_is_berts_own_classifier(model: str) -> None:
    ours, texts, pad_id = built(model, head="pooler", n_outputs=3)
    theirs = BertForSequenceClassification.from_pretrained(
        find_checkpoint(model).folder, num_labels=3
    )
    assert torch.equal(theirs.bert.pooler.dense.weight, ours.head.dense.weight)
    assert torch.equal(theirs.bert.embeddings.word_embeddings.weight,
                       ours.encoder.embeddings.word_embeddings.weight)  # fmt: skip
    with torch.no_grad():  # the last layer is random in both; the same numbers from here on
        theirs.classifier.load_state_dict(ours.classifier.state_dict())
    batch = batch_of(texts, pad_id)
    labels = torch.arange(len(texts)) % 3

    def logits(model: Any) -> torch.Tensor:
        with torch.inference_mode():
            return model.eval()(**batch).logits

    before = logits(ours)
    assert float((before - logits(theirs)).abs().max()) <= 1e-6
    for one in (ours, theirs):
        optimizer = torch.optim.AdamW(one.train().parameters(), lr=1e-3)
        torch.manual_seed(11)
        one(**batch, labels=labels).loss.backward()
        optimizer.step()
    after = logits(ours)
    assert float((after - before).abs().max()) > 1e-3
    assert float((after - logits(theirs)).abs().max()) <= 1e-6


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert", "modernbert"])
def test_padding_and_company_change_nothing(
    tiny: Callable[[str], Path], head: str, family: str
) -> None:
    model, texts, pad_id = built(tiny(family), head=head, mix_layers=2 if head == "cnn" else 1)
    model.requires_grad_(False)
    together = model(**batch_of(texts, pad_id)).logits
    alone = torch.cat([model(**batch_of([text], pad_id)).logits for text in texts])
    in_batches = predict_logits(model, texts, pad_id=pad_id)
    assert float(together.std(0).min()) > 0  # it does look at the texts
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(in_batches, alone, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_saved_and_loaded_it_is_the_same(head: str, tmp_path: Path) -> None:
    model, texts, pad_id = built(
        tiny_model(), head=head, mix_layers=2, cnn_widths=[1, 5], class_weights=[0.5, 2.0]
    )
    model.save_pretrained(tmp_path)
    assert [p.name for p in tmp_path.glob("*.bin")] == []
    again = EncoderWithHead.from_pretrained(str(tmp_path)).eval()
    assert again.config.head == head
    assert list(again.config.class_weights) == [0.5, 2.0]
    stored = again.state_dict()
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())
    batch = batch_of(texts, pad_id)
    # an LSTM may be summed otherwise the second time, as its weights may lie elsewhere in memory
    assert torch.allclose(model(**batch).logits, again(**batch).logits, rtol=1e-5, atol=1e-6)


def test_the_mix_begins_as_the_mean_of_the_layers() -> None:
    model, texts, pad_id = built(tiny_model(), head="mean", mix_layers=2)
    batch = batch_of(texts[:1], pad_id)
    states = model.encoder(**batch, output_hidden_states=True).hidden_states
    wanted = model.classifier((states[-1] + states[-2])[0].mean(0) / 2)
    assert torch.allclose(model(**batch).logits[0], wanted, atol=1e-6)
    model(**batch, labels=torch.tensor([1])).loss.backward()
    assert model.mix is not None
    assert model.mix.grad is not None


def test_a_convolution_sees_windows_of_its_width() -> None:
    model, texts, pad_id = built(tiny_model(), head="cnn", cnn_widths=[3])
    model.requires_grad_(False)
    batch = batch_of(texts[:1], pad_id)
    states = model.encoder(**batch).last_hidden_state[0]
    convolution = model.head.convolutions[0]
    padded = torch.cat([states, torch.zeros(2, states.shape[1])])
    windows = [
        torch.einsum("tw,owt->o", padded[i : i + 3], convolution.weight) + convolution.bias
        for i in range(len(states))
    ]
    wanted = torch.relu(torch.stack(windows)).max(0).values
    found = model.head(states[None], batch["attention_mask"])[0]
    assert torch.allclose(found, wanted, atol=1e-5)


def test_losses_are_those_of_the_books() -> None:
    random = torch.Generator().manual_seed(3)
    y = torch.tensor([0, 1, 1, 0, 1])
    weights = torch.tensor([0.4, 1.6])

    def model(**settings: Any) -> EncoderWithHead:
        return built(tiny_model(), **settings)[0]

    two = torch.randn(5, 2, generator=random)
    found = model(class_weights=[0.4, 1.6]).loss(two, y)
    each = -torch.log_softmax(two, 1)[torch.arange(5), y]
    assert torch.allclose(found, (each * weights[y]).sum() / weights[y].sum())
    smooth = model(label_smoothing=0.2).loss(two, y)
    target = functional.one_hot(y, 2) * 0.8 + 0.1
    assert torch.allclose(smooth, -(target * torch.log_softmax(two, 1)).sum(1).mean())

    # one logit is the difference of two
    one = (two[:, 1] - two[:, 0])[:, None]
    for options in ({}, {"class_weights": [0.4, 1.6]}, {"label_smoothing": 0.2}):
        first = model(problem="one_logit", n_outputs=1, **options)
        second = model(**options)
        assert torch.allclose(first.loss(one, y), second.loss(two, y), atol=1e-6)
        assert torch.allclose(first.outputs(one), second.outputs(two))

    value = model(problem="value", n_outputs=1, target_mean=3.0, target_scale=2.0)
    assert torch.allclose(value.outputs(torch.tensor([[0.5]])), torch.tensor([4.0]).double())
    assert torch.allclose(value.loss(torch.tensor([[0.5]]), torch.tensor([5.0])),
                          torch.tensor(0.25))  # fmt: skip


def trained(model: EncoderWithHead) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_what_is_frozen(tiny: Callable[[str], Path]) -> None:
    for family in ("bert", "roberta", "electra", "distilbert", "modernbert", "mpnet", "deberta-v2"):
        model = built(tiny(family))[0]
        depths = parameter_depth(model)
        layers = sorted({depth for name, depth in depths.items() if ".layer" in name
                         and "LayerNorm.weight" not in name})  # fmt: skip
        assert set(depths.values()) == {0, 1, 2, 3, 4}, (family, layers)
        assert depths["classifier.weight"] == 4
        freeze(model, "2")
        assert trained(model) == {name for name, depth in depths.items() if depth > 2}
        freeze(model, "all")
        assert trained(model) == {"classifier.weight", "classifier.bias"}
    model = built(tiny("bert"))[0]
    freeze(model, "embeddings")
    assert {name for name, _ in model.named_parameters()} - trained(model) == {
        name for name, _ in model.named_parameters() if name.startswith("encoder.embeddings.")
    }
    with pytest.raises(UsageError, match="layers of a albert encoder have no weights of their own"):
        freeze(built(tiny("albert"))[0], "1")


def test_more_layers_than_there_are() -> None:
    TrainingOptions(freeze_layers="3", mix_layers=3).check_layers(3)
    with pytest.raises(UsageError, match=r"freeze_layers=4: the encoder has 3 layers"):
        TrainingOptions(freeze_layers="4").check_layers(3)
    with pytest.raises(UsageError, match=r"mix_layers=4: the encoder has 3 layers"):
        TrainingOptions(mix_layers=4).check_layers(3)


def test_a_checkpoint_without_a_pooler_gives_a_random_head() -> None:
    plain = plain_of(find_checkpoint(str(tiny_model(pooler=False))))
    assert pooler_layer(plain) is None
    first, again, other = (build_model(plain, seed=seed, head="pooler").head.dense.weight
                           for seed in (1, 1, 2))  # fmt: skip
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def rates(model: EncoderWithHead, options: TrainingOptions) -> dict[str, tuple[float, float]]:
    """Learning rate and weight decay of every trained parameter."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in parameter_groups(model, options) for parameter in group["params"]
    }  # fmt: skip


def test_biases_and_norms_do_not_decay() -> None:
    model = built(tiny_model())[0]
    found = rates(model, TrainingOptions())
    assert found.keys() == trained(model)
    for name, (rate, decay) in found.items():
        plain = name.endswith(".bias") or "LayerNorm" in name
        assert decay == (0 if plain else 0.01), name
        assert rate == 5e-5
    assert {decay for _, decay in found.values()} == {0, 0.01}


def test_lower_layers_learn_more_slowly(tiny: Callable[[str], Path]) -> None:
    model = built(tiny("bert"))[0]
    options = TrainingOptions(layer_decay=0.5, learning_rate=8e-4, head_learning_rate=1e-2)
    found = {name: rate for name, (rate, _) in rates(model, options).items()}
    for name, depth in parameter_depth(model).items():
        wanted = 8e-4 * 0.5 ** (4 - depth) if name.startswith("encoder.") else 1e-2
        assert found[name] == pytest.approx(wanted), name
    lowest, highest = "encoder.embeddings.word_embeddings", "encoder.encoder.layer.2.output.dense"
    assert found[f"{lowest}.weight"] < found[f"{highest}.weight"]


@pytest.mark.parametrize(
    ("head", "rate", "wanted"),
    [("cls", 5e-5, 5e-5), ("cnn", 5e-5, 1e-3), ("lstm", 1e-5, 1e-3), ("cnn", 5e-3, 5e-3)],
)
def test_new_layers_learn_faster(head: str, rate: float, wanted: float) -> None:
    options = TrainingOptions(head=head, learning_rate=rate)
    model = built(tiny_model(), head=head)[0]
    for name, (found, _) in rates(model, options).items():
        assert found == (rate if name.startswith("encoder.") else wanted)
    given = TrainingOptions(head=head, learning_rate=rate, head_learning_rate=0.2)
    assert rates(model, given)["classifier.bias"][0] == 0.2


def test_batches_hold_every_text_once_and_few_tokens() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 200).tolist()
    batches = list(batches_by_length([*lengths, 900], tokens=256))
    assert sorted(np.concatenate(batches)) == list(range(201))
    sizes = [len(b) * max([*lengths, 900][i] for i in b) for b in batches]
    assert sizes[0] == 900  # longer than the budget, so alone
    assert max(sizes[1:]) <= 256


def test_an_epochs_order_is_of_seed_and_epoch_alone() -> None:
    lengths = np.random.default_rng(1).integers(5, 100, 1_003)
    sampler = LengthSampler(lengths, 16, seed=4)
    first = list(sampler)
    assert first == list(sampler)
    assert sorted(first) == list(range(1_003))
    sampler.set_epoch(1)
    second = list(sampler)
    assert first != second
    assert sorted(second) == list(range(1_003))
    spread = [np.ptp(lengths[second[i : i + 16]]) for i in range(0, 992, 16)]
    assert np.median(spread) < 8  # of 95 that batches at random would have


def test_every_head_is_implemented() -> None:
    assert tuple(_HEADS) == HEADS
