"""A tiny BERT checkpoint, small corpora, and quick runs of whole jobs on them."""

from __future__ import annotations

import atexit
import copy
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from embedkit.choices import DEFAULT_MODEL
from embedkit.dataset import planning
from embedkit.dataset.extract import ExtractResult, extract
from embedkit.encoding.encoder import Encoder
from embedkit.encoding.model import choose_precision
from embedkit.encoding.tokenizer import choose_max_length
from embedkit.types import Progress
from tests.processes import command

_VOCABULARY = """
배 ##를 ##가 타 ##고 여행 ##을 간다 영화 정말 재미 ##있 ##었다 추석 ##에 먹 ##은 맛 the movie was
good bad ##ly bus home a i it rain ##ed . , ! ? ' 1 2 3 0 ##0 ##1
"""
PIECES = tuple(_VOCABULARY.split())

ROWS = (
    ("007", "", "0"),  # rejected: the first of all
    ("008", "배를 타고 여행을 간다.", "1"),
    ("009", "the movie was good", "1"),
    ("010", "the movie was bad , badly bad !", "0"),
    ("011", "추석에 먹은 배가 맛있었다. 👍", "1"),
    ("012", "   ", "0"),  # rejected at the edge of a shard
    ("013", "a", "0"),
    ("014", "the movie was good", "1"),  # once more
    ("015", "it rained a a a rain rain rain good good bus home " * 3, "0"),
    ("016", "영화 정말 재미있었다", "1"),
    ("017", "i 'm home", "1"),
    ("018", "zz 뷁 Ωμέγα", "0"),
    ("019", "", "1"),  # rejected: the last of all
)
"""Ten texts and three empty ones, so that shards of three rows have rejects at their edges."""

N_ACCEPTED = 10


def write_tsv(path: Path, rows: Sequence[Sequence[str]] = ROWS) -> Path:
    """A TSV file with the columns id, document, label."""
    lines = ["id\tdocument\tlabel", *("\t".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def write_reviews(path: Path, count: int = 40, *, rejected: bool = True) -> Path:
    """Labelled texts with repetitions, and at the end an empty one."""
    words = ("bad", "good")
    rows = [
        (f"{i:02}", f"the movie was {words[i % 2]} {'a ' * (i % 3)}{i % 7}", str(i % 2))
        for i in range(count)
    ]
    return write_tsv(path, [*rows, ("99", "", "1")] if rejected else rows)


def korean_reviews(count: int) -> list[str]:
    """Lines of a file such as those of NSMC: films that are liked and films that are not."""
    kinds = ("맛이 없", "정말 재미")
    return [
        "id\tdocument\tlabel",
        *(f"{i}\t영화 {kinds[i % 2]}었다 {i}\t{i % 2}" for i in range(count)),
    ]


@cache
def tiny_model(*, pooler: bool = True, seed: int = 1) -> Path:
    """Folder of a tiny checkpoint, built once and deleted when Python ends.

    It is what ``save_pretrained`` writes for a BERT of 2 layers and width 16 with random weights.
    """
    from transformers import BertConfig, BertModel, BertTokenizer

    temporary = tempfile.mkdtemp(prefix="embedkit-tests-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    folder = Path(temporary, "tiny")
    names = dict.fromkeys(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES))
    vocab = {piece: number for number, piece in enumerate(names)}
    tokenizer = BertTokenizer(vocab=vocab, do_lower_case=False, model_max_length=24)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=24,
        initializer_range=0.3,
    )
    BertModel(config, add_pooling_layer=pooler).save_pretrained(folder)
    return folder


_BEGIN = Encoder.__init__


@cache
def _loaded(folder: str, forward: str) -> Encoder:
    encoder = object.__new__(Encoder)
    _BEGIN(encoder, folder, device="cpu", forward=forward)
    return encoder


def load_quickly(model: str, *, forward: str = "auto", **settings: Any) -> Encoder:
    """An :class:`Encoder`, but every checkpoint is loaded once only."""
    made = copy.copy(_loaded(str(model), forward))
    made.precision = choose_precision(settings.get("precision"), made.model.device)
    longest = settings.get("max_length")
    made.max_length = choose_max_length(made.checkpoint, made.tokenizer, longest)
    made.batch_tokens = settings.get("batch_tokens") or made.batch_tokens
    return made


def begin_quickly(self: Encoder, model: str | Path = DEFAULT_MODEL, **settings: Any) -> None:
    """As ``Encoder.__init__``; in fp32 the weights are those of :func:`load_quickly`."""
    if settings.get("precision") in (None, "fp32"):
        vars(self).update(vars(load_quickly(str(model), **settings)))
        self._arguments = {"model": model, **settings}
    else:
        _BEGIN(self, model, **settings)


@contextmanager
def quickly() -> Iterator[None]:
    """Commands make shards of 14 rows, and load a model once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_shard_rows", lambda *_: 14)
        patch.setattr(Encoder, "__init__", begin_quickly)
        load_quickly(str(tiny_model()))
        yield


def ending(line: str, folder: Path) -> dict[str, Any]:
    """How a command ends that is typed in a forked child; ``{model}`` is the tiny one."""
    torch.set_num_threads(1)  # the threads of the parent do not live in a child
    done = command(*line.format(model=tiny_model()).split(), cwd=folder)
    return {"code": done.returncode, "error": done.stderr[-500:]}


def flip(file: Path, at: float = 0.5, bit: int = 0) -> None:
    """Change a bit at a fraction of a file."""
    content = bytearray(file.read_bytes())
    content[int(at * len(content))] ^= 1 << bit
    file.write_bytes(content)


def run(corpus: Any, out: Path | str, **settings: Any) -> ExtractResult:
    """``extract`` on the tiny model in shards of three rows, unless the settings say otherwise."""
    return extract_tiny(corpus, out, **{"shard_rows": 3, **settings})


def extract_tiny(corpus: Any, out: Path | str, **settings: Any) -> ExtractResult:
    """``extract`` on the tiny model, which is loaded once only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "__init__", begin_quickly)
        return extract(corpus, out=out, **{"model": str(tiny_model()), **settings})


def begin(corpus: Any, out: Path, **settings: Any) -> None:
    """Leave a job unfinished after its first shard."""

    def stop(state: Progress) -> None:
        if state.stage == "shard 2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(corpus, out, progress=stop, **settings)
    assert out.with_name(out.name + ".incomplete").is_dir()


def tree(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder, the log of runs aside."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "log.jsonl"
    }


def manifest_of(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "_embedkit/manifest.json").read_text("utf-8"))
    return content
