"""One config: a frozen dataclass with the paper's setup as defaults. Every field is an option of `fedcal run`.

Its help is shown without PyTorch, which takes a second to import: so whatever needs that is imported where it is used.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from fedcal.errors import FedCalError, error_context, unknown

if TYPE_CHECKING:
    from fedcal.methods import Method

SCHEMA = 2  # of config.json and the checkpoints
ADVANCED = "Advanced options"  # the part of the help for what few users need
MACHINE = ("data_dir", "device", "engine", "precision", "slots", "threads")  # where a run happens, not what it is


def _option(default: Any, help: str, group: str, **check: Any) -> Any:
    if check:
        check.setdefault("high", 10**9)  # of any number: infinity is more
    metadata = {"help": help, "group": group, "rules": check}
    return (
        field(default_factory=default, metadata=metadata)
        if callable(default)
        else field(default=default, metadata=metadata)
    )


def _all_methods() -> tuple[str, ...]:
    from fedcal.methods import METHODS

    return tuple(name for name, method in METHODS.items() if method.takes == "logits")  # any model has those


@dataclass(frozen=True)
class Config:
    """The settings of a run. `None` means that the default depends on the data set (filled in by `resolve`).

    Every field is an option of `fedcal run`, which explains it: `fedcal run --help`.

    Examples:
        >>> import fedcal
        >>> config = fedcal.Config(data="heart", rounds=10, method=("uncal", "fedcal-plus:accuracy=keep"))
        >>> config.method
        ('uncal', 'fedcal-plus:accuracy=keep')
        >>> fedcal.Config(rounds=0)
        Traceback (most recent call last):
        fedcal.errors.FedCalError: rounds must be at least 1, not 0
    """

    # fmt: off
    data: str = _option("digits", "Data set (see `fedcal data list`), or a .npz, .csv or .parquet of your own.", "Data")
    data_dir: str | None = _option(None, "Folder of the data files [env: FEDCAL_DATA; else the user's cache].", ADVANCED)
    standardise: bool | None = _option(None, "Your own data: give inputs zero mean and unit variance [default: floating-point numbers and images yes; whole numbers are token ids].", ADVANCED)
    test_fraction: float = _option(0.2, "Your own data: share held out for testing, if there is no test split.", ADVANCED, above=0, below=1)
    limit: int | None = _option(None, "Use only this many training samples (and a fifth as many for testing).", "Data", low=1)
    partition: str | None = _option(None, "dirichlet, iid, shards or natural [default: natural if the data have clients, else dirichlet].", "Data")
    beta: float = _option(0.5, "Dirichlet concentration: lower is more skewed.", "Data", above=0)
    clients: int | None = _option(None, "Number of clients [default: 20; for natural clients: all of them].", "Data", low=1)
    classes_per_client: int = _option(2, "Classes a client holds (partition shards).", ADVANCED, low=1)
    cal_fraction: float = _option(0.1, "Share of a client's training data held out for calibration.", ADVANCED, above=0, below=1)
    min_samples: int = _option(10, "Least number of training samples per client.", ADVANCED, low=1)

    model: str | None = _option(None, "logistic, mlp, cnn, resnet14 or resnet32, or your own as MODULE:FUNCTION [default: depends on the data].", "Learning")
    algorithm: Literal["fedavg", "centralised"] = _option("fedavg", "fedavg, or one centralised model for comparison.", ADVANCED)
    rounds: int = _option(100, "Communication rounds R.", "Learning", low=1)
    clients_per_round: int | None = _option(None, "Clients m that take part in a round [default: 5, or all if fewer].", "Learning", low=1)
    epochs: int = _option(3, "Local epochs E.", "Learning", low=1)
    batch_size: int | None = _option(None, "Local batch size [default: 256; 32 for digits, heart and your own data].", "Learning", low=1)
    lr: float | None = _option(None, "Learning rate of local SGD [default: 0.01; 0.05 for digits, heart and your own data].", "Learning", above=0)
    momentum: float = _option(0.0, "Momentum of local SGD.", ADVANCED, low=0, below=1)
    weight_decay: float = _option(0.0, "Weight decay of local SGD.", ADVANCED, low=0)
    prox_mu: float = _option(0.0, "FedProx's µ; 0 is FedAvg.", ADVANCED, low=0)

    method: tuple[str, ...] = _option(_all_methods, "Calibration method, optionally with options: NAME or NAME:OPTION=VALUE,... (see `fedcal methods`); may be repeated [default: all but fed-head].", "Calibration")

    n_bins: int = _option(15, "Number of bins of the ECE.", ADVANCED, low=1, high=10_000)
    seed: int = _option(0, "Random seed; on a CPU, the same seed gives the same results bit for bit.", "Running", low=0, high=2**63 - 1)
    device: str = _option("cpu", "cpu, cuda or cuda:N; calibration itself stays on the CPU.", "Running")
    engine: Literal["auto", "fast", "reference"] = _option("auto", "fast (clients in parallel: CUDA graphs on a GPU, threads on a CPU), reference (a plain loop), or auto: fast where that saves time.", ADVANCED)
    precision: Literal["bf16", "tf32", "fp32"] = _option("bf16", "Precision of training on a GPU with the fast engine; a CPU always uses fp32.", ADVANCED)
    slots: int = _option(10, "Number of clients that train in parallel on a GPU.", ADVANCED, low=1, high=64)
    threads: int | None = _option(None, "CPU threads [default: 1 for logistic and mlp, else PyTorch's choice].", ADVANCED, low=1, high=1024)
    checkpoint_every: int = _option(5, "Number of rounds between checkpoints.", ADVANCED, low=1)
    # fmt: on

    def __post_init__(self) -> None:
        from fedcal.base.checks import check_value
        from fedcal.data import DATASETS
        from fedcal.data.own import is_own as is_own_data
        from fedcal.data.partition import PARTITIONS
        from fedcal.learn.models import MODELS
        from fedcal.learn.own import is_own as is_own_model
        from fedcal.methods import get_method, spec_of

        hints = get_type_hints(type(self))
        for entry in fields(self):
            if entry.name != "method":
                check_value(entry.name, getattr(self, entry.name), hints[entry.name], entry.metadata["rules"])
        if self.data not in DATASETS and not is_own_data(self.data):
            raise unknown("data set", self.data, DATASETS)
        if self.model is not None and self.model not in MODELS and not is_own_model(self.model):
            raise unknown("model", self.model, MODELS)
        if self.partition is not None and self.partition not in PARTITIONS:
            raise unknown("partition", self.partition, PARTITIONS)
        if not isinstance(self.method, tuple) or not all(isinstance(name, str) for name in self.method):
            raise FedCalError(f"method must be a tuple of names, not {self.method!r}")
        if not self.method:
            raise FedCalError("no method given: leave method out for all of them")
        specs = tuple(spec_of(get_method(spec)) for spec in self.method)
        object.__setattr__(self, "method", specs)  # one spelling of each, however it was written
        for spec, times in Counter(specs).items():
            if times > 1:
                raise FedCalError(f"method {spec!r} is given {times} times: name it once")

    def resolve(self) -> Config:
        """Return the same config with every `None` that depends on the data filled in."""
        from fedcal.data import DATASETS

        about = DATASETS.get(self.data)  # None of users' own data
        small = self.data in ("digits", "heart") or about is None
        known: dict[str, Any] = {
            "model": about.model if about else "mlp",
            "partition": about.partition if about else "dirichlet",
            "batch_size": 32 if small else 256,
            "lr": 0.05 if small else 0.01,
        }
        return replace(self, **{k: v for k, v in known.items() if getattr(self, k) is None})

    def methods(self) -> dict[str, Method]:
        """Return the methods of the config, by their specs."""
        from fedcal.methods import get_method

        return {spec: get_method(spec) for spec in self.method}

    def to_dict(self) -> dict[str, Any]:
        """Return the config as it is written to config.json."""
        from fedcal.methods import method_to_json

        return {"schema": SCHEMA, **asdict(self), "method": [method_to_json(m) for m in self.methods().values()]}

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Config:
        """Read a config from config.json.

        Args:
            values: what `to_dict` returned.
            source: where they are from, for messages.

        Returns:
            The config.

        Raises:
            FedCalError: a field is unknown or invalid, or the schema is another one.
        """
        from fedcal.methods import method_from_json, spec_of

        if values.get("schema") != SCHEMA:
            raise FedCalError(
                f"{source}: schema {values.get('schema')!r}, but this fedcal reads {SCHEMA}: run it again"
            )
        names = [entry.name for entry in fields(cls)]
        for key in values:
            if key not in names and key != "schema":
                raise FedCalError(f"{source}: {unknown('field', key, names)}")
        given = {key: value for key, value in values.items() if key != "schema"}
        with error_context(source):
            if isinstance(entries := given.get("method"), list):
                specs = [spec_of(method_from_json(entry)) if isinstance(entry, dict) else entry for entry in entries]
                given["method"] = tuple(specs)
            return cls(**given)
