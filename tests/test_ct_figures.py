"""Heat maps with numbers in them, and what is kept of the images of the CT study."""

import numpy as np
from matplotlib import colormaps

from vspair.report import figures
from vspair.report.cells import heat_map, readable


def test_numbers_in_cells_can_be_told_apart() -> None:
    for cells, words in (
        ([[0.0123, 35.0], [0.2, np.nan]], ["0.0123", "35", "0.2", "none"]),
        ([[1e-5, 1e30], [1.0, 2.0]], ["1e-05", "1e+30", "1", "2"]),
        ([[0.869, 0.9], [0.87, 0.9017]], ["0.869", "0.900", "0.870", "0.902"]),
    ):
        axes = figures.new_figure(2, 2).subplots()
        heat_map(axes, np.array(cells))
        assert [text.get_text() for text in axes.texts] == words


def test_text_can_be_read_on_every_colour() -> None:
    """Contrast by the definition of the web's accessibility guidelines: at least 4.5."""
    for share in np.linspace(0, 1, 101):
        shade = colormaps[figures.MAPS["values"]](float(share))
        colour = np.array(shade[:3])
        linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
        luminance = float(linear @ [0.2126, 0.7152, 0.0722])
        text = 1.0 if readable(shade) == "white" else 0.0
        high, low = max(luminance, text) + 0.05, min(luminance, text) + 0.05
        assert high / low >= 4.5


def test_saved_images_are_right_to_1_per_cent_and_stay_off_0() -> None:
    """The share of pixels beyond two deviations is counted by what is not 0."""
    from vspair.studies.ct import figures as ct_figures

    images = np.random.default_rng(0).normal(size=(2, 30, 30)).astype(np.float32)
    images[0, :, :7] = 0.0
    images[1, 0] = 1e-5
    kept = ct_figures._narrow({"images": images})["images"]
    np.testing.assert_allclose(kept, images, rtol=0.01)
    assert ((kept != 0) == (images != 0)).all()
