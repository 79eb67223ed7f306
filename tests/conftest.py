"""Shared fixtures: tiny checkpoints of every family, two real ones, corpora, and a browser."""

from __future__ import annotations

import os

# the libraries read these once, when they are imported
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers and their children share the cores
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads free their core

import gc
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import cache, wraps
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from embedkit.encoding import packed
from embedkit.encoding.encoder import Encoder
from tests.corpus_fixtures import Folder
from tests.models import Plain, Tiny, build
from tests.processes import logging_as_before
from tests.store_fixtures import begin_quickly, run, write_tsv

LONGEST = ("test_same_bits", "test_crashes", "test_report_browser", "test_workflows")
MEMORY_PER_WORKER = 2_500_000_000

# the same examples every time, on a busy machine too: a failure in one run must be one in the next
settings.register_profile(
    "repeatable",
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("repeatable")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores that this process may use, if memory allows, and 16 at most.

    The answer to ``-n auto``, which otherwise counts physical cores, or those of other containers.
    A worker that waits, for a process that it has started or a file, leaves its core to the others:
    on two cores a third of them saves a fifth of the time.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min((cores or 1) + 1, memory // MEMORY_PER_WORKER, 16))


@pytest.hookimpl(tryfirst=True)  # before markers are asked for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a browser shows as slow, and run the modules with the longest tests first.

    Otherwise a worker might wait for them at the end.
    """
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def tried_once(bits_differ: Callable[..., bool]) -> Callable[..., bool]:
    """Whether bits depend on company is a matter of shapes and kernels: tried once for each."""
    answers = dict[Any, bool]()

    def answer(model: packed.PackedModel, batch: Any, *threads: int) -> bool:
        modules = tuple(map(type, model.module.modules()))
        key = (str(model.module.config), modules, packed.KERNELS["runs"], model.together, threads)
        if key not in answers:
            answers[key] = bits_differ(model, batch, *threads)
        return answers[key]

    return answer


@pytest.fixture(autouse=True, scope="session")
def _quickly() -> Iterator[None]:
    """Leave out what takes long and is not tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # fails for a closed file; no test cuts the power
        patch.setattr(packed, "_bits_differ", tried_once(packed._bits_differ))
        # the Trainer collects garbage before each training, as long as a tiny model trains
        patch.setattr("accelerate.utils.memory.gc", SimpleNamespace(collect=lambda: 0))
        yield


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    with logging_as_before():
        yield


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the tiny model once, not for every run."""
    monkeypatch.setattr(Encoder, "__init__", begin_quickly)


@pytest.fixture
def notes() -> Iterator[list[str]]:
    """Messages that the library logs during a test."""
    messages: list[str] = []
    logger, handler = logging.getLogger("embedkit"), logging.Handler(logging.INFO)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield messages
    logger.removeHandler(handler)
    logger.setLevel(level)


class Call(NamedTuple):
    """A call that a test has seen."""

    arguments: tuple[Any, ...]
    settings: dict[str, Any]
    result: Any


@pytest.fixture
def calls_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[Call]]:
    """Notes the calls of a function of a module, a class or an object, which go on as before."""

    def watch(owner: Any, name: str) -> list[Call]:
        real, calls = getattr(owner, name), list[Call]()

        @wraps(real)  # some callers ask for the parameters
        def call(*arguments: Any, **settings: Any) -> Any:
            result = real(*arguments, **settings)
            calls.append(Call(arguments, settings, result))
            return result

        monkeypatch.setattr(owner, name, call)
        return calls

    return watch


@pytest.fixture
def once_before(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Any, str, Callable[[], object]], None]:
    """Does something right before the next call of a function, as another process would."""

    def plan(owner: Any, name: str, meanwhile: Callable[[], object]) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **settings: Any) -> Any:
            monkeypatch.setattr(owner, name, real)
            meanwhile()
            return real(*arguments, **settings)

        monkeypatch.setattr(owner, name, call)

    return plan


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Writes small corpora and reads them back."""
    return Folder(tmp_path)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A small corpus with rejects."""
    return write_tsv(tmp_path / "corpus.tsv")


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the tests of a module have in common."""
    return tmp_path_factory.mktemp("common")


@pytest.fixture(scope="module")
def made(common: Path) -> Path:
    """A dataset of shards of three rows with all tables."""
    settings: dict[str, Any] = {"words": "mean", "tokens": True, "layers": "1,2,sum:1..2"}
    corpus, pooling = write_tsv(common / "corpus.tsv"), ["cls", "mean", "pooler"]
    return run(corpus, common / "out", pooling=pooling, **settings).out


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of the tiny checkpoint of a family, built on first use."""
    return cache(lambda family: build(family, tmp_path_factory.mktemp(family)))


@pytest.fixture(scope="session")
def tiny_bert(tiny: Tiny) -> Path:
    """Folder of a BERT of 3 layers, width 24, 160 positions."""
    return tiny("bert")


@pytest.fixture(scope="session")
def encoder_of(tiny: Tiny) -> Callable[[str], Encoder]:
    """Encoder of a tiny checkpoint, loaded once."""
    return cache(lambda family: Encoder(str(tiny(family)), device="cpu"))


@pytest.fixture(scope="session")
def plain_of(tiny: Tiny) -> Callable[[str], Plain]:
    """Plain forward of a tiny checkpoint, loaded once."""
    return cache(lambda family: Plain.load(tiny(family), max_length=160))


@pytest.fixture(scope="session")
def minilm() -> Encoder:
    """all-MiniLM-L6-v2, from the package that embedkit depends on."""
    return Encoder(device="cpu")


def _folder_from(variable: str, content: str) -> Path:
    """Folder named by an environment variable; without it the test is skipped."""
    named = os.environ.get(variable)
    if not named:
        pytest.skip(f"{variable} does not name a folder of {content}")
    folder = Path(named)
    assert folder.is_dir(), f"{variable}={named} is not a folder"
    return folder


@pytest.fixture(scope="session")
def multilingual() -> Encoder:
    """multilingual-e5-small, for Korean and Japanese."""
    folder = _folder_from("EMBEDKIT_TEST_MULTILINGUAL", "a checkpoint of multilingual-e5-small")
    return Encoder(str(folder), device="cpu")


@pytest.fixture(scope="session")
def corpora() -> Path:
    """Folder of real corpora, which are not part of the project."""
    return _folder_from("EMBEDKIT_TEST_CORPORA", "real corpora")


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


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """Address of an S3 server in this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def store(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty bucket of the server."""
    import fsspec

    keys = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}
    for name, value in {**keys, "ENDPOINT_URL": s3_server}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fsspec.filesystem("s3").clear_instance_cache()
    bucket = fsspec.filesystem("s3")
    if bucket.exists("bucket"):
        bucket.rm("bucket", recursive=True)
    bucket.mkdir("bucket")
    return bucket


class Files(BaseHTTPRequestHandler):
    """Answers with content by path; of a path that ends with ``cut``, with half of it."""

    files: dict[str, bytes]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        content = self.files.get(path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET" and content:
            self.wfile.write(content[: len(content) // 2] if path.endswith("cut") else content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Starts a web server with files by their path; returns ``127.0.0.1:port``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    running: list[ThreadingHTTPServer] = []

    def start(files: dict[str, bytes], handler: type[Any] = Files) -> str:
        kind = type("Handler", (handler,), {"files": files})
        running.append(ThreadingHTTPServer(("127.0.0.1", 0), kind))
        threading.Thread(target=running[-1].serve_forever, daemon=True).start()
        return f"127.0.0.1:{running[-1].server_port}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()
