"""Random numbers: the device has a stream of its own, seeded with everything else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

DRAWS = {
    "rand": lambda: torch.rand(8, device="sim"),
    "randn": lambda: torch.randn(8, device="sim"),
    "randint": lambda: torch.randint(0, 1 << 30, (8,), device="sim"),
    "randperm": lambda: torch.randperm(64, device="sim"),
    "normal_": lambda: torch.empty(8, device="sim").normal_(),
    "uniform_": lambda: torch.empty(8, device="sim").uniform_(),
    "bernoulli": lambda: torch.bernoulli(torch.full((64,), 0.5, device="sim")),
    "exponential_": lambda: torch.empty(8, device="sim").exponential_(),
    "multinomial": lambda: torch.multinomial(torch.ones(64, device="sim"), 32),
    "dropout": lambda: F.dropout(torch.ones(64, device="sim")),
    "alpha_dropout": lambda: F.alpha_dropout(torch.ones(64, device="sim"), training=True),
    "rand_like": lambda: torch.rand_like(torch.ones(8, device="sim")),
    "rrelu": lambda: F.rrelu(-torch.ones(64, device="sim"), training=True),
    "attention dropout": lambda: F.scaled_dot_product_attention(
        *[torch.ones(1, 1, 8, 8, device="sim")] * 3, dropout_p=0.5
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_manual_seed_reaches_the_device(name):
    draw = DRAWS[name]
    torch.manual_seed(3)
    first = draw()
    second = draw()
    torch.manual_seed(3)
    assert torch.equal(draw().cpu(), first.cpu())
    assert not torch.equal(second.cpu(), first.cpu())


@pytest.mark.parametrize("name", DRAWS)
def test_drawing_on_the_device_does_not_move_the_cpus_stream(name):
    before = torch.get_rng_state()
    DRAWS[name]()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", DRAWS)
def test_drawing_on_the_cpu_does_not_move_the_devices_stream(name):
    torch.manual_seed(3)
    undisturbed = DRAWS[name]()
    torch.manual_seed(3)
    torch.randn(7)
    F.dropout(torch.ones(5))
    assert torch.equal(DRAWS[name]().cpu(), undisturbed.cpu())


def test_each_device_has_its_own_stream():
    torch.manual_seed(3)
    first = torch.rand(4, device="sim:0")
    torch.manual_seed(3)
    torch.rand(4, device="sim:1")
    assert torch.equal(torch.rand(4, device="sim:0").cpu(), first.cpu())


def test_dropout_drops_and_scales():
    dropped = F.dropout(torch.ones(1000, device="sim"), p=0.25)
    kept = dropped != 0
    assert dropped[kept].unique().tolist() == pytest.approx([1 / 0.75])
    assert 0.65 < kept.float().mean().item() < 0.85
    assert F.dropout(torch.ones(5, device="sim"), p=1.0).tolist() == [0] * 5
    assert F.dropout(torch.ones(5, device="sim"), training=False).tolist() == [1] * 5


def test_dropouts_gradient_uses_the_same_mask():
    inputs = torch.ones(100, device="sim", requires_grad=True)
    dropped = F.dropout(inputs, 0.5)
    dropped.sum().backward()
    assert torch.equal(inputs.grad.cpu(), dropped.detach().cpu())


def test_a_generator_repeats_itself():
    generator = torch.Generator(device="sim").manual_seed(5)
    assert generator.device.type == "sim"
    assert generator.initial_seed() == 5
    first = torch.rand(4, device="sim", generator=generator)
    generator.manual_seed(5)
    assert torch.equal(torch.rand(4, device="sim", generator=generator).cpu(), first.cpu())


def test_a_generators_state_can_be_kept():
    generator = torch.Generator(device="sim")
    state = generator.get_state()
    first = torch.randn(4, device="sim", generator=generator)
    generator.set_state(state)
    assert torch.equal(torch.randn(4, device="sim", generator=generator).cpu(), first.cpu())
    twin = torch.Generator(device="sim")
    twin.set_state(state)
    assert torch.equal(torch.randn(4, device="sim", generator=twin).cpu(), first.cpu())


def test_a_generator_leaves_the_default_one_alone():
    before = torch.sim.get_rng_state()
    torch.rand(4, device="sim", generator=torch.Generator(device="sim"))
    assert torch.equal(torch.sim.get_rng_state(), before)


def test_a_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match="Expected a 'sim' device type for generator but found 'cpu'"):
        torch.rand(3, device="sim", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="sim:0 and cpu"):
        torch.rand(3, generator=torch.Generator(device="sim"))


def test_the_devices_state_can_be_kept():
    state = torch.sim.get_rng_state()
    first = torch.rand(3, device="sim")
    torch.sim.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="sim").cpu(), first.cpu())


def test_the_state_of_all_devices_can_be_kept():
    states = torch.sim.get_rng_state_all()
    assert len(states) == 2
    first = [torch.rand(3, device=f"sim:{index}").cpu() for index in range(2)]
    torch.sim.set_rng_state_all(states)
    assert all(torch.equal(torch.rand(3, device=f"sim:{index}").cpu(), first[index]) for index in range(2))


def test_the_device_module_seeds():
    torch.sim.manual_seed_all(11)
    assert torch.sim.initial_seed() == 11
    first = torch.rand(3, device="sim:1")
    torch.sim.manual_seed(12)
    assert torch.sim.initial_seed() == 12
    assert torch.sim.default_generators[1].initial_seed() == 11
    torch.sim.manual_seed_all(11)
    assert torch.equal(torch.rand(3, device="sim:1").cpu(), first.cpu())


def test_seeding_at_random_gives_another_stream():
    torch.sim.seed()
    seed = torch.sim.initial_seed()
    torch.sim.seed()
    assert torch.sim.initial_seed() != seed


@pytest.mark.parametrize(
    "seed",
    [
        0,
        -1,
        2**63 - 1,
        2**63,
        2**64 - 1,
    ],
)
def test_every_seed_that_the_cpu_takes_is_taken(seed):
    torch.manual_seed(seed)  # torch.seed() makes seeds of 64 bits
    assert torch.sim.initial_seed() == torch.initial_seed() == seed % 2**64


def test_forked_random_state_is_restored():
    with torch.random.fork_rng(devices=[0], device_type="sim"):
        inside = torch.rand(3, device="sim")
    assert torch.equal(torch.rand(3, device="sim").cpu(), inside.cpu())


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_draws_the_same_dropout_again(reentrant):
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).to("sim")
    inputs = torch.ones(4, 8, device="sim", requires_grad=True)
    torch.manual_seed(1)
    output = checkpoint(layer, inputs, use_reentrant=reentrant)
    torch.manual_seed(9)
    output.sum().backward()
    recomputed, inputs.grad = inputs.grad, None
    torch.manual_seed(1)
    layer(inputs).sum().backward()
    assert torch.equal(recomputed.cpu(), inputs.grad.cpu())


def test_a_seed_gives_the_cpus_numbers():
    torch.manual_seed(4)
    host = torch.randn(100)
    torch.manual_seed(4)
    assert torch.equal(torch.randn(100, device="sim").cpu(), host)


def test_a_state_is_a_seed_and_an_offset_as_on_cuda():
    generator = torch.Generator("sim").manual_seed(7)
    state = generator.get_state()
    assert state.dtype == torch.uint8
    assert state[:8].view(torch.int64).item() == 7
    assert state[8:].view(torch.int64).item() == 0
    first = torch.rand(3, generator=generator, device="sim")
    assert generator.get_state()[8:].view(torch.int64).item() > 0
    second = torch.rand(3, generator=generator, device="sim")
    assert not torch.equal(first, second)
    generator.set_state(state)
    assert torch.equal(torch.rand(3, generator=generator, device="sim"), first)
    with pytest.raises(RuntimeError, match="16 bytes, a seed and an offset"):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))


def test_the_first_numbers_of_a_seed_are_the_cpus():
    torch.manual_seed(11)
    assert torch.equal(torch.randn(100, device="sim").cpu(), torch.randn(100))
