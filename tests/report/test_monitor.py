"""The page of a monitor: a verdict in words, a plot per site, every test in the table; the same bytes for the same state."""

import re
import shlex
from dataclasses import replace
from html import unescape

import numpy as np

import fedcal
from fedcal.monitor.verdict import Action
from fedcal.report.monitor import MOST, render


def test_pages_show_every_test_and_escape_names():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 2))
    labels = (rng.random(200) < 0.5).astype(int)
    scaler = fedcal.calibrate([(logits, labels)], "fed-ts")
    sites = ["<b>x", *(f"site {i}" for i in range(MOST + 4))]
    monitor = fedcal.Monitor(scaler, sites)
    assert "No batch was sent yet." in render(monitor.verdict())
    for site in sites:
        monitor.add(monitor.sums(scaler, site, "w0", logits, labels))
    page = render(monitor.verdict())
    assert page == render(monitor.verdict())
    assert page.count("<svg") == MOST and "6 more sites" in page and "<b>x" not in page and "&lt;b&gt;x" in page
    assert all(page.count(f'<th scope="row">site {i}<') == 1 for i in range(MOST + 4))
    assert "Nothing to do." in page
    assert "a truth between 44\u00a0% and 56\u00a0%" in page


def test_the_dot_tells_an_alarm_from_calm_and_from_silence():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 2))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    scaler = fedcal.calibrate({"a": (logits, labels), "b": (logits, labels)}, "fed-ts")
    monitor = fedcal.Monitor(scaler, ["a", "b"])
    monitor.add(monitor.sums(scaler, "a", "w0", logits, labels))
    assert '<h1 class="">' in render(monitor.verdict())  # b has sent nothing
    monitor.add(monitor.sums(scaler, "b", "w0", logits, labels))
    assert '<h1 class="calibrated">' in render(monitor.verdict())
    monitor.add(monitor.sums(scaler, "b", "w1", logits, 1 - labels))
    assert '<h1 class="not-calibrated">' in render(monitor.verdict())


def test_what_to_do_names_a_command():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 2))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    scaler = fedcal.calibrate({"St. Mary's": (logits, labels), "b": (logits, labels)}, "fed-ts")
    monitor = fedcal.Monitor(scaler, ["St. Mary's", "b"])
    monitor.add(monitor.sums(scaler, "St. Mary's", "w1", logits, 1 - labels))
    verdict = monitor.verdict()
    assert verdict.actions["St. Mary's"] == Action.NEW_FIT
    assert "<code>fedcal calibrate FILE... --out calibrated</code>" in render(verdict)
    page = render(replace(verdict, actions={"St. Mary's": Action.NEW_OFFSET}))
    command = unescape(re.search(r"<code>(fedcal client finish .*?)</code>", page)[1])
    assert shlex.split(command)[5:7] == ["--name", "St. Mary's"]
