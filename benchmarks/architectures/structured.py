"""Graphs, tables, points, agents, and learning to learn."""

from __future__ import annotations

import torch
from benchmarks.architectures.program import Program, normal, whole
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Graph(nn.Module):
    """Messages along edges: weights by a softmax over the neighbours of each node, sums by scattering."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.into, self.score, self.out = nn.Linear(8, width), nn.Linear(2 * width, 1), nn.Linear(width, 4)

    def loss(self, nodes: Tensor, edges: Tensor) -> Tensor:
        hidden, (source, target) = self.into(nodes), edges
        for _ in range(2):
            score = F.leaky_relu(self.score(torch.cat([hidden[source], hidden[target]], -1))).squeeze(-1).float()
            largest = score.new_full((len(nodes),), -torch.inf).scatter_reduce(0, target, score, "amax")
            weight = torch.exp(score - largest[target])
            total = torch.zeros_like(largest).index_add(0, target, weight)
            message = hidden[source].float() * (weight / total[target].clamp(min=1e-9)).unsqueeze(-1)
            place = target.unsqueeze(-1).expand_as(message)
            hidden = F.elu(torch.zeros_like(hidden, dtype=torch.float32).scatter_add(0, place, message))
        degree = torch.bincount(target, minlength=len(nodes)).clamp(min=1)
        pooled = torch.zeros(4, hidden.shape[1], device=nodes.device).index_add_(
            0, torch.arange(len(nodes), device=nodes.device) % 4, hidden / degree.unsqueeze(-1)
        )
        return F.multi_margin_loss(self.out(pooled).float(), torch.arange(4, device=nodes.device))


class Tables(nn.Module):
    """DLRM: bags of rows, products of all pairs, a click or none."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(30, width, mode=mode) for mode in ("sum", "mean", "max"))
        self.dense = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 6, 24), nn.ReLU(), nn.Linear(24, 1))

    def loss(self, numbers: Tensor, rows: Tensor, clicks: Tensor) -> Tensor:
        dense = self.dense(torch.log1p(numbers.abs()))
        starts = torch.arange(0, rows.shape[1], 4, device=rows.device)
        found = [bag(one, starts) for bag, one in zip(self.bags, rows)]
        every = torch.stack([dense, *(one.to(dense.dtype) for one in found)], 1)
        pairs = torch.bmm(every, every.transpose(1, 2))
        left, right = torch.tril_indices(4, 4, -1, device=rows.device)
        score = self.top(torch.cat([dense, pairs[:, left, right]], 1)).squeeze(-1)
        return F.binary_cross_entropy_with_logits(score, clicks, pos_weight=torch.tensor(2.0, device=rows.device))


class Points(nn.Module):
    """DGCNN: the nearest neighbours of each point, the largest of what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(6, 16, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2))
        self.second = nn.Sequential(nn.Conv1d(16, 24, 1, bias=False), nn.BatchNorm1d(24), nn.LeakyReLU(0.2))
        self.head = nn.Linear(48, 5)

    def loss(self, points: Tensor, kind: Tensor) -> Tensor:
        inner = -2 * points @ points.transpose(1, 2)
        squares = points.square().sum(-1, keepdim=True)
        near = (-(squares + inner + squares.transpose(1, 2))).topk(4, -1).indices
        numbers = torch.arange(len(points), device=points.device)[:, None, None]
        around = points[numbers, near]
        centre = points[:, :, None].expand_as(around)
        hidden = self.first(torch.cat([around - centre, centre], -1).permute(0, 3, 1, 2)).amax(-1)
        hidden = self.second(hidden)
        pooled = torch.cat([F.adaptive_max_pool1d(hidden, 1), F.adaptive_avg_pool1d(hidden, 1)], 1).squeeze(-1)
        return F.cross_entropy(self.head(pooled), kind)


class Actor(nn.Module):
    """An agent that draws its actions: returns, advantages, entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 4), nn.Linear(32, 1)

    def loss(self, states: Tensor, rewards: Tensor) -> Tensor:
        hidden = self.body(states)
        policy = torch.distributions.Categorical(logits=self.actor(hidden).float())
        actions, values = policy.sample(), self.critic(hidden).squeeze(-1).float()
        left, returns = torch.zeros_like(rewards[:, 0]), []
        for place in reversed(range(rewards.shape[1])):
            left = rewards[:, place] + 0.9 * left
            returns.insert(0, left)
        advantage = torch.stack(returns, 1) - values
        usual = (advantage.detach() - advantage.detach().mean()) / (advantage.detach().std() + 1e-8)
        return (
            -(policy.log_prob(actions) * usual).mean() + 0.5 * advantage.pow(2).mean() - 0.01 * policy.entropy().mean()
        )


class Soft(nn.Module):
    """SAC and PPO: actions by a squashed normal distribution, the smaller of two critics, clipped ratios."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
        self.critics = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)) for _ in range(2))
        self.temperature = nn.Parameter(torch.tensor(-1.0))

    def loss(self, states: Tensor, rewards: Tensor) -> Tensor:
        mean, spread = self.policy(states).float().chunk(2, -1)
        policy = torch.distributions.Normal(mean, spread.clamp(-5, 2).exp())
        drawn = policy.rsample()
        action = torch.tanh(drawn)
        likely = (policy.log_prob(drawn) - torch.log(1 - action.pow(2) + 1e-6)).sum(-1)
        judged = [critic(torch.cat([states.float(), action], -1)).squeeze(-1).float() for critic in self.critics]
        target = rewards + 0.99 * torch.minimum(*judged).detach()
        ratio = torch.exp(likely - likely.detach().roll(1, -1).clamp(-3, 3))
        clipped = torch.minimum(ratio * rewards, ratio.clamp(0.8, 1.2) * rewards).mean()
        return (
            sum(F.smooth_l1_loss(one, target) for one in judged)
            - clipped
            + (self.temperature.exp() * likely - torch.min(*judged)).mean()
        )


class Learner(nn.Module):
    """MAML: the loss after some steps of learning, differentiated through them."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            (normal(1, 24) * 0.5, torch.zeros(24), normal(24, 1, seed=3) * 0.2, torch.zeros(1))
        )

    def predicted(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        return torch.addmm(weights[3], torch.tanh(torch.addmm(weights[1], x, weights[0])), weights[2])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        total = x.new_zeros((), dtype=torch.float32)
        for task in range(2):
            weights = list(self.weights)
            for _ in range(2):
                first = F.mse_loss(self.predicted(x[task, :8], weights).float(), y[task, :8])
                gradients = torch.autograd.grad(first, weights, create_graph=True)
                weights = [one - 0.05 * gradient for one, gradient in zip(weights, gradients)]
            total = total + F.mse_loss(self.predicted(x[task, 8:], weights).float(), y[task, 8:])
        return total


class Physics(nn.Module):
    """A network that must satisfy an equation: second derivatives with respect to where it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Softplus(), nn.Linear(24, 1))

    def loss(self, places: Tensor, values: Tensor) -> Tensor:
        places = places.detach().requires_grad_()
        u = self.layers(places).float()
        (slope,) = torch.autograd.grad(u.sum(), places, create_graph=True)
        (curve,) = torch.autograd.grad(slope[:, 1].sum(), places, create_graph=True)
        equation = slope[:, :1] + u * slope[:, 1:] - 0.01 * curve[:, 1:]
        return equation.square().mean() + F.mse_loss(u, values)


class Dynamics(nn.Module):
    """A neural ODE by Runge-Kutta steps, with memory of a Hopfield kind."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 4))
        self.memory = nn.Parameter(normal(6, 4))

    def slope(self, state: Tensor, time: float) -> Tensor:
        recalled = torch.softmax(state @ self.memory.t().to(state.dtype), -1) @ self.memory.to(state.dtype)
        return self.field(F.pad(state, (0, 1), value=time)) + 0.1 * recalled

    def loss(self, start: Tensor, end: Tensor) -> Tensor:
        state, step = start, 0.25
        for number in range(4):
            time = number * step
            first = self.slope(state, time)
            second = self.slope(state + step / 2 * first, time + step / 2)
            third = self.slope(state + step / 2 * second, time + step / 2)
            fourth = self.slope(state + step * third, time + step)
            state = state + step / 6 * (first + 2 * second + 2 * third + fourth)
        return (state - end).abs().pow(1.5).mean()


def graph() -> Tensor:
    return whole(20, 2, 60)


PROGRAMS = (
    Program("GNN", "tuned", Graph, lambda: [normal(20, 8), graph()]),
    Program("DLRM", "held-out", Tables, lambda: [normal(8, 6), whole(30, 3, 32), whole(2, 8).float()]),
    Program("point cloud", "tuned", Points, lambda: [normal(3, 24, 3), whole(5, 3)]),
    Program("actor and critic", "held-out", Actor, lambda: [normal(4, 6, 6), normal(4, 6, seed=4)]),
    Program("soft actor", "tuned", Soft, lambda: [normal(12, 6), normal(12, seed=4)]),
    Program("MAML", "held-out", Learner, lambda: [normal(2, 16, 1), normal(2, 16, 1, seed=4)], ("checkpointed",)),
    Program("physics", "tuned", Physics, lambda: [normal(20, 2), normal(20, 1, seed=4)], ("checkpointed",)),
    Program("neural ODE", "held-out", Dynamics, lambda: [normal(8, 4), normal(8, 4, seed=4)]),
)
