"""On genuine CUDA `import ditorch` changes nothing.

Without a GPU, the backend is chosen by hand: its device type alone decides. DITORCH_TEST_DEVICE=cuda runs these tests
where there is one, and a whole training, once with ditorch and once without.
"""

from __future__ import annotations

import os

import pytest

GENUINE = os.environ.get("DITORCH_TEST_DEVICE") == "cuda"

IMPORT = """
    import torch, torch.distributed, torch.multiprocessing, torch._dynamo, torch.utils.dlpack
    if torch.distributed.is_available():
        import torch.distributed.tensor
"""
CHOOSE = """
    import ditorch
    if sys.argv[1] == "by hand":
        from ditorch import discover
        from ditorch.backends.cuda import CUDA
        discover.choose = lambda: CUDA
        ditorch.install()
    assert ditorch.backend().name == "cuda"
"""


def run_with_ditorch(run_python, code):
    environment = {"DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "cuda"} if GENUINE else {}
    return run_python(code, "found" if GENUINE else "by hand", **environment)


def test_no_attribute_of_torch_is_another(run_python):
    code = f"""
    import sys
    {IMPORT}
    def attributes():
        found = {{}}
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] == "torch":
                for key, value in list(vars(module).items()):
                    found[name, key] = value
                    if type(value) is type and value.__module__ == name:
                        found.update({{(name, key, inner): each for inner, each in list(vars(value).items())}})
        return found
    before = attributes()
    {CHOOSE}
    after = attributes()
    own = ("__warningregistry__",)
    print(len(before), [key for key in before if after.get(key) is not before[key] and key[-1] not in own])
    """
    count, _, changed = run_with_ditorch(run_python, code).stdout.partition(" ")
    assert int(count) > 10_000
    assert changed == "[]\n"


def test_no_kernel_is_registered_and_no_mode_is_on(run_python):
    code = f"""
    import sys
    {IMPORT}
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
    def state():
        kernels = {{
            key: sorted(torch._C._dispatch_get_registrations_for_dispatch_key(key))
            for key in ("CUDA", "AutogradCUDA", "AutocastCUDA", "CPU", "PrivateUse1", "Python", "Meta")
        }}
        modes = len(_get_current_function_mode_stack()), len(_get_current_dispatch_mode_stack())
        return kernels, modes, torch._C._get_privateuse1_backend_name(), torch.cuda.is_initialized()
    before = state()
    {CHOOSE}
    print(state() == before)
    """
    assert run_with_ditorch(run_python, code).stdout == "True\n"


TRAINING = """
    import hashlib, os, sys, tempfile, torch
    if sys.argv[1] == "with ditorch":
        import ditorch
        assert ditorch.backend().name == "cuda"
    from torch import nn
    from torch.nn import functional
    import torch.distributed as dist

    torch.use_deterministic_algorithms(True, warn_only=True)

    def show(name, *values):
        for value in values:
            if torch.is_tensor(value):
                bits = value.detach().cpu().flatten().view(torch.uint8)  # flat: a scalar cannot be viewed as bytes
                value = hashlib.md5(bits.numpy().tobytes()).hexdigest()
            print(name, value)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)

        def forward(self, x):
            parts = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
            return x + functional.dropout(self.out(mixed.transpose(1, 2).flatten(2)), 0.1, self.training)

    torch.manual_seed(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    model = nn.Sequential(nn.Embedding(100, 64), Block(), Block(), nn.Linear(64, 100)).cuda()
    model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    tokens = torch.randint(0, 100, (4, 33), pin_memory=True).to("cuda", non_blocking=True)
    for step in range(3):
        with torch.autocast("cuda", torch.float16 if step else torch.bfloat16):
            loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        show("loss", loss)
    show("weights", *model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), f"{folder}/a.pt")
        show("file", *torch.load(f"{folder}/a.pt", map_location="cuda:0", weights_only=True).values())
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        show("random", torch.randn(1000, device="cuda"))
    graph, static = torch.cuda.CUDAGraph(), torch.ones(8, device="cuda")
    with torch.cuda.graph(graph):
        static.mul_(2)
    graph.replay()
    show("graph", static.tolist())
    show("names", tokens.device, torch.get_default_device(), dist.get_backend(), torch.cuda.get_device_name())
    show("repr", repr(tokens[0, :3]), type(torch.cuda.current_stream()), torch.cuda.memory_allocated())
    try:
        tokens.numpy()
    except TypeError as error:
        show("numpy", error)
    dist.destroy_process_group()
"""


@pytest.mark.skipif(not GENUINE, reason="DITORCH_TEST_DEVICE=cuda has a genuine GPU")
def test_a_training_is_the_same_to_the_last_bit(run_python):
    environment = {"DITORCH_DISABLE_MOCK": "0", "DITORCH_BACKEND": "cuda", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    plain, redirected = (
        run_python(TRAINING, how, **environment).stdout.splitlines() for how in ("plain", "with ditorch")
    )
    assert len(plain) > 20
    assert redirected == plain
