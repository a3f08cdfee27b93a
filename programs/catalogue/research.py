"""Code that came with papers, and training frameworks: short programs that use it from a checkout as it is."""

from __future__ import annotations

from typing import Any

from ..record import Program


def of_checkout(
    name: str, what: str, repository: str, commit: str, script: str, *packages: str, **more: Any
) -> Program:
    """A program in libraries/ that imports what lies in a checkout."""
    command = f"{more.pop('setting', '')} python {{libraries}}/{script}.py".strip()
    return Program(name, what, command, packages, repository, commit, **more)


RESEARCH: tuple[Program, ...] = (
    Program(
        "pygat",
        "graph attention",
        "python train.py --epochs=4 --dropout=0 --hidden=4 --nb_heads=2",
        repository="Diego999/pyGAT",
        commit="3664f2d",
        data=("cora data/cora",),
        packages=("scipy",),
        numbers=r"loss_(?:train|val): ([\d.]+)",
    ),
    Program(
        "pygat-sparse",
        "graph attention with its own sparse product",
        "python train.py --epochs=3 --dropout=0 --hidden=4 --nb_heads=2 --sparse",
        repository="Diego999/pyGAT",
        commit="3664f2d",
        data=("cora data/cora",),
        packages=("scipy",),
        numbers=r"loss_(?:train|val): ([\d.]+)",
    ),
    of_checkout(
        "pointnet",
        "PointNet and PointNet++, farthest point sampling",
        "yanx27/Pointnet_Pointnet2_pytorch",
        "eb64fe0",
        "pointnet_clouds",
    ),
    of_checkout(
        "nerf",
        "rays, two networks, default tensors on the device",
        "yenchenlin/nerf-pytorch",
        "63a5a63",
        "nerf_rendering",
        "imageio",
        "configargparse",
        "opencv-python-headless",
        only_cuda=True,
    ),
    of_checkout(
        "hifi-gan",
        "vocoder against five discriminators, weight norm",
        "jik876/hifi-gan",
        "4769534",
        "hifi_gan_training",
        "matplotlib",
    ),
    of_checkout(
        "xlstm",
        "sLSTM and mLSTM blocks; asks for CUDA's compiler when imported, refused",
        "NX-AI/xlstm",
        "032a6fb",
        "xlstm_stack",
        "omegaconf",
        refusal="CUDA_HOME environment variable is not set",
    ),
    of_checkout(
        "flow-matching",
        "three kinds of paths, optimal transport, an ODE, a U-Net",
        "atong01/conditional-flow-matching",
        "cacd4dc",
        "flow_matching",
        "pot",
        "torchdiffeq",
    ),
    of_checkout(
        "guided-diffusion",
        "class-conditional U-Net, classifier guidance, DDIM",
        "openai/guided-diffusion",
        "22e0df8",
        "guided_diffusion_training",
    ),
    of_checkout("edm", "three preconditioned U-Nets", "NVlabs/edm", "008a4e5", "edm_denoising"),
    of_checkout(
        "s4",
        "state spaces by complex kernels and FFT",
        "state-spaces/s4",
        "e757cef",
        "s4_state_space",
        "einops",
        "scipy",
    ),
    of_checkout(
        "nanochat",
        "GPT with sliding windows, compiled Muon, generation",
        "karpathy/nanochat",
        "92d63d4",
        "nanochat_training",
        setting="NANOCHAT_DTYPE=float32",
        tolerance=1e-3,
    ),
    of_checkout(
        "llm-c",
        "GPT-2 and Llama 3, weights and gradients in files",
        "karpathy/llm.c",
        "f1e2ace",
        "llm_c_models",
        "tiktoken",
    ),
    of_checkout("dinov2", "DINO, iBOT and KoLeo losses", "facebookresearch/dinov2", "b8931f7", "dinov2_losses"),
    of_checkout(
        "ijepa",
        "predictor of masked blocks in bfloat16 autocast",
        "facebookresearch/ijepa",
        "52c1ae9",
        "ijepa_predictor",
        tolerance=1e-2,
    ),
    of_checkout(
        "time-series-library",
        "forecasts of twelve models",
        "thuml/Time-Series-Library",
        "4e938a1",
        "time_series_models",
        "einops",
        "reformer-pytorch",
        "pywavelets",
        tolerance=1e-3,
    ),
    of_checkout(
        "attention-is-all-you-need",
        "encoder-decoder, warm-up, beam search",
        "jadore801120/attention-is-all-you-need-pytorch",
        "132907d",
        "attention_is_all_you_need",
    ),
    of_checkout(
        "mmengine",
        "Runner with checkpoints and resuming",
        "open-mmlab/mmengine",
        "25434293",
        "mmengine_runner",
        "addict",
        "yapf",
        "termcolor",
    ),
    of_checkout(
        "liger-kernel",
        "Triton kernels of a Llama and its losses",
        "linkedin/Liger-Kernel",
        "ead96b61",
        "liger_kernels",
        "triton",
        "transformers",
        folder="src",
        uncompared="its kernels need a device",
    ),
)
