"""The replicas for a rate of texts, by the bound that comes first: the table of docs/how-to/plan-capacity.md.

Run it with `python -m bench.studies.sizing`, or with `--card TEXTS_PER_S` for the rate of your GPU, which
`headwaiter-client bench` prints; no card's rate is assumed without it.
"""

import argparse
import math

TEXTS_PER_S = (100, 1_000, 10_000, 100_000, 1_000_000)
# The share of its capacity at which a part runs.
SHARE = 0.7
# Measured: see docs/explanation/processes.md ("What a call costs") and docs/how-to/plan-capacity.md. A call has one
# text of 20 tokens.
FRONT_END_CALL_S, ENGINE_SEQUENCE_S = 737e-6, 52e-6
# Measured with texts of 14 tokens.
CPU_REPLICA_TEXTS_PER_S = 301 * 14 / 20
# Bytes of a call to the server and back: see "Bytes of a call" in docs/decisions/measured-and-closed.md.
SENT_BYTES, RECEIVED_BYTES = 183, 1_865
# A host of 16 cores: one core for the engine, one for its device's thread.
FRONT_ENDS_PER_REPLICA = 14


def replicas(texts_per_s: int, card_texts_per_s: float = math.inf) -> tuple[int, str]:
    """Return the replicas with a GPU each, one more than the bound asks for, and the part that is the bound.

    Args:
        texts_per_s: rate of calls with one text each.
        card_texts_per_s: rate of a card; infinite to leave the cards out.
    """
    needed = {
        "cards": texts_per_s / (SHARE * card_texts_per_s),
        "front ends": _front_ends(texts_per_s) / FRONT_ENDS_PER_REPLICA,
        "engine": texts_per_s * ENGINE_SEQUENCE_S / SHARE,
    }
    bound = max(needed, key=needed.__getitem__)
    return math.ceil(needed[bound]) + 1, bound if needed[bound] > 1 else "one is enough; one is spare"


def _front_ends(texts_per_s: int) -> int:
    return math.ceil(texts_per_s * FRONT_END_CALL_S / SHARE)


def table(card_texts_per_s: float = math.inf) -> str:
    """Return the table in Markdown."""
    lines = [
        "| texts/s | replicas of one core, on the CPU | front ends of all GPU replicas | replicas with a GPU "
        "| network, Mbit/s | what sets the number of GPUs |",
        "|---|---|---|---|---|---|",
    ]
    for texts_per_s in TEXTS_PER_S:
        on_cpu = math.ceil(texts_per_s / (SHARE * CPU_REPLICA_TEXTS_PER_S)) + 1
        with_gpu, bound = replicas(texts_per_s, card_texts_per_s)
        sent, received = (texts_per_s * each * 8e-6 for each in (SENT_BYTES, RECEIVED_BYTES))
        numbers = f"{texts_per_s:,} | {on_cpu:,} | {_front_ends(texts_per_s):,} | {with_gpu:,}"
        lines.append(f"| {numbers} | {sent:,.1f} in, {received:,.1f} out | {bound} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.studies.sizing", description=__doc__)
    parser.add_argument("--card", type=float, default=math.inf, metavar="TEXTS_PER_S", help="rate of your GPU")
    print(table(parser.parse_args().card))


if __name__ == "__main__":
    main()
