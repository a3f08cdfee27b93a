"""Libraries that train models, told to use the GPU: transformers' Trainer (with accelerate) and Lightning."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow


def needs(*libraries: str) -> pytest.MarkDecorator:
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]  # importing them changes torch
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


TRAINER = """
    import json, torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    tokens = torch.randint(0, 64, (16, 12), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": text, "labels": text} for text in tokens]

    def losses(name, **options):
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, eos_token_id=0)
        arguments = TrainingArguments(
            name, max_steps=4, per_device_train_batch_size=8, logging_steps=1, learning_rate=1e-2, **options
        )
        assert (str(arguments.device), arguments.n_gpu) == ("cuda:0", 1)
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, eval_dataset=data)
        trainer.train()
        logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return [*logged, trainer.evaluate()["eval_loss"]]

    print(json.dumps({
        "plain": losses("plain"),
        "fp16": losses("fp16", fp16=True),
        "bf16": losses("bf16", bf16=True),
        "bf16, checkpointing": losses("checkpointing", bf16=True, gradient_checkpointing=True),
    }))
"""

EXPERTS = """
    import json, torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, MixtralConfig, MixtralForCausalLM

    common = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
    mixtral = MixtralConfig(**common, num_key_value_heads=2, num_local_experts=4)
    deepseek = DeepseekV3Config(
        **common, num_key_value_heads=4, n_routed_experts=8, n_group=2, topk_group=1, num_experts_per_tok=2,
        moe_intermediate_size=16, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8, v_head_dim=8, qk_nope_head_dim=8,
        first_k_dense_replace=1,
    )

    def losses(make, config, device, dtype):
        torch.manual_seed(0)
        model = make(config).to(device, dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        tokens = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(0)).to(device)
        seen = []
        for _ in range(3):
            loss = model(input_ids=tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    print(json.dumps({
        f"{config.model_type}, {dtype}, {device}": losses(make, config, device, dtype)
        for make, config in ((MixtralForCausalLM, mixtral), (DeepseekV3ForCausalLM, deepseek))
        for dtype in (torch.float32, torch.bfloat16)
        for device in ("cuda", "cpu")
    }))
"""

LIGHTNING = """
    import json, sys, torch
    import pytorch_lightning as lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

        def training_step(self, batch, index):
            assert batch[0].is_cuda
            loss = self.layers(batch[0]).pow(2).mean()
            self.log("loss", loss, sync_dist=True)
            self.log("examples", len(batch[0]), sync_dist=True)  # a whole number, averaged
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def train(precision, devices=1, strategy="auto"):
        lightning.seed_everything(0)
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 8)), batch_size=4)
        trainer = lightning.Trainer(
            accelerator="gpu", devices=devices, strategy=strategy, precision=precision, max_epochs=1, logger=False,
            enable_progress_bar=False, enable_model_summary=False,
        )
        trainer.fit(Model(), data)
        where = str(trainer.strategy.root_device)
        return [where, trainer.global_step, *(trainer.callback_metrics[name].item() for name in ("loss", "examples"))]

    if __name__ == "__main__":
        if sys.argv[1] == "one":
            print(json.dumps({precision: train(precision) for precision in ("32-true", "16-mixed", "bf16-mixed")}))
        else:
            result = json.dumps(train("16-mixed", 2, "ddp"))
            print(result + "\\n", end="", flush=True)
"""

TENSOR_PARALLEL = """
    import json, os, sys, torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if sys.argv[1] == "save":
        torch.manual_seed(0)
        sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2)
        LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).save_pretrained("saved")
    plan = {"tp_plan": "auto"} if "RANK" in os.environ else {}
    model = LlamaForCausalLM.from_pretrained("saved", dtype=torch.float32, **plan)
    if not plan:
        model.cuda()
    tokens = torch.arange(8, device="cuda")[None]
    loss = model(tokens, labels=tokens).loss.item()
    made = model.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0).tolist()
    kind = type(model.model.layers[0].self_attn.q_proj.weight).__name__
    found = {"loss": loss, "made": made, "kind": kind, "device": model.device.type}
    print(json.dumps(found) + "\\n", end="", flush=True)
"""


@pytest.fixture
def run_program(tmp_path):
    def run(source: str, *arguments: str, launcher: tuple[str, ...] = (), **environment: str) -> list:
        (tmp_path / "program.py").write_text(textwrap.dedent(source))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "ditorch", "run", *launcher, "program.py", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=250,
            env={
                **os.environ,
                "DITORCH_DISABLE_MOCK": "0",
                "DITORCH_BACKEND": "sim",
                **environment,
            },
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line[:1] in "[{" and '"' in line]

    return run


@needs("transformers", "accelerate")
def test_transformers_trainer(run_program):
    [losses] = run_program(TRAINER, CUDA_VISIBLE_DEVICES="0")
    for name, values in losses.items():
        assert values == pytest.approx(losses["plain"], rel=1e-2), name
        assert values[-1] < values[0]
    assert losses["fp16"] != losses["plain"] != losses["bf16"]
    assert losses["bf16, checkpointing"] == losses["bf16"]


@needs("transformers")
def test_transformers_mixtures_of_experts_train_as_on_the_cpu(run_program):
    [losses] = run_program(EXPERTS)
    for name, values in losses.items():
        assert values == losses[name.replace("cuda", "cpu")], name
        assert values[-1] < values[0]


@needs("pytorch_lightning")
def test_lightning_on_one_device(run_program):
    [results] = run_program(LIGHTNING, "one")
    plain = results["32-true"]
    assert plain[:2] == ["cuda:0", 8]
    for precision, result in results.items():
        assert result == [*plain[:2], pytest.approx(plain[2], abs=0.01), 4], precision
    assert results["16-mixed"][2] != plain[2] != results["bf16-mixed"][2]


@needs("pytorch_lightning")
def test_lightning_with_two_processes(run_program):
    first, second = sorted(run_program(LIGHTNING, "two"))
    assert (first[0], second[0]) == ("cuda:0", "cuda:1")
    assert first[1:] == second[1:]
    assert first[1] == 4
    assert first[3] == 4


@needs("transformers")
def test_tensor_parallelism_of_transformers(run_program):
    """The group is bound to a device, and then split."""
    [one] = run_program(TENSOR_PARALLEL, "save")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    expected = {"loss": pytest.approx(one["loss"], rel=1e-5), "made": one["made"], "kind": "DTensor", "device": "cuda"}
    assert run_program(TENSOR_PARALLEL, "load", launcher=launcher) == [expected, expected]
