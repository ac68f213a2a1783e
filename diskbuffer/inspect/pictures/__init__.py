"""Pictures, as bytes: frames, film strips, movies and plots of arrays. Knows no store; pillow and Matplotlib do the drawing."""

from diskbuffer.inspect.pictures.curves import curves
from diskbuffer.inspect.pictures.film_strip import film_strip, spread
from diskbuffer.inspect.pictures.frames import as_pictures, picture_columns
from diskbuffer.inspect.pictures.movies import has_video, movie

__all__ = ["as_pictures", "curves", "film_strip", "has_video", "movie", "picture_columns", "spread"]
