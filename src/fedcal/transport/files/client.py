"""A site's files: what it keeps stays there, apart for every federation; replies go to the server.

SITE.state/FEDERATION.safetensors   what the site keeps between replies
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from fedcal.base.arrays import Array
from fedcal.base.lock import locked
from fedcal.base.store import check_outputs, make_folder, read_bytes, read_tensors, write_bytes, write_tensors
from fedcal.base.threads import one_thread
from fedcal.errors import FedCalError, error_context, unknown
from fedcal.exact.prepared import Prepared
from fedcal.exact.private_query import PrivateQuery
from fedcal.methods import Method
from fedcal.protocol import Client, LostState, Plan, Policy, Privacy, Request, Scaler
from fedcal.protocol.checks import check_client_name, check_n_classes
from fedcal.protocol.client import spent_of
from fedcal.protocol.valid import check_client_state
from fedcal.protocol.wire import asked_clients, pack_reply, privacy_from_json, unpack_request


def read_request(path: Path) -> tuple[Plan, Request, list[str]]:
    """Read what the server sent.

    Args:
        path: request-NNNN.safetensors.

    Returns:
        The federation's plan, the request, and the sites that are asked.

    Raises:
        FedCalError: where the file is not a request.
    """
    data = read_bytes(path)
    with error_context(path):
        plan, request = unpack_request(data)
        return plan, request, asked_clients(data)


def reply(
    request: Path,
    samples: tuple[Array, Array],
    site: str,
    state: Path,
    out: Path | None = None,
    probs: bool = False,
    policy: Policy | None = None,
    join: bool = False,
) -> Path:
    """Write a site's reply to a request, and its state. A request that is replied to twice gives the same bytes.

    Args:
        request: the server's file.
        samples: logits and labels of the site, checked.
        site: its name.
        state: the folder of what it keeps from one reply to the next; it never leaves the site.
        out: the reply; SITE-NNNN.safetensors beside the request if not given.
        probs: whether the site's file held probabilities.
        policy: what the site reveals at most; `Policy()` if not given.
        join: whether a site that takes part in one federation joins another one too: each may ask as much, but under
            privacy they share one budget.

    Returns:
        The path of the reply.

    Raises:
        LostState: where the reply builds on a state that is gone.
        FedCalError: where the request is refused, or not for this site.
    """
    plan, asked, sites = read_request(request)
    if site not in sites:
        raise FedCalError(f"{unknown('site', site, sites)} (the sites of this federation); choose one with --name")
    check_n_classes(site, samples[0].shape[1], plan)
    rules = policy or Policy()
    rules.check_method(plan.method)
    if rules.privacy and not isinstance(asked.query, PrivateQuery):
        raise FedCalError(
            "this site's policy has [privacy], and a server of files makes no private fit: use Flower, or leave it out"
        )
    if rules.privacy and rules.privacy.where == "distributed":
        raise FedCalError(
            "a share of the noise hides a site within a total only: by files give where='local' (--policy)"
        )
    path = out or request.with_name(f"{site}-{asked.round:04d}.safetensors")
    kept_in = state_file(state, plan.federation)
    check_outputs({"--state": kept_in, "--out": path}, [request])
    make_folder(state, private=True)
    with locked(state, f"fedcal client reply, round {asked.round}"):
        if not join and not kept_in.exists() and any(state.glob("*.safetensors")):
            raise FedCalError(
                f"{site} takes part in another federation, as {state} says: do not reply, or join this one too (--join)"
            )
        client = _client(plan.method, samples, site, kept_in, rules)
        client.probs = probs
        if rules.privacy:  # one budget for all federations that this site has joined
            client.spent = max([client.spent, *(_spent(path, rules.privacy) for path in state.glob("*.safetensors"))])
        try:
            found = client.reply(asked)
        except LostState as error:
            raise LostState(f"{state}: {error}; where it is elsewhere, give --state") from None
        except FedCalError:
            if client.talk.refused:
                _keep(client, site, kept_in)
            raise
        _keep(client, site, kept_in)
        write_bytes(path, pack_reply(found, site))
    return path


def state_file(state: Path, federation: str) -> Path:
    """Return where a site keeps what it needs for one federation; the federation's name comes from a stranger."""
    if state.exists() and not state.is_dir():
        raise FedCalError(f"--state {state} is a file: give a folder")
    if not re.fullmatch(r"[0-9A-Za-z_-]{1,64}", federation):
        federation = hashlib.blake2b(federation.encode(errors="replace"), digest_size=16).hexdigest()
    return state / f"{federation}.safetensors"


@one_thread()
def finish(
    scaler: Path, samples: tuple[Array, Array | None], site: str, state: Path, out: Path, probs: bool = False
) -> bool:
    """Write a site's scaler: the global one, and the site's personal part. Also for a site that took no part.

    Args:
        scaler: the server's.
        samples: logits of the site and their labels; without labels for methods that do not need them.
        site: its name.
        state: the folder of what it kept from its last reply.
        out: the file to write.
        probs: whether the site's file held probabilities: its scaler then takes probabilities.

    Returns:
        Whether there was a state: the site took part.

    Raises:
        FedCalError: where a file is damaged or the samples do not fit.
    """
    final = Scaler.load(scaler)
    logits, labels = samples
    final.check_width(logits)
    kept = state_file(state, final.federation)
    check_outputs({"--state": kept, "--out": out}, [scaler])
    client = _client(final.method, (logits, logits[:0] if labels is None else labels), check_client_name(site), kept)
    if labels is None:
        personal = final.method.personal(final.params, client.memory, logits.astype(float, copy=False), None)
    else:
        personal = client.personalize(final)
    final.probs, final.personal, final.federation = probs, {site: personal}, ""
    final.save(out, private=True)  # a personal part reveals the site's label distribution
    return kept.exists()


def _keep(client: Client, site: str, state: Path) -> None:
    kept = client.state_dict()
    write_tensors(state, kept["tensors"], kept["about"] | {"site": site}, private=True)


def _spent(state: Path, privacy: Privacy) -> float:
    """The share of the site's privacy budget that was spent when this state was written."""
    about = read_tensors(state)[1]
    with error_context(state):
        return spent_of(about, privacy)


def _client(
    method: Method, samples: tuple[Array, Array], site: str, state: Path, policy: Policy | None = None
) -> Client:
    """The site's client, in the state in which it was last; without a policy, under the privacy that it had."""
    if not state.exists():
        return Client.of(method, Prepared(lambda: samples), policy=policy)
    tensors, about = read_tensors(state)
    if about.get("site") != site:
        raise FedCalError(f"{state} is not the state of {site}: give its own with --state")
    stored = {"tensors": tensors, "about": about}
    with error_context(state):
        check_client_state(stored)
        privacy = None if policy else privacy_from_json(about)
        client = Client.of(method, Prepared(lambda: samples), privacy=privacy, policy=policy)
        client.load_state_dict(stored)
    return client
