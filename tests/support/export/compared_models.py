"""Tiny random checkpoints of each kind, and what the libraries and the export give for the same inputs."""

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer

from headwaiter_client import Client, FakeEncoder, patches, sound_rows
from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import LoadedModel, read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.head import ScoreFunction
from headwaiter_export.encoder.reference import run_in_pytorch
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import Failures
from headwaiter_proto.rules.pooling import normalize_pooled, pool
from headwaiter_server.inputs.image_files import prepare
from headwaiter_server.inputs.pair_template import TemplatedPairs
from headwaiter_server.inputs.tokenizer import BundleTokenizer, TokenizedText, TokenizeOptions, Truncation
from headwaiter_server.requests.threads import finish
from tests.support.checkpoints import save_bert, save_vit, write_json, write_modules_json
from tests.support.export.family_examples import save_example
from tests.support.export.feature_checkpoints import save_feature_model
from tests.support.export.language_model_reranker import save_reranker
from tests.support.export.library_fields import fields_of
from tests.support.export.multi_vector_encoder import save_multi_vector_encoder
from tests.support.export.sparse_encoder import save_sparse_encoder
from tests.support.export.tokenizer_folders import byte_level_bpe, word_piece
from tests.support.oracle import Array

Results = list[Array]
WORDS = ("rain", "falls", "on", "the", "Stone", "fr\u00e9sh", "bread")
# Of no words, and of each number of words around the limits of the checkpoints.
TEXTS = [" ".join(WORDS[(n + place) % 7] for place in range(n)) for n in (0, 1, 2, 8, 9, 10, 11, 12, 17)]
PROMPTS = (None, "query", "document")
MAX_TOKENS = 12


@dataclass(frozen=True)
class ComparedModel:
    """A kind of model.

    Attributes:
        save: saves a checkpoint.
        expected: what the libraries give for a checkpoint.
        actual: what the export gives, computed with the server's own functions.
        files: the JSON files that the libraries read, and functions of the fields that they read from each.
    """

    save: Callable[[Path], None]
    expected: Callable[[Path], Results]
    actual: Callable[[Path], Results]
    files: Mapping[str, Callable[[], Set[str]]]


def tokenized(loaded: LoadedModel, texts: Sequence[Any], prompt: pb.Prompt) -> list[TokenizedText]:
    """Return the tokens of texts or pairs, without the tokens beyond the limit at the right."""
    text = loaded.text
    if text is None:
        raise CheckpointError("the model takes no texts")
    tokenizer = BundleTokenizer(text.tokenizer.encode(), text.max_tokens, text.pair_template)
    return finish(tokenizer.tokenize(texts, TokenizeOptions(prompt, Truncation.RIGHT), Failures(keep=False), 10**6))


def prompt_of(loaded: LoadedModel, name: str | None) -> pb.Prompt:
    """Return the prompt of a request; an empty one if the model does not have the prompt."""
    if loaded.text is None:
        raise CheckpointError("the model takes no texts")
    name = loaded.text.default_prompt if name is None else name
    return next((pb.Prompt(**asdict(each)) for each in loaded.text.prompts if each.name == name), pb.Prompt())


def text_vectors(folder: Path) -> Results:
    """Return the pooled vectors of `TEXTS` with each prompt."""
    loaded = read_checkpoint(folder)
    config, found = loaded.encoder.config, []
    for name in PROMPTS:
        prompt = prompt_of(loaded, name)
        vectors = np.full((len(TEXTS), config.pooled_width), np.nan, np.float32)
        for vector, tokens in zip(vectors, tokenized(loaded, TEXTS, prompt), strict=True):
            if not len(tokens.ids):
                continue  # A server refuses the text.
            (outputs,) = run_in_pytorch(loaded.encoder, [tokens.ids])
            if loaded.text and loaded.text.pooling_skips_prompt and prompt.text:
                pooling: Any = pb.Pooling.Value(f"POOLING_{config.pooling.name}")
                pooled = pool(np.asarray(outputs.hidden), pooling, prompt.tokens)[None]
                vector[:] = normalize_pooled(pooled, normalized=config.normalize)[0]
            else:
                vector[:] = np.asarray(outputs.pooled)[0]
        found.append(vectors)
    return found


def expected_text_vectors(kind: str) -> Callable[[Path], Results]:
    """Return the function of the vectors of a class of sentence-transformers."""

    def vectors(folder: Path) -> Results:
        import sentence_transformers

        model = getattr(sentence_transformers, kind)(
            str(folder), device="cpu", local_files_only=True, trust_remote_code=False
        )
        found = []
        for name in PROMPTS:
            prompt = model.prompts.get(model.default_prompt_name if name is None else name) or ""
            # No model can encode a text without tokens.
            answered = [bool(model.tokenizer(prompt + text)["input_ids"]) for text in TEXTS]
            given = [text for text, one in zip(TEXTS, answered, strict=True) if one]
            # One text at a time: with some settings, the padding of a batch changes vectors.
            encoded = model.encode(given, prompt=prompt, batch_size=1, show_progress_bar=False)
            encoded = encoded if isinstance(encoded, np.ndarray) else encoded.to_dense().numpy()
            found.append(np.full((len(TEXTS), encoded.shape[1]), np.nan, np.float32))
            found[-1][answered] = encoded
        return found

    return vectors


def save_embedder(folder: Path) -> None:
    """Save a BERT with prompts and a limit of `MAX_TOKENS`, as sentence-transformers saves an embedder."""
    tokenizer = word_piece()
    save_bert(folder, vocab_size=tokenizer.get_vocab_size())
    _save_tokenizer(folder, tokenizer, "BertTokenizer")
    write_modules_json(folder, "models.Transformer", "models.Pooling", "models.Normalize")
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
    _save_settings(folder, "SentenceTransformer")


def save_decoder(folder: Path) -> None:
    """Save a Qwen3 that pools the last row, as sentence-transformers saves an embedder."""
    tokenizer = byte_level_bpe()
    tokenizer.add_special_tokens(["<|im_end|>", "<|endoftext|>"])
    settings: dict[str, Any] = {"use_sliding_window": False, "layer_types": ["full_attention"] * 2}
    settings |= {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 64, "sliding_window": None}
    save_example(folder, "Qwen3", **settings)
    _save_tokenizer(folder, tokenizer, "Qwen2Tokenizer", eos_token="<|im_end|>", pad_token="<|endoftext|>")
    write_modules_json(folder, "models.Transformer", "models.Pooling", "models.Normalize")
    write_json(folder / "1_Pooling" / "config.json", {"embedding_dimension": 32, "pooling_mode": "lasttoken"})
    _save_settings(folder, "SentenceTransformer")


def save_sparse(folder: Path) -> None:
    """Save a SPLADE with a limit of `MAX_TOKENS`."""
    save_sparse_encoder(folder)
    _save_settings(folder, "SparseEncoder", transformer_task="fill-mask", method_output_name="logits")


def save_cross_encoder(folder: Path) -> None:
    """Save a BERT that scores pairs, as sentence-transformers saves a CrossEncoder."""
    tokenizer = word_piece()
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 64, "type_vocab_size": 2}
    save_example(folder, "Bert", "ForSequenceClassification", num_labels=1, **sizes)
    _save_tokenizer(folder, tokenizer, "BertTokenizer")
    write_modules_json(folder, "base.modules.transformer.Transformer")
    write_json(
        folder / "sentence_bert_config.json",
        {
            "transformer_task": "sequence-classification",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "scores",
            "max_seq_length": MAX_TOKENS,
        },
    )
    write_json(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder", "prompts": {}})


def save_language_model(folder: Path) -> None:
    """Save a language model that reranks, with a limit `MAX_TOKENS` above its template."""
    save_reranker(folder)
    text = read_checkpoint(folder).text
    assert text is not None
    assert text.pair_template is not None
    template = TemplatedPairs(text.pair_template, Tokenizer.from_str(text.tokenizer))
    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    settings["max_seq_length"] = len(template.ids) + MAX_TOKENS
    write_json(folder / "sentence_bert_config.json", settings)


def _save_tokenizer(folder: Path, tokenizer: Tokenizer, kind: str, **tokens: str) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": kind, "model_max_length": 40, **tokens})


def _save_settings(
    folder: Path,
    kind: str,
    transformer_task: str = "feature-extraction",
    method_output_name: str = "last_hidden_state",
) -> None:
    write_json(
        folder / "sentence_bert_config.json",
        {
            "transformer_task": transformer_task,
            "modality_config": {"text": {"method": "forward", "method_output_name": method_output_name}},
            "module_output_name": "token_embeddings",
            "max_seq_length": MAX_TOKENS,
        },
    )
    prompts = {"prompts": {"query": "rain ", "document": ""}, "default_prompt_name": "query"}
    write_json(folder / "config_sentence_transformers.json", {"model_type": kind, **prompts})


PAIRS = [(one, other) for one, other in zip(TEXTS[:8], TEXTS[7::-1], strict=True)] + list(pairwise(TEXTS[:9]))


def _pairs(folder: Path) -> list[tuple[str, str]]:
    """Return `PAIRS`; for a template, those whose second text is cut: the library cuts the end of the whole."""
    has_template = (folder / "1_LogitScore").is_dir()
    return [(one, other) for one, other in PAIRS if not has_template or len(one) < MAX_TOKENS]


def pair_scores(folder: Path) -> Results:
    """Return the scores of pairs."""
    loaded = read_checkpoint(folder)
    config = loaded.encoder.config
    if config.head is None:
        raise CheckpointError("the model scores no pairs")
    rows = []
    for each in tokenized(loaded, _pairs(folder), pb.Prompt()):
        types = np.zeros_like(each.ids) if each.types is None else each.types
        rows.append(np.stack([each.ids, types], 1) if config.token_types else each.ids)
    logits = np.concatenate([each.logits[0] for each in run_in_pytorch(loaded.encoder, rows) if each.logits])
    if len(config.head.labels) > 1:
        raise CheckpointError("the libraries scale the logits of several labels in different ways")
    return [logits[:, 0] if config.head.function is ScoreFunction.IDENTITY else 1 / (1 + np.exp(-logits[:, 0]))]


def expected_pair_scores(folder: Path) -> Results:
    """Return these scores in sentence-transformers."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu", local_files_only=True, trust_remote_code=False)
    return [model.predict(_pairs(folder), batch_size=1, show_progress_bar=False)]


def row_vectors(folder: Path) -> Results:
    """Return the vectors of the rows of queries and documents."""
    from tests.export.checkpoints.test_multi_vector import vectors
    from tests.support.export.multi_vector_encoder import DOCUMENTS, QUERIES

    loaded = read_checkpoint(folder)
    if loaded.text is None or "query" not in {each.name for each in loaded.text.prompts}:
        raise CheckpointError("the model has one vector for each text")
    return [*vectors(loaded, [*QUERIES, *TEXTS], "query"), *vectors(loaded, [*DOCUMENTS, *TEXTS], "document")]


def expected_row_vectors(folder: Path) -> Results:
    """Return these vectors in sentence-transformers."""
    from sentence_transformers import MultiVectorEncoder

    from tests.support.export.multi_vector_encoder import DOCUMENTS, QUERIES

    model = MultiVectorEncoder(str(folder), device="cpu", local_files_only=True, trust_remote_code=False)
    queries = [model.encode_query(text, convert_to_numpy=True) for text in [*QUERIES, *TEXTS]]
    return [*queries, *(model.encode_document(text, convert_to_numpy=True) for text in [*DOCUMENTS, *TEXTS])]


SIDES = ((31, 20), (20, 31), (12, 12))


def _pictures() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)) for width, height in SIDES]


def image_rows(folder: Path) -> Results:
    """Return the hidden rows of three images, prepared as a server does."""
    loaded = read_checkpoint(folder, Pooling.NONE)
    assert loaded.image is not None
    if not loaded.image.HasField("preparation"):
        raise CheckpointError("the export leaves the preparation to callers")
    config, size = loaded.encoder.config, loaded.image.patch_size
    rows: list[Array] = [
        patches(prepare(each, loaded.image.preparation), size, prefix_rows=config.prefix_rows) for each in _pictures()
    ]
    return [np.asarray(each.hidden) for each in run_in_pytorch(loaded.encoder, rows)]


def expected_image_rows(folder: Path) -> Results:
    """Return these rows in transformers."""
    processor = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    pixels = [processor(each, return_tensors="pt")["pixel_values"] for each in _pictures()]
    with torch.inference_mode():
        return [model(each.float(), return_dict=True).last_hidden_state[0].numpy() for each in pixels]


def save_images(folder: Path) -> None:
    """Save a ViT with its image processor."""
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    save_vit(folder, num_hidden_layers=1)
    ViTImageProcessorPil(size={"height": 12, "width": 12}).save_pretrained(folder)


SAMPLES = [np.random.default_rng(n).normal(3, 7, n).astype(np.float32) for n in (90, 400, 411)]


def sound_vectors(folder: Path) -> Results:
    """Return the hidden rows of three sounds, whose rows the client makes."""
    loaded = read_checkpoint(folder, Pooling.NONE)
    fake = FakeEncoder(vocabulary_size=0, feature_width=loaded.encoder.config.feature_width, sound=loaded.sound)
    described = Client(transport=fake).model()
    rows: list[Array] = [sound_rows(each, described) for each in SAMPLES]
    return [np.asarray(each.hidden) for each in run_in_pytorch(loaded.encoder, rows)]


def expected_sound_vectors(folder: Path) -> Results:
    """Return these rows in transformers."""
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    found = []
    for each in SAMPLES:
        values = extractor(each, sampling_rate=extractor.sampling_rate, return_tensors="pt")
        with torch.inference_mode():
            found.append(model(values["input_values"], return_dict=True).last_hidden_state[0].numpy())
    return found


def save_sounds(folder: Path) -> None:
    """Save a wav2vec 2.0 with its feature extractor."""
    save_feature_model(folder, "Wav2Vec2", feat_extract_norm="layer")
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)


def _of(*names: str) -> Callable[[], Set[str]]:
    """Return the function of the fields that classes read; a name is that of a module and of a class."""

    def fields() -> Set[str]:
        parts = (name.rpartition(".") for name in names)
        return fields_of(*(getattr(import_module(module), kind) for module, _, kind in parts))

    return fields


def _fields_of_pooling() -> Set[str]:
    from sentence_transformers.sentence_transformer.modules import pooling

    return {*fields_of(pooling.Pooling), *pooling._LEGACY_POOLING_MODE_KWARGS}


def _text_files(tokenizer: str, config: str, kind: str) -> dict[str, Callable[[], Set[str]]]:
    of_tokenizer = _of(f"transformers.{tokenizer}")
    kinds = ("SentenceTransformer", "SparseEncoder", "CrossEncoder", "MultiVectorEncoder")
    return {
        "config_sentence_transformers.json": _of(*(f"sentence_transformers.{each}" for each in kinds)),
        "sentence_bert_config.json": _of("sentence_transformers.base.modules.Transformer"),
        "tokenizer_config.json": of_tokenizer,
        "special_tokens_map.json": of_tokenizer,
        "config.json": _of(f"transformers.{config}", f"sentence_transformers.{kind}"),
    }


_POOLED = {
    "1_Pooling/config.json": _fields_of_pooling,
    "2_Normalize/config.json": _of("sentence_transformers.base.modules.Normalize"),
}
_VIT_PROCESSOR = "transformers.models.vit.image_processing_pil_vit.ViTImageProcessorPil"
_PARTS = frozenset({"image_processor", "feature_extractor", "audio_processor", "processor_class"})
MODELS: dict[str, ComparedModel] = {
    "text": ComparedModel(
        save_embedder,
        expected_text_vectors("SentenceTransformer"),
        text_vectors,
        {**_text_files("BertTokenizer", "BertConfig", "SentenceTransformer"), **_POOLED},
    ),
    "decoder": ComparedModel(
        save_decoder,
        expected_text_vectors("SentenceTransformer"),
        text_vectors,
        {**_text_files("Qwen2Tokenizer", "Qwen3Config", "SentenceTransformer"), **_POOLED},
    ),
    "sparse": ComparedModel(
        save_sparse,
        expected_text_vectors("SparseEncoder"),
        text_vectors,
        {
            **_text_files("BertTokenizer", "BertConfig", "SparseEncoder"),
            "1_SpladePooling/config.json": _of("sentence_transformers.sparse_encoder.modules.SpladePooling"),
        },
    ),
    "several vectors": ComparedModel(
        save_multi_vector_encoder,
        expected_row_vectors,
        row_vectors,
        {
            **_text_files("PreTrainedTokenizerFast", "BertConfig", "MultiVectorEncoder"),
            "1_Dense/config.json": _of("sentence_transformers.base.modules.Dense"),
            "2_MultiVectorMask/config.json": _of("sentence_transformers.multi_vector_encoder.modules.MultiVectorMask"),
            "3_Normalize/config.json": _of("sentence_transformers.base.modules.Normalize"),
        },
    ),
    "cross-encoder": ComparedModel(
        save_cross_encoder,
        expected_pair_scores,
        pair_scores,
        _text_files("BertTokenizer", "BertConfig", "CrossEncoder"),
    ),
    "language model that reranks": ComparedModel(
        save_language_model,
        expected_pair_scores,
        pair_scores,
        {
            **_text_files("Qwen2Tokenizer", "Qwen3Config", "CrossEncoder"),
            "1_LogitScore/config.json": _of("sentence_transformers.cross_encoder.modules.logit_score.LogitScore"),
        },
    ),
    "images": ComparedModel(
        save_images,
        expected_image_rows,
        image_rows,
        {
            "preprocessor_config.json": _of(_VIT_PROCESSOR),
            "processor_config.json": lambda: _PARTS,
            "config.json": _of("transformers.ViTConfig"),
        },
    ),
    "sounds": ComparedModel(
        save_sounds,
        expected_sound_vectors,
        sound_vectors,
        {
            "preprocessor_config.json": _of("transformers.Wav2Vec2FeatureExtractor"),
            "processor_config.json": lambda: _PARTS,
            "config.json": _of("transformers.Wav2Vec2Config"),
        },
    ),
}
