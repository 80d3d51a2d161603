"""Make a picture smaller: a model that takes a file and gives one back.

A caller passes a URL or a data URI as `image`. Cog fetches it first, so `predict` sees a file on disk, and the file
it returns is handed to the caller.
"""

import tempfile

from cog import BasePredictor, Input, Path
from PIL import Image, ImageOps, UnidentifiedImageError


class Predictor(BasePredictor):
    def predict(
        self,
        image: Path = Input(description="The picture to make smaller."),
        size: int = Input(default=128, ge=1, le=4096, description="The longest side of the result, in pixels."),
    ) -> Path:
        """Return a PNG that fits into a square of `size` pixels. A picture that already fits keeps its size."""
        try:
            picture = Image.open(image)
        except UnidentifiedImageError:
            raise ValueError("image is not a picture that this model can read") from None

        picture.thumbnail((size, size))
        picture = ImageOps.exif_transpose(picture)  # a photo says here which way up it was taken
        picture = picture.convert("RGBA" if picture.has_transparency_data else "RGB")  # PNG has no CMYK, for one

        smaller = Path(tempfile.mkdtemp()) / "thumbnail.png"
        picture.save(smaller)
        return smaller
