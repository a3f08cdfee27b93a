"""Sparse tensors: their parts lie on the device, and results and gradients have the CPU's bits."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC) tensor support is in beta state:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning"),
]

LAYOUTS = {
    "coo": lambda dense: dense.to_sparse(),
    "csr": lambda dense: dense.to_sparse_csr(),
    "csc": lambda dense: dense.to_sparse_csc(),
    "bsr": lambda dense: dense.to_sparse_bsr((2, 2)),
}


def matrix(rows=4, columns=6):
    torch.manual_seed(0)
    dense = torch.randn(rows, columns)
    return dense * (dense.abs() > 0.8)


def coo(device):
    """Not coalesced: one place stands twice in it."""
    places, values = torch.tensor([[0, 1, 1, 1], [2, 0, 2, 2]]), torch.tensor([3.0, 4.0, 5.0, 0.5])
    return torch.sparse_coo_tensor(places.to(device), values.to(device), (2, 3))


def parts(tensor):
    """A result as dense tensors on the CPU."""
    if isinstance(tensor, (tuple, list)):
        return [part for item in tensor for part in parts(item)]
    return [(tensor.to_dense() if tensor.layout is not torch.strided else tensor).detach().cpu()]


def same_bits(compute):
    device, host = (parts(compute(device)) for device in ("sim", "cpu"))
    torch.testing.assert_close(device, host, rtol=0, atol=0)


OPERATIONS = {
    "to_dense": lambda device: coo(device).to_dense(),
    "coalesce": lambda device: coo(device).coalesce().values(),
    "add": lambda device: coo(device) + coo(device) * 2,
    "dense + sparse": lambda device: torch.ones(2, 3, device=device) + coo(device),
    "dense added in place": lambda device: torch.ones(2, 3, device=device).add_(coo(device), alpha=0.1),
    "mul by a dense one": lambda device: coo(device).coalesce() * torch.full((2, 3), 0.3, device=device),
    "sparse @ dense": lambda device: coo(device) @ torch.linspace(0, 1, 6, device=device).view(3, 2),
    "sparse @ sparse": lambda device: torch.sparse.mm(coo(device), coo(device).t()),
    "addmm": lambda device: torch.sparse.addmm(
        torch.ones(2, 2, device=device), coo(device), torch.ones(3, 2, device=device), beta=0.5
    ),
    "softmax": lambda device: torch.sparse.softmax(coo(device), 1),
    "sum": lambda device: torch.sparse.sum(coo(device), 1),
    "transpose": lambda device: coo(device).t(),
    "index_select": lambda device: coo(device).index_select(0, torch.tensor([1, 0], device=device)),
    "sparse_mask": lambda device: torch.full((2, 3), 0.7, device=device).sparse_mask(coo(device).coalesce()),
    "cat": lambda device: torch.cat([coo(device), coo(device)]),
    "norm": lambda device: coo(device).coalesce().norm(),
    "zeros": lambda device: torch.zeros(2, 2, layout=torch.sparse_coo, device=device),
    "in place": lambda device: coo(device).mul_(3).neg_(),
    "its values in place": lambda device: (tensor := coo(device), tensor._values().mul_(2))[0],
    "sampled_addmm": lambda device: torch.sparse.sampled_addmm(
        torch.eye(3, device=device).to_sparse_csr(), torch.ones(3, 2, device=device), torch.ones(2, 3, device=device)
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_the_cpus_bits(name):
    same_bits(OPERATIONS[name])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_dense_tensor_becomes_sparse_and_dense_again(layout):
    dense = matrix()
    there = LAYOUTS[layout](dense.to("sim"))
    assert there.device.type == "sim"
    assert there.layout is LAYOUTS[layout](dense).layout
    assert torch.equal(there.to_dense().cpu(), dense)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sparse_tensor_moves_between_host_and_devices(layout):
    host = LAYOUTS[layout](matrix())
    there = host.to("sim:1")
    assert there.device == torch.device("sim:1")
    assert there.values().device == torch.device("sim:1")
    back = there.to("sim:0").cpu()
    assert back.device.type == "cpu"
    assert back.layout is host.layout
    assert torch.equal(back.to_dense(), host.to_dense())


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_product_with_a_dense_matrix_has_the_cpus_gradients(layout):
    def compute(device):
        sparse = LAYOUTS[layout](matrix().to(device)).requires_grad_()
        dense = torch.linspace(-1, 1, 12).view(6, 2).to(device).requires_grad_()
        product = sparse @ dense
        product.pow(2).sum().backward()
        return product, dense.grad, sparse.grad

    same_bits(compute)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_a_reduced_product_has_the_cpus_gradients(reduce):
    def compute(device):
        sparse = matrix().to_sparse_csr().to(device).requires_grad_()
        dense = torch.linspace(-1, 1, 12).view(6, 2).to(device).requires_grad_()
        product = torch.sparse.mm(sparse, dense, reduce)  # its kernel keeps places for a gradient that is asked for
        product.pow(2).sum().backward()
        return product, dense.grad, sparse.grad

    same_bits(compute)


def test_the_values_of_a_sparse_tensor_get_a_gradient():
    def compute(device):
        values = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]], device=device), values, (2, 2))
        (sparse.to_dense() @ torch.ones(2, 1, device=device)).pow(2).sum().backward()
        return values.grad

    same_bits(compute)


OPTIMIZERS = {
    "SparseAdam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_with_sparse_gradients_trains_as_on_the_cpu(layer, optimizer):
    def compute(device):
        torch.manual_seed(0)
        embedding = layer(10, 3, sparse=True).to(device)
        step = OPTIMIZERS[optimizer](list(embedding.parameters()))
        losses = []
        for words in ([[1, 2], [2, 9]], [[0, 0], [3, 1]], [[9, 4], [4, 4]]):
            loss = embedding(torch.tensor(words, device=device)).pow(2).sum()
            step.zero_grad()
            loss.backward()
            assert embedding.weight.grad.layout is torch.sparse_coo
            step.step()
            losses.append(loss)
        return embedding.weight, *losses

    same_bits(compute)


def test_sparse_gradients_add_up_as_on_the_cpu():
    def compute(device):
        weight = torch.ones(4, 2, device=device, requires_grad=True)
        for words in ([1, 2], [2, 3]):
            nn.functional.embedding(torch.tensor(words, device=device), weight, sparse=True).sum().backward()
        return weight.grad

    same_bits(compute)


def test_a_sparse_tensor_is_saved_loaded_and_copied():
    buffer = io.BytesIO()
    torch.save(coo("sim"), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    assert loaded.device.type == "sim"
    assert torch.equal(loaded.to_dense(), coo("sim").to_dense())
    copied = copy.deepcopy(loaded)
    copied._values().zero_()
    assert loaded.to_dense().count_nonzero() == 3


def test_a_sparse_tensor_is_printed_with_its_device():
    assert "device='sim:0'" in repr(coo("sim"))


def test_tensors_of_two_devices_do_not_mix():
    with pytest.raises(RuntimeError, match="same device"):
        torch.sparse.mm(coo("sim"), torch.ones(3, 2))
    with pytest.raises(RuntimeError, match="same device"):
        coo("sim:0") + coo("sim:1")


def test_memory_of_sparse_tensors_is_counted_and_given_back():
    before = torch.sim.memory_allocated()
    tensor = torch.eye(1000, device="sim").to_sparse()
    assert torch.sim.memory_allocated() - before >= tensor._nnz() * (4 + 2 * 8)
    del tensor
    assert torch.sim.memory_allocated() == before


def test_an_operation_that_the_cpu_lacks_is_refused_by_name():
    with pytest.raises(NotImplementedError, match=r"aten::sort.*the CPU has none"):
        coo("sim").sort()


def test_a_copy_to_the_host_waits_for_the_device():
    tensor = coo("sim")
    torch.sim._sleep(30_000_000)
    done = torch.sim.Event()
    done.record()
    tensor.cpu()
    assert done.query()
