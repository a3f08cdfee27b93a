"""NeRF: rays of a camera, coarse and fine networks, training steps, with default tensors on the device as its main does."""

import numpy
import run_nerf
import torch

torch.set_default_tensor_type("torch.cuda.FloatTensor")
arguments = run_nerf.config_parser().parse_args(
    "--expname a --basedir . --datadir . --N_samples 16 --N_importance 16 --perturb 0 --use_viewdirs --netdepth 4 "
    "--netwidth 32 --netdepth_fine 4 --netwidth_fine 32 --no_reload --raw_noise_std 0".split()
)
arguments.ft_path = None
__import__("os").makedirs("a", exist_ok=True)
training, testing, _, variables, optimizer = run_nerf.create_nerf(arguments)
with torch.no_grad():
    for index, parameter in enumerate(variables):  # the initialization is drawn on the device
        values = torch.linspace(-1, 1, parameter.numel(), device="cpu") * (1 + index % 3)
        parameter.copy_(values.sin().reshape(parameter.shape) / parameter.shape[-1] ** 0.5)
camera = numpy.array([[20.0, 0, 8], [0, 20.0, 8], [0, 0, 1]])
pose = torch.eye(4)[:3]
target = torch.linspace(0, 1, 16 * 16 * 3).reshape(16, 16, 3)
for _ in range(3):
    image, _, _, extra = run_nerf.render(16, 16, camera, chunk=128, c2w=pose, near=2.0, far=6.0, ndc=False, **training)
    loss = run_nerf.img2mse(image, target) + run_nerf.img2mse(extra["rgb0"], target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.5f}")
with torch.no_grad():
    image, *_ = run_nerf.render(16, 16, camera, chunk=64, c2w=pose, near=2.0, far=6.0, ndc=True, **testing)
print(f"result {image.mean().item():.5f}")
