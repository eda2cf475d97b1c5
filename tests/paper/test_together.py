"""Federations trained side by side against each of them trained alone."""

from dataclasses import replace

import pytest
import torch

from fedcal import Config
from fedcal.learn.local import copy_state
from fedcal.simulate import federation
from fedcal.simulate.assemble import assemble
from paper.together import run_rounds

SMALL = Config(data="digits", model="logistic", clients=4, clients_per_round=2, epochs=2, method=("uncal",))


@pytest.mark.parametrize("algorithm", ["fedavg", "centralised"])
def test_each_federation_is_trained_as_if_alone(algorithm):
    configs = [
        replace(SMALL, algorithm=algorithm, seed=seed, beta=beta).resolve() for seed, beta in ((0, 1.0), (1, 0.1))
    ]
    alone = [assemble(config) for config in configs]
    together = [assemble(config) for config in configs]
    for _ in range(3):
        records = [federation.run_round(state) for state in alone]
        rounds = run_rounds(together)
        assert [round.loss for round in rounds] == [record["loss"] for record in records]
        assert not any(round.logits for round in rounds)
    for one, other in zip(alone, together, strict=True):
        assert one.round == other.round == 3
        mine, theirs = copy_state(one.model), copy_state(other.model)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_logits_of_the_clients_own_models_are_kept_where_asked_for():
    states = [assemble(replace(SMALL, seed=seed).resolve()) for seed in (0, 1)]
    alone = assemble(states[0].config)
    chosen = federation.choose_clients(alone)
    expected = [trained.state for trained in alone.train(federation.training_jobs(alone, chosen))]
    kept, other = run_rounds(states, keep_logits=[True, False])
    assert not other.logits and list(kept.logits) == [states[0].clients[c].name for c in chosen]
    for c, state in zip(chosen, expected, strict=True):
        client = states[0].clients[c]
        states[0].model.load_state_dict(state)
        assert torch.allclose(kept.logits[client.name], states[0].model(client.train_x).double(), atol=1e-5)
    sizes = [len(states[0].clients[c].train_y) for c in chosen]
    assert kept.steps == 2 * sum(-(-size // states[0].config.batch_size) for size in sizes)
