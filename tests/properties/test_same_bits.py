"""The bitwise statements of the README under every set of instructions that can be forced.

Every setting is a process of its own (:mod:`tests.same_bits`). What a processor does not have, the
libraries pass over in silence: then the setting is checked that is there. Every change is tried on
the top and on the lowest rung of each ladder of instructions, ``make test-slow`` tries all rungs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st

from embedkit.choices import DEFAULT_MODEL
from tests.models import save_model, wordpiece_vocabulary
from tests.processes import ROOT, completed
from tests.same_bits import share

SETTINGS = [
    "",
    # where matrix-vector products, which attention must not make, depend on the thread that runs
    *(
        f"ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS={level}"
        for level in ("AVX2", "SSE4_2")
    ),
    *(f"ONEDNN_MAX_CPU_ISA={isa}" for isa in ("SSE41", "AVX2", "AVX512_CORE", "AVX512_CORE_AMX")),
    *(f"ATEN_CPU_CAPABILITY={level}" for level in ("default", "avx2", "avx512")),
    *(f"MKL_CBWR={branch}" for branch in ("COMPATIBLE", "SSE4_2", "AVX2", "AVX512,STRICT")),
    "ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE",
]


def odd_bert(folder: Path, layers: int) -> str:
    """A BERT with 6 heads of width 20, no multiple of any vector's, and a layer behind its mean."""
    from transformers import BertTokenizer

    vocabulary = wordpiece_vocabulary()
    BertTokenizer(vocab=vocabulary, do_lower_case=False).save_pretrained(folder)
    sizes: dict[str, Any] = {"hidden_size": 120, "num_attention_heads": 6, "intermediate_size": 200}
    save_model(folder, "bert", vocab_size=len(vocabulary), num_hidden_layers=layers, **sizes)
    modules = [st.Transformer(str(folder)), st.Pooling(120, "mean"), st.Dense(120, 50)]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))
    return str(folder)


def under(setting: str, *arguments: str) -> Any:
    """What :mod:`tests.same_bits` prints in a process with these variables."""
    forced = dict(part.split("=") for part in setting.split())
    names = [name for name in os.environ if name.startswith(("ONEDNN_", "DNNL_", "ATEN_", "MKL_"))]
    # threads that wait must not keep the cores from those that work
    forced |= {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    typed = sys.executable, "-m", "tests.same_bits", *arguments
    return json.loads(completed(*typed, cwd=ROOT, **dict.fromkeys(names) | forced).stdout)


# all that the processor has, and the least, which has no instructions for int8
@pytest.mark.parametrize("setting", [SETTINGS[0], SETTINGS[-1]], ids=["as it is", "the least"])
def test_every_text_has_the_same_bits_in_any_company(setting: str, tmp_path: Path) -> None:
    model = odd_bert(tmp_path, 2)
    if setting:
        shares = under(setting, "--share", model)
    else:  # this process is as it is, and has imported everything
        shares = {name: share(model, name) for name in ("fp32", "int8")}
    assert shares == {"fp32": 100, "int8": 100}


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting or "as it is")
def test_the_same_bits(setting: str, tmp_path: Path) -> None:
    models = DEFAULT_MODEL, odd_bert(tmp_path, 12)
    report = under(setting, *models)
    assert len(report["forwards"]) == 6 * len(models)
    assert all(": packed" in forward for forward in report["forwards"])
    assert report["wrong"] == []
