"""Programs of public repositories, run from a checkout as they are."""

from __future__ import annotations

from ..record import Program, of

RANDOM = "draws random numbers on the device"
RANKS = "its ranks take a GPU each"
SMALL_GPT = "--block_size=32 --batch_size=4 --n_layer=2 --n_head=2 --n_embd=32 --dropout=0.0"

nanogpt = of("karpathy/nanoGPT", "3adf61e1")
mingpt = of("karpathy/minGPT", "37baab7")
llama2_c = of("karpathy/llama2.c", "350e04f")
cleanrl = of("vwxyzjn/cleanrl", "fe8d8a03", packages=("gymnasium", "tyro", "tensorboard"))
vision = of("pytorch/vision", "e6f04004f0", packages=("torchvision",))
timm = of("huggingface/pytorch-image-models", "aa4b5850", packages=("timm", "torchvision"))
internevo = of(
    "InternLM/InternEvo",
    "58f723a",
    packages=(
        "transformers<4.47",
        "datasets<4",
        "sentencepiece",
        "einops",
        "boto3",
        "pynvml",
        "gputil",
        "py-libnuma",
        "pyecharts",
        "tensorboard",
        "pillow",
    ),
    numbers=r" loss=([\d.]+)",
    uncompared=RANKS,
)

REPOSITORIES: tuple[Program, ...] = (
    nanogpt(
        "nanogpt",
        "training in bfloat16 with gradient accumulation and evaluation",
        f"python train.py config/train_shakespeare_char.py --device={{device}} --compile=False --max_iters=6 "
        f"--eval_interval=3 --eval_iters=2 --log_interval=1 --dtype=bfloat16 --gradient_accumulation_steps=2 {SMALL_GPT}",
        data=("nanogpt data/shakespeare_char",),
        tolerance=2e-3,
        reason="bfloat16",
    ),
    nanogpt(
        "nanogpt-compile",
        "the same with torch.compile",
        f"python train.py config/train_shakespeare_char.py --device={{device}} --compile=True --max_iters=4 "
        f"--eval_interval=3 --eval_iters=1 --log_interval=1 --dtype=float32 --gradient_accumulation_steps=1 {SMALL_GPT}",
        data=("nanogpt data/shakespeare_char",),
    ),
    nanogpt(
        "nanogpt-ddp",
        "two ranks with DDP over nccl",
        "torchrun --standalone --nproc_per_node=2 train.py config/train_shakespeare_char.py --compile=False --max_iters=4 "
        f"--eval_interval=3 --eval_iters=1 --log_interval=1 --dtype=float32 --gradient_accumulation_steps=2 {SMALL_GPT}",
        data=("nanogpt data/shakespeare_char",),
        uncompared=RANKS,
    ),
    mingpt(
        "mingpt-adder",
        "GPT learns to add",
        "python projects/adder/adder.py --trainer.max_iters=20 --model.model_type=gpt-nano",
        tolerance=0.3,
        reason=RANDOM,
        numbers=r"train loss ([\d.]+)",
    ),
    llama2_c(
        "llama2-c",
        "train.py, a tiny Llama",
        "python train.py --device={device} --dtype=float32 --compile=False --vocab_source=custom --vocab_size=512 --max_seq_len=32 --batch_size=4 "
        "--dim=32 --n_layers=2 --n_heads=4 --n_kv_heads=2 --max_iters=4 --eval_interval=2 --eval_iters=1 --log_interval=1",
        data=("shorts data/tok512/data00.bin 8192", "shorts data/tok512/data01.bin 8192"),
        packages=("sentencepiece",),
        numbers=r"\| loss ([\d.]+)",
    ),
    Program(
        "pygcn",
        "graph convolutions with a sparse adjacency",
        "python pygcn/train.py --epochs=10 --dropout=0",
        repository="tkipf/pygcn",
        commit="1600b5b",
        data=("cora ../data/cora",),
        packages=("scipy",),
    ),
    Program(
        "pytorch-unet",
        "U-Net with amp and Dice loss",
        "python train.py --epochs=1 --batch-size=1 --scale=0.5 --classes=2 --validation=25",
        repository="milesial/Pytorch-UNet",
        commit="21d7850",
        data=("masks data 12",),
        packages=("wandb", "torchvision"),
        numbers=r"Dice score: (?:tensor\()?([\d.e-]+)",
        tolerance=1e-2,
    ),
    cleanrl(
        "cleanrl-ppo",
        "PPO",
        "python cleanrl/ppo.py --total-timesteps=256 --num-steps=32",
        numbers=r"SPS: (\d)",
        uncompared="it prints its speed only",
    ),
    cleanrl(
        "cleanrl-dqn",
        "DQN",
        "python cleanrl/dqn.py --total-timesteps=300 --learning-starts=100",
        numbers=r"SPS: (\d)",
        uncompared="it prints its speed only",
    ),
    vision(
        "vision-classification",
        "references/classification with EMA and label smoothing",
        "python train.py --device={device} --data-path=pictures --model=resnet18 --epochs=1 --batch-size=4 --lr=0.001 --workers=0 --print-freq=1 --model-ema --label-smoothing=0.1 --val-resize-size=64 --val-crop-size=64 --train-crop-size=64",
        folder="references/classification",
        data=("images pictures/train 6 4", "images pictures/val 6 4"),
        numbers=r" loss: ([\d.]+)",
        tolerance=1e-2,
    ),
    vision(
        "vision-detection",
        "references/detection: Faster R-CNN with regions of interest and suppressed boxes, COCO's measures",
        "python train.py --device={device} --data-path=coco --dataset=coco --model=fasterrcnn_mobilenet_v3_large_320_fpn --epochs=1 "
        "--batch-size=2 --lr=0.001 --workers=0 --print-freq=1 --aspect-ratio-group-factor=-1",
        folder="references/detection",
        data=("coco coco",),
        packages=("torchvision", "pycocotools"),
        numbers=r" loss\w*: ([\d.]+)",
        tolerance=0.2,
        reason=RANDOM,
    ),
    timm(
        "timm-train",
        "timm's train.py, made-up pictures",
        "python train.py --data-dir=pictures --model=resnet10t --num-classes=3 --epochs=1 --batch-size=4 --img-size=64 --workers=1 --device={device} --opt=adamw --lr=1e-3 --log-interval=1 --warmup-epochs=0 --no-prefetcher",
        data=("images pictures/train", "images pictures/val"),
        numbers=r"Loss: +([\d.]+)",
        tolerance=1e-2,
    ),
    Program(
        "whisper",
        "decoding and transcription with word timestamps, random weights",
        "python {libraries}/whisper_transcription.py",
        repository="openai/whisper",
        commit="c0d2f62",
        packages=("tiktoken", "numba"),
        tolerance=2e-2,
        reason="half precision",
    ),
    Program(
        "segment-anything",
        "prompts and masks of a small model",
        "python {libraries}/segment_anything_masks.py",
        repository="facebookresearch/segment-anything",
        commit="dca509f",
        packages=("torchvision",),
    ),
    Program(
        "detr",
        "ResNet-50 DETR: matcher, losses, training step",
        "python {libraries}/detr_detection.py",
        repository="facebookresearch/detr",
        commit="29901c5",
        packages=("torchvision", "scipy"),
        tolerance=1e-3,
    ),
    Program(
        "clip",
        "training loss, half precision weights",
        "python {libraries}/clip_half.py",
        repository="openai/CLIP",
        commit="d05afc4",
        packages=("torchvision", "ftfy"),
        tolerance=2e-2,
        reason="half precision",
    ),
    Program(
        "gpt-fast",
        "generation with a static cache, int8 weights",
        "python {libraries}/gpt_fast_generation.py",
        repository="pytorch-labs/gpt-fast",
        commit="32971d3",
        tolerance=1e-3,
    ),
    Program(
        "llama3",
        "model parallel Llama 3 with bfloat16 default tensors",
        "python {libraries}/llama3_generation.py",
        repository="meta-llama/llama3",
        commit="a0940f9",
        packages=("fairscale", "tiktoken"),
        only_cuda=True,
        tolerance=2e-2,
        reason="bfloat16",
    ),
    Program(
        "mamba-minimal",
        "training steps of a selective scan",
        "python {libraries}/mamba_minimal_training.py",
        repository="johnma2006/mamba-minimal",
        commit="03de542",
        packages=("einops", "transformers"),
    ),
    Program(
        "stylegan2-ada",
        "generator, discriminator, R1, path length, augmentation",
        "python {libraries}/stylegan2_ada_training.py",
        repository="NVlabs/stylegan2-ada-pytorch",
        commit="d72cc7d",
        only_cuda=True,
        tolerance=1e-3,
    ),
    Program(
        "megatron-core",
        "tensor parallel GPT in two ranks, a distributed checkpoint",
        "torchrun --standalone --nproc_per_node=2 examples/run_simple_mcore_train_loop.py",
        repository="NVIDIA/Megatron-LM",
        commit="5be9626709",
        packages=("einops", "pybind11", "triton"),
        numbers=r"'lm loss': tensor\(([\d.]+)",
        uncompared=RANKS,
    ),
    internevo(
        "internevo-zero1",
        "InternLM 2 in two ranks, the optimizer's state split (docs/internevo.md)",
        "torchrun --master_addr=::1 --master_port=29711 --nproc_per_node=2 train.py "
        "--config {libraries}/internevo_tiny.py --launcher torch",
    ),
    internevo(
        "internevo-tensor",
        "the same, tensor parallel",
        "TENSOR=2 torchrun --master_addr=::1 --master_port=29712 --nproc_per_node=2 train.py "
        "--config {libraries}/internevo_tiny.py --launcher torch",
    ),
)
