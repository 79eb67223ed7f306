"""Hidden states of frozen layers that are computed once: training gives the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.windows import TokenizerSettings
from embedkit.finetuning import states as states_module
from embedkit.finetuning import training
from embedkit.finetuning.model import freeze, predict_logits
from embedkit.finetuning.states import frozen_states
from tests.finetune_fixtures import built
from tests.finetuning.test_vocabulary import SOME, trained
from tests.models import check_near

KEEPS = ("bert", "roberta", "electra", "distilbert", "modernbert", "mpnet", "deberta-v2")


def frozen(folder: Path, layers: str, **tokens: Any) -> Any:
    model, texts = built(folder, SOME, tokens=TokenizerSettings(**tokens), seed=1, head="mean")
    return model, freeze(model, layers), texts


@pytest.mark.parametrize("family", KEEPS)
@pytest.mark.parametrize("layers", ["1", "2", "all"])
def test_logits_are_those_without_states(
    tiny: Callable[[str], Path], family: str, layers: str
) -> None:
    """Also of texts in windows; what is below is computed again once the states are closed."""
    model, parts, texts = frozen(tiny(family), layers, max_length=12, on_long="window", stride=4)
    before = predict_logits(model, texts, precision="fp32")
    states = frozen_states(model, parts, texts, precision="fp32")
    assert states is not None
    calls: list[str] = []
    for module in parts[0] or [model.encoder]:
        module.register_forward_hook(lambda *_: calls.append("computed"))
    for module in (m for layer in parts[0] for m in layer.modules()):
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda *_: calls.append("product"))
    check_near(
        predict_logits(model, texts, states=states.of_batch, precision="fp32"), before, before
    )
    assert "product" not in calls
    assert ("computed" in calls) == (layers != "all")
    states.close()
    assert torch.equal(predict_logits(model, texts, precision="fp32"), before)


@pytest.mark.parametrize("family", ["convbert", "fnet"])
def test_no_states_where_they_are_not_enough(tiny: Callable[[str], Path], family: str) -> None:
    """Padding changes the states of a text."""
    model, parts, texts = frozen(tiny(family), "1", max_length=24)
    before = predict_logits(model, texts, precision="fp32")
    assert frozen_states(model, parts, texts, precision="fp32") is None
    assert torch.equal(predict_logits(model, texts, precision="fp32"), before)


def test_few_texts_alone_have_states(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, parts, texts = frozen(tiny("bert"), "1", max_length=24)
    monkeypatch.setattr(states_module, "_MOST_BYTES", 1_000)
    assert frozen_states(model, parts, texts, precision="fp32") is None
    assert frozen_states(model, freeze(model, "embeddings"), texts[:1], precision="fp32") is None


@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True}], ids=str)
@pytest.mark.parametrize("layers", ["1", "all"])
def test_every_weight_is_that_of_training_without_states(
    tiny: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layers: str,
    settings: dict[str, Any],
) -> None:
    """Both are measured against training without states in float64."""
    checkpoint, settings = find_checkpoint(str(tiny("bert"))), settings | {"freeze_layers": layers}
    ours, result, _ = trained(checkpoint, tmp_path / "ours", torch.float32, **settings)
    monkeypatch.setattr(training, "frozen_states", lambda *_, **__: None)
    plain, expected, _ = trained(checkpoint, tmp_path / "plain", torch.float32, **settings)
    exact, _, _ = trained(checkpoint, tmp_path / "exact", torch.float64, **settings)
    assert (result.epoch, result.parameters) == (expected.epoch, expected.parameters)
    # but for biases of keys: attention does not depend on them, so that their gradient is rounding
    # alone, which Adam scales up to a whole step
    names = [name for name in exact if not name.endswith("key.bias")]
    far, error, whole = (
        torch.cat([(of[name] - base[name]).flatten() for name in names]).norm()
        for of, base in (
            (ours, exact),
            (plain, exact),
            (exact, {name: torch.zeros(()) for name in names}),
        )
    )
    assert far <= max(1.5 * float(error), 8 * torch.finfo(torch.float32).eps * float(whole))
