"""A configuration of InternEvo as small as a test; the variables choose the parallelism (docs/internevo.md)."""

import os

JOB_NAME, model_type = "tiny", "INTERNLM2"
data = {
    "type": "tokenized",
    "seq_len": 64,
    "micro_num": 2,
    "micro_bsz": 1,
    "valid_every": 0,
    "total_steps": 10,
    "use_packed_dataset": False,
    "pack_sample_into_one": False,
    "skip_batches": "",
    "rampup_batch_size": "",
    "min_length": 0,
    "train_folder": None,
    "valid_folder": None,
    "empty_cache_and_diag_interval": 200,
    "diag_outlier_ratio": 1.1,
}
model = {
    "checkpoint": False,
    "num_attention_heads": 4,
    "num_kv_attention_heads": 2,
    "embed_split_hidden": True,
    "vocab_size": 1024,
    "embed_grad_scale": 1,
    "parallel_output": True,
    "hidden_size": 64,
    "num_layers": 2,
    "mlp_ratio": 2,
    "no_bias": True,
    "apply_post_layer_norm": False,
    "dtype": "torch.bfloat16",
    "norm_type": "rmsnorm",
    "layer_norm_epsilon": 1e-5,
    "use_flash_attn": False,
    "qk_interleaved": False,
    "num_chunks": 1,
}
parallel = {
    "zero1": {"size": int(os.environ.get("ZERO1", -1))},
    "tensor": {"size": int(os.environ.get("TENSOR", 1)), "mode": os.environ.get("MODE", "mtp")},
    "pipeline": {"size": int(os.environ.get("PIPELINE", 1)), "interleaved_overlap": False},
    "weight": {"size": int(os.environ.get("WEIGHT", 1)), "overlap": False},
}
ckpt = {"enable_save_ckpt": False, "auto_resume": False, "load_ckpt_info": None}
grad_scaler = {
    "fp16": {"initial_scale": 2**16, "min_scale": 1, "growth_interval": 1000},
    "growth_factor": 2,
    "backoff_factor": 0.5,
    "max_scale": 2**24,
    "hysteresis": 2,
}
hybrid_zero_optimizer = {
    "overlap_sync_grad": True,
    "overlap_sync_param": False,
    "reduce_bucket_size": 512 * 1024 * 1024,
    "clip_grad_norm": 1.0,
}
loss = {"label_smoothing": 0}
adam = {"lr": 1e-3, "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_beta2_c": 0, "adam_eps": 1e-8, "weight_decay": 0.01}
lr_scheduler = {"total_steps": 10, "init_steps": 0, "warmup_ratio": 0.01, "eta_min": 1e-5, "last_epoch": -1}
beta2_scheduler = {"init_beta2": 0.95, "c": 0, "cur_iter": -1}
use_fp32_norm = cudnn_deterministic = cudnn_benchmark = False
monitor = {
    "alert": {
        "enable_feishu_alert": False,
        "feishu_alert_address": None,
        "light_monitor_address": None,
        "alert_file_path": "alert.log",
    },
    "tensorboard": {"queue_max_length": 10},
}
