"""A client's side of a federation: it replies to requests from its own samples. No I/O.

client = Client(method, logits, labels)
reply = client.reply(request)              # in every round
personal = client.personalize(scaler)      # at the end: what it makes of the scaler for itself
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedcal.base.arrays import Params
from fedcal.base.checks import as_logits, check_labels
from fedcal.base.query import contiguous
from fedcal.base.store import nest, unnest
from fedcal.base.threads import one_thread
from fedcal.errors import FedCalError
from fedcal.exact.prepared import Prepared
from fedcal.exact.private_query import VALUES, PrivateQuery
from fedcal.methods import Method, Update, get_method
from fedcal.protocol.bounds import check_bounds, check_private_bounds, logit_size, usual_logit_size
from fedcal.protocol.checks import check_request
from fedcal.protocol.messages import Reply, Request
from fedcal.protocol.policy import Policy, Talk
from fedcal.protocol.privacy import Privacy
from fedcal.protocol.scaler import Scaler
from fedcal.protocol.valid import check_set_query
from fedcal.protocol.wire import privacy_from_json, privacy_to_json

ROUNDING = 1e-9  # of shares of a budget that are added up


class LostState(FedCalError):
    """A client's reply builds on its last one, and what it kept from that is gone."""


class Client:
    """One client, or several small ones that reply together.

    Args:
        method: a name (see `fedcal methods`) or a method.
        logits: (N, K), of samples that the model was not trained on.
        labels: (N,), the columns' numbers.
        privacy: kept to whatever the server asks: its budget is counted here, and what it does not cover is refused.
        policy: what it reveals at most, where the server is not trusted; None: whatever its method may ask.
    """

    def __init__(
        self,
        method: str | Method,
        logits: Any,
        labels: Any,
        *,
        privacy: Privacy | None = None,
        policy: Policy | None = None,
    ) -> None:
        checked = as_logits(logits)
        chosen = get_method(method) if isinstance(method, str) else method
        pair = checked, check_labels(labels, len(checked), chosen.classes_of(checked.shape[1]))
        self._prepare(chosen, Prepared(lambda: pair), privacy, policy)

    @classmethod
    def of(
        cls, method: Method, samples: Prepared, *, privacy: Privacy | None = None, policy: Policy | None = None
    ) -> Client:
        """Make a client of samples that are checked already; they are read when they are needed.

        Args:
            method: the federation's.
            samples: the client's.
            privacy: as for the class.
            policy: as for the class.

        Returns:
            The client.
        """
        client = cls.__new__(cls)
        client._prepare(method, samples, privacy, policy)
        return client

    @property
    def samples(self) -> Prepared:
        """Its samples, as its method wants them."""
        return self._samples

    @samples.setter
    def samples(self, samples: Prepared) -> None:
        self._samples = self.method.prepare(samples)

    def _prepare(self, method: Method, samples: Prepared, privacy: Privacy | None, policy: Policy | None) -> None:
        self.method = method
        self.samples, self.policy = samples, policy
        self.privacy = privacy or (policy.privacy if policy else None)
        self.talk = Talk()  # what it has replied to, where it has a policy
        self._sizes: dict[bool, float] = {}  # of its logits, once that is needed: for requests without and with privacy
        if self.privacy:
            self.privacy.check(self.method)
            self.privacy.check_own()
        if policy:
            self.samples.fewest = max(self.samples.fewest, policy.min_count)
            self.samples.min_count = policy.min_count
        self.probs = False  # whether its scores were probabilities: the server's scaler should know
        self.spent = 0.0  # the share of its own privacy budget that its replies have taken
        self._last: Reply | None = None  # its last reply under privacy: noise is drawn once for a request
        self.federation, self.round = "", 0  # of the last reply
        self.n: int | None = None  # how many samples it has, where that is known without reading them
        self._before: Params = {}  # what it had kept before its last reply: a request may come twice
        self.memory: Params = {}  # what it has kept since

    @one_thread()
    @np.errstate(all="ignore")  # whatever a server asks: replies are checked where they arrive
    def reply(self, request: Request, *, check: bool = True) -> Reply:
        """Reply to a request.

        Args:
            request: the server's.
            check: whether to look if the method's server may ask that; not needed where the server is one's own.

        Returns:
            The reply; empty where the client has no samples that the query is about.

        Raises:
            LostState: the reply would have to build on what is gone.
            FedCalError: the request is none of this method's, or of an earlier round.
        """
        if check:
            check_request(request, self.method)
        n = len(self.method.fitted_on(self.samples).labels) if self.n is None else self.n
        if privacy := self.privacy or request.privacy:
            return self._private_reply(request, privacy, n)
        if isinstance(request.query, PrivateQuery):
            raise FedCalError("the server asks a private query without privacy: do not reply to this server")
        if n < (self.policy.min_count if self.policy else 1):  # before anything that could be refused for its samples
            return Reply({}, 0, request.digest, probs=self.probs)
        talk = self._consider(request, n) if self.policy else self.talk
        memory = self._memory_before(request)
        update = self._update(request, memory)
        self._before, self.memory = memory, contiguous(update.memory)
        self.federation, self.round, self.talk = request.federation, request.round, talk
        clients = len(self.samples.counts)
        return Reply(contiguous(update.content), n, request.digest, update.notes, {}, self.probs, clients)

    def _private_reply(self, request: Request, privacy: Privacy, n: int) -> Reply:
        """The reply under privacy: the number of samples is not declared, and a client without any replies as well.

        A refused request costs nothing. One that comes again gets the same reply: its noise is drawn once. But where the
        noise is in shares, it is drawn and paid for again: two totals with the same shares, over other nodes, would differ
        by what one node sent, and only its own share of the noise would hide that.
        """
        last = self._last
        if last is not None and last.to == request.digest and privacy.where != "distributed":
            return last
        if not isinstance(request.query, PrivateQuery):
            kind = type(request.query).__name__
            raise FedCalError(
                f"this client replies to private requests only, not to {kind}: give the server privacy too"
            )
        talk = self._consider(request, n) if self.policy else self.talk
        self._memory_before(request)
        query = replace(request.query, per_client=privacy.unit == "client")
        cost, clients = privacy.cost(query), len(self.samples.counts)
        if self.privacy and self.spent + cost > 1 + ROUNDING:
            raise FedCalError(f"the privacy budget of ε = {privacy.epsilon:g} is used up: this client replies no more")
        sums = self._update(replace(request, query=query), {}).content
        if self.policy:
            sums = {VALUES: sums[VALUES] * _told_of(n, self.policy.min_count, privacy.unit)}
        content = privacy.at_client(query, sums, clients)
        self.spent += cost if self.privacy else 0.0
        told = self.privacy.report(self.spent) if self.privacy else {}
        self.federation, self.round, self.talk = request.federation, request.round, talk
        self._last = Reply(content, 1, request.digest, {}, told, self.probs, clients)
        return self._last

    @one_thread()
    @np.errstate(all="ignore")
    def personalize(self, scaler: Scaler) -> Params:
        """Return the client's personal part of a scaler; empty where the global one serves.

        It also works for a client that took no part.

        Args:
            scaler: the server's.
        """
        if not self.memory and not len(self.samples.labels):
            return {}
        logits, labels = self.samples.scores.astype(float, copy=False), self.samples.labels
        return self.method.personal(contiguous(scaler.params), self.memory, logits, labels)

    def measure(self, federation: str, scaler: Scaler, n_bins: int, private: bool | None = None) -> None:
        """Note that the client sends the metrics of a scaler; its policy allows that for one scaler only.

        Args:
            federation: which asks.
            scaler: whose metrics are sent.
            n_bins: confidence bins that are asked for.
            private: whether they are asked for under differential privacy; None: they may be either.

        Raises:
            FedCalError: where that is refused.
        """
        if self.policy:
            self.talk = self.policy.measuring(self.talk, federation, scaler, n_bins, private)

    def state_dict(self) -> dict[str, Any]:
        """Return what must outlive the client's process: arrays, and JSON values under `about`."""
        about: dict[str, Any] = {"federation": self.federation, "round": self.round, "spent": self.spent}
        about |= {"order": [list(self._before), list(self.memory)]}  # a file sorts them, and sums depend on it
        about |= {"talk": self.talk.to_json(), **privacy_to_json(self.privacy)}
        tensors = nest("before", self._before) | nest("after", self.memory)
        if self._last:
            about["last"] = {"to": self._last.to, "privacy": self._last.privacy}
            tensors["last/values"] = self._last.content[VALUES]
        return {"tensors": tensors, "about": about}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of an earlier process.

        Args:
            state: what `state_dict` gave.

        Raises:
            FedCalError: it is damaged, or its privacy budget was that of another `Privacy`.
        """
        try:
            about, tensors = state["about"], state["tensors"]
            self.federation, self.round = str(about["federation"]), int(about["round"])
            self.talk = Talk.from_json(about["talk"])
            self.spent = spent_of(about, self.privacy)
            if "last" in about:
                content = {VALUES: tensors["last/values"].copy()}
                self._last = Reply(content, 1, str(about["last"]["to"]), {}, dict(about["last"]["privacy"]), self.probs)
            before, after = (unnest(part, tensors) for part in ("before", "after"))
            self._before = contiguous({name: before[name] for name in about["order"][0]})
            self.memory = contiguous({name: after[name] for name in about["order"][1]})
        except (KeyError, TypeError, ValueError) as error:
            raise FedCalError(f"the client's state is damaged ({error}): delete it and start again") from None

    def _update(self, request: Request, memory: Params) -> Update:
        try:
            return self.method.reply(request.query, self.samples, memory)
        except FedCalError:
            raise
        except (
            RuntimeError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            AssertionError,
            MemoryError,
            StopIteration,
        ) as error:
            # Over Flower the server reads this: the error's own words may say how many samples there are.
            kind = type(error).__name__
            raise FedCalError(f"the request does not fit this client's samples ({kind}): check the server") from error

    def _consider(self, request: Request, n: int) -> Talk:
        """Refuse what the client's policy does not allow; return what it remembers after its reply.

        Args:
            request: the server's.
            n: samples of the client.
        """
        assert self.policy
        logits, query = self.samples.logits, request.query
        private = isinstance(query, PrivateQuery)
        talk = self.policy.after(self.talk, request, self.method, query.k if private else logits.shape[1])
        if private and self.privacy:  # its own noise protects it, and a refusal would reveal the size of its logits
            return talk
        if private not in self._sizes:  # of fewer than min_count samples, no refusal may depend on their size
            size_of = usual_logit_size if private else logit_size
            self._sizes[private] = size_of(logits) if n >= self.policy.min_count else 0.0
        try:
            if private:
                check_private_bounds(query, self._sizes[private], self.method)
            else:
                check_bounds(query, self._sizes[private], logits.shape[1], self.samples)
                check_set_query(self.method, query, logits.shape[1])
        except FedCalError:
            # Such a refusal may depend on the samples, is not masked and costs the server nothing: by many of them it could
            # search for the bound in every direction, and find the second moment of this client's features.
            pinned = {name: getattr(talk, name) for name in ("federation", "method", "n_classes")}
            self.talk = replace(self.talk, **pinned, refused=True)
            raise
        return talk

    def _memory_before(self, request: Request) -> Params:
        """What the client had kept when the request was first made."""
        if self.federation != request.federation:  # a new federation, or a client that is new to this one
            all_take_part = self.method.schedule == "post-hoc"
            if self.method.remembers and all_take_part and request.round > 1:
                raise LostState(
                    "what this client kept from its last reply is gone: bring its state back, or start again"
                )
            return {}
        if request.round < self.round:
            raise FedCalError(f"round {request.round} is past: this client has replied to round {self.round} already")
        return self._before if request.round == self.round else self.memory


def spent_of(about: dict[str, Any], privacy: Privacy | None) -> float:
    """Return the share of a privacy budget that is spent, as a client's state says.

    Args:
        about: the state's JSON values.
        privacy: the client's.

    Raises:
        FedCalError: it is a share of another budget, of which ε would be reported wrongly.
    """
    spent = about.get("spent")
    if not isinstance(spent, int | float):
        raise FedCalError("the state does not say what privacy has cost: put the right one back")
    if spent and (began := privacy_from_json(about)) != privacy:
        raise FedCalError(
            f"the state's budget was spent under {began or 'no privacy'}, not {privacy or 'no privacy'}: give that one "
            "again, or begin with a new state, whose budget comes on top of the old one's"
        )
    return float(spent)


def _told_of(n: int, min_count: int, unit: str) -> float:
    """The factor by which a client of n samples multiplies its private sums: 0 for fewer than `min_count` samples.

    Whether a client has `min_count` samples must stay as hidden as any sample. If samples are protected, n of them therefore
    count as n − (min_count − 1) with the same mean: one more sample moves the sum by one summand at most. (If all were sent
    from `min_count` on, that one would move it by `min_count` summands.) If clients are protected, all samples of a client
    are one summand.
    """
    if n < min_count:
        return 0.0
    return (n - (min_count - 1)) / n if unit == "sample" else 1.0
