"""Fine-tuned models as transformers reads them, and checkpoints for classification."""

from __future__ import annotations

import copy
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, pipeline

import embedkit
from embedkit import Predictor
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.tokenizer import load_tokenizer
from embedkit.encoding.windows import TokenizerSettings
from embedkit.errors import ModelError, OutputExistsError, UsageError
from embedkit.finetuning.heads import EncoderWithHead, build_model
from embedkit.finetuning.model import is_plain_head, predict_logits, read_model, write_model
from tests.finetune_fixtures import corpus_of, log_of, tuned, write_lines
from tests.models import TEXTS, Tiny, check_near, plain_model, save_other, slow, state
from tests.processes import command, succeed
from tests.store_fixtures import tiny_model

PLAIN = ("bert", "albert", "roberta", "xlm-roberta", "camembert", "mpnet")
OTHERS = ("electra", "distilbert", "deberta-v2", "modernbert")
PROBLEMS: tuple[dict[str, Any], ...] = (
    {"problem": "classes", "n_outputs": 3},
    {"problem": "one_logit", "n_outputs": 1},
    {"problem": "value", "n_outputs": 1, "target_mean": 7.0, "target_scale": 2.5},
)
NAMES = {"classes": ("a", "b", "c"), "one_logit": ("no", "yes"), "value": ()}


def saved(model: Path, folder: Path, **settings: Any) -> tuple[EncoderWithHead, Any, Path]:
    """A model with random weights in a folder, with its tokenizer."""
    tokenizer = load_tokenizer(find_checkpoint(model))
    made = build_model(plain_model(model), seed=3, **settings).eval()
    folder.mkdir()
    classes = NAMES[settings.get("problem", "classes")]
    write_model(made, tokenizer, folder, classes=classes, max_length=32)
    return made, tokenizer, folder


def test_weights_that_half_precision_holds_are_stored_in_it(tmp_path: Path) -> None:
    made, tokenizer, folder = saved(tiny_model(), tmp_path / "a")
    with torch.no_grad():
        for parameter in made.encoder.embeddings.parameters():
            parameter.copy_(parameter.half())
    write_model(made, tokenizer, folder, classes=("a", "b"), max_length=32)
    stored = load_file(folder / "model.safetensors")
    (words,) = (value for name, value in stored.items() if "word_embeddings" in name)
    (query,) = (value for name, value in stored.items() if "layer.0.attention.self.query.w" in name)
    assert (words.dtype, query.dtype) == (torch.float16, torch.float32)
    again = read_model(folder).state_dict()
    assert all(torch.equal(again[name], value) for name, value in made.state_dict().items())
    assert {p.dtype for p in AutoModel.from_pretrained(folder).parameters()} == {torch.float32}


@pytest.mark.parametrize("stated", [{}, {"do_lower_case": True}])
def test_a_tokenizer_is_saved_as_it_is(tmp_path: Path, stated: dict[str, bool]) -> None:
    """transformers makes the normalizer of BERT anew from what the configuration says."""
    source = Path(shutil.copytree(tiny_model(), tmp_path / "source"))
    file = source / "tokenizer_config.json"
    kept = json.loads(file.read_text("utf-8"))
    for name in ("do_lower_case", "strip_accents"):
        kept.pop(name, None)
    file.write_text(json.dumps(kept), "utf-8")
    (source / "sentence_bert_config.json").write_text(json.dumps(stated), "utf-8")
    _, tokenizer, folder = saved(source, tmp_path / "a")
    again = load_tokenizer(find_checkpoint(folder))
    for text in ("배를 타고", "The BUS was Good", "café"):
        expected = tokenizer.hf(text)["input_ids"]
        assert again.hf(text)["input_ids"] == expected
        assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == expected


def probabilities(model: EncoderWithHead, tokenizer: Any) -> np.ndarray:
    texts = tokenizer.encode(list(TEXTS), settings=TokenizerSettings(32))
    return model.outputs(predict_logits(model, texts)).numpy()


def by_transformers(folder: Path, dtype: torch.dtype = torch.float32) -> np.ndarray:
    """What a user of transformers computes, one text at a time."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).to(dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in TEXTS:
        with torch.inference_mode():
            logits = model(**tokenizer(text, truncation=True, return_tensors="pt")).logits[0]
        rows.append(logits if len(logits) == 1 else torch.softmax(logits, 0))
    return torch.stack(rows).squeeze(1).numpy()


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *(("bert", problem) for problem in PROBLEMS),
        *((family, PROBLEMS[0]) for family in PLAIN[1:]),
        *slow(*((family, problem) for family in PLAIN[1:] for problem in PROBLEMS[1:])),
    ],
)
def test_transformers_reads_the_head_and_gives_the_same(
    tiny: Tiny, tmp_path: Path, family: str, settings: dict[str, Any]
) -> None:
    model, tokenizer, folder = saved(tiny(family), tmp_path / "m", head="pooler", **settings)
    expected = probabilities(model, tokenizer)
    assert float(expected.std(0).min()) > 1e-4  # it does look at the texts
    both = by_transformers(folder), by_transformers(folder, torch.float64)
    check_near(expected, *both)
    again = read_model(folder)
    check_near(probabilities(again, tokenizer), *both)
    assert again.state_dict().keys() == model.state_dict().keys()
    names = NAMES[settings["problem"]]
    config = json.loads((folder / "config.json").read_text())
    assert list(config["id2label"].values()) == list(names or ["value"])
    predictor = Predictor(folder, device="cpu")
    assert tuple(predictor.names) == names
    check_near(predictor.predict_proba(list(TEXTS)), *both)


@pytest.mark.parametrize(
    ("family", "head"),
    [*((f, "pooler") for f in OTHERS), ("bert", "mean"), ("bert", "cls"), ("roberta", "lstm")],
)
def test_of_other_heads_transformers_reads_the_encoder(
    tiny: Tiny, tmp_path: Path, family: str, head: str
) -> None:
    model, tokenizer, folder = saved(tiny(family), tmp_path / "m", head=head)
    assert not is_plain_head(model.config)
    _, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert {key for key in report["missing_keys"] if not key.startswith("pooler.")} == set()
    assert all(key.startswith("embedkit.") for key in report["unexpected_keys"])
    both: list[list[Any]] = [[], []]
    exact = copy.deepcopy(model.encoder).double()
    for text in TEXTS:
        inputs = tokenizer.hf(text, truncation=True, max_length=32, return_tensors="pt")
        given = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        for encoder, means in zip((model.encoder, exact), both, strict=True):
            with torch.inference_mode():
                means.append(encoder(**given).last_hidden_state[0].mean(0).numpy())
    check_near(embedkit.Encoder(folder, device="cpu").encode(list(TEXTS), max_length=32), *both)
    again = probabilities(read_model(folder), tokenizer)
    assert np.allclose(again, probabilities(model, tokenizer), atol=1e-5)
    with pytest.raises(ModelError, match="not a classifier"):
        Predictor(folder)


def test_models_are_made_in_several_threads(tiny: Tiny, tmp_path: Path) -> None:
    """What transformers patches while it makes one reaches no other, and does not stay."""
    model, tokenizer, folder = saved(tiny("roberta"), tmp_path / "m", head="mean")
    expected = probabilities(model, tokenizer)
    makes = [partial(read_model, folder), partial(embedkit.Encoder, tiny("deberta-v2"))] * 6
    with ThreadPoolExecutor(4) as pool:
        models: list[Any] = list(pool.map(lambda make: make(), makes))
    assert all(np.array_equal(probabilities(again, tokenizer), expected) for again in models[::2])
    assert torch.nn.init.zeros_(torch.nn.Linear(2, 2).weight.detach()).tolist() == [[0, 0], [0, 0]]


@pytest.fixture(scope="module")
def shared(common: Path) -> Path:
    """A folder with a corpus and two fine-tuned runs on it."""
    corpus_of(common / "corpus.tsv")
    for head in ("pooler", "mean"):
        tuned(common / "corpus.tsv", common / head, head=head, folds=2)
    return common


def test_the_best_model_has_the_lowest_validation_loss(shared: Path, tmp_path: Path) -> None:
    log = [line for line in log_of(shared / "pooler") if "valid_loss" in line]
    losses = [min(line["valid_loss"] for line in log if line["fold"] == f) for f in (0, 1)]
    made = embedkit.export(shared / "pooler", out=tmp_path / "out")
    assert made.model == f"fold-{int(np.argmin(losses))}"
    tuned(shared / "corpus.tsv", tmp_path / "none", folds=2, epochs=1, validation=0)
    with pytest.raises(UsageError, match="fold='best'"):
        embedkit.export(tmp_path / "none", out=tmp_path / "another")


def test_export_of_another_head_is_the_encoder_and_says_so(shared: Path, tmp_path: Path) -> None:
    done = succeed("export", shared / "mean", "--fold", "1", "--out", "out", cwd=tmp_path)
    assert "without its mean head" in done.stdout
    _, report = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert set(report["unexpected_keys"]) == set()
    pooler = ("export", shared / "pooler", "--fold", "0", "--out")
    assert command(*pooler, "out", cwd=tmp_path).returncode == OutputExistsError.exit_code
    done = succeed(*pooler, "other", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["has_head"] is True
    assert "BertForSequenceClassification" in (tmp_path / "other/config.json").read_text()
    (tmp_path / "out/train.py").write_text("mine")
    within = shared / "pooler/model/fold-0"
    for place, reason in ((tmp_path / "out", "holds train.py"), (within, "by itself")):
        with pytest.raises(OutputExistsError, match=reason):
            embedkit.export(shared / "pooler", fold=0, out=place, overwrite=True)
    (tmp_path / "out/train.py").unlink()
    embedkit.export(shared / "pooler", fold=0, out=tmp_path / "out", overwrite=True)
    assert "BertForSequenceClassification" in (tmp_path / "out/config.json").read_text()


def classifier(base: Path, folder: Path, **settings: Any) -> Path:
    """What ``save_pretrained`` of transformers writes, with random weights."""
    torch.manual_seed(4)
    model = AutoModelForSequenceClassification.from_pretrained(base, **settings)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "classifier" in name:
                weight.normal_(0, 0.5)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", [*PLAIN[:3], *OTHERS[:3], *slow(*PLAIN[3:], *OTHERS[3:])])
def test_a_classifier_predicts_as_the_pipeline_of_transformers(
    tiny: Tiny, tmp_path: Path, family: str
) -> None:
    names = {0: "bad", 1: "middling", 2: "good"}
    folder = classifier(tiny(family), tmp_path / "m", num_labels=3, id2label=names)
    run = pipeline("text-classification", model=str(folder), top_k=None, device="cpu")
    texts = [text for text in TEXTS if text.strip()]
    predictor = Predictor(folder, device="cpu")
    assert predictor.names == list(names.values())
    for text, one in zip(texts, predictor.predict(texts), strict=True):
        best, *others = run([text], truncation=True)[0]
        wanted = {answer["label"]: answer["score"] for answer in (best, *others)}
        assert one.proba == pytest.approx(wanted, abs=1e-5)
        assert one.label == best["label"]
    pairs = predictor.predict_proba(texts[:2], texts[2:4])
    assert not np.allclose(pairs, predictor.predict_proba(texts[:2]))
    assert np.allclose(predictor.predict_proba(texts[0], texts[2]), pairs[0], atol=1e-5)


@pytest.mark.parametrize(
    ("family", "pad"),
    [("fnet", {}), ("xlnet", {}), ("gpt2", {"pad_token_id": 7}), ("gpt2", {"pad_token_id": None})],
)
def test_company_changes_no_classifier(tmp_path: Path, family: str, pad: dict[str, Any]) -> None:
    """Not even where padding changes what a text is.

    The last token of a decoder is that before the padding, of which model and tokenizer may differ.
    """
    sizes = {"d_head": 12, "d_inner": 40, "max_position_embeddings": None}
    base, sizes = tmp_path / "base", sizes if family == "xlnet" else {}
    save_other(base, family, "roberta_wordpiece", **sizes)
    folder = classifier(base, tmp_path / "m", num_labels=3, **pad)
    if None in pad.values():  # neither has any
        AutoTokenizer.from_pretrained(base, pad_token=None).save_pretrained(folder)
    predictor = Predictor(folder, device="cpu")
    alone = [predictor.predict_proba(text) for text in TEXTS[:8]]
    assert np.std(alone, axis=0).max() > 0.01
    assert np.allclose(predictor.predict_proba(list(TEXTS[:8])), alone, atol=1e-6)


def test_predict_of_the_command_line_takes_a_checkpoint(tiny: Tiny, tmp_path: Path) -> None:
    classifier(tiny("bert"), tmp_path / "m", num_labels=2, id2label={0: "bad", 1: "good"})
    new = write_lines(tmp_path / "new.tsv", "text", "the movie was good", "배를 타고")
    done = succeed("predict", "m", "--text", "the movie was good", "--json", cwd=tmp_path)
    one = json.loads(done.stdout)
    done = succeed("predict", "m", "new.tsv", cwd=tmp_path)
    header, first, _ = done.stdout.splitlines()
    assert header.split("\t") == ["row", "id", "label", "proba_bad", "proba_good"]
    assert float(first.split("\t")[4]) == pytest.approx(one["proba_good"], abs=1e-5)
    embedkit.extract(new, out=tmp_path / "data", model=str(tiny("bert")))
    assert succeed("predict", "m", "data", cwd=tmp_path).stdout.splitlines()[1] == first
    named = ("predict", "m", "--text", "good", "--label-names", "good=yes")
    assert "yes" in succeed(*named, cwd=tmp_path).stdout
    plain = classifier(tiny("bert"), tmp_path / "n", num_labels=2)  # LABEL_0 and LABEL_1
    readable = dict[Any, str]({0: "bad", "1": "good"})
    assert Predictor(plain, label_names=readable).names == ["bad", "good"]


def test_a_regression_gives_its_output(tiny: Tiny, tmp_path: Path) -> None:
    folder = classifier(tiny("bert"), tmp_path / "m", num_labels=1)
    predictor = Predictor(folder, device="cpu")
    values = predictor.predict_proba(list(TEXTS[:4]))
    assert np.allclose(values, by_transformers(folder)[:4], atol=1e-5)
    assert [one.value for one in predictor.predict(list(TEXTS[:4]))] == values.tolist()
    assert predictor.predict(TEXTS[0]).value == pytest.approx(values[0])


def test_checkpoints_that_cannot_predict(tiny: Tiny, tmp_path: Path) -> None:
    bert = tiny("bert")
    several: dict[str, Any] = {"num_labels": 3, "problem_type": "multi_label_classification"}
    headless = classifier(bert, tmp_path / "headless", num_labels=2)
    shutil.copy(bert / "model.safetensors", headless)
    state(tmp_path / "adapter/adapter_config.json", base_model_name_or_path="base")
    for folder, message in (
        (tmp_path / "adapter", "It is an adapter for base alone"),
        (bert, "BertModel"),
        (classifier(bert, tmp_path / "several", **several), "multi_label"),
        (headless, r"classifier.bias"),
        (classifier(bert, tmp_path / "n", num_labels=3, problem_type="regression"), "3 values"),
    ):
        with pytest.raises(ModelError, match=message):
            Predictor(folder)
    with pytest.raises(UsageError, match="model="):
        Predictor(bert, model="elsewhere")
    with pytest.raises(UsageError, match="missing"):
        Predictor(tmp_path / "missing")
