"""Tiny random checkpoints in the layouts of custom code: their fields, and classes of `transformers` that agree."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import safetensors.torch
import torch
import transformers

from tests.support.checkpoints import write_json
from tests.support.export.family_checkpoints import SIZES, save_family

# config.json of nomic-embed-text-v1.5, with small sizes.
NOMIC: dict[str, Any] = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "auto_map": {
        "AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
        "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",
    },
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 64,
    "n_layer": 2,
    "n_positions": 24,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 77,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 60,
}
# config.json of gte-base-en-v1.5, with small sizes.
NEW: dict[str, Any] = {
    **SIZES,
    "model_type": "new",
    "architectures": ["NewModel"],
    "auto_map": {
        "AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig",
        "AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel",
    },
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 2.0, "type": "ntk"},
    "rope_theta": 77,
    "type_vocab_size": 0,
    "unpad_inputs": False,
}


def save_nomic(folder: Path, **changes: Any) -> transformers.PreTrainedModel:
    """Save a Nomic BERT in the layout of its code."""
    act = {"geglu": "gelu"}.get(changes.get("activation_function", ""), "silu")
    eps = changes.get("layer_norm_epsilon", NOMIC["layer_norm_epsilon"])
    rope = {"rope_type": "default", "rope_theta": changes.get("rotary_emb_base", 77)}
    model = save_family(folder, "NomicBert", pad_token_id=0, hidden_act=act, layer_norm_eps=eps, rope_parameters=rope)
    write_json(folder / "config.json", {**NOMIC, **changes})
    return model


# config.json of jina-embeddings-v3, with small sizes.
TASKS = ["retrieval.query", "retrieval.passage", "separation", "classification", "text-matching"]
JINA: dict[str, Any] = {
    **SIZES,
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "auto_map": {
        "AutoConfig": "jinaai/xlm-roberta-flash-implementation--configuration_xlm_roberta.XLMRobertaFlashConfig",
        "AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA",
        "AutoModelForMaskedLM": "jinaai/xlm-roberta-flash-implementation--modeling_xlm_roberta.XLMRobertaForMaskedLM",
    },
    "emb_pooler": "mean",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "load_trained_adapters": True,
    "lora_adaptations": TASKS,
    "lora_alpha": 1,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "lora_rank": 4,
    "matryoshka_dimensions": [8, 16, 32],
    "pad_token_id": 1,
    "position_embedding_type": "rotary",
    "rotary_emb_base": 77.0,
    "task_instructions": {task: f"{task}: " for task in TASKS},
    "truncate_dim": None,
    "type_vocab_size": 1,
    "use_flash_attn": True,
}


def save_jina(folder: Path, adapter: str | None = None, **changes: Any) -> transformers.PreTrainedModel:
    """Save a jina-embeddings-v3 in the layout of its code; the returned model has one of the adapters in its weights.

    An adapter of a linear layer adds B A times alpha / rank to its weights, and one of a table of vectors A B.
    """
    rope = {"rope_type": "default", "rope_theta": changes.get("rotary_emb_base", 77.0)}
    words = changes.get("vocab_size", SIZES["vocab_size"])
    save_family(folder, "JinaEmbeddingsV3", pad_token_id=1, rope_parameters=rope, type_vocab_size=1, vocab_size=words)
    saved = safetensors.torch.load_file(folder / "model.safetensors")
    fields, tensors = {**JINA, **changes}, dict[str, torch.Tensor]()
    rank = fields["lora_rank"]
    for name, weight in list(saved.items()):
        module, _, kind = name.rpartition(".")
        if kind != "weight" or weight.ndim < 2:
            tensors[f"roberta.{name}"] = weight
            continue
        (rows, columns), is_table = weight.shape, name.startswith("embeddings.")
        shapes = ((rows, rank), (rank, columns)) if is_table else ((rank, columns), (rows, rank))
        a, b = (torch.randn(len(TASKS), *shape) / 4 for shape in shapes)
        prefix = f"roberta.{module}.parametrizations.weight"
        tensors |= {f"{prefix}.original": weight, f"{prefix}.0.lora_A": a, f"{prefix}.0.lora_B": b}
        if adapter is not None:
            task = TASKS.index(adapter)
            product = a[task] @ b[task] if is_table else b[task] @ a[task]
            saved[name] = weight + product * fields["lora_alpha"] / rank
    safetensors.torch.save_file(saved, folder / "model.safetensors")
    model = transformers.JinaEmbeddingsV3Model.from_pretrained(folder).eval()
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    write_json(folder / "config.json", fields)
    return model


# config.json of nomic-embed-text-v2-moe, with small sizes.
NOMIC_EXPERTS: dict[str, Any] = {
    **NOMIC,
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
    "activation_function": "gelu",
    "expert_choice_router": False,
    "ffn_div": 1,
    "layer_norm_epsilon": 1e-5,
    "moe_every_n_layers": 2,
    "moe_normalize_expert_weights": False,
    "moe_top_k": 2,
    "n_layer": 4,
    "num_experts": 4,
    "num_shared_experts": 0,
    "type_vocab_size": 1,
    "use_rms_norm": None,
}


class Formulas(torch.nn.Module):
    """The formulas of a model that no class of `transformers` computes; `tensors` have the names of its code."""

    EPS: ClassVar[str]
    fields: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = (self.tensors[f"{name}.{kind}"] for kind in ("weight", "bias"))
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, self.fields[self.EPS])

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]


_Model = TypeVar("_Model", bound=Formulas)


def _save_formulas(folder: Path, kind: Callable[[dict[str, Any]], _Model], fields: dict[str, Any]) -> _Model:
    torch.manual_seed(0)
    model = kind(fields)
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", fields)
    safetensors.torch.save_file(model.tensors, folder / "model.safetensors")
    return model


class NomicExperts(Formulas):
    """Nomic BERT with experts.

    Source: technical report of Nomic Embed v2, https://arxiv.org/abs/2502.07972, section 3, and the names of tensors of
    nomic-embed-text-v2-moe.
    """

    EPS = "layer_norm_epsilon"

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__()
        self.fields = fields
        d, inner = fields["n_embd"], fields["n_inner"]
        shapes = {
            "embeddings.word_embeddings.weight": (fields["vocab_size"], d),
            "embeddings.token_type_embeddings.weight": (fields["type_vocab_size"], d),
            **{f"emb_ln.{kind}": (d,) for kind in ("weight", "bias")},
        }
        for layer in range(fields["n_layer"]):
            linears = {"attn.Wqkv": (3 * d, d), "attn.out_proj": (d, d)}
            block = f"encoder.layers.{layer}"
            if self.has_experts(layer):
                rows = fields["num_experts"] * inner
                shapes |= {f"{block}.mlp.experts.mlp.{name}": (rows, d) for name in ("w1", "w2")}
                shapes |= {f"{block}.mlp.experts.bias": (d,)}
                shapes |= {f"{block}.mlp.router.layer.weight": (fields["num_experts"], d)}
            else:
                linears |= {"mlp.fc1": (inner, d), "mlp.fc2": (d, inner)}
            for name, shape in linears.items():
                shapes |= {f"{block}.{name}.weight": shape, f"{block}.{name}.bias": shape[:1]}
            shapes |= {f"{block}.norm{i}.{kind}": (d,) for i in (1, 2) for kind in ("weight", "bias")}
        self.tensors = {name: torch.randn(shape) / 2 for name, shape in shapes.items()}

    def has_experts(self, layer: int) -> bool:
        every: int = self.fields["moe_every_n_layers"]
        return every > 0 and layer % every == 1

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        words, types = (self.tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
        x = self._norm(words[ids[0]] + types[0], "emb_ln")
        for layer in range(self.fields["n_layer"]):
            block = f"encoder.layers.{layer}"
            x = self._norm(x + self._attend(x, f"{block}.attn"), f"{block}.norm1")
            y = self._experts(x, f"{block}.mlp") if self.has_experts(layer) else self._feed_forward(x, f"{block}.mlp")
            x = self._norm(x + y, f"{block}.norm2")
        return (x[None],)

    def _feed_forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self._linear(torch.nn.functional.gelu(self._linear(x, f"{name}.fc1")), f"{name}.fc2")

    def _experts(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Return the sum of the chosen experts of each row, times their probabilities, and one bias."""
        shape = self.fields["num_experts"], self.fields["n_inner"], self.fields["n_embd"]
        ups, downs = (self.tensors[f"{name}.experts.mlp.{each}"].view(shape) for each in ("w1", "w2"))
        rows = []
        for row in x:
            probabilities = (self.tensors[f"{name}.router.layer.weight"] @ row).softmax(0)
            chosen = probabilities.topk(self.fields["moe_top_k"]).indices
            parts = [probabilities[e] * (torch.nn.functional.gelu(ups[e] @ row) @ downs[e]) for e in chosen]
            rows.append(torch.stack(parts).sum(0))
        return torch.stack(rows) + self.tensors[f"{name}.experts.bias"]

    def _attend(self, x: torch.Tensor, name: str) -> torch.Tensor:
        heads = self.fields["n_head"]
        q, k, v = self._linear(x, f"{name}.Wqkv").view(len(x), 3, heads, -1).permute(1, 2, 0, 3)
        half = q.shape[2] // 2
        frequencies = self.fields["rotary_emb_base"] ** -(torch.arange(half) / half)
        angles = torch.arange(len(x))[:, None] * frequencies
        q, k = (
            torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)
            for a, b in (each.split(half, -1) for each in (q, k))
        )
        context = (q @ k.transpose(1, 2) / q.shape[2] ** 0.5).softmax(-1) @ v
        return self._linear(context.transpose(0, 1).flatten(1), f"{name}.out_proj")


def save_nomic_experts(folder: Path, **changes: Any) -> NomicExperts:
    """Save a Nomic BERT with experts, and return its formulas."""
    return _save_formulas(folder, NomicExperts, {**NOMIC_EXPERTS, **changes})


# config.json of jina-embeddings-v2-base-en, with small sizes; the numbers of heads are no power of 2.
JINA_V2: dict[str, Any] = {
    **SIZES,
    "model_type": "bert",
    "architectures": ["JinaBertForMaskedLM"],
    "auto_map": {
        "AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig",
        "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
        "AutoModelForMaskedLM": "jinaai/jina-bert-implementation--modeling_bert.JinaBertForMaskedLM",
        "AutoModelForSequenceClassification": (
            "jinaai/jina-bert-implementation--modeling_bert.JinaBertForSequenceClassification"
        ),
    },
    "attention_probs_dropout_prob": 0.0,
    "attn_implementation": "torch",
    "classifier_dropout": None,
    "emb_pooler": "mean",
    "feed_forward_type": "geglu",
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "model_max_length": 24,
    "num_attention_heads": 6,
    "hidden_size": 36,
    "pad_token_id": 0,
    "position_embedding_type": "alibi",
    "torch_dtype": "float32",
    "type_vocab_size": 2,
    "use_cache": True,
}


class JinaV2(Formulas):
    """jina-embeddings-v2.

    Sources: https://arxiv.org/abs/2310.19923, section 2, https://arxiv.org/abs/2108.12409, section 3, and the names of
    tensors of jina-embeddings-v2-base-en. The gate is the first half of `gated_layers`.
    """

    EPS = "layer_norm_eps"

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__()
        self.fields = fields
        d, inner = fields["hidden_size"], fields["intermediate_size"]
        norms, shapes = ["embeddings.LayerNorm"], {"embeddings.word_embeddings.weight": (fields["vocab_size"], d)}
        shapes["embeddings.token_type_embeddings.weight"] = (fields["type_vocab_size"], d)
        linears = {"pooler.dense": (d, d)}
        for layer in range(fields["num_hidden_layers"]):
            block = f"encoder.layer.{layer}"
            linears |= {f"{block}.attention.self.{name}": (d, d) for name in ("query", "key", "value")}
            linears |= {f"{block}.attention.output.dense": (d, d), f"{block}.mlp.wo": (d, inner)}
            shapes[f"{block}.mlp.gated_layers.weight"] = (2 * inner, d)
            norms += [f"{block}.attention.output.LayerNorm", f"{block}.mlp.layernorm"]
        for name, shape in {**linears, **dict.fromkeys(norms, (d,))}.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        self.tensors = {name: torch.randn(shape) / 2 for name, shape in shapes.items()}

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor]:
        words, types = (self.tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
        x = self._norm(words[ids[0]] + types[0], "embeddings.LayerNorm")
        for layer in range(self.fields["num_hidden_layers"]):
            block = f"encoder.layer.{layer}"
            attended = self._linear(self._attend(x, f"{block}.attention.self"), f"{block}.attention.output.dense")
            x = self._norm(x + attended, f"{block}.attention.output.LayerNorm")
            gates, values = (x @ self.tensors[f"{block}.mlp.gated_layers.weight"].T).chunk(2, -1)
            inner = torch.nn.functional.gelu(gates) * values
            x = self._norm(x + self._linear(inner, f"{block}.mlp.wo"), f"{block}.mlp.layernorm")
        return (x[None],)

    def _attend(self, x: torch.Tensor, name: str) -> torch.Tensor:
        heads, positions = self.fields["num_attention_heads"], torch.arange(len(x))
        q, k, v = (
            self._linear(x, f"{name}.{part}").view(len(x), heads, -1).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        # For six heads: the slopes of four heads, and two of those of eight heads.
        slopes = {6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3], 4: [2**-2, 2**-4, 2**-6, 2**-8]}[heads]
        biases = torch.tensor(slopes)[:, None, None] * (positions - positions[:, None]).abs()
        weights = (q @ k.transpose(1, 2) / q.shape[2] ** 0.5 - biases).softmax(-1)
        context: torch.Tensor = weights @ v
        return context.transpose(0, 1).flatten(1)


def save_jina_v2(folder: Path, **changes: Any) -> JinaV2:
    """Save a jina-embeddings-v2 in the layout of its code, and return its formulas."""
    return _save_formulas(folder, JinaV2, {**JINA_V2, **changes})


def save_new(folder: Path, kind: str = "Model", **changes: Any) -> transformers.PreTrainedModel:
    """Save a GTE in the layout of its code; the returned model has the frequencies that this code computes."""
    fields = {**NEW, **changes}
    settings = {name: fields[name] for name in ("hidden_act", "layer_norm_eps", "type_vocab_size")}
    model = save_family(
        folder, "Gte", kind, pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 77}, **settings
    )
    factor, width = (fields["rope_scaling"] or {}).get("factor", 1.0), 8
    frequencies = 1.0 / ((fields["rope_theta"] * factor) ** (torch.arange(0, width, 2).float() / width))
    model.base_model.rotary_emb.inv_freq = frequencies / factor ** (2 / width)
    write_json(folder / "config.json", fields)
    return model
