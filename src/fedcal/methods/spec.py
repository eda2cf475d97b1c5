"""A method and its options in one notation, the same everywhere.

    command line   --method fedcal-plus:accuracy=keep,prior_shift=true
    Python         method="fedcal-plus", accuracy="keep", prior_shift=True   (or the text above as `method`)
    files          {"method": "fedcal-plus", "options": {"accuracy": "keep", "prior_shift": true}}

The text is called a spec. Options are the method's fields that are made by `option` (method.py). Additive methods also take
those of conformal sets (sets.py), such as alpha=0.1: with any of them, sets are made. `get_method` is the only way from a
spec to a method, and checks every option's name, type and bounds.
"""

from __future__ import annotations

import difflib
import hashlib
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, get_args, get_type_hints

from fedcal.base.checks import WORDS, check_value
from fedcal.errors import FedCalError, check_known, error_context, unknown
from fedcal.methods.method import Additive, Method
from fedcal.methods.registry import METHODS
from fedcal.methods.sets import Sets, WithSets

LONGEST = 120  # characters of a file's name


@dataclass(frozen=True)
class Option:
    """One option of a method."""

    name: str
    hint: Any  # int, float, bool or a Literal of strings; perhaps `| None`
    help: str
    rules: Mapping[str, float]  # bounds of a number

    @property
    def kind(self) -> Any:
        """int, float or bool; str where there are choices."""
        first = (get_args(self.hint) or (self.hint,))[0]
        return str if isinstance(first, str) else first

    @property
    def may_be_none(self) -> bool:
        return type(None) in get_args(self.hint)

    @property
    def expected(self) -> str:
        """What may be written after the equals sign, in words: "improve or keep", "a whole number"."""
        if self.kind in (int, float):
            return WORDS[self.kind]
        choices = get_args(self.hint) if self.kind is str else ("true", "false", "none")[: 2 + self.may_be_none]
        return f"{', '.join(choices[:-1])} or {choices[-1]}"

    def read(self, text: str) -> Any:
        """The value that a text means; the text itself if it means none, for `check` to refuse."""
        if self.kind is bool:
            return {"true": True, "false": False, "none": None}.get(text, text)
        try:
            return self.kind(text)
        except ValueError:
            return text

    def check(self, value: Any) -> Any:
        """The value, if it is of the right type and within bounds; a FedCalError if not."""
        check_value(self.name, value, self.hint, self.rules)
        return float(value) if self.kind is float and value is not None else value


def get_method(spec: Any, /, **options: Any) -> Method:
    """Return the method that a spec names, with its options set.

    Args:
        spec: a name of METHODS, or a name with options: "fedcal-plus:accuracy=keep,prior_shift=true".
        options: options as Python values.

    Raises:
        FedCalError: the method or an option is unknown, given twice, without a value, or of the wrong type.
    """
    if not isinstance(spec, str):
        raise FedCalError(
            f"method must be a name (see `fedcal methods`), not {reprlib.repr(spec)}; "
            "samples are given first, as {client: (logits, labels)}"
        )
    name, colon, text = spec.partition(":")
    check_known("method", name, METHODS)
    method = METHODS[name]
    known, values = options_offered(method) | sets_offered(method), dict[str, Any]()
    for part in text.split(",") if colon else []:
        option, equals, value = (word.strip() for word in part.partition("="))
        _check_name(name, option, known, option in values, spec)
        if not equals or not value:
            raise FedCalError(
                f"{name}: option {option!r} has no value in {spec!r}: write {option}=VALUE ({known[option].expected})"
            )
        values[option] = known[option].read(value)
    for option, value in options.items():
        _check_name(name, option, known, option in values, spec)
        values[option] = value
    with error_context(name):
        checked = {option: known[option].check(value) for option, value in values.items()}
        own = {option: value for option, value in checked.items() if option in options_offered(method)}
        chosen, of_sets = replace(method, **own), {o: value for o, value in checked.items() if o not in own}
        return WithSets.of(chosen, Sets(**of_sets)) if of_sets and isinstance(chosen, Additive) else chosen


def options_offered(method: Method) -> dict[str, Option]:
    """A method's options by name: its own first, then those that all methods of its kind have."""
    if isinstance(method, WithSets):
        return options_offered(method.inner) | sets_offered(method.inner)
    return _options_of_class(type(method))


def sets_offered(method: Method) -> dict[str, Option]:
    """The options of conformal sets, by name, if the method can have sets."""
    return _options_of_class(Sets) if isinstance(method, Additive) else {}


def options_of(method: Method) -> dict[str, Any]:
    """Return the options that differ from the registered method of that name, as plain JSON values.

    Args:
        method: one of METHODS, perhaps with other options.
    """
    if isinstance(method, WithSets):
        common = Sets()
        values = {option: getattr(method.sets, option) for option in _options_of_class(Sets)}
        differ = {option: value for option, value in values.items() if value != getattr(common, option)}
        return options_of(method.inner) | {"alpha": method.sets.alpha} | differ
    registered = _registered(method)
    values = {option: getattr(method, option) for option in options_offered(method)}
    return {option: value for option, value in values.items() if value != getattr(registered, option)}


def spec_of(method: Method) -> str:
    """Return the method as text that `get_method` reads: its name, and the options that differ from the registered method.

    Args:
        method: one of METHODS, perhaps with other options.
    """
    options = [f"{option}={value_as_text(value)}" for option, value in options_of(method).items()]
    return f"{method.name}:{','.join(options)}" if options else method.name


def method_to_json(method: Method) -> dict[str, Any]:
    """Return the method as it stands in a file.

    Args:
        method: one of METHODS, perhaps with other options.
    """
    return {"method": method.name, "options": options_of(method)}


def method_from_json(about: Mapping[str, Any]) -> Method:
    """Return the method that a file names.

    Args:
        about: what `method_to_json` gave; other entries are ignored.

    Raises:
        FedCalError: the method or an option is unknown, or of the wrong type.
    """
    name, options = about.get("method"), about.get("options")
    if not isinstance(name, str) or name not in METHODS:
        raise unknown("method", name, METHODS)
    if not isinstance(options, dict):
        raise FedCalError(f"{name}: options must be an object of names and values, not {options!r}")
    return get_method(name, **options)


def short_label(method: Method) -> str:
    """The method for tables and figures: "fedcal-plus (keep)", "fedcal (lr=0.01)"."""
    offered, shown = options_offered(method), list[str]()
    for option, value in options_of(method).items():
        shown.append(value if offered[option].kind is str else f"{option}={value_as_text(value)}")
    return f"{method.name} ({', '.join(shown)})" if shown else method.name


def file_name(spec: str) -> str:
    """A spec as the name of a file on any system: a comma in place of the colon. What is too long ends in a hash."""
    name = spec.replace(":", ",")
    digest = hashlib.blake2b(spec.encode(), digest_size=4).hexdigest()
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}-{digest}"


def value_as_text(value: Any) -> str:
    """An option's value as a spec writes it."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


@cache
def _options_of_class(kind: type) -> dict[str, Option]:
    hints = get_type_hints(kind)
    entries = [entry for entry in fields(kind) if "help" in entry.metadata]
    entries.sort(key=lambda entry: entry.name in Method.__dataclass_fields__)
    return {e.name: Option(e.name, hints[e.name], e.metadata["help"], e.metadata["rules"]) for e in entries}


def _registered(method: Method) -> Method:
    if method.name not in METHODS:
        raise FedCalError(f"{method.name!r} is the name of no method of fedcal's: add the method to METHODS")
    return METHODS[method.name]


def _check_name(name: str, option: str, known: Mapping[str, Option], twice: bool, spec: str) -> None:
    """Refuse an option that the method does not have, or that is given for a second time."""
    if twice:
        raise FedCalError(f"{name}: option {option!r} is given twice: give it once")
    if option in known:
        return
    if option in _options_of_class(Sets):
        raise FedCalError(
            f"{name}: {option!r} is of conformal sets, which need a method that adds sums, as fedcal-plus"
        )
    if not known:
        raise FedCalError(f"{name} has no options: leave {option!r} out")
    if not option:
        raise FedCalError(f"{name}: an option is missing in {spec!r}: write {name}:OPTION=VALUE ({', '.join(known)})")
    own = [name for name in known if name not in _options_of_class(Sets)]
    near = difflib.get_close_matches(option, own, 1, 0.5) or difflib.get_close_matches(option, known, 1, 0.8)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise FedCalError(f"{name}: unknown option {option!r}{hint}: its options are {', '.join(known)}")
