"""The predicted memory of one longest sequence is close to the memory that was measured.

Measured: peak minus idle resident memory of a process that runs the fp32 graph on one sequence in one thread, with 2 to
6 layers and feed-forward layers four times as wide as the rows.
"""

from pathlib import Path
from typing import Any

import pytest

from headwaiter_proto.encoder_pb2 import ISOLATION_MIXED
from headwaiter_proto.manifest_pb2 import Manifest, Padding
from headwaiter_server.runtime.memory import available_bytes, longest_sequence_bytes


def _padding(width: int) -> Padding:
    return Padding(isolation=ISOLATION_MIXED, token_values=4 * width, cell_values=12)


# Products of queries and keys by distance; the first convolution of wav2vec2-base, which has 79 outputs of 512 channels
# for each row.
_BY_DISTANCE, _CONVOLUTIONS = {"distance_products": True}, {"convolution_values": 4 * 79 * 512}


@pytest.mark.parametrize(
    ("tokens", "width", "heads", "fields", "in_blocks", "measured_mib"),
    [
        (2048, 768, 12, {}, True, 194),
        (4096, 768, 12, {}, True, 328),
        (8192, 768, 12, {}, True, 512),
        (4096, 384, 12, {}, True, 196),
        (8192, 384, 12, {}, True, 330),
        (2048, 1024, 16, {}, True, 256),
        (8192, 1024, 16, {}, True, 641),
        (4096, 256, 1, {}, True, 72),
        (8192, 256, 1, {}, True, 132),
        (3000, 384, 12, {}, False, 956),
        (4096, 384, 12, {}, False, 1693),
        (512, 768, 12, _BY_DISTANCE, True, 116),
        (2048, 768, 12, _BY_DISTANCE, True, 438),
        (1024, 384, 0, {"padding": _padding(384)}, False, 298),
        (2048, 384, 0, {"padding": _padding(384)}, False, 1147),
        (4096, 384, 0, {"padding": _padding(384)}, False, 3682),
        (512, 768, 0, {"padding": _padding(768)}, False, 82),
        (1024, 768, 0, {"padding": _padding(768)}, False, 298),
        (4096, 768, 0, {"padding": _padding(768)}, False, 3925),
        (300, 768, 12, _CONVOLUTIONS, True, 204),
        (1500, 768, 12, _CONVOLUTIONS, True, 972),
    ],
)
def test_the_prediction_is_within_30_percent_of_the_measured_memory(
    tokens: int, width: int, heads: int, fields: dict[str, Any], in_blocks: bool, measured_mib: int
) -> None:
    manifest = Manifest(max_tokens=tokens, width=width, heads=heads, **fields)
    predicted_mib = longest_sequence_bytes(manifest, attends_in_blocks=in_blocks) / 2**20
    assert predicted_mib == pytest.approx(measured_mib, rel=0.3)


@pytest.mark.parametrize(("gated_width", "measured_mib"), [(1024, 184), (1024, 200), (2048, 288)])
def test_the_prediction_for_gated_blocks_covers_the_measured_memory(gated_width: int, measured_mib: int) -> None:
    manifest = Manifest(max_tokens=8192, width=256, heads=4, gated_width=gated_width)
    predicted_mib = longest_sequence_bytes(manifest, attends_in_blocks=True) / 2**20
    assert measured_mib < predicted_mib < 1.3 * measured_mib


def test_the_memory_depends_on_the_width_of_the_rows_and_not_on_that_of_the_pooled_vector() -> None:
    equal, projected = (Manifest(max_tokens=512, width=width, hidden_width=768, heads=12) for width in (768, 64))
    expected = longest_sequence_bytes(equal, attends_in_blocks=True)
    assert longest_sequence_bytes(projected, attends_in_blocks=True) == expected


@pytest.mark.parametrize(
    ("cgroup", "available_kib"),
    [
        ({}, 1000),
        ({"memory.max": "max", "memory.current": "7", "memory.stat": "inactive_file 0\nactive_file 0"}, 1000),
        (
            {
                "memory.max": "921600",
                "memory.current": "409600",
                "memory.stat": "anon 5\ninactive_file 102300\nactive_file 100",
            },
            600,
        ),
        ({"memory.max": "9216000", "memory.current": "409600", "memory.stat": "inactive_file 0\nactive_file 0"}, 1000),
        ({"memory.max": "409600", "memory.current": "512000", "memory.stat": "inactive_file 0\nactive_file 0"}, 0),
    ],
    ids=["no cgroup", "no limit", "limit of the cgroup", "larger limit", "above the limit"],
)
def test_the_available_memory_is_that_of_the_machine_or_of_the_cgroup(
    cgroup: dict[str, str], available_kib: int, tmp_path: Path
) -> None:
    for name, text in cgroup.items():
        (tmp_path / name).write_text(text)
    memory_info = tmp_path / "meminfo"
    memory_info.write_text("MemTotal:       2000 kB\nMemAvailable:   1000 kB\n")
    assert available_bytes(memory_info, tmp_path) == 1024 * available_kib


def test_the_available_memory_is_unknown_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "meminfo", tmp_path) is None
