"""The two public traces load whole, and their numbers are those of the files."""

import os
from pathlib import Path

import pytest

from kvlab.engine.workload import Workload, load_trace

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / "shared" / "data" / "traces", ROOT.parent / "shared" / "data" / "traces"]


def trace(name: str) -> Workload:
    named = os.environ.get("KVLAB_TRACES")
    for folder in [Path(named)] if named else FOLDERS:
        if (folder / name).is_file():
            return load_trace(folder / name)
    pytest.skip(f"public trace {name} is not here; set KVLAB_TRACES to its folder (data/README.md)")


def test_the_azure_conversation_trace_loads_whole() -> None:
    w = trace("azure_llm_2023_conv.csv")
    facts = w.summary()
    assert (len(w), w.dropped) == (19_366, 0)
    assert (facts["prompt_tokens"], facts["output_tokens"]) == (22_361_870, 4_088_665)
    assert (facts["prompt_max"], facts["output_min"], facts["output_max"]) == (14_050, 7, 1000)
    # 18:15:46.6805900 to 19:14:08.4025270, so nothing of the seventh decimal is lost.
    assert facts["duration_s"] == 3501.721937
    assert w.source == "Azure CSV azure_llm_2023_conv.csv"


def test_the_mooncake_conversation_trace_loads_whole() -> None:
    w = trace("mooncake_fast25_conversation.jsonl")
    facts = w.summary()
    assert (len(w), w.dropped) == (12_031, 0)
    assert (facts["prompt_tokens"], facts["output_tokens"]) == (144_793_823, 4_122_048)
    assert (facts["prompt_min"], facts["prompt_max"], facts["output_min"]) == (891, 126_195, 1)
    assert facts["duration_s"] == 3536.999
