"""The federation before its first round: clients, model, the engine that trains, and a server for every method."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fedcal.base.last_layer import last_linear
from fedcal.base.seeds import torch_rng
from fedcal.data import Client, Dataset, load, make_clients, skew
from fedcal.data.own import is_own as is_own_data
from fedcal.errors import FedCalError, reason_of
from fedcal.learn import cpu
from fedcal.learn.local import SGD, Job, Trained, train_in_turn
from fedcal.learn.models import build
from fedcal.learn.own import Model, Traits, build_own, try_out
from fedcal.learn.own import is_own as is_own_model
from fedcal.methods import Method
from fedcal.methods.fed_head import with_features_of
from fedcal.protocol import Server
from fedcal.simulate.config import Config
from fedcal.simulate.federation import Federation, Trainer
from fedcal.transport.memory import Exchange


def assemble(
    config: Config, dataset: Dataset | None = None, train: Trainer | None = None, own_model: Model | None = None
) -> Federation:
    """The federation before its first round.

    Args:
        config: resolved.
        dataset: one's own; the config's if not given.
        train: an engine that others share.
        own_model: a function that builds the model; the config's model if not given.
    """
    device = _device(config.device)
    if dataset is None and is_own_data(config.data):
        raise FedCalError(f"this run is on data of your own, {config.data}: give them again, as data= or --data FILE")
    dataset = dataset or load(config.data, config.data_dir, config.seed, limit=config.limit)
    if config.partition == "natural" and config.clients not in (None, len(dataset.client_names)):
        raise FedCalError(
            f"{config.data} has {len(dataset.client_names)} natural clients, not {config.clients}: leave clients out, "
            "or choose another partition"
        )
    clients = make_clients(
        dataset,
        partition=config.partition or "dirichlet",
        n_clients=config.clients or 20,
        beta=config.beta,
        classes_per_client=config.classes_per_client,
        cal_fraction=config.cal_fraction,
        min_samples=config.min_samples,
        seed=config.seed,
    )
    if (config.clients_per_round or 1) > len(clients):
        raise FedCalError(f"clients_per_round is {config.clients_per_round}, but there are {len(clients)} clients")
    model, traits = _model(config, dataset, clients, own_model)
    model, remarks = model.to(device), list[str]()
    if train is None:
        dtype = clients[0].train_x.dtype
        train = trainer(config, model, dataset.shape, traits, dtype, remarks.append)
    return Federation(
        config,
        [_on(client, device) for client in clients],
        skew(clients, dataset.n_classes),
        dataset.classes,
        model,
        {name: calibration(method, dataset.n_classes, config) for name, method in methods_for(config, model).items()},
        train,
        remarks=remarks,
    )


def methods_for(config: Config, model: nn.Module) -> dict[str, Method]:
    """The methods asked for; those that take features get the number that the model has."""
    methods = config.methods()
    if any(method.takes == "features" for method in methods.values()):
        d = last_linear(model)[1].in_features
        methods = {name: with_features_of(method, d) for name, method in methods.items()}
    return methods


def _model(
    config: Config, dataset: Dataset, clients: list[Client], own: Model | None
) -> tuple[nn.Module, Traits | None]:
    """The model before training; and, of one's own, what an engine must know of it."""
    name, rng = config.model or "mlp", torch_rng(config.seed, "model")
    tokens = clients[0].train_x.dtype == torch.int64
    if own is None and is_own_model(name):
        raise FedCalError(
            f"this run has a model of your own, {name}: give it again, as model= or --model; no file says what to import"
        )
    if own is None and tokens:
        raise FedCalError(
            f"{dataset.name} holds whole numbers, which are token ids, and model {name} has no embedding: give a model of "
            "your own, or standardise to take them as features"
        )
    if own is None:
        return build(name, dataset.shape, dataset.n_classes, rng), None
    model = build_own(own, name, dataset.shape, dataset.n_classes, rng)
    x, y = (torch.cat([getattr(client, part)[:4] for client in clients[:4]]) for part in ("train_x", "train_y"))
    return model, try_out(model, name, x, y, dataset.n_classes)


def calibration(method: Method, n_classes: int, config: Config) -> Exchange:
    """A method's server, and its clients as they come: beside training, and on the final model."""
    beside = config.rounds if method.schedule == "interleaved" else 0
    return Exchange(Server(method, n_classes, config.seed, rounds=beside + method.rounds))


def trainer(
    config: Config,
    model: nn.Module,
    shape: tuple[int, ...],
    traits: Traits | None = None,
    dtype: torch.dtype = torch.float32,
    remark: Callable[[str], None] = lambda text: None,
) -> Trainer:
    """The engine that trains a round's clients. Several federations of one model and one way to train may share it.

    Args:
        config: which engine is wanted. `auto` takes a fast one where that pays and can be, else the reference loop.
        model: to be trained.
        shape: of one input.
        traits: of a user's own model; None for those of models.py, which every engine can train.
        dtype: of the inputs.
        remark: called where the fast engine is not taken though it would pay.

    Raises:
        FedCalError: the fast engine is asked for, and cannot train the model.
    """
    how, device = sgd(config), next(model.parameters()).device.type
    random = traits is not None and traits.random

    def reference(jobs: list[Job]) -> list[Trained]:
        return train_in_turn(model, jobs, how, random)

    if config.engine == "reference" or (config.engine == "auto" and device == "cpu" and not cpu.pays(model)):
        return reference
    if (why := traits.obstacle(device) if traits else None) is None:
        if device == "cpu":
            return cpu.Engine(model, how, torch.get_num_threads(), traits is None or traits.rowwise).train
        from fedcal.learn.fast import Engine

        try:
            return Engine(model, shape, how, config.precision, config.slots, dtype).train
        except RuntimeError as error:
            if traits is None:
                raise
            torch.cuda.synchronize()
            why = f"its step cannot be recorded as a CUDA graph ({reason_of(error)})"
    if config.engine == "fast":
        raise FedCalError(f"the fast engine cannot train model {config.model}: {why}; choose --engine reference")
    remark(f"model {config.model} is trained by the reference loop: {why}")
    return reference


def sgd(config: Config) -> SGD:
    """How a client trains, by the config."""
    return SGD(
        lr=config.lr or 0.01, batch_size=config.batch_size or 256, epochs=config.epochs, momentum=config.momentum,
        weight_decay=config.weight_decay, prox_mu=config.prox_mu,
    )  # fmt: skip


def _on(client: Client, device: torch.device) -> Client:
    """The client's tensors there; on a GPU images are channels-last, as its engine wants them."""

    def moved(value: torch.Tensor) -> torch.Tensor:
        images = value.ndim == 4 and device.type == "cuda"
        return value.to(device, memory_format=torch.channels_last if images else torch.preserve_format)

    return Client(client.name, **{k: moved(v) for k, v in vars(client).items() if isinstance(v, torch.Tensor)})


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise FedCalError(f"unknown device {name!r}: choose cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise FedCalError(f"device {name!r} is not supported: choose cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise FedCalError(
            f"device {name!r} is not here: PyTorch sees {torch.cuda.device_count()} CUDA devices; choose cpu"
        )
    return device
