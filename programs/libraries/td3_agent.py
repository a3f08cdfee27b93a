"""TD3, DDPG and the paper's own DDPG: critics, delayed policies and target networks, from a made-up replay buffer."""

import DDPG
import numpy
import OurDDPG
import TD3
import torch
import utils

states = numpy.random.default_rng(0).normal(size=(64, 6)).astype("float32")
for name, agent in (
    ("TD3", lambda: TD3.TD3(6, 2, 1.0, policy_noise=0.0)),
    ("DDPG", lambda: DDPG.DDPG(6, 2, 1.0)),
    ("OurDDPG", lambda: OurDDPG.DDPG(6, 2, 1.0)),
):
    torch.manual_seed(0)
    numpy.random.seed(0)
    policy, buffer = agent(), utils.ReplayBuffer(6, 2, max_size=64)
    for step in range(63):
        buffer.add(
            states[step], policy.select_action(states[step]), states[step + 1], states[step].sum(), step % 9 == 0
        )
    for _ in range(4):
        policy.train(buffer, batch_size=16)
    policy.save(name)
    again = agent()
    again.load(name)
    for each in (policy, again):
        print(f"{name} result {abs(each.select_action(states[0])).sum():.6f}")
