"""Checkpoints that the tests share: tiny ones of every family, and two real ones."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when huggingface_hub is imported

import contextlib
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from embedkit.encoding.checkpoint import quiet_transformers
from embedkit.encoding.encoder import Encoder
from tests.models import Plain, build

SHARED = Path(__file__).resolve().parents[2] / "shared"

# the same examples every time: a failure in one run must be one in the next
settings.register_profile("repeatable", deadline=None, database=None, derandomize=True)
settings.load_profile("repeatable")
torch.set_num_threads(min(torch.get_num_threads(), 2))


class _Notes(logging.Handler):
    """Collects messages."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def notes() -> Iterator[list[str]]:
    """What the library logs while a test runs, whatever the command line did to its logger."""
    logger, handler = logging.getLogger("embedkit"), _Notes()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.messages
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of the tiny checkpoint of a family, built when first asked for."""
    quiet_transformers()
    built: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in built:
            built[family] = build(family, tmp_path_factory.mktemp(family))
        return built[family]

    return folder


@pytest.fixture(scope="session")
def tiny_bert(tiny: Callable[[str], Path]) -> Path:
    """Folder of a BERT of 3 layers, width 24, 160 positions."""
    return tiny("bert")


@pytest.fixture(scope="session")
def encoder_of(tiny: Callable[[str], Path]) -> Callable[[str], Encoder]:
    """Encoder of a tiny checkpoint, loaded once."""
    loaded: dict[str, Encoder] = {}

    def encoder(family: str) -> Encoder:
        if family not in loaded:
            loaded[family] = Encoder.load(str(tiny(family)), device="cpu")
        return loaded[family]

    return encoder


@pytest.fixture(scope="session")
def plain_of(tiny: Callable[[str], Path]) -> Callable[[str], Plain]:
    """Plain forward of a tiny checkpoint, loaded once."""
    loaded: dict[str, Plain] = {}

    def plain(family: str) -> Plain:
        if family not in loaded:
            loaded[family] = Plain.load(tiny(family), max_length=160)
        return loaded[family]

    return plain


@pytest.fixture(scope="session")
def minilm() -> Encoder:
    """all-MiniLM-L6-v2, from the package that embedkit depends on."""
    return Encoder.load(device="cpu")


@pytest.fixture(scope="session")
def multilingual_folder() -> Path:
    """multilingual-e5-small: given by EMBEDKIT_TEST_MULTILINGUAL, else built once and kept."""
    if given := os.environ.get("EMBEDKIT_TEST_MULTILINGUAL"):
        return Path(given)
    folder = Path(tempfile.gettempdir(), "embedkit-multilingual")
    if folder.is_dir():
        return folder
    tool = SHARED / "tools" / "make_multilingual_model.py"
    if not tool.is_file():
        pytest.skip(f"the multilingual model is built by {tool}, which is not here")
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch, "model")
        done = subprocess.run(
            [sys.executable, str(tool), str(built)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"the multilingual model cannot be built: {done.stderr.strip()[-300:]}")
        with contextlib.suppress(OSError):  # another run has just put it there
            built.rename(folder)
    return folder


@pytest.fixture(scope="session")
def multilingual(multilingual_folder: Path) -> Encoder:
    """multilingual-e5-small, for Korean and Japanese."""
    return Encoder.load(str(multilingual_folder), device="cpu")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real corpora, which are kept beside the project."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"the real corpora are not in {folder}")
    return folder
