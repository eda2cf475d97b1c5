"""The models have the shapes of the papers they come from, and draw from no global generator."""

import hashlib

import pytest
import torch
from torch import nn

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


DIGESTS = {  # of recorded runs: a model that draws its weights in another order would silently change them all
    "logistic": "ed4711c52b99a136",
    "mlp": "1ce9728c449a9e57",
    "cnn": "2425b20416c4d004",
    "resnet14": "1f3b54281d998342",
    "resnet32": "dcd9b3257cbee81d",
}


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_keeps_its_weights(name):
    found = hashlib.sha256()
    for key, value in build(name, (3, 16, 16), 4, torch.Generator().manual_seed(3)).state_dict().items():
        found.update(key.encode() + str(value.dtype).encode() + value.numpy().tobytes())
    assert found.hexdigest()[:16] == DIGESTS[name]


class Unusual(nn.Module):
    """Layers that are neither convolution, linear nor batch normalisation, and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(7, 5), nn.LayerNorm(5)
        self.recur, self.scale = nn.GRU(5, 4), nn.Parameter(torch.rand(3))
        self.register_buffer("offset", torch.randn(2))


def test_every_layer_initialises_itself_from_the_generator(monkeypatch):
    monkeypatch.setitem(MODELS, "unusual", lambda shape, n_classes: Unusual())
    torch.manual_seed(5)
    before, rng = torch.get_rng_state(), torch.Generator().manual_seed(3)
    first, next_one = (build("unusual", (4,), 2, rng).state_dict() for _ in range(2))
    torch.rand(10)  # the global generator moves on, and nothing changes
    again = build("unusual", (4,), 2, torch.Generator().manual_seed(3)).state_dict()
    torch.set_rng_state(before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["words.weight"], next_one["words.weight"])  # the caller's generator has moved on
    assert torch.equal(first["norm.weight"], torch.ones(5)) and bool((first["scale"] > 0).all())
    build("unusual", (4,), 2, rng)
    assert torch.equal(before, torch.get_rng_state())


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
