"""Tiny random checkpoints of every family, and the plain transformers forward to compare with.

The weights are random but large enough for every layer, position and segment to matter; each
folder is what ``save_pretrained`` writes, so that the real loading code runs.
"""

from __future__ import annotations

import copy
import json
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from embedkit.choices import Pooling
from embedkit.encoding.checkpoint import FAMILIES as KNOWN
from embedkit.encoding.checkpoint import find_checkpoint
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.inventory import FROM_PADDING
from embedkit.encoding.model import Model, PackedBatch, PlainModel, load_model
from embedkit.encoding.views import LayerSpec, View

Floats = NDArray[np.float32]
Tiny = Callable[[str], Path]
"""The fixture that gives the folder of the tiny checkpoint of a family."""
EncoderOf = Callable[[str], Encoder]
"""The fixture that gives the encoder of it."""

TEXTS = (
    "배를 타고 여행을 간다.",
    "추석에 먹은 배가 맛있었다.",
    "이 영화 정말 재미있었다!! 다시 보고 싶다 ㅋㅋ",
    "吾輩は猫である。名前はまだ無い。",
    "カタカナとひらがなと漢字、Tokyo 2024年。",
    "The movie was good, but the ending wasn't.",
    "I took the bus home; it rained all day long.",
    "happy 😀👍🏽 날씨 ☀️ good",
    "a",
    "",
    "  spaces \t and\n lines  ",
    "zzzyyyxxx 뷁쀍 Ωμέγα naïve café",
    "[SEP] is spelled <s> here [MASK] </s>",
    "여행을 가는 movie와 배가 good " * 9,
)
"""Korean, Japanese, English, emoji; from nothing to about a hundred tokens."""
SOME = [text for text in TEXTS if text]
"""Those of which every library makes a vector."""

VARIANTS = ("bert_left", "bert_mlm", "roberta_wordpiece", "japanese", "embedding_gemma")
FAMILIES = tuple(f for f in (*KNOWN, *VARIANTS) if f in VARIANTS or f in CONFIG_MAPPING_NAMES)
"""Families that the installed version of transformers has."""

trusted_reader = pytest.mark.skipif(torch.__version__ < "2.10", reason="reads no pickle files")

_PIECES = (
    "여행 ##을 ##를 ##가 ##은 ##다 영화 추석 movie the good ##ing ##ed end "
    "rain bus home was ##n 吾輩 名前 猫 カタ ##カナ"
)


def slow(*cases: Any) -> list[Any]:
    """Cases of a table that ``make test-slow`` tries, but not ``make test``."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]


def _attends_in_bf16() -> bool:
    rows = torch.zeros(1, 1, 128, 64, dtype=torch.bfloat16)
    try:
        torch.nn.functional.scaled_dot_product_attention(rows, rows, rows)
    except RuntimeError:
        return False
    return True


needs_plain_bf16 = pytest.mark.skipif(
    not _attends_in_bf16(), reason="ATEN_CPU_CAPABILITY keeps torch from attention in bf16"
)
"""For what is compared with the forward of transformers in bf16."""


def wordpiece_vocabulary(special: Sequence[str] = ()) -> dict[str, int]:
    """Whole characters, their ``##`` forms and a few longer pieces."""
    known = "".join(TEXTS[:8]) + string.ascii_letters + string.digits + ".,!?;'\"-"
    emoji = "😀👍🏽"  # stay unknown
    single = dict.fromkeys(c for c in known if not c.isspace() and c not in emoji)
    special = special or ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    entries = dict.fromkeys([*special, *_PIECES.split(), *single, *("##" + c for c in single)])
    return {entry: number for number, entry in enumerate(entries)}


def build(family: str, folder: Path) -> Path:
    """Write the tiny checkpoint of a family into ``folder`` and return it."""
    tokenizer = _TOKENIZERS.get(family, _wordpiece)()
    tokenizer.save_pretrained(folder)
    kinds = dict.fromkeys(("bert_left", "bert_mlm", "japanese"), "bert")
    kinds |= {"roberta_wordpiece": "roberta", "embedding_gemma": "gemma3_text"}
    kind = kinds.get(family, family)
    ids = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    one_segment = {"type_vocab_size": 1, "max_position_embeddings": 162}
    grouped = {"num_key_value_heads": 1, "head_dim": 12}
    by_family: dict[str, dict[str, Any]] = {
        **dict.fromkeys((*FROM_PADDING, "roberta_wordpiece"), one_segment),
        "electra": {"embedding_size": 16, "initializer_range": 0.3},
        "albert": {"embedding_size": 16},
        "longformer": {**one_segment, "attention_window": [8, 8, 8]},
        "eurobert": {**grouped, "mask_token_id": tokenizer.mask_token_id},
        "qwen3": grouped,
        "gemma3_text": {**grouped, "sliding_window": 8},
        "embedding_gemma": {**grouped, "sliding_window": 8, "use_bidirectional_attention": True},
        "deberta-v2": {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["c2p"]},
        "modernbert": {
            "cls_token_id": tokenizer.cls_token_id,
            "global_attn_every_n_layers": 2,
            "sep_token_id": tokenizer.sep_token_id,
            "local_attention": 8,
        },
        "distilbert": {"dim": 24, "n_layers": 3, "n_heads": 2, "hidden_dim": 40},
    }
    settings = {**ids, **by_family.get(family, {})}
    save_model(folder, kind, masked_lm=family == "bert_mlm", **settings)
    return folder


def save_model(folder: Path, kind: str, *, masked_lm: bool = False, **settings: Any) -> None:
    """Write a random model of 3 layers and width 24, unless the settings say otherwise.

    ``max_position_embeddings=None`` is for families without a limit.
    """
    defaults = {
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 40,
        "max_position_embeddings": 160,
        "initializer_range": 0.2,
    }
    if kind == "distilbert":
        defaults = {"max_position_embeddings": 160, "initializer_range": 0.2}
    settings = {**defaults, **settings}
    if settings["max_position_embeddings"] is None:
        del settings["max_position_embeddings"]
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(kind, **settings)
    auto = transformers.AutoModelForMaskedLM if masked_lm else transformers.AutoModel
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too, which start as 0 and 1
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)


def state(path: Path, at: int = -1, /, **values: Any) -> None:
    """Change keys of a JSON file, of a list those of one element, by default of the last one."""
    path.parent.mkdir(exist_ok=True)
    content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    (content[at] if isinstance(content, list) else content).update(values)
    path.write_text(json.dumps(content), "utf-8")


def save_other(folder: Path, kind: str, tokenizer: str, **settings: Any) -> None:
    """Write a random model of 400 tokens beside the tokenizer of another family."""
    _TOKENIZERS[tokenizer]().save_pretrained(folder)
    save_model(folder, kind, vocab_size=400, **settings)


def reweigh(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the tensors of a checkpoint."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def build_bert(folder: Path, *, layers: int, heads: int, width: int) -> str:
    """A random BERT with 300 tokens, of which five have a name."""
    sizes: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": heads}
    sizes |= {"intermediate_size": 2 * width, "max_position_embeddings": 512, "vocab_size": 300}
    save_model(folder, "bert", initializer_range=0.1, **sizes)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    return str(folder)


def _wordpiece(vocabulary: dict[str, int] | None = None, **options: Any) -> Any:
    settings = {"do_lower_case": False, "model_max_length": 160, **options}
    return transformers.BertTokenizer(vocab=vocabulary or wordpiece_vocabulary(), **settings)


def _byte_level() -> Any:
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(
        TEXTS, vocab_size=360, min_frequency=2, special_tokens=special, show_progress=False
    )
    stored = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in stored["merges"]]
    return transformers.RobertaTokenizer(vocab=stored["vocab"], merges=merges, model_max_length=160)


def _unigram() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=260, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator(TEXTS, trainer)
    pieces = [tuple(p) for p in json.loads(trained.to_str())["model"]["vocab"]]
    pieces.append(("<mask>", 0.0))
    return transformers.XLMRobertaTokenizer(vocab=pieces, model_max_length=160)


_JAPANESE = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] 吾輩 は 猫 で ある 。 名前 まだ 無い カタカナ と ひら "
    "##がな 漢字 、 2024 年 movie a ##a b ##b two text Tokyo Hello , ABC が 日本 "
    "##語 ガ 良い ! ? o ##n ##e good "
)


def _mecab() -> Any:
    with TemporaryDirectory() as folder:
        path = Path(folder, "vocab.txt")
        path.write_text("\n".join(_JAPANESE.split()) + "\n", "utf-8")
        return transformers.BertJapaneseTokenizer(
            str(path),
            do_lower_case=False,
            word_tokenizer_type="mecab",
            subword_tokenizer_type="wordpiece",
            mecab_kwargs={"mecab_dic": "unidic_lite"},
            model_max_length=160,
        )


_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "bert_left": lambda: _wordpiece(padding_side="left", truncation_side="left"),
    # as klue/roberta-base: segment ids 0 and 1 for a model that has one segment
    "roberta_wordpiece": lambda: _wordpiece(
        wordpiece_vocabulary(("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"))
    ),
    "roberta": _byte_level,
    "longformer": _byte_level,
    "xlm-roberta": _unigram,
    "camembert": _unigram,
    "japanese": _mecab,
}


@dataclass(frozen=True)
class PlainText:
    """Result of the plain forward for one text."""

    hidden: list[Floats]  # (tokens, width) of every layer, the embedding output first
    first: list[Floats]  # the same; of a text in windows the mean of their first tokens
    special: NDArray[np.bool_]  # tokens that the tokenizer added
    pooled: Floats | None  # output of the model's own head


@dataclass
class Plain:
    """The plain forward: AutoModel and AutoTokenizer, one text at a time, no batch, no padding."""

    model: Any
    tokenizer: Any
    max_length: int
    cache: dict[tuple[str, str | None, int], PlainText] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, max_length: int, dtype: torch.dtype = torch.float32) -> Plain:
        model = transformers.AutoModel.from_pretrained(folder, dtype=dtype).eval()
        return cls(model, transformers.AutoTokenizer.from_pretrained(folder), max_length)

    def __call__(self, text: str, pair: str | None = None, *, max_length: int = 0) -> PlainText:
        """The text alone, or with its pair, truncated to ``max_length`` tokens."""
        length = max_length or self.max_length
        if (text, pair, length) not in self.cache:
            inputs = self.tokenizer(
                [text],  # lists, because an empty pair given as a string counts as none
                None if pair is None else [pair],
                truncation=True,
                max_length=length,
                return_special_tokens_mask=True,
            )
            types = inputs.get("token_type_ids")
            hidden, pooled = self.run(inputs["input_ids"][0], types and types[0])
            special = np.array(inputs["special_tokens_mask"][0], bool)
            self.cache[text, pair, length] = PlainText(hidden, hidden, special, pooled)
        return self.cache[text, pair, length]

    @cached_property
    def exact(self) -> Plain:
        """The same forward in float64."""
        return Plain(copy.deepcopy(self.model).double(), self.tokenizer, self.max_length)

    @torch.inference_mode()
    def run(
        self, ids: Sequence[int], types: Sequence[int] | None
    ) -> tuple[list[Floats], Floats | None]:
        """Hidden states and pooler output for token ids."""
        inputs = {"input_ids": torch.tensor([list(ids)])}
        segments = int(getattr(self.model.config, "type_vocab_size", 0) or 0)
        if types is not None and segments > 1:
            inputs["token_type_ids"] = torch.tensor([list(types)])
        output = self.model(**inputs, output_hidden_states=True)
        kind = torch.promote_types(self.model.dtype, torch.float32)  # NumPy has no bf16
        hidden = [h[0].to(kind).numpy() for h in output.hidden_states]
        pooled = output.get("pooler_output")
        return hidden, None if pooled is None else pooled[0].to(kind).numpy()


def plain_model(
    folder: Path | str, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> PlainModel:
    """The model of a checkpoint as embedkit runs it without its packed forward."""
    checkpoint = find_checkpoint(folder)
    return load_model(checkpoint, pad_id=0, device=torch.device(device), dtype=dtype)


PlainOf = Callable[[str], Plain]
"""The fixture that gives the plain forward of it."""


def expected(view: View, plain: PlainText, *, special: bool = True) -> Floats:
    """The vector of a view, written down as plainly as it can be."""
    if view.pooling is Pooling.POOLER:
        assert plain.pooled is not None
        return plain.pooled
    if view.pooling is Pooling.CLS:
        return combined(view.layer, plain.first)[0]
    states = combined(view.layer, plain.hidden)
    kept = states if special else states[~plain.special]
    if len(kept) == 0:
        return np.zeros(states.shape[1], np.float32)
    if view.pooling is Pooling.LAST_TOKEN:
        return kept[-1]
    return np.asarray(kept.mean(0) if view.pooling is Pooling.MEAN else kept.max(0))


def combined(spec: LayerSpec, hidden: Sequence[Floats]) -> Floats:
    """A layer, or the combination of several."""
    chosen = [hidden[i] for i in spec.layers]
    if spec.combination == "concat":
        return np.concatenate(chosen, axis=1)
    if spec.combination is None:
        return chosen[0]
    return np.asarray(np.sum(chosen, 0) if spec.combination == "sum" else np.mean(chosen, 0))


def distance(ours: Any, plain: Any) -> Floats:
    """Relative L2 distance of vectors, row by row."""
    ours, plain = np.atleast_2d(ours), np.atleast_2d(plain)
    assert ours.shape == plain.shape
    norms = np.maximum(np.linalg.norm(plain, axis=-1), 1e-12)
    return np.asarray(np.linalg.norm(ours - plain, axis=-1) / norms)


def batch_of(
    lengths: Sequence[int], vocabulary: int, seed: int = 0, device: str | torch.device = "cpu"
) -> PackedBatch:
    """Sequences of random tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocabulary, (sum(lengths),), generator=generator)
    return PackedBatch.of(ids.to(device), torch.zeros_like(ids, device=device), lengths)


def states(
    model: Model, batch: PackedBatch, layers: Sequence[int] = (), *, first_only: bool = False
) -> dict[int, Any]:
    """Hidden states of the tokens by layer, all layers unless some are named."""
    found: dict[int, Any] = {}

    def keep(layer: int, hidden: torch.Tensor) -> None:
        kept = hidden if hidden.dtype == torch.float64 else hidden.float()
        found[layer] = kept.cpu().numpy().copy()

    model.forward(batch, layers or range(model.n_layers + 1), keep, first_only=first_only)
    return found


def far(ours: Any, theirs: Any) -> float:
    """Relative L2 distance of all vectors together."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


_FLOOR = 8 * float(np.finfo(np.float32).eps)


def check_near(ours: Any, plain: Any, exact: Any) -> None:
    """Vectors are as near to their float64 values as those of another float32 forward are.

    How far two float32 results lie apart depends on the processor and on the order of its sums, so
    that a fixed limit holds on some machines only. Vectors of both are compared with ``exact``:
    ours may be half as far again, or a few units in the last place. That is the root of the mean
    square of all vectors; one of them may be further, up to 1e-5 where theirs are no further.
    """
    far, theirs = distance(ours, exact), distance(plain, exact)
    assert np.sqrt(np.mean(far**2)) <= max(1.5 * np.sqrt(np.mean(theirs**2)), _FLOOR)
    assert far.max() <= max(1.5 * theirs.max(), 1e-5)


def equals_its_makers(folder: Path) -> None:
    """The vectors of a checkpoint are those that sentence-transformers computes of it."""
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    wanted = theirs.encode(SOME), theirs.double().encode(SOME)
    check_near(Encoder(folder, device="cpu").encode(SOME), *wanted)


OLD_VOCABULARIES = {
    "cased": "[PAD] [UNK] [CLS] [SEP] [MASK] [unused0] 배 ##를 여행 ##을 Movie movie ##s A a . ,",
    "uncased_korean": "[PAD] [UNK] [CLS] [SEP] [MASK] 배 ##를 여행 ##을 영화 movie ##s cafe a . ,",
}


def build_old(
    folder: Path, vocabulary: str, *, tokenizer_config: dict[str, Any] | None = None, **config: Any
) -> Path:
    """A folder as of 2019: config.json, vocab.txt, pytorch_model.bin. ``None`` leaves a key out."""
    entries = OLD_VOCABULARIES[vocabulary].split()
    stated = {
        "architectures": ["BertForMaskedLM"],
        "hidden_size": 16,
        "initializer_range": 0.2,
        "intermediate_size": 24,
        "max_position_embeddings": 300,
        "model_type": "bert",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": len(entries),
        **config,
    }
    stated = {key: value for key, value in stated.items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(11)
    made = transformers.AutoConfig.for_model(**{"model_type": "bert", **stated})
    model = transformers.AutoModel.from_config(made)
    weights = {"bert." + key: value for key, value in model.state_dict().items()}
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(stated), "utf-8")
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n", "utf-8")
    if tokenizer_config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), "utf-8")
    return folder
