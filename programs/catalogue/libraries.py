"""Short programs that use a library as its documentation shows; they lie in programs/libraries."""

from __future__ import annotations

from ..record import library

# Trainers take every device that they see, and a batch for each.
ONE = "CUDA_VISIBLE_DEVICES=0"

LIBRARIES = (
    library(
        "transformers-trainer",
        "Trainer on GPT-2: plain, resumed, bf16, fp16",
        "transformers",
        "accelerate",
        setting=ONE,
        tolerance=2e-3,
    ),
    library("transformers-decoders", "training steps of 24 decoder families", "transformers"),
    library("transformers-moe", "8 mixture-of-experts families, every implementation of experts", "transformers"),
    library("transformers-encoders", "14 encoders, 9 encoder-decoders", "transformers"),
    library("transformers-vision", "15 vision families", "transformers"),
    library("transformers-speech", "wav2vec2 and HuBERT with CTC, Whisper, HiFi-GAN, AST", "transformers"),
    library("transformers-generate", "greedy, beams, caches, assisted", "transformers", tolerance=1e-3),
    library("transformers-state-space", "Mamba, Mamba-2, Bamba, Jamba …", "transformers"),
    library("accelerate-loop", "accumulation, clipping, gather_for_metrics, saved state", "accelerate"),
    library(
        "accelerate-big-model", "device map over two devices and the CPU, offloading", "accelerate", "transformers"
    ),
    library(
        "peft-adapters", "LoRA, DoRA, PiSSA, AdaLoRA, VeRA, IA3, LoHa, OFT, prompt, prefix", "peft", "transformers"
    ),
    library(
        "trl-training",
        "SFT with packing, DPO, reward, GRPO",
        "trl",
        "transformers",
        "datasets",
        setting=ONE,
        numbers=r"final (-?[\d.]+)",
        tolerance=1e-3,
    ),
    library("diffusers-pipelines", "DDPM, DDIM, DPM-Solver, latent UNet, DiT, Flux", "diffusers"),
    library("timm-models", "13 architectures, LAMB, EMA, mixup", "timm", "torchvision"),
    library(
        "lightning-trainer",
        "Trainer: validation, checkpoints, bf16, weight averaging",
        "pytorch-lightning",
        tolerance=2e-3,
    ),
    library("torchmetrics-measures", "classification, regression, retrieval, image, text", "torchmetrics"),
    library("torch-geometric-graphs", "15 convolutions, pooling, batches", "torch-geometric"),
    library("sentence-transformers-training", "contrastive loss, search, mining", "sentence-transformers"),
    library("gpytorch-regression", "exact and variational Gaussian processes", "gpytorch", tolerance=1e-3),
    library("botorch-optimization", "fit, expected improvement, q-batches", "botorch", tolerance=1e-2),
    library(
        "pyro-inference",
        "SVI, NUTS, enumeration, flow",
        "pyro-ppl",
        tolerance=5e-2,
        reason="draws random numbers on the device",
    ),
    library("torchdiffeq-ode", "neural ODE by the adjoint method, 9 solvers", "torchdiffeq"),
    library(
        "torchsde-sde",
        "Ito SDE, adjoint, Brownian interval",
        "torchsde",
        tolerance=5e-2,
        reason="draws random numbers on the device",
    ),
    library("x-transformers-models", "12 options of a decoder, encoder-decoder", "x-transformers"),
    library("vit-pytorch-models", "9 vision transformers", "vit-pytorch", numbers=r"(?:loss|result) (-?[\d.]+)"),
    library("kornia-images", "27 image operations and gradients", "kornia"),
    library("monai-segmentation", "5 volumetric networks, sliding windows, measures", "monai"),
    library(
        "segmentation-models-unet", "10 decoders and their losses", "segmentation-models-pytorch", "timm", "torchvision"
    ),
    library(
        "ultralytics-yolo",
        "YOLO11 trained by its own trainer, and predicting",
        "ultralytics",
        "torchvision",
        numbers=r"final loss ([\d.]+)",
        tolerance=2e-3,
    ),
    library("ignite-engine", "trainer, evaluator, measures, EMA", "pytorch-ignite"),
    library("skorch-classifier", "a scikit-learn pipeline and a grid search", "skorch"),
    library("stable-baselines3-agents", "PPO, A2C, DQN, SAC", "stable-baselines3"),
    library("torchrl-ppo", "PPO loss, GAE, replay buffer, tensordict", "torchrl"),
    library("fastai-learner", "fit_one_cycle, fp16, predictions", "fastai", "torchvision", tolerance=1e-3),
    library("einops-layers", "rearrange, reduce, einsum, EinMix, gradients", "einops"),
    library("open-clip-training", "CLIP and SigLIP losses, ResNet tower", "open-clip-torch", "torchvision"),
    library(
        "denoising-diffusion-unet", "2-D and 1-D diffusion, DDIM sampling", "denoising-diffusion-pytorch", "ema-pytorch"
    ),
    library("zuko-flows", "spline, autoregressive and coupling flows", "zuko"),
    library("captum-attribution", "six attribution methods", "captum"),
    library("metric-learning-losses", "8 losses, a miner", "pytorch-metric-learning"),
    library("pytorch-optimizer-steps", "steps of 12 optimizers", "pytorch-optimizer"),
    library("vector-quantize-codebooks", "5 quantizers", "vector-quantize-pytorch"),
    library(
        "torchao-quantization", "int8 weights and activations, 8-bit AdamW, float8 training", "torchao", tolerance=1e-2
    ),
    library("e3nn-products", "tensor products, spherical harmonics, norm", "e3nn"),
    library("litgpt-training", "five families of GPT", "litgpt"),
    library("image-quality-measures", "9 measures and gradients", "piq", "pytorch-msssim"),
    library("geoopt-manifolds", "Riemannian Adam and SGD on four manifolds", "geoopt"),
    library("schedule-free-optimizers", "steps of twelve optimizers", "schedulefree", "heavyball"),
    library("rwkv-generation", "scripted inference, layers on several devices and in 8 bits", "rwkv"),
    library("opacus-private-training", "gradients of every sample, hooks and functorch", "opacus"),
    library("torchattacks-adversaries", "adversarial pictures by twelve attacks", "torchattacks", "torchvision"),
    library("tabnet-tables", "classification, regression, explanations", "pytorch-tabnet"),
    library(
        "hqq-quantization",
        "layers of 8 to 1 bits and gradients through them",
        "hqq",
        "termcolor",
        tolerance=2e-2,
        reason="half precision on CUDA alone",
    ),
    library("deepctr-models", "twelve models of clicks, fitted by its own loop", "deepctr-torch", "scikit-learn"),
    library(
        "bitsandbytes-four-bits",
        "a layer of 4-bit weights, refused",
        "bitsandbytes",
        refusal="not available in CPU-only version of bitsandbytes",
    ),
)
