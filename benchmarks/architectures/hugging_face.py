"""Models of transformers, made small by their configurations; none where transformers is not installed."""

from __future__ import annotations

import importlib.util
from typing import Any

from benchmarks.architectures.program import Data, Program, normal, whole
from torch import Tensor, nn

WORDS = 64
_SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_PICTURE = {"image_size": 16, "patch_size": 4}


class Model(nn.Module):
    """One of transformers, by the name of its class and what its configuration says."""

    def __init__(self, kind: str, config: str, options: dict[str, Any], inputs: str) -> None:
        super().__init__()
        import transformers

        self.model = getattr(transformers, kind)(getattr(transformers, config)(**options))
        self.inputs = inputs

    def loss(self, *data: Tensor) -> Tensor:
        given: dict[str, Any] = dict(zip(self.inputs.split(), data))
        if "labels" not in given:
            given["return_loss"] = True
        loss: Tensor = self.model(**given).loss
        return loss


def _words() -> Data:
    tokens = whole(WORDS - 2, 2, 14) + 1
    return [tokens, tokens]


def _pictures() -> Data:
    return [normal(3, 3, 16, 16), whole(2, 3)]


_LANGUAGE = "input_ids labels"
_VISION = "pixel_values labels"


def programs() -> tuple[Program, ...]:
    if importlib.util.find_spec("transformers") is None:
        return ()
    return tuple(
        Program(f"transformers {name}", half, _maker(kind, config, options, inputs), data)
        for name, half, kind, config, options, inputs, data in _MODELS
    )


def _maker(kind: str, config: str, options: dict[str, Any], inputs: str) -> Any:
    return lambda: Model(kind, config, options, inputs)


_MODELS: tuple[tuple[str, str, str, str, dict[str, Any], str, Any], ...] = (
    ("BERT", "held-out", "BertForMaskedLM", "BertConfig", _SMALL, _LANGUAGE, _words),
    (
        "GPT-2", "tuned", "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}, _LANGUAGE, _words,
    ),
    (
        "T5", "tuned", "T5ForConditionalGeneration", "T5Config",
        {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4,
         "decoder_start_token_id": 0}, _LANGUAGE, _words,
    ),
    ("Llama", "held-out", "LlamaForCausalLM", "LlamaConfig", _GROUPED, _LANGUAGE, _words),
    (
        "Qwen3", "tuned", "Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": 8}, _LANGUAGE, _words,
    ),
    (
        "Mixtral", "held-out", "MixtralForCausalLM", "MixtralConfig",
        {**_GROUPED, "num_local_experts": 4, "output_router_logits": True}, _LANGUAGE, _words,
    ),
    (
        "DeepSeek-V3", "tuned", "DeepseekV3ForCausalLM", "DeepseekV3Config",
        {**_SMALL, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
         "v_head_dim": 8, "qk_nope_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
         "topk_group": 1, "moe_intermediate_size": 24, "first_k_dense_replace": 1}, _LANGUAGE, _words,
    ),
    (
        "Mamba", "held-out", "MambaForCausalLM", "MambaConfig",
        {"vocab_size": WORDS, "hidden_size": 24, "state_size": 4, "num_hidden_layers": 1, "time_step_rank": 4},
        _LANGUAGE, lambda: [one[:, :8] for one in _words()],
    ),
    (
        "ViT", "tuned", "ViTForImageClassification", "ViTConfig",
        {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, **_PICTURE},
        _VISION, _pictures,
    ),
    (
        "CLIP", "held-out", "CLIPModel", "CLIPConfig",
        {"text_config": {**_SMALL, "eos_token_id": WORDS - 1}, "projection_dim": 16,
         "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
                           "num_attention_heads": 4, **_PICTURE}},
        "input_ids pixel_values", lambda: [whole(WORDS - 2, 3, 8) + 1, normal(3, 3, 16, 16)],
    ),
    (
        "Whisper", "tuned", "WhisperForConditionalGeneration", "WhisperConfig",
        {"vocab_size": WORDS, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 8,
         "max_source_positions": 16, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2, "decoder_start_token_id": 1}, "input_features labels",
        lambda: [normal(2, 8, 32), whole(WORDS - 3, 2, 6) + 3],
    ),
    (
        "wav2vec 2.0", "held-out", "Wav2Vec2ForCTC", "Wav2Vec2Config",
        {**_SMALL, "vocab_size": 16, "conv_dim": (16, 16), "conv_kernel": (8, 4), "conv_stride": (4, 2),
         "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
         "mask_time_prob": 0.0, "ctc_loss_reduction": "mean"}, "input_values labels",
        lambda: [normal(2, 200), whole(12, 2, 4) + 1],
    ),
    (
        "ConvNeXt", "held-out", "ConvNextForImageClassification", "ConvNextConfig",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 2}, _VISION, _pictures,
    ),
    (
        "MobileNetV2", "tuned", "MobileNetV2ForImageClassification", "MobileNetV2Config",
        {"image_size": 32, "depth_multiplier": 0.2, "finegrained_output": True}, _VISION,
        lambda: [normal(2, 3, 32, 32), whole(2, 2)],
    ),
)  # fmt: skip
