"""Draw docs/images/demo.png from the demo's run folder: python docs/images/demo.py runs/demo"""

import io
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

from fedcal.report import figures, load, story
from fedcal.report.numbers import percent
from fedcal.report.story_figures import plot_change, plot_panel

WIDTH, BORDER, GAP = 1400, 20, 24


def drawn(figure: Figure, width: int) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200, facecolor="white")
    image = Image.open(buffer).convert("RGB")
    return image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)


results = load(sys.argv[1]).results
fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"
bold, plain = (ImageFont.truetype(str(fonts / name), 24) for name in ("DejaVuSans-Bold.ttf", "DejaVuSans.ttf"))
with mpl.rc_context(figures.STYLE):
    panels = story.panels(results)
    third = (WIDTH - 2 * BORDER - GAP * (len(panels) - 1)) // len(panels)
    tops = [drawn(plot_panel(panel), third) for panel in panels]
    bottoms = [drawn(plot_change(change), (WIDTH - 2 * BORDER - GAP) // 2) for change in story.changes(results)]
above = 110
height = above + tops[0].height + 40 + bottoms[0].height
page = Image.new("RGB", (WIDTH, height), "white")
pen = ImageDraw.Draw(page)
for i, (panel, image) in enumerate(zip(panels, tops, strict=True)):
    left = BORDER + i * (third + GAP)
    ece, accuracy = (percent(value, sign=True) for value in (panel.ece, panel.accuracy))
    pen.text((left + 4, 18), panel.title, figures.INK, bold)
    pen.text((left + 4, 56), f"{accuracy} right, ECE {ece}", figures.MUTED, plain)
    page.paste(image, (left, above))
for i, image in enumerate(bottoms):
    page.paste(image, (BORDER + i * (image.width + GAP), above + tops[0].height + 40))
small = page.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
small.save(Path(__file__).with_suffix(".png"), optimize=True)
