"""Small ONNX files, as optimum, sentence-transformers and PyTorch write them from a checkpoint."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from typing_extensions import override

from headwaiter_server.runtime.graph import open_session, session_options
from tests.support.checkpoints import VOCABULARY, randomize, save_bert, save_tokenizer
from tests.support.oracle import Array

MAX_TOKENS = 64
TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# The inputs and outputs of which only the first size depends on the batch.
_ONE_PER_SEQUENCE = ("sentence_embedding", "pixel_values")


class Pooled(nn.Module):
    """Gives rows and a vector of unit length, like the files of optimum's exporter for sentence-transformers."""

    def __init__(self, model: nn.Module, pooling: str = "mean", *, unit: bool = True, dense: bool = False) -> None:
        super().__init__()
        self.model, self.pooling, self.unit = model, pooling, unit
        self.dense = nn.Linear(32, 20) if dense else nn.Identity()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.model(input_ids, attention_mask, token_type_ids)[0]
        mask = attention_mask[:, :, None].float()
        if self.pooling == "mean":
            vectors = (rows * mask).sum(1) / mask.sum(1)
        elif self.pooling == "cls":
            vectors = rows[:, 0]
        else:
            vectors = torch.where(mask > 0, rows, -torch.inf).amax(1)
        vectors = self.dense(vectors)
        return rows, nn.functional.normalize(vectors, dim=-1) if self.unit else vectors


class FeatureRows(nn.Module):
    """Attends over rows of six features, except those of padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.projection = nn.Linear(6, 16)

    def forward(self, features: Tensor, attention_mask: Tensor) -> Tensor:
        rows: Tensor = self.projection(features)
        scores = (rows @ rows.transpose(1, 2) / 4).masked_fill(attention_mask[:, None] == 0, -1e9)
        return torch.tanh(rows + scores.softmax(-1) @ rows)


class OneSequenceRows(FeatureRows):
    """Runs on one sequence alone."""

    @override
    def forward(self, features: Tensor, attention_mask: Tensor) -> Tensor:
        return super().forward(features, attention_mask).reshape(1, features.shape[1], 16)


class SimilarRows(FeatureRows):
    """Gives rows that hardly differ, and the first one."""

    @override
    def forward(self, features: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        rows = 1 + 1e-3 * super().forward(features, attention_mask)
        return rows, rows[:, 0]


class FirstOutput(nn.Module):
    """Gives the first output of a model of transformers, and takes what the file is to take."""

    def __init__(self, model: nn.Module, inputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, *arguments: Tensor) -> Tensor:
        output: Tensor = self.model(**dict(zip(self.inputs, arguments, strict=True)))[0]
        return output


def write_onnx(
    module: nn.Module,
    path: Path,
    inputs: tuple[str, ...] = TEXT_INPUTS,
    outputs: tuple[str, ...] = ("last_hidden_state",),
    opset: int = 18,
    *,
    dynamic: bool = True,
    sequences: int = 2,
) -> Path:
    """Write a module as an ONNX file, traced with a batch of some sequences."""
    path.parent.mkdir(exist_ok=True, parents=True)
    ids = torch.randint(0, len(VOCABULARY), (sequences, 7), generator=torch.Generator().manual_seed(0))
    values = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
        "position_ids": torch.arange(7).expand(sequences, 7).clone(),
        "features": torch.ones(sequences, 7, 6),
        "pixel_values": torch.ones(sequences, 3, 12, 12),
    }
    module = module if isinstance(module, Pooled | FeatureRows) else FirstOutput(module, inputs)
    sizes = {0: "batch", 1: "sequence"}
    axes = {
        name: {i: size for i, size in sizes.items() if i == 0 or name not in _ONE_PER_SEQUENCE}
        for name in (*inputs, *outputs)
    }
    with warnings.catch_warnings():
        # The older exporter wrote most of the files that there are.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            tuple(values[name] for name in inputs),
            str(path),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes=axes if dynamic else None,
            opset_version=opset,
            dynamo=False,
        )
    return path


def save_files(folder: Path, opset: int = 18, **settings: Any) -> Path:
    """Save a BERT with its tokenizer and settings, and its ONNX file in place of its weights."""
    model = save_bert(folder, **settings)
    (folder / "model.safetensors").unlink()
    save_tokenizer(folder)
    return write_onnx(model, folder / "onnx" / "model.onnx", opset=opset)


def save_classifier(folder: Path, kind: str) -> transformers.PreTrainedModel:
    """Save a BERT with a head of three labels, without its weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
    labels = {0: "calm", 1: "glad", 2: "sad"}
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY), max_position_embeddings=MAX_TOKENS, id2label=labels, architectures=[kind], **sizes
    )
    model: transformers.PreTrainedModel = getattr(transformers, kind)(config).eval()
    randomize(model)
    config.save_pretrained(folder)
    return model


def run_file(path: Path, output: str, ids: Array, types: Array | None = None) -> NDArray[Any]:
    """Return what ONNX Runtime alone gives for one sequence, in int8 with kernels that are exact on every processor."""
    session = open_session(path, "cpu", session_options(None))
    feeds = {
        "input_ids": ids[None],
        "attention_mask": np.ones((1, len(ids)), np.int64),
        "token_type_ids": np.zeros((1, len(ids)), np.int64) if types is None else types[None],
        "position_ids": np.arange(len(ids))[None],
    }
    (result,) = session.run([output], {each.name: feeds[each.name] for each in session.get_inputs()})
    return result[0]  # type: ignore[no-any-return]


def with_weights_beside(path: Path) -> Path:
    """Move the weights of a file to another file beside it, and return that file."""
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    return path.with_name("model.onnx_data")


def save_branches(path: Path) -> Path:
    """Save a file of features whose operator If has weights of its own, in a file of a folder `weights`."""
    rng = np.random.default_rng(0)
    branches = dict[str, Any]()
    for name, columns in (("then_branch", 64), ("else_branch", 1)):
        weight = numpy_helper.from_array(rng.standard_normal((6, columns), np.float32), f"{name}_weight")
        nodes = [helper.make_node("MatMul", ["features", weight.name], [f"{name}_rows"])]
        rows = helper.make_tensor_value_info(f"{name}_rows", TensorProto.FLOAT, None)
        branches[name] = helper.make_graph(nodes, name, [], [rows], [weight])
    zero = numpy_helper.from_array(np.array(0), "zero")
    nodes = [
        helper.make_node("Size", ["features"], ["size"]),
        helper.make_node("Greater", ["size", "zero"], ["has_rows"]),
        helper.make_node("If", ["has_rows"], ["token_embeddings"], **branches),
    ]
    features, rows = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "sequence", width])
        for name, width in (("features", 6), ("token_embeddings", 64))
    )
    graph = helper.make_graph(nodes, "rows", [features], [rows], [zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (path.parent / "weights").mkdir(parents=True)
    onnx.save(model, path, save_as_external_data=True, location="weights/rows.bin", size_threshold=0)
    return path
