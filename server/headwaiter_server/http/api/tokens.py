"""The paths of TEI and vLLM that return the tokens of texts, or the texts of tokens, without encoding them."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import orjson

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.tasks import TOKENIZES
from headwaiter_server.http.api.errors import TEI_ERRORS
from headwaiter_server.http.api.operations import COUNT, STRING, Operation, array, record
from headwaiter_server.http.api.sequences import ONE_LIST_OF_IDS, ONE_TEXT, ONE_TEXT_OR_SEVERAL, TOKEN_IDS
from headwaiter_server.http.api.shared_fields import ADD_SPECIAL_TOKENS, MODEL, PROMPT_NAME
from headwaiter_server.requests.fields import BOOLEAN, Field, Question


def _ids(reply: pb.TokenizeResponse) -> list[int]:
    ids: list[int] = np.frombuffer(reply.tokens.data, "<i4").tolist()
    return ids


def _write_tei(question: Question, reply: pb.TokenizeResponse) -> bytes:
    tokens = zip(_ids(reply), reply.strings, reply.special, strict=True)
    texts = zip(question.encode.texts.values, reply.offsets, strict=True)
    return orjson.dumps([[*_tei_tokens(text, offsets, tokens)] for text, offsets in texts])


def _tei_tokens(text: str, offsets: pb.Offsets, tokens: Iterator[tuple[int, str, int]]) -> Iterator[dict[str, Any]]:
    """Yield the tokens of a text; those that are not in the text are written as in the vocabulary."""
    for start, stop, (token_id, string, special) in zip(
        offsets.begin, offsets.end, islice(tokens, len(offsets.begin)), strict=True
    ):
        place = (None, None) if special else (start, stop)
        yield {
            "id": token_id,
            "text": text[start:stop] or string,
            "special": bool(special),
            "start": place[0],
            "stop": place[1],
        }


def _write_vllm(question: Question, reply: pb.TokenizeResponse) -> bytes:
    ids = _ids(reply)
    strings = list(reply.strings) if question.options["strings"] else None
    return orjson.dumps({"count": len(ids), "max_model_len": reply.max_tokens, "tokens": ids, "token_strs": strings})


def _write_texts(_: Question, texts: list[str]) -> bytes:
    return orjson.dumps(texts)


def _write_prompt(_: Question, texts: list[str]) -> bytes:
    return orjson.dumps({"prompt": texts[0]})


_PLACE = {"type": ["integer", "null"], "minimum": 0}
_IS_SPECIAL = {"type": "boolean"}
TEI_TOKENIZE = Operation(
    "Return the tokens of texts.",
    (
        Field("inputs", ONE_TEXT_OR_SEVERAL, "input", "The texts.", required=True),
        MODEL,
        PROMPT_NAME,
        ADD_SPECIAL_TOKENS,
    ),
    pb.OutputOptions(offsets=True),
    TOKENIZES,
    _write_tei,
    array(array(record(id=COUNT, text=STRING, special=_IS_SPECIAL, start=_PLACE, stop=_PLACE))),
    TEI_ERRORS,
)
VLLM_TOKENIZE = Operation(
    "Return the tokens of a text.",
    (
        Field("prompt", ONE_TEXT, "input", "The text.", required=True),
        MODEL,
        ADD_SPECIAL_TOKENS,
        Field("return_token_strs", BOOLEAN, "options.strings", "Whether the reply has token_strs.", default=False),
    ),
    pb.OutputOptions(),
    TOKENIZES,
    _write_vllm,
    record(
        count=COUNT, max_model_len=COUNT, tokens=array(COUNT), token_strs={"anyOf": [array(STRING), {"type": "null"}]}
    ),
)
TEI_DECODE = Operation(
    "Return the texts of token ids.",
    (
        Field("ids", TOKEN_IDS, "input", "The token ids.", required=True),
        MODEL,
        Field(
            "skip_special_tokens",
            BOOLEAN,
            "options.skip_special",
            "Whether texts lack special tokens; default: true.",
            default=True,
        ),
    ),
    pb.OutputOptions(),
    TOKENIZES,
    _write_texts,
    array(STRING),
    TEI_ERRORS,
)
VLLM_DETOKENIZE = Operation(
    "Return the text of token ids, special tokens included.",
    (Field("tokens", ONE_LIST_OF_IDS, "input", "The token ids.", required=True), MODEL),
    pb.OutputOptions(),
    TOKENIZES,
    _write_prompt,
    record(prompt=STRING),
)
