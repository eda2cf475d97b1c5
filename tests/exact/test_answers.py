"""Replies: the same for samples in one chunk or in many, for clients alone or together."""

import numpy as np
import pytest
import torch

import fedcal
from fedcal.exact import answers
from fedcal.exact.answers import Site, answer
from fedcal.exact.linear import FAMILIES, n_parameters
from fedcal.protocol import rounds
from grid_cases import Case

K = 4


def question() -> dict[str, torch.Tensor]:
    """Every kind of request at once."""
    rng = torch.Generator().manual_seed(0)
    found = {"start": torch.zeros(0), "folds": torch.zeros(0), "slope": torch.tensor(0.7, dtype=torch.float64)}
    for family in FAMILIES:
        t = 0.1 + torch.rand(n_parameters(family, K), generator=rng, dtype=torch.float64)
        kinds = ("newton", "gradient") if family == "temperature" else ("newton", "gradient", "diagonal")
        found |= {f"{kind}/{family}/{fold}": t for kind in kinds for fold in ("all", "2")}
    found["curvature/vector"] = torch.rand(2 * K, generator=rng, dtype=torch.float64)
    for fold in range(5):
        scale = torch.tensor([0.5 + 0.1 * fold], dtype=torch.float64)
        found |= {f"score/a/temperature/{fold}": scale, f"watch/temperature/{fold}": scale}
        found |= {f"map/beta/{fold}": torch.tensor([1.0, 0.9, 0.1], dtype=torch.float64)}
        found |= {f"map/hist0/{fold}": torch.tensor([[-1.0, 2.0], [-0.5, 1.5]], dtype=torch.float64)}
    for fold in ("all", "1"):
        found[f"beta/{fold}"] = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    found["histogram"] = torch.zeros(0)
    return found


def samples(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(n, K, generator=rng, dtype=torch.float64), torch.randint(K, (n,), generator=rng)


@pytest.mark.parametrize("kept", [1 << 22, 0])
@pytest.mark.parametrize("n", [1, 3, 64, 65, 1000])
def test_chunks_add_up(n, kept, monkeypatch):
    z, y = samples(n)
    whole = answer(question(), Site(lambda: (z, y)))
    monkeypatch.setattr(answers, "BLOCK", 64)
    monkeypatch.setattr(answers, "KEPT", kept)
    parts = answer(question(), Site(lambda: (z, y)))
    assert set(parts) == set(whole)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-10, atol=1e-10, msg=name)


def test_clients_that_answer_as_one_say_what_they_say_apart():
    clients = [samples(n, seed) for seed, n in enumerate((1, 2, 7, 60))]
    apart = [answer(question(), Site(lambda pair=pair: pair)) for pair in clients]
    z, y = (torch.cat(values) for values in zip(*clients, strict=True))
    together = answer(question(), Site(lambda: (z, y), [len(labels) for _, labels in clients]))
    for name, value in together.items():
        torch.testing.assert_close(value, sum(one[name] for one in apart), rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("method", ["fed-bias", "fed-op", "fedcal-plus"])
def test_many_small_clients_are_fitted_as_if_apart(method, monkeypatch):
    """The shortcut of a simulation: also what each client keeps for itself."""
    clients = Case((2, 3, 40, 0, 9) * 12, 3).clients()
    logits = clients["client-2"][0]
    options = {"patience": 2, "lr": 0.1} if method == "fed-op" else {}
    apart = fedcal.calibrate(clients, method, **options)
    monkeypatch.setattr(rounds, "MANY", 10)
    monkeypatch.setattr(rounds, "GROUP", 300)
    together = fedcal.calibrate(clients, method, **options)
    assert (together.rounds, together.bytes_up, together.updates) == (apart.rounds, apart.bytes_up, apart.updates)
    assert set(together.own) == set(apart.own)
    for client in (None, "client-2", "client-4"):
        np.testing.assert_allclose(
            together.predict_proba(logits, client), apart.predict_proba(logits, client), rtol=0, atol=1e-9
        )
