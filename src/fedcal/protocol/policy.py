"""A client's policy: what it reveals to a server at most, whatever the server asks. It belongs to the site, not the server.

    policy = Policy(methods=("fed-ts", "fedcal-plus:accuracy=keep"), min_count=10)
    client = Client(method, logits, labels, policy=policy)

At its first reply a client pins the federation, the method with its options and the number of classes, and keeps to them
(`Talk`, which is part of its state). It follows the stages of its method (`Method.stages`, or `private_stages`): it replies
to what the method's program can ask next, so often at most, and at parameters that an honest fit can reach (bounds.py).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedcal.base.checks import check_value, check_whole
from fedcal.base.query import Query, fingerprint
from fedcal.base.schema import COUNT, ListOf, Record, Text, Truth, check
from fedcal.errors import FedCalError, check_known, counted
from fedcal.exact.private_queries import Measure
from fedcal.exact.private_query import PrivateQuery
from fedcal.methods import Method, get_method, spec_of
from fedcal.methods.method import Stage
from fedcal.protocol.messages import Request
from fedcal.protocol.privacy import Privacy, check_privacy
from fedcal.protocol.scaler import Scaler

LARGEST = 1 << 20  # bytes of a policy file
FITS = 2  # a federation gets the replies of so many fits at their longest, however often it begins again


@dataclass(frozen=True)
class Talk:
    """What a client remembers of the federation that it takes part in: with whom, how far, and what it has replied to."""

    federation: str = ""
    method: str = ""  # as a spec
    n_classes: int = 0
    private: bool = False  # whether it is asked under differential privacy
    last: str = ""  # the digest of the request that it replied to last
    replies: int = 0  # to different requests
    begun: int = 0  # how often the fit began
    stage: int = 0  # the earliest stage that queries may still be of
    used: tuple[int, ...] = ()  # replies of each stage, since the fit began
    measured: str = ""  # the digest of the scaler whose metrics it has sent
    refused: bool = False  # whether it has refused a request beyond its bounds: it replies no more

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "used": list(self.used)}

    @classmethod
    def from_json(cls, values: Any) -> Talk:
        """Read it back.

        Raises:
            FedCalError: where a value is missing or of another type.
        """
        shapes = {str: Text(any=True), int: COUNT, bool: Truth(), tuple: ListOf(COUNT)}
        check(values, Record({entry.name: shapes[type(entry.default)] for entry in fields(cls)}), "its replies")
        return cls(**{**values, "used": tuple(values["used"])})


@dataclass(frozen=True)
class Policy:
    """What a client reveals at most.

    Args:
        methods: names of methods that it takes part in, or specs, where the options count too; empty: any method.
        allow_pooling: whether it takes part in methods that send the samples themselves.
        min_count: samples that a reply is about at least; a client of fewer says that it has none.
        max_rounds: the largest number of replies to a federation, including restarts; if not given, as many as two fits of
            the method can ask for.
        max_restarts: how often a fit may start again, because other clients dropped out.
        max_bins: confidence bins at most of the sums that measure a scaler.
        privacy: differential privacy, local or distributed, in addition to all this.
    """

    methods: tuple[str, ...] = ()
    allow_pooling: bool = False
    min_count: int = 5
    max_rounds: int | None = None
    max_restarts: int = 3
    max_bins: int = 100
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.methods, list | tuple) or not all(isinstance(spec, str) for spec in self.methods):
            raise FedCalError(f"methods must be a list of names, not {self.methods!r}")
        object.__setattr__(self, "methods", tuple(self.methods))
        for spec in self.methods:
            get_method(spec)
        check_value("allow_pooling", self.allow_pooling, bool, {})
        for name, low in {"min_count": 1, "max_rounds": 1, "max_restarts": 0, "max_bins": 1}.items():
            if getattr(self, name) is not None:
                check_whole(getattr(self, name), name, low=low)
        check_privacy(self.privacy)
        if self.privacy:
            self.privacy.check_own()

    # --- from files ------------------------------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Policy:
        """Make a policy of JSON or TOML values.

        Args:
            values: by name; `privacy` is a table of `Privacy`'s arguments, local if it does not say where.

        Returns:
            The policy.

        Raises:
            FedCalError: where a name is unknown, or a value is not as it should be.
        """
        for name in values:
            check_known("entry", name, sorted(entry.name for entry in fields(cls)))
        found = dict(values)
        if isinstance(found.get("methods"), list):
            found["methods"] = tuple(found["methods"])
        if isinstance(table := found.get("privacy"), dict):
            for name in table:
                check_known("entry of privacy", name, sorted(entry.name for entry in fields(Privacy)))
            if "epsilon" not in table:
                raise FedCalError("privacy has no epsilon: give one")
            found["privacy"] = Privacy(**{"where": "local", **table})
        return cls(**found)

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy file.

        Args:
            path: TOML if its name ends in .toml, else JSON.

        Returns:
            The policy.

        Raises:
            FedCalError: which names the file.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                data = file.read(LARGEST + 1)
            if len(data) > LARGEST:
                raise FedCalError(f"it has more than {LARGEST} bytes")
            values = (tomllib.loads if path.suffix == ".toml" else json.loads)(data.decode())
            if not isinstance(values, dict):
                raise FedCalError("it holds no table of names and values")
            return cls.from_dict(values)
        except OSError as error:
            raise FedCalError(f"{path} cannot be read: {error.strerror or error}") from None
        except FedCalError as error:
            raise FedCalError(f"{path} is no policy: {error}") from None
        except (ValueError, RecursionError) as error:
            raise FedCalError(f"{path} is no policy: it cannot be read as JSON or TOML ({error})") from None

    # --- what a client checks --------------------------------------------------------------------------------------------

    def check_method(self, method: Method) -> None:
        """Refuse a method that the client does not take part in.

        Args:
            method: the server's.

        Raises:
            FedCalError: which says what would allow it.
        """
        if method.needs_pooled_data and not self.allow_pooling:
            raise FedCalError(
                f"{method.name} sends every logit and label: refused, unless this site allows it by "
                "--allow-pooling (allow_pooling in its policy)"
            )
        if self.methods and not any(_means(spec, method) for spec in self.methods):
            raise FedCalError(
                f"this site takes part in {', '.join(self.methods)} only, and not in {spec_of(method)}: "
                "do not reply, or change its policy"
            )

    def check_federation(self, talk: Talk, federation: str, method: Method, n_classes: int) -> Talk:
        """Refuse another federation, method or number of classes than at the first reply.

        Args:
            talk: what the client remembers.
            federation: which asks.
            method: the server's.
            n_classes: K of the client's logits.

        Returns:
            What the client remembers, with these.

        Raises:
            FedCalError: which says what differs.
        """
        self.check_method(method)
        now = {"federation": federation, "method": spec_of(method), "n_classes": n_classes}
        for name, value in now.items() if talk.federation else ():
            if (pinned := getattr(talk, name)) != value:
                raise FedCalError(
                    f"this site has joined {name} {pinned!r}, and the request is of {value!r}: "
                    "do not reply, or begin with a new state to join that one (--state; a node's fedcal-state)"
                )
        if talk.refused:  # if it went on, each further refusal would tell the server a little more of the samples
            raise FedCalError(
                "this site has refused a request of this federation that no fit makes: it replies no more in it"
            )
        return replace(talk, **now)

    def after(self, talk: Talk, request: Request, method: Method, n_classes: int) -> Talk:
        """Return what the client remembers after its reply to a request; the same request costs nothing again.

        Args:
            talk: what it remembers before.
            request: the server's.
            method: the client's.
            n_classes: K of its logits.

        Returns:
            What it remembers after.

        Raises:
            FedCalError: where the method's program cannot ask that now.
        """
        talk = self.check_federation(talk, request.federation, method, n_classes)
        if talk.last == request.digest:
            return talk
        private = isinstance(request.query, PrivateQuery)
        _check_as_before(talk, private)
        needed = sum(stage.times for stage in stages_of(method, n_classes, private))
        most = FITS * needed if self.max_rounds is None else self.max_rounds
        if talk.replies >= most:
            raise FedCalError(f"this site has replied in {counted(most, 'round')}: its policy allows no more")
        talk = replace(talk, last=request.digest, replies=talk.replies + 1, private=private)
        found = _follow(talk, method, request.query)
        if found is None and talk.begun <= self.max_restarts:
            found = _follow(replace(talk, begun=talk.begun + 1, stage=0, used=()), method, request.query)
        if found is None:
            raise FedCalError(
                f"the server asks for {type(request.query).__name__} where {spec_of(method)} does not, "
                "or more often than it needs: do not reply to this server"
            )
        return found

    def measuring(self, talk: Talk, federation: str, scaler: Scaler, n_bins: int, private: bool | None = None) -> Talk:
        """Return what the client remembers after it has sent the metrics of a scaler; it does so for one scaler only.

        Args:
            talk: what it remembers before.
            federation: which asks.
            scaler: to be measured.
            n_bins: confidence bins that are asked for.
            private: whether they are asked for under differential privacy; None: they may be either.

        Returns:
            What it remembers after.

        Raises:
            FedCalError: where it has sent those of another scaler, or too many bins are asked for.
        """
        if not 1 <= n_bins <= self.max_bins:
            raise FedCalError(f"the server asks for {n_bins} bins, where this site gives at most {self.max_bins}")
        talk = self.check_federation(talk, federation, scaler.method, scaler.n_classes)
        if private is not None:
            _check_as_before(talk, private)
        digest = fingerprint((dict(sorted(scaler.params.items())), n_bins))
        if talk.measured not in ("", digest):
            raise FedCalError("this site has measured a scaler of this federation already: it measures one only")
        return replace(talk, measured=digest)


def stages_of(method: Method, n_classes: int, private: bool) -> tuple[Stage, ...]:
    """Return what a server may ask, in that order.

    Args:
        method: the federation's.
        n_classes: K of the logits.
        private: whether the federation has differential privacy; its metrics are then queries too.
    """
    return (*method.private_stages(n_classes), Stage(Measure)) if private else method.stages(n_classes)


def private_rounds(method: Method) -> int:
    """Return how many requests a private fit has at most.

    Args:
        method: whose fit it is.
    """
    return sum(stage.times for stage in method.private_stages(2))  # the same over any number of classes


def _check_as_before(talk: Talk, private: bool) -> None:
    """Refuse to go on with privacy where a federation began without, or the other way round."""
    if talk.replies and talk.private != private:
        raise FedCalError(
            f"this site takes part {_how(talk.private)}, and the request is {_how(private)}: do not reply to this server"
        )


def _how(private: bool) -> str:
    return "under differential privacy" if private else "without differential privacy"


def _means(spec: str, method: Method) -> bool:
    """Whether an entry of a policy means this method: by its name, or with exactly these options."""
    return get_method(spec) == method if ":" in spec else spec == method.name


def _follow(talk: Talk, method: Method, query: Query) -> Talk | None:
    """Count a query at the first stage that has room for it; None where there is none."""
    stages = stages_of(method, talk.n_classes, talk.private)
    used = [*talk.used, *[0] * (len(stages) - len(talk.used))]
    for place in range(talk.stage, len(stages)):
        if used[place] < stages[place].times and stages[place].takes(query):
            used[place] += 1
            return replace(talk, begun=max(talk.begun, 1), stage=place, used=tuple(used))
    return None
