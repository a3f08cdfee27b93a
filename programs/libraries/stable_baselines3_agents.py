"""Stable-Baselines3: PPO, A2C, DQN and SAC on classic control, saved and loaded."""

import torch
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.evaluation import evaluate_policy

device = "cuda" if torch.cuda.is_available() else "cpu"
AGENTS = {
    "PPO": (PPO, "CartPole-v1", {"n_steps": 64, "batch_size": 32, "n_epochs": 2}),
    "A2C": (A2C, "CartPole-v1", {}),
    "DQN": (DQN, "CartPole-v1", {"learning_starts": 50}),
    "SAC": (SAC, "Pendulum-v1", {"learning_starts": 50, "batch_size": 32}),
}
for name, (kind, environment, options) in AGENTS.items():
    agent = kind("MlpPolicy", environment, device=device, seed=0, **options).learn(200)
    agent.save(name)
    agent = kind.load(name, device=device)
    reward, _ = evaluate_policy(
        agent, agent.get_env() or agent._wrap_env(__import__("gymnasium").make(environment)), n_eval_episodes=1
    )
    assert next(agent.policy.parameters()).is_cuda == torch.cuda.is_available()
    state = torch.zeros(1, *agent.observation_space.shape).numpy()
    print(f"{name} result {float(agent.predict(state, deterministic=True)[0].shape[0]):.1f}")
