"""A cross-encoder of all-MiniLM-L6-v2's shape that scores 100 pairs in a request, against Encode of the same tokens."""

import subprocess
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tokenizers import Tokenizer

from bench.loads.raw_calls import CLASSIFY, ENCODE, RawRequest, raise_first_error, request, send_all
from bench.loads.traces import in_groups, sentences
from bench.measure import LOG, ServerSetup, measure, ratio
from bench.processes import LOAD_CORE, in_new_process, in_turn, pin
from bench.run import Run
from headwaiter_client import Client
from headwaiter_client.cli.load_generator import Load
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.runtime.bundle import TOKENIZER
from testbed.minilm import command_path

_PAIRS, _PAIRS_PER_REQUEST, _REQUESTERS = 1_000, 100, 4
_TURNS_PER_ROUND = 2


def reranking(run: Run) -> None:
    """Compare the scores with those of transformers, and the throughput of Classify with that of Encode."""
    pin(LOAD_CORE)
    texts = sentences()
    pairs = [(texts[number // _PAIRS_PER_REQUEST], texts[-1 - number]) for number in range(_PAIRS)]
    with TemporaryDirectory() as folder, LOG.open("ab") as log:
        checkpoint, bundle = Path(folder, "checkpoint"), Path(folder, "bundle")
        expected = in_new_process("bench.studies.pytorch_models", "cross_encoder", checkpoint, pairs)
        export = [command_path("headwaiter-export"), "checkpoint", str(checkpoint), "-o", str(bundle)]
        subprocess.run([*export, "--name", "cross-encoder", "--pooling", "mean"], check=True, stdout=log, stderr=log)
        server = run.fleet[ServerSetup("a cross-encoder", bundle=bundle)]
        classify, encode = _requests(pairs, Tokenizer.from_file(str(bundle / TOKENIZER)))
    with Client(server.address) as client:
        replies = [client.classify(group) for group in in_groups(pairs, _PAIRS_PER_REQUEST)]
    _send(server.address, encode, ENCODE)
    turns = in_turn(
        partial(measure, server, partial(_send, requests=classify, method=CLASSIFY)),
        partial(measure, server, partial(_send, requests=encode, method=ENCODE)),
        _TURNS_PER_ROUND * run.sizes.rounds,
    )
    scores = [score for reply in replies if reply.scores is not None for (score,) in reply.scores]
    difference = float(np.abs(np.subtract(scores, expected)).max()) * 1e6
    findings = run.figures.findings.of_part(f"a cross-encoder, {_PAIRS_PER_REQUEST} pairs per request")
    findings.require("largest difference of a score from transformers, millionths", difference, "≤", 10.0)
    throughput = ratio(*turns, "tokens_per_s")
    findings.require("tokens/s: Classify of pairs / Encode of the same token ids", throughput, "≥", 0.9)


def _send(address: str, requests: list[RawRequest], method: str) -> Load:
    load = send_all(address, requests, _REQUESTERS, method)
    raise_first_error(load)
    return load


def _requests(pairs: list[tuple[str, str]], tokenizer: Tokenizer) -> tuple[list[RawRequest], list[RawRequest]]:
    """Return requests to classify pairs of texts, and requests to encode the token ids of these pairs."""
    ids = [np.array(encoding.ids) for encoding in tokenizer.encode_batch(pairs)]
    encode = [request(*group) for group in in_groups(ids, _PAIRS_PER_REQUEST)]
    messages = (
        pb.ClassifyRequest(pairs=pb.Pairs(first=list(queries), second=list(documents)))
        for queries, documents in (zip(*group, strict=True) for group in in_groups(pairs, _PAIRS_PER_REQUEST))
    )
    classify = [
        RawRequest(each.SerializeToString(), other.tokens) for each, other in zip(messages, encode, strict=True)
    ]
    return classify, encode
