"""Language models that rerank: the score of a pair is the logit of a word, less that of another word.

The words are a "yes" and a "no", at the last token of a chat or, for an encoder with a decoder, at its first token.
"""

from dataclasses import dataclass

from tokenizers import Tokenizer
from torch import Tensor

from headwaiter_export.checkpoints.families.family import Family
from headwaiter_export.checkpoints.heads import read_function
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.weights import check_tied, take_tensor
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.head import HeadConfig

# The endings of the architectures of language models whose words the export can score.
_ENDINGS = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma"), "ForCausalLM"),
    **dict.fromkeys(("t5", "mt5", "umt5"), "ForConditionalGeneration"),
}
_T5_WORDS = ("lm_head.weight", "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


@dataclass(frozen=True)
class PairQuestion:
    """The question whose answer scores a pair, for a checkpoint that does not say how it reranks.

    Attributes:
        template: the text of a pair, with "{query}" and then "{document}" in it.
        yes: the word that follows if the document answers the query.
        no: the word that follows otherwise; None for models whose score is the logit of `yes` alone.
    """

    template: str
    yes: str
    no: str | None = None

    def word_ids(self, tokenizer: Tokenizer) -> tuple[int, int | None]:
        """Return the token ids of `yes` and `no`.

        Raises:
            CheckpointError: a word has several tokens, or both have the same.
        """
        ids = []
        for word in (self.yes, *(() if self.no is None else (self.no,))):
            encoded = tokenizer.encode(word, add_special_tokens=False)
            if len(encoded.ids) != 1:
                raise CheckpointError(f"{word!r} has the tokens {', '.join(encoded.tokens)}: give a word of one token")
            ids.append(encoded.ids[0])
        if len(set(ids)) < len(ids):
            raise CheckpointError(f"{self.yes!r} and {self.no!r} have the same token: give two words")
        return ids[0], ids[1] if self.no is not None else None


def word_score_head(config_json: CheckpointJson, family: Family, cross_encoder: CheckpointJson) -> HeadConfig:
    """Return the head that scores a pair by the logits of one or two tokens, see `fold_words`.

    Raises:
        CheckpointError: the checkpoint is no language model that the export knows.
    """
    names, architectures = family.sequence_head, config_json.strings("architectures")
    ending = _ENDINGS.get(str(config_json.values["model_type"]))
    if names is None or ending is None or not architectures:
        raise config_json.error("model_type", f"LogitScore and --question need one of {', '.join(_ENDINGS)}")
    if not all(name.endswith(ending) for name in architectures):
        raise config_json.error("architectures", f"words are scored by a …{ending}")
    # The field is one of heads that classify.
    values = {name: value for name, value in config_json.values.items() if name != "problem_type"}
    function = read_function(CheckpointJson(config_json.path, values), cross_encoder, 1)
    return HeadConfig(("LABEL_0",), function, poolings=names.poolings, bias=names.bias)


def logit_score_ids(logit_score: CheckpointJson, vocabulary_size: int) -> tuple[int, int | None]:
    """Return the token ids that LogitScore of sentence-transformers names; the second may be missing.

    Raises:
        CheckpointError: an id is not one of the model, or both are the same.
    """
    ids = list[int]()
    for field in ("true_token_id", "false_token_id"):
        if field == "true_token_id" or logit_score.values.get(field) is not None:
            ids.append(logit_score.size(field, least=0))
            if ids[-1] >= vocabulary_size:
                raise logit_score.error(field, f"the model has {vocabulary_size} token ids")
    if len(ids) > 1 and ids[0] == ids[1]:
        raise logit_score.error("false_token_id", "it must be another token than true_token_id")
    return ids[0], ids[1] if len(ids) > 1 else None


def fold_words(
    tensors: dict[str, Tensor], config_json: CheckpointJson, ids: tuple[int, int | None], config: EncoderConfig
) -> None:
    """Add the row of a head to the tensors of a language model: that of the first token, less that of the second.

    Raises:
        CheckpointError: two tables of tokens differ where one is expected.
    """
    if config.decoder is None:
        name, factor = _tied_or_own_words(tensors, config_json), 1.0
    else:
        name, factor = _t5_words(tensors, config_json, config)
    rows = take_tensor(dict(tensors), name, (config.vocabulary_size, config.d_model))
    yes, no = (None if token is None else rows[token].float() for token in ids)
    assert yes is not None
    tensors["score.weight"] = factor * (yes if no is None else yes - no)[None]


def _tied_or_own_words(tensors: dict[str, Tensor], config_json: CheckpointJson) -> str:
    """Return the tensor that turns rows into logits: the vectors of the tokens, or the layer's own weights."""
    tied, own = "embed_tokens.weight", "lm_head.weight"
    if not config_json.flag("tie_word_embeddings", default=False):
        return own
    check_tied(tensors, own, tied, config_json)
    return tied


def _t5_words(tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> tuple[str, float]:
    """Return the tensor that turns rows into logits, and the factor of the logits.

    T5 1.0 scales its rows, and T5 1.1 and mT5 do not. transformers takes the table of the head where there is one, and
    derives the factor from the field of tied tables.
    """
    scales = config_json.values["model_type"] != "mt5" and config_json.flag(
        "scale_decoder_outputs", default=config_json.values.get("tie_word_embeddings") is not False
    )
    name = next((each for each in _T5_WORDS if each in tensors), _T5_WORDS[0])
    return name, config.d_model**-0.5 if scales else 1.0
