"""Checkpoints that the tests share: tiny ones of every family, and two real ones."""

from __future__ import annotations

import os

# all are read once, when the libraries are imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers and their children share the cores
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait leave them to the others

import gc
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from embedkit.comparison import charts  # noqa: F401 - has the real ``render`` from now on
from embedkit.encoding.checkpoint import quiet_transformers
from embedkit.encoding.encoder import Encoder
from embedkit.runs import figures
from embedkit.runs.figures import png_of
from tests.models import Plain, build
from tests.processes import logging_as_before

LONGEST = ("test_readme", "test_same_bits", "test_workflows", "test_report_browser", "test_report")
MEMORY_PER_WORKER = 2_500_000_000

# the same examples every time, on a busy machine too: a failure in one run must be one in the next
settings.register_profile(
    "repeatable", deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
settings.load_profile("repeatable")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker for each core that this process may use, as far as memory allows, and 16 at most.

    The answer to ``-n auto``, which otherwise counts physical cores, or those of other containers.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores or 1, memory // MEMORY_PER_WORKER, 16))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The modules with the longest tests first: at the end no worker waits for one of these."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_collection_finish() -> None:
    """Keep what the imports have made out of garbage collections, of which there are fewer."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_disks() -> Iterator[None]:
    """``fsync`` is called as ever, but does nothing: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # an error for what is no open file
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_figures() -> Iterator[None]:
    """Figures of runs are not drawn, except in tests with the marker ``figures``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "png_of", lambda _: b"a figure")
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_collections_by_trainer() -> Iterator[None]:
    """A collection of garbage before each training takes as long as training a tiny model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accelerate.utils.memory.gc", SimpleNamespace(collect=lambda: 0))
        yield


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    with logging_as_before():
        yield


@pytest.fixture(autouse=True)
def _drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "figures" in request.keywords:
        monkeypatch.setattr(figures, "png_of", png_of)


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


def _given(variable: str, what: str) -> Path:
    """The folder that an environment variable names; the test is skipped without it."""
    named = os.environ.get(variable)
    if not named:
        pytest.skip(f"{variable} does not name a folder of {what}")
    folder = Path(named)
    assert folder.is_dir(), f"{variable}={named} is not a folder"
    return folder


@pytest.fixture(scope="session")
def multilingual_folder() -> Path:
    """A checkpoint of multilingual-e5-small."""
    return _given("EMBEDKIT_TEST_MULTILINGUAL", "a checkpoint of multilingual-e5-small")


@pytest.fixture(scope="session")
def multilingual(multilingual_folder: Path) -> Encoder:
    """multilingual-e5-small, for Korean and Japanese."""
    return Encoder.load(str(multilingual_folder), device="cpu")


@pytest.fixture(scope="session")
def corpora() -> Path:
    """Folder of real corpora, which are no part of the project."""
    return _given("EMBEDKIT_TEST_CORPORA", "real corpora")


@pytest.fixture
def corpus_file(corpora: Path) -> Callable[[str], Path]:
    """Path of a file of the real corpora."""

    def path(name: str) -> Path:
        if not (corpora / name).is_file():
            pytest.skip(f"EMBEDKIT_TEST_CORPORA holds no {name}")
        return corpora / name

    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """An installed Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    known = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for name in known if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no chromium, chromium-browser or google-chrome is installed")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()
