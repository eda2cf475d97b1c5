"""A site's files: SITE.state.safetensors stays there; replies go to the server."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from fedcal.base.store import read_tensors, write_bytes, write_tensors
from fedcal.base.threads import one_thread
from fedcal.errors import FedCalError, unknown
from fedcal.exact.prepared import Prepared
from fedcal.methods import Method
from fedcal.protocol import Client, LostState, Plan, Policy, Request, Scaler
from fedcal.protocol.checks import check_client_name, check_n_classes
from fedcal.protocol.wire import asked_clients, pack_reply, unpack_request


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes, or raise a FedCalError that names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FedCalError(f"{path} cannot be read: {error.strerror or error}") from None


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
    try:
        plan, request = unpack_request(data)
        return plan, request, asked_clients(data)
    except FedCalError as error:
        raise FedCalError(f"{path}: {error}") from None


def reply(
    request: Path,
    samples: tuple[Tensor, Tensor],
    site: str,
    state: Path,
    out: Path | None = None,
    probs: bool = False,
    policy: Policy | None = None,
) -> Path:
    """Write a site's reply to a request, and its state. A request that is replied to twice gives the same bytes.

    Args:
        request: the server's file.
        samples: logits and labels of the site, checked.
        site: its name.
        state: what it keeps from one reply to the next; this file never leaves the site.
        out: the reply; SITE-NNNN.safetensors beside the request if not given.
        probs: whether the site's file held probabilities.
        policy: what the site tells at most; `Policy()` if not given.

    Returns:
        The path of the reply.

    Raises:
        LostState: where the reply builds on a state that is gone, or the state is of another federation.
        FedCalError: where the request is refused, or not for this site.
    """
    plan, asked, sites = read_request(request)
    if site not in sites:
        raise FedCalError(f"{unknown('site', site, sites)} (this federation's; say which one with --name)")
    check_n_classes(site, samples[0].shape[1], plan)
    rules = policy or Policy()
    rules.check_method(plan.method)
    client = _client(plan.method, samples, site, state, rules)
    if asked.round > 1 and client.federation not in ("", plan.federation):
        raise LostState(f"{state} is of another federation: give the --state of this one")
    client.probs = probs
    try:
        found = client.reply(asked)
    except LostState as error:
        raise LostState(f"{state}: {error}; where it is elsewhere, give --state") from None
    kept = client.state_dict()
    write_tensors(state, kept["tensors"], kept["about"] | {"site": site})
    path = out or request.with_name(f"{site}-{asked.round:04d}.safetensors")
    write_bytes(path, pack_reply(found, site))
    return path


@one_thread()
def finish(
    scaler: Path, samples: tuple[Tensor, Tensor | None], site: str, state: Path, out: Path, probs: bool = False
) -> bool:
    """Write a site's scaler: the global one, and the site's personal part. Also for a site that took no part.

    Args:
        scaler: the server's.
        samples: logits of the site and their labels; without labels for methods that do not need them.
        site: its name.
        state: what it kept from its last reply.
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
    client = _client(final.method, (logits, logits[:0] if labels is None else labels), check_client_name(site), state)
    if labels is None:
        personal = final.method.personal(final.params, client.memory, logits.double(), None)
    else:
        personal = client.personalize(final)
    final.probs, final.personal = probs, {site: personal}
    final.save(out)
    return state.exists()


def _client(
    method: Method, samples: tuple[Tensor, Tensor], site: str, state: Path, policy: Policy | None = None
) -> Client:
    """The site's client, in the state in which it was last."""
    client = Client.of(method, Prepared(lambda: samples), policy=policy)
    if state.exists():
        tensors, about = read_tensors(state)
        if about.get("site") != site:
            raise FedCalError(f"{state} is not the state of {site}: give its own with --state")
        client.load_state_dict({"tensors": tensors, "about": about})
    return client
