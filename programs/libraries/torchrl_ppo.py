"""TorchRL and tensordict: PPO's loss and advantages, a replay buffer, memory-mapped and stacked tensordicts."""

import tempfile

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

device = "cuda" if torch.cuda.is_available() else "cpu"
draw = torch.Generator().manual_seed(0)


def random(*size):
    return torch.randn(size, generator=draw).to(device)


torch.manual_seed(0)
policy = TensorDictModule(MLP(4, 3, num_cells=[16]), in_keys=["observation"], out_keys=["logits"])
actor = ProbabilisticActor(
    policy, in_keys=["logits"], distribution_class=torch.distributions.Categorical, return_log_prob=True
).to(device)
critic = ValueOperator(MLP(4, 1, num_cells=[16]), in_keys=["observation"]).to(device)
false = torch.zeros(8, 5, 1, dtype=torch.bool, device=device)
steps = TensorDict(
    {"observation": random(8, 5, 4), "action": torch.ones(8, 5, dtype=torch.long, device=device), "next": {
        "observation": random(8, 5, 4), "reward": random(8, 5, 1), "done": false, "terminated": false.clone()}},
    batch_size=[8, 5], device=device,
)  # fmt: skip
with torch.no_grad():
    steps["action_log_prob"] = actor.get_dist(steps).log_prob(steps["action"])
GAE(gamma=0.99, lmbda=0.95, value_network=critic)(steps)
print(f"advantage result {steps['advantage'].abs().mean().item():.5f}")
losses = ClipPPOLoss(actor, critic)(steps.reshape(-1))
total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
total.backward()
print(f"PPO loss {total.item():.5f}")
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100, device=device), batch_size=16)
buffer.extend(steps.reshape(-1))
assert buffer.sample()["observation"].is_cuda == torch.cuda.is_available()
mapped = steps.cpu().memmap(tempfile.mkdtemp())
print(f"mapped result {mapped.to(device)['observation'].norm().item():.5f}")
print(f"stacked result {torch.stack([steps, steps], 0).view(-1)['observation'].norm().item():.5f}")
