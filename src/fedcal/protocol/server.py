"""A server's side of a federation: it asks, receives, and in the end holds the scaler. No I/O.

    server = Server("fedcal-plus", n_classes=10)
    while (request := server.request) is not None:
        server.receive({name: client.reply(request) for name, client in clients.items()})
    scaler = server.scaler

Rounds, bytes and who took part are counted here (`ledger`), for every transport. A transport for strangers calls `check`
on every reply first; one that must survive lost clients calls `drop`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedcal.base.arrays import Params
from fedcal.base.checks import check_whole
from fedcal.base.store import unnest
from fedcal.base.threads import one_thread
from fedcal.errors import FedCalError
from fedcal.exact.private_query import PrivateQuery
from fedcal.methods import Method, Update, get_method
from fedcal.methods.fit import AveragingFit, Fit, n_bytes
from fedcal.methods.method import Additive
from fedcal.methods.robust import Robust
from fedcal.protocol.checks import check_reply, example_reply, outliers
from fedcal.protocol.claim import Known
from fedcal.protocol.ledger import Ledger, query_bytes
from fedcal.protocol.messages import MOST_CLASSES, Plan, Reply, Request
from fedcal.protocol.privacy import Privacy
from fedcal.protocol.scaler import Scaler
from fedcal.protocol.valid import check_alike, check_params, check_server_state
from fedcal.protocol.wire import plan_to_json, privacy_from_json, privacy_to_json

RESTARTS = 3  # of an exact fit whose clients fall away: as often it begins again with those that are left


class Server:
    """A method's server half, with what is known of its clients.

    Args:
        method: a name (see `fedcal methods`), also with options ("fedcal-plus:accuracy=keep"), or a method.
        n_classes: K of the logits.
        seed: for everything that is random.
        rounds: rounds in all; the method's own number if not given.
        classes: the label of each column; empty if labels are the columns' numbers.
        privacy: differential privacy of an additive method: its private program is run.
        robust: "median" or "trimmed" in place of the mean, for methods that average scalers.
        history: whether to keep what `state_dict` needs.
    """

    def __init__(
        self,
        method: str | Method,
        n_classes: int,
        seed: int = 0,
        *,
        rounds: int | None = None,
        classes: tuple[Any, ...] = (),
        privacy: Privacy | None = None,
        robust: Robust | None = None,
        history: bool = True,
    ) -> None:
        chosen = get_method(method) if isinstance(method, str) else method
        if (k := check_whole(n_classes, "n_classes", low=2)) > MOST_CLASSES:
            raise FedCalError(f"{n_classes} classes: there may be {MOST_CLASSES} at most")
        self.plan = Plan(chosen, k, check_whole(seed, "seed", low=0), classes)
        self.rounds = chosen.rounds if rounds is None else check_whole(rounds, "rounds", low=0)
        self.privacy, self.history = privacy, history
        self.robust: Robust | None = robust
        if robust not in (None, "median", "trimmed"):
            raise FedCalError(f"robust must be median or trimmed, not {robust!r}")
        if robust and (chosen.additive or chosen.needs_pooled_data):
            raise FedCalError("what this method's clients send has no median: robust is for fedcal and its variants")
        if privacy:
            privacy.check(chosen)
        self.ledger = Ledger()
        self._begin()

    @classmethod
    def of(cls, plan: Plan) -> Server:
        """Make the server of a plan that was written down: its federation keeps its name.

        Args:
            plan: what the server and its clients agreed on.

        Returns:
            The server, before its first round.
        """
        server = cls(plan.method, plan.n_classes, plan.seed, classes=plan.classes)
        server.plan = plan
        return server

    @one_thread()
    @np.errstate(all="ignore")
    def _begin(self) -> None:
        method, k = self.plan.method, self.plan.n_classes
        if self.privacy and isinstance(method, Additive):
            self.fit: Fit = method.begin_private(k, self.rounds, self.privacy.clip)
        else:
            self.fit = method.begin(k, self.rounds, self.plan.seed)
        self.fit.robust, self.fit.keeps_history = self.robust, self.history
        self.known: dict[str, Known] = {}  # what clients have declared since the fit began
        self._checked: dict[str, Known] = {}  # the same, of replies that were checked and not yet received
        self.private: dict[str, dict[str, Any]] = {}  # what clients with a privacy budget of their own say of it
        self._request: Request | None = None
        self._example: Params | None = None

    # --- a round ---------------------------------------------------------------------------------------------------------

    @property
    def request(self) -> Request | None:
        """What every client is asked next; None when the scaler is ready."""
        query = self.fit.query
        if query is None:
            return None
        if self._request is None:
            self._request = Request(self.plan.federation, self.ledger.rounds + 1, query, self.privacy)
        return self._request

    @property
    def example(self) -> Params:
        """A reply's names, types and shapes, as one of a single sample shows them."""
        if self._example is None:
            query = self.fit.query
            self._example = example_reply(self.plan.method, self.plan.n_classes, query) if query else {}
        return self._example

    @np.errstate(all="ignore")
    def check(self, name: str, reply: Reply) -> None:
        """Refuse a reply that no honest client gives to this request.

        Args:
            name: whose reply it is.
            reply: what came.

        Raises:
            FedCalError: one line that names the client and the reason.
        """
        if (request := self.request) is None:
            raise FedCalError(f"{name} sent a reply, but no request is open: the scaler is ready")
        known = self.known.get(name)
        check_reply(name, reply, request, self.plan, known, self.example, self.privacy is not None)
        self._checked[name] = (known or Known()).after(reply)

    @one_thread()
    @np.errstate(all="ignore")  # what is not finite is refused, or steps are shortened
    def receive(self, replies: Mapping[str, Reply] | Iterable[tuple[str, Reply]], *, check: bool = True) -> None:
        """Take a round's replies, and go on: to the next request, or to the scaler.

        Args:
            replies: by client, or pairs (client, reply) that are taken one by one: sums need not be held together.
            check: whether to `check` each, and to compare them if they are a mapping; not needed where that was done, or
                the clients are one's own.

        Raises:
            FedCalError: where a reply is refused, or all of them together lead nowhere.
        """
        if (request := self.request) is None:
            raise FedCalError("no request is open: the scaler is ready")
        pairs: Any = replies
        if isinstance(replies, Mapping):
            pairs = list(replies.items())
            if check:
                self._compare(dict(pairs))
                check = False
        seen = _Round()
        gathered = self.fit.gather(self._updates(pairs, check, seen))
        if not seen.names and self.plan.method.additive:
            raise FedCalError("no samples to calibrate on: every client is empty; at least one needs some")
        if self.privacy and isinstance(request.query, PrivateQuery):
            gathered = self.privacy.at_server(request.query, gathered, seen.clients)
            self.ledger.spent += self.privacy.cost(request.query)
        self.ledger.close_round(list(seen.names), seen.clients, seen.largest, query_bytes(request.query))
        self.ledger.notes.update(seen.notes)
        self._request = self._example = None
        self._checked = {}
        self.fit.advance(gathered)

    def _compare(self, replies: dict[str, Reply]) -> None:
        """Check every reply, and then each one against the others."""
        for name, reply in replies.items():
            self.check(name, reply)
        # Under privacy replies do not say how many samples they are of, and honest ones may differ by any factor.
        for reason in {} if self.privacy else outliers(replies, self.plan.method.additive, self.known).values():
            raise FedCalError(reason)

    def _updates(self, pairs: Iterable[tuple[str, Reply]], check: bool, seen: _Round) -> Iterator[tuple[str, Update]]:
        """The replies that say something, one by one; what they tell of their clients is noted, here and in `seen`."""
        for name, reply in pairs:
            if name in seen.names:
                raise FedCalError(f"{name} replies twice in a round: give one reply of each client")
            if check:
                self.check(name, reply)
            if name in self._checked:
                self.known[name] = self._checked[name]
            if reply.privacy:
                self.private[name] = reply.privacy
            if reply.content:
                seen.add(name, reply)
                yield name, Update(reply.content, reply.n)

    # --- clients that fall away, and the server itself ---------------------------------------------------------------------

    def drop(self, names: Iterable[str]) -> bool:
        """Go on without some clients.

        An exact fit that holds sums of theirs begins again with the others, so that it is exact for those who took part; not
        more than RESTARTS times, and not where that would cost privacy twice.

        Args:
            names: the clients that dropped out; unknown ones are noted and change nothing.

        Returns:
            Whether the fit starts again: replies to the last request can then not be used.
        """
        leaving = sorted(names)
        self.ledger.dropped += [name for name in leaving if name not in self.ledger.dropped]
        gone = [name for name in leaving if self.known.pop(name, None)]
        private = self.privacy is not None or bool(self.private)
        if not gone or not self.fit.received or not self.plan.method.additive or private:
            return False
        if self.fit.query is None or self.ledger.restarts >= RESTARTS:
            return False
        self._begin()
        self.ledger.restarts += 1
        self.ledger.rounds += 1  # the round that came to nothing: numbers never repeat
        return True

    @property
    def scaler(self) -> Scaler:
        """The scaler: of an averaging method so far, of an exact one when it is done.

        Raises:
            FedCalError: where an exact fit is not done.
        """
        plan, method = self.plan, self.plan.method
        if method.additive and self.fit.query is not None:
            raise FedCalError("the fit is not done: there is no scaler yet")
        probs = (bool(self.known) and all(of.probs for of in self.known.values())) or None
        return Scaler(method, self.fit.params, plan.n_classes, classes=plan.classes, probs=probs, ledger=self.ledger)

    def state_dict(self, since: int = 0) -> dict[str, Any]:
        """Return all that is needed to stop here and go on elsewhere: arrays, and JSON values under `about`.

        Args:
            since: leave out the rounds of an exact fit up to this one, where they are stored already.
        """
        tensors, fit = self.fit.state(since)
        known = {name: [of.n, of.squares, of.probs] for name, of in self.known.items()}
        features = {name: [of.trained, of.features] for name, of in self.known.items() if of.features is not None}
        about = {
            **plan_to_json(self.plan), "rounds": self.rounds, "fit": fit, "ledger": self.ledger.to_dict(), "known": known,
            "private": self.private, **({"features": features} if features else {}), **privacy_to_json(self.privacy),
        }  # fmt: skip
        return {"tensors": tensors, "about": about}

    @one_thread()
    @np.errstate(all="ignore")
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a server of the same method stood.

        Args:
            state: what `state_dict` gave.

        Raises:
            FedCalError: the state is damaged, or of another method or federation.
        """
        check_server_state(state)
        about, mine = state["about"], plan_to_json(self.plan)
        for key in ("method", "options", "n_classes", "seed", "classes"):
            if about.get(key) != mine[key]:
                raise FedCalError(
                    f"the state is of another federation: its {key} is {about.get(key)!r}, not {mine[key]!r}"
                )
        # Its sums have the noise of the privacy that it began with: under another one, what is reported would be false.
        if (began := privacy_from_json(about)) != self.privacy:
            raise FedCalError(f"the state is of a fit with {began or 'no privacy'}, not {self.privacy or 'no privacy'}")
        try:
            self.plan = replace(self.plan, federation=str(about["federation"]))
            self._begin()
            self._load_fit(state["tensors"], about["fit"])
            self.ledger = Ledger.from_dict(about["ledger"])
            self.known = {name: Known(*declared) for name, declared in about["known"].items()}
            for name, (trained, squares) in about.get("features", {}).items():
                self.known[name] = replace(self.known[name], trained=float(trained), features=float(squares))
            self.private = dict(about["private"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FedCalError(f"the state is damaged ({error}): start again") from None

    def _load_fit(self, tensors: Params, about: dict[str, Any]) -> None:
        """Bring the fit to where it was, if what is stored is what its queries ask for."""
        if not isinstance(self.fit, AveragingFit):
            added = {"noise": np.zeros(())} if self.privacy else {}
            for number in range(1, about["received"] + 1):
                check_alike(unnest(f"{number:04d}", tensors), self.example | added)
                self.fit.load(tensors, {"received": number})
                self._example = None
            return
        self.fit.load(tensors, about)
        check_params(self.plan.method, self.fit.params, self.plan.n_classes)
        for update in self.fit.latest.values() if self.fit.query is not None else ():
            check_alike(update.content, self.example)


class _Round:
    """What a round's replies come to, besides their content."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}  # of those that said something, in their order
        self.clients = self.largest = 0
        self.notes: Counter[str] = Counter()

    def add(self, name: str, reply: Reply) -> None:
        self.names[name] = None
        self.clients += reply.clients
        self.largest = max(self.largest, n_bytes(reply.content))
        self.notes.update(reply.notes)
