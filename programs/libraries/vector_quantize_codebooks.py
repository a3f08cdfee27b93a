"""vector-quantize-pytorch: codebooks with k-means and cosine similarity, residual, finite scalar and lookup-free."""

import torch
from vector_quantize_pytorch import FSQ, LFQ, ResidualVQ, VectorQuantize

device = "cuda" if torch.cuda.is_available() else "cpu"
vectors = torch.randn(1, 64, 16, generator=torch.Generator().manual_seed(0)).to(device)
QUANTIZERS = {
    "plain": lambda: VectorQuantize(16, 32),
    "cosine": lambda: VectorQuantize(16, 32, use_cosine_sim=True),
    "residual": lambda: ResidualVQ(dim=16, codebook_size=32, num_quantizers=2),
    "finite scalar": lambda: FSQ([8, 5, 5], dim=16),
    "lookup-free": lambda: LFQ(dim=16, codebook_size=2**4),
}
for name, make in QUANTIZERS.items():
    torch.manual_seed(0)
    quantized = make().to(device).eval()(vectors)[0]
    print(f"{name} result {quantized.abs().mean().item():.5f}")
