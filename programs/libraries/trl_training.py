"""trl: supervised fine-tuning, DPO, reward modelling and GRPO of a tiny Llama."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

words = ["[PAD]", "[UNK]", "[EOS]", *"a the red blue old cat dog house sees likes".split()]
inner = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
inner.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]")
SMALL = LlamaConfig(
    vocab_size=len(words), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=64, pad_token_id=0, bos_token_id=2, eos_token_id=2, num_labels=1,
)  # fmt: skip
TRAINING = {
    "max_steps": 3, "per_device_train_batch_size": 4, "logging_steps": 1, "report_to": "none", "bf16": False,
    "learning_rate": 1e-2, "use_cpu": not torch.cuda.is_available(), "disable_tqdm": True, "save_strategy": "no",
    "gradient_checkpointing": False,
}  # fmt: skip


def model(kind=LlamaForCausalLM):
    torch.manual_seed(0)
    return kind(SMALL)


def show(name, trainer, compared=True):
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            value = float(entry["loss"])
            assert value == value
            if compared:
                print(f"{name} final {value:.4f}")


texts = Dataset.from_dict({"text": ["a red cat sees the old dog", "the dog likes a blue house"] * 8})
pairs = Dataset.from_dict(
    {"prompt": ["a red cat"] * 16, "chosen": [" sees the dog"] * 16, "rejected": [" likes house"] * 16}
)
show(
    "SFT",
    SFTTrainer(
        model(),
        SFTConfig("sft", max_length=16, packing=True, **TRAINING),
        train_dataset=texts,
        processing_class=tokenizer,
    ),
)
show("DPO", DPOTrainer(model(), model(), DPOConfig("dpo", **TRAINING), train_dataset=pairs, processing_class=tokenizer))
show(
    "reward",
    RewardTrainer(
        model(LlamaForSequenceClassification),
        RewardConfig("reward", **TRAINING),
        train_dataset=pairs,
        processing_class=tokenizer,
    ),
)
group = GRPOConfig("grpo", num_generations=4, max_completion_length=8, **TRAINING)
prompts = Dataset.from_dict({"prompt": ["a red cat", "the old dog"] * 8})
trainer = GRPOTrainer(
    model(),
    lambda completions, **_: [float(len(c)) for c in completions],
    group,
    train_dataset=prompts,
    processing_class=tokenizer,
)
show("GRPO", trainer, compared=False)
