"""Views, in-place operations, out=, resizing and aliasing: all on one memory, without a copy."""

from __future__ import annotations

import pytest
import torch


def storage_address(tensor):
    return tensor.untyped_storage().data_ptr()


def both_devices(change):
    """What `change` makes of the same 4 by 4 tensor on the CPU and on the device."""
    results = []
    for device in ("cpu", "sim"):
        tensor = torch.arange(16.0, device=device).view(4, 4)
        change(tensor)
        results.append(tensor.cpu())
    return results


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: t[1].add_(2), id="row"),
        pytest.param(lambda t: t.t()[0].fill_(5), id="transposed"),
        pytest.param(lambda t: t[:, 2:].mul_(3), id="slice"),
        pytest.param(lambda t: t[::2, 1::2].zero_(), id="steps"),
        pytest.param(lambda t: t.view(16)[3:5].neg_(), id="view"),
        pytest.param(lambda t: t.unfold(0, 2, 1)[0, 0].fill_(7), id="unfold"),
        pytest.param(lambda t: torch.split(t, 2)[1].zero_(), id="split"),
        pytest.param(lambda t: t.diagonal().copy_(torch.ones(4)), id="diagonal"),
        pytest.param(lambda t: t.flatten().as_strided((2, 2), (8, 1), 1).fill_(-1), id="as_strided"),
        pytest.param(lambda t: t.unbind()[2].sub_(1), id="unbind"),
        pytest.param(lambda t: t.permute(1, 0).unsqueeze(0).squeeze(0).clamp_(3, 9), id="permute"),
        pytest.param(lambda t: t.expand(2, 4, 4)[1, 1].fill_(8), id="expand"),
        pytest.param(lambda t: t.transpose_(0, 1), id="transpose in place"),
        pytest.param(lambda t: t.masked_fill_(t > 6, 0), id="masked_fill"),
        pytest.param(lambda t: t.__setitem__((t > 3) & (t < 9), 1), id="masked assignment"),
        pytest.param(lambda t: t.index_add_(0, torch.tensor([0, 2], device=t.device), t[:2].clone()), id="index_add"),
        pytest.param(lambda t: t.scatter_(1, torch.tensor([[2], [1]], device=t.device), 99), id="scatter"),
        pytest.param(lambda t: t[0].copy_(t[1]), id="copy within one storage"),
    ],
)
def test_writing_through_a_view_changes_its_base_as_on_the_cpu(change):
    host, device = both_devices(change)
    assert torch.equal(device, host)
    assert not torch.equal(device, torch.arange(16.0).view(4, 4))


def test_views_share_their_bases_storage():
    tensor = torch.zeros(4, 4, device="sim")
    for view in (tensor[1], tensor.t(), tensor.view(16), tensor.detach(), tensor.unfold(0, 2, 1), tensor.split(2)[1]):
        assert storage_address(view) == storage_address(tensor)


def test_what_the_cpu_returns_as_a_view_is_a_view():
    tensor = torch.zeros(2, 2, device="sim")
    for alias in (tensor.contiguous(), tensor.reshape(4), tensor.to("sim"), tensor.float(), tensor.expand(3, 2, 2)):
        assert storage_address(alias) == storage_address(tensor)
    for copy in (tensor.clone(), tensor.t().contiguous(), tensor.double(), tensor.to("sim", copy=True)):
        assert storage_address(copy) != storage_address(tensor)


def test_in_place_operations_return_the_tensor_itself():
    tensor = torch.zeros(3, device="sim")
    assert tensor.add_(1) is tensor
    assert torch.relu_(tensor) is tensor
    assert tensor.tolist() == [1, 1, 1]


def test_in_place_operations_raise_the_version():
    tensor = torch.zeros(3, device="sim")
    view = tensor[1:]
    version = tensor._version
    view.add_(1)
    assert tensor._version == version + 1


def test_complex_views_share_memory():
    tensor = torch.zeros(2, dtype=torch.complex64, device="sim")
    torch.view_as_real(tensor)[0, 1] = 3
    tensor.real[1] = 5
    assert tensor.tolist() == [3j, 5]
    assert tensor.conj().tolist() == [-3j, 5]
    assert tensor.conj().imag.tolist() == [-3, 0]
    assert tensor.conj().resolve_conj().cpu().tolist() == [-3j, 5]


def test_a_view_as_another_dtype_shares_memory():
    tensor = torch.ones(1, device="sim")
    tensor.view(torch.int32).zero_()
    assert tensor.item() == 0


def test_writing_to_a_slice_stops_its_gradient():
    leaf = torch.arange(6.0, device="sim").requires_grad_()
    product = leaf * 1
    product[2:4] = 0
    product.sum().backward()
    assert leaf.grad.tolist() == [1, 1, 0, 0, 1, 1]


def test_changing_what_backward_needs_is_refused():
    leaf = torch.ones(3, device="sim", requires_grad=True)
    saved = leaf * 2
    loss = (saved * saved).sum()
    saved.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_resize_keeps_what_fits_and_gives_new_room():
    tensor = torch.arange(2.0, device="sim")
    tensor.resize_(5)
    assert tensor.shape == (5,)
    assert tensor[:2].tolist() == [0, 1]
    assert tensor.fill_(1).sum().item() == 5


def test_a_tensor_of_any_device_can_let_go_of_its_memory():
    tensor = torch.ones(3, device="sim:1").set_()
    assert (tensor.numel(), str(tensor.device)) == (0, "sim:1")


def test_out_takes_the_results_shape():
    out = torch.empty(0, device="sim")
    assert torch.add(torch.ones(3, device="sim"), 1, out=out) is out
    assert out.tolist() == [2, 2, 2]


def test_out_takes_several_results():
    values, indices = torch.empty(0, device="sim"), torch.empty(0, dtype=torch.long, device="sim")
    torch.max(torch.tensor([[1.0, 3], [5, 2]], device="sim"), 1, out=(values, indices))
    assert values.tolist() == [3, 5]
    assert indices.tolist() == [1, 0]


def test_out_takes_the_results_of_mode():
    """A composite of torch's that asks for the device's type."""
    numbers = torch.tensor([[1, 2, 2, 3], [4, 4, 5, 6]])
    values, places = torch.empty(0, dtype=torch.long, device="sim"), torch.empty(0, dtype=torch.long, device="sim")
    torch.mode(numbers.to("sim"), 1, out=(values, places))
    assert values.tolist() == [2, 4]
    assert places.tolist() == torch.mode(numbers, 1).indices.tolist()


def test_out_writes_through_a_view():
    base = torch.zeros(2, 3, device="sim")
    torch.mul(torch.ones(3, device="sim"), 4, out=base[1])
    assert base.tolist() == [[0, 0, 0], [4, 4, 4]]


def test_resizing_out_that_holds_something_warns_as_on_the_cpu():
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(torch.ones(3, device="sim"), 1, out=torch.empty(2, device="sim"))


def test_a_storage_can_be_emptied_and_restored():
    tensor = torch.arange(8.0, device="sim")
    storage = tensor.untyped_storage()
    size, used = storage.nbytes(), torch.sim.memory_allocated()
    storage.resize_(0)
    assert storage.nbytes() == 0
    assert torch.sim.memory_allocated() == used - size
    storage.resize_(size)
    assert torch.sim.memory_allocated() == used
    assert tensor.copy_(torch.arange(8.0)).sum().item() == 28


def test_growing_a_storage_keeps_its_contents():
    tensor = torch.arange(3.0, device="sim")
    tensor.untyped_storage().resize_(100)
    assert tensor.tolist() == [0, 1, 2]


def test_set_makes_a_tensor_an_alias():
    base, alias = torch.arange(6.0, device="sim"), torch.empty(0, device="sim")
    alias.set_(base.untyped_storage(), 2, (2,), (1,))
    alias.fill_(9)
    assert base.tolist() == [0, 1, 9, 9, 4, 5]
    assert alias.set_().shape == (0,)


def test_assigning_data_keeps_the_parameter():
    parameter = torch.nn.Parameter(torch.zeros(2, device="sim"))
    parameter.data = torch.ones(3, device="sim")
    assert parameter.tolist() == [1, 1, 1]
    parameter.data = torch.ones(2)
    assert parameter.device.type == "cpu"


def test_copies_convert_dtypes_shapes_and_strides():
    target = torch.zeros(2, 3, dtype=torch.float64, device="sim").t()
    target.copy_(torch.tensor([1, 2], dtype=torch.int32))
    assert target.tolist() == [[1, 2]] * 3
    host = torch.zeros(3, 2, dtype=torch.bfloat16)
    host.copy_(target)
    assert host.tolist() == [[1, 2]] * 3
