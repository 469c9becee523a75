"""The comparison with other servers: its checks, its table, its pins, and the calls of Headwaiter itself."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from bench.loads.traces import Trace
from bench.peers import calls, page
from bench.peers.environments import WITHOUT_ONNX, pins, version
from bench.peers.sentences import Sentence, sentences
from bench.peers.servers import FOLDERS, HEADWAITER, PEERS
from bench.peers.table import Measured, Row, busy_generator, failures, ratio, trace_table
from headwaiter_client import Client
from testbed.server_process import running_server


def _row(server: str, takes: str, *tokens_per_s: float, busy: float = 0.1) -> Row:
    measured = [Measured(rate / 40, rate, 300.4, 800.6, 9.04, 361.2, 0.99996, busy) for rate in tokens_per_s]
    return Row(server, "padded", takes, dict(enumerate(measured)))


def test_the_table_has_medians_and_compares_the_rounds_in_which_both_servers_ran() -> None:
    ours, theirs = _row("Headwaiter", "token ids", 4000, 3000, 3600), _row("other 1.2", "texts", 1000, 1500)
    assert ratio(ours, theirs) == [4.0, 2.0]
    lines = trace_table([ours, theirs, Row("absent 1.0", "padded", "texts")]).splitlines()
    assert lines[2:] == [
        "| Headwaiter | padded | token ids | 90 | 1.00 | 3,600 | 300 | 801 | 9.0 | 361 | 1.0000 |",
        "| other 1.2 | padded | texts | 31 | 3.00 | 1,250 | 300 | 801 | 9.0 | 361 | 1.0000 |",
    ]


def test_the_report_names_servers_that_the_load_generator_may_limit_and_servers_that_failed() -> None:
    calm, limited = _row("calm", "texts", 100.0), _row("fast", "texts", 100.0, busy=0.9)
    assert busy_generator([calm]) == "The load generator used at most 10% of its core, so it limited no server."
    assert "fast (90%)" in busy_generator([calm, limited])
    assert failures({"other": "it did not start"}) == "- other: not measured, because it did not start"


def test_the_lowest_cosine_is_that_of_the_worst_vector_and_0_for_another_size() -> None:
    expected = [np.array([1, 0], np.float32), np.array([0, 2], np.float32)]
    assert calls.lowest_cosine([3 * each for each in expected], expected) == pytest.approx(1)
    assert calls.lowest_cosine([expected[0], np.array([3, 4], np.float32)], expected) == pytest.approx(0.8)
    assert calls.lowest_cosine([expected[0], np.ones(3, np.float32)], expected) == 0


def test_every_peer_pins_its_package_and_the_same_onnx_runtime() -> None:
    assert len({version(pins(folder), "onnxruntime") for folder in FOLDERS if folder not in WITHOUT_ONNX}) == 1
    labels = [peer.label for peer in PEERS]
    assert len(set(labels)) == len(labels)
    with pytest.raises(ValueError, match="do not pin numpy"):
        version("numpy>=2\nnumpy-stl==3.0\n", "numpy")


@pytest.mark.usefixtures("starts_processes")
def test_ids_and_text_of_a_sentence_have_the_length_in_the_trace_and_the_same_vector(
    text_bundle: Path,
) -> None:
    trace = Trace("trace", [np.zeros(length, int) for length in (4, 9, 6)])
    drawn = sentences(trace, text_bundle / "tokenizer.json")
    assert [len(each.ids) for each in drawn] == [4, 9, 6]
    with running_server(text_bundle, ["--provider", "cpu"]) as server:
        answered = asyncio.run(calls.closed_loop(HEADWAITER.api, server.address, drawn, 2))
        with Client(server.address) as client:
            by_text = client.encode([each.text for each in drawn]).pooled
        wrong = Sentence(np.array([999_999]), "")
        with pytest.raises(RuntimeError, match="INVALID_ARGUMENT"):
            asyncio.run(calls.closed_loop(HEADWAITER.api, server.address, [wrong], 1))
    assert by_text is not None
    assert sum(outcome.tokens for outcome in answered.load.outcomes) == 19
    vectors = [HEADWAITER.api.vector(answer) for answer in answered.answers]
    assert calls.lowest_cosine(vectors, list(by_text)) > 0.9999


def test_the_page_has_a_table_for_each_trace_and_a_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [_row("Headwaiter", "token ids", 4000, 3000), _row("other 1.2", "texts", 1000)]
    figures = tmp_path / "figures.json"
    traces = {trace: list(map(asdict, rows)) for trace in ("short texts", "long texts")}
    figures.write_text(
        json.dumps({"rows": traces, "not measured": {"absent 1.0": "it ended"}, "versions": "1.2 in all"})
    )
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "CHART", tmp_path / "chart.svg")
    page.write(figures)
    text = (tmp_path / "page.md").read_text()
    assert text.count("| other 1.2 | padded | texts | 25 | 4.00 | 1,000 |") == 2
    assert "absent 1.0" in text
    assert "Medians of 2 rounds" in text
    assert b"</svg>" in (tmp_path / "chart.svg").read_bytes()
