"""Draw docs/images/demo.png from a run folder: python docs/images/demo.py runs/demo"""

import io
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

from fedcal.report import figures, load, prepare


def drawn(figure: Figure, width: int) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200, facecolor="white")
    image = Image.open(buffer).convert("RGB")
    return image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)


results = load(sys.argv[1]).results
curves = [prepare.prepare_reliability(results, name) for name in ("uncal", "lr-ts", "fedcal")]
with mpl.rc_context(figures.STYLE):
    top = drawn(figures.plot_reliability(curves, curves[0])[0], 1400)
    left = drawn(figures.plot_ece(prepare.prepare_ece(results))[0], 690)
    right = drawn(figures.plot_skew(prepare.prepare_skew(results))[0], 690)
page = Image.new("RGB", (1400, top.height + 20 + max(left.height, right.height)), "white")
page.paste(top, (0, 0))
page.paste(left, (0, top.height + 20))
page.paste(right, (710, top.height + 20))
small = page.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
small.save(Path(__file__).with_suffix(".png"), optimize=True)
