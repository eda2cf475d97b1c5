"""The models have the shapes of the papers they come from, and draw from no global generator."""

import pytest
import torch

from fedcal import FedCalError
from fedcal.learn.models import MODELS, ConvPoolReLU, build


def n_parameters(name, shape=(3, 32, 32), k=10):
    return sum(p.numel() for p in build(name, shape, k, torch.Generator().manual_seed(0)).parameters())


@pytest.mark.parametrize(("name", "layers"), [("resnet14", 14), ("resnet32", 32)])
def test_resnets_have_6n_plus_2_layers(name, layers):
    model = build(name, (3, 32, 32), 10, torch.Generator().manual_seed(0))
    weighted = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(weighted) == layers


def test_parameter_counts():
    assert round(n_parameters("resnet32") / 1e6, 2) == 0.46  # He et al., Table 6: 0.46 M
    assert n_parameters("cnn", (1, 28, 28)) == 1_663_370  # McMahan et al.: "1,663,370 total parameters"
    assert n_parameters("logistic", (1, 28, 28)) == 7850


@pytest.mark.parametrize("name", MODELS)
def test_same_generator_same_weights_and_the_global_one_untouched(name):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = (build(name, (3, 16, 16), 4, torch.Generator().manual_seed(3)) for _ in range(2))
    other = build(name, (3, 16, 16), 4, torch.Generator().manual_seed(4))
    assert torch.equal(before, torch.get_rng_state())
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(("name", "shape"), [("cnn", (1, 8, 8)), ("cnn", (1, 28, 28)), ("cnn", (3, 32, 32))])
def test_cnn_takes_images_of_many_sizes(name, shape):
    model = build(name, shape, 10, torch.Generator().manual_seed(0))
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_bias_and_relu_after_the_pooling_change_nothing():
    layer = ConvPoolReLU(3, 8, 3, padding=1)
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    x[0] = 0.0  # every pixel of a window is its largest: the first one gets the gradient
    usual = torch.nn.functional.max_pool2d(torch.relu(torch.nn.Conv2d.forward(layer, x)), 2)
    assert torch.allclose(layer(x), usual, atol=1e-6)
    ours, theirs = (torch.autograd.grad((out**2).sum(), list(layer.parameters())) for out in (layer(x), usual))
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(ours, theirs, strict=True))


def test_what_does_not_fit_is_refused():
    with pytest.raises(FedCalError, match="needs images"):
        build("cnn", (13,), 2, torch.Generator())
    with pytest.raises(FedCalError, match="did you mean 'resnet32'"):
        build("resnet33", (3, 32, 32), 2, torch.Generator())
