"""The catalogue of ops: it knows every op of op_db, under every name that ops are called by."""

from __future__ import annotations

import pytest
import torch

from op_tools.ops import catalogue
from op_tools.ops.aliases import ALIASES
from op_tools.ops.catalogue import Trait
from op_tools.ops.names import normalized

from ..op_samples import ops


def test_every_op_of_op_db_is_described():
    names = {op.name if op.name.startswith("torch.") else f"torch.{op.name}" for op in ops()}
    assert sorted(name for name in names if catalogue.of(name) is None) == []


@pytest.mark.parametrize(("name", "other"), sorted(ALIASES.items()))
def test_an_op_has_the_same_traits_by_each_of_its_names(name, other):
    assert catalogue.of(f"torch.{name}") == catalogue.of(f"torch.{other}") is not None


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("torch.add", "add"),
        ("torch.Tensor.add_", "add"),
        ("torch.Tensor.__iadd__", "add"),
        ("torch.Tensor.__radd__", "__radd__"),
        ("torch.Tensor.__int__", "__int__"),
        ("torch.Tensor.__iter__", "__iter__"),
        ("torch._foreach_add_", "add"),
        ("torch.nn.functional.linear", "linear"),
        ("torch.functional.einsum", "einsum"),
        ("torch.linalg.svd", "linalg.svd"),
        ("torch.nn.init.uniform_", "nn.init.uniform"),
        ("aten.mm", "mm"),
        ("aten.mm.default", "mm"),
        ("torch.ops.aten.mm.default", "mm"),
        ("aten._linalg_svd.default", "linalg.svd"),
        ("torch.ops.aten.linalg_inv_ex.default", "linalg.inv_ex"),
        ("aten.special_entr.default", "special.entr"),
        ("aten._fft_r2c.default", "fft.r2c"),
        ("aten.log_special_.default", "log_special"),
        ("my_package.my_op", "my_package.my_op"),
    ],
)
def test_an_op_has_one_base_name_in_all_its_forms(name, base):
    assert normalized(name).base == base


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("torch.Tensor.add_", "add_"),
        ("torch.Tensor.__iadd__", "__iadd__"),
        ("torch._foreach_add_", "_foreach_add_"),
        ("torch.linalg.diagonal", "diagonal"),
        ("aten.add_.Tensor", "add_"),
        ("my_package.add_", ""),
    ],
)
def test_the_form_of_an_op_is_what_torch_calls_it(name, form):
    assert normalized(name).form == form


@pytest.mark.parametrize(
    ("name", "trait"),
    [
        ("torch.Tensor.matmul", Trait.MATRIX),
        ("torch.Tensor.__getitem__", Trait.VIEW),
        ("torch.special.softmax", Trait.NORM),
        ("torch.nn.functional.cross_entropy", Trait.LOGITS),
        ("torch.nn.functional.scaled_dot_product_attention", Trait.LOGITS),
        ("torch.masked.argmax", Trait.ORDER),
        ("aten.native_layer_norm_backward.default", Trait.SUMS),
        ("torch.bernoulli", Trait.RANDOM),
        ("torch.nn.functional.dropout2d", Trait.DROPOUT),
        ("torch.empty_like", Trait.EMPTY),
        ("torch.linalg.eigh", Trait.CHOICE),
        ("torch.Tensor.remainder", Trait.JUMPS),
        ("torch.lstm", Trait.STEPS),
    ],
)
def test_traits_are_found_by_full_names(name, trait):
    assert trait in catalogue.of(name)


def test_an_op_that_nobody_has_described():
    assert catalogue.of("my_package.my_op") is None
    assert catalogue.has("my_package.my_op", Trait.SUMS)
    assert not catalogue.has("my_package.my_op", Trait.EXACT | Trait.VIEW)


def test_facts_about_one_form_are_not_true_of_the_others():
    assert catalogue.has("torch.Tensor.t", Trait.ALWAYS_VIEW)
    assert not catalogue.has("torch.Tensor.t_", Trait.ALWAYS_VIEW)
    assert catalogue.has("torch.linalg.diagonal", Trait.ALWAYS_VIEW)
    assert not catalogue.has("my_package.view", Trait.ALWAYS_VIEW)


def test_what_only_moves_data_is_exact():
    assert all(catalogue.of(f"torch.Tensor.{name}") & Trait.EXACT for name in ("where", "copy_", "view", "reshape"))


def test_what_is_fine_is_computed_element_by_element():
    assert [
        name for name, found in catalogue._BY_BASE.items() if Trait.FINE in found and Trait.POINTWISE not in found
    ] == []


def test_no_op_is_both_exact_and_random():
    described = {op.name: catalogue.of(f"torch.{op.name}") for op in ops()}
    both = [name for name, found in described.items() if found and Trait.EXACT in found and Trait.RANDOM in found]
    assert both == []


@pytest.mark.skipif(
    not hasattr(torch.nn.functional, "linear_cross_entropy"), reason="an older torch lacks some of the ops"
)
def test_catalogued_names_exist_somewhere_in_torch():
    """A misspelt entry would never be found."""
    homes = [
        torch,
        torch.Tensor,
        torch.nn.functional,
        torch._C._nn,
        torch.linalg,
        torch.fft,
        torch.special,
        torch.nn.init,
        torch.masked,
        torch.sparse,
        torch.nn.utils,
    ]
    aten = {name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    known = {name for home in homes for name in dir(home)} | aten
    unknown = []
    for name in (*catalogue._BY_BASE, *catalogue._BY_FORM):
        last = name.rpartition(".")[2]
        if not {last, f"{last}_", f"_foreach_{last}", f"{last}.out", f"linalg_{last}"} & known:
            unknown.append(name)
    removed = {"align_to", "refine_names", "rename", "hpu"}  # in other releases, or with a plug-in
    assert {name for name in unknown if not name.startswith("jiterator")} <= removed
