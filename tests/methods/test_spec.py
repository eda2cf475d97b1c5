"""A method and its options as text, as Python values and as JSON: one meaning, and one-line errors."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedcal
from fedcal.errors import FedCalError
from fedcal.methods import METHODS, Method, get_method, method_from_json, method_to_json, options_of, spec_of
from fedcal.methods.fedcal import FedCal
from fedcal.methods.spec import LONGEST, Option, file_name, options_offered, short_label


@pytest.mark.parametrize("name", METHODS)
def test_registered_methods_know_their_names_and_explain_their_options(name):
    method = METHODS[name]
    assert (method.name, options_of(method), spec_of(method)) == (name, {}, name)
    assert get_method(name) == method
    for option in options_offered(method).values():
        assert option.help.endswith(".") and option.expected
        assert option.check(getattr(method, option.name)) == getattr(method, option.name)


def test_name_and_summary_are_no_options():
    assert all(not {"name", "summary"} & set(options_offered(method)) for method in METHODS.values())
    assert options_offered(METHODS["uncal"]) == {}


@pytest.mark.parametrize(
    ("spec", "options", "canonical"),
    [
        ("fedcal-plus:accuracy=keep", {"accuracy": "keep"}, "fedcal-plus:accuracy=keep"),
        ("fedcal-plus:prior_shift=true,accuracy=keep", {"accuracy": "keep", "prior_shift": True},
         "fedcal-plus:accuracy=keep,prior_shift=true"),
        ("fedcal-plus:prior_shift=none", {}, "fedcal-plus"),
        ("fedcal: lr = 1e-2 , steps=20", {"lr": 0.01, "steps": 20}, "fedcal:lr=0.01,steps=20"),
        ("fedcal:hidden=64", {}, "fedcal"),
        ("fedcal-small:hidden=64", {"hidden": 64}, "fedcal-small:hidden=64"),
        ("fed-vector:ridge=1", {"ridge": 1.0}, "fed-vector:ridge=1"),
        ("fedcal:shared_init=false", {"shared_init": False}, "fedcal:shared_init=false"),
    ],
)  # fmt: skip
def test_text_python_and_json_mean_the_same(spec, options, canonical):
    name, method = spec.partition(":")[0], get_method(spec)
    assert method == get_method(name, **options)
    assert (options_of(method), spec_of(method)) == (options, canonical)
    assert get_method(canonical) == method
    assert method_from_json(json.loads(json.dumps(method_to_json(method)))) == method


def values(option: Option) -> st.SearchStrategy[object]:
    if option.kind is bool:
        return st.sampled_from([True, False, None] if option.may_be_none else [True, False])
    if option.kind is str:
        return st.sampled_from(option.hint.__args__)
    numbers = st.integers(2, int(min(10**6, option.rules["high"])))
    return numbers if option.kind is int else numbers | st.floats(1e-300, 1e9)


@given(st.data())
def test_every_choice_of_options_comes_back(data):
    method: Method = METHODS[data.draw(st.sampled_from(sorted(METHODS)))]
    strategies = {name: values(option) for name, option in options_offered(method).items()}
    chosen = get_method(method.name, **data.draw(st.fixed_dictionaries({}, optional=strategies)))
    assert get_method(spec_of(chosen)) == chosen
    assert method_from_json(json.loads(json.dumps(method_to_json(chosen)))) == chosen


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        ("fedcl", {}, "unknown method 'fedcl': did you mean 'fedcal'?"),
        (3, {}, "method must be a name (see `fedcal methods`), not 3"),
        ("fedcal-plus:", {}, "an option is missing in 'fedcal-plus:'"),
        ("fedcal-plus:accuracy=keep,", {}, "an option is missing"),
        ("fedcal-plus:accuracy", {}, "option 'accuracy' has no value in 'fedcal-plus:accuracy': write accuracy=VALUE"),
        ("fedcal-plus:accuracy=", {}, "(improve or keep)"),
        ("fedcal-plus:accuracy=kep", {}, "fedcal-plus: unknown accuracy 'kep': did you mean 'keep'?"),
        ("fedcal-plus:accuracy=keep,accuracy=keep", {}, "fedcal-plus: option 'accuracy' is given twice"),
        ("fedcal-plus:accuracy=keep", {"accuracy": "keep"}, "fedcal-plus: option 'accuracy' is given twice"),
        ("fedcal-plus:acuracy=keep", {}, "did you mean 'accuracy'?): its options are accuracy, informed, prior_shift,"),
        ("fed-ts", {"hidden": 8}, "fed-ts: unknown option 'hidden': its options are rounds, fit_on"),
        ("fedcal", {"summary": "x"}, "fedcal: unknown option 'summary'"),
        ("uncal:rounds=1", {}, "uncal has no options: leave 'rounds' out"),
        ("fedcal:hidden=x", {}, "fedcal: hidden must be a whole number, not 'x'"),
        ("fedcal", {"hidden": True}, "fedcal: hidden must be a whole number, not True"),
        ("fedcal", {"hidden": 0}, "fedcal: hidden must be at least 1, not 0"),
        ("fedcal:lr=nan", {}, "fedcal: lr must be above 0, not nan"),
        ("fedcal:lr=inf", {}, "fedcal: lr must be at most 1000000000, not inf"),
        ("fedcal", {"lr": "0.1"}, "fedcal: lr must be a number, not '0.1'"),
        ("fedcal-plus:informed=3", {}, "fedcal-plus: informed must be true or false, not '3'"),
        ("fedcal-plus", {"informed": None}, "fedcal-plus: informed must be true or false, not None"),
        ("fedcal-plus", {"prior_shift": 1}, "fedcal-plus: prior_shift must be true or false, not 1"),
        ("fedcal-plus", {"accuracy": ["keep"]}, "fedcal-plus: unknown accuracy ['keep']: did you mean 'keep'?"),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong_and_what_to_do(spec, options, words):
    with pytest.raises(FedCalError) as error:
        get_method(spec, **options)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({}, "unknown method None"),
        ({"method": ["fedcal"], "options": {}}, "unknown method"),
        ({"method": "fedcal:hidden=8", "options": {}}, "unknown method 'fedcal:hidden=8'"),
        ({"method": "fedcal"}, "fedcal: options must be an object"),
        ({"method": "fedcal", "options": {"hidden": "8"}}, "hidden must be a whole number"),
    ],
)
def test_files_are_checked_too(about, words):
    with pytest.raises(FedCalError, match=words):
        method_from_json(about)


def test_a_method_of_another_name_is_refused():
    with pytest.raises(FedCalError, match="'mine' is the name of no method"):
        spec_of(replace(METHODS["fed-ts"], name="mine"))


def test_labels_are_short_and_file_names_safe():
    assert (
        short_label(get_method("fedcal-plus:accuracy=keep,prior_shift=true")) == "fedcal-plus (keep, prior_shift=true)"
    )
    assert short_label(FedCal(lr=0.01, start="own")) == "fedcal (own, lr=0.01)"
    assert short_label(METHODS["fed-ts"]) == "fed-ts"
    assert file_name("fedcal-plus:accuracy=keep,prior_shift=true") == "fedcal-plus,accuracy=keep,prior_shift=true"
    long = [f"fedcal:{'x' * 200}={i}" for i in range(2)]
    assert file_name(long[0]) != file_name(long[1]) and all(len(file_name(spec)) <= LONGEST for spec in long)


def test_a_spec_is_taken_wherever_a_name_is():
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(120, 3))
    clients = [(z, (z / 3 + rng.gumbel(size=z.shape)).argmax(axis=1))]
    by_keyword = fedcal.calibrate(clients, "fedcal-plus", accuracy="keep")
    by_spec = fedcal.calibrate(clients, "fedcal-plus:accuracy=keep")
    estimator = fedcal.FederatedCalibrator("fedcal-plus:accuracy=keep").fit(clients)
    for other in (by_spec, estimator.scaler_):
        assert other.method == by_keyword.method
        assert np.array_equal(other.apply(z), by_keyword.apply(z))
    (method,) = fedcal.Config(method=("fedcal-plus:accuracy=keep",)).methods().values()
    assert method == by_keyword.method
